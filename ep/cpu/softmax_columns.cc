#include "cpu/softmax_columns.h"

#include <algorithm>
#include <cmath>

#include "cpu/softmax_statistics.h"

namespace normfuse::cpu {

int64_t SoftmaxColumns::WidthFor(int64_t rows) {
  constexpr int64_t kNarrowest = 64;
  return std::clamp(kKeepLimit / std::max<int64_t>(rows, 1) / 16 * 16, kNarrowest, kWidest);
}

SoftmaxColumns::SoftmaxColumns(const Call& call, Scratch* scratch)
    : call_(call), s_(scratch), columns_(Innermost(call.geometry->kept)) {}

float* SoftmaxColumns::Read(const Offsets& at, int64_t row, Emission emission) {
  float* d = s_->blocks.kept + (kept_ ? row * width_ : 0);
  LoadBlock({call_, at, columns_, width_, &s_->blocks}, emission, d);
  return d;
}

float* SoftmaxColumns::Again(const Offsets& at, int64_t row) {
  return kept_ ? s_->blocks.kept + row * width_ : Read(at, row, Emission::kNo);
}

void SoftmaxColumns::FindBases() {
  std::fill_n(s_->shift, width_, 0.0f);
  std::fill_n(s_->down, width_, kUsualDown);
  bool usual = true;
  for (int64_t i = 0; i < width_; ++i) usual &= IsUsual(s_->most[i]);
  if (usual) return;
  for (int64_t i = 0; i < width_; ++i) {
    const ExponentBase base = BaseFor(s_->most[i]);
    s_->shift[i] = base.shift;
    s_->down[i] = base.down;
  }
}

void SoftmaxColumns::MakeNormalizers() {
  const auto sum_of = [this](int64_t i) { return static_cast<double>(s_->sum[i]) + static_cast<double>(s_->lost[i]); };
  if (call_.spec->normalization.method == Method::kSoftmax) {
    std::fill_n(s_->mean, width_, 0.0f);
    std::fill_n(s_->rest, width_, 0.0f);
    for (int64_t i = 0; i < width_; ++i) s_->inv[i] = ReciprocalOfSum(s_->most[i], sum_of(i));
    return;
  }
  for (int64_t i = 0; i < width_; ++i) {
    const ExponentBase base{s_->shift[i], s_->down[i]};
    const Normalizer n = NormalizerFor(call_.spec->normalization.method, s_->most[i], base, sum_of(i));
    s_->mean[i] = n.mean;
    s_->rest[i] = n.rest;
    s_->inv[i] = n.inv;
  }
}

void SoftmaxColumns::Tile(const Offsets& base, int64_t width) {
  width_ = width;
  const int64_t rows = call_.geometry->group_size;
  kept_ = width * rows <= kKeepLimit;
  const auto n = static_cast<size_t>(width);
  const KernelTable& kernels = *call_.kernels;
  const bool is_log = call_.spec->normalization.method == Method::kLogSoftmax;
  std::fill_n(s_->most, width, kLowest);
  ForEachRow(call_, base, rows,
             [&](const Offsets& at, int64_t row) { kernels.column_max(Read(at, row, call_.emission()), n, s_->most); });
  if (!call_.has_result()) return;
  FindBases();
  std::fill_n(s_->sum, width, 0.0f);
  std::fill_n(s_->lost, width, 0.0f);
  ForEachRow(call_, base, rows, [&](const Offsets& at, int64_t row) {
    float* d = Again(at, row);
    if (is_log) d = std::copy_n(d, width, s_->blocks.wide) - width;
    kernels.column_exp(d, n, s_->shift, s_->down, s_->sum, s_->lost);
  });
  MakeNormalizers();
  ForEachRow(call_, base, rows, [&](const Offsets& at, int64_t row) {
    float* d = Again(at, row);
    if (!kept_ && !is_log) kernels.column_exp(d, n, s_->shift, s_->down, s_->sum, s_->lost);
    kernels.column_normalize(d, n, s_->mean, s_->rest, s_->inv);
    for (int64_t i = 0; call_.spec->normalization.zero_for_nan && i < width; ++i) {
      if (std::isnan(s_->inv[i])) d[i] = 0.0f;
    }
    StoreBlock({call_, at, columns_, width_, &s_->blocks}, Normalizer{}, d, d);
  });
}

}  // namespace normfuse::cpu
