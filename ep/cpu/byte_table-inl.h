// y[i] = table[x[i]] for bytes. Included once per instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/simd/simd.h"

namespace normfuse::NORMFUSE_ISA {
namespace {

// A shuffle looks its bytes up in 16 entries by their low four bits, and gives 0 for what is negative. Step k of a half
// holds entries k xor entries k - 1: a byte takes part in all steps up to its own, and what they give comes to its entry.
// One half is for bytes below 128, the other for the rest, which the sign bit turns into the same.
template <class Shuffled>
  requires kHasByteShuffle
NORMFUSE_INLINE size_t LookUpShuffled(const uint8_t* table, const uint8_t* x, size_t n, uint8_t* y) {
  Shuffled steps[16];
  NORMFUSE_UNROLL
  for (size_t k = 0; k < 16; ++k) {
    steps[k] = Shuffled::Entries(table + 16 * k);
    if (k % 8 != 0) steps[k] = steps[k] ^ Shuffled::Entries(table + 16 * (k - 1));
  }
  size_t i = 0;
  for (; i + sizeof(Shuffled) <= n; i += sizeof(Shuffled)) {
    Shuffled low = Shuffled::Load(x + i);
    Shuffled high = low ^ Shuffled::Set(-128);
    Shuffled sum = Shuffle(steps[0], low) ^ Shuffle(steps[8], high);
    NORMFUSE_UNROLL
    for (size_t k = 1; k < 8; ++k) {
      low = SaturatingSubtract(low, Shuffled::Set(16));
      high = SaturatingSubtract(high, Shuffled::Set(16));
      sum = sum ^ (Shuffle(steps[k], low) ^ Shuffle(steps[8 + k], high));
    }
    sum.Store(y + i);
  }
  return i;
}

// Nothing, where bytes are not shuffled.
template <class Shuffled>
  requires(!kHasByteShuffle)
NORMFUSE_INLINE size_t LookUpShuffled(const uint8_t* /*table*/, const uint8_t* /*x*/, size_t /*n*/, uint8_t* /*y*/) {
  return 0;
}

void LookUpBytes(const uint8_t* table, const uint8_t* x, size_t n, uint8_t* y) {
  size_t i = LookUpShuffled<Bytes>(table, x, n, y);
  for (; i < n; ++i) y[i] = table[x[i]];
}

}  // namespace
}  // namespace normfuse::NORMFUSE_ISA
