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

#include "cpu/simd/types.h"

namespace normfuse::NORMFUSE_ISA {

constexpr size_t kLanes = 16;
constexpr bool kHasFma = true;
constexpr bool kHasTables = true;
constexpr bool kHasScale = true;
constexpr bool kHasLookup8 = false;
constexpr bool kHasByteShuffle = true;
constexpr bool kStreams = true;
constexpr bool kStoresFour = true;

struct V {
  __m512 v;
};
struct I {
  __m512i v;
};
struct M {
  __mmask16 m;
};

NORMFUSE_INLINE V Set(float x) { return {_mm512_set1_ps(x)}; }
NORMFUSE_INLINE I SetI(int32_t x) { return {_mm512_set1_epi32(x)}; }
NORMFUSE_INLINE I Iota() { return {_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)}; }
NORMFUSE_INLINE __mmask16 FirstLanes(size_t n) { return static_cast<__mmask16>((1u << n) - 1u); }

// Bit patterns.
NORMFUSE_INLINE I BitCastToInt(V a) { return {_mm512_castps_si512(a.v)}; }
NORMFUSE_INLINE V BitCastToFloat(I a) { return {_mm512_castsi512_ps(a.v)}; }

// Float arithmetic.
NORMFUSE_INLINE V operator+(V a, V b) { return {_mm512_add_ps(a.v, b.v)}; }
NORMFUSE_INLINE V operator-(V a, V b) { return {_mm512_sub_ps(a.v, b.v)}; }
NORMFUSE_INLINE V operator*(V a, V b) { return {_mm512_mul_ps(a.v, b.v)}; }
NORMFUSE_INLINE V operator/(V a, V b) { return {_mm512_div_ps(a.v, b.v)}; }
NORMFUSE_INLINE V Fma(V a, V b, V c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
NORMFUSE_INLINE V NegFma(V a, V b, V c) { return {_mm512_fnmadd_ps(a.v, b.v, c.v)}; }
NORMFUSE_INLINE V ExactFma(V a, V b, V c) { return Fma(a, b, c); }
NORMFUSE_INLINE V Min(V a, V b) { return {_mm512_min_ps(a.v, b.v)}; }
NORMFUSE_INLINE V Max(V a, V b) { return {_mm512_max_ps(a.v, b.v)}; }
NORMFUSE_INLINE V Abs(V a) { return {_mm512_andnot_ps(_mm512_set1_ps(-0.0f), a.v)}; }
NORMFUSE_INLINE V Neg(V a) { return {_mm512_xor_ps(_mm512_set1_ps(-0.0f), a.v)}; }
NORMFUSE_INLINE V RoundEven(V a) { return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
NORMFUSE_INLINE V CopySign(V magnitude, V sign) {
  // 0xD8: bits of the third operand chosen where the mask is set, of the first elsewhere.
  const __m512i mask = _mm512_set1_epi32(INT32_MIN);
  return {_mm512_castsi512_ps(
      _mm512_ternarylogic_epi32(_mm512_castps_si512(magnitude.v), _mm512_castps_si512(sign.v), mask, 0xD8))};
}

// Comparison and choice.
NORMFUSE_INLINE M Lt(V a, V b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ)}; }
NORMFUSE_INLINE M Gt(V a, V b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_GT_OQ)}; }
NORMFUSE_INLINE M Eq(V a, V b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_EQ_OQ)}; }
NORMFUSE_INLINE M IsNan(V a) { return {_mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q)}; }
NORMFUSE_INLINE M operator&(M a, M b) { return {static_cast<__mmask16>(a.m & b.m)}; }
NORMFUSE_INLINE bool Any(M a) { return a.m != 0; }
NORMFUSE_INLINE V Select(M m, V a, V b) { return {_mm512_mask_blend_ps(m.m, b.v, a.v)}; }

// Integer arithmetic.
NORMFUSE_INLINE I operator+(I a, I b) { return {_mm512_add_epi32(a.v, b.v)}; }
NORMFUSE_INLINE I operator^(I a, I b) { return {_mm512_xor_si512(a.v, b.v)}; }
template <int kBits>
NORMFUSE_INLINE I ShiftLeft(I a) {
  return {_mm512_slli_epi32(a.v, kBits)};
}
NORMFUSE_INLINE M GtI(I a, I b) { return {_mm512_cmpgt_epi32_mask(a.v, b.v)}; }

// Conversions between float and int32.
NORMFUSE_INLINE I ToInt(V a) { return {_mm512_cvtps_epi32(a.v)}; }
NORMFUSE_INLINE V ToFloat(I a) { return {_mm512_cvtepi32_ps(a.v)}; }
NORMFUSE_INLINE V ToFloatUnsigned(I a) { return {_mm512_cvtepu32_ps(a.v)}; }

