// The vector layer in portable C++ with the vector extensions of GCC and clang: 4 lanes, any architecture (SSE2 on
// x86-64). See simd.h for the meaning of each name.
#pragma once

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "cpu/simd/types.h"

namespace normfuse::NORMFUSE_ISA {

constexpr size_t kLanes = 4;
constexpr bool kHasFma = false;
constexpr bool kHasTables = false;
constexpr bool kHasScale = false;
constexpr bool kHasLookup8 = false;
constexpr bool kHasByteShuffle = false;
struct Bytes;
constexpr bool kStreams = false;  // non-temporal stores gain nothing here
constexpr bool kStoresFour = false;

typedef float Float4 __attribute__((vector_size(16)));
typedef int32_t Int4 __attribute__((vector_size(16)));
typedef uint32_t Uint4 __attribute__((vector_size(16)));

struct V {
  Float4 v;
};
struct I {
  Int4 v;
};
struct M {
  Int4 m;  // each lane all ones or all zeros
};

NORMFUSE_INLINE V Set(float x) { return {Float4{x, x, x, x}}; }
NORMFUSE_INLINE I SetI(int32_t x) { return {Int4{x, x, x, x}}; }
NORMFUSE_INLINE I Iota() { return {Int4{0, 1, 2, 3}}; }

// Bit patterns.
NORMFUSE_INLINE I BitCastToInt(V a) { return {(Int4)a.v}; }
NORMFUSE_INLINE V BitCastToFloat(I a) { return {(Float4)a.v}; }

// Integer arithmetic; wraps, hence the unsigned detour.
NORMFUSE_INLINE I operator+(I a, I b) { return {(Int4)((Uint4)a.v + (Uint4)b.v)}; }
NORMFUSE_INLINE I operator-(I a, I b) { return {(Int4)((Uint4)a.v - (Uint4)b.v)}; }
NORMFUSE_INLINE I operator&(I a, I b) { return {a.v & b.v}; }
NORMFUSE_INLINE I operator|(I a, I b) { return {a.v | b.v}; }
NORMFUSE_INLINE I operator^(I a, I b) { return {a.v ^ b.v}; }
template <int kBits>
NORMFUSE_INLINE I ShiftLeft(I a) {
  return {(Int4)((Uint4)a.v << kBits)};
}
template <int kBits>
NORMFUSE_INLINE I ShiftRight(I a) {
  return {a.v >> kBits};
}
template <int kBits>
NORMFUSE_INLINE I ShiftRightLogical(I a) {
  return {(Int4)((Uint4)a.v >> kBits)};
}
NORMFUSE_INLINE M GtI(I a, I b) { return {a.v > b.v}; }
NORMFUSE_INLINE I SelectI(M m, I a, I b) { return {(m.m & a.v) | (~m.m & b.v)}; }
NORMFUSE_INLINE I MinI(I a, I b) { return SelectI(GtI(a, b), b, a); }
NORMFUSE_INLINE I MaxI(I a, I b) { return SelectI(GtI(a, b), a, b); }

// Comparison and choice.
NORMFUSE_INLINE M Lt(V a, V b) { return {(Int4)(a.v < b.v)}; }
NORMFUSE_INLINE M Gt(V a, V b) { return {(Int4)(a.v > b.v)}; }
NORMFUSE_INLINE M Eq(V a, V b) { return {(Int4)(a.v == b.v)}; }
NORMFUSE_INLINE M IsNan(V a) { return {(Int4)(a.v != a.v)}; }  // NOLINT(misc-redundant-expression)
NORMFUSE_INLINE M operator&(M a, M b) { return {a.m & b.m}; }
NORMFUSE_INLINE bool Any(M a) { return (a.m[0] | a.m[1] | a.m[2] | a.m[3]) != 0; }
NORMFUSE_INLINE V Select(M m, V a, V b) { return BitCastToFloat(SelectI(m, BitCastToInt(a), BitCastToInt(b))); }

// Float arithmetic.
NORMFUSE_INLINE V operator+(V a, V b) { return {a.v + b.v}; }
NORMFUSE_INLINE V operator-(V a, V b) { return {a.v - b.v}; }
NORMFUSE_INLINE V operator*(V a, V b) { return {a.v * b.v}; }
NORMFUSE_INLINE V operator/(V a, V b) { return {a.v / b.v}; }
NORMFUSE_INLINE V Fma(V a, V b, V c) { return {a.v * b.v + c.v}; }
NORMFUSE_INLINE V NegFma(V a, V b, V c) { return {c.v - a.v * b.v}; }
// In float64 the product is exact and the sum's rounding far below float32's.
NORMFUSE_INLINE V ExactFma(V a, V b, V c) {
  const Doubles product = __builtin_convertvector(a.v, Doubles) * __builtin_convertvector(b.v, Doubles);
  return {__builtin_convertvector(product + __builtin_convertvector(c.v, Doubles), Float4)};
}
#if defined(__SSE2__)
NORMFUSE_INLINE V Min(V a, V b) { return {(Float4)_mm_min_ps((__m128)a.v, (__m128)b.v)}; }
NORMFUSE_INLINE V Max(V a, V b) { return {(Float4)_mm_max_ps((__m128)a.v, (__m128)b.v)}; }
#else
NORMFUSE_INLINE V Min(V a, V b) { return Select(Lt(a, b), a, b); }
NORMFUSE_INLINE V Max(V a, V b) { return Select(Gt(a, b), a, b); }
#endif
NORMFUSE_INLINE V Abs(V a) { return BitCastToFloat(BitCastToInt(a) & SetI(INT32_MAX)); }
NORMFUSE_INLINE V Neg(V a) { return BitCastToFloat(BitCastToInt(a) ^ SetI(INT32_MIN)); }
NORMFUSE_INLINE V CopySign(V magnitude, V sign) {
  return BitCastToFloat((BitCastToInt(magnitude) & SetI(INT32_MAX)) | (BitCastToInt(sign) & SetI(INT32_MIN)));
}
NORMFUSE_INLINE V RoundEven(V a) {
  // From 2^23 on every float is an integer; below, adding 2^23 leaves the rounded integer in the low bits.
  const V magnitude = Abs(a);
  const V big = Set(8388608.0f);
  return Select(Lt(magnitude, big), CopySign((magnitude + big) - big, a), a);
}

// Conversions between float and int32.
NORMFUSE_INLINE I ToInt(V a) { return {__builtin_convertvector(RoundEven(a).v, Int4)}; }
NORMFUSE_INLINE V ToFloat(I a) { return {__builtin_convertvector(a.v, Float4)}; }
NORMFUSE_INLINE V ToFloatUnsigned(I a) {
  // High half times 2^16 is exact, so that only the sum rounds.
  return ToFloat(ShiftRightLogical<16>(a)) * Set(65536.0f) + ToFloat(a & SetI(0xFFFF));
}

// Reductions.
NORMFUSE_INLINE float ReduceSum(V a) { return (a.v[0] + a.v[2]) + (a.v[1] + a.v[3]); }
NORMFUSE_INLINE Floats SumsOfEach(V a, V b, V c, V d) {
  return Floats{ReduceSum(a), ReduceSum(b), ReduceSum(c), ReduceSum(d)};
}
NORMFUSE_INLINE float ReduceMax(V a) {
  const float low = a.v[0] > a.v[2] ? a.v[0] : a.v[2];
  const float high = a.v[1] > a.v[3] ? a.v[1] : a.v[3];
  return low > high ? low : high;
}

// float16 by integer arithmetic. Widening: the 15 magnitude bits moved to float32's place are off by the difference of
// the biases, 2^112, which multiplying by repairs exactly, denormals included; infinity and NaN (all exponent bits set)
// get the exponent bits that are missing.
NORMFUSE_INLINE V WidenHalf(I bits) {
  const I magnitude = bits & SetI(0x7FFF);
  const V scaled = BitCastToFloat(ShiftLeft<13>(magnitude)) * Set(0x1p112f);
  // A NaN comes out quiet, as the processors' own conversions give it.
  const I special = ShiftLeft<13>(magnitude) | SetI(0x7F800000);
  const I quiet = special | SetI(0x00400000);
  const I not_finite = SelectI(GtI(magnitude, SetI(0x7C00)), quiet, special);
  const I result = SelectI(GtI(magnitude, SetI(0x7BFF)), not_finite, BitCastToInt(scaled));
  return BitCastToFloat(result | ShiftLeft<16>(bits & SetI(0x8000)));
}
// Narrowing, round to nearest even. Normal results: round by adding to the bits. Denormal ones: adding 0.5 aligns the
// last kept bit with float32's last, so that the addition itself rounds.
NORMFUSE_INLINE I NarrowHalf(V a) {
  const I bits = BitCastToInt(a);
  const I magnitude = bits & SetI(INT32_MAX);
  const I odd = ShiftRightLogical<13>(magnitude) & SetI(1);
  const I normal = ShiftRightLogical<13>(magnitude + SetI(0xFFF) + odd - SetI(112 << 23));
  const I denormal = BitCastToInt(Abs(a) + Set(0.5f)) - BitCastToInt(Set(0.5f));
  const I quiet = (ShiftRightLogical<13>(magnitude) & SetI(0x3FF)) | SetI(0x7E00);
  I result = SelectI(GtI(SetI(113 << 23), magnitude), denormal, normal);
  result = SelectI(GtI(magnitude, SetI(0x477FEFFF)), SetI(0x7C00), result);  // from 65520 on: infinity
  result = SelectI(GtI(magnitude, SetI(0x7F800000)), quiet, result);
  return result | (ShiftRightLogical<16>(bits) & SetI(0x8000));
}
NORMFUSE_INLINE I NarrowBfloat16(V a) {
  const I bits = BitCastToInt(a);
  const I rounded = bits + SetI(0x7FFF) + (ShiftRightLogical<16>(bits) & SetI(1));
  return ShiftRightLogical<16>(SelectI(IsNan(a), bits | SetI(0x00400000), rounded));
}

// Loads.
NORMFUSE_INLINE V Load(const float* p) {
  V a;
  __builtin_memcpy(&a.v, p, sizeof(a.v));
  return a;
}
NORMFUSE_INLINE I LoadAs(const int32_t* p) {
  I a;
  __builtin_memcpy(&a.v, p, sizeof(a.v));
  return a;
}
NORMFUSE_INLINE I LoadAs(const uint32_t* p) { return LoadAs(reinterpret_cast<const int32_t*>(p)); }
NORMFUSE_INLINE I LoadAs(const int8_t* p) { return {Int4{p[0], p[1], p[2], p[3]}}; }
NORMFUSE_INLINE I LoadAs(const uint8_t* p) { return {Int4{p[0], p[1], p[2], p[3]}}; }
NORMFUSE_INLINE I LoadAs(const int16_t* p) { return {Int4{p[0], p[1], p[2], p[3]}}; }
NORMFUSE_INLINE I LoadAs(const uint16_t* p) { return {Int4{p[0], p[1], p[2], p[3]}}; }
NORMFUSE_INLINE V LoadAs(const float* p) { return Load(p); }
NORMFUSE_INLINE V LoadAs(const Half* p) { return WidenHalf({Int4{p[0].bits, p[1].bits, p[2].bits, p[3].bits}}); }
NORMFUSE_INLINE V LoadAs(const Bfloat16* p) {
  return BitCastToFloat(ShiftLeft<16>(I{Int4{p[0].bits, p[1].bits, p[2].bits, p[3].bits}}));
}

// Stores.
NORMFUSE_INLINE void Store(float* p, V a) { __builtin_memcpy(p, &a.v, sizeof(a.v)); }

// Stores the low bits of each lane.
template <typename T>
NORMFUSE_INLINE void StoreLow(T* p, I a) {
  for (size_t i = 0; i < kLanes; ++i) {
    const T low = static_cast<T>(a.v[i]);
    __builtin_memcpy(p + i, &low, sizeof(low));
  }
}
NORMFUSE_INLINE I Clamp(I a, int32_t low, int32_t high) { return MinI(MaxI(a, SetI(low)), SetI(high)); }
// Float to an integer type's range, NaN to its minimum, and rounded.
NORMFUSE_INLINE I RoundClamped(V a, float low, float high) { return ToInt(Min(Max(a, Set(low)), Set(high))); }

NORMFUSE_INLINE void StoreAs(float* p, V a) { Store(p, a); }
NORMFUSE_INLINE void StoreAs(Half* p, V a) { StoreLow(reinterpret_cast<uint16_t*>(p), NarrowHalf(a)); }
NORMFUSE_INLINE void StoreAs(Bfloat16* p, V a) { StoreLow(reinterpret_cast<uint16_t*>(p), NarrowBfloat16(a)); }
NORMFUSE_INLINE void StoreAs(int8_t* p, I a) { StoreLow(p, Clamp(a, -128, 127)); }
NORMFUSE_INLINE void StoreAs(uint8_t* p, I a) { StoreLow(p, Clamp(a, 0, 255)); }
NORMFUSE_INLINE void StoreAs(int8_t* p, V a) { StoreLow(p, RoundClamped(a, -128.0f, 127.0f)); }
NORMFUSE_INLINE void StoreAs(uint8_t* p, V a) { StoreLow(p, RoundClamped(a, 0.0f, 255.0f)); }
NORMFUSE_INLINE void StoreAs(int16_t* p, V a) { StoreLow(p, RoundClamped(a, -32768.0f, 32767.0f)); }
NORMFUSE_INLINE void StoreAs(uint16_t* p, V a) { StoreLow(p, RoundClamped(a, 0.0f, 65535.0f)); }

#include "cpu/simd/partial-inl.h"

NORMFUSE_INLINE V LoadPartial(const float* p, size_t n) { return LoadAsPartial(p, n); }
NORMFUSE_INLINE void StorePartial(float* p, V a, size_t n) { StoreAsPartial(p, a, n); }

}  // namespace normfuse::NORMFUSE_ISA
