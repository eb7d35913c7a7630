// Steps of the pipeline over long groups: a run is normalised and written while one of the next group is summed, so that
// reading, arithmetic and writing overlap. Included once per instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/apply-inl.h"
#include "cpu/row_sums-inl.h"

namespace normfuse::NORMFUSE_ISA {
namespace {

using cpu::RowSumsArgs;

// Two accumulators per sum, of 16 elements per lane at most: see kSumBlock.
constexpr size_t kStepBlock = 16 * 2 * kLanes;

// Elements between what is summed and what is fetched meanwhile.
constexpr size_t kFetchAhead = 512;

// Two pages of 4 KiB, as elements.
constexpr size_t kPageAhead = 2048;

// One scale and one bias.
struct StepScalar {
  NORMFUSE_INLINE StepScalar(const ApplyArgs& a, Spread*) : affine(a.normalizers[0], *a.scale.data, *a.bias.data) {}
  NORMFUSE_INLINE V At(V x, size_t) const { return affine(x); }
  NORMFUSE_INLINE V PartialAt(V x, size_t, size_t) const { return affine(x); }
  ScalarAffine affine;
};

// A scale and a bias for each element.
struct StepVector {
  NORMFUSE_INLINE StepVector(const ApplyArgs& a, Spread* spread)
      : affine(a.normalizers[0]), scale(a.scale, &spread[0]), bias(a.bias, &spread[1]) {}
  NORMFUSE_INLINE V At(V x, size_t i) const { return affine(x, scale.At(i), bias.At(i)); }
  NORMFUSE_INLINE V PartialAt(V x, size_t i, size_t n) const {
    return affine(x, scale.PartialAt(i, n), bias.PartialAt(i, n));
  }
  VectorAffine<true> affine;
  Source scale;
  Source bias;
};

struct StepSums {
  NORMFUSE_INLINE void Add(V off, int set) {
    first[set] = first[set] + off;
    second[set] = Fma(off, off, second[set]);
  }
  NORMFUSE_INLINE void AddTo(cpu::Sums* sums) const {
    sums->first += static_cast<double>(ReduceSum(first[0] + first[1]));
    sums->second += static_cast<double>(ReduceSum(second[0] + second[1]));
  }
  V first[2] = {Set(0.0f), Set(0.0f)};
  V second[2] = {Set(0.0f), Set(0.0f)};
};

// Two vectors of each.
struct StepOperands {
  NORMFUSE_INLINE StepOperands(const float* of_x, const float* of_next)
      : x{Load(of_x), Load(of_x + kLanes)}, next{Load(of_next), Load(of_next + kLanes)} {}
  V x[2];
  V next[2];
};

template <class Act, class Affine, bool kStream>
NORMFUSE_INLINE void StepAs(const ApplyArgs& a, const RowSumsArgs& b) {
  Spread spread[2];
  constexpr bool kInTurns = kAtOnce<Single<float>, float, Act> == 1;
  const Act act(a.params);
  const Affine affine(a, spread);
  const float* x = static_cast<const float*>(a.x);
  const float* next = static_cast<const float*>(b.x);
  float* y = static_cast<float*>(a.y);
  const V shift = Set(b.shift);
  const size_t n = a.n;
  cpu::Sums total{static_cast<double>(b.shift), 0.0, 0.0};
  for (size_t begin = 0; begin < n; begin += kStepBlock) {
    const size_t end = n - begin < kStepBlock ? n : begin + kStepBlock;
    // Stores past the caches wait where the processor has to look up a page first. Reading a line of it makes it do so.
    if constexpr (kStream) __builtin_prefetch(y + begin + kPageAhead);
    StepSums sums;
    size_t i = begin;
    const auto step = [&](const StepOperands& of, size_t at) {
      V v[2];
      NORMFUSE_UNROLL
      for (int set = 0; set < 2; ++set) {
        const size_t k = at + static_cast<size_t>(set) * kLanes;
        // What memory reads ahead by itself is enough where it is memory that everything waits for.
        if constexpr (kStream && !kInTurns) __builtin_prefetch(next + k + kFetchAhead);
        sums.Add(of.next[set] - shift, set);
        v[set] = act(affine.At(of.x[set], k));
        if constexpr (kInTurns) Put<kStream>(y + k, v[set]);
      }
      if constexpr (!kInTurns) {
        Put<kStream>(y + at, v[0]);
        Put<kStream>(y + at + kLanes, v[1]);
      }
    };
    // Read before what is in front of it is stored: see StoreGroups.
    if (kStream && kInTurns && i + 2 * kLanes <= end) {
      StepOperands now(x + i, next + i);
      for (; i + 4 * kLanes <= end; i += 2 * kLanes) {
        const StepOperands later(x + i + 2 * kLanes, next + i + 2 * kLanes);
        step(now, i);
        now = later;
      }
      step(now, i);
      i += 2 * kLanes;
    }
    for (; i + 2 * kLanes <= end; i += 2 * kLanes) step(StepOperands(x + i, next + i), i);
    if (i + kLanes <= end) {
      sums.Add(Load(next + i) - shift, 0);
      Put<kStream>(y + i, act(affine.At(Load(x + i), i)));
      i += kLanes;
    }
    if (i < end) {
      const size_t rest = end - i;
      const M inside = Lt(ToFloat(Iota()), Set(static_cast<float>(rest)));
      sums.Add(Select(inside, LoadPartial(next + i, rest) - shift, Set(0.0f)), 1);
      StoreAsPartial(y + i, act(affine.PartialAt(LoadPartial(x + i, rest), i, rest)), rest);
    }
    sums.AddTo(&total);
  }
  *b.sums = total;
}

template <class Act, bool kStream>
NORMFUSE_INLINE void StepTo(const ApplyArgs& a, const RowSumsArgs& b) {
  if (a.scale.step == 0 && a.bias.step == 0) {
    StepAs<Act, StepScalar, kStream>(a, b);
  } else {
    StepAs<Act, StepVector, kStream>(a, b);
  }
}

template <class Act>
void Step(const ApplyArgs& a, const RowSumsArgs& b) {
  if constexpr (kStreams) {
    if (a.stream) return StepTo<Act, true>(a, b);
  }
  StepTo<Act, false>(a, b);
}

}  // namespace
}  // namespace normfuse::NORMFUSE_ISA
