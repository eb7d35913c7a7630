// Both passes of a normalisation along rows, without leaving the kernel between them. Included once per instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/kernels/row_sums-inl.h"
#include "cpu/kernels/second_pass-inl.h"

namespace normfuse::NORMFUSE_ISA {
namespace {

// Rows side by side. The second pass is a function of its own: inlined, it takes registers that the sums need.
template <class Input, class Out, class Act>
class WholeRows {
 public:
  NORMFUSE_INLINE WholeRows(const cpu::RowSumsArgs& sums, const ApplyArgs& apply) : sums_(sums), apply_(apply) {
    apply_.rows = kRows;
    apply_.normalizers = normalizers_;
    shifts_ = Floats{sums.shift, sums.shift, sums.shift, sums.shift};
  }

  int64_t Run(int64_t rows) {
    int64_t done = 0;
    if (rows >= kRows) Begin();
    for (; done + kRows <= rows; done += kRows) {
      const FourSums sums = SumAll();
      // The next shifts do not wait for the normalizers, which are made by one operation after the other.
      if (done + 2 * kRows <= rows) Move(&sums_);
      Begin();
      if (!MakeNormalizers<kRows, false>(*sums_.usual, sums, Doubles{}, normalizers_)) break;
      ApplyTo<Input, Out, Act, false>(apply_);
      Move(&apply_);
      apply_.y = static_cast<Out*>(apply_.y) + apply_.y_stride * kRows;
    }
    return done;
  }

 private:
  // Normalizers are made of four rows at once, also where two are summed side by side: the second pass waits for them.
  static constexpr int kRows = kSumRows == 2 ? 4 : kSumRows;

  template <class Args>
  static NORMFUSE_INLINE void Move(Args* args) {
    args->x = RowOf<typename Input::Element>(args->x, args->x_stride, kRows);
    args->x2 = RowOf<typename Input::Element>(args->x2, args->x2_stride, kRows);
  }
  // The rows at sums_.x, and their shifts.
  NORMFUSE_INLINE void Begin() {
    NORMFUSE_UNROLL
    for (int k = 0; k < kRows; ++k) x_[k] = InputOf<Input>(sums_, k);
    if (sums_.find_shift) FindShiftsOfLong(x_, &shifts_);
  }
  NORMFUSE_INLINE FourSums SumAll() const {
    FourSums sums;
    if constexpr (kRows == kSumRows) {
      SumsOfRows<false>(x_, sums_.n, shifts_, 0, &sums);
    } else {
      LaneSums<2> lanes[2];
      for (int k = 0; k < 2; ++k) {
        const Input x[2] = {x_[2 * k], x_[2 * k + 1]};
        const Floats shifts = {shifts_[2 * k], shifts_[2 * k + 1]};
        SumsOfRows<false>(x, sums_.n, shifts, 0, &lanes[k]);
      }
      Widen(shifts_, &sums.shift);
      sums.first = __builtin_shufflevector(lanes[0].parts[0], lanes[1].parts[0], 0, 1, 4, 5);
      sums.second = __builtin_shufflevector(lanes[0].parts[0], lanes[1].parts[0], 2, 3, 6, 7);
    }
    return sums;
  }

  cpu::RowSumsArgs sums_;
  ApplyArgs apply_;
  Normalizer normalizers_[kRows];
  Input x_[kRows];
  Floats shifts_;
};

// Rows that share scale and bias.
template <class Input, class Out, class Act>
int64_t BothPasses(const cpu::RowSumsArgs& sums, const ApplyArgs& apply, int64_t rows) {
  const bool shared = apply.scale_stride == 0 && apply.bias_stride == 0;
  if (!shared || sums.n < kShiftElements) return 0;
  return WholeRows<Input, Out, Act>(sums, apply).Run(rows);
}

}  // namespace
}  // namespace normfuse::NORMFUSE_ISA
