// The vector layer on AVX2, FMA and F16C: 8 lanes. See simd.h for the meaning of each name.
#pragma once

#include <immintrin.h>

#include "cpu/kernels/simd/types.h"

namespace normfuse::NORMFUSE_ISA {

constexpr size_t kLanes = 8;
constexpr bool kHasFma = true;
constexpr bool kHasTables = false;
constexpr bool kHasScale = false;
constexpr bool kHasLookup8 = true;
constexpr bool kStreams = true;
constexpr bool kStoresFour = true;

#include "cpu/kernels/simd/lanes-inl.h"

NORMFUSE_INLINE __m256i FirstLanes(size_t n) { return (__m256i)GtI(SetI(static_cast<int32_t>(n)), Iota()); }

// Float arithmetic.
NORMFUSE_INLINE V Fma(V a, V b, V c) { return _mm256_fmadd_ps(a, b, c); }
NORMFUSE_INLINE V NegFma(V a, V b, V c) { return _mm256_fnmadd_ps(a, b, c); }
NORMFUSE_INLINE V Min(V a, V b) { return _mm256_min_ps(a, b); }
NORMFUSE_INLINE V Max(V a, V b) { return _mm256_max_ps(a, b); }
NORMFUSE_INLINE V RoundEven(V a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
NORMFUSE_INLINE I ToInt(V a) { return (I)_mm256_cvtps_epi32(a); }
NORMFUSE_INLINE bool Any(M a) { return _mm256_movemask_ps((V)a) != 0; }

// table[i mod 8]
NORMFUSE_INLINE I Lookup8(const int32_t* table, I index) {
  return (I)_mm256_permutevar8x32_epi32(LoadBits<__m256i>(table), (__m256i)index);
}

// Reductions.
NORMFUSE_INLINE float ReduceSum(V a) {
  const __m128 four = _mm256_castps256_ps128(a) + _mm256_extractf128_ps(a, 1);
  const __m128 two = four + _mm_movehl_ps(four, four);
  return two[0] + two[1];
}
NORMFUSE_INLINE float ReduceMax(V a) {
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}
NORMFUSE_INLINE Floats SumsOfEach(V a, V b, V c, V d) {
  const __m256 both = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
  return _mm256_castps256_ps128(both) + _mm256_extractf128_ps(both, 1);
}

// Loads.
NORMFUSE_INLINE __m128i Load128(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }
NORMFUSE_INLINE __m128i Load64(const void* p) { return _mm_loadl_epi64(static_cast<const __m128i*>(p)); }

NORMFUSE_INLINE V LoadAs(const Half* p) { return _mm256_cvtph_ps(Load128(p)); }
NORMFUSE_INLINE I LoadAs(const int8_t* p) { return (I)_mm256_cvtepi8_epi32(Load64(p)); }
NORMFUSE_INLINE I LoadAs(const uint8_t* p) { return (I)_mm256_cvtepu8_epi32(Load64(p)); }
NORMFUSE_INLINE I LoadAs(const int16_t* p) { return (I)_mm256_cvtepi16_epi32(Load128(p)); }
NORMFUSE_INLINE I LoadAs(const uint16_t* p) { return (I)_mm256_cvtepu16_epi32(Load128(p)); }

// Stores.
NORMFUSE_INLINE __m128i NarrowHalf(V a) { return _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
// int32 to 16 bits, saturating.
NORMFUSE_INLINE __m128i PackSigned(I a) {
  return _mm_packs_epi32(_mm256_castsi256_si128((__m256i)a), _mm256_extracti128_si256((__m256i)a, 1));
}
NORMFUSE_INLINE __m128i PackUnsigned(I a) {
  return _mm_packus_epi32(_mm256_castsi256_si128((__m256i)a), _mm256_extracti128_si256((__m256i)a, 1));
}
NORMFUSE_INLINE void Store128(void* p, __m128i a) { _mm_storeu_si128(static_cast<__m128i*>(p), a); }
NORMFUSE_INLINE void Store64(void* p, __m128i a) { _mm_storel_epi64(static_cast<__m128i*>(p), a); }

NORMFUSE_INLINE void StoreAs(Half* p, V a) { Store128(p, NarrowHalf(a)); }
NORMFUSE_INLINE void StoreAs(int8_t* p, I a) {
  const __m128i words = PackSigned(a);
  Store64(p, _mm_packs_epi16(words, words));
}
NORMFUSE_INLINE void StoreAs(uint8_t* p, I a) {
  const __m128i words = PackSigned(a);
  Store64(p, _mm_packus_epi16(words, words));
}
NORMFUSE_INLINE void StoreAs(int16_t* p, I a) { Store128(p, PackSigned(a)); }
NORMFUSE_INLINE void StoreAs(uint16_t* p, I a) { Store128(p, PackUnsigned(a)); }

NORMFUSE_INLINE void StreamStore(float* p, V a) { _mm256_stream_ps(p, a); }
NORMFUSE_INLINE void StreamStore(Half* p, V a) { _mm_stream_si128(reinterpret_cast<__m128i*>(p), NarrowHalf(a)); }

// 32-bit elements have masked memory operations.
NORMFUSE_INLINE V LoadAsPartial(const float* p, size_t n) { return _mm256_maskload_ps(p, FirstLanes(n)); }
NORMFUSE_INLINE void StoreAsPartial(float* p, V a, size_t n) { _mm256_maskstore_ps(p, FirstLanes(n), a); }

// 4 * kLanes values rounded half to even, each with one of `zeros` (16-bit integers) added, saturated. NaN gives the
// type's minimum.
NORMFUSE_INLINE __m256i RoundedWords(V a, V b, I zeros) {
  // The conversion gives INT32_MIN for NaN and for whatever is out of range.
  const V most = Set(32767.0f);
  const __m256i words = _mm256_packs_epi32((__m256i)ToInt(Min(most, a)), (__m256i)ToInt(Min(most, b)));
  return _mm256_adds_epi16(words, (__m256i)zeros);
}
// Packing goes by 128 bits: four elements of a, of b, of c and of d, and the other four of each.
NORMFUSE_INLINE void StoreInOrder(void* p, __m256i packed) {
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  _mm256_storeu_si256(static_cast<__m256i*>(p), _mm256_permutevar8x32_epi32(packed, order));
}
NORMFUSE_INLINE void StoreFour(int8_t* p, V a, V b, V c, V d, I zeros) {
  StoreInOrder(p, _mm256_packs_epi16(RoundedWords(a, b, zeros), RoundedWords(c, d, zeros)));
}
NORMFUSE_INLINE void StoreFour(uint8_t* p, V a, V b, V c, V d, I zeros) {
  StoreInOrder(p, _mm256_packus_epi16(RoundedWords(a, b, zeros), RoundedWords(c, d, zeros)));
}

// Bytes, for byte_table-inl.h. Entries: 16 of them, in each 128 bits.
NORMFUSE_INLINE Bytes Entries(const uint8_t* p) { return (Bytes)_mm256_broadcastsi128_si256(Load128(p)); }
NORMFUSE_INLINE Bytes SaturatingSubtract(Bytes a, Bytes b) { return (Bytes)_mm256_subs_epi8((__m256i)a, (__m256i)b); }
NORMFUSE_INLINE Bytes Shuffle(Bytes entries, Bytes i) {
  return (Bytes)_mm256_shuffle_epi8((__m256i)entries, (__m256i)i);
}

// Of unsigned bytes, for byte_sums-inl.h: the sums of eight, the sums of four squares, and the sum of all 64-bit integers.
NORMFUSE_INLINE I SumsOfBytes(Bytes a) { return (I)_mm256_sad_epu8((__m256i)a, __m256i{}); }
NORMFUSE_INLINE I SumsOfSquares(Bytes a) {
  const __m256i low = _mm256_unpacklo_epi8((__m256i)a, __m256i{});
  const __m256i high = _mm256_unpackhi_epi8((__m256i)a, __m256i{});
  return (I)_mm256_madd_epi16(low, low) + (I)_mm256_madd_epi16(high, high);
}
NORMFUSE_INLINE uint64_t SumOfLongs(Longs a) {
  const __m128i half = _mm256_castsi256_si128((__m256i)a) + _mm256_extracti128_si256((__m256i)a, 1);
  return static_cast<uint64_t>(half[0]) + static_cast<uint64_t>(half[1]);
}

}  // namespace normfuse::NORMFUSE_ISA
