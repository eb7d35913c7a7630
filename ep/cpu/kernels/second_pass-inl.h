// Normalise, scale, bias, activation, quantise, along rows. Included once per instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/kernels/activations-inl.h"
#include "cpu/kernels/inputs-inl.h"
#include "cpu/kernels/kernel_list.h"

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

// v / scale, rounded as a division rounds it, for values that may be exact: the product with the reciprocal, and what it
// left over once more. v is clamped first, beyond what any 8-bit type holds, so that nothing overflows; NaN becomes the
// lowest value.
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

// The product of an activation's result and another tensor.
template <class Act>
struct Gated {
  NORMFUSE_INLINE explicit Gated(const float* params) : act(params) {}
  NORMFUSE_INLINE V operator()(V x, V gate) const { return act(x) * gate; }
  Act act;
};

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
      : act(a.params), slope({a.slope.data + row * a.slope_stride, a.slope.step, a.slope.repeats}, spread) {}
  NORMFUSE_INLINE V operator()(V v, size_t i) const { return act(v, slope.At(i)); }
  NORMFUSE_INLINE V Partial(V v, size_t i, size_t n) const { return act(v, slope.PartialAt(i, n)); }
  Act act;
  Source slope;
};

template <class Act>
constexpr bool kIsIdentity = false;
template <>
inline constexpr bool kIsIdentity<Identity> = true;

// One instruction or none.
template <class Act>
constexpr bool kIsCheap = kIsIdentity<Act>;
template <>
inline constexpr bool kIsCheap<Relu> = true;

template <class Act>
constexpr bool kFollowsNormalization = false;
#define NORMFUSE_FOLLOWS(kernel) \
  template <>                    \
  inline constexpr bool kFollowsNormalization<kernel> = true;
NORMFUSE_FOLLOWING_ACTIVATIONS(NORMFUSE_FOLLOWS)
#undef NORMFUSE_FOLLOWS

// One scale and one bias for a row: they join the normalisation's own factor and offset. What is only dequantised is rounded
// before a product with another number, as by ONNX's operators: a last bit may decide about an integer.
struct ScalarAffine {
  NORMFUSE_INLINE ScalarAffine(const Normalizer& n, float scale, float bias)
      : mean(Set(n.mean)),
        factor(Set(n.inv * scale)),
        offset(Set(n.rest == 0 ? bias : bias - n.rest * n.inv * scale)) {}
  NORMFUSE_INLINE V operator()(V x) const { return Fma(x - mean, factor, offset); }
  // Not where their product leaves the range of float32: n * scale may well be within it.
  static NORMFUSE_INLINE bool Fits(const Normalizer& n, float scale) {
    const float factor = n.inv * scale < 0 ? -n.inv * scale : n.inv * scale;
    return (factor >= 0x1p-126f && factor <= kLargest) || scale == 1.0f;
  }
  V mean;
  V factor;
  V offset;
};

// What follows a normalisation with a scale or a bias for each element. Its results are not exact, and need no division:
// the reciprocal of y_scale joins what there is to multiply with, or the activation's result.
template <class Out, class Act, bool kStream>
struct Results {
  NORMFUSE_INLINE explicit Results(const ApplyArgs&) {}
  NORMFUSE_INLINE Normalizer Scaled(const Normalizer& n) const { return n; }
  NORMFUSE_INLINE V Bias(V bias) const { return bias; }
  NORMFUSE_INLINE V operator()(V v) const { return v; }
  template <size_t kVectors>
  NORMFUSE_INLINE void Store(Out* y, const V* v) const {
    NORMFUSE_UNROLL
    for (size_t k = 0; k < kVectors; ++k) Put<kStream>(y + k * kLanes, v[k]);
  }
  NORMFUSE_INLINE void StorePartial(Out* y, V v, size_t n) const { StoreAsPartial(y, v, n); }
};

