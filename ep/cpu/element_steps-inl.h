// Quantisation with one scale and zero point, and several steps of a chain at once, in registers: a pass through the
// level-1 cache for each takes as long as its arithmetic. Included once per instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/combinations-inl.h"
#include "cpu/kernels.h"
#include "cpu/simd/simd.h"

namespace normfuse::NORMFUSE_ISA {
namespace {

// v is cut first, to what the lowest and the highest integer stand for: these round to themselves, as the types have 16 bits
// at most, and nothing overflows; NaN becomes the lowest value, as Max and Min give their second operand. The quotient is
// that of a division to the last bit: the product with the reciprocal, and what it left over once more.
struct OneQuantization {
  NORMFUSE_INLINE explicit OneQuantization(const cpu::Quantizer& q)
      : scale(Set(q.scale)), inverse(Set(q.inverse)), zero(Set(q.zero)), least(Set(q.least)), most(Set(q.most)) {}
  NORMFUSE_INLINE V Quotient(V v) const {
    const V inside = Min(Max(v, least), most);
    const V product = inside * inverse;
    return Fma(NegFma(product, scale, inside), inverse, product);
  }
  // Without the zero point.
  NORMFUSE_INLINE V Rounded(V v) const { return RoundEven(Quotient(v)); }
  NORMFUSE_INLINE V Quantized(V v) const { return Rounded(v) + zero; }
  // As an integer that the type holds.
  NORMFUSE_INLINE I Integer(V v) const { return ToInt(Quotient(v)) + ToInt(zero); }
  // The zero point would go out again. The sum makes 0 of -0, as a zero point does.
  NORMFUSE_INLINE V FakeQuantized(V v) const { return Fma(Rounded(v), scale, Set(0.0f)); }
  V scale;
  V inverse;
  V zero;
  V least;
  V most;
};

// As many vectors as pass through the steps together: a quantisation of one takes 20 cycles, of eight one after the other as
// long; they and its numbers are what 16 registers hold.
constexpr size_t kTogether = 8;
static_assert(cpu::kPattern % (kTogether * kLanes) == 0);

template <size_t kCount>
struct Vectors {
  V v[kCount];
};

// Calls use(k, elements) for each of kCount vectors from i on, dequantised if they are integers.
template <class T, size_t kCount>
NORMFUSE_INLINE void ForEachDequantized(const void* data, size_t i, float scale, float zero, auto vector, auto&& use) {
  const T* x = static_cast<const T*>(data) + i;
  const V s = Set(scale);
  const V z = Set(zero);
  NORMFUSE_UNROLL
  for (size_t k = 0; k < kCount; ++k) use(k, (vector.Load(x + k * kLanes) - z) * s);
}

template <size_t kCount>
NORMFUSE_INLINE void ForEachLoaded(const void* data, DataType type, float scale, float zero, size_t i, auto vector,
                                   auto&& use) {
  switch (type) {
    case DataType::kInt8:
      return ForEachDequantized<int8_t, kCount>(data, i, scale, zero, vector, use);
    case DataType::kUint8:
      return ForEachDequantized<uint8_t, kCount>(data, i, scale, zero, vector, use);
    case DataType::kInt16:
      return ForEachDequantized<int16_t, kCount>(data, i, scale, zero, vector, use);
    case DataType::kUint16:
      return ForEachDequantized<uint16_t, kCount>(data, i, scale, zero, vector, use);
    default: {
      const float* x = static_cast<const float*>(data) + i;
      NORMFUSE_UNROLL
      for (size_t k = 0; k < kCount; ++k) use(k, vector.Load(x + k * kLanes));
    }
  }
}

template <class T, size_t kCount>
NORMFUSE_INLINE void StoreQuantized(void* data, size_t i, const cpu::Quantizer& quantizer, auto vector,
                                    const Vectors<kCount>& d) {
  T* y = static_cast<T*>(data) + i;
  const OneQuantization quantize(quantizer);
  NORMFUSE_UNROLL
  for (size_t k = 0; k < kCount; ++k) vector.StoreIntegers(y + k * kLanes, quantize.Integer(d.v[k]));
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
  if (step.mask != 0) {
    return ForEachLoaded<kCount>(step.operand, step.type, step.scale, step.zero, i & step.mask, vector,
                                 [d](size_t k, V operand) { d->v[k] = Combination()(d->v[k], operand); });
  }
  const V operand = Set(*static_cast<const float*>(step.operand));
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
NORMFUSE_INLINE void RunStep(const cpu::ElementStep& step, size_t i, auto vector, Vectors<kCount>* d) {
  if (step.kind == StepKind::kFakeQuantize) {
    const OneQuantization quantize(*step.quantizer);
    NORMFUSE_UNROLL
    for (size_t k = 0; k < kCount; ++k) d->v[k] = quantize.FakeQuantized(d->v[k]);
    if (step.kept == nullptr) return;
    NORMFUSE_UNROLL
    for (size_t k = 0; k < kCount; ++k) vector.Store(step.kept + i + k * kLanes, d->v[k]);
    return;
  }
  if (step.by_reciprocal) return DivideByReciprocal(*static_cast<const float*>(step.operand), d);
#define NORMFUSE_COMBINATION(name, kernel) \
  if (step.kind == StepKind::k##name) return CombineAll<kernel>(step, i, vector, d);
  NORMFUSE_FOR_EACH_COMBINATION(NORMFUSE_COMBINATION)
#undef NORMFUSE_COMBINATION
}

template <size_t kCount>
NORMFUSE_INLINE void RunStepsAt(const cpu::ElementStepsArgs& args, size_t i, auto vector) {
  Vectors<kCount> d;
  ForEachLoaded<kCount>(args.x, args.x_type, args.x_scale, args.x_zero, i & args.x_mask, vector,
                        [&d](size_t k, V x) { d.v[k] = x; });
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
