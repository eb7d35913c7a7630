// Groups whose innermost dimension is a reduced one (and everything without a normalisation, which counts as one
// group): each group is read in contiguous runs, first for its statistics, then to be normalised and written.
#include <algorithm>

#include "cpu/call.h"
#include "cpu/statistics.h"

namespace normfuse::cpu {
namespace {

constexpr int kMaxPieces = 64;
constexpr int64_t kShiftSamples = 64;

const Dim& Innermost(const DimList& dims) { return dims.dims[dims.count - 1]; }

class RowWorker {
 public:
  RowWorker(const Call& call, Scratch* scratch)
      : call_(call), scratch_(scratch), request_(RequestFor(*call.plan)), active_(call.geometry.active) {}

  // A whole group: statistics and result.
  void Group(const Offsets& base);
  // The two halves for a part of a group, for groups that several threads share.
  Sums FirstSums(const Offsets& base);
  void Accumulate(const Offsets& base, int64_t begin, int64_t end, bool keep, bool write_sum, Sums* sums);
  void AccumulateWide(const Offsets& base, Sums* sums);
  void Apply(const Offsets& base, int64_t begin, int64_t end, bool kept, const Statistics& statistics);
  // Sets how stored integers of this group become d.
  void SetGroup(const Offsets& base);
  const StatisticsRequest& request() const { return request_; }

