// Rows in a pipeline: see pipeline-inl.h. For rows that pass through memory, where reading and writing take longer than
// arithmetic; in the level-1 cache rows side by side are faster (both_passes-inl.h). Included once per instruction set.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "cpu/kernels/pipeline-inl.h"

namespace normfuse::NORMFUSE_ISA {
namespace {

// A scale for each element, and a bias for each or for all.
template <bool kBias>
struct ElementsAffine {
  NORMFUSE_INLINE ElementsAffine(const ApplyArgs& a, const Normalizer& n)
      : row(n), scale(a.scale.data), bias(a.bias.data), one_bias(Set(*a.bias.data)) {}
  NORMFUSE_INLINE V operator()(V x, size_t i) const {
    return row(x, Load(scale + i), kBias ? Load(bias + i) : one_bias);
  }
  NORMFUSE_INLINE V Partial(V x, size_t i, size_t n) const {
    return row(x, LoadPartial(scale + i, n), kBias ? LoadPartial(bias + i, n) : one_bias);
  }
  static NORMFUSE_INLINE bool Fits(const ApplyArgs&, const Normalizer&) { return true; }
  VectorAffine row;
  const float* scale;
  const float* bias;
  V one_bias;
};

// A row is normalised and stored while the second one behind it is read and summed: the normalizer of the row in
// between, which takes long, is made meanwhile. The first pass reads `First`, which may be a sum that it stores, the
// second one its operands.
template <class First, class Input, class Out, class Act, class Affine, bool kStream>
class RowPipeline {
 public:
  NORMFUSE_INLINE RowPipeline(const RowSumsArgs& sums, const ApplyArgs& apply)
      : sums_(sums), apply_(apply), act_(apply.params) {}

  int64_t Run(int64_t rows) {
    Normalizer now;
    cpu::Sums sums = Sum(0);
    if (!Finish(sums, &now)) return 0;
    if (rows > 1) sums = Sum(1);
    float shift = rows > 2 ? ShiftOf(2) : 0.0f;
    for (int64_t row = 0;; ++row) {
      Normalizer next;
      const bool good = row + 1 < rows && Finish(sums, &next);
      if (row + 2 >= rows) {
        Apply(row, now);
      } else {
        sums = {static_cast<double>(shift), 0, 0};
        if (row + 3 < rows) shift = ShiftOf(row + 3);
        Step(row, now, &sums);
      }
      if (!good) return row + 1;
      now = next;
    }
  }

 private:
  NORMFUSE_INLINE Input InputAt(int64_t row) const { return InputOf<Input>(sums_, row); }

  NORMFUSE_INLINE cpu::Sums Sum(int64_t row) const {
    const First x[1] = {InputOf<First>(sums_, row)};
    const Floats shifts = Floats{} + ShiftOf(row);
    FourSums sums;
    SumsOfRows<false>(x, sums_.n, shifts, 0, &sums);
    return {sums.shift[0], sums.first[0], sums.second[0]};
  }
  NORMFUSE_INLINE float ShiftOf(int64_t row) const {
    if (!sums_.find_shift) return sums_.shift;
    const Input x[1] = {InputAt(row)};
    Floats shift;
    FindShiftsOfLong(x, &shift);
    return shift[0];
  }
  NORMFUSE_INLINE bool Finish(const cpu::Sums& sums, Normalizer* normalizer) const {
    const FourSums four{Doubles{} + sums.shift, Doubles{} + sums.first, Doubles{} + sums.second};
    return MakeNormalizers<1, false>(*sums_.usual, four, Doubles{}, normalizer) && Affine::Fits(apply_, *normalizer);
  }
  NORMFUSE_INLINE Out* ResultAt(int64_t row) const { return static_cast<Out*>(apply_.y) + apply_.y_stride * row; }
  NORMFUSE_INLINE void Apply(int64_t row, const Normalizer& normalizer) const {
    ApplyArgs args = apply_;
    args.x = static_cast<const typename Input::Element*>(sums_.x) + sums_.x_stride * row;
    args.x2 = static_cast<const typename Input::Element*>(sums_.x2) + sums_.x2_stride * row;
    args.y = ResultAt(row);
    args.normalizers = &normalizer;
    args.rows = 1;
    ApplyTo<Input, Out, Act, kStream>(args);
  }
  NORMFUSE_INLINE void Step(int64_t row, const Normalizer& normalizer, cpu::Sums* sums) const {
    const StepSecond<Input, Out, Act, Affine, kStream> second{act_, Affine(apply_, normalizer), InputAt(row),
                                                              ResultAt(row)};
    StepRun<kStream>(InputOf<First>(sums_, row + 2), second, static_cast<float>(sums->shift), sums_.n, sums);
  }

  const RowSumsArgs& sums_;
  const ApplyArgs& apply_;
  Act act_;
};

template <class First, class Input, class Out, class Act, bool kStream>
NORMFUSE_INLINE int64_t RunRowPipeline(const RowSumsArgs& sums, const ApplyArgs& apply, int64_t rows) {
  if (apply.scale.step != 0 && apply.bias.step != 0) {
    return RowPipeline<First, Input, Out, Act, ElementsAffine<true>, kStream>(sums, apply).Run(rows);
  }
  if constexpr (kIsIdentity<Act>) {
    if (apply.scale.step != 0) {
      return RowPipeline<First, Input, Out, Act, ElementsAffine<false>, kStream>(sums, apply).Run(rows);
    }
    if (apply.bias.step == 0) return RowPipeline<First, Input, Out, Act, RunAffine, kStream>(sums, apply).Run(rows);
  }
  return 0;
}

// Rows that share scale and bias, stored non-temporally or, of 16 bits, either way.
template <class Input, class Out, class Act>
int64_t OverlappingPasses(const RowSumsArgs& sums, const ApplyArgs& apply, int64_t rows) {
  constexpr bool kIsSum = !std::is_same_v<Input, Single<typename Input::Element>>;
  const bool shared = apply.scale_stride == 0 && apply.bias_stride == 0;
  if (!shared || sums.n < kShiftElements || rows == 0) return 0;
  if constexpr (kIsSum) {
    if (sums.sum != nullptr) return RunRowPipeline<Storing<Input, true>, Input, Out, Act, true>(sums, apply, rows);
  }
  if constexpr (sizeof(Out) < sizeof(float)) {
    if (!apply.stream) return RunRowPipeline<Input, Input, Out, Act, false>(sums, apply, rows);
  }
  return RunRowPipeline<Input, Input, Out, Act, true>(sums, apply, rows);
}

}  // namespace
}  // namespace normfuse::NORMFUSE_ISA
