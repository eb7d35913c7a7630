// Groups whose innermost dimension is a reduced one, spread over threads: see row_worker.h.
#include <algorithm>

#include "cpu/row_worker.h"

namespace normfuse::cpu {
namespace {

constexpr int kMaxPieces = 64;
// ---- Batches: several rows at a time where each is one contiguous run ----

// So that a batch stays in the level-1 cache between its two passes.
constexpr int64_t kBatchBytes = 16 * 1024;
constexpr int kMaxBatch = 16;

class BatchWorker {
 public:
  BatchWorker(const Call& call, Scratch* scratch)
      : call_(call),
        scratch_(scratch),
        request_(RequestFor(call)),
        rows_(Innermost(call.geometry.kept)),
        run_(Innermost(call.geometry.reduced)) {}

  // Rows from `base` on along the innermost kept dimension.
  void Batch(const Offsets& base, int rows);

 private:
  void Sum(const Offsets& base, int rows);
  Offsets RowBase(const Offsets& base, int row) const;
  float ZeroOf(const Offsets& base, int row) const;

  const Call& call_;
  Scratch* scratch_;
  StatisticsRequest request_;
  const Dim& rows_;
  const Dim& run_;
  Sums sums_[kMaxBatch];
  Normalizer normalizers_[kMaxBatch];
};

Offsets BatchWorker::RowBase(const Offsets& base, int row) const {
  Offsets at = base;
  for (int form = 0; form < kFormCount; ++form) at.at[form] += row * rows_.stride[form];
  return at;
}

void BatchWorker::Sum(const Offsets& base, int rows) {
  RowSumsArgs args = RowSumsArgsAt(call_, base, rows_, run_.size, rows, sums_);
  args.find_shift = request_.use_mean;
  if (request_.use_mean || request_.exact || !call_.params[kFormXZero].present()) {
    call_.row_sums(args);
    return;
  }
  // Squares of distances from the row's own zero point.
  args.rows = 1;
  for (int row = 0; row < rows; ++row, ++args.sums) {
    args.x = ElementAt(call_.x, call_.x_type, base.at[kFormX] + row * rows_.stride[kFormX]);
    args.shift = ZeroOf(base, row);
    call_.row_sums(args);
  }
}

float BatchWorker::ZeroOf(const Offsets& base, int row) const {
  const Param& zero = call_.params[kFormXZero];
  return zero.present() ? zero.data[base.at[kFormXZero] + row * rows_.stride[kFormXZero]] : 0.0f;
}

void BatchWorker::Batch(const Offsets& base, int rows) {
  Sum(base, rows);
  uint32_t again = 0;
  for (int row = 0; row < rows; ++row) {
    if (call_.raw) {
      request_.scale = call_.params[kFormXScale].data[base.at[kFormXScale] + row * rows_.stride[kFormXScale]];
      request_.zero = ZeroOf(base, row);
    }
    Statistics s;
    const Quality quality = Evaluate(request_, sums_[row], &s);
    normalizers_[row] = s.normalizer;
    if (quality != Quality::kGood) again |= 1u << row;
    if (call_.mean != nullptr || call_.inv_std_dev != nullptr) {
      StoreStatistics(call_, base.at[kFormStat] + row * rows_.stride[kFormStat], s);
    }
  }
  if (call_.y != nullptr) {
    ApplyInPlace(call_, ApplyArgsAt(call_, base, run_, rows_, run_.size, rows, normalizers_), scratch_);
  }
  for (int row = 0; again != 0; ++row, again >>= 1) {
    if ((again & 1u) != 0) RowWorker(call_, scratch_).Group(RowBase(base, row));
  }
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
  if (call.stream) call.kernels->fence();
}

void RunPipelines(void* user, size_t index) {
  const auto& task = *static_cast<GroupTask*>(user);
  const auto chunk = static_cast<int64_t>(index);
  const int64_t groups = task.call->geometry.group_count;
  RunPipeline(*task.call, groups * chunk / task.chunks, groups * (chunk + 1) / task.chunks);
}

void RunBatches(void* user, size_t index) {
  const auto& task = *static_cast<GroupTask*>(user);
  const Call& call = *task.call;
  const Geometry& g = call.geometry;
  const auto chunk = static_cast<int64_t>(index);
  const int64_t end = g.group_count * (chunk + 1) / task.chunks;
  const int64_t row_bytes = g.group_size * BitsOf(call.x_type) / 8;
  const int64_t most = std::clamp<int64_t>(kBatchBytes / row_bytes / 2 * 2, 1, kMaxBatch);
  Scratch scratch;
  BatchWorker worker(call, &scratch);
  Odometer odometer(g.kept, g.active);
  Offsets base;
  int64_t group = g.group_count * chunk / task.chunks;
  odometer.Seek(group, Offsets{}, &base);
  while (group < end) {
    const int64_t rows = std::min({most, odometer.RunLength(), end - group});
    worker.Batch(base, static_cast<int>(rows));
    odometer.Advance(rows, &base);
    group += rows;
  }
  if (call.stream) call.kernels->fence();
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
  if (task.call->stream) task.call->kernels->fence();
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
  Sums sums = worker.FirstSums(task->base);
  task->write_sum = call.sum != nullptr;
  NORMFUSE_RETURN_IF_ERROR(SumPieces(call, task, &sums));
  task->write_sum = false;
  const Quality quality = Evaluate(worker.request(), sums, &task->statistics);
  if (quality == Quality::kShift) {
    sums = Recentered(worker.request(), sums);
    NORMFUSE_RETURN_IF_ERROR(SumPieces(call, task, &sums));
    Evaluate(worker.request(), sums, &task->statistics);
  } else if (quality == Quality::kWide) {
    worker.AccumulateWide(task->base, &sums);
    Evaluate(worker.request(), sums, &task->statistics);
  }
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
  const bool batches =
      call.row_sums != nullptr && call.apply != nullptr && g.reduced.count == 1 && g.reduced_d.count == 1;
  const auto run = call.step != nullptr && RowsPerStep(call) != 0 ? RunPipelines : batches ? RunBatches : RunGroups;
  if (task.chunks == 1) {
    run(&task, 0);
    return {};
  }
  return call.context->ParallelFor(run, static_cast<size_t>(task.chunks), &task);
}

}  // namespace normfuse::cpu
