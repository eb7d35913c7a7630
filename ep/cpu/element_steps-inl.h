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

// As many vectors as pass through the steps together: enough that what chooses a step is small beside it, few enough that
// they and the numbers of a step stay in registers.
constexpr size_t kTogether = 4;

template <size_t kCount>
struct Vectors {
  V v[kCount];
};

template <class T, size_t kCount>
NORMFUSE_INLINE void LoadDequantized(const void* data, size_t i, V scale, V zero, auto vector, Vectors<kCount>* to) {
  const T* x = static_cast<const T*>(data) + i;
  NORMFUSE_UNROLL
  for (size_t k = 0; k < kCount; ++k) to->v[k] = (vector.Load(x + k * kLanes) - zero) * scale;
}

// Elements from i on, dequantised if they are integers.
template <size_t kCount>
NORMFUSE_INLINE void LoadElements(const void* data, DataType type, float scale, float zero, size_t i, auto vector,
                                  Vectors<kCount>* to) {
  const V s = Set(scale);
  const V z = Set(zero);
  switch (type) {
    case DataType::kInt8:
      return LoadDequantized<int8_t>(data, i, s, z, vector, to);
    case DataType::kUint8:
      return LoadDequantized<uint8_t>(data, i, s, z, vector, to);
    case DataType::kInt16:
      return LoadDequantized<int16_t>(data, i, s, z, vector, to);
    case DataType::kUint16:
      return LoadDequantized<uint16_t>(data, i, s, z, vector, to);
    default: {
      const float* x = static_cast<const float*>(data) + i;
      NORMFUSE_UNROLL
      for (size_t k = 0; k < kCount; ++k) to->v[k] = vector.Load(x + k * kLanes);
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
NORMFUSE_INLINE void CombineAll(Vectors<kCount>* d, const Vectors<kCount>& operand) {
  NORMFUSE_UNROLL
  for (size_t k = 0; k < kCount; ++k) d->v[k] = Combination()(d->v[k], operand.v[k]);
}

// The quotient to the last bit, as that of OneQuantization.
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
  Vectors<kCount> operand;
  if (step.stride == 0) {
    const V one = Set(*static_cast<const float*>(step.operand));
    NORMFUSE_UNROLL
    for (size_t k = 0; k < kCount; ++k) operand.v[k] = one;
  } else {
    LoadElements(step.operand, step.type, step.scale, step.zero, i, vector, &operand);
  }
#define NORMFUSE_COMBINATION(name, kernel) \
  if (step.kind == StepKind::k##name) CombineAll<kernel>(d, operand);
  NORMFUSE_FOR_EACH_COMBINATION(NORMFUSE_COMBINATION)
#undef NORMFUSE_COMBINATION
}

template <size_t kCount>
NORMFUSE_INLINE void RunStepsAt(const cpu::ElementStepsArgs& args, size_t i, auto vector) {
  Vectors<kCount> d;
  LoadElements(args.x, args.x_type, args.x_scale, args.x_zero, i, vector, &d);
  for (int s = 0; s < args.count; ++s) RunStep(args.steps[s], i, vector, &d);
  StoreElements(args, i, vector, d);
}

void ElementSteps(const cpu::ElementStepsArgs& args) {
  size_t i = 0;
  for (; i + kTogether * kLanes <= args.n; i += kTogether * kLanes) RunStepsAt<kTogether>(args, i, WholeVector());
  for (; i + kLanes <= args.n; i += kLanes) RunStepsAt<1>(args, i, WholeVector());
  if (i < args.n) RunStepsAt<1>(args, i, FirstElements{args.n - i});
}

}  // namespace
}  // namespace normfuse::NORMFUSE_ISA
