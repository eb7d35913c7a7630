// Exact sums of 8-bit values and of their squares, in integers. Included by kernels-inl.h, once per instruction set.

#include <cstddef>
#include <cstdint>

#include "cpu/simd/simd.h"

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace normfuse::NORMFUSE_ISA {
namespace {

struct ByteSums {
  uint64_t first = 0;
  uint64_t second = 0;
};

// Bytes whose sum of squares stays below 2^32 in each lane: every lane takes 2 * 2 squares of at most 255^2 a step.
constexpr size_t kByteSumSteps = 4096;

// Sums of p[i] ^ flip, which for flip = 0x80 is the value of a signed byte plus 128. `steps` whole vectors.
#if NORMFUSE_ISA_NUMBER == 1

constexpr size_t kByteLanes = 64;

NORMFUSE_INLINE void AddByteSums(const uint8_t* p, size_t steps, uint8_t flip, ByteSums* sums) {
  const __m512i flips = _mm512_set1_epi8(static_cast<char>(flip));
  const __m512i none = _mm512_setzero_si512();
  __m512i first = none, second = none, third = none;
  for (size_t i = 0; i < steps; ++i) {
    const __m512i bytes = _mm512_xor_si512(_mm512_loadu_si512(p + i * kByteLanes), flips);
    first = _mm512_add_epi64(first, _mm512_sad_epu8(bytes, none));
    const __m512i low = _mm512_unpacklo_epi8(bytes, none);
    const __m512i high = _mm512_unpackhi_epi8(bytes, none);
    second = _mm512_add_epi32(second, _mm512_madd_epi16(low, low));
    third = _mm512_add_epi32(third, _mm512_madd_epi16(high, high));
  }
  const __m512i both = _mm512_add_epi32(second, third);
  const __m512i wide =
      _mm512_add_epi64(_mm512_and_si512(both, _mm512_set1_epi64(0xffffffff)), _mm512_srli_epi64(both, 32));
  sums->first += static_cast<uint64_t>(_mm512_reduce_add_epi64(first));
  sums->second += static_cast<uint64_t>(_mm512_reduce_add_epi64(wide));
}

#elif NORMFUSE_ISA_NUMBER == 2

constexpr size_t kByteLanes = 32;

NORMFUSE_INLINE uint64_t SumOfWords(__m256i a) {
  const __m128i half = _mm_add_epi64(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
  return static_cast<uint64_t>(_mm_cvtsi128_si64(_mm_add_epi64(half, _mm_unpackhi_epi64(half, half))));
}

NORMFUSE_INLINE void AddByteSums(const uint8_t* p, size_t steps, uint8_t flip, ByteSums* sums) {
  const __m256i flips = _mm256_set1_epi8(static_cast<char>(flip));
  const __m256i none = _mm256_setzero_si256();
  __m256i first = none, second = none, third = none;
  for (size_t i = 0; i < steps; ++i) {
    const auto* from = reinterpret_cast<const __m256i*>(p + i * kByteLanes);
    const __m256i bytes = _mm256_xor_si256(_mm256_loadu_si256(from), flips);
    first = _mm256_add_epi64(first, _mm256_sad_epu8(bytes, none));
    const __m256i low = _mm256_unpacklo_epi8(bytes, none);
    const __m256i high = _mm256_unpackhi_epi8(bytes, none);
    second = _mm256_add_epi32(second, _mm256_madd_epi16(low, low));
    third = _mm256_add_epi32(third, _mm256_madd_epi16(high, high));
  }
  const __m256i both = _mm256_add_epi32(second, third);
  const __m256i wide =
      _mm256_add_epi64(_mm256_and_si256(both, _mm256_set1_epi64x(0xffffffff)), _mm256_srli_epi64(both, 32));
  sums->first += SumOfWords(first);
  sums->second += SumOfWords(wide);
}

#else

constexpr size_t kByteLanes = 16;

NORMFUSE_INLINE void AddByteSums(const uint8_t* p, size_t steps, uint8_t flip, ByteSums* sums) {
  uint32_t first = 0;
  uint32_t second = 0;
  for (size_t i = 0; i < steps * kByteLanes; ++i) {
    const uint32_t value = static_cast<uint32_t>(p[i] ^ flip);
    first += value;
    second += value * value;
    // 66,051 squares of 255 are the most that 32 bits hold; steps * kByteLanes = 65,536.
  }
  sums->first += first;
  sums->second += second;
}

#endif

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
