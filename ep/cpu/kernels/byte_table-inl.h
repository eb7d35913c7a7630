// y[i] = table[x[i]] for bytes. Included once per instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/kernels/simd/simd.h"

namespace normfuse::NORMFUSE_ISA {
namespace {

// A shuffle looks its bytes up in 16 entries by their low four bits, and gives 0 for what is negative. Step k of a half
// holds entries k xor entries k - 1: a byte takes part in all steps up to its own, and what they give comes to its entry.
// One half is for bytes below 128, the other for the rest, which the sign bit turns into the same.
#ifdef __AVX2__
NORMFUSE_INLINE size_t LookUpShuffled(const uint8_t* table, const uint8_t* x, size_t n, uint8_t* y) {
  Bytes steps[16];
  NORMFUSE_UNROLL
  for (size_t k = 0; k < 16; ++k) {
    steps[k] = Entries(table + 16 * k);
    if (k % 8 != 0) steps[k] = steps[k] ^ Entries(table + 16 * (k - 1));
  }
  size_t i = 0;
  for (; i + sizeof(Bytes) <= n; i += sizeof(Bytes)) {
    Bytes low = LoadBits<Bytes>(x + i);
    Bytes high = low ^ SetBytes(-128);
    Bytes sum = Shuffle(steps[0], low) ^ Shuffle(steps[8], high);
    NORMFUSE_UNROLL
    for (size_t k = 1; k < 8; ++k) {
      low = SaturatingSubtract(low, SetBytes(16));
      high = SaturatingSubtract(high, SetBytes(16));
      sum = sum ^ (Shuffle(steps[k], low) ^ Shuffle(steps[8 + k], high));
    }
    __builtin_memcpy(y + i, &sum, sizeof(sum));
  }
  return i;
}
#endif

void LookUpBytes(const uint8_t* table, const uint8_t* x, size_t n, uint8_t* y) {
  size_t i = 0;
#ifdef __AVX2__
  i = LookUpShuffled(table, x, n, y);
#endif
  for (; i < n; ++i) y[i] = table[x[i]];
}

}  // namespace
}  // namespace normfuse::NORMFUSE_ISA
