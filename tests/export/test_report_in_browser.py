"""The report page in headless Chromium: on a phone, in the dark, and with the keyboard."""

import html
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import normfuse
from normfuse.measuring.benchmark import benchmark
from normfuse.models import transformer_encoder
from normfuse.reports.files import write_report

# Measured from outside: the page itself has no script.
_FRAME = """<!doctype html><iframe id=frame width={width} height=800 srcdoc="{page}"></iframe><pre id=out></pre><script>
frame.onload = () => {{
  const page = frame.contentDocument, css = (element) => frame.contentWindow.getComputedStyle(element);
  const focusable = [...page.querySelectorAll("a[href], summary, [tabindex='0']")];
  out.textContent = JSON.stringify({{
    overflow: page.documentElement.scrollWidth - page.documentElement.clientWidth,
    background: css(page.body).backgroundColor, text: css(page.body).color,
    reached: focusable.filter((element) => {{ element.focus(); return page.activeElement === element; }}).length,
    focusable: focusable.length,
    drawings: [...page.querySelectorAll("svg")].map((svg) => svg.getBoundingClientRect().width),
    box: css(page.querySelector("svg rect")).fill,
  }});
}};
</script>"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = transformer_encoder(layers=2, hidden=64, quantized=True)
    report = normfuse.optimize(model).report.to_dict() | {"benchmark": benchmark(model, seconds=0.2).to_dict()}
    path = tmp_path_factory.mktemp("page") / "report.html"
    write_report(report, path)
    return path


def chromium(folder: Path, *arguments: str) -> str:
    program = shutil.which("chromium") or shutil.which("google-chrome")
    assert program is not None, "Chromium is not installed (on Debian: apt-get install chromium)"
    command = [program, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'profile'}"]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def measure(page: Path, folder: Path, width: int, scheme: str) -> dict:
    (folder / "frame.html").write_text(_FRAME.format(width=width, page=html.escape(page.read_text())))
    setting = f"--blink-settings=preferredColorScheme={0 if scheme == 'dark' else 1}"
    document = chromium(folder, setting, "--virtual-time-budget=5000", "--dump-dom", (folder / "frame.html").as_uri())
    return json.loads(html.unescape(re.search(r'<pre id="out">(.*?)</pre>', document, re.S)[1]))


@pytest.mark.parametrize("width", [340, 800, 1400])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_and_can_be_reached(page: Path, width: int, scheme: str, tmp_path: Path) -> None:
    found = measure(page, tmp_path, width, scheme)
    assert found["overflow"] == 0
    assert found["reached"] == found["focusable"] > 10
    assert found["drawings"]
    assert all(0 < drawing <= width for drawing in found["drawings"])
    brightness = [sum(map(int, re.findall(r"\d+", found[what]))) / 3 for what in ("background", "text", "box")]
    dark_ground = brightness[0] < brightness[1]
    assert dark_ground == (scheme == "dark")
    assert abs(brightness[0] - brightness[1]) > 120
    assert abs(brightness[2] - brightness[1]) > 120


def test_it_prints(page: Path, tmp_path: Path) -> None:
    target = tmp_path / "page.pdf"
    chromium(tmp_path, f"--print-to-pdf={target}", page.as_uri())
    assert target.read_bytes().startswith(b"%PDF")
    assert target.stat().st_size > 20_000
