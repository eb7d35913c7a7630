#include "cpu/group_worker.h"

#include <algorithm>
#include <cmath>

namespace normfuse::cpu {
namespace {

// The value that the kernels for 8-bit values subtract before they sum.
double ExactShift(DataType type) { return type == DataType::kUint8 ? 0.0 : -128.0; }

}  // namespace

void GroupWorker::SetGroup(const Offsets& base) {
  if (!call_.path.stored_integers) return;
  const Param& zero = call_.params[kFormXZero];
  request_.scale = call_.params[kFormXScale].data[base.at[kFormXScale]];
  request_.zero = zero.present() ? zero.data[base.at[kFormXZero]] : 0.0;
}

// Empty sums, around a shift near the mean.
Sums GroupWorker::FirstSums(const Offsets& base) {
  Sums sums;
  if (!request_.use_mean || request_.exact) {
    sums.shift = request_.exact ? ExactShift(call_.x.type) : request_.zero;
    return sums;
  }
  const Dim& inner = Innermost(call_.sum_dims());
  float* d = scratch_->kept;
  LoadBlock({call_, base, inner, std::min(inner.size, kShiftElements), scratch_}, Emission::kNo, d);
  sums.shift = call_.kernels->find_shift(d, static_cast<size_t>(inner.size));
  return sums;
}

void GroupWorker::Accumulate(const Offsets& base, int64_t begin, int64_t end, bool keep, Emission emission,
                             Sums* sums) {
  const DimList& dims = call_.sum_dims();
  const RowSumsFn block_sums = call_.kernels->first_pass(DataType::kFloat32, SumKind::kSingle);
  Odometer odometer(dims, active_);
  Offsets at;
  odometer.Seek(begin, base, &at);
  for (int64_t position = begin; position < end;) {
    // In blocks from the beginning of each run on: see row_sums-inl.h.
    const int64_t run = std::min(odometer.RunLength(), end - position);
    if (call_.row_sums != nullptr) {
      RowSumsArgs args = RowSumsArgsAt(call_, at, Innermost(dims), run, 1, sums);
      if (emission == Emission::kNo) args.sum = nullptr;
      args.resume = true;
      args.shift = static_cast<float>(sums->shift);
      call_.row_sums(args);
      odometer.Advance(run, &at);
    }
    for (int64_t done = 0; call_.row_sums == nullptr && done < run;) {
      const int64_t n = std::min(run - done, kBlock);
      float* d = keep ? scratch_->kept + position + done : scratch_->kept;
      LoadBlock({call_, at, Innermost(dims), n, scratch_}, emission, d);
      RowSumsArgs args{};
      args.x = d;
      args.n = static_cast<size_t>(n);
      args.rows = 1;
      args.resume = true;
      args.shift = static_cast<float>(sums->shift);
      args.sums = sums;
      block_sums(args);
      odometer.Advance(n, &at);
      done += n;
    }
    position += run;
  }
}

void GroupWorker::AccumulateGroup(const Offsets& base, bool keep, Emission emission, Sums* sums) {
  const int64_t size = call_.geometry->group_size;
  const int64_t piece = PieceSize(*call_.geometry);
  for (int64_t begin = 0; begin < size; begin += piece) {
    Sums part{sums->shift, 0, 0};
    Accumulate(base, begin, std::min(begin + piece, size), keep, emission, &part);
    sums->first += part.first;
    sums->second += part.second;
  }
}

// Both passes in double, for values whose squares leave the range of float32. Rows that are kept stay as they are.
void GroupWorker::AccumulateWide(const Offsets& base, Sums* sums) {
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
      LoadBlock({call_, at, Innermost(dims), n, scratch_}, Emission::kNo, d);
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

Statistics GroupWorker::Dequantizer(const Offsets& at) const {
  const Param& zero = call_.params[kFormXZero];
  Statistics s;
  s.normalizer = {zero.present() ? zero.data[at.at[kFormXZero]] : 0.0f, 0.0f,
                  call_.params[kFormXScale].data[at.at[kFormXScale]]};
  s.center = s.normalizer.mean;
  s.factor = s.normalizer.inv;
  s.beyond_float = IsBeyondFloat(s.factor);
  return s;
}

void GroupWorker::ApplyInDouble(const Offsets& base, int64_t begin, int64_t end, const Statistics& s) {
  const Dim& inner = Innermost(call_.geometry->reduced);
  if (call_.non_temporal()) call_.kernels->fence();
  Odometer odometer(call_.geometry->reduced, active_);
  Offsets at;
  odometer.Seek(begin, base, &at);
  for (int64_t position = begin; position < end;) {
    const int64_t n = std::min({odometer.RunLength(), end - position, kBlock});
    float* d = scratch_->wide;
    LoadBlock({call_, at, inner, n, scratch_}, Emission::kNo, d);
    for (int64_t i = 0; i < n; ++i) d[i] = static_cast<float>((static_cast<double>(d[i]) - s.center) * s.factor);
    if (call_.has_result()) StoreBlock({call_, at, inner, n, scratch_}, Normalizer{}, d, d);
    odometer.Advance(n, &at);
    position += n;
  }
}

void GroupWorker::Apply(const Offsets& base, int64_t begin, int64_t end, bool kept, const Statistics& s) {
  const DimList& dims = call_.geometry->reduced;
  const Dim& inner = Innermost(dims);
  const Emission emission = call_.emits_before && !call_.spec->normalizes ? Emission::kYes : Emission::kNo;
  if (!call_.has_result() && emission == Emission::kNo) return;
  if (s.beyond_float) return ApplyInDouble(base, begin, end, s);
  Normalizer normalizer = s.normalizer;
  Odometer odometer(dims, active_);
  Offsets at;
  odometer.Seek(begin, base, &at);
  for (int64_t position = begin; position < end;) {
    int64_t n = std::min(odometer.RunLength(), end - position);
    if (call_.path.stored_integers && !call_.spec->normalizes) {
      const Statistics dequantizer = Dequantizer(at);
      normalizer = dequantizer.normalizer;
      if (dequantizer.beyond_float) {
        ApplyInDouble(at, 0, n, dequantizer);
        odometer.Advance(n, &at);
        position += n;
        continue;
      }
    }
    if (call_.apply != nullptr) {
      writer_.Apply(call_.apply, call_.apply_type, ApplyArgsAt(call_, at, inner, inner, n, 1, &normalizer));
    } else {
      n = std::min(n, kBlock);
      if (call_.path.only_dequantizes) {
        LoadBlock({call_, at, inner, n, scratch_}, Emission::kNo, static_cast<float*>(call_.y) + at.at[kFormY]);
        odometer.Advance(n, &at);
        position += n;
        continue;
      }
      const Block block{call_, at, inner, n, scratch_};
      float* room = kept ? scratch_->kept + position : scratch_->kept;
      const float* d = kept ? room : ReadBlock(block, emission, room);
      if (call_.has_result()) StoreBlock(block, normalizer, d, room);
    }
    odometer.Advance(n, &at);
    position += n;
  }
}

bool GroupWorker::Finish(const Offsets& base, bool keep, const Sums& sums, Statistics* s) {
  const Quality quality = Evaluate(request_, sums, s);
  if (quality == Quality::kGood) return true;
  Sums better;
  if (quality == Quality::kShift) {
    better = Recentered(request_, sums);
    AccumulateGroup(base, keep, Emission::kNo, &better);
  } else {
    AccumulateWide(base, &better);
  }
  Evaluate(request_, better, s);
  return quality == Quality::kShift;
}

void GroupWorker::Group(const Offsets& base) {
  const int64_t size = call_.geometry->group_size;
  const bool keep = call_.apply == nullptr && call_.row_sums == nullptr && size <= kKeepLimit;
  SetGroup(base);
  Sums sums = FirstSums(base);
  AccumulateGroup(base, keep, call_.emission(), &sums);
  Statistics s;
  const bool kept = Finish(base, keep, sums, &s) && keep;
  StoreStatistics(call_, base.at[kFormStat], s);
  Apply(base, 0, size, kept, s);
}

}  // namespace normfuse::cpu
