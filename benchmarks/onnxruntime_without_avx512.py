"""Write a copy of the installed onnxruntime without AVX-512 and VNNI: ``onnxruntime_without_avx512.py FOLDER``.

For measuring and testing on a machine with AVX-512 what one without it gets: ``NORMFUSE_ISA=avx2`` limits normfuse, and
nothing limits ONNX Runtime's own kernels. A program has to ask the processor which registers the system saves (XGETBV)
before it may use AVX-512; in the copy each such question is answered with those of AVX2. AVX-VNNI needs no other
registers than AVX2: CPUID says in subleaf 1 of leaf 7 whether it is there, and the copy asks for a subleaf that no
processor has. Put FOLDER first in PYTHONPATH:

    python benchmarks/onnxruntime_without_avx512.py results/avx2
    PYTHONPATH=results/avx2 NORMFUSE_ISA=avx2 python benchmarks/run.py

Without VNNI, ONNX Runtime's products of uint8 and int8 saturate (docs/pages/limits.md). The copy is for use on this
machine and not to be given away. What it does not imitate: a processor without AVX-512 has other caches, ports and
clocks.
"""

import argparse
import importlib.metadata
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

XGETBV = rb"\x0f\x01\xd0"
# The register that it reads is chosen by ECX = 0, or CPUID was asked just before; the same bytes inside other
# instructions have neither in front of them.
QUESTION = re.compile(rb"(?:\x31\xc9|\x0f\xa2.{0,24}?)(" + XGETBV + rb")", re.DOTALL)
# push 7; pop rax: x87, SSE and AVX registers are saved, and no others (Intel SDM volume 1, 13.3).
ANSWER = b"\x6a\x07\x58"
# mov eax, 7; mov ecx, 1; cpuid: AVX-VNNI, AVX-VNNI-INT8 and others that came with them or later. (AVX512-VNNI is in
# subleaf 0, and looked at only where the system saves the registers of AVX-512.)
SUBLEAF_QUESTION = re.compile(rb"\xb8\x07\0\0\0\xb9(\x01)\0\0\0\x0f\xa2")
# All zeros come back from a subleaf beyond the last one (Intel SDM volume 2A, CPUID; AMD APM volume 3, E.3.6).
ABSENT_SUBLEAF = b"\x7f"


def without_avx512(library: bytes) -> tuple[bytes, int, int]:
    """Return a library whose questions are answered, and how many about registers and about subleaf 1 those were."""
    answered = bytearray(library)
    registers = [match.start(1) for match in QUESTION.finditer(library)]
    for place in registers:
        answered[place : place + len(ANSWER)] = ANSWER
    subleaves = [match.start(1) for match in SUBLEAF_QUESTION.finditer(library)]
    for place in subleaves:
        answered[place : place + 1] = ABSENT_SUBLEAF
    return bytes(answered), len(registers), len(subleaves)


def installed() -> Path:
    for file in importlib.metadata.files("onnxruntime") or ():
        if file.as_posix() == "onnxruntime/__init__.py":
            return Path(str(file.locate())).parent
    sys.exit("onnxruntime is not installed in this environment: pip install onnxruntime")


def write_copy(folder: Path, changed: Callable[[Path], bytes]) -> Path:
    """Write the installed onnxruntime, for a ``folder`` on PYTHONPATH; ``changed`` says what its libraries become."""
    target = folder / "onnxruntime"
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(installed(), target, ignore=shutil.ignore_patterns("__pycache__"))
    for library in sorted(target.glob("capi/*.so*")):
        library.write_bytes(changed(library))
    return target


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="where the copy goes; replaced if it is there")
    questions = []

    def changed(library: Path) -> bytes:
        content, registers, subleaves = without_avx512(library.read_bytes())
        print(f"{library.name}: registers {registers}, subleaf 1 {subleaves}")
        questions.append((registers, subleaves))
        return content

    target = write_copy(parser.parse_args().folder, changed)
    if not all(map(sum, zip(*questions, strict=True))):
        shutil.rmtree(target)
        sys.exit("This onnxruntime never asks: it is no library for Linux on x86-64, or asks in another way.")


if __name__ == "__main__":
    main()
