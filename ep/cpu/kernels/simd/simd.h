// The vector layer: one instruction set per translation unit. Before including this header, define NORMFUSE_ISA as
// avx512, avx2, baseline or neon (and compile with the flags of that set, and with -ffp-contract=off); everything then
// lives in namespace normfuse::NORMFUSE_ISA, force-inlined and free of standard-library code, so that the same kernel
// source can be linked several times into one library.
//
// It offers, made of what lanes-inl.h, the header of the instruction set and this one hold:
//   V, I, M          float32 vector, int32 vector, mask; kLanes elements each, with the operators of the language
//   kHasFma          Fma and NegFma round once; without it they round the product and the sum
//   kHasTables       Lookup and Lookup32 are there, and NegativeMagnitude, AddDown, RestOfHalves, PositivePart: see avx512.h
//   Set, SetI, Iota  constants
//   Load, LoadPartial(p, n), Store, StorePartial(p, v, n)
//   StreamStore(p, v)  V -> float, Half, non-temporal, p aligned to what is stored; where kStreams
//   LoadAs(p), LoadAsPartial(p, n)          float, Half, Bfloat16 -> V; int8, uint8, int16, uint16, int32 -> I (exact);
//                                           uint32 -> I (its bits)
//   LoadAsFloat(p), LoadAsFloatPartial      the same, every type -> V (32-bit integers rounded to nearest even)
//   StoreAs(p, v), StoreAsPartial(p, v, n)  V -> floats and 8- and 16-bit integers, rounded half to even; integers saturate,
//                                           NaN gives the type's minimum, +-inf its ends.  I -> 8-bit integers saturates,
//                                           I -> 16-bit integers is to fit.
//   Partial forms touch exactly n elements, 0 <= n <= kLanes; lanes from n on are loaded as 0.
//   Fma(a, b, c) = a * b + c    NegFma(a, b, c) = c - a * b    ExactFma: always rounded once
//   Min, Max         a < b ? a : b and a > b ? a : b: the second operand where either is NaN
//   Abs, Neg, RoundEven, CopySign(magnitude, sign)
//   Lt Gt Eq IsNan -> M    GtI: of int32    Select(m, a, b) = m ? a : b    Any
//   ReduceSum, ReduceMax, ReduceMin
//   SumsOfEach(a, b, c, d)   the sum of each, as Floats
//   Doubles, Floats  four of each, with the operators of the language; TakeRoots(&doubles), in place; Widen(floats, &doubles)
//   ToInt (rounds half to even, |x| < 2^31), ToFloat, BitCastToInt, BitCastToFloat
//   ScaleByPowerOfTwo(a, n)  a * 2^n, n a vector of integral floats, |n| <= 252; kHasScale: in one instruction
//   Bytes, SetBytes; Entries, SaturatingSubtract and Shuffle on AVX2 and AVX-512
//   Lookup8(table, i)  table[i mod 8] of int32; where kHasLookup8
//   ClampMagnitude     where kHasScale;   StoreFour   where kStoresFour
#pragma once

#include "cpu/kernels/simd/types.h"

#ifndef NORMFUSE_ISA
#error "define NORMFUSE_ISA as avx512, avx2, baseline or neon before including cpu/kernels/simd/simd.h"
#endif

#define NORMFUSE_ISA_NUMBER_avx512 1
#define NORMFUSE_ISA_NUMBER_avx2 2
#define NORMFUSE_ISA_NUMBER_baseline 3
#define NORMFUSE_ISA_NUMBER_neon 4
#define NORMFUSE_CONCATENATE_(a, b) a##b
#define NORMFUSE_CONCATENATE(a, b) NORMFUSE_CONCATENATE_(a, b)
#define NORMFUSE_ISA_NUMBER NORMFUSE_CONCATENATE(NORMFUSE_ISA_NUMBER_, NORMFUSE_ISA)

#if NORMFUSE_ISA_NUMBER == 1
#include "cpu/kernels/simd/avx512.h"
#elif NORMFUSE_ISA_NUMBER == 2
#include "cpu/kernels/simd/avx2.h"
#elif NORMFUSE_ISA_NUMBER == 3
#include "cpu/kernels/simd/baseline.h"
#elif NORMFUSE_ISA_NUMBER == 4
#include "cpu/kernels/simd/neon.h"
#else
#error "NORMFUSE_ISA must be avx512, avx2, baseline or neon"
#endif

