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
  NORMFUSE_INLINE Finish(float, float) {}
  NORMFUSE_INLINE V operator()(V v) const { return v; }
};

// v / scale, rounded as a division rounds it: the product with the reciprocal, and what it left over once more. v is
// cut first, beyond what any 8-bit type holds, so that nothing overflows; NaN becomes the lowest value.
struct Quantization {
  NORMFUSE_INLINE Quantization(float y_scale, float y_zero)
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

// Activations that read a slope for each element take two arguments.
template <class Act>
concept TakesSlope = requires(const Act act, V v) { act(v, v); };

template <class Act>
struct Activated {
  NORMFUSE_INLINE Activated(const ApplyArgs& a, int, Spread*) : act(a.params) {}
  NORMFUSE_INLINE V operator()(V v, size_t) const { return act(v); }
  NORMFUSE_INLINE V Partial(V v, size_t, size_t) const { return act(v); }
  Act act;
};

template <TakesSlope Act>
struct Activated<Act> {
  NORMFUSE_INLINE Activated(const ApplyArgs& a, int row, Spread* spread)
      : act(a.params), slope({a.slope.data + row * a.slope_stride, a.slope.step}, spread) {}
  NORMFUSE_INLINE V operator()(V v, size_t i) const { return act(v, slope.At(i)); }
  NORMFUSE_INLINE V Partial(V v, size_t i, size_t n) const { return act(v, slope.PartialAt(i, n)); }
  Act act;
  Source slope;
};

template <class Act>
constexpr bool kIsIdentity = false;
template <>
inline constexpr bool kIsIdentity<Identity> = true;

// The activations that follow a normalisation most.
template <class Act>
constexpr bool kFollowsNormalization = false;
template <>
inline constexpr bool kFollowsNormalization<Identity> = true;
template <>
inline constexpr bool kFollowsNormalization<Relu> = true;
template <>
inline constexpr bool kFollowsNormalization<Gelu> = true;
template <>
inline constexpr bool kFollowsNormalization<Swish> = true;

// One scale and one bias for a row: they join the normalisation's own factor and offset.
struct ScalarAffine {
  NORMFUSE_INLINE ScalarAffine(const Normalizer& n, float scale, float bias)
      : mean(Set(n.mean)), factor(Set(n.inv * scale)), offset(Set(n.offset * scale + bias)) {}
  NORMFUSE_INLINE V operator()(V x) const { return Fma(x - mean, factor, offset); }
  V mean;
  V factor;
  V offset;
};

// A scale and a bias for each element.
struct VectorAffine {
  NORMFUSE_INLINE VectorAffine() = default;
  NORMFUSE_INLINE explicit VectorAffine(const Normalizer& n)
      : mean(Set(n.mean)), inv(Set(n.inv)), offset(Set(n.offset)) {}
  NORMFUSE_INLINE V operator()(V x, V scale, V bias) const { return Fma(Fma(x - mean, inv, offset), scale, bias); }
  V mean;
  V inv;
  V offset;
};

// One scale and one bias per row.
template <class Input, class Out, class Act, bool kStream>
NORMFUSE_INLINE void ApplyScalar(const ApplyArgs& a, int row) {
  Spread spread;
  const Finish<Out> finish(a.y_scale, a.y_zero);
  const Activated<Act> act(a, row, &spread);
  const Input x = InputOf<Input>(a, row);
  Out* y = static_cast<Out*>(a.y) + a.y_stride * row;
  const ScalarAffine affine(a.normalizers[row], a.scale.data[a.scale_stride * row], a.bias.data[a.bias_stride * row]);
  const size_t n = a.n;
  size_t i = 0;
  for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
    const auto v = finish(act(affine(x.At(i)), i));
    const auto w = finish(act(affine(x.At(i + kLanes)), i + kLanes));
    Put<kStream>(y + i, v);
    Put<kStream>(y + i + kLanes, w);
  }
  if (i + kLanes <= n) {
    Put<kStream>(y + i, finish(act(affine(x.At(i)), i)));
    i += kLanes;
  }
  const size_t rest = n - i;
  if (rest != 0) StoreAsPartial(y + i, finish(act.Partial(affine(x.PartialAt(i, rest)), i, rest)), rest);
}

