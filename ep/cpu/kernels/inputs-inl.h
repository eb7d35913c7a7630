// What rows are read from, as functors from an index to a vector of float32. Included once per instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/kernels/kernels.h"
#include "cpu/kernels/simd/simd.h"

namespace normfuse::NORMFUSE_ISA {
namespace {

using cpu::Vec;

// Room for one value spread over a vector.
struct Spread {
  alignas(64) float values[kLanes];
};

// A Vec that every vector load may read from: one value is spread over `spread` first. Indices are multiples of kLanes.
class Source {
 public:
  NORMFUSE_INLINE Source(Vec vec, Spread* spread)
      : data_(vec.data), mask_(vec.repeats ? cpu::kPattern - 1 : 0 - static_cast<size_t>(vec.step)) {
    if (vec.step != 0) return;
    Store(spread->values, Set(*vec.data));
    data_ = spread->values;
  }
  NORMFUSE_INLINE V At(size_t i) const { return Load(data_ + (i & mask_)); }
  NORMFUSE_INLINE V PartialAt(size_t i, size_t n) const { return LoadPartial(data_ + (i & mask_), n); }

 private:
  const float* data_;
  size_t mask_;
};

template <class T>
constexpr bool kCanStream = false;
template <>
inline constexpr bool kCanStream<float> = kStreams;
template <>
inline constexpr bool kCanStream<Half> = kStreams;

// A store, or a non-temporal one, which takes an address aligned to what is stored.
template <bool kStream, class Out, class Value>
NORMFUSE_INLINE void Put(Out* y, Value v) {
  if constexpr (kStream && kCanStream<Out>) {
    StreamStore(y, v);
  } else {
    StoreAs(y, v);
  }
}

// One tensor.
template <class T>
struct Single {
  using Element = T;
  NORMFUSE_INLINE Single() = default;
  NORMFUSE_INLINE Single(const void* x, const void*, const float*) : x_(static_cast<const T*>(x)) {}
  NORMFUSE_INLINE V At(size_t i) const { return LoadAsFloat(x_ + i); }
  NORMFUSE_INLINE V PartialAt(size_t i, size_t n) const { return LoadAsFloatPartial(x_ + i, n); }
  // Of what lies `ahead` elements further on.
  NORMFUSE_INLINE void Prefetch(size_t i, size_t ahead) const { __builtin_prefetch(x_ + i + ahead); }
  NORMFUSE_INLINE const Single& Plain() const { return *this; }
  const T* x_;
};

// The sum of two.
template <class T>
struct Pair {
  using Element = T;
  NORMFUSE_INLINE Pair() = default;
  NORMFUSE_INLINE Pair(const void* x, const void* x2, const float*)
      : x_(static_cast<const T*>(x)), x2_(static_cast<const T*>(x2)) {}
  NORMFUSE_INLINE V At(size_t i) const { return LoadAsFloat(x_ + i) + LoadAsFloat(x2_ + i); }
  NORMFUSE_INLINE V PartialAt(size_t i, size_t n) const {
    return LoadAsFloatPartial(x_ + i, n) + LoadAsFloatPartial(x2_ + i, n);
  }
  NORMFUSE_INLINE void Prefetch(size_t i, size_t ahead) const {
    __builtin_prefetch(x_ + i + ahead);
    __builtin_prefetch(x2_ + i + ahead);
  }
  NORMFUSE_INLINE const Pair& Plain() const { return *this; }
  const T* x_;
  const T* x2_;
};

// The sum of two and of a bias along the row.
template <class T>
struct BiasedPair {
  using Element = T;
  NORMFUSE_INLINE BiasedPair() = default;
  NORMFUSE_INLINE BiasedPair(const void* x, const void* x2, const float* bias) : pair_(x, x2, nullptr), bias_(bias) {}
  NORMFUSE_INLINE V At(size_t i) const { return pair_.At(i) + Load(bias_ + i); }
  NORMFUSE_INLINE V PartialAt(size_t i, size_t n) const { return pair_.PartialAt(i, n) + LoadPartial(bias_ + i, n); }
  NORMFUSE_INLINE void Prefetch(size_t i, size_t ahead) const { pair_.Prefetch(i, ahead); }
  NORMFUSE_INLINE const BiasedPair& Plain() const { return *this; }
  Pair<T> pair_;
  const float* bias_;
};

// What is written as it passes: a sum, into the output of its type, or with kKeep values as float32.
template <class Input, bool kStream, bool kKeep = false>
struct Storing {
  using Element = typename Input::Element;
  using Inner = Input;
  using To = std::conditional_t<kKeep, float, Element>;
  NORMFUSE_INLINE Storing() = default;
  NORMFUSE_INLINE Storing(const Input& input, void* kept, void* sum)
      : input_(input), to_(static_cast<To*>(kKeep ? kept : sum)) {}
  NORMFUSE_INLINE V At(size_t i) const {
    const V v = input_.At(i);
    Put<kStream>(to_ + i, v);
    return v;
  }
  NORMFUSE_INLINE V PartialAt(size_t i, size_t n) const {
    const V v = input_.PartialAt(i, n);
    StoreAsPartial(to_ + i, v, n);
    return v;
  }
  NORMFUSE_INLINE auto& Plain() const { return input_.Plain(); }
  Input input_;
  To* to_;
};
// Widening values or adding them once more would cost more than a store.
template <class Input>
using Keeping = Storing<Input, false, true>;

template <class T>
NORMFUSE_INLINE const T* RowOf(const void* base, int64_t stride, int64_t row) {
  return static_cast<const T*>(base) + stride * row;
}

template <class Input, class Args>
NORMFUSE_INLINE Input InputOf(const Args& a, int64_t row) {
  using T = typename Input::Element;
  if constexpr (requires { typename Input::Inner; }) {
    return Input(InputOf<typename Input::Inner>(a, row), a.kept + a.kept_stride * row,
                 static_cast<T*>(a.sum) + a.sum_stride * row);
  } else {
    return Input(RowOf<T>(a.x, a.x_stride, row), RowOf<T>(a.x2, a.x2_stride, row), a.x_bias + a.x_bias_stride * row);
  }
}

}  // namespace
}  // namespace normfuse::NORMFUSE_ISA
