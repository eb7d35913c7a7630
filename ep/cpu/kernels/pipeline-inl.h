// Pipelines: a run is normalised and written while another one is read and summed, so that reading, arithmetic and
// writing overlap. Included once per instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/kernels/row_sums-inl.h"
#include "cpu/kernels/second_pass-inl.h"

namespace normfuse::NORMFUSE_ISA {
namespace {

using cpu::RowSumsArgs;

// Elements between what is summed and what is fetched meanwhile.
constexpr size_t kFetchAhead = 512;

// The sums of a run, by additions alone (arithmetic of the other run has Fma enough), in the order of row_sums-inl.h. They
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
template <class Next, class Second>
struct StepOperands {
  NORMFUSE_INLINE StepOperands(const Next& of_next, const Second& of_second, size_t i)
      : x{of_second.x.At(i), of_second.x.At(i + kLanes)}, next{of_next.At(i), of_next.At(i + kLanes)} {}
  V x[2];
  V next[2];
};

// The second pass over a run: what is read, what is done with it, and where it is stored.
template <class Input, class Out, class Act, class Affine, bool kStreamed>
struct StepSecond {
  static constexpr bool kStream = kStreamed;
  static constexpr bool kCheap = kIsCheap<Act>;
  static constexpr bool kInTurns = kAtOnce<Single<float>, float, Act> == 1;
  NORMFUSE_INLINE V operator()(V v, size_t i) const { return act(affine(v, i)); }
  NORMFUSE_INLINE void StorePartial(size_t i, size_t n) const {
    StoreAsPartial(y + i, act(affine.Partial(x.PartialAt(i, n), i, n)), n);
  }
  Act act;
  Affine affine;
  Input x;
  Out* y;
};

// Sums `next` from begin to end, which is one block of row_sums-inl.h, while as much of the other run is normalised. With
// kFetches, what is summed is fetched kFetchAhead elements before.
template <bool kFetches, class Next, class Second>
NORMFUSE_INLINE VectorSums<1, kSets> StepBlock(const Next& next, const Second& second, V shift, size_t begin,
                                               size_t end) {
  using Operands = StepOperands<Next, Second>;
  constexpr bool kStream = Second::kStream;
  constexpr size_t kTwo = 2 * kLanes;
  VectorSums<1, kSets> sums;
  const auto step = [&](const Operands& of, size_t at) {
    V v[2];
    NORMFUSE_UNROLL
    for (int set = 0; set < 2; ++set) {
      const size_t k = at + static_cast<size_t>(set) * kLanes;
      // Once a line.
      constexpr size_t kBytes = kLanes * sizeof(typename Next::Element);
      if (kFetches && static_cast<size_t>(set) * kBytes % 64 == 0) next.Plain().Prefetch(k, kFetchAhead);
      sums.template Add<false>(0, set, of.next[set] - shift);
      v[set] = second(of.x[set], k);
      if constexpr (Second::kInTurns) Put<kStream>(second.y + k, v[set]);
    }
    if constexpr (!Second::kInTurns) {
      Put<kStream>(second.y + at, v[0]);
      Put<kStream>(second.y + at + kLanes, v[1]);
    }
  };
  size_t i = begin;
  // Read before what is in front of it is stored: see StoreGroups. Conversions of 16 bits leave no time for that.
  constexpr bool kReadsAhead = kStream && Second::kCheap && sizeof(*second.y) == sizeof(float);
  if (kReadsAhead && i + kTwo <= end) {
    Operands now(next, second, i);
    for (; i + 2 * kTwo <= end; i += kTwo) {
      const Operands later(next, second, i + kTwo);
      step(now, i);
      now = later;
    }
    step(now, i);
    i += kTwo;
  }
  for (; i + kTwo <= end; i += kTwo) step(Operands(next, second, i), i);
  if (i + kLanes <= end) {
    sums.template Add<false>(0, 0, next.At(i) - shift);
    Put<kStream>(second.y + i, second(second.x.At(i), i));
    i += kLanes;
  }
  if (i < end) {
    const size_t rest = end - i;
    const M inside = Lt(ToFloat(Iota()), Set(static_cast<float>(rest)));
    sums.template Add<false>(0, 1, Select(inside, next.PartialAt(i, rest) - shift, Set(0.0f)));
    second.StorePartial(i, rest);
  }
  return sums;
}

template <bool kFetches, class Next, class Second>
NORMFUSE_INLINE void StepRun(const Next& next, const Second& second, float shift, size_t n, cpu::Sums* sums) {
  StepSums total(sums);
  for (size_t begin = 0; begin < n; begin += kSumBlock) {
    const size_t end = n - begin < kSumBlock ? n : begin + kSumBlock;
    total.Add(StepBlock<kFetches>(next, second, Set(shift), begin, end), end == n || end % kFloatBlock == 0);
  }
}

// One scale and one bias.
struct RunAffine {
  NORMFUSE_INLINE RunAffine(const ApplyArgs& a, const Normalizer& n) : scalar(n, *a.scale.data, *a.bias.data) {}
  static NORMFUSE_INLINE bool Fits(const ApplyArgs& a, const Normalizer& n) {
    return ScalarAffine::Fits(n, *a.scale.data);
  }
  NORMFUSE_INLINE V operator()(V x, size_t) const { return scalar(x); }
  NORMFUSE_INLINE V Partial(V x, size_t, size_t) const { return scalar(x); }
  ScalarAffine scalar;
};

template <class Act, bool kStream>
NORMFUSE_INLINE void StepTo(const ApplyArgs& a, const RowSumsArgs& b) {
  const StepSecond<Single<float>, float, Act, RunAffine, kStream> second{
      Act(a.params), RunAffine(a, a.normalizers[0]), InputOf<Single<float>>(a, 0), static_cast<float*>(a.y)};
  // What memory reads ahead by itself is enough where it is memory that everything waits for.
  StepRun<kStream && !kIsCheap<Act>>(InputOf<Single<float>>(b, 0), second, b.shift, a.n, b.sums);
}

// False, and nothing is done, where the factor leaves the range of float32.
template <class Act>
bool Step(const ApplyArgs& a, const RowSumsArgs& b) {
  if (!RunAffine::Fits(a, a.normalizers[0])) return false;
  if (kStreams && a.stream) {
    StepTo<Act, kStreams>(a, b);
  } else {
    StepTo<Act, false>(a, b);
  }
  return true;
}

}  // namespace
}  // namespace normfuse::NORMFUSE_ISA
