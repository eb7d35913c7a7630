"""The least that a kernel can take: cycles of its instructions when none depends on another, and of moving 64 bytes.

    python benchmarks/instructions.py

compiles loops of the AVX-512 instructions that ep/cpu executes for 16 elements of a chain, each with registers that
were written long before, and loops that read, write and copy within the level-2 cache and by non-temporal stores. A
cycle is an addition that waits for the one before. Needs a C++ compiler (``CXX``) and a processor with AVX-512.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

VECTORS = 8  # of 16 elements, in one pass through a loop
FREE = range(4, 32)  # registers that are written

THREE = "{a},{b},{to}"  # operands of most instructions
LOAD, STORE, STORE_HALF = "vmovups 64(%rdi),{to}", "vmovups {a},1024(%rdi)", "vmovups {half},1024(%rdi)"
ADD, SUB, MUL, FMA = (f"{name} {THREE}" for name in ("vaddps", "vsubps", "vmulps", "vfmadd231ps"))
FMA_LOAD = "vfmadd231ps (%rdi),{b},{to}"
LOOKUP = f"vpermps {THREE}"

# Sums of a vector: every other one by a multiply-add instead of an addition.
SUMS = [SUB, ADD, FMA, SUB, FMA, FMA]
AFFINE = [SUB, FMA, FMA_LOAD]
GELU = [
    f"vrangeps $14,{THREE}", f"vaddps {{rd-sae}},{THREE}", "vreduceps $25,{a},{to}", *[LOOKUP] * 7, *[FMA] * 6,
    f"vfixupimmps $0,{THREE}", MUL, FMA,
]  # fmt: skip
SCALED_GELU = [
    f"vrangeps $14,{THREE}", ADD, SUB, SUB, *[f"vpermt2ps {THREE}"] * 5, *[FMA] * 4, f"vfixupimmps $0,{THREE}", FMA,
]  # fmt: skip
SILU = [
    f"vrangeps $2,{THREE}", FMA, SUB, FMA, f"vpermt2ps {THREE}", FMA, MUL, FMA, f"vscalefps {THREE}", ADD,
    f"vdivps {THREE}",
]  # fmt: skip
BYTES_IN = ["vpmovsxbd (%rdi),{to}", "vcvtdq2ps {a},{to}", *AFFINE]
BYTES_OUT = [f"vminps {THREE}", "vcvtps2dq {a},{to}"]
# For four vectors: packing, and the sums of 64 bytes.
PACK = [*[f"vpackssdw {THREE}"] * 2, *[f"vpaddsw {THREE}"] * 2, f"vpacksswb {THREE}", f"vpermd {THREE}", STORE]
BYTE_SUMS = [
    f"{name} {THREE}" for name in ("vpxord", "vpsadbw", "vpunpcklbw", "vpunpckhbw", *["vpmaddwd"] * 2, *["vpaddd"] * 3)
]

# Instructions for two vectors, and for four.
CHAINS: dict[str, tuple[list[str], list[str]]] = {
    "LayerNorm f32": ([LOAD, LOAD, *SUMS, *[LOAD, SUB, SUB, MUL, FMA_LOAD, STORE] * 2], []),
    "LayerNorm -> Gelu f32": ([LOAD, LOAD, *SUMS, *[LOAD, *AFFINE, *GELU, STORE] * 2], []),
    "LayerNorm -> SiLU f32": ([LOAD, LOAD, *SUMS, *[LOAD, *AFFINE, *SILU, STORE] * 2], []),
    "LayerNorm f16": (
        [*["vcvtph2ps (%rdi),{to}", STORE] * 2, *SUMS, *[LOAD, *AFFINE, "vcvtps2ph $8,{a},{to_half}", STORE_HALF] * 2],
        [],
    ),
    "DQ -> LayerNorm -> Q int8": ([*BYTES_IN, *BYTES_OUT] * 2, [*PACK, *BYTE_SUMS]),
    "DQ -> LayerNorm -> Gelu -> Q int8": ([*BYTES_IN, *SCALED_GELU, *BYTES_OUT] * 2, [*PACK, *BYTE_SUMS]),
}

MEMORY = {  # loops over i in steps of 64 bytes
    "read, level-2 cache": 'asm volatile("" :: "v"(_mm512_load_ps(x + i)));',
    "write, level-2 cache": "_mm512_store_ps(y + i, value);",
    "copy, level-2 cache": "_mm512_store_ps(y + i, _mm512_load_ps(x + i));",
    "non-temporal stores": "_mm512_stream_ps(y + i, value);",
}
SMALL, LARGE = 128 * 768, 4096 * 768  # floats

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
alignas(64) static char buffer[8192];
int main() {
  const double cycle = 1e-6 * Fastest([] {
    long n = 0;
    for (int i = 0; i < 1000000; ++i) asm volatile("add $1,%0" : "+r"(n));
  }, 1000);  // also until the processor runs at its speed
  auto* x = static_cast<float*>(std::aligned_alloc(4096, LARGE * sizeof(float)));
  auto* y = static_cast<float*>(std::aligned_alloc(4096, LARGE * sizeof(float)));
  for (size_t i = 0; i < LARGE; ++i) x[i] = y[i] = static_cast<float>(i % 1000 + 1);  // memory has short cuts for zeros
  const __m512 value = _mm512_load_ps(x);
BODY
}
"""


