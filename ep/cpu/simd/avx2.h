// The vector layer on AVX2, FMA and F16C: 8 lanes. See simd.h for the meaning of each name.
#pragma once

#include <immintrin.h>

#include "cpu/simd/types.h"

namespace normfuse::NORMFUSE_ISA {

constexpr size_t kLanes = 8;
constexpr bool kHasFma = true;
constexpr bool kHasTables = false;
constexpr bool kHasScale = false;
constexpr bool kHasLookup8 = true;
constexpr bool kHasByteShuffle = true;
constexpr bool kStreams = true;
constexpr bool kStoresFour = true;

struct V {
  __m256 v;
};
struct I {
  __m256i v;
};
struct M {
  __m256 m;  // each lane all ones or all zeros
};

NORMFUSE_INLINE V Set(float x) { return {_mm256_set1_ps(x)}; }
NORMFUSE_INLINE I SetI(int32_t x) { return {_mm256_set1_epi32(x)}; }
NORMFUSE_INLINE I Iota() { return {_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)}; }
NORMFUSE_INLINE __m256i FirstLanes(size_t n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int32_t>(n)), Iota().v);
}

// Bit patterns.
NORMFUSE_INLINE I BitCastToInt(V a) { return {_mm256_castps_si256(a.v)}; }
NORMFUSE_INLINE V BitCastToFloat(I a) { return {_mm256_castsi256_ps(a.v)}; }

