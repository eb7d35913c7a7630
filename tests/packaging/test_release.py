"""Version, tag and changelog agree; newer hosts are accepted, and the doctor says that they were not tested."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from normfuse import __version__
from normfuse.host import versions
from normfuse.selftest import diagnosis

ROOT = Path(__file__).resolve().parents[2]


def release(repository: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, repository / "tools" / "release.py", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """What tools/release.py reads, with a changelog of its own."""
    for name in ("tools/release.py", "src/normfuse/_version.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    text = f"# Changelog\n\n## [Unreleased]\n\n## [{__version__}] - 2026-11-30\n\n### Added\n\n* This.\n\n"
    text += "## [0.0.1] - 2026-01-01\n"
    (tmp_path / "CHANGELOG.md").write_text(text)
    return tmp_path


def test_a_tag_of_this_version_can_be_released(repository: Path) -> None:
    done = release(repository, "check", f"v{__version__}")
    assert (done.returncode, done.stdout) == (0, f"v{__version__} of 2026-11-30 can be released\n")
    assert release(repository, "notes", f"v{__version__}").stdout == "### Added\n\n* This.\n"


@pytest.mark.parametrize("tag", ["v99.0.0", __version__, "main"])
def test_another_tag_is_refused(repository: Path, tag: str) -> None:
    done = release(repository, "check", tag)
    assert done.returncode == 1
    assert f"the tag is {tag}, the version in src/normfuse/_version.py is {__version__}" in done.stderr


@pytest.mark.parametrize(
    ("heading", "sentence"),
    [("## [Unreleased]", "has no section"), (f"## [{__version__}] - soon", "write it as YYYY-MM-DD")],
)
def test_a_changelog_without_the_version_is_refused(repository: Path, heading: str, sentence: str) -> None:
    (repository / "CHANGELOG.md").write_text(f"# Changelog\n\n{heading}\n\n* This.\n")
    done = release(repository, "check", f"v{__version__}")
    assert done.returncode == 1
    assert sentence in done.stderr


def test_changelog_has_the_form_that_the_release_reads() -> None:
    headings = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert headings[0] == "[Unreleased]"
    assert all(re.fullmatch(r"\[\d+\.\d+\.\d+\] - \d{4}-\d{2}-\d{2}", heading) for heading in headings[1:])


def test_the_doctor_says_that_a_newer_host_was_not_tested(monkeypatch: pytest.MonkeyPatch) -> None:
    def text() -> str:
        return next(finding.text for finding in diagnosis.diagnose() if finding.name == "onnxruntime")

    assert "newer than" not in text()
    monkeypatch.setattr(diagnosis, "NEWEST_TESTED", versions.MINIMUM_VERSION)
    assert "newer than 1.24, the newest that normfuse" in text()


def test_linters_of_pre_commit_are_those_of_ci() -> None:
    pinned = dict(re.findall(r"^([\w-]+)==(\S+)$", (ROOT / ".ci" / "lint-requirements.txt").read_text(), re.MULTILINE))
    used = re.findall(r'"([\w-]+)==([^"]+)"', (ROOT / ".pre-commit-config.yaml").read_text())
    assert used
    assert all(pinned[name] == version for name, version in used)


def test_every_wheel_is_tried_on_a_machine_of_its_platform() -> None:
    runners = {
        "manylinux_2_28_x86_64": "ubuntu-24.04",
        "manylinux_2_28_aarch64": "ubuntu-24.04-arm",
        "win_amd64": "windows-2025",
        "macosx_11_0_arm64": "macos-15",
        "macosx_10_15_x86_64": "macos-15-intel",
    }
    script = (ROOT / "tools" / "build_wheels.py").read_text(encoding="utf-8")
    assert set(re.findall(r'^    "(\w+)": "[\w.-]+",$', script, re.MULTILINE)) == set(runners)
    tried = (ROOT / ".github" / "workflows" / "wheels.yml").read_text(encoding="utf-8").partition("\n  try:")[2]
    assert set(re.findall(r"(?:ubuntu|windows|macos)-[\w.-]+", tried)) == set(runners.values())


def test_workflows_run_what_is_there() -> None:
    for workflow in (ROOT / ".github" / "workflows").glob("*.yml"):
        named = re.findall(r"(?:python3?|bash) ((?:tools|tests|\.ci)/\S+)", workflow.read_text(encoding="utf-8"))
        assert all((ROOT / name).is_file() for name in named), workflow.name
