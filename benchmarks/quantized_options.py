"""What the options for quantised models bring: ``python benchmarks/quantized_options.py [NAME ...] [--seconds 5]``.

Runs each file of `tests/real_models/quantized_zoo.py` with one thread, all ways in turns: on ONNX Runtime's CPU
provider; rewritten with normfuse; rewritten by ``optimize --fold-weights``; by `normfuse.InferenceSession`, which folds
all weights that are used as floats; and by ``optimize --remove-quantization``. Prints milliseconds of processor time,
medians, the sizes of the files in MB, and how far the last way moves the outputs.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnxruntime

import normfuse
from normfuse.measuring import bound_run, clock_for, take_turns

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "benchmarks"), *(str(ROOT / "tests" / name) for name in (".", "real_models"))]

import quantized_zoo  # noqa: E402
from quantized_models import file_name  # noqa: E402

OPTIONS = {"rewritten": {}, "--fold-weights": {"fold_weights": True}, "--remove-quantization": {}}
WAYS = ("ORT", "rewritten", "--fold-weights", "InferenceSession", "--remove-quantization")
HEAD = ("file", *WAYS, "MB", "moves outputs")


def single_threaded() -> onnxruntime.SessionOptions:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    return options


def row(name: str, seconds: float, folder: Path) -> list[str]:
    """One line of the table."""
    path = quantized_zoo.quantized_file(name)
    samples = [quantized_zoo.network_of(name).feeds(np.random.default_rng(seed)) for seed in range(2)]
    sessions = {"ORT": onnxruntime.InferenceSession(path, single_threaded(), providers=["CPUExecutionProvider"])}
    sizes = [path.stat().st_size]
    removal = None
    for way, arguments in OPTIONS.items():
        removes = way == "--remove-quantization"
        result = normfuse.optimize(path, verify=removes, inputs=samples, remove_quantization=removes, **arguments)
        target = folder / f"{name}{way}.onnx"
        sizes.append(result.save(target))
        removal = result.report.removal
        options = normfuse.session_options(single_threaded(), model=target)
        sessions[way] = onnxruntime.InferenceSession(target, options)
    sessions["InferenceSession"] = normfuse.InferenceSession(path, single_threaded())
    clock, _ = clock_for(1)
    runs = [bound_run(session, samples[0]) for session in sessions.values()]
    rounds = take_turns(runs, seconds, lambda what, done, total: None, clock)
    taken = {
        way: 1e3 * statistics.median(t for times in found for t in times)
        for way, found in zip(sessions, rounds, strict=True)
    }
    assert removal is not None
    moved = max((one.relative for one in removal.differences), default=0.0)
    megabytes = ", ".join(f"{size / 1e6:.1f}" for size in sizes)
    return [name, *(f"{taken[way]:.3g}" for way in WAYS), megabytes, f"{moved:.1%}"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", type=file_name, metavar="NAME", help=f"of {', '.join(quantized_zoo.NAMES)}")
    parser.add_argument("--seconds", type=float, default=5.0, help="of measuring each file")
    arguments = parser.parse_args()
    print(f"| {' | '.join(HEAD)} |\n{'|---' * len(HEAD)}|")
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.names or quantized_zoo.NAMES:
            print(f"| {' | '.join(row(name, arguments.seconds, Path(folder)))} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