def assembly(instructions: list[str]) -> Iterator[str]:
    """The instructions, each reading what was written 23 and 17 instructions before."""
    for i, instruction in enumerate(instructions):
        to, a, b = (FREE[(i + distance) % len(FREE)] for distance in (0, 5, 11))
        names = {"to": f"%zmm{to}", "a": f"%zmm{a}", "b": f"%zmm{b}"}
        names |= {"half": f"%ymm{a % 16}", "to_half": f"%ymm{to % 16}"}
        for name, register in names.items():
            instruction = instruction.replace(f"{{{name}}}", register)
        # What stands between braces now is a rounding mode; a string of inline assembly has its percent signs doubled.
        yield instruction.replace("%", "%%").replace("{", "%{").replace("}", "%}")


def program() -> str:
    body = []
    for name, (of_two, of_four) in CHAINS.items():
        instructions = [*of_two * 2, *of_four] * (VECTORS // 4)
        text, count = "\\n".join(assembly(instructions)), len(instructions) / VECTORS
        body.append(
            f'  {{ const double t = Fastest([] {{ for (int i = 0; i < 20000; ++i) asm volatile("{text}" :: '
            f'"D"(buffer) : "memory"); }});\n    std::printf("%s|%.1f|%.1f\\n", "{name}", {count}, '
            f"t / cycle / 20000 / {VECTORS}); }}"
        )
    for name, statement in MEMORY.items():
        floats, repeat = (LARGE, 1) if "past" in name else (SMALL, 50)
        body.append(
            f"  {{ const double t = Fastest([&] {{ for (int r = 0; r < {repeat}; ++r) "
            f"for (size_t i = 0; i < {floats}; i += 16) {{ {statement} }} }});\n"
            f'    std::printf("%s||%.1f\\n", "{name}", t / cycle / {repeat} / ({floats} / 16)); }}'
        )
    return PROGRAM.replace("LARGE", str(LARGE)).replace("BODY", "\n".join(body))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        source, binary = Path(folder) / "loops.cc", Path(folder) / "loops"
        source.write_text(program())
        compiler = os.environ.get("CXX", "c++")
        command = [compiler, "-std=c++17", "-O2", "-mavx512f", "-mavx512dq", "-o", str(binary), str(source)]
        try:
            subprocess.run(command, check=True)
            lines = subprocess.run([binary], check=True, capture_output=True, text=True).stdout.splitlines()
        except FileNotFoundError:
            sys.exit(f"instructions.py: no C++ compiler is called {compiler}: install one, or name it by CXX")
        except subprocess.CalledProcessError as error:
            if error.returncode == -signal.SIGILL:
                sys.exit("instructions.py: this processor has no AVX-512: run it on one that has")
            what = "name a compiler that knows AVX-512 by CXX" if error.cmd is command else "run it again"
            sys.exit(f"instructions.py: {error.cmd[0]} failed with exit code {error.returncode}: {what}")
    print("| 16 elements, or 64 bytes | instructions | cycles |\n|---|---|---|")
    for line in lines:
        print(f"| {' | '.join(line.split('|'))} |")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
