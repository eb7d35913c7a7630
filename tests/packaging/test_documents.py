"""Every code block of README and of the documentation runs, in order, in a folder that holds model.onnx."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from documents import DOCUMENTS, ROOT, run_blocks
from test_version_matrix import HOSTS as VERSIONS
from typer.main import get_command

from normfuse.cli import app
from normfuse.graph_rewrites.rules import RULES
from normfuse.host.versions import MINIMUM_VERSION, NEWEST_TESTED

# Measurements, demonstrations and a quantiser's calibration, each for 9 seconds and more.
SLOW = ("README.md", "benchmarks.md", "debugging.md", "index.md", "quantisation.md", "tuning.md")


@pytest.mark.parametrize(
    "document",
    [pytest.param(each, id=each.name, marks=[pytest.mark.slow] * (each.name in SLOW)) for each in DOCUMENTS],
)
def test_blocks_run_in_order(document: Path, tmp_path: Path) -> None:
    run_blocks(document, tmp_path)


def test_site_builds_without_a_warning(tmp_path: Path) -> None:
    """Links between pages are checked by mkdocs itself."""
    options = ["build", "--quiet", "--strict", "--config-file", ROOT / "docs" / "mkdocs.yml", "--site-dir", tmp_path]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", *options], capture_output=True, text=True, check=False, env=environment
    )
    assert (done.returncode, done.stderr) == (0, "")
    page = (tmp_path / "reference" / "rules" / "index.html").read_text(encoding="utf-8")
    assert re.findall(r'<h2 id="\w+">(\w+)', page) == [rule.__name__ for rule in RULES]
    page = (tmp_path / "reference" / "commands" / "index.html").read_text(encoding="utf-8")
    for name, command in get_command(app).commands.items():
        described = page.partition(f'<h2 id="{name}">')[2].partition("<h2")[0]
        named = [option for parameter in command.params for option in parameter.opts if option.startswith("--")]
        assert named or name in ("schema", "run")  # these take arguments only
        assert all(re.search(rf"<code>[^<]*{option}\b", described) for option in named), name
    assert "LayerNormalization" in (tmp_path / "search" / "search_index.json").read_text(encoding="utf-8")
    # Everything comes from the site itself, so that it can be read without a network.
    for page in tmp_path.glob("**/*.html"):
        loaded = re.findall(r'<(?:script|img|link)[^>]* (?:src|href)="?(https?:[^" >]*)', page.read_text("utf-8"))
        assert not loaded, f"{page}: {loaded}"


def anchors(document: Path) -> set[str]:
    """What "#..." may name: the headings, as GitHub spells them."""
    text = re.sub(r"^```.*?^```", "", document.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title).strip().lower().replace(" ", "-") for title in titles}


def test_links_lead_somewhere() -> None:
    """In every document, also in those that are read on GitHub only; of the rest mkdocs checks what it renders."""
    tracked = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert "docs/decisions/README.md" in tracked
    for path in (ROOT / name for name in tracked.split()):
        for target, anchor in re.findall(r"\]\((?!https?:|mailto:)([^)#]*)#?([^)]*)\)", path.read_text("utf-8")):
            document = path.parent / target if target else path
            generated = "reference/" in target  # pages that the site makes
            assert generated or document.exists(), f"{path.name} links to {target}"
            assert not anchor or generated or anchor in anchors(document), f"{path.name} links to {target}#{anchor}"


def test_decisions_are_numbered_and_listed() -> None:
    pages = sorted((ROOT / "docs" / "decisions").glob("0*.md"))
    for number, page in enumerate(pages, 1):
        text = page.read_text(encoding="utf-8")
        assert page.name.startswith(f"{number:04}-")
        assert text.startswith(f"# {number}. ")
        assert re.findall(r"^## (.*)$", text, re.MULTILINE) == [
            "Decision",
            "Measured",
            "Consequences",
            "Decide again when",
        ], page.name
    listed = re.findall(r"^\| \[(\d+)\]\((.*?)\)", (pages[0].parent / "README.md").read_text("utf-8"), re.MULTILINE)
    assert listed == [(str(number), page.name) for number, page in enumerate(pages, 1)]


def test_order_of_the_rules_is_that_of_the_code() -> None:
    page = (ROOT / "docs" / "pages" / "how-it-works.md").read_text(encoding="utf-8")
    rows = page.partition("## The order of the rules")[2].partition("\n## ")[0].partition("|---")[2]
    assert re.findall(r"`(\w+)`", rows) == [rule.__name__ for rule in RULES]


def test_folders_that_documents_name_are_there() -> None:
    """Where something is moves; what the pages, and the drawing, say of it has to move along."""
    pages = [*DOCUMENTS, ROOT / "docs" / "pages" / "architecture.svg", ROOT / "ep" / "README.md"]
    folders = "ep|graph_rewrites|models|src|tests|tools|benchmarks|docs"
    for page in pages:
        text = page.read_text(encoding="utf-8")
        for name in re.findall(rf"(?<=[`>(])((?:{folders})/[\w./-]*)(?=[`)]|</)", text):
            assert (ROOT / name).exists(), f"{page.name} names {name}"


def test_native_tests_that_documents_name_are_there() -> None:
    built = "\n".join(path.read_text("utf-8") for path in (ROOT / "tests" / "native").glob("**/CMakeLists.txt"))
    target = r"(?:native_tests/(?:directml/)?|--target )(\w+_test|bench_kernels)"
    for page in DOCUMENTS:
        text = page.read_text(encoding="utf-8")
        for name in re.findall(target, text):
            assert re.search(rf"\b{name}\b", built), f"{page.name} names {name}"
        # Who follows a page from its top has built what it runs.
        for run in re.finditer(r"(?<!\S)`?(build/\w+)/native_tests/(?:directml/)?(\w+)", text):
            builds = re.findall(rf"--build {run[1]}\b(?: --target((?: \w+)+))?", text[: run.start()])
            assert any(not targets or run[2] in targets.split() for targets in builds), f"{page.name}: {run[0]}"


def cells(document: Path) -> list[list[str]]:
    """The rows of its tables."""
    lines = document.read_text(encoding="utf-8").splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")]


def test_figures_of_the_readme_are_those_of_the_benchmarks_page() -> None:
    """README repeats some rows: they are changed together."""
    rows = [row for row in cells(ROOT / "docs" / "pages" / "benchmarks.md") if re.search(r"\d", row[1])]
    measured = [row for row in rows if "(" in row[1]]
    zen4 = {row[0]: row[1] for row in measured if len(row) == 7}
    avx2 = {row[0]: row[len(row) - 5] for row in measured if len(row) in (6, 7)}
    models = {row[0]: row for row in rows if len(row) == 9}
    said = [row for row in cells(ROOT / "README.md") if re.match(r"\d", row[1])]
    for what, *ratios in said:
        model = models.get(name := what.partition(" (")[0])
        assert ratios == [found.partition(" ")[0] for found in (model[5] if model else zen4[what], avx2[name])]
        assert not model or f"at most {model[6]}" in what
    assert len(said) > 10


def test_the_readme_counts_the_models_that_hardly_gain() -> None:
    rows = [row for row in cells(ROOT / "docs" / "pages" / "benchmarks.md") if len(row) == 9 and row[1] == "1"]
    hardly = [row[0] for row in rows if float(row[5].partition(" ")[0]) < 1.03]
    said = re.search(
        r"Of the (\d+) models .*?(\d+) gain less than 3 %", (ROOT / "README.md").read_text(encoding="utf-8")
    )
    assert said
    assert (int(said[1]), int(said[2])) == (len(rows), len(hardly)), hardly


def test_limits_of_the_readme_are_those_of_the_page() -> None:
    def sentences(path: Path) -> set[str]:
        text = re.sub(r"\]\(\S*?(\w+\.md)\)", r"](\1)", path.read_text(encoding="utf-8").partition("# Limits\n")[2])
        bullets = re.findall(r"^\* (.*(?:\n  .*)*)", text.partition("\n## ")[0], re.MULTILINE)
        return {" ".join(bullet.split()) for bullet in bullets}

    readme, page = sentences(ROOT / "README.md"), sentences(ROOT / "docs" / "pages" / "limits.md")
    assert len(readme) > 3
    assert readme < page, f"not on the page: {readme - page}"


def test_versions_of_onnxruntime_in_the_documents() -> None:
    """ "1.24 to 1.32" is what the library accepts, and what the tests of every version run."""
    tested = f"{'.'.join(map(str, MINIMUM_VERSION))} to {'.'.join(map(str, NEWEST_TESTED))}"
    assert f"ONNX Runtime {tested}" in (ROOT / "docs" / "pages" / "limits.md").read_text(encoding="utf-8")
    for path in (*DOCUMENTS, ROOT / "SECURITY.md"):
        text = re.sub(r"\s+", " ", path.read_text(encoding="utf-8"))
        for said in re.findall(r"ONNX Runtime\S* (1\.\d+ (?:to|and newer \(tested to) 1\.\d+)", text):
            assert said.replace("and newer (tested to", "to") == tested, f"{path.name}: {said}"
    minors = [tuple(map(int, version.split(".")[:2])) for version in VERSIONS]
    assert (min(minors), max(minors)) == (MINIMUM_VERSION, NEWEST_TESTED)


def test_messages_are_what_the_code_says() -> None:
    """Each part of a message on that page stands in a source file, whichever lines its text is spread over."""
    written = [*ROOT.glob("src/**/*.py"), *ROOT.glob("ep/**/*.py"), *ROOT.glob("ep/**/*.cmake")]
    source = re.sub(r'"\s*\n?\s*f?"', "", "\n".join(path.read_text(encoding="utf-8") for path in written))
    source = re.sub(r"\{[^{}]*\}|\$\{[^{}]*\}", "...", source)
    native = "\n".join(path.read_text(encoding="utf-8") for path in ROOT.glob("ep/**/*.cc"))
    source += re.sub(r'"\s*\n?\s*"', "", native)
    page = (ROOT / "docs" / "pages" / "messages.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (.*?) \| ", page.partition("## When results differ")[0], re.MULTILINE)
    messages = [row for row in rows if row != "message" and not row.startswith("Package")]  # that one is pip's
    assert len(messages) > 15
    for message in messages:
        for part in re.split(r"\.\.\.|; |, |'", message):
            words = part.strip().removeprefix("NORMFUSE_LIBRARY ")  # in the source by its constant
            assert words in source or not words[4:], f"no source says '{words}' ({message})"
