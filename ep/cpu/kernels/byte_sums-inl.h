// Exact sums of 8-bit values and of their squares, in integers. Included by kernels-inl.h, once per instruction set.

#include <cstddef>
#include <cstdint>

#include "cpu/kernels/simd/simd.h"

namespace normfuse::NORMFUSE_ISA {
namespace {

struct ByteSums {
  uint64_t first = 0;
  uint64_t second = 0;
};

constexpr size_t kByteLanes = sizeof(Bytes);

// Vectors whose squares sum up to less than 2^32: every lane takes four of at most 255^2 of each. Without lanes one sum takes the
// 65,536 bytes of that many, of 66,051 at most.
constexpr size_t kByteSumSteps = 4096;

// Sums of p[i] ^ flip, which for flip = 0x80 is the value of a signed byte plus 128. `steps` whole vectors.
NORMFUSE_INLINE void AddByteSums(const uint8_t* p, size_t steps, uint8_t flip, ByteSums* sums) {
#ifdef __AVX2__
  Longs first{};
  I second{};
  for (size_t i = 0; i < steps; ++i) {
    const Bytes bytes = LoadBits<Bytes>(p + i * kByteLanes) ^ SetBytes(static_cast<int8_t>(flip));
    first += (Longs)SumsOfBytes(bytes);
    second += SumsOfSquares(bytes);
  }
  const Longs wide = ((Longs)second & 0xffffffff) + ((Longs)second >> 32);
  sums->first += SumOfLongs(first);
  sums->second += SumOfLongs(wide);
#else
  uint32_t first = 0;
  uint32_t second = 0;
  for (size_t i = 0; i < steps * kByteLanes; ++i) {
    const uint32_t value = static_cast<uint32_t>(p[i] ^ flip);
    first += value;
    second += value * value;
  }
  sums->first += first;
  sums->second += second;
#endif
}

NORMFUSE_INLINE ByteSums SumBytes(const uint8_t* p, size_t n, uint8_t flip) {
  ByteSums sums;
  while (n >= kByteLanes) {
    const size_t whole = n / kByteLanes;
    const size_t steps = whole < kByteSumSteps ? whole : kByteSumSteps;
    AddByteSums(p, steps, flip, &sums);
    p += steps * kByteLanes;
    n -= steps * kByteLanes;
  }
  for (size_t i = 0; i < n; ++i) {
    const uint64_t value = static_cast<uint64_t>(p[i] ^ flip);
    sums.first += value;
    sums.second += value * value;
  }
  return sums;
}

}  // namespace
}  // namespace normfuse::NORMFUSE_ISA
