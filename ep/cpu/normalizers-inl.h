// Normalizers of rows, made of their sums while these are still in registers. Included once per instruction set.
#pragma once

#include "cpu/kernels.h"
#include "cpu/simd/simd.h"

namespace normfuse::NORMFUSE_ISA {
namespace {

// cpu::Sums of up to four rows.
struct FourSums {
  Doubles shift;
  Doubles first;
  Doubles second;
};

// Normalizers of kRows rows, each value of which stands for itself times its row's `scale`. False where one of them needs
// more than that: see cpu/statistics.h.
template <int kRows, bool kScaled>
NORMFUSE_INLINE bool MakeNormalizers(const cpu::UsualRequest& request, const FourSums& sums, const Doubles& scale,
                                     cpu::Normalizer* out) {
  const Doubles off = sums.first * request.mean_share;
  const Doubles square = off * off;
  const Doubles variance = sums.second * request.inv_count - square;
  const Doubles mean = sums.shift + off;
  Doubles root = (kScaled ? variance * (scale * scale) : variance) + request.epsilon;
  TakeRoots(&root);
  const Floats inv = __builtin_convertvector(kScaled ? 1.0 / root * scale : 1.0 / root, Floats);
  const Floats rounded = __builtin_convertvector(mean, Floats);
  Doubles wide;
  Widen(rounded, &wide);
  const Floats rest = __builtin_convertvector(mean - wide, Floats);
  const auto large = variance >= (request.exact ? Doubles{} : square);
  // Differences of infinities and NaN are NaN.
  // NOLINTNEXTLINE(misc-redundant-expression)
  const auto good = large & (variance >= 1e-32) & ((mean - mean) + (variance - variance) == 0.0);
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
