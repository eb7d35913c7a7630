// The vector layer: one instruction set per translation unit. Before including this header, define NORMFUSE_ISA as
// avx512, avx2, baseline or neon (and compile with the flags of that set, and with -ffp-contract=off); everything then
// lives in namespace normfuse::NORMFUSE_ISA, force-inlined and free of standard-library code, so that the same kernel
// source can be linked several times into one library.
//
// Every header offers the same names:
//   V, I, M          float32 vector, int32 vector, mask; kLanes elements each
//   kHasFma          Fma and NegFma round once; without it they round the product and the sum
//   kHasTables       Lookup and Lookup32 are there, and NegativeMagnitude, AddDown, RestOfHalves, PositivePart: see avx512.h
//   Set, SetI, Iota  constants
//   Load, LoadPartial(p, n), Store, StorePartial(p, v, n)
//   StreamStore(p, v)  V -> float, Half, non-temporal, p aligned to what is stored; where kStreams
//   LoadAs(p), LoadAsPartial(p, n)          float, Half, Bfloat16 -> V; int8, uint8, int16, uint16, int32 -> I (exact);
//                                           uint32 -> I (its bits)
//   LoadAsFloat(p), LoadAsFloatPartial      the same, every type -> V (32-bit integers rounded to nearest even)
//   StoreAs(p, v), StoreAsPartial(p, v, n)  V -> floats and 8- and 16-bit integers, rounded half to even; integers saturate,
//                                           NaN gives the type's minimum, +-inf its ends.  I -> 8-bit integers saturates.
//   Partial forms touch exactly n elements, 0 <= n <= kLanes; lanes from n on are loaded as 0.
//   + - * / on V     Fma(a, b, c) = a * b + c    NegFma(a, b, c) = c - a * b    ExactFma: always rounded once
//   Min, Max         a < b ? a : b and a > b ? a : b: the second operand where either is NaN
//   Abs, Neg, RoundEven, CopySign(magnitude, sign)
//   Lt Gt Eq IsNan -> M    & on M    Select(m, a, b) = m ? a : b    Any
//   ReduceSum, ReduceMax, ReduceMin
//   SumsOfEach(a, b, c, d)   the sum of each, as Floats
//   Doubles, Floats  four of each, with the operators of the language; TakeRoots(&doubles), in place; Widen(floats, &doubles)
//   ToInt (rounds half to even, |x| < 2^31), ToFloat, BitCastToInt, BitCastToFloat
//   + ^ on I, ShiftLeft<n>, GtI
//   ScaleByPowerOfTwo(a, n)  a * 2^n, n a vector of integral floats, |n| <= 252; kHasScale: in one instruction
//   Bytes, with Set, Load, Store, Entries, ^, SaturatingSubtract and Shuffle: see avx2.h; where kHasByteShuffle
//   Lookup8(table, i)  table[i mod 8] of int32; where kHasLookup8
//   ClampMagnitude     where kHasScale;   StoreFour   where kStoresFour
#pragma once

#include "cpu/simd/types.h"

#ifndef NORMFUSE_ISA
#error "define NORMFUSE_ISA as avx512, avx2, baseline or neon before including cpu/simd/simd.h"
#endif

#define NORMFUSE_ISA_NUMBER_avx512 1
#define NORMFUSE_ISA_NUMBER_avx2 2
#define NORMFUSE_ISA_NUMBER_baseline 3
#define NORMFUSE_ISA_NUMBER_neon 4
#define NORMFUSE_CONCATENATE_(a, b) a##b
#define NORMFUSE_CONCATENATE(a, b) NORMFUSE_CONCATENATE_(a, b)
#define NORMFUSE_ISA_NUMBER NORMFUSE_CONCATENATE(NORMFUSE_ISA_NUMBER_, NORMFUSE_ISA)

#if NORMFUSE_ISA_NUMBER == 1
#include "cpu/simd/avx512.h"
#elif NORMFUSE_ISA_NUMBER == 2
#include "cpu/simd/avx2.h"
#elif NORMFUSE_ISA_NUMBER == 3
#include "cpu/simd/baseline.h"
#elif NORMFUSE_ISA_NUMBER == 4
#include "cpu/simd/neon.h"
#else
#error "NORMFUSE_ISA must be avx512, avx2, baseline or neon"
#endif