template <class Out, class Act, bool kStream>
  requires(sizeof(Out) == 1)
struct Results<Out, Act, kStream> {
  NORMFUSE_INLINE explicit Results(const ApplyArgs& a)
      : reciprocal(1.0f / a.y_scale),
        inverse(Set(reciprocal)),
        zero(SetI(static_cast<int32_t>(a.y_zero))),
        zeros(SetI(static_cast<int32_t>((static_cast<uint32_t>(static_cast<int32_t>(a.y_zero)) & 0xffff) * 0x10001))) {}
  NORMFUSE_INLINE Normalizer Scaled(const Normalizer& n) const {
    return {n.mean, n.rest, kIsIdentity<Act> ? n.inv * reciprocal : n.inv};
  }
  NORMFUSE_INLINE V Bias(V bias) const { return kIsIdentity<Act> ? bias * inverse : bias; }
  NORMFUSE_INLINE V operator()(V v) const { return kIsIdentity<Act> ? v : v * inverse; }
  template <size_t kVectors>
  NORMFUSE_INLINE void Store(Out* y, const V* v) const {
    if constexpr (kVectors == 4 && kStoresFour) {
      StoreFour(y, v[0], v[1], v[2], v[3], zeros);
    } else {
      NORMFUSE_UNROLL
      for (size_t k = 0; k < kVectors; ++k) StoreAs(y + k * kLanes, Rounded(v[k]));
    }
  }
  NORMFUSE_INLINE void StorePartial(Out* y, V v, size_t n) const { StoreAsPartial(y, Rounded(v), n); }
  NORMFUSE_INLINE I Rounded(V v) const { return ToInt(Min(Max(v, Set(-1024.0f)), Set(1024.0f))) + zero; }
  float reciprocal;
  V inverse;
  I zero;
  I zeros;  // two of 16 bits in each element
};

// A scale and a bias for each element.
struct VectorAffine {
  NORMFUSE_INLINE VectorAffine() = default;
  NORMFUSE_INLINE explicit VectorAffine(const Normalizer& n)
      : mean(Set(n.mean)), rest(Set(RestOf(n))), inv(Set(n.inv)) {}
  NORMFUSE_INLINE V operator()(V x, V scale, V bias) const { return Fma(Fma(x - mean, inv, rest), scale, bias); }
  static NORMFUSE_INLINE float RestOf(const Normalizer& n) { return n.rest == 0 ? cpu::kNoBias : -n.rest * n.inv; }
  V mean;
  V rest;
  V inv;
};

// Vectors of a row that are read before the first of them is written: a compiler cannot move a load ahead of a store that
// might change it, and processors look only so many instructions ahead for work. Where there is little work to find,
// loads and stores in turns are faster, a whole cache line of each.
template <class Input, class Out, class Act>
constexpr size_t kAtOnce = sizeof(Out) == 1 && kStoresFour ? 4
                           : kIsCheap<Act>                 ? (kLanes < 16 ? 2 : 1)
                           : kLanes < 16                   ? 1
                                                           : 2;

// Non-temporal stores wait where the processor has to look up a page first. A software prefetch of what is stored two pages
// on makes it do so early, once in 4 KiB of float32. Only where arithmetic takes longer than memory, as it does on vectors
// of 8: elsewhere the line that is fetched costs more.
template <class Out, class Act, bool kStream>
NORMFUSE_INLINE void LookUpPage(const Out* y, size_t i) {
  constexpr size_t kPage = 1024;
  if constexpr (kStream && kLanes < 16 && !kIsCheap<Act>) {
    if (i % kPage == 0) __builtin_prefetch(y + i + 2 * kPage);
  }
}

