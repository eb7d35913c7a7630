// Storage types and macros shared by the SIMD headers. Nothing here generates code, so every translation unit may
// include it whatever it is compiled for.
#pragma once

#include <cstddef>
#include <cstdint>

// Code that is compiled once per instruction set must never be left to the linker to choose between copies.
#define NORMFUSE_INLINE inline __attribute__((always_inline))

// Before a loop of few, constant steps over arrays of vectors, which must live in registers.
#ifdef __clang__
#define NORMFUSE_UNROLL _Pragma("clang loop unroll(full)")
#else
#define NORMFUSE_UNROLL _Pragma("GCC unroll 8")
#endif

namespace normfuse {

// IEEE 754 binary16 and bfloat16, as stored.
struct Half {
  uint16_t bits;
};
struct Bfloat16 {
  uint16_t bits;
};

// Four of a kind, in as many registers as that takes.
typedef double Doubles __attribute__((vector_size(32)));
typedef float Floats __attribute__((vector_size(16)));

}  // namespace normfuse
