"""Peak memory of a session: ``python benchmarks/memory.py [NAME ...] [--runs 5] [--json FILE]``.

Creates a session on each real model of 40 MB and more and runs it three times: the original on ONNX Runtime's CPU
provider, the original with normfuse, and the rewritten model with normfuse, in turns, each in a process of its own. The
figure is the peak of resident memory above its level before the session was created: the median of so many runs. Every
process registers the library before that, for what lies free in the heap by then decides how much of it a session uses.

The rewritten model has functions: ``session_options(model=...)`` looks at it and spares ONNX Runtime a copy of all
weights. A session on it with ``session_options()`` is measured as well.

Fails where normfuse takes more than ONNX Runtime alone, plus 2 %, plus 4 MiB, but for the rewritten model without
``model=``. Linux only: the figures are those of /proc.
"""

import argparse
import re
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnxruntime

import normfuse

sys.path.insert(0, str(Path(__file__).resolve().parent))

from measure import Row, child, table, write_json
from real_models import NAMES, Case, cases, model_name

LEAST = 40_000_000  # bytes of a model's file: below, the libraries are what counts
SHARE, MIB = 0.02, 4.0  # what normfuse may take beyond ONNX Runtime
ORT, ORIGINAL, REWRITTEN = "onnxruntime", "original + normfuse", "rewritten + normfuse"
UNSEEN = f"{REWRITTEN}, without model="
WAYS = (ORT, ORIGINAL, REWRITTEN, UNSEEN)
RUNS_OF_A_SESSION = 3
RESET_PEAK = "5"  # what proc(5) says to write into clear_refs


def resident(field: str) -> float:
    """MiB of a field of /proc/self/status: VmRSS now, VmHWM at its peak."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    match = re.search(rf"^{field}:\s+(\d+) kB$", status, re.MULTILINE)
    if match is None:
        sys.exit(f"benchmarks/memory.py: /proc/self/status has no {field}")
    return int(match[1]) / 1024


def create_and_run(path: str, feeds: str, way: str) -> None:
    """Print the peak of one session. This is what the child process does."""
    samples = dict(np.load(feeds))
    options = normfuse.session_options()
    if way == ORT:
        options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text(RESET_PEAK, encoding="utf-8")
    if way == REWRITTEN:  # looking at the model is measured, too
        normfuse.session_options(options, model=path)
    providers = ["CPUExecutionProvider"] if way == ORT else None
    session = onnxruntime.InferenceSession(path, options, providers=providers)
    for _ in range(RUNS_OF_A_SESSION):
        session.run(None, samples)
    print(resident("VmHWM") - before)


def peak(path: Path, feeds: Path, way: str) -> float:
    """MiB of one session in a process of its own."""
    return float(child(__file__, "--create", path, feeds, way).stdout)


def measured(case: Case, runs: int, folder: Path) -> Row:
    """One row of the table."""
    feeds, rewritten = folder / "feeds.npz", folder / "rewritten.onnx"
    np.savez(feeds, **case.feeds)  # type: ignore[arg-type]
    normfuse.optimize(case.path, verify=False).save(rewritten)
    ways = {ORT: case.path, ORIGINAL: case.path, REWRITTEN: rewritten, UNSEEN: rewritten}
    peaks: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(runs):
        for way, path in ways.items():
            peaks[way].append(peak(path, feeds, way))
    medians = {way: statistics.median(values) for way, values in peaks.items()}
    print(f"{case.name}: {medians[REWRITTEN] - medians[ORT]:+.1f} MiB", file=sys.stderr, flush=True)
    allowed = (1 + SHARE) * medians[ORT] + MIB
    return {"model": case.name, "file_bytes": case.path.stat().st_size, "allowed_mib": allowed, "peak_mib": medians}


def large(names: list[str], folder: Path) -> Iterator[Case]:
    """Yield the models that are large enough; those that were asked for by name in any case."""
    for case in cases(folder, names):
        if names or case.path.stat().st_size >= LEAST:
            yield case


def cells(row: Row) -> list[str]:
    """A row of the table."""
    peaks = [f"{row['peak_mib'][way]:.1f}" for way in WAYS]
    return [row["model"], f"{row['file_bytes'] / 1e6:.0f}", *peaks, f"{row['allowed_mib']:.1f}"]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "names", nargs="*", type=model_name, metavar="NAME", help=f"of {', '.join(NAMES)}; none: all of 40 MB and more"
    )
    parser.add_argument("--runs", type=int, default=5, help="of which the median is taken")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there")
    parser.add_argument("--create", nargs=3, metavar=("PATH", "FEEDS", "WAY"), help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> int:
    arguments = parse_arguments()
    if arguments.create:
        create_and_run(*arguments.create)
        return 0
    with tempfile.TemporaryDirectory() as name:
        rows = [measured(case, arguments.runs, Path(name)) for case in large(arguments.names, Path(name))]
    print(table(("model", "MB", *WAYS, "allowed"), map(cells, rows)))
    write_json(arguments.json, {"rows": rows})
    over = [
        f"{row['model']}, {way}: {row['peak_mib'][way]:.1f} MiB is above {row['allowed_mib']:.1f}"
        for row in rows
        for way in (ORIGINAL, REWRITTEN)
        if row["peak_mib"][way] > row["allowed_mib"]
    ]
    for line in over:
        print(line, file=sys.stderr)
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