// One scale and one bias per row.
template <class Input, class Out, class Act, bool kStream>
NORMFUSE_INLINE void ApplyScalar(const ApplyArgs& a, int row) {
  constexpr size_t kVectors = kLanes == 16 && kFollowsNormalization<Act> ? 4 : 2;
  Spread spread;
  const Finish<Out> finish(a.y_scale, a.y_zero);
  const Activated<Act> act(a, row, &spread);
  const Input x = InputOf<Input>(a, row);
  Out* y = static_cast<Out*>(a.y) + a.y_stride * row;
  const ScalarAffine affine(a.normalizers[row], a.scale.data[a.scale_stride * row], a.bias.data[a.bias_stride * row]);
  const size_t n = a.n;
  size_t i = 0;
  for (; i + kVectors * kLanes <= n; i += kVectors * kLanes) {
    LookUpPage<Out, Act, kStream>(y, i);
    decltype(finish(V{})) v[kVectors];
    NORMFUSE_UNROLL
    for (size_t k = 0; k < kVectors; ++k) v[k] = finish(act(affine(x.At(i + k * kLanes)), i + k * kLanes));
    NORMFUSE_UNROLL
    for (size_t k = 0; k < kVectors; ++k) Put<kStream>(y + i + k * kLanes, v[k]);
  }
  for (; i + kLanes <= n; i += kLanes) Put<kStream>(y + i, finish(act(affine(x.At(i)), i)));
  const size_t rest = n - i;
  if (rest != 0) StoreAsPartial(y + i, finish(act.Partial(affine(x.PartialAt(i, rest)), i, rest)), rest);
}

// Calls store(vector, index) for vectors of x, but for some of the last, and returns where it ended. Each group of them is
// read before the one in front of it is stored: where Y lies a little behind X, modulo the size of a page, loads seem to
// need what the stores in front of them write (4K aliasing), and non-temporal ones take long.
template <class Input, class Store>
NORMFUSE_INLINE size_t StoreGroups(const Input& x, size_t n, const Store& store) {
  constexpr size_t kVectors = 4;
  constexpr size_t kGroup = kVectors * kLanes;
  if (n < kGroup) return 0;
  V now[kVectors];
  NORMFUSE_UNROLL
  for (size_t k = 0; k < kVectors; ++k) now[k] = x.At(k * kLanes);
  size_t i = 0;
  for (; i + 2 * kGroup <= n; i += kGroup) {
    V next[kVectors];
    NORMFUSE_UNROLL
    for (size_t k = 0; k < kVectors; ++k) next[k] = x.At(i + kGroup + k * kLanes);
    NORMFUSE_UNROLL
    for (size_t k = 0; k < kVectors; ++k) store(now[k], i + k * kLanes);
    NORMFUSE_UNROLL
    for (size_t k = 0; k < kVectors; ++k) now[k] = next[k];
  }
  NORMFUSE_UNROLL
  for (size_t k = 0; k < kVectors; ++k) store(now[k], i + k * kLanes);
  return i + kGroup;
}

// Activation and result where a scale or a bias for each element comes first.
template <class Out, class Act>
struct Activator {
  NORMFUSE_INLINE explicit Activator(const ApplyArgs& a) : act(a.params) {}
  template <class ResultsOf>
  NORMFUSE_INLINE V operator()(V v, const ResultsOf& results) const {
    return results(act(v));
  }
  Act act;
};

// Behind a normalisation the value is known to 4 ulp of 1 at best, and so is its step: a small one need not be more accurate.
// Without tables, steps that are not too fine allow much more.
template <class Out>
  requires(sizeof(Out) == 1)
struct Activator<Out, Gelu> {
  using Form = std::conditional_t<kHasTables, ScaledTimesDistribution<GeluTables>, GeluOfBytes>;
  NORMFUSE_INLINE explicit Activator(const ApplyArgs& a) : gelu(1.0f / a.y_scale) {}
  template <class ResultsOf>
  NORMFUSE_INLINE V operator()(V v, const ResultsOf&) const {
    return gelu(v);
  }
  Form gelu;
};
template <class Out>
  requires(!kHasTables && sizeof(Out) != 1)
