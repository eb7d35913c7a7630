// The vector layer in portable C++ with the vector extensions of GCC and clang: 4 lanes, any architecture (SSE2 on
// x86-64). See simd.h for the meaning of each name.
#pragma once

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "cpu/kernels/simd/types.h"

namespace normfuse::NORMFUSE_ISA {

constexpr size_t kLanes = 4;
constexpr bool kHasFma = false;
constexpr bool kHasTables = false;
constexpr bool kHasScale = false;
constexpr bool kHasLookup8 = false;
constexpr bool kStreams = false;  // non-temporal stores gain nothing here
constexpr bool kStoresFour = false;

#include "cpu/kernels/simd/lanes-inl.h"

// Float arithmetic.
NORMFUSE_INLINE V Fma(V a, V b, V c) { return a * b + c; }
NORMFUSE_INLINE V NegFma(V a, V b, V c) { return c - a * b; }
#if defined(__SSE2__)
NORMFUSE_INLINE V Min(V a, V b) { return _mm_min_ps(a, b); }
NORMFUSE_INLINE V Max(V a, V b) { return _mm_max_ps(a, b); }
#else
NORMFUSE_INLINE V Min(V a, V b) { return Select(Lt(a, b), a, b); }
NORMFUSE_INLINE V Max(V a, V b) { return Select(Gt(a, b), a, b); }
#endif
NORMFUSE_INLINE V RoundEven(V a) {
  // From 2^23 on every float is an integer; below, adding 2^23 leaves the rounded integer in the low bits.
  const V magnitude = Abs(a);
  const V big = Set(8388608.0f);
  return Select(Lt(magnitude, big), CopySign((magnitude + big) - big, a), a);
}
NORMFUSE_INLINE I ToInt(V a) { return (I) __builtin_convertvector(RoundEven(a), M); }
NORMFUSE_INLINE bool Any(M a) { return (a[0] | a[1] | a[2] | a[3]) != 0; }

// Reductions.
NORMFUSE_INLINE float ReduceSum(V a) { return (a[0] + a[2]) + (a[1] + a[3]); }
NORMFUSE_INLINE float ReduceMax(V a) {
  const float low = a[0] > a[2] ? a[0] : a[2];
  const float high = a[1] > a[3] ? a[1] : a[3];
  return low > high ? low : high;
}
NORMFUSE_INLINE Floats SumsOfEach(V a, V b, V c, V d) {
  return Floats{ReduceSum(a), ReduceSum(b), ReduceSum(c), ReduceSum(d)};
}

// Loads.
template <class T>
NORMFUSE_INLINE I LoadAs(const T* p) {
  return (I)M{p[0], p[1], p[2], p[3]};
}
// float16 by integer arithmetic. The 15 magnitude bits moved to float32's place are off by the difference of the biases,
// 2^112, which multiplying by repairs exactly, denormals included; infinity and NaN (all exponent bits set) get the exponent
// bits that are missing.
NORMFUSE_INLINE V LoadAs(const Half* p) {
  const I bits = LoadAs(reinterpret_cast<const uint16_t*>(p));
  const I magnitude = bits & SetI(0x7FFF);
  const I scaled = (I)((V)(magnitude << 13) * Set(0x1p112f));
  // A NaN comes out quiet, as the processors' own conversions give it.
  const I special = magnitude << 13 | SetI(0x7F800000);
  const I not_finite = SelectI(GtI(magnitude, SetI(0x7C00)), special | SetI(0x00400000), special);
  return (V)(SelectI(GtI(magnitude, SetI(0x7BFF)), not_finite, scaled) | (bits & SetI(0x8000)) << 16);
}

// Stores the low bits of each lane.
template <typename T>
NORMFUSE_INLINE void StoreLow(T* p, I a) {
  for (size_t i = 0; i < kLanes; ++i) p[i] = static_cast<T>(a[i]);
}
NORMFUSE_INLINE I Clamp(I a, int32_t low, int32_t high) {
  const I raised = SelectI(GtI(a, SetI(low)), a, SetI(low));
  return SelectI(GtI(raised, SetI(high)), SetI(high), raised);
}
NORMFUSE_INLINE void StoreAs(int8_t* p, I a) { StoreLow(p, Clamp(a, -128, 127)); }
NORMFUSE_INLINE void StoreAs(uint8_t* p, I a) { StoreLow(p, Clamp(a, 0, 255)); }
NORMFUSE_INLINE void StoreAs(int16_t* p, I a) { StoreLow(p, a); }
NORMFUSE_INLINE void StoreAs(uint16_t* p, I a) { StoreLow(p, a); }
// Round to nearest even. Normal results: round by adding to the bits. Denormal ones: adding 0.5 aligns the last kept bit with
// float32's last, so that the addition itself rounds.
NORMFUSE_INLINE void StoreAs(Half* p, V a) {
  const I bits = (I)a;
  const I magnitude = bits & SetI(INT32_MAX);
  const I odd = magnitude >> 13 & SetI(1);
  const I normal = (magnitude + SetI(0xFFF) + odd - SetI(112 << 23)) >> 13;
  const I denormal = (I)(Abs(a) + Set(0.5f)) - (I)Set(0.5f);
  const I quiet = (magnitude >> 13 & SetI(0x3FF)) | SetI(0x7E00);
  I result = SelectI(GtI(SetI(113 << 23), magnitude), denormal, normal);
  result = SelectI(GtI(magnitude, SetI(0x477FEFFF)), SetI(0x7C00), result);  // from 65520 on: infinity
  result = SelectI(GtI(magnitude, SetI(0x7F800000)), quiet, result);
  StoreLow(reinterpret_cast<uint16_t*>(p), result | (bits >> 16 & SetI(0x8000)));
}

}  // namespace normfuse::NORMFUSE_ISA
