#include "cpu/run/group_worker.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "cpu/plan/element_steps.h"

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
  const BlockRoom::Loan d(&scratch_->read);
  LoadBlock({call_, base, inner, std::min(inner.size, kShiftElements), scratch_}, Emission::kNo, d.data());
  sums.shift = call_.kernels->find_shift(d.data(), static_cast<size_t>(inner.size));
  return sums;
}

void GroupWorker::Accumulate(const Offsets& base, const Range& range, float* kept, Emission emission, Sums* sums) {
  const BlockRoom::Loan read(&scratch_->read);
  const DimList& dims = call_.sum_dims();
  const bool in_place = call_.row_sums != nullptr;
  const RowSumsFn sum = in_place ? call_.row_sums : call_.kernels->first_pass(DataType::kFloat32, SumKind::kSingle);
  // Blocks begin where runs do: see row_sums-inl.h.
  const Range steps{range.begin, range.end, in_place ? range.most : kBlock};
  Odometer(dims, active_).ForEachStretch(steps, base, [&](const Offsets& at, int64_t position, int64_t n) {
    RowSumsArgs args{};
    if (in_place) {
      args = RowSumsArgsAt(call_, at, Innermost(dims), n, 1, sums);
      if (emission == Emission::kNo) args.sum = nullptr;
    } else {
      float* d = kept != nullptr ? kept + position : read.data();
      LoadBlock({call_, at, Innermost(dims), n, scratch_}, emission, d);
      args.x = d;
      args.n = static_cast<size_t>(n);
      args.rows = 1;
      args.sums = sums;
    }
    args.resume = true;
    args.shift = static_cast<float>(sums->shift);
    sum(args);
  });
}

void GroupWorker::AccumulateGroup(const Offsets& base, float* kept, Emission emission, Sums* sums) {
  const Geometry& g = *call_.geometry;
  for (int64_t i = 0; i < g.piece_count; ++i) {
    Sums piece{sums->shift, 0, 0};
    Accumulate(base, g.Piece(i), kept, emission, &piece);
    sums->Add(piece);
  }
}

