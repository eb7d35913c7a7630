// The vector layer on AVX-512 F, BW, DQ, VL: 16 lanes. See simd.h for the meaning of each name.
#pragma once

// GCC 12 warns of the "undefined" source operands inside its own intrinsics.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif

#include "cpu/kernels/simd/types.h"

namespace normfuse::NORMFUSE_ISA {

constexpr size_t kLanes = 16;
constexpr bool kHasFma = true;
constexpr bool kHasTables = true;
constexpr bool kHasScale = true;
constexpr bool kHasLookup8 = false;
constexpr bool kStreams = true;
constexpr bool kStoresFour = true;

#include "cpu/kernels/simd/lanes-inl.h"

NORMFUSE_INLINE __mmask16 FirstLanes(size_t n) { return static_cast<__mmask16>((1u << n) - 1u); }

// Float arithmetic.
NORMFUSE_INLINE V Fma(V a, V b, V c) { return _mm512_fmadd_ps(a, b, c); }
NORMFUSE_INLINE V NegFma(V a, V b, V c) { return _mm512_fnmadd_ps(a, b, c); }
NORMFUSE_INLINE V Min(V a, V b) { return _mm512_min_ps(a, b); }
NORMFUSE_INLINE V Max(V a, V b) { return _mm512_max_ps(a, b); }
NORMFUSE_INLINE V RoundEven(V a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
NORMFUSE_INLINE I ToInt(V a) { return (I)_mm512_cvtps_epi32(a); }
NORMFUSE_INLINE bool Any(M a) { return _mm512_movepi32_mask((__m512i)a) != 0; }

// Reductions.
NORMFUSE_INLINE float ReduceSum(V a) { return _mm512_reduce_add_ps(a); }
NORMFUSE_INLINE float ReduceMax(V a) { return _mm512_reduce_max_ps(a); }
NORMFUSE_INLINE Floats SumsOfEach(V a, V b, V c, V d) {
  const __m512 ab = _mm512_unpacklo_ps(a, b) + _mm512_unpackhi_ps(a, b);
  const __m512 cd = _mm512_unpacklo_ps(c, d) + _mm512_unpackhi_ps(c, d);
  const __m512d low = _mm512_unpacklo_pd(_mm512_castps_pd(ab), _mm512_castps_pd(cd));
  const __m512d high = _mm512_unpackhi_pd(_mm512_castps_pd(ab), _mm512_castps_pd(cd));
  const __m512 all = _mm512_castpd_ps(low) + _mm512_castpd_ps(high);
  const __m256 half = _mm512_castps512_ps256(all) + _mm512_extractf32x8_ps(all, 1);
  return _mm256_castps256_ps128(half) + _mm256_extractf128_ps(half, 1);
}

// Of this instruction set only.

// a * 2^n for integral n, rounded once.
NORMFUSE_INLINE V ScaleByPowerOfTwo(V a, V n) { return _mm512_scalef_ps(a, n); }
// table[i mod 16] and table[i mod 32]
NORMFUSE_INLINE V Lookup(const float* table, I index) { return _mm512_permutexvar_ps((__m512i)index, Load(table)); }
NORMFUSE_INLINE V Lookup32(const float* table, I index) {
  return _mm512_permutex2var_ps(Load(table), (__m512i)index, Load(table + kLanes));
}
// a clamped to -limit ... limit, and -min(|a|, limit); limit and -limit where a is NaN.
NORMFUSE_INLINE V ClampMagnitude(V a, V limit) { return _mm512_range_ps(a, limit, 0b0010); }
NORMFUSE_INLINE V NegativeMagnitude(V a, V limit) { return _mm512_range_ps(a, limit, 0b1110); }
// max(a, 0), but NaN for -infinity. A hexadecimal digit for each kind of number, from the right: NaN (itself), signalling
// NaN (quiet), 0 and 1 (themselves), -infinity (NaN), infinity (itself), negative (0), positive (itself).
NORMFUSE_INLINE V PositivePart(V a) { return _mm512_fixupimm_ps(a, a, _mm512_set1_epi32(0x18131121), 0); }
// a + b rounded down, and what is left of a above the next multiple of 1/2 below it.
NORMFUSE_INLINE V AddDown(V a, V b) { return _mm512_add_round_ps(a, b, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC); }
NORMFUSE_INLINE V RestOfHalves(V a) { return _mm512_reduce_ps(a, 0x10 | _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC); }

// Loads. Whole vectors are those of which no lane is masked: compilers leave no mask.
NORMFUSE_INLINE __m128i LoadBytes(const void* p, size_t n) { return _mm_maskz_loadu_epi8(FirstLanes(n), p); }
NORMFUSE_INLINE __m256i LoadWords(const void* p, size_t n) { return _mm256_maskz_loadu_epi16(FirstLanes(n), p); }

NORMFUSE_INLINE V LoadAsPartial(const float* p, size_t n) { return _mm512_maskz_loadu_ps(FirstLanes(n), p); }
NORMFUSE_INLINE V LoadAsPartial(const Half* p, size_t n) { return _mm512_cvtph_ps(LoadWords(p, n)); }
NORMFUSE_INLINE I LoadAsPartial(const int8_t* p, size_t n) { return (I)_mm512_cvtepi8_epi32(LoadBytes(p, n)); }
NORMFUSE_INLINE I LoadAsPartial(const uint8_t* p, size_t n) { return (I)_mm512_cvtepu8_epi32(LoadBytes(p, n)); }
NORMFUSE_INLINE I LoadAsPartial(const int16_t* p, size_t n) { return (I)_mm512_cvtepi16_epi32(LoadWords(p, n)); }
NORMFUSE_INLINE I LoadAsPartial(const uint16_t* p, size_t n) { return (I)_mm512_cvtepu16_epi32(LoadWords(p, n)); }
NORMFUSE_INLINE I LoadAsPartial(const int32_t* p, size_t n) { return (I)_mm512_maskz_loadu_epi32(FirstLanes(n), p); }
NORMFUSE_INLINE I LoadAsPartial(const uint32_t* p, size_t n) { return (I)_mm512_maskz_loadu_epi32(FirstLanes(n), p); }

template <class T>
NORMFUSE_INLINE auto LoadAs(const T* p) {
  return LoadAsPartial(p, kLanes);
}

// Stores, likewise.
NORMFUSE_INLINE __m256i NarrowHalf(V a) { return _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
NORMFUSE_INLINE void StoreBytes(void* p, __m128i a, size_t n) { _mm_mask_storeu_epi8(p, FirstLanes(n), a); }
NORMFUSE_INLINE void StoreWords(void* p, __m256i a, size_t n) { _mm256_mask_storeu_epi16(p, FirstLanes(n), a); }

NORMFUSE_INLINE void StoreAsPartial(float* p, V a, size_t n) { _mm512_mask_storeu_ps(p, FirstLanes(n), a); }
NORMFUSE_INLINE void StoreAsPartial(Half* p, V a, size_t n) { StoreWords(p, NarrowHalf(a), n); }
NORMFUSE_INLINE void StoreAsPartial(int8_t* p, I a, size_t n) { StoreBytes(p, _mm512_cvtsepi32_epi8((__m512i)a), n); }
NORMFUSE_INLINE void StoreAsPartial(uint8_t* p, I a, size_t n) {
  StoreBytes(p, _mm512_cvtusepi32_epi8(_mm512_max_epi32((__m512i)a, __m512i{})), n);
}
NORMFUSE_INLINE void StoreAsPartial(int16_t* p, I a, size_t n) { StoreWords(p, _mm512_cvtepi32_epi16((__m512i)a), n); }
NORMFUSE_INLINE void StoreAsPartial(uint16_t* p, I a, size_t n) { StoreWords(p, _mm512_cvtepi32_epi16((__m512i)a), n); }

NORMFUSE_INLINE void StoreAs(Half* p, V a) { StoreAsPartial(p, a, kLanes); }
template <class T>
NORMFUSE_INLINE void StoreAs(T* p, I a) {
  StoreAsPartial(p, a, kLanes);
}

NORMFUSE_INLINE void StreamStore(float* p, V a) { _mm512_stream_ps(p, a); }
NORMFUSE_INLINE void StreamStore(Half* p, V a) { _mm256_stream_si256(reinterpret_cast<__m256i*>(p), NarrowHalf(a)); }

// 4 * kLanes values rounded half to even, each with one of `zeros` (16-bit integers) added,
// saturated. NaN gives the type's minimum.
NORMFUSE_INLINE __m512i RoundedWords(V a, V b, I zeros) {
  // The conversion gives INT32_MIN for NaN and for whatever is out of range.
  const V most = Set(32767.0f);
  const __m512i words = _mm512_packs_epi32((__m512i)ToInt(Min(most, a)), (__m512i)ToInt(Min(most, b)));
  return _mm512_adds_epi16(words, (__m512i)zeros);
}
// Packing goes by 128 bits: four elements of a, of b, of c and of d, and so on.
NORMFUSE_INLINE void StoreInOrder(void* p, __m512i packed) {
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  _mm512_storeu_si512(p, _mm512_permutexvar_epi32(order, packed));
}
NORMFUSE_INLINE void StoreFour(int8_t* p, V a, V b, V c, V d, I zeros) {
  StoreInOrder(p, _mm512_packs_epi16(RoundedWords(a, b, zeros), RoundedWords(c, d, zeros)));
}
NORMFUSE_INLINE void StoreFour(uint8_t* p, V a, V b, V c, V d, I zeros) {
  StoreInOrder(p, _mm512_packus_epi16(RoundedWords(a, b, zeros), RoundedWords(c, d, zeros)));
}

// Bytes, for byte_table-inl.h. Entries: 16 of them, in each 128 bits.
NORMFUSE_INLINE Bytes Entries(const uint8_t* p) {
  return (Bytes)_mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i*)p));
}
NORMFUSE_INLINE Bytes SaturatingSubtract(Bytes a, Bytes b) { return (Bytes)_mm512_subs_epi8((__m512i)a, (__m512i)b); }
NORMFUSE_INLINE Bytes Shuffle(Bytes entries, Bytes i) {
  return (Bytes)_mm512_shuffle_epi8((__m512i)entries, (__m512i)i);
}

// Of unsigned bytes, for byte_sums-inl.h: the sums of eight, the sums of four squares, and the sum of all 64-bit integers.
NORMFUSE_INLINE I SumsOfBytes(Bytes a) { return (I)_mm512_sad_epu8((__m512i)a, __m512i{}); }
NORMFUSE_INLINE I SumsOfSquares(Bytes a) {
  const __m512i low = _mm512_unpacklo_epi8((__m512i)a, __m512i{});
  const __m512i high = _mm512_unpackhi_epi8((__m512i)a, __m512i{});
  return (I)_mm512_madd_epi16(low, low) + (I)_mm512_madd_epi16(high, high);
}
NORMFUSE_INLINE uint64_t SumOfLongs(Longs a) { return static_cast<uint64_t>(_mm512_reduce_add_epi64((__m512i)a)); }

}  // namespace normfuse::NORMFUSE_ISA
