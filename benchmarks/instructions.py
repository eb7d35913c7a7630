"""The least that a kernel can take: cycles of its instructions when none depends on another, and of moving 64 bytes.

    python benchmarks/instructions.py [--isa avx2]

compiles loops of the instructions that ep/cpu executes for 16 elements of a chain on AVX-512, or on AVX2, where that is
two vectors, each with registers that were written long before, and loops that read, write and copy within the level-2
cache and by non-temporal stores. A cycle is an addition that waits for the one before. Needs a C++ compiler (``CXX``)
and a processor with that instruction set.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# Instructions for two vectors, and for four.
Chains = dict[str, tuple[list[str], list[str]]]

THREE = "{a},{b},{to}"  # operands of most instructions
LOAD, STORE, STORE_HALF = "vmovups 64(%rdi),{to}", "vmovups {a},1024(%rdi)", "vmovups {half},1024(%rdi)"
ADD, SUB, MUL, DIV, FMA = (f"{name} {THREE}" for name in ("vaddps", "vsubps", "vmulps", "vdivps", "vfmadd231ps"))
MIN, MAX, AND = (f"{name} {THREE}" for name in ("vminps", "vmaxps", "vandps"))
FMA_LOAD = "vfmadd231ps (%rdi),{b},{to}"
LOOKUP, LOOKUP_32 = f"vpermps {THREE}", f"vpermt2ps {THREE}"

# Sums of a vector: every other one by a multiply-add instead of an addition.
SUMS = [SUB, ADD, FMA, SUB, FMA, FMA]
AFFINE = [SUB, FMA, FMA_LOAD]
BYTES_IN = ["vpmovsxbd (%rdi),{to}", "vcvtdq2ps {a},{to}", *AFFINE]
BYTES_OUT = [MIN, "vcvtps2dq {a},{to}"]
# For four vectors: packing, and the sums of as many bytes.
PACK = [*[f"vpackssdw {THREE}"] * 2, *[f"vpaddsw {THREE}"] * 2, f"vpacksswb {THREE}", f"vpermd {THREE}", STORE]


def byte_sums(xor: str) -> list[str]:
    names = (xor, "vpsadbw", "vpunpcklbw", "vpunpckhbw", *["vpmaddwd"] * 2, *["vpaddd"] * 3)
    return [f"{name} {THREE}" for name in names]


# Of a softmax: the sum of four vectors with what rounding loses, and a quotient of the row before.
LONG_SUM = [*[ADD] * 5, *[SUB] * 4]
QUOTIENT = [LOAD, MUL, STORE]


def chains(
    gelu: list[str], gelu_of_bytes: list[str], silu: list[str], exp: list[str], xor: str, to_half: list[str]
) -> Chains:
    """Of one instruction set, from what each activation takes for a vector."""
    sums = byte_sums(xor)
    return {
        "LayerNorm f32": ([LOAD, LOAD, *SUMS, *[LOAD, SUB, SUB, MUL, FMA_LOAD, STORE] * 2], []),
        "LayerNorm -> Gelu f32": ([LOAD, LOAD, *SUMS, *[LOAD, *AFFINE, *gelu, STORE] * 2], []),
        "LayerNorm -> SiLU f32": ([LOAD, LOAD, *SUMS, *[LOAD, *AFFINE, *silu, STORE] * 2], []),
        "LayerNorm f16": (["vcvtph2ps (%rdi),{to}", STORE] * 2 + SUMS + [LOAD, *AFFINE, *to_half, STORE_HALF] * 2, []),
        "DQ -> LayerNorm -> Q int8": ([*BYTES_IN, *BYTES_OUT] * 2, [*PACK, *sums]),
        "Mul -> Add -> Softmax f32": ([LOAD, MUL, "vaddps (%rdi),{b},{to}", MAX, *exp, STORE, *QUOTIENT] * 2, LONG_SUM),
        "DQ -> LayerNorm -> Gelu -> Q int8": ([*BYTES_IN, *gelu_of_bytes, *BYTES_OUT] * 2, [*PACK, *sums]),
    }


@dataclass(frozen=True)
class InstructionSet:
    flags: tuple[str, ...]
    register: str  # of a whole vector
    half: str
    lanes: int
    free: range  # registers that are written, one after the other
    sources: tuple[int, int]  # what is read: registers, or how far ahead in the circle of those that are written
    chains: Chains

    def registers(self, i: int) -> tuple[int, int, int]:
        """What instruction i writes, and the two that it reads."""
        to, a, b = (self.free[(i + distance) % len(self.free)] for distance in (0, *self.sources))
        return (to, a, b) if len(self.free) > 16 else (to, *self.sources)


AVX512 = InstructionSet(
    ("-mavx512f", "-mavx512dq"), "zmm", "ymm", 16, range(4, 32), (5, 11),
    chains(
        gelu=[
            f"vrangeps $14,{THREE}", f"vaddps {{rd-sae}},{THREE}", "vreduceps $25,{a},{to}", *[LOOKUP] * 7, *[FMA] * 6,
            f"vfixupimmps $0,{THREE}", MUL, FMA,
        ],
        gelu_of_bytes=[
            f"vrangeps $14,{THREE}", ADD, SUB, SUB, *[LOOKUP_32] * 5, *[FMA] * 4,
            f"vfixupimmps $0,{THREE}", FMA,
        ],
        silu=[
            f"vrangeps $2,{THREE}", FMA, SUB, FMA, LOOKUP_32, FMA, MUL, FMA, f"vscalefps {THREE}", ADD, DIV,
        ],
        exp=[MAX, FMA, SUB, LOOKUP_32, FMA, FMA, FMA, MUL, FMA, SUB, f"vscalefps {THREE}"],
        xor="vpxord", to_half=["vcvtps2ph $8,{a},{to_half}"],
    ),
)  # fmt: skip

# A power of two: the exponent and its rest, the power of its eighths, and the polynomial of the rest.
EIGHTHS = [FMA, SUB, FMA, LOOKUP, "vpslld $20,{a},{to}", f"vpaddd {THREE}"]


# The distribution function as a Gaussian times a ratio of polynomials, and as a ratio alone.
GELU_OF_ROWS = [AND, MIN, MUL, AND, MIN, MAX, MUL, FMA, *EIGHTHS, MUL, *[FMA] * 10, DIV]
GELU_OF_BYTES = [MIN, MAX, MUL, MUL, *[FMA] * 6, DIV, FMA, MAX, MUL, MUL]

AVX2 = InstructionSet(
    ("-mavx2", "-mfma", "-mf16c"), "ymm", "xmm", 8, range(2, 16), (0, 1),
    chains(
        gelu=GELU_OF_ROWS, gelu_of_bytes=GELU_OF_BYTES,
        silu=[MIN, MAX, *EIGHTHS, FMA, FMA, FMA, FMA, DIV],
        exp=[MAX, *EIGHTHS, FMA, FMA, FMA, MUL, FMA],
        xor="vpxor", to_half=["vcvtps2ph $0,{a},{to_half}"],
    ),
)  # fmt: skip
SETS = {"avx512": AVX512, "avx2": AVX2}
VECTORS = 8  # in one pass through a loop

MEMORY = {  # loops over i in steps of a vector
    "read, level-2 cache": 'asm volatile("" :: "v"(LOAD(x + i)));',
    "write, level-2 cache": "STORE(y + i, value);",
    "copy, level-2 cache": "STORE(y + i, LOAD(x + i));",
    "non-temporal stores": "STREAM(y + i, value);",
}
SMALL, LARGE = 128 * 768, 4096 * 768  # floats
WORDS = {"LOAD": "load_ps", "STORE": "store_ps", "STREAM": "stream_ps"}  # of MEMORY, as intrinsics

PROGRAM = r"""
#include <immintrin.h>
#include <chrono>
#include <cstdio>
#include <cstdlib>
using Clock = std::chrono::steady_clock;
template <class Call> double Fastest(Call call, int rounds = 25) {
  double fastest = 1e9;
  for (int round = 0; round < rounds; ++round) {
    const auto start = Clock::now();
    call();
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    fastest = seconds < fastest ? seconds : fastest;
  }
  return fastest;
}
alignas(64) static float buffer[2048];  // of ones: arithmetic has long ways for what is denormal
int main() {
  for (float& one : buffer) one = 1.0f;
  const double cycle = 1e-6 * Fastest([] {
    long n = 0;
    for (int i = 0; i < 1000000; ++i) asm volatile("add $1,%0" : "+r"(n));
  }, 1000);  // also until the processor runs at its speed
  auto* x = static_cast<float*>(std::aligned_alloc(4096, LARGE * sizeof(float)));
  auto* y = static_cast<float*>(std::aligned_alloc(4096, LARGE * sizeof(float)));
  for (size_t i = 0; i < LARGE; ++i) x[i] = y[i] = static_cast<float>(i % 1000 + 1);  // memory has short cuts for zeros
  const auto value = LOAD(x);
BODY
}
"""


def assembly(isa: InstructionSet, instructions: list[str]) -> Iterator[str]:
    """The instructions, each reading what was written many instructions before, or never."""
    for i, instruction in enumerate(instructions):
        to, a, b = isa.registers(i)
        names = {"to": f"%{isa.register}{to}", "a": f"%{isa.register}{a}", "b": f"%{isa.register}{b}"}
        names |= {"half": f"%{isa.half}{a % 16}", "to_half": f"%{isa.half}{to % 16}"}
        for name, register in names.items():
            instruction = instruction.replace(f"{{{name}}}", register)
        # What stands between braces now is a rounding mode; a string of inline assembly has its percent signs doubled.
        yield instruction.replace("%", "%%").replace("{", "%{").replace("}", "%}")


def program(isa: InstructionSet) -> str:
    body = []
    ones = "\\n".join(f"vmovups (%0),%%{isa.register}{i}" for i in range(32 if isa is AVX512 else 16))
    per_row = 16 // isa.lanes  # vectors of what a row of the table counts
    for name, (of_two, of_four) in isa.chains.items():
        instructions = [*of_two * 2, *of_four] * (VECTORS // 4)
        text, count = "\\n".join(assembly(isa, instructions)), len(instructions) / VECTORS * per_row
        body.append(
            f'  {{ asm volatile("{ones}" :: "D"(buffer));\n    const double t = Fastest([] {{ '
            f'for (int i = 0; i < 20000; ++i) asm volatile("{text}" :: "D"(buffer) : "memory"); }});\n'
            f'    std::printf("%s|%.1f|%.1f\\n", "{name}", {count}, '
            f"t / cycle / 20000 / {VECTORS} * {per_row}); }}"
        )
    for name, statement in MEMORY.items():
        floats, repeat = (LARGE, 1) if "non-temporal" in name else (SMALL, 50)
        body.append(
            f"  {{ const double t = Fastest([&] {{ for (int r = 0; r < {repeat}; ++r) "
            f"for (size_t i = 0; i < {floats}; i += {isa.lanes}) {{ {statement} }} }});\n"
            f'    std::printf("%s||%.1f\\n", "{name}", t / cycle / {repeat} / ({floats} / 16)); }}'
        )
    text = PROGRAM.replace("LARGE", str(LARGE)).replace("BODY", "\n".join(body))
    for word, intrinsic in WORDS.items():
        text = text.replace(f"{word}(", f"_mm{32 * isa.lanes}_{intrinsic}(")
    return text


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--isa", choices=SETS, default="avx512")
    name = parser.parse_args().isa
    isa = SETS[name]
    with tempfile.TemporaryDirectory() as folder:
        source, binary = Path(folder) / "loops.cc", Path(folder) / "loops"
        source.write_text(program(isa))
        compiler = os.environ.get("CXX", "c++")
        command = [compiler, "-std=c++17", "-O2", *isa.flags, "-o", str(binary), str(source)]
        try:
            subprocess.run(command, check=True)
            lines = subprocess.run([binary], check=True, capture_output=True, text=True).stdout.splitlines()
        except FileNotFoundError:
            sys.exit(f"instructions.py: no C++ compiler is called {compiler}: install one, or name it by CXX")
        except subprocess.CalledProcessError as error:
            if error.returncode == -signal.SIGILL:
                sys.exit(f"instructions.py: this processor has no {name}: run it on one that has")
            what = f"name a compiler that knows {name} by CXX" if error.cmd is command else "run it again"
            sys.exit(f"instructions.py: {error.cmd[0]} failed with exit code {error.returncode}: {what}")
    print("| 16 elements, or 64 bytes | instructions | cycles |\n|---|---|---|")
    for line in lines:
        print(f"| {' | '.join(line.split('|'))} |")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
