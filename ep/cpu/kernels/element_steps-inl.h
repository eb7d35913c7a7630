// Quantisation with one scale and zero point, and several steps of a chain at once, in registers: a pass through the
// level-1 cache for each takes as long as its arithmetic. Included once per instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/kernels/activations-inl.h"
#include "cpu/kernels/combinations-inl.h"
#include "cpu/kernels/kernel_list.h"
#include "cpu/kernels/kernels.h"
#include "cpu/kernels/simd/simd.h"

namespace normfuse::NORMFUSE_ISA {
namespace {

// v is clamped first, to what the lowest and the highest integer stand for: these round to themselves, as the types have 16 bits
// at most, and nothing overflows; NaN becomes the lowest value, as Max and Min give their second operand. The quotient is
// that of a division to the last bit: the product with the reciprocal, and what it left over once more. Or, for most scales, it
// is the product with the reciprocal in two parts, which may differ in the last bit, but not next to a tie, where that is seen.
template <bool kByProduct>
struct QuantizationWith {
  NORMFUSE_INLINE explicit QuantizationWith(const cpu::Quantizer& q)
      : scale(Set(q.scale)),
        inverse(Set(q.inverse)),
        rest(Set(q.rest)),
        least(Set(q.least)),
        most(Set(q.most)),
        factor(Set(q.factor)) {}
  NORMFUSE_INLINE V QuotientOf(V inside) const {
    if constexpr (kByProduct) return Fma(inside, inverse, inside * rest);
    const V product = inside * inverse;
    return Fma(NegFma(product, scale, inside), inverse, product);
  }
  NORMFUSE_INLINE V Clamped(V v) const { return Min(Max(v, least), most); }
  NORMFUSE_INLINE V Quotient(V v) const { return QuotientOf(Clamped(v)); }
  // Without the zero point.
  NORMFUSE_INLINE V Rounded(V v) const { return RoundEven(Quotient(v)); }
  NORMFUSE_INLINE V FakeQuantized(V v) const { return FakeQuantizedUnclamped(Clamped(v)); }
  // The zero point would go out again. The sum makes 0 of -0, as a zero point does.
  NORMFUSE_INLINE V FakeQuantizedUnclamped(V v) const { return Fma(RoundEven(QuotientOf(v)), factor, Set(0.0f)); }
  V scale;
  V inverse;
  V rest;
  V least;
  V most;
  V factor;
};
using OneQuantization = QuantizationWith</*kByProduct=*/false>;
using QuantizationByProduct = QuantizationWith</*kByProduct=*/true>;

// Both quotients grow with x, so that they are rounded alike everywhere if they are where the integer changes: among the five
// numbers around each integer and a half times the scale.
bool RoundsByProduct(const cpu::Quantizer& quantizer, float low, float high) {
  const OneQuantization division(quantizer);
  const QuantizationByProduct product(quantizer);
  const V last = Set(high - quantizer.zero - 0.5f);
  for (float first = low - quantizer.zero + 0.5f; first < high - quantizer.zero; first += kLanes) {
    const V tie = Min(Set(first) + ToFloat(Iota()), last);
    const I near = BitCastToInt(tie * division.scale);
    V least = tie;
    V most = tie;
    M differs = Gt(tie, last);
    NORMFUSE_UNROLL
    for (int32_t away = -2; away <= 2; ++away) {
      const V x = BitCastToFloat(near + SetI(away));
      const V by_division = RoundEven(division.QuotientOf(x));
      differs = differs | (M)(by_division != RoundEven(product.QuotientOf(x)));
      least = Min(least, by_division);
      most = Max(most, by_division);
    }
    if (Any(differs | (M)(most - least != Set(1.0f)))) return false;
  }
  return true;
}

// As many vectors as pass through the steps together: a quantisation of one takes 20 cycles, of eight one after the other as
// long; they and its numbers are what 16 registers hold.
constexpr size_t kTogether = 8;
static_assert(cpu::kPattern % (kTogether * kLanes) == 0);

template <size_t kCount>
struct Vectors {
  V v[kCount];
};

template <class T, size_t kCount>
NORMFUSE_INLINE void ForEachDequantized(const cpu::ElementsRead& from, size_t at, auto vector, auto&& use) {
  const T* x = static_cast<const T*>(from.data) + at;
  const V s = Set(from.scale);
  const V z = Set(from.zero);
  NORMFUSE_UNROLL
  for (size_t k = 0; k < kCount; ++k) use(k, (vector.Load(x + k * kLanes) - z) * s);
}

// Calls use(k, elements) for each of kCount vectors, from element i on.
template <size_t kCount>
NORMFUSE_INLINE void ForEachLoaded(const cpu::ElementsRead& from, size_t i, auto vector, auto&& use) {
  const size_t at = i & from.mask;
  switch (from.type) {
    case DataType::kInt8:
      return ForEachDequantized<int8_t, kCount>(from, at, vector, use);
    case DataType::kUint8:
      return ForEachDequantized<uint8_t, kCount>(from, at, vector, use);
    case DataType::kInt16:
      return ForEachDequantized<int16_t, kCount>(from, at, vector, use);
    case DataType::kUint16:
      return ForEachDequantized<uint16_t, kCount>(from, at, vector, use);
    default: {
      const float* x = static_cast<const float*>(from.data) + at;
      NORMFUSE_UNROLL
      for (size_t k = 0; k < kCount; ++k) use(k, vector.Load(x + k * kLanes));
    }
  }
}

template <bool kByProduct, class T, size_t kCount>
NORMFUSE_INLINE void StoreQuantized(T* y, const cpu::Quantizer& quantizer, auto vector, const Vectors<kCount>& d) {
  const QuantizationWith<kByProduct> quantize(quantizer);
  const I zero = SetI(static_cast<int32_t>(quantizer.zero));
  if constexpr (kStoresFour && sizeof(T) == 1 && kCount % 4 == 0) {
    const I zeros = zero << 16 | (zero & SetI(0xffff));
    NORMFUSE_UNROLL
    for (size_t k = 0; k < kCount; k += 4) {
      StoreFour(y + k * kLanes, quantize.Quotient(d.v[k]), quantize.Quotient(d.v[k + 1]), quantize.Quotient(d.v[k + 2]),
                quantize.Quotient(d.v[k + 3]), zeros);
    }
    return;
  }
  NORMFUSE_UNROLL
  for (size_t k = 0; k < kCount; ++k) vector.StoreIntegers(y + k * kLanes, ToInt(quantize.Quotient(d.v[k])) + zero);
}

template <class T, size_t kCount>
NORMFUSE_INLINE void StoreQuantized(void* data, size_t i, const cpu::Quantizer& quantizer, auto vector,
                                    const Vectors<kCount>& d) {
  T* y = static_cast<T*>(data) + i;
  if (quantizer.by_product) return StoreQuantized</*kByProduct=*/true>(y, quantizer, vector, d);
  StoreQuantized</*kByProduct=*/false>(y, quantizer, vector, d);
}

template <size_t kCount>
NORMFUSE_INLINE void StoreElements(const cpu::ElementStepsArgs& args, size_t i, auto vector, const Vectors<kCount>& d) {
  switch (args.y_type) {
    case DataType::kInt8:
      return StoreQuantized<int8_t>(args.y, i, args.quantizer, vector, d);
    case DataType::kUint8:
      return StoreQuantized<uint8_t>(args.y, i, args.quantizer, vector, d);
    case DataType::kInt16:
      return StoreQuantized<int16_t>(args.y, i, args.quantizer, vector, d);
    case DataType::kUint16:
      return StoreQuantized<uint16_t>(args.y, i, args.quantizer, vector, d);
    default: {
      float* y = static_cast<float*>(args.y) + i;
      if constexpr (kStreams) {
        if (args.stream) {
          NORMFUSE_UNROLL
          for (size_t k = 0; k < kCount; ++k) vector.StoreNonTemporal(y + k * kLanes, d.v[k]);
          return;
        }
      }
      NORMFUSE_UNROLL
      for (size_t k = 0; k < kCount; ++k) vector.Store(y + k * kLanes, d.v[k]);
    }
  }
}

template <class Combination, size_t kCount>
NORMFUSE_INLINE void CombineAll(const cpu::ElementStep& step, size_t i, auto vector, Vectors<kCount>* d) {
  if (step.operand.mask != 0) {
    return ForEachLoaded<kCount>(step.operand, i, vector,
                                 [d](size_t k, V operand) { d->v[k] = Combination()(d->v[k], operand); });
  }
  const V operand = Set(*static_cast<const float*>(step.operand.data));
  NORMFUSE_UNROLL
  for (size_t k = 0; k < kCount; ++k) d->v[k] = Combination()(d->v[k], operand);
}

// The quotient to the last bit, as that of OneQuantization (Markstein, Computation of elementary functions on the IBM RISC
// System/6000 processor, 1990): the reciprocal is rounded correctly, and what the product leaves over is exact.
template <size_t kCount>
NORMFUSE_INLINE void DivideByReciprocal(float divisor, Vectors<kCount>* d) {
  const V by = Set(divisor);
  const V inverse = Set(1.0f / divisor);
  NORMFUSE_UNROLL
  for (size_t k = 0; k < kCount; ++k) {
    const V product = d->v[k] * inverse;
    d->v[k] = Fma(NegFma(product, by, d->v[k]), inverse, product);
  }
}

template <size_t kCount>
NORMFUSE_INLINE void ForEach(Vectors<kCount>* d, auto&& of) {
  NORMFUSE_UNROLL
  for (size_t k = 0; k < kCount; ++k) d->v[k] = of(d->v[k]);
}

template <size_t kCount>
NORMFUSE_INLINE void FakeQuantizeAll(const cpu::Quantizer& quantizer, bool unclamped, Vectors<kCount>* d) {
  if (!quantizer.by_product) {
    const OneQuantization division(quantizer);
    return ForEach(d, [&](V v) { return division.FakeQuantized(v); });
  }
  const QuantizationByProduct product(quantizer);
  if (unclamped) return ForEach(d, [&](V v) { return product.FakeQuantizedUnclamped(v); });
  ForEach(d, [&](V v) { return product.FakeQuantized(v); });
}

// A clamp by itself where there is one: with a second copy of all the arithmetic GCC keeps vectors in memory between steps.
template <class Act, size_t kCount>
NORMFUSE_INLINE void ActivateAll(const cpu::ElementStep& step, Vectors<kCount>* d) {
  if constexpr (requires { Act::OfClamped(V{}); }) {
    if (!step.unclamped) ForEach(d, [](V v) { return Act::Clamped(v); });
    ForEach(d, [](V v) { return Act::OfClamped(v); });
  } else {
    const Act act(step.params);
    ForEach(d, [&](V v) { return act(v); });
  }
}

template <size_t kCount>
NORMFUSE_INLINE void RunStep(const cpu::ElementStep& step, size_t i, auto vector, Vectors<kCount>* d) {
  if (step.kind == StepKind::kFakeQuantize) {
    FakeQuantizeAll(*step.quantizer, step.unclamped, d);
    float* const kept = step.kept;
    if (kept == nullptr) return;
    NORMFUSE_UNROLL
    for (size_t k = 0; k < kCount; ++k) vector.Store(kept + i + k * kLanes, d->v[k]);
    return;
  }
  if (step.kind == StepKind::kActivate) {
#define NORMFUSE_ACTIVATION(kernel) \
  if (step.activation == Activation::k##kernel) return ActivateAll<kernel>(step, d);
    NORMFUSE_STEP_ACTIVATIONS(NORMFUSE_ACTIVATION)
#undef NORMFUSE_ACTIVATION
  }
  if (step.by_reciprocal) return DivideByReciprocal(*static_cast<const float*>(step.operand.data), d);
#define NORMFUSE_COMBINATION(name, kernel) \
  if (step.kind == StepKind::k##name) return CombineAll<kernel>(step, i, vector, d);
  NORMFUSE_FOR_EACH_COMBINATION(NORMFUSE_COMBINATION)
#undef NORMFUSE_COMBINATION
}

template <size_t kCount>
NORMFUSE_INLINE void RunStepsAt(const cpu::ElementStepsArgs& args, size_t i, auto vector) {
  Vectors<kCount> d;
  ForEachLoaded<kCount>(args.x, i, vector, [&d](size_t k, V x) { d.v[k] = x; });
  for (int s = 0; s < args.count; ++s) RunStep(args.steps[s], i, vector, &d);
  StoreElements(args, i, vector, d);
}

void ElementSteps(const cpu::ElementStepsArgs& args) {
  size_t i = 0;
  for (; i + kTogether * kLanes <= args.n; i += kTogether * kLanes) RunStepsAt<kTogether>(args, i, WholeVector());
  for (; i + kTogether / 2 * kLanes <= args.n; i += kTogether / 2 * kLanes) {
    RunStepsAt<kTogether / 2>(args, i, WholeVector());
  }
  for (; i + kLanes <= args.n; i += kLanes) RunStepsAt<1>(args, i, WholeVector());
  if (i < args.n) RunStepsAt<1>(args, i, FirstElements{args.n - i});
}

}  // namespace
}  // namespace normfuse::NORMFUSE_ISA
