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

template <class Act, bool kStream>
NORMFUSE_INLINE void StepTo(const ApplyArgs& a, const RowSumsArgs& b) {
  constexpr bool kInTurns = kAtOnce<Single<float>, float, Act> == 1;
  const Act act(a.params);
  const ScalarAffine affine(a.normalizers[0], *a.scale.data, *a.bias.data);
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
        v[set] = act(affine(of.x[set]));
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
      Put<kStream>(y + i, act(affine(Load(x + i))));
      i += kLanes;
    }
    if (i < end) {
      const size_t rest = end - i;
      const M inside = Lt(ToFloat(Iota()), Set(static_cast<float>(rest)));
      sums.template Add<false>(0, 1, Select(inside, LoadPartial(next + i, rest) - shift, Set(0.0f)));
      StoreAsPartial(y + i, act(affine(LoadPartial(x + i, rest))), rest);
    }
    total.Add(sums, end == n || end % kFloatBlock == 0);
  }
}

// False, and nothing is done, where the factor leaves the range of float32.
template <class Act>
bool Step(const ApplyArgs& a, const RowSumsArgs& b) {
  if (!ScalarAffine::Fits(a.normalizers[0], *a.scale.data)) return false;
  if (kStreams && a.stream) {
    StepTo<Act, kStreams>(a, b);
  } else {
    StepTo<Act, false>(a, b);
  }
  return true;
}

}  // namespace
}  // namespace normfuse::NORMFUSE_ISA
