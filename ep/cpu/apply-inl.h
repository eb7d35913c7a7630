// Normalise, scale, bias, activation, quantise, along rows. Included once per instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/activations-inl.h"
#include "cpu/inputs-inl.h"

namespace normfuse::NORMFUSE_ISA {
namespace {

using cpu::ApplyArgs;
using cpu::Normalizer;

// What is stored: the value itself, or for the integer types its quantised form (StoreAs saturates).
template <class Out>
struct Finish {
  Finish(float, float) {}
  NORMFUSE_INLINE V operator()(V v) const { return v; }
};

// v / scale, rounded as a division rounds it: the product with the reciprocal, and what it left over once more. v is
// cut first, beyond what any 8-bit type holds, so that nothing overflows; NaN becomes the lowest value.
struct Quantization {
  Quantization(float y_scale, float y_zero)
      : scale(Set(y_scale)), inverse(Set(1.0f / y_scale)), zero(SetI(static_cast<int32_t>(y_zero))) {
    const float most = 512.0f * (y_scale < 0 ? -y_scale : y_scale);
    high = Set(most < kLargest ? most : kLargest);
    low = Neg(high);
  }
  NORMFUSE_INLINE I operator()(V v) const {
    const V inside = Min(Max(v, low), high);
    if constexpr (kHasFma) {
      const V quotient = inside * inverse;
      return ToInt(Fma(NegFma(quotient, scale, inside), inverse, quotient)) + zero;
    } else {
      return ToInt(inside / scale) + zero;
    }
  }
  V scale;
  V inverse;
  I zero;
  V low;
  V high;
};
template <>
struct Finish<int8_t> : Quantization {
  using Quantization::Quantization;
};
template <>
struct Finish<uint8_t> : Quantization {
  using Quantization::Quantization;
};

// To memory, or where `stream` is set past the caches (float32 only, aligned to 64).
template <class Out, class Value>
NORMFUSE_INLINE void Put(Out* y, Value v, bool stream) {
  if constexpr (sizeof(Out) == sizeof(float)) {
    if (stream) {
      StreamStore(y, v);
      return;
    }
  }
  StoreAs(y, v);
}

// Activations that read a slope for each element take two arguments.
template <class Act>
concept TakesSlope = requires(const Act act, V v) { act(v, v); };

template <class Act>
struct Activated {
  Activated(const ApplyArgs& a, int, Spread*) : act(a.params) {}
  NORMFUSE_INLINE V operator()(V v, size_t) const { return act(v); }
  NORMFUSE_INLINE V Partial(V v, size_t, size_t) const { return act(v); }
  Act act;
};

template <TakesSlope Act>
struct Activated<Act> {
  Activated(const ApplyArgs& a, int row, Spread* spread)
      : act(a.params), slope({a.slope.data + row * a.slope_stride, a.slope.step}, spread) {}
  NORMFUSE_INLINE V operator()(V v, size_t i) const { return act(v, slope.At(i)); }
  NORMFUSE_INLINE V Partial(V v, size_t i, size_t n) const { return act(v, slope.PartialAt(i, n)); }
  Act act;
  Source slope;
};

// One scale and one bias for a row: they join the normalisation's own factor and offset.
struct ScalarAffine {
  ScalarAffine(const Normalizer& n, float scale, float bias)
      : mean(Set(n.mean)), factor(Set(n.inv * scale)), offset(Set(n.offset * scale + bias)) {}
  NORMFUSE_INLINE V operator()(V x) const { return Fma(x - mean, factor, offset); }
  V mean;
  V factor;
  V offset;
};

// A scale and a bias for each element.
struct VectorAffine {
  explicit VectorAffine(const Normalizer& n) : mean(Set(n.mean)), inv(Set(n.inv)), offset(Set(n.offset)) {}
  NORMFUSE_INLINE V operator()(V x, V scale, V bias) const { return Fma(Fma(x - mean, inv, offset), scale, bias); }
  V mean;
  V inv;
  V offset;
};

template <class Input, class Out, class Act>
void ApplyScalar(const ApplyArgs& a) {
  Spread spread[3];
  const Finish<Out> finish(a.y_scale, a.y_zero);
  for (int row = 0; row < a.rows; ++row) {
    const Activated<Act> act(a, row, &spread[2]);
    const Input x = InputOf<Input>(a, row);
    Out* y = static_cast<Out*>(a.y) + a.y_stride * row;
    const ScalarAffine affine(a.normalizers[row], a.scale.data[a.scale_stride * row], a.bias.data[a.bias_stride * row]);
    size_t i = 0;
    for (; i + 2 * kLanes <= a.n; i += 2 * kLanes) {
      const auto v = finish(act(affine(x.At(i)), i));
      const auto w = finish(act(affine(x.At(i + kLanes)), i + kLanes));
      Put(y + i, v, a.stream);
      Put(y + i + kLanes, w, a.stream);
    }
    if (i + kLanes <= a.n) {
      Put(y + i, finish(act(affine(x.At(i)), i)), a.stream);
      i += kLanes;
    }
    const size_t rest = a.n - i;
    if (rest != 0) StoreAsPartial(y + i, finish(act.Partial(affine(x.PartialAt(i, rest)), i, rest)), rest);
  }
}

template <class Input, class Out, class Act>
void ApplyVector(const ApplyArgs& a) {
  Spread spread[3];
  const Finish<Out> finish(a.y_scale, a.y_zero);
  for (int row = 0; row < a.rows; ++row) {
    const Activated<Act> act(a, row, &spread[2]);
    const Source scale({a.scale.data + a.scale_stride * row, a.scale.step}, &spread[0]);
    const Source bias({a.bias.data + a.bias_stride * row, a.bias.step}, &spread[1]);
    const Input x = InputOf<Input>(a, row);
    Out* y = static_cast<Out*>(a.y) + a.y_stride * row;
    const VectorAffine affine(a.normalizers[row]);
    size_t i = 0;
    for (; i + kLanes <= a.n; i += kLanes) StoreAs(y + i, finish(act(affine(x.At(i), scale.At(i), bias.At(i)), i)));
    const size_t rest = a.n - i;
    if (rest == 0) continue;
    const V v = affine(x.PartialAt(i, rest), scale.PartialAt(i, rest), bias.PartialAt(i, rest));
    StoreAsPartial(y + i, finish(act.Partial(v, i, rest)), rest);
  }
}

// An even number of rows, two side by side to share the loads of scale and bias.
template <class Input, class Out, class Act>
void ApplyTwoRows(const ApplyArgs& a) {
  Spread spread[3];
  const Activated<Act> act(a, 0, &spread[2]);
  const Finish<Out> finish(a.y_scale, a.y_zero);
  const Source scale(a.scale, &spread[0]);
  const Source bias(a.bias, &spread[1]);
  const size_t rest = a.n % kLanes;
  for (int row = 0; row < a.rows; row += 2) {
    const Input x = InputOf<Input>(a, row);
    const Input z = InputOf<Input>(a, row + 1);
    Out* y = static_cast<Out*>(a.y) + a.y_stride * row;
    const VectorAffine first(a.normalizers[row]);
    const VectorAffine second(a.normalizers[row + 1]);
    size_t i = 0;
    for (; i + kLanes <= a.n; i += kLanes) {
      const V s = scale.At(i);
      const V b = bias.At(i);
      StoreAs(y + i, finish(act(first(x.At(i), s, b), i)));
      StoreAs(y + a.y_stride + i, finish(act(second(z.At(i), s, b), i)));
    }
    if (rest == 0) continue;
    const V s = scale.PartialAt(i, rest);
    const V b = bias.PartialAt(i, rest);
    StoreAsPartial(y + i, finish(act.Partial(first(x.PartialAt(i, rest), s, b), i, rest)), rest);
    StoreAsPartial(y + a.y_stride + i, finish(act.Partial(second(z.PartialAt(i, rest), s, b), i, rest)), rest);
  }
}

template <class Input, class Out, class Act>
void Apply(const ApplyArgs& a) {
  if (a.scale.step == 0 && a.bias.step == 0) return ApplyScalar<Input, Out, Act>(a);
  const bool shared = a.scale_stride == 0 && a.bias_stride == 0 && a.slope_stride == 0;
  const int pairs = shared ? a.rows & ~1 : 0;
  if (pairs != 0) {
    ApplyArgs even = a;
    even.rows = pairs;
    ApplyTwoRows<Input, Out, Act>(even);
  }
  if (pairs == a.rows) return;
  using T = typename Input::Element;
  ApplyArgs last = a;
  last.x = RowOf<T>(a.x, a.x_stride, pairs);
  last.x2 = RowOf<T>(a.x2, a.x2_stride, pairs);
  last.x_bias = a.x_bias + a.x_bias_stride * pairs;
  last.y = static_cast<Out*>(a.y) + a.y_stride * pairs;
  last.normalizers = a.normalizers + pairs;
  last.rows = a.rows - pairs;
  ApplyVector<Input, Out, Act>(last);
}

}  // namespace
}  // namespace normfuse::NORMFUSE_ISA
