// Normalizers of rows, made of their sums while these are still in registers. Included once per instruction set.
#pragma once

#include "cpu/kernels/kernels.h"
#include "cpu/kernels/simd/simd.h"

namespace normfuse::NORMFUSE_ISA {
namespace {

// cpu::Sums of up to four rows.
struct FourSums {
  Doubles shift;
  Doubles first;
  Doubles second;
};

// Normalizers of kRows rows, each value of which stands for itself times its row's `scale`. False where one of them needs
// more than that: see cpu/run/statistics.h.
template <int kRows, bool kScaled>
NORMFUSE_INLINE bool MakeNormalizers(const cpu::UsualRequest& request, const FourSums& sums, const Doubles& scale,
                                     cpu::Normalizer* out) {
  // Sums of integers divided by their number: the mean of equal ones is exact.
  const Doubles off = kScaled ? sums.first / request.mean_count : sums.first * request.mean_share;
  const Doubles square = off * off;
  const Doubles variance = (kScaled ? sums.second / request.count : sums.second * request.inv_count) - square;
  const Doubles mean = sums.shift + off;
  Doubles root = (kScaled ? variance * (scale * scale) : variance) + request.epsilon;
  TakeRoots(&root);
  const Floats inv = __builtin_convertvector(kScaled ? 1.0 / root * scale : 1.0 / root, Floats);
  const Floats rounded = __builtin_convertvector(mean, Floats);
  Doubles wide;
  Widen(rounded, &wide);
  const Floats rest = __builtin_convertvector(mean - wide, Floats);
  const auto large = variance >= (request.exact ? Doubles{} : square);
  // Within this range float32 holds the differences and the factor: see cpu/run/statistics.cc. False for NaN as well.
  auto good = large & (variance >= 1e-32) & (variance <= 1e57);
  if constexpr (kScaled) good &= __builtin_convertvector(inv, Doubles) >= 1e-28;
  bool all = true;
  NORMFUSE_UNROLL
  for (int i = 0; i < kRows; ++i) {
    out[i] = {rounded[i], rest[i], inv[i]};
    all &= good[i] != 0;
  }
  return all;
}

}  // namespace
}  // namespace normfuse::NORMFUSE_ISA
