"""Speed of files as other quantisers write them: ``python benchmarks/other_quantizers.py [--seconds 4] [--check]``.

Runs each file of `tests/real_models/quantizer_styles.py` on ONNX Runtime's CPU provider and by
`normfuse.InferenceSession`, in turns, on one thread, by processor time. Beside the ratio, in brackets with its lower
and upper quartile, stand how far the largest element is from the output without any optimisation, and how many
products each runs in integers. ``--check`` fails where normfuse is below 0.98 of ONNX Runtime's speed.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path

import numpy as np
import onnxruntime

import normfuse
from normfuse.measuring import bound_run, clock_for, ratio_of, take_turns

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "benchmarks"), *(str(ROOT / "tests" / name) for name in (".", "real_models"))]

import report  # noqa: E402
from measure import FLOOR, table  # noqa: E402
from quantizer_styles import FILES, File, exact, options, plain, products_of_integers  # noqa: E402

HEAD = ("file", "ORT, ms", "normfuse, ms", "ORT / normfuse", "error: ORT, normfuse", "in integers: ORT, normfuse")


def row(file: File, seconds: float) -> tuple[float, list[str]]:
    """The ratio, and one line of the table."""
    model, feeds = file.model().SerializeToString(), file.feeds()
    expected = exact(model, feeds)
    ways = (plain, normfuse.InferenceSession)
    sessions = [create(model, options()) for create in ways]
    errors = [float(np.abs(each.run(None, feeds)[0] - expected).max() / np.abs(expected).max()) for each in sessions]
    products = [sum(products_of_integers(create, model, feeds).values()) for create in ways]
    runs = [bound_run(session, feeds) for session in sessions]
    taken = take_turns(runs, seconds, lambda what, done, total: None, clock_for(1)[0])
    times = [f"{1e3 * statistics.median(t for times in rounds for t in times):.3g}" for rounds in taken]
    found = ratio_of(*taken)
    ratio = f"{found.median:.2f} ({found.low:.2f} to {found.high:.2f})"
    shown = ", ".join(f"{error:.1g}" for error in errors)
    return found.median, [file.name, *times, ratio, shown, ", ".join(map(str, products))]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=4.0, help="of measuring each file")
    parser.add_argument("--check", action="store_true", help=f"fail where a ratio is below {FLOOR}")
    arguments = parser.parse_args()
    print(f"{report.machine()}, onnxruntime {onnxruntime.__version__}\n")
    print(table(HEAD, []))
    slow = False
    for file in FILES:
        ratio, cells = row(file, arguments.seconds)
        slow = slow or ratio < FLOOR
        print(f"| {' | '.join(cells)} |", flush=True)
    return 1 if slow and arguments.check else 0


if __name__ == "__main__":
    sys.exit(main())
