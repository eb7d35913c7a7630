// Steps of the pipeline over long groups: a run is normalised and written while one of the next group is summed, so that
// reading, arithmetic and writing overlap. Included once per instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/row_sums-inl.h"
#include "cpu/second_pass-inl.h"

namespace normfuse::NORMFUSE_ISA {
namespace {

using cpu::RowSumsArgs;

// Elements between what is summed and what is fetched meanwhile.
constexpr size_t kFetchAhead = 512;

// Two pages of 4 KiB, as elements.
constexpr size_t kPageAhead = 2048;

struct Unchanged {
  NORMFUSE_INLINE V operator()(V v) const { return v; }
};

// An activation by itself.
template <class Act>
struct Alone {
  NORMFUSE_INLINE explicit Alone(const ApplyArgs& a) : act(a.params) {}
  NORMFUSE_INLINE V operator()(V v, Unchanged) const { return act(v); }
  Act act;
};

// One scale and one bias.
struct StepScalar {
  template <class Act>
  using Activation = Alone<Act>;
  NORMFUSE_INLINE StepScalar(const ApplyArgs& a, Spread*) : affine(a.normalizers[0], *a.scale.data, *a.bias.data) {}
  NORMFUSE_INLINE V At(V x, size_t) const { return affine(x); }
  NORMFUSE_INLINE V PartialAt(V x, size_t, size_t) const { return affine(x); }
  ScalarAffine affine;
};

// A scale and a bias for each element.
struct StepVector {
  template <class Act>
  using Activation = Activator<float, Act>;
  NORMFUSE_INLINE StepVector(const ApplyArgs& a, Spread* spread)
      : affine(a.normalizers[0]), scale(a.scale, &spread[0]), bias(a.bias, &spread[1]) {}
  NORMFUSE_INLINE V At(V x, size_t i) const { return affine(x, scale.At(i), bias.At(i)); }
  NORMFUSE_INLINE V PartialAt(V x, size_t i, size_t n) const {
    return affine(x, scale.PartialAt(i, n), bias.PartialAt(i, n));
  }
  VectorAffine affine;
  Source scale;
  Source bias;
};

// The sums of a run, by additions alone (arithmetic of the other group has Fma enough), in the order of row_sums-inl.h. They
// stay in memory between blocks.
struct StepSums {
  NORMFUSE_INLINE explicit StepSums(cpu::Sums* sums) : total(sums) {}
  NORMFUSE_INLINE void Add(const VectorSums<1, kSets>& block, bool last_of_float_block) {
    if constexpr (kFloatBlock == kSumBlock) {
      AddLanes(block.OfSets());
    } else {
      blocks.AddRow(0, block.OfSets(), 0);
      if (!last_of_float_block) return;
      AddLanes(blocks);
      blocks = VectorSums<1, 1>();
    }
  }
  NORMFUSE_INLINE void AddLanes(const VectorSums<1, 1>& v) {
    const V first = v.first[0][0], second = v.second[0][0];
    const Floats each = SumsOfEach(first, second, first, second);
    total->first += static_cast<double>(each[0]);
    total->second += static_cast<double>(each[1]);
  }
  cpu::Sums* total;
  VectorSums<1, 1> blocks;
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
  const typename Affine::template Activation<Act> act(a);
  const Affine affine(a, spread);
  const float* x = static_cast<const float*>(a.x);
  const float* next = static_cast<const float*>(b.x);
  float* y = static_cast<float*>(a.y);
  const V shift = Set(b.shift);
  const size_t n = a.n;
  StepSums total(b.sums);
  for (size_t begin = 0; begin < n; begin += kSumBlock) {
    const size_t end = n - begin < kSumBlock ? n : begin + kSumBlock;
    // Non-temporal stores wait where the processor has to look up a page first. A software prefetch makes it do so.
    if constexpr (kStream) __builtin_prefetch(y + begin + kPageAhead);
    VectorSums<1, kSets> sums;
    size_t i = begin;
    const auto step = [&](const StepOperands& of, size_t at) {
      V v[2];
      NORMFUSE_UNROLL
      for (int set = 0; set < 2; ++set) {
        const size_t k = at + static_cast<size_t>(set) * kLanes;
        // What memory reads ahead by itself is enough where it is memory that everything waits for.
        if constexpr (kStream && !kIsCheap<Act>) __builtin_prefetch(next + k + kFetchAhead);
        sums.template Add<false>(0, set, of.next[set] - shift);
        v[set] = act(affine.At(of.x[set], k), Unchanged());
        if constexpr (kInTurns) Put<kStream>(y + k, v[set]);
      }
      if constexpr (!kInTurns) {
        Put<kStream>(y + at, v[0]);
        Put<kStream>(y + at + kLanes, v[1]);
      }
    };
    // Read before what is in front of it is stored: see StoreGroups.
    if (kStream && kIsCheap<Act> && i + 2 * kLanes <= end) {
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
      sums.template Add<false>(0, 0, Load(next + i) - shift);
      Put<kStream>(y + i, act(affine.At(Load(x + i), i), Unchanged()));
      i += kLanes;
    }
    if (i < end) {
      const size_t rest = end - i;
      const M inside = Lt(ToFloat(Iota()), Set(static_cast<float>(rest)));
      sums.template Add<false>(0, 1, Select(inside, LoadPartial(next + i, rest) - shift, Set(0.0f)));
      StoreAsPartial(y + i, act(affine.PartialAt(LoadPartial(x + i, rest), i, rest), Unchanged()), rest);
    }
    total.Add(sums, end == n || end % kFloatBlock == 0);
  }
}

template <class Act, bool kStream>
NORMFUSE_INLINE void StepTo(const ApplyArgs& a, const RowSumsArgs& b) {
  if (a.scale.step == 0 && a.bias.step == 0 && ScalarAffine::Fits(a.normalizers[0], *a.scale.data)) {
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
