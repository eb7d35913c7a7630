#include "cpu/row_worker.h"

#include <algorithm>
#include <cmath>

namespace normfuse::cpu {
namespace {

constexpr int64_t kShiftSamples = 64;

// Around which the kernels for 8-bit values sum.
double ExactShift(DataType type) { return type == DataType::kUint8 ? 0.0 : -128.0; }

}  // namespace

void RowWorker::SetGroup(const Offsets& base) {
  if (!call_.raw) return;
  const Param& zero = call_.params[kFormXZero];
  request_.scale = call_.params[kFormXScale].data[base.at[kFormXScale]];
  request_.zero = zero.present() ? zero.data[base.at[kFormXZero]] : 0.0;
}

// Sums of nothing around a good shift.
Sums RowWorker::FirstSums(const Offsets& base) {
  Sums sums;
  if (!request_.use_mean || request_.exact) {
    sums.shift = request_.exact ? ExactShift(call_.x_type) : request_.zero;
    return sums;
  }
  const Dim& inner = Innermost(call_.geometry->reduced_d);
  const int64_t n = std::min(inner.size, kShiftSamples);
  float* d = scratch_->kept;
  LoadBlock(call_, base, inner, n, scratch_, d);
  // Differences from the first element: exact for a constant row, whatever its length.
  float total = 0.0f;
  for (int64_t i = 0; i < n; ++i) total += d[i] - d[0];
  const float shift = d[0] + total / static_cast<float>(n);
  sums.shift = std::isfinite(shift) ? shift : 0.0f;
  return sums;
}

void RowWorker::Accumulate(const Offsets& base, int64_t begin, int64_t end, bool keep, bool write_sum, Sums* sums) {
  const auto shift = static_cast<float>(sums->shift);
  const DimList& dims = call_.geometry->reduced_d;
  const RowSumsFn block_sums = call_.kernels->row_sums(DataType::kFloat32, SumKind::kSingle);
  Odometer odometer(dims, active_);
  Offsets at;
  odometer.Seek(begin, base, &at);
  for (int64_t position = begin; position < end;) {
    int64_t n = std::min(odometer.RunLength(), end - position);
    Sums part;
    RowSumsArgs args{};
    if (call_.row_sums != nullptr) {
      args = RowSumsArgsAt(call_, at, Innermost(dims), n, 1, &part);
      if (!write_sum) args.sum = nullptr;
      args.shift = shift;
      call_.row_sums(args);
    } else {
      n = std::min(n, kBlock);
      float* d = keep ? scratch_->kept + position : scratch_->kept;
      LoadBlock(call_, at, Innermost(dims), n, scratch_, d);
      if (write_sum) StoreSum(call_, at, n, scratch_, d);
      args.x = d;
      args.n = static_cast<size_t>(n);
      args.rows = 1;
      args.shift = shift;
      args.sums = &part;
      block_sums(args);
    }
    sums->first += part.first;
    sums->second += part.second;
    odometer.Advance(n, &at);
    position += n;
  }
}

// Both passes in double, for values whose squares leave the range of float32. Rows that are kept stay as they are.
void RowWorker::AccumulateWide(const Offsets& base, Sums* sums) {
  const DimList& dims = call_.geometry->reduced_d;
  const int64_t size = call_.geometry->group_size;
  double center = request_.zero;
  for (int pass = request_.use_mean ? 0 : 1; pass < 2; ++pass) {
    double first = 0;
    double second = 0;
    Odometer odometer(dims, active_);
    Offsets at;
    odometer.Seek(0, base, &at);
    for (int64_t position = 0; position < size;) {
      const int64_t n = std::min({odometer.RunLength(), size - position, kBlock});
      float* d = scratch_->wide;
      LoadBlock(call_, at, Innermost(dims), n, scratch_, d);
      for (int64_t i = 0; i < n; ++i) {
        const double off = static_cast<double>(d[i]) - center;
        first += off;
        second += off * off;
      }
      odometer.Advance(n, &at);
      position += n;
    }
    *sums = {center, first, second};
    center += first / static_cast<double>(size);
  }
}

Normalizer RowWorker::Dequantizer(const Offsets& at) const {
  const Param& zero = call_.params[kFormXZero];
  return {zero.present() ? zero.data[at.at[kFormXZero]] : 0.0f, 0.0f,
          call_.params[kFormXScale].data[at.at[kFormXScale]]};
}

void RowWorker::Apply(const Offsets& base, int64_t begin, int64_t end, bool kept, const Statistics& s) {
  const DimList& dims = call_.geometry->reduced;
  const Dim& inner = Innermost(dims);
  const Plan& plan = *call_.plan;
  const bool write_sum = call_.sum != nullptr && plan.kind == PlanKind::kElementwise;
  if (call_.y == nullptr && !write_sum) return;
  Normalizer normalizer = s.normalizer;
  Odometer odometer(dims, active_);
  Offsets at;
  odometer.Seek(begin, base, &at);
  for (int64_t position = begin; position < end;) {
    int64_t n = std::min(odometer.RunLength(), end - position);
    if (call_.raw && plan.kind == PlanKind::kElementwise) normalizer = Dequantizer(at);
    if (call_.apply != nullptr) {
      writer_.Apply(call_.apply, call_.apply_type, ApplyArgsAt(call_, at, inner, inner, n, 1, &normalizer));
    } else {
      n = std::min(n, kBlock);
      if (call_.only_dequantizes) {
        LoadBlock(call_, at, inner, n, scratch_, static_cast<float*>(call_.y) + at.at[kFormY]);
        odometer.Advance(n, &at);
        position += n;
        continue;
      }
      float* d = kept ? scratch_->kept + position : scratch_->kept;
      if (!kept) LoadBlock(call_, at, inner, n, scratch_, d);
      if (write_sum) StoreSum(call_, at, n, scratch_, d);
      if (call_.y != nullptr) StoreBlock(call_, at, inner, n, normalizer, scratch_, d);
    }
    odometer.Advance(n, &at);
    position += n;
  }
}

bool RowWorker::Finish(const Offsets& base, bool keep, const Sums& sums, Statistics* s) {
  const Quality quality = Evaluate(request_, sums, s);
  if (quality == Quality::kGood) return true;
  Sums better;
  if (quality == Quality::kShift) {
    better = Recentered(request_, sums);
    Accumulate(base, 0, call_.geometry->group_size, keep, false, &better);
  } else {
    AccumulateWide(base, &better);
  }
  Evaluate(request_, better, s);
  return quality == Quality::kShift;
}

void RowWorker::Group(const Offsets& base) {
  const int64_t size = call_.geometry->group_size;
  const bool keep = call_.apply == nullptr && call_.row_sums == nullptr && size <= kKeepLimit;
  SetGroup(base);
  Sums sums = FirstSums(base);
  Accumulate(base, 0, size, keep, call_.sum != nullptr, &sums);
  Statistics s;
  const bool kept = Finish(base, keep, sums, &s) && keep;
  StoreStatistics(call_, base.at[kFormStat], s);
  Apply(base, 0, size, kept, s);
}

}  // namespace normfuse::cpu