namespace normfuse::NORMFUSE_ISA {

// In two steps, or 2^n itself would leave the range; only the second can round.
template <class Vector>
  requires(!kHasScale)
NORMFUSE_INLINE Vector ScaleByPowerOfTwo(Vector a, Vector n) {
  const auto exponent = ToInt(n);
  const auto half = ShiftRight<1>(exponent);
  const Vector first = BitCastToFloat(ShiftLeft<23>(half + SetI(127)));
  const Vector second = BitCastToFloat(ShiftLeft<23>(exponent - half + SetI(127)));
  return (a * first) * second;
}

NORMFUSE_INLINE float ReduceMin(V a) { return -ReduceMax(Neg(a)); }

#if NORMFUSE_ISA_NUMBER == 1 || NORMFUSE_ISA_NUMBER == 2  // those with vectors of four doubles
// Compilers take both halves apart for __builtin_convertvector.
NORMFUSE_INLINE void Widen(Floats a, Doubles* out) {
  *out = reinterpret_cast<Doubles>(_mm256_cvtps_pd(reinterpret_cast<__m128>(a)));
}
NORMFUSE_INLINE void TakeRoots(Doubles* a) {
  *a = reinterpret_cast<Doubles>(_mm256_sqrt_pd(reinterpret_cast<__m256d>(*a)));
}
#else
NORMFUSE_INLINE void Widen(Floats a, Doubles* out) { *out = __builtin_convertvector(a, Doubles); }
NORMFUSE_INLINE void TakeRoots(Doubles* a) {
  for (int i = 0; i < 4; ++i) (*a)[i] = __builtin_sqrt((*a)[i]);
}
#endif

NORMFUSE_INLINE V LoadAsFloat(const float* p) { return Load(p); }
NORMFUSE_INLINE V LoadAsFloat(const Half* p) { return LoadAs(p); }
NORMFUSE_INLINE V LoadAsFloat(const Bfloat16* p) { return LoadAs(p); }
NORMFUSE_INLINE V LoadAsFloat(const uint32_t* p) { return ToFloatUnsigned(LoadAs(p)); }
template <typename T>
NORMFUSE_INLINE V LoadAsFloat(const T* p) {
  return ToFloat(LoadAs(p));
}

NORMFUSE_INLINE V LoadAsFloatPartial(const float* p, size_t n) { return LoadPartial(p, n); }
NORMFUSE_INLINE V LoadAsFloatPartial(const Half* p, size_t n) { return LoadAsPartial(p, n); }
NORMFUSE_INLINE V LoadAsFloatPartial(const Bfloat16* p, size_t n) { return LoadAsPartial(p, n); }
NORMFUSE_INLINE V LoadAsFloatPartial(const uint32_t* p, size_t n) { return ToFloatUnsigned(LoadAsPartial(p, n)); }
template <typename T>
NORMFUSE_INLINE V LoadAsFloatPartial(const T* p, size_t n) {
  return ToFloat(LoadAsPartial(p, n));
}

struct WholeVector {
  NORMFUSE_INLINE V Load(const auto* p) const { return LoadAsFloat(p); }
  NORMFUSE_INLINE V At(const auto& source, size_t i) const { return source.At(i); }
  NORMFUSE_INLINE void Store(auto* p, V v) const { StoreAs(p, v); }
  NORMFUSE_INLINE void StoreNonTemporal(auto* p, V v) const { StreamStore(p, v); }
};
struct FirstElements {
  NORMFUSE_INLINE V Load(const auto* p) const { return LoadAsFloatPartial(p, n); }
  NORMFUSE_INLINE V At(const auto& source, size_t i) const { return source.PartialAt(i, n); }
  NORMFUSE_INLINE void Store(auto* p, V v) const { StoreAsPartial(p, v, n); }
  NORMFUSE_INLINE void StoreNonTemporal(auto* p, V v) const { Store(p, v); }
  size_t n;
};

// Calls body(index, vector) for each vector of n elements: `vector` reads and writes as many of them as there are.
template <class Body>
NORMFUSE_INLINE void ForEachVector(size_t n, const Body& body) {
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) body(i, WholeVector());
  if (i < n) body(i, FirstElements{n - i});
}

}  // namespace normfuse::NORMFUSE_ISA