 private:
  const Call& call_;
  Scratch* scratch_;
  StatisticsRequest request_;
  uint32_t active_;
};

void RowWorker::SetGroup(const Offsets& base) {
  if (!call_.raw) return;
  const Param& zero = call_.params[kFormXZero];
  request_.scale = call_.params[kFormXScale].data[base.at[kFormXScale]];
  request_.zero = zero.present() ? zero.data[base.at[kFormXZero]] : 0.0;
}

Sums RowWorker::FirstSums(const Offsets& base) {
  Sums sums;
  if (!request_.use_mean) {
    sums.shift = request_.zero;
    return sums;
  }
  const Dim& inner = Innermost(call_.geometry.reduced_d);
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
  double total[2] = {0, 0};
  const auto shift = static_cast<float>(sums->shift);
  const DimList& dims = call_.geometry.reduced_d;
  const MomentsFn moments = call_.kernels->moments[static_cast<int>(DataType::kFloat32)];
  Odometer odometer(dims, active_);
  Offsets at;
  odometer.Seek(begin, base, &at);
  for (int64_t position = begin; position < end;) {
    int64_t n = std::min(odometer.RunLength(), end - position);
    if (call_.direct_moments != nullptr) {
      call_.direct_moments(ElementAt(call_.x, call_.x_type, at.at[kFormX]), static_cast<size_t>(n), shift, total);
    } else {
      n = std::min(n, kBlock);
      float* d = keep ? scratch_->kept + position : scratch_->kept;
      LoadBlock(call_, at, Innermost(dims), n, scratch_, d);
      if (write_sum) StoreSum(call_, at, n, d);
      moments(d, static_cast<size_t>(n), shift, total);
    }
    odometer.Advance(n, &at);
    position += n;
  }
  sums->first += total[0];
  sums->second += total[1];
}

// Both passes in double, for values whose squares leave the range of float32.
void RowWorker::AccumulateWide(const Offsets& base, Sums* sums) {
  const DimList& dims = call_.geometry.reduced_d;
  const int64_t size = call_.geometry.group_size;
  double center = request_.zero;
  for (int pass = request_.use_mean ? 0 : 1; pass < 2; ++pass) {
    double first = 0;
    double second = 0;
    Odometer odometer(dims, active_);
    Offsets at;
    odometer.Seek(0, base, &at);
    for (int64_t position = 0; position < size;) {
      const int64_t n = std::min({odometer.RunLength(), size - position, kBlock});
      float* d = scratch_->kept;
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

void RowWorker::Apply(const Offsets& base, int64_t begin, int64_t end, bool kept, const Statistics& s) {
  const DimList& dims = call_.geometry.reduced;
  const Dim& inner = Innermost(dims);
  const Plan& plan = *call_.plan;
  const bool write_sum = call_.sum != nullptr && plan.kind == PlanKind::kElementwise;
  if (call_.y == nullptr && !write_sum) return;
  Odometer odometer(dims, active_);
  Offsets at;
  odometer.Seek(begin, base, &at);
  for (int64_t position = begin; position < end;) {
    int64_t n = std::min(odometer.RunLength(), end - position);
    if (call_.direct_apply != nullptr) {
      ApplyArgs args;
      args.x = ElementAt(call_.x, call_.x_type, at.at[kFormX]);
      args.x2 = nullptr;
      args.y = ElementAt(call_.y, plan.y_type, at.at[kFormY]);
      args.n = static_cast<size_t>(n);
      args.mean = s.mean;
      args.inv = s.inv;
      args.offset = s.offset;
      args.scale = VecAt(call_, kFormScale, at, inner, &kOne);
      args.bias = VecAt(call_, kFormBias, at, inner, &kNoBias);
      args.slope = VecAt(call_, kFormSlope, at, inner, &kOne);
      args.params = plan.activation.params;
      args.y_scale = call_.params[kFormYScale].present() ? *call_.params[kFormYScale].data : 1.0f;
      args.y_zero = call_.params[kFormYZero].present() ? *call_.params[kFormYZero].data : 0.0f;
      call_.direct_apply(args);
    } else {
      n = std::min(n, kBlock);
      float* d = kept ? scratch_->kept + position : scratch_->kept;
      if (!kept) LoadBlock(call_, at, inner, n, scratch_, d);
      if (write_sum) StoreSum(call_, at, n, d);
      if (call_.y != nullptr) StoreBlock(call_, at, inner, n, s.mean, s.inv, s.offset, scratch_, d);
    }
    odometer.Advance(n, &at);
    position += n;
  }
}

void RowWorker::Group(const Offsets& base) {
  const int64_t size = call_.geometry.group_size;
  const auto count = static_cast<double>(size);
  const bool keep = call_.direct_apply == nullptr && call_.direct_moments == nullptr && size <= kKeepLimit;
  SetGroup(base);
  Sums sums = FirstSums(base);
  Accumulate(base, 0, size, keep, call_.sum != nullptr, &sums);
  bool kept = keep;
  Quality quality = Judge(request_, sums, count, false);
  if (quality == Quality::kShift) {
    sums = {static_cast<float>(sums.shift + sums.first / count), 0, 0};
    Accumulate(base, 0, size, keep, false, &sums);
  } else if (quality == Quality::kWide) {
    AccumulateWide(base, &sums);
    kept = false;
  }
  const Statistics s = Finish(request_, sums, count);
  StoreStatistics(call_, base.at[kFormStat], s);
  Apply(base, 0, size, kept, s);
}

struct GroupTask {
  const Call* call;
  int64_t chunks;
};

void RunGroups(void* user, size_t index) {
  const auto& task = *static_cast<GroupTask*>(user);
  const Call& call = *task.call;
  const Geometry& g = call.geometry;
  const auto chunk = static_cast<int64_t>(index);
  const int64_t begin = g.group_count * chunk / task.chunks;
  const int64_t end = g.group_count * (chunk + 1) / task.chunks;
  Scratch scratch;
  RowWorker worker(call, &scratch);
  Odometer odometer(g.kept, g.active);
  Offsets base{};
  odometer.Seek(begin, Offsets{}, &base);
  for (int64_t group = begin; group < end; ++group) {
    worker.Group(base);
    odometer.Next(&base);
  }
}

// One group shared by several threads.
struct PieceTask {
  const Call* call;
  Offsets base;
  int64_t pieces;
  Sums sums[kMaxPieces];
  Sums start;
  bool write_sum;
  Statistics statistics;

  int64_t Begin(int64_t piece) const {
    const int64_t size = call->geometry.group_size;
    // Multiples of a block, so that packed and vector elements are not torn apart.
    return piece == pieces ? size : size * piece / pieces / kBlock * kBlock;
  }
};

void SumPiece(void* user, size_t index) {
  auto& task = *static_cast<PieceTask*>(user);
  const auto piece = static_cast<int64_t>(index);
  Scratch scratch;
  RowWorker worker(*task.call, &scratch);
  worker.SetGroup(task.base);
  task.sums[piece] = task.start;
  worker.Accumulate(task.base, task.Begin(piece), task.Begin(piece + 1), false, task.write_sum, &task.sums[piece]);
}

void ApplyPiece(void* user, size_t index) {
  auto& task = *static_cast<PieceTask*>(user);
  const auto piece = static_cast<int64_t>(index);
  Scratch scratch;
  RowWorker worker(*task.call, &scratch);
  worker.SetGroup(task.base);
  worker.Apply(task.base, task.Begin(piece), task.Begin(piece + 1), false, task.statistics);
}

Result SumPieces(const Call& call, PieceTask* task, Sums* sums) {
  task->start = *sums;
  NORMFUSE_RETURN_IF_ERROR(call.context->ParallelFor(SumPiece, static_cast<size_t>(task->pieces), task));
  for (int64_t i = 0; i < task->pieces; ++i) {
    sums->first += task->sums[i].first;
    sums->second += task->sums[i].second;
  }
  return {};
}

Result SharedStatistics(const Call& call, PieceTask* task) {
  Scratch scratch;
  RowWorker worker(call, &scratch);
  worker.SetGroup(task->base);
  const auto count = static_cast<double>(call.geometry.group_size);
  Sums sums = worker.FirstSums(task->base);
  task->write_sum = call.sum != nullptr;
  NORMFUSE_RETURN_IF_ERROR(SumPieces(call, task, &sums));
  task->write_sum = false;
  const Quality quality = Judge(worker.request(), sums, count, false);
  if (quality == Quality::kShift) {
    sums = {static_cast<float>(sums.shift + sums.first / count), 0, 0};
    NORMFUSE_RETURN_IF_ERROR(SumPieces(call, task, &sums));
  } else if (quality == Quality::kWide) {
    worker.AccumulateWide(task->base, &sums);
  }
  task->statistics = Finish(worker.request(), sums, count);
  StoreStatistics(call, task->base.at[kFormStat], task->statistics);
  return {};
}

// Groups one after the other, each by all threads.
Result RunPieces(const Call& call, int64_t pieces) {
  const Geometry& g = call.geometry;
  PieceTask task{};
  task.call = &call;
  task.pieces = pieces;
  Odometer odometer(g.kept, g.active);
  odometer.Seek(0, Offsets{}, &task.base);
  for (int64_t group = 0; group < g.group_count; ++group) {
    if (call.plan->kind == PlanKind::kNormalization) {
      NORMFUSE_RETURN_IF_ERROR(SharedStatistics(call, &task));
    } else if (call.raw) {
      Scratch scratch;
      RowWorker worker(call, &scratch);
      worker.SetGroup(task.base);
      task.statistics = {static_cast<float>(worker.request().zero), static_cast<float>(worker.request().scale), kNoBias,
                         0, 1};
    }
    if (pieces == 1) {
      ApplyPiece(&task, 0);
    } else {
      NORMFUSE_RETURN_IF_ERROR(call.context->ParallelFor(ApplyPiece, static_cast<size_t>(pieces), &task));
    }
    odometer.Next(&task.base);
  }
  return {};
}

}  // namespace

Result RunRows(const Call& call) {
  const Geometry& g = call.geometry;
  const int threads = call.threads;
  if (call.plan->kind == PlanKind::kElementwise || (threads > 1 && g.group_count < threads)) {
    const int64_t pieces = std::min<int64_t>(threads, kMaxPieces);
    return RunPieces(call, pieces);
  }
  GroupTask task{&call, threads > 1 ? std::min<int64_t>(g.group_count, int64_t{4} * threads) : 1};
  if (task.chunks == 1) {
    RunGroups(&task, 0);
    return {};
  }
  return call.context->ParallelFor(RunGroups, static_cast<size_t>(task.chunks), &task);
}

}  // namespace normfuse::cpu