// a * 2^n for integral n, rounded once.
NORMFUSE_INLINE V ScaleByPowerOfTwo(V a, V n) { return {_mm512_scalef_ps(a.v, n.v)}; }

// Reductions.
NORMFUSE_INLINE float ReduceSum(V a) { return _mm512_reduce_add_ps(a.v); }
NORMFUSE_INLINE Floats SumsOfEach(V a, V b, V c, V d) {
  const __m512 ab = _mm512_add_ps(_mm512_unpacklo_ps(a.v, b.v), _mm512_unpackhi_ps(a.v, b.v));
  const __m512 cd = _mm512_add_ps(_mm512_unpacklo_ps(c.v, d.v), _mm512_unpackhi_ps(c.v, d.v));
  const __m512d low = _mm512_unpacklo_pd(_mm512_castps_pd(ab), _mm512_castps_pd(cd));
  const __m512d high = _mm512_unpackhi_pd(_mm512_castps_pd(ab), _mm512_castps_pd(cd));
  const __m512 all = _mm512_add_ps(_mm512_castpd_ps(low), _mm512_castpd_ps(high));
  const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(all), _mm512_extractf32x8_ps(all, 1));
  return reinterpret_cast<Floats>(_mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1)));
}
NORMFUSE_INLINE float ReduceMax(V a) { return _mm512_reduce_max_ps(a.v); }

// Of this instruction set only.

// table[i mod 16] and table[i mod 32]
NORMFUSE_INLINE V Lookup(const float* table, I index) {
  return {_mm512_permutexvar_ps(index.v, _mm512_loadu_ps(table))};
}
NORMFUSE_INLINE V Lookup32(const float* table, I index) {
  return {_mm512_permutex2var_ps(_mm512_loadu_ps(table), index.v, _mm512_loadu_ps(table + 16))};
}
// a cut to -limit ... limit, and -min(|a|, limit); limit and -limit where a is NaN.
NORMFUSE_INLINE V ClampMagnitude(V a, V limit) { return {_mm512_range_ps(a.v, limit.v, 0b0010)}; }
NORMFUSE_INLINE V NegativeMagnitude(V a, V limit) { return {_mm512_range_ps(a.v, limit.v, 0b1110)}; }
// max(a, 0), but NaN for -infinity. A hexadecimal digit for each kind of number, from the right: NaN (itself), signalling
// NaN (quiet), 0 and 1 (themselves), -infinity (NaN), infinity (itself), negative (0), positive (itself).
NORMFUSE_INLINE V PositivePart(V a) { return {_mm512_fixupimm_ps(a.v, a.v, _mm512_set1_epi32(0x18131121), 0)}; }
// a + b rounded down, and what is left of a above the next multiple of 1/2 below it.
NORMFUSE_INLINE V AddDown(V a, V b) {
  return {_mm512_add_round_ps(a.v, b.v, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC)};
}
NORMFUSE_INLINE V RestOfHalves(V a) {
  return {_mm512_reduce_ps(a.v, 0x10 | _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC)};
}

// Loads.
NORMFUSE_INLINE V Load(const float* p) { return {_mm512_loadu_ps(p)}; }
NORMFUSE_INLINE V LoadPartial(const float* p, size_t n) { return {_mm512_maskz_loadu_ps(FirstLanes(n), p)}; }

NORMFUSE_INLINE V WidenHalf(__m256i a) { return {_mm512_cvtph_ps(a)}; }
NORMFUSE_INLINE V WidenBfloat16(__m256i a) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(a), 16))};
}