struct Activator<Out, Gelu> {
  NORMFUSE_INLINE explicit Activator(const ApplyArgs&) {}
  template <class ResultsOf>
  NORMFUSE_INLINE V operator()(V v, const ResultsOf&) const {
    return TimesNormalDistribution<GeluOfRows>(v);
  }
};

// Whether Activator is less accurate than the activation alone, and where that may be.
template <class Out, class Act>
constexpr bool kOnlyBehindNormalization = false;
template <class Out>
  requires(!kHasTables || sizeof(Out) == 1)
inline constexpr bool kOnlyBehindNormalization<Out, Gelu> = true;

template <class Out, class Act>
NORMFUSE_INLINE bool TakesActivator(const ApplyArgs& a) {
  if constexpr (!kHasTables && sizeof(Out) == 1 && kOnlyBehindNormalization<Out, Act>) {
    if (!(a.y_scale >= GeluOfBytes::kFinestStep)) return false;  // as positive as QuantizesByKernel asks
  }
  return a.behind_normalization;
}

// The same with a slope for each element.
template <class Out, class Act, bool kBehind>
struct ActivationOf : Activator<Out, Act> {
  NORMFUSE_INLINE ActivationOf(const ApplyArgs& a, int, Spread*) : Activator<Out, Act>(a) {}
  template <class ResultsOf>
  NORMFUSE_INLINE V At(V v, size_t, const ResultsOf& results) const {
    return (*this)(v, results);
  }
  template <class ResultsOf>
  NORMFUSE_INLINE V PartialAt(V v, size_t, size_t, const ResultsOf& results) const {
    return (*this)(v, results);
  }
};
template <class Out, class Act, bool kBehind>
  requires(TakesSlope<Act> || (kOnlyBehindNormalization<Out, Act> && !kBehind))
struct ActivationOf<Out, Act, kBehind> : Activated<Act> {
  using Activated<Act>::Activated;
  template <class ResultsOf>
  NORMFUSE_INLINE V At(V v, size_t i, const ResultsOf& results) const {
    return results((*this)(v, i));
  }
  template <class ResultsOf>
  NORMFUSE_INLINE V PartialAt(V v, size_t i, size_t n, const ResultsOf& results) const {
    return results(this->Partial(v, i, n));
  }
};

// Scale or bias, or both, for each element.
template <class Input, class Out, class Act, bool kStream, bool kBehind>
NORMFUSE_INLINE void ApplyVector(const ApplyArgs& a, int row) {
  Spread spread[3];
  const Results<Out, Act, kStream> results(a);
  const ActivationOf<Out, Act, kBehind> act(a, row, &spread[2]);
  const Source scale({a.scale.data + a.scale_stride * row, a.scale.step, a.scale.repeats}, &spread[0]);
  const Source bias({a.bias.data + a.bias_stride * row, a.bias.step, a.bias.repeats}, &spread[1]);
  const Input x = InputOf<Input>(a, row);
  Out* y = static_cast<Out*>(a.y) + a.y_stride * row;
  const VectorAffine affine(results.Scaled(a.normalizers[row]));
  const size_t ahead = a.ahead;
  const size_t n = a.n;
  size_t i = 0;
  const auto store = [&](V value, size_t at) {
    if constexpr (kStream) x.Prefetch(at, ahead);
    LookUpPage<Out, Act, kStream>(y, at);
    const V v = act.At(affine(value, scale.At(at), results.Bias(bias.At(at))), at, results);
    results.template Store<1>(y + at, &v);
  };
  if constexpr (kStream) i = StoreGroups(x, n, store);
  for (; i + kLanes <= n; i += kLanes) store(x.At(i), i);
  const size_t rest = n - i;
  if (rest == 0) return;
  const V v = affine(x.PartialAt(i, rest), scale.PartialAt(i, rest), results.Bias(bias.PartialAt(i, rest)));
  results.StorePartial(y + i, act.PartialAt(v, i, rest, results), rest);
}