// Both passes in double, for values whose squares leave the range of float32.
void GroupWorker::AccumulateWide(const Offsets& base, Sums* sums) {
  const BlockRoom::Loan read(&scratch_->read);
  float* const d = read.data();
  const DimList& dims = call_.geometry->reduced_d;
  const int64_t size = call_.geometry->group_size;
  double center = request_.zero;
  for (int pass = request_.use_mean ? 0 : 1; pass < 2; ++pass) {
    double first = 0;
    double second = 0;
    const auto add = [&](const Offsets& at, int64_t, int64_t n) {
      LoadBlock({call_, at, Innermost(dims), n, scratch_}, Emission::kNo, d);
      for (int64_t i = 0; i < n; ++i) {
        const double off = static_cast<double>(d[i]) - center;
        first += off;
        second += off * off;
      }
    };
    Odometer(dims, active_).ForEachStretch({0, size, kBlock}, base, add);
    *sums = {center, first, second};
    // The mean of a row with an infinity is infinite, and no difference from it a number.
    if (std::isfinite(first)) center += first / static_cast<double>(size);
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

void GroupWorker::ApplyInDouble(const Offsets& base, const Range& range, const Statistics& s) {
  const Dim& inner = Innermost(call_.geometry->reduced);
  if (call_.non_temporal()) call_.kernels->fence();
  const BlockRoom::Loan read(&scratch_->read);
  float* const d = read.data();
  const auto apply = [&](const Offsets& at, int64_t, int64_t n) {
    LoadBlock({call_, at, inner, n, scratch_}, Emission::kNo, d);
    for (int64_t i = 0; i < n; ++i) d[i] = static_cast<float>((static_cast<double>(d[i]) - s.center) * s.factor);
    if (call_.has_result()) StoreBlock({call_, at, inner, n, scratch_}, Normalizer{}, d, d);
  };
  Odometer(call_.geometry->reduced, active_).ForEachStretch({range.begin, range.end, kBlock}, base, apply);
}

// A whole group of several runs, which the kernel takes as rows: a call for each would cost as much as a short run.
void GroupWorker::ApplyRuns(const Offsets& base, const Normalizer& normalizer) {
  DimList runs = call_.geometry->reduced;
  const Dim& inner = Innermost(call_.geometry->reduced);
  --runs.count;
  Normalizer normalizers[kTileRows];
  std::fill_n(normalizers, kTileRows, normalizer);
  const Range all{0, runs.ElementCount(), kTileRows};
  Odometer(runs, active_).ForEachStretch(all, base, [&](const Offsets& at, int64_t, int64_t rows) {
    const ApplyArgs args =
        ApplyArgsAt(call_, at, inner, Innermost(runs), inner.size, static_cast<int>(rows), normalizers);
    writer_.Apply(call_.apply, call_.apply_type(), args);
  });
}

void GroupWorker::Apply(const Offsets& base, const Range& range, float* kept, const Statistics& s) {
  const bool emits = call_.emits_before && !call_.spec->normalizes;
  if (!call_.has_result() && !emits) return;
  if (s.beyond_float) return ApplyInDouble(base, range, s);
  const bool dequantizes = call_.path.stored_integers && !call_.spec->normalizes;
  const bool is_whole = range.begin == 0 && range.end == call_.geometry->group_size;
  if (call_.apply != nullptr && call_.spec->normalizes && is_whole && call_.geometry->reduced.count > 1) {
    return ApplyRuns(base, s.normalizer);
  }
  if (call_.apply == nullptr && call_.path.steps_at_once && call_.spec->steps_at_once && ApplySteps(base, range))
    return;
  const Range steps{range.begin, range.end, call_.apply == nullptr ? kBlock : range.most};
  const auto apply = [&](const Offsets& at, int64_t position, int64_t n) {
    const Statistics own = dequantizes ? Dequantizer(at) : s;
    if (own.beyond_float) {
      ApplyInDouble(at, {0, n}, own);
    } else if (call_.apply != nullptr) {
      const Dim& inner = Innermost(call_.geometry->reduced);
      ApplyArgs args = ApplyArgsAt(call_, at, inner, inner, n, 1, &own.normalizer);
      const ActivateRooms rooms(scratch_);
      if (call_.geometry->repeating != 0) SetPatterns({call_, at, inner, n, scratch_}, rooms, &args);
      writer_.Apply(call_.apply, call_.apply_type(), args);
    } else {
      ApplyBlock(at, n, kept != nullptr ? kept + position : nullptr, own.normalizer);
    }
  };
  Odometer(call_.geometry->reduced, active_).ForEachStretch(steps, base, apply);
}

// False: an operand has another form.
bool GroupWorker::ApplySteps(const Offsets& base, const Range& range) {
  bool done = !call_.path.only_dequantizes;
  const auto apply = [&](const Offsets& at, int64_t, int64_t n) {
    done = done && RunElementSteps({call_, at, Innermost(call_.geometry->reduced), n, scratch_});
  };
  Odometer(call_.geometry->reduced, active_).ForEachStretch({range.begin, range.end}, base, apply);
  return done;
}

// `kept`: d, if the first pass kept it.
void GroupWorker::ApplyBlock(const Offsets& at, int64_t n, float* kept, const Normalizer& normalizer) {
  const Block block{call_, at, Innermost(call_.geometry->reduced), n, scratch_};
  if (call_.path.only_dequantizes) {
    return LoadBlock(block, Emission::kNo, static_cast<float*>(call_.y) + at.at[kFormY]);
  }
  const BlockRoom::Loan read(&scratch_->read);
  float* room = kept != nullptr ? kept : read.data();
  const float* d = kept;
  if (d == nullptr) d = ReadBlock(block, call_.spec->normalizes ? Emission::kNo : call_.emission(), room);
  if (call_.has_result()) StoreBlock(block, normalizer, d, room);
}

void GroupWorker::Finish(const Offsets& base, const Sums& sums, Statistics* s) {
  const Quality quality = Evaluate(request_, sums, s);
  if (quality != Quality::kGood) {
    Sums better = Recentered(request_, sums);
    if (quality == Quality::kShift) {
      AccumulateGroup(base, nullptr, Emission::kNo, &better);
    } else {
      AccumulateWide(base, &better);
    }
    Evaluate(request_, better, s);
  }
  StoreStatistics(call_, base.at[kFormStat], *s);
}

void GroupWorker::Group(const Offsets& base) {
  const int64_t size = call_.geometry->group_size;
  const bool keep = call_.apply == nullptr && call_.row_sums == nullptr && size <= kKeepLimit;
  std::optional<KeptRoom::Loan> kept;
  if (keep) kept.emplace(&scratch_->kept);
  float* const d = kept ? kept->data() : nullptr;
  SetGroup(base);
  Sums sums = FirstSums(base);
  AccumulateGroup(base, d, call_.emission(), &sums);
  Statistics s;
  Finish(base, sums, &s);
  Apply(base, {0, size}, d, s);
}

}  // namespace normfuse::cpu