// Float arithmetic.
NORMFUSE_INLINE V operator+(V a, V b) { return {_mm256_add_ps(a.v, b.v)}; }
NORMFUSE_INLINE V operator-(V a, V b) { return {_mm256_sub_ps(a.v, b.v)}; }
NORMFUSE_INLINE V operator*(V a, V b) { return {_mm256_mul_ps(a.v, b.v)}; }
NORMFUSE_INLINE V operator/(V a, V b) { return {_mm256_div_ps(a.v, b.v)}; }
NORMFUSE_INLINE V Fma(V a, V b, V c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
NORMFUSE_INLINE V NegFma(V a, V b, V c) { return {_mm256_fnmadd_ps(a.v, b.v, c.v)}; }
NORMFUSE_INLINE V ExactFma(V a, V b, V c) { return Fma(a, b, c); }
NORMFUSE_INLINE V Min(V a, V b) { return {_mm256_min_ps(a.v, b.v)}; }
NORMFUSE_INLINE V Max(V a, V b) { return {_mm256_max_ps(a.v, b.v)}; }
NORMFUSE_INLINE V Abs(V a) { return {_mm256_andnot_ps(_mm256_set1_ps(-0.0f), a.v)}; }
NORMFUSE_INLINE V Neg(V a) { return {_mm256_xor_ps(_mm256_set1_ps(-0.0f), a.v)}; }
NORMFUSE_INLINE V RoundEven(V a) { return {_mm256_round_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
NORMFUSE_INLINE V CopySign(V magnitude, V sign) {
  const __m256 mask = _mm256_set1_ps(-0.0f);
  return {_mm256_or_ps(_mm256_andnot_ps(mask, magnitude.v), _mm256_and_ps(mask, sign.v))};
}

// Comparison and choice.
NORMFUSE_INLINE M Lt(V a, V b) { return {_mm256_cmp_ps(a.v, b.v, _CMP_LT_OQ)}; }
NORMFUSE_INLINE M Gt(V a, V b) { return {_mm256_cmp_ps(a.v, b.v, _CMP_GT_OQ)}; }
NORMFUSE_INLINE M Eq(V a, V b) { return {_mm256_cmp_ps(a.v, b.v, _CMP_EQ_OQ)}; }
NORMFUSE_INLINE M IsNan(V a) { return {_mm256_cmp_ps(a.v, a.v, _CMP_UNORD_Q)}; }
NORMFUSE_INLINE M operator&(M a, M b) { return {_mm256_and_ps(a.m, b.m)}; }
NORMFUSE_INLINE bool Any(M a) { return _mm256_movemask_ps(a.m) != 0; }
NORMFUSE_INLINE V Select(M m, V a, V b) { return {_mm256_blendv_ps(b.v, a.v, m.m)}; }

// Integer arithmetic.
NORMFUSE_INLINE I operator+(I a, I b) { return {_mm256_add_epi32(a.v, b.v)}; }
NORMFUSE_INLINE I operator-(I a, I b) { return {_mm256_sub_epi32(a.v, b.v)}; }
NORMFUSE_INLINE I operator&(I a, I b) { return {_mm256_and_si256(a.v, b.v)}; }
NORMFUSE_INLINE I operator|(I a, I b) { return {_mm256_or_si256(a.v, b.v)}; }
NORMFUSE_INLINE I operator^(I a, I b) { return {_mm256_xor_si256(a.v, b.v)}; }
template <int kBits>
NORMFUSE_INLINE I ShiftLeft(I a) {
  return {_mm256_slli_epi32(a.v, kBits)};
}
template <int kBits>
NORMFUSE_INLINE I ShiftRight(I a) {
  return {_mm256_srai_epi32(a.v, kBits)};
}
template <int kBits>
NORMFUSE_INLINE I ShiftRightLogical(I a) {
  return {_mm256_srli_epi32(a.v, kBits)};
}
NORMFUSE_INLINE M GtI(I a, I b) { return {_mm256_castsi256_ps(_mm256_cmpgt_epi32(a.v, b.v))}; }
NORMFUSE_INLINE I SelectI(M m, I a, I b) { return BitCastToInt(Select(m, BitCastToFloat(a), BitCastToFloat(b))); }

// Conversions between float and int32.
NORMFUSE_INLINE I ToInt(V a) { return {_mm256_cvtps_epi32(a.v)}; }
NORMFUSE_INLINE V ToFloat(I a) { return {_mm256_cvtepi32_ps(a.v)}; }
NORMFUSE_INLINE V ToFloatUnsigned(I a) {
  // High half times 2^16 is exact, so that only the sum rounds.
  const V high = ToFloat(ShiftRightLogical<16>(a));
  const V low = ToFloat(a & SetI(0xFFFF));
  return Fma(high, Set(65536.0f), low);
}

// table[i mod 8]
NORMFUSE_INLINE I Lookup8(const int32_t* table, I index) {
  const __m256i entries = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(table));
  return {_mm256_permutevar8x32_epi32(entries, index.v)};
}

// Reductions.
NORMFUSE_INLINE float ReduceSum(V a) {
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
NORMFUSE_INLINE Floats SumsOfEach(V a, V b, V c, V d) {
  const __m256 both = _mm256_hadd_ps(_mm256_hadd_ps(a.v, b.v), _mm256_hadd_ps(c.v, d.v));
  return reinterpret_cast<Floats>(_mm_add_ps(_mm256_castps256_ps128(both), _mm256_extractf128_ps(both, 1)));
}
NORMFUSE_INLINE float ReduceMax(V a) {
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

// Loads.
NORMFUSE_INLINE __m128i Load128(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }
NORMFUSE_INLINE __m128i Load64(const void* p) { return _mm_loadl_epi64(static_cast<const __m128i*>(p)); }
NORMFUSE_INLINE __m256i Load256(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }

NORMFUSE_INLINE V Load(const float* p) { return {_mm256_loadu_ps(p)}; }
NORMFUSE_INLINE V LoadPartial(const float* p, size_t n) { return {_mm256_maskload_ps(p, FirstLanes(n))}; }

NORMFUSE_INLINE V LoadAs(const float* p) { return Load(p); }
NORMFUSE_INLINE V LoadAs(const Half* p) { return {_mm256_cvtph_ps(Load128(p))}; }
NORMFUSE_INLINE V LoadAs(const Bfloat16* p) {
  return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(Load128(p)), 16))};
}
NORMFUSE_INLINE I LoadAs(const int8_t* p) { return {_mm256_cvtepi8_epi32(Load64(p))}; }
NORMFUSE_INLINE I LoadAs(const uint8_t* p) { return {_mm256_cvtepu8_epi32(Load64(p))}; }
NORMFUSE_INLINE I LoadAs(const int16_t* p) { return {_mm256_cvtepi16_epi32(Load128(p))}; }
NORMFUSE_INLINE I LoadAs(const uint16_t* p) { return {_mm256_cvtepu16_epi32(Load128(p))}; }
NORMFUSE_INLINE I LoadAs(const int32_t* p) { return {Load256(p)}; }
NORMFUSE_INLINE I LoadAs(const uint32_t* p) { return {Load256(p)}; }

// Stores.
NORMFUSE_INLINE void Store(float* p, V a) { _mm256_storeu_ps(p, a.v); }
NORMFUSE_INLINE void StorePartial(float* p, V a, size_t n) { _mm256_maskstore_ps(p, FirstLanes(n), a.v); }
NORMFUSE_INLINE void StreamStore(float* p, V a) { _mm256_stream_ps(p, a.v); }

// Float to an integer type's range, NaN to its minimum, and rounded.
NORMFUSE_INLINE __m256i RoundClamped(V a, float low, float high) {
  return _mm256_cvtps_epi32(_mm256_min_ps(_mm256_max_ps(a.v, _mm256_set1_ps(low)), _mm256_set1_ps(high)));
}
// int32 to 16 bits, saturating.
NORMFUSE_INLINE __m128i PackSigned(__m256i a) {
  return _mm_packs_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
}
NORMFUSE_INLINE __m128i PackUnsigned(__m256i a) {
  return _mm_packus_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
}
NORMFUSE_INLINE void Store128(void* p, __m128i a) { _mm_storeu_si128(static_cast<__m128i*>(p), a); }
NORMFUSE_INLINE void Store64(void* p, __m128i a) { _mm_storel_epi64(static_cast<__m128i*>(p), a); }
NORMFUSE_INLINE void Store256(void* p, __m256i a) { _mm256_storeu_si256(static_cast<__m256i*>(p), a); }

NORMFUSE_INLINE void StoreAs(float* p, V a) { Store(p, a); }
NORMFUSE_INLINE void StreamStore(Half* p, V a) {
  _mm_stream_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
NORMFUSE_INLINE void StoreAs(Half* p, V a) {
  Store128(p, _mm256_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
NORMFUSE_INLINE void StoreAs(Bfloat16* p, V a) {
  const I bits = BitCastToInt(a);
  const I rounded = bits + SetI(0x7FFF) + (ShiftRightLogical<16>(bits) & SetI(1));
  const I quiet = bits | SetI(0x00400000);
  Store128(p, PackUnsigned(ShiftRightLogical<16>(SelectI(IsNan(a), quiet, rounded)).v));
}
NORMFUSE_INLINE void StoreAs(int8_t* p, I a) {
  const __m128i words = PackSigned(a.v);
  Store64(p, _mm_packs_epi16(words, words));
}
NORMFUSE_INLINE void StoreAs(uint8_t* p, I a) {
  const __m128i words = PackSigned(a.v);
  Store64(p, _mm_packus_epi16(words, words));
}
NORMFUSE_INLINE void StoreAs(int8_t* p, V a) { StoreAs(p, I{RoundClamped(a, -128.0f, 127.0f)}); }
NORMFUSE_INLINE void StoreAs(uint8_t* p, V a) { StoreAs(p, I{RoundClamped(a, 0.0f, 255.0f)}); }
NORMFUSE_INLINE void StoreAs(int16_t* p, V a) { Store128(p, PackSigned(RoundClamped(a, -32768.0f, 32767.0f))); }
NORMFUSE_INLINE void StoreAs(uint16_t* p, V a) { Store128(p, PackUnsigned(RoundClamped(a, 0.0f, 65535.0f))); }

// 4 * kLanes values rounded half to even, each with one of `zeros` (16-bit integers) added, saturated. NaN gives the
// type's minimum.
NORMFUSE_INLINE __m256i RoundedWords(V a, V b, I zeros) {
  // The conversion gives INT32_MIN for NaN and for whatever is out of range.
  const __m256 most = _mm256_set1_ps(32767.0f);
  const __m256i first = _mm256_cvtps_epi32(_mm256_min_ps(most, a.v));
  const __m256i second = _mm256_cvtps_epi32(_mm256_min_ps(most, b.v));
  return _mm256_adds_epi16(_mm256_packs_epi32(first, second), zeros.v);
}
// Packing goes by 128 bits: four elements of a, of b, of c and of d, and the other four of each.
NORMFUSE_INLINE __m256i InOrder(__m256i packed) {
  return _mm256_permutevar8x32_epi32(packed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}
NORMFUSE_INLINE void StoreFour(int8_t* p, V a, V b, V c, V d, I zeros) {
  Store256(p, InOrder(_mm256_packs_epi16(RoundedWords(a, b, zeros), RoundedWords(c, d, zeros))));
}
NORMFUSE_INLINE void StoreFour(uint8_t* p, V a, V b, V c, V d, I zeros) {
  Store256(p, InOrder(_mm256_packus_epi16(RoundedWords(a, b, zeros), RoundedWords(c, d, zeros))));
}

#include "cpu/simd/partial-inl.h"

// 32-bit elements have masked memory operations.
NORMFUSE_INLINE V LoadAsPartial(const float* p, size_t n) { return LoadPartial(p, n); }
NORMFUSE_INLINE I LoadAsPartial(const int32_t* p, size_t n) { return {_mm256_maskload_epi32(p, FirstLanes(n))}; }
NORMFUSE_INLINE I LoadAsPartial(const uint32_t* p, size_t n) {
  return LoadAsPartial(reinterpret_cast<const int32_t*>(p), n);
}
NORMFUSE_INLINE void StoreAsPartial(float* p, V a, size_t n) { StorePartial(p, a, n); }

// Bytes, for byte_table-inl.h.
struct Bytes {
  static NORMFUSE_INLINE Bytes Set(int8_t x) { return {_mm256_set1_epi8(x)}; }
  static NORMFUSE_INLINE Bytes Load(const uint8_t* p) {
    return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))};
  }
  // 16 of them, in each 128 bits.
  static NORMFUSE_INLINE Bytes Entries(const uint8_t* p) {
    return {_mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
  }
  NORMFUSE_INLINE void Store(uint8_t* p) const { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), v); }
  __m256i v;
};
NORMFUSE_INLINE Bytes operator^(Bytes a, Bytes b) { return {_mm256_xor_si256(a.v, b.v)}; }
NORMFUSE_INLINE Bytes SaturatingSubtract(Bytes a, Bytes b) { return {_mm256_subs_epi8(a.v, b.v)}; }
NORMFUSE_INLINE Bytes Shuffle(Bytes entries, Bytes index) { return {_mm256_shuffle_epi8(entries.v, index.v)}; }

}  // namespace normfuse::NORMFUSE_ISA
