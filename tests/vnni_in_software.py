"""A machine with VNNI, in software, on one that has AVX2: ``vnni_in_software.py FOLDER`` (Linux on x86-64).

Writes a copy of the installed onnxruntime that sees no AVX-512 and is told that the processor has AVX-VNNI, and a
library that carries out the instructions of AVX-VNNI where the processor has not. What is started with both multiplies
integers as with VNNI: exactly. Any test:

    .venv/bin/python tests/vnni_in_software.py build/vnni
    PYTHONPATH=build/vnni LD_PRELOAD=$PWD/build/vnni/avx_vnni.so .venv/bin/pytest -p no:faulthandler tests/real_models

pytest's faulthandler would take the signal by which the processor refuses an instruction.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "benchmarks"))
import onnxruntime_without_avx512 as without  # noqa: E402

NATIVE = ROOT / "tests" / "native"
SOURCES = [NATIVE / "avx_vnni" / f"{name}.cc" for name in ("in_software", "instruction", "translation")]
# mov eax, 16 (AVX-VNNI and nothing else); xor ecx, ecx; xor edx, edx; xor ebx, ebx; nop
SAYS_VNNI = b"\xb8\x10\0\0\0\x31\xc9\x31\xd2\x31\xdb\x90"


def saying_vnni(library: Path) -> bytes:
    original = library.read_bytes()
    answered = bytearray(without.without_avx512(original)[0])
    for question in without.SUBLEAF_QUESTION.finditer(original):
        answered[question.start() : question.end()] = SAYS_VNNI
    return bytes(answered)


def build(target: Path, *arguments: Path | str) -> Path:
    """The instructions, as a library or in a program."""
    compiler = os.environ.get("CXX", "c++")
    subprocess.run([compiler, "-std=c++20", "-O2", *SOURCES, *arguments, "-o", target], check=True, timeout=600)
    return target


def machine_with_vnni(folder: Path) -> dict[str, str]:
    """Write both, and return the environment variables that a process needs."""
    folder = folder.absolute()
    without.write_copy(folder, saying_vnni)
    library = build(folder / "avx_vnni.so", "-fPIC", "-shared", "-fvisibility=hidden")
    return {"PYTHONPATH": str(folder), "LD_PRELOAD": str(library)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="where both go; the copy is replaced")
    variables = machine_with_vnni(parser.parse_args().folder)
    print(*(f"{name}={value}" for name, value in variables.items()))


if __name__ == "__main__":
    main()