// Two rows side by side, which share the loads of a scale for each element and of a bias for each element or for all.
template <class Input, class Out, class Act, bool kStream, bool kBias>
struct TwoRows {
  NORMFUSE_INLINE TwoRows(const ApplyArgs& a, int row)
      : act(a),
        results(a),
        x(InputOf<Input>(a, row)),
        z(InputOf<Input>(a, row + 1)),
        y(static_cast<Out*>(a.y) + a.y_stride * row),
        w(y + a.y_stride),
        first(results.Scaled(a.normalizers[row])),
        second(results.Scaled(a.normalizers[row + 1])),
        scale(a.scale.data),
        bias(a.bias.data),
        one_bias(Set(*a.bias.data)),
        ahead(a.ahead) {}

  // From element i on.
  template <size_t kVectors>
  NORMFUSE_INLINE void Vectors(size_t i) const {
    V v[kVectors];
    V u[kVectors];
    NORMFUSE_UNROLL
    for (size_t k = 0; k < kVectors; ++k) {
      const size_t at = i + k * kLanes;
      if constexpr (kStream) {
        x.Prefetch(at, ahead);
        z.Prefetch(at, ahead);
      }
      LookUpPage<Out, Act, kStream>(y, at);
      LookUpPage<Out, Act, kStream>(w, at);
      const V s = Load(scale + at);
      const V b = results.Bias(kBias ? Load(bias + at) : one_bias);
      v[k] = act(first(x.At(at), s, b), results);
      if constexpr (kVectors == 1) results.template Store<1>(y + at, v);
      u[k] = act(second(z.At(at), s, b), results);
    }
    if constexpr (kVectors != 1) results.template Store<kVectors>(y + i, v);
    results.template Store<kVectors>(w + i, u);
  }

  // The vectors of both rows from element i on, read before others are stored: see StoreGroups.
  template <size_t kVectors>
  struct Operands {
    NORMFUSE_INLINE Operands(const TwoRows& rows, size_t i) {
      NORMFUSE_UNROLL
      for (size_t k = 0; k < kVectors; ++k) {
        x[k] = rows.x.At(i + k * kLanes);
        z[k] = rows.z.At(i + k * kLanes);
      }
    }
    V x[kVectors];
    V z[kVectors];
  };

  template <size_t kVectors>
  NORMFUSE_INLINE void Store(const Operands<kVectors>& of, size_t i) const {
    V v[kVectors];
    V u[kVectors];
    NORMFUSE_UNROLL
    for (size_t k = 0; k < kVectors; ++k) {
      const size_t at = i + k * kLanes;
      x.Prefetch(at, ahead);
      z.Prefetch(at, ahead);
      const V s = Load(scale + at);
      const V b = results.Bias(kBias ? Load(bias + at) : one_bias);
      v[k] = act(first(of.x[k], s, b), results);
      u[k] = act(second(of.z[k], s, b), results);
    }
    results.template Store<kVectors>(y + i, v);
    results.template Store<kVectors>(w + i, u);
  }

  NORMFUSE_INLINE void Partial(size_t i, size_t rest) const {
    const V s = LoadPartial(scale + i, rest);
    const V b = results.Bias(kBias ? LoadPartial(bias + i, rest) : one_bias);
    results.StorePartial(y + i, act(first(x.PartialAt(i, rest), s, b), results), rest);
    results.StorePartial(w + i, act(second(z.PartialAt(i, rest), s, b), results), rest);
  }

  Activator<Out, Act> act;
  Results<Out, Act, kStream> results;
  Input x, z;
  Out* y;
  Out* w;
  VectorAffine first, second;
  const float* scale;
  const float* bias;
  V one_bias;
  size_t ahead;
};