namespace normfuse::NORMFUSE_ISA {

NORMFUSE_INLINE V ExactFma(V a, V b, V c) {
  if constexpr (kHasFma) {
    return Fma(a, b, c);
  } else {
    // In float64 the product is exact and the sum's rounding far below float32's.
    typedef double Wide __attribute__((vector_size(8 * kLanes)));
    const Wide product = __builtin_convertvector(a, Wide) * __builtin_convertvector(b, Wide);
    return __builtin_convertvector(product + __builtin_convertvector(c, Wide), V);
  }
}

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

#ifdef __AVX2__
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

// What is stored of a float: rounded half to even, for an integer type clamped to its range, NaN to its minimum.
template <class T>
NORMFUSE_INLINE I Rounded(V a) {
  constexpr float kLow = static_cast<T>(-1) < 0 ? -static_cast<float>(1 << (8 * sizeof(T) - 1)) : 0.0f;
  constexpr float kHigh = kLow + static_cast<float>((1 << 8 * sizeof(T)) - 1);
  return ToInt(Min(Max(a, Set(kLow)), Set(kHigh)));
}
template <>
NORMFUSE_INLINE I Rounded<Bfloat16>(V a) {
  const I bits = BitCastToInt(a);
  const I rounded = bits + SetI(0x7FFF) + (bits >> 16 & SetI(1));
  return SelectI(IsNan(a), bits | SetI(0x00400000), rounded) >> 16;
}

NORMFUSE_INLINE V LoadAs(const float* p) { return Load(p); }
NORMFUSE_INLINE I LoadAs(const int32_t* p) { return LoadBits<I>(p); }
NORMFUSE_INLINE I LoadAs(const uint32_t* p) { return LoadBits<I>(p); }
NORMFUSE_INLINE V LoadAs(const Bfloat16* p) {
  return BitCastToFloat(ShiftLeft<16>(LoadAs(reinterpret_cast<const uint16_t*>(p))));
}
NORMFUSE_INLINE void StoreAs(float* p, V a) { Store(p, a); }
NORMFUSE_INLINE void StoreAs(Bfloat16* p, V a) { StoreAs(reinterpret_cast<uint16_t*>(p), Rounded<Bfloat16>(a)); }
template <class T>
NORMFUSE_INLINE void StoreAs(T* p, V a) {
  StoreAs(p, Rounded<T>(a));
}

#if NORMFUSE_ISA_NUMBER == 1  // the one with masks
NORMFUSE_INLINE V LoadAsPartial(const Bfloat16* p, size_t n) {
  return BitCastToFloat(ShiftLeft<16>(LoadAsPartial(reinterpret_cast<const uint16_t*>(p), n)));
}
NORMFUSE_INLINE void StoreAsPartial(Bfloat16* p, V a, size_t n) {
  StoreAsPartial(reinterpret_cast<uint16_t*>(p), Rounded<Bfloat16>(a), n);
}
template <class T>
NORMFUSE_INLINE void StoreAsPartial(T* p, V a, size_t n) {
  StoreAsPartial(p, Rounded<T>(a), n);
}
#else
#include "cpu/kernels/simd/partial-inl.h"
#endif

NORMFUSE_INLINE V LoadPartial(const float* p, size_t n) { return LoadAsPartial(p, n); }
NORMFUSE_INLINE void StorePartial(float* p, V a, size_t n) { StoreAsPartial(p, a, n); }

// As it was loaded, as float32.
template <class T>
NORMFUSE_INLINE V AsFloat(V a) {
  return a;
}
template <class T>
NORMFUSE_INLINE V AsFloat(I a) {
  return ToFloat(a);
}
template <>
NORMFUSE_INLINE V AsFloat<uint32_t>(I a) {
  return ToFloatUnsigned(a);
}

template <class T>
NORMFUSE_INLINE V LoadAsFloat(const T* p) {
  return AsFloat<T>(LoadAs(p));
}
template <class T>
NORMFUSE_INLINE V LoadAsFloatPartial(const T* p, size_t n) {
  return AsFloat<T>(LoadAsPartial(p, n));
}

struct WholeVector {
  NORMFUSE_INLINE V Load(const auto* p) const { return LoadAsFloat(p); }
  NORMFUSE_INLINE V At(const auto& source, size_t i) const { return source.At(i); }
  NORMFUSE_INLINE void Store(auto* p, V v) const { StoreAs(p, v); }
  NORMFUSE_INLINE void StoreIntegers(auto* p, I v) const { StoreAs(p, v); }
  NORMFUSE_INLINE void StoreNonTemporal(auto* p, V v) const { StreamStore(p, v); }
};
struct FirstElements {
  NORMFUSE_INLINE V Load(const auto* p) const { return LoadAsFloatPartial(p, n); }
  NORMFUSE_INLINE V At(const auto& source, size_t i) const { return source.PartialAt(i, n); }
  NORMFUSE_INLINE void Store(auto* p, V v) const { StoreAsPartial(p, v, n); }
  NORMFUSE_INLINE void StoreIntegers(auto* p, I v) const { StoreAsPartial(p, v, n); }
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