// Scale or bias, or both, for each element.
template <class Input, class Out, class Act, bool kStream>
NORMFUSE_INLINE void ApplyVector(const ApplyArgs& a, int row) {
  Spread spread[3];
  const Finish<Out> finish(a.y_scale, a.y_zero);
  const Activated<Act> act(a, row, &spread[2]);
  const Source scale({a.scale.data + a.scale_stride * row, a.scale.step}, &spread[0]);
  const Source bias({a.bias.data + a.bias_stride * row, a.bias.step}, &spread[1]);
  const Input x = InputOf<Input>(a, row);
  Out* y = static_cast<Out*>(a.y) + a.y_stride * row;
  const VectorAffine affine(a.normalizers[row]);
  const size_t ahead = a.ahead;
  const size_t n = a.n;
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    if constexpr (kStream) x.Prefetch(i, ahead);
    Put<kStream>(y + i, finish(act(affine(x.At(i), scale.At(i), bias.At(i)), i)));
  }
  const size_t rest = n - i;
  if (rest == 0) return;
  const V v = affine(x.PartialAt(i, rest), scale.PartialAt(i, rest), bias.PartialAt(i, rest));
  StoreAsPartial(y + i, finish(act.Partial(v, i, rest)), rest);
}

// Two rows side by side, which share the loads of a scale for each element and of a bias for each element or for all.
template <class Input, class Out, class Act, bool kStream, bool kBias>
NORMFUSE_INLINE void ApplyTwoRows(const ApplyArgs& a, int row) {
  const Act act(a.params);
  const Finish<Out> finish(a.y_scale, a.y_zero);
  const Input x = InputOf<Input>(a, row);
  const Input z = InputOf<Input>(a, row + 1);
  Out* y = static_cast<Out*>(a.y) + a.y_stride * row;
  Out* w = y + a.y_stride;
  const VectorAffine first(a.normalizers[row]);
  const VectorAffine second(a.normalizers[row + 1]);
  const size_t ahead = a.ahead;
  const float* scale = a.scale.data;
  const float* bias = a.bias.data;
  const V one_bias = Set(*bias);
  const size_t n = a.n;
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    if constexpr (kStream) {
      x.Prefetch(i, ahead);
      z.Prefetch(i, ahead);
    }
    const V s = Load(scale + i);
    const V b = kBias ? Load(bias + i) : one_bias;
    Put<kStream>(y + i, finish(act(first(x.At(i), s, b))));
    Put<kStream>(w + i, finish(act(second(z.At(i), s, b))));
  }
  const size_t rest = n - i;
  if (rest == 0) return;
  const V s = LoadPartial(scale + i, rest);
  const V b = kBias ? LoadPartial(bias + i, rest) : one_bias;
  StoreAsPartial(y + i, finish(act(first(x.PartialAt(i, rest), s, b))), rest);
  StoreAsPartial(w + i, finish(act(second(z.PartialAt(i, rest), s, b))), rest);
}

template <class Input, class Out, class Act, bool kStream>
void ApplyTo(const ApplyArgs& a) {
  if (a.scale.step == 0 && a.bias.step == 0) {
    for (int row = 0; row < a.rows; ++row) ApplyScalar<Input, Out, Act, kStream>(a, row);
    return;
  }
  // Of each further kernel there are three instruction sets, and the library is to stay small.
  constexpr bool kStreamRows = kStream && kFollowsNormalization<Act>;
  int row = 0;
  const bool shared = a.scale.step != 0 && a.scale_stride == 0 && a.bias_stride == 0;
  // The baseline has too few registers for two rows.
  if constexpr (kHasFma && !TakesSlope<Act>) {
    if (shared && a.bias.step != 0) {
      for (; row + 2 <= a.rows; row += 2) ApplyTwoRows<Input, Out, Act, kStreamRows, true>(a, row);
    }
  }
  // RMSNormalization has no bias.
  if constexpr (kHasFma && kIsIdentity<Act>) {
    if (shared && a.bias.step == 0) {
      for (; row + 2 <= a.rows; row += 2) ApplyTwoRows<Input, Out, Act, kStreamRows, false>(a, row);
    }
  }
  for (; row < a.rows; ++row) ApplyVector<Input, Out, Act, kStreamRows>(a, row);
}

template <class Input, class Out, class Act>
void Apply(const ApplyArgs& a) {
  if constexpr (kCanStream<Out>) {
    if (a.stream) return ApplyTo<Input, Out, Act, true>(a);
  }
  ApplyTo<Input, Out, Act, false>(a);
}

}  // namespace
}  // namespace normfuse::NORMFUSE_ISA