// All but some of the last elements of two rows, by non-temporal stores, and where it ended.
template <class Rows>
NORMFUSE_INLINE size_t StreamTwoRows(const Rows& rows, size_t n) {
  constexpr size_t kVectors = 2;
  constexpr size_t kGroup = kVectors * kLanes;
  using Operands = typename Rows::template Operands<kVectors>;
  if (n < kGroup) return 0;
  Operands now(rows, 0);
  size_t i = 0;
  for (; i + 2 * kGroup <= n; i += kGroup) {
    const Operands next(rows, i + kGroup);
    rows.Store(now, i);
    now = next;
  }
  rows.Store(now, i);
  return i + kGroup;
}

template <class Input, class Out, class Act, bool kStream, bool kBias>
NORMFUSE_INLINE void ApplyTwoRows(const ApplyArgs& a, int row) {
  const TwoRows<Input, Out, Act, kStream, kBias> rows(a, row);
  size_t i = 0;
  if constexpr (kStream && kIsCheap<Act>) {
    i = StreamTwoRows(rows, a.n);
  } else {
    constexpr size_t kVectors = kAtOnce<Input, Out, Act>;
    const size_t steps = a.n / (kVectors * kLanes);
    for (size_t k = 0; k < steps; ++k, i += kVectors * kLanes) rows.template Vectors<kVectors>(i);
  }
  for (; i + kLanes <= a.n; i += kLanes) rows.template Vectors<1>(i);
  if (i < a.n) rows.Partial(i, a.n - i);
}

// Whether one factor and one offset round as often as what they stand for: a scale or a bias behind a dequantisation is another
// operator's.
NORMFUSE_INLINE bool JoinsAffine(const ApplyArgs& a, int row) {
  if (a.behind_normalization || a.normalizers[row].inv == 1.0f) return true;
  return a.scale.data[a.scale_stride * row] == 1.0f && a.bias.data[a.bias_stride * row] == 0.0f;
}

template <class Input, class Out, class Act, bool kStream>
NORMFUSE_INLINE void ApplyOneRow(const ApplyArgs& a, int row) {
  // Of each further kernel there are three instruction sets, and the library is to stay small.
  constexpr bool kStreamRows = kStream && kFollowsNormalization<Act>;
  const bool scalar = a.scale.step == 0 && a.bias.step == 0;
  const float scale = a.scale.data[a.scale_stride * row];
  if (scalar && JoinsAffine(a, row) && ScalarAffine::Fits(a.normalizers[row], scale)) {
    return ApplyScalar<Input, Out, Act, kStream>(a, row);
  }
  if constexpr (kOnlyBehindNormalization<Out, Act>) {
    if (!TakesActivator<Out, Act>(a)) return ApplyVector<Input, Out, Act, kStreamRows, false>(a, row);
  }
  ApplyVector<Input, Out, Act, kStreamRows, true>(a, row);
}

template <class Input, class Out, class Act, bool kStream>
void ApplyTo(const ApplyArgs& a) {
  // Two rows side by side give what each gives alone.
  constexpr bool kPairs = kHasFma && kFollowsNormalization<Act>;
  int row = 0;
  const bool shared = TakesActivator<Out, Act>(a) && a.scale.step != 0 && a.scale_stride == 0 && a.bias_stride == 0;
  // The baseline has too few registers for two rows.
  if constexpr (kPairs) {
    if (shared && a.bias.step != 0) {
      for (; row + 2 <= a.rows; row += 2) ApplyTwoRows<Input, Out, Act, kStream, true>(a, row);
    }
  }
  // RMSNormalization has no bias.
  if constexpr (kPairs && kIsIdentity<Act>) {
    if (shared && a.bias.step == 0) {
      for (; row + 2 <= a.rows; row += 2) ApplyTwoRows<Input, Out, Act, kStream, false>(a, row);
    }
  }
  for (; row < a.rows; ++row) ApplyOneRow<Input, Out, Act, kStream>(a, row);
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