NORMFUSE_INLINE V LoadAs(const float* p) { return Load(p); }
NORMFUSE_INLINE V LoadAs(const Half* p) { return WidenHalf(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }
NORMFUSE_INLINE V LoadAs(const Bfloat16* p) {
  return WidenBfloat16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
NORMFUSE_INLINE I LoadAs(const int8_t* p) {
  return {_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
NORMFUSE_INLINE I LoadAs(const uint8_t* p) {
  return {_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
NORMFUSE_INLINE I LoadAs(const int16_t* p) {
  return {_mm512_cvtepi16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
NORMFUSE_INLINE I LoadAs(const uint16_t* p) {
  return {_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
NORMFUSE_INLINE I LoadAs(const int32_t* p) { return {_mm512_loadu_si512(p)}; }
NORMFUSE_INLINE I LoadAs(const uint32_t* p) { return {_mm512_loadu_si512(p)}; }

NORMFUSE_INLINE V LoadAsPartial(const float* p, size_t n) { return LoadPartial(p, n); }
NORMFUSE_INLINE V LoadAsPartial(const Half* p, size_t n) {
  return WidenHalf(_mm256_maskz_loadu_epi16(FirstLanes(n), p));
}
NORMFUSE_INLINE V LoadAsPartial(const Bfloat16* p, size_t n) {
  return WidenBfloat16(_mm256_maskz_loadu_epi16(FirstLanes(n), p));
}
NORMFUSE_INLINE I LoadAsPartial(const int8_t* p, size_t n) {
  return {_mm512_cvtepi8_epi32(_mm_maskz_loadu_epi8(FirstLanes(n), p))};
}
NORMFUSE_INLINE I LoadAsPartial(const uint8_t* p, size_t n) {
  return {_mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(FirstLanes(n), p))};
}
NORMFUSE_INLINE I LoadAsPartial(const int16_t* p, size_t n) {
  return {_mm512_cvtepi16_epi32(_mm256_maskz_loadu_epi16(FirstLanes(n), p))};
}
NORMFUSE_INLINE I LoadAsPartial(const uint16_t* p, size_t n) {
  return {_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(FirstLanes(n), p))};
}
NORMFUSE_INLINE I LoadAsPartial(const int32_t* p, size_t n) { return {_mm512_maskz_loadu_epi32(FirstLanes(n), p)}; }
NORMFUSE_INLINE I LoadAsPartial(const uint32_t* p, size_t n) { return {_mm512_maskz_loadu_epi32(FirstLanes(n), p)}; }

// Stores.
NORMFUSE_INLINE void Store(float* p, V a) { _mm512_storeu_ps(p, a.v); }
NORMFUSE_INLINE void StorePartial(float* p, V a, size_t n) { _mm512_mask_storeu_ps(p, FirstLanes(n), a.v); }
NORMFUSE_INLINE void StreamStore(float* p, V a) { _mm512_stream_ps(p, a.v); }

// Float to an integer type's range, NaN to its minimum, and rounded.
NORMFUSE_INLINE __m512i RoundClamped(V a, float low, float high) {
  return _mm512_cvtps_epi32(_mm512_min_ps(_mm512_max_ps(a.v, _mm512_set1_ps(low)), _mm512_set1_ps(high)));
}
NORMFUSE_INLINE __m256i NarrowHalf(V a) { return _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
NORMFUSE_INLINE __m256i NarrowBfloat16(V a) {
  const __m512i bits = _mm512_castps_si512(a.v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7FFF)), odd);
  const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x00400000));
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_mask_blend_epi32(IsNan(a).m, rounded, quiet), 16));
}
NORMFUSE_INLINE __m128i NarrowInt8(V a) { return _mm512_cvtepi32_epi8(RoundClamped(a, -128.0f, 127.0f)); }
NORMFUSE_INLINE __m128i NarrowUint8(V a) { return _mm512_cvtepi32_epi8(RoundClamped(a, 0.0f, 255.0f)); }
NORMFUSE_INLINE __m256i NarrowInt16(V a) { return _mm512_cvtepi32_epi16(RoundClamped(a, -32768.0f, 32767.0f)); }
NORMFUSE_INLINE __m256i NarrowUint16(V a) { return _mm512_cvtepi32_epi16(RoundClamped(a, 0.0f, 65535.0f)); }
NORMFUSE_INLINE __m512i NotNegative(I a) { return _mm512_max_epi32(a.v, _mm512_setzero_si512()); }

NORMFUSE_INLINE void StoreBits(void* p, __m128i a) { _mm_storeu_si128(static_cast<__m128i*>(p), a); }
NORMFUSE_INLINE void StoreBits(void* p, __m256i a) { _mm256_storeu_si256(static_cast<__m256i*>(p), a); }
NORMFUSE_INLINE void StoreBits(void* p, __m512i a) { _mm512_storeu_si512(p, a); }
NORMFUSE_INLINE void StoreBitsPartial(void* p, __m128i a, size_t n) { _mm_mask_storeu_epi8(p, FirstLanes(n), a); }
NORMFUSE_INLINE void StoreBitsPartial(void* p, __m256i a, size_t n) { _mm256_mask_storeu_epi16(p, FirstLanes(n), a); }

NORMFUSE_INLINE void StoreAs(float* p, V a) { Store(p, a); }
NORMFUSE_INLINE void StoreAs(Half* p, V a) { StoreBits(p, NarrowHalf(a)); }
NORMFUSE_INLINE void StoreAs(Bfloat16* p, V a) { StoreBits(p, NarrowBfloat16(a)); }
NORMFUSE_INLINE void StoreAs(int8_t* p, V a) { StoreBits(p, NarrowInt8(a)); }
NORMFUSE_INLINE void StoreAs(uint8_t* p, V a) { StoreBits(p, NarrowUint8(a)); }
NORMFUSE_INLINE void StoreAs(int16_t* p, V a) { StoreBits(p, NarrowInt16(a)); }
NORMFUSE_INLINE void StoreAs(uint16_t* p, V a) { StoreBits(p, NarrowUint16(a)); }
NORMFUSE_INLINE void StoreAs(int8_t* p, I a) { StoreBits(p, _mm512_cvtsepi32_epi8(a.v)); }
NORMFUSE_INLINE void StoreAs(uint8_t* p, I a) { StoreBits(p, _mm512_cvtusepi32_epi8(NotNegative(a))); }

// 4 * kLanes values rounded half to even, each with one of `zeros` (16-bit integers) added,
// saturated. NaN gives the type's minimum.
NORMFUSE_INLINE __m512i RoundedWords(V a, V b, I zeros) {
  // The conversion gives INT32_MIN for NaN and for whatever is out of range.
  const __m512 most = _mm512_set1_ps(32767.0f);
  const __m512i first = _mm512_cvtps_epi32(_mm512_min_ps(most, a.v));
  const __m512i second = _mm512_cvtps_epi32(_mm512_min_ps(most, b.v));
  return _mm512_adds_epi16(_mm512_packs_epi32(first, second), zeros.v);
}
// Packing goes by 128 bits: four elements of a, of b, of c and of d, and so on.
NORMFUSE_INLINE __m512i InOrder(__m512i packed) {
  return _mm512_permutexvar_epi32(_mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15), packed);
}
NORMFUSE_INLINE void StoreFour(int8_t* p, V a, V b, V c, V d, I zeros) {
  StoreBits(p, InOrder(_mm512_packs_epi16(RoundedWords(a, b, zeros), RoundedWords(c, d, zeros))));
}
NORMFUSE_INLINE void StoreFour(uint8_t* p, V a, V b, V c, V d, I zeros) {
  StoreBits(p, InOrder(_mm512_packus_epi16(RoundedWords(a, b, zeros), RoundedWords(c, d, zeros))));
}

NORMFUSE_INLINE void StreamStore(Half* p, V a) { _mm256_stream_si256(reinterpret_cast<__m256i*>(p), NarrowHalf(a)); }

NORMFUSE_INLINE void StoreAsPartial(float* p, V a, size_t n) { StorePartial(p, a, n); }
NORMFUSE_INLINE void StoreAsPartial(Half* p, V a, size_t n) { StoreBitsPartial(p, NarrowHalf(a), n); }
NORMFUSE_INLINE void StoreAsPartial(Bfloat16* p, V a, size_t n) { StoreBitsPartial(p, NarrowBfloat16(a), n); }
NORMFUSE_INLINE void StoreAsPartial(int8_t* p, V a, size_t n) { StoreBitsPartial(p, NarrowInt8(a), n); }
NORMFUSE_INLINE void StoreAsPartial(uint8_t* p, V a, size_t n) { StoreBitsPartial(p, NarrowUint8(a), n); }
NORMFUSE_INLINE void StoreAsPartial(int16_t* p, V a, size_t n) { StoreBitsPartial(p, NarrowInt16(a), n); }
NORMFUSE_INLINE void StoreAsPartial(uint16_t* p, V a, size_t n) { StoreBitsPartial(p, NarrowUint16(a), n); }
NORMFUSE_INLINE void StoreAsPartial(int8_t* p, I a, size_t n) { StoreBitsPartial(p, _mm512_cvtsepi32_epi8(a.v), n); }
NORMFUSE_INLINE void StoreAsPartial(uint8_t* p, I a, size_t n) {
  StoreBitsPartial(p, _mm512_cvtusepi32_epi8(NotNegative(a)), n);
}

// Bytes, for byte_table-inl.h.
struct Bytes {
  static NORMFUSE_INLINE Bytes Set(int8_t x) { return {_mm512_set1_epi8(x)}; }
  static NORMFUSE_INLINE Bytes Load(const uint8_t* p) {
    return {_mm512_loadu_si512(reinterpret_cast<const __m512i*>(p))};
  }
  // 16 of them, in each 128 bits.
  static NORMFUSE_INLINE Bytes Entries(const uint8_t* p) {
    return {_mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
  }
  NORMFUSE_INLINE void Store(uint8_t* p) const { _mm512_storeu_si512(reinterpret_cast<__m512i*>(p), v); }
  __m512i v;
};
NORMFUSE_INLINE Bytes operator^(Bytes a, Bytes b) { return {_mm512_xor_si512(a.v, b.v)}; }
NORMFUSE_INLINE Bytes SaturatingSubtract(Bytes a, Bytes b) { return {_mm512_subs_epi8(a.v, b.v)}; }
NORMFUSE_INLINE Bytes Shuffle(Bytes entries, Bytes index) { return {_mm512_shuffle_epi8(entries.v, index.v)}; }

}  // namespace normfuse::NORMFUSE_ISA
