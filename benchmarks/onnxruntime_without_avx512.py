"""Write a copy of the installed onnxruntime that does not see AVX-512: ``onnxruntime_without_avx512.py FOLDER``.

For measuring on a machine with AVX-512 what one without it gets: ``NORMFUSE_ISA=avx2`` limits normfuse, and nothing
limits ONNX Runtime's own kernels. A program has to ask the processor which registers the system saves (XGETBV) before
it may use AVX-512; in the copy each such question is answered with those of AVX2. Put FOLDER first in PYTHONPATH:

    python benchmarks/onnxruntime_without_avx512.py results/avx2
    PYTHONPATH=results/avx2 NORMFUSE_ISA=avx2 python benchmarks/run.py

The copy is for measurements on this machine and not to be given away. What it does not imitate: a processor without
AVX-512 has other caches, ports and clocks.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import re
import shutil
import sys
from pathlib import Path

XGETBV = rb"\x0f\x01\xd0"
# The register that it reads is chosen by ECX = 0, or CPUID was asked just before; the same bytes inside other
# instructions have neither in front of them.
QUESTION = re.compile(rb"(?:\x31\xc9|\x0f\xa2.{0,24}?)(" + XGETBV + rb")", re.DOTALL)
# push 7; pop rax: x87, SSE and AVX registers are saved, and no others (Intel SDM volume 1, 13.3).
ANSWER = b"\x6a\x07\x58"


def without_avx512(library: bytes) -> tuple[bytes, int]:
    """Return a library whose questions are answered, and how many those were."""
    answered = bytearray(library)
    places = [match.start(1) for match in QUESTION.finditer(library)]
    for place in places:
        answered[place : place + len(ANSWER)] = ANSWER
    return bytes(answered), len(places)


def installed() -> Path:
    for file in importlib.metadata.files("onnxruntime") or ():
        if file.as_posix() == "onnxruntime/__init__.py":
            return Path(str(file.locate())).parent
    sys.exit("onnxruntime is not installed in this environment: pip install onnxruntime")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="where the copy goes; replaced if it is there")
    target = parser.parse_args().folder / "onnxruntime"
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(installed(), target, ignore=shutil.ignore_patterns("__pycache__"))
    total = 0
    for library in sorted(target.glob("capi/*.so*")):
        content, count = without_avx512(library.read_bytes())
        library.write_bytes(content)
        print(f"{library.name}: {count}")
        total += count
    if not total:
        shutil.rmtree(target)
        sys.exit("This onnxruntime never asks: it is no library for Linux on x86-64.")


if __name__ == "__main__":
    main()
