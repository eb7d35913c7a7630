// Storage types and macros shared by the SIMD headers. Nothing here generates code, so every translation unit may
// include it whatever it is compiled for.
#pragma once

#include <cstddef>
#include <cstdint>

// Code that is compiled once per instruction set must never be left to the linker to choose between copies.
#define NORMFUSE_INLINE inline __attribute__((always_inline))

namespace normfuse {

// IEEE 754 binary16 and bfloat16, as stored.
struct Half {
  uint16_t bits;
};
struct Bfloat16 {
  uint16_t bits;
};

}  // namespace normfuse
