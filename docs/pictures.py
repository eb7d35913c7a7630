"""Draws the picture of the report page: ``python docs/pictures.py``. Needs Chromium.

The other picture, docs/pages/speed.svg, is drawn from measurements: by ``python benchmarks/run.py --output FOLDER``.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import normfuse
from normfuse.models import transformer_encoder
from normfuse.reports.files import write_report

TARGET = Path(__file__).with_name("pages") / "report.png"
SIZE = "900,1120"


def main() -> None:
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        sys.exit("pictures.py: Chromium is not installed (on Debian: apt-get install chromium)")
    report = normfuse.optimize(transformer_encoder(layers=2, hidden=64, quantized=True)).report.to_dict()
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "report.html"
        write_report(report | {"model": "encoder.onnx"}, page)
        command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        command += [f"--user-data-dir={folder}/profile", f"--window-size={SIZE}", f"--screenshot={TARGET}"]
        subprocess.run([*command, page.as_uri()], check=True, capture_output=True)
    print(TARGET)


if __name__ == "__main__":
    main()
