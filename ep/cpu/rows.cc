// Groups whose innermost dimension is a reduced one, spread over threads: see row_worker.h.
#include <algorithm>

#include "cpu/row_worker.h"

namespace normfuse::cpu {
namespace {

constexpr int kMaxPieces = 64;
struct GroupTask {
  // The first group of a chunk. Cuts lie where a batch begins, so that results do not depend on them.
  int64_t Begin(int64_t chunk) const {
    const int64_t groups = call->geometry->group_count;
    if (chunk == chunks) return groups;
    const int64_t group = groups * chunk / chunks;
    return group - group % Innermost(call->geometry->kept).size % batch;
  }
  const Call* call;
  int64_t chunks;
  int64_t batch;  // groups that are treated together
};

void RunGroups(const Call& call, int64_t begin, int64_t end) {
  const Geometry& g = *call.geometry;
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

template <void (*kRun)(const Call& call, int64_t begin, int64_t end)>
void RunChunk(void* user, size_t index) {
  const auto& task = *static_cast<GroupTask*>(user);
  const auto chunk = static_cast<int64_t>(index);
  kRun(*task.call, task.Begin(chunk), task.Begin(chunk + 1));
  if (task.call->stream) task.call->kernels->fence();
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
    const int64_t size = call->geometry->group_size;
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
  if (task.call->stream) task.call->kernels->fence();
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
  const Geometry& g = *call.geometry;
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
  const Geometry& g = *call.geometry;
  const int threads = call.threads;
  if (call.plan->kind == PlanKind::kElementwise || (threads > 1 && g.group_count < threads)) {
    const int64_t pieces = std::min<int64_t>(threads, kMaxPieces);
    return RunPieces(call, pieces);
  }
  const bool batches = call.step == nullptr && call.row_sums != nullptr && call.apply != nullptr &&
                       g.reduced.count == 1 && g.reduced_d.count == 1;
  const auto run = call.step != nullptr ? RunChunk<RunPipeline> : batches ? RunChunk<RunBatches> : RunChunk<RunGroups>;
  GroupTask task{&call, 1, 1};
  // In a pipeline the first group of a chunk is summed in another way, and results would not stay the same.
  if (threads == 1 || (call.step == nullptr && call.helpers->Absent())) {
    run(&task, 0);
    return {};
  }
  if (batches) task.batch = RowsPerBatch(call);
  task.chunks = std::min<int64_t>(g.group_count, int64_t{4} * threads);
  return call.helpers->ParallelFor(*call.context, run, static_cast<size_t>(task.chunks), &task);
}

}  // namespace normfuse::cpu
