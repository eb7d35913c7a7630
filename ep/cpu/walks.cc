// The walks over groups, and how threads share them: see path.h and group_worker.h.
#include <algorithm>

#include "cpu/group_worker.h"
#include "cpu/softmax_rows.h"

namespace normfuse::cpu {
namespace {

struct GroupTask {
  // The first group of a chunk.
  int64_t Begin(int64_t chunk) const { return call->geometry->group_count * chunk / chunks; }
  const Call* call;
  int64_t chunks;
};

template <void (*kRun)(const Call& call, int64_t begin, int64_t end)>
void RunChunk(void* user, size_t index) {
  const auto& task = *static_cast<GroupTask*>(user);
  const auto chunk = static_cast<int64_t>(index);
  kRun(*task.call, task.Begin(chunk), task.Begin(chunk + 1));
  if (task.call->non_temporal()) task.call->kernels->fence();
}

// One group shared by several threads.
struct PieceTask {
  const Call* call;
  Offsets base;
  int64_t chunks;
  int64_t pieces;  // that sums are made of
  Sums sums[kMaxPieces];
  double shift;
  Emission emission;
  Statistics statistics;

  int64_t FirstPiece(size_t chunk) const { return pieces * static_cast<int64_t>(chunk) / chunks; }
  // The second pass may be cut anywhere but within a block, so that packed and vector elements are not torn apart.
  int64_t Begin(size_t chunk) const {
    const int64_t size = call->geometry->group_size;
    return static_cast<int64_t>(chunk) == chunks ? size : size * static_cast<int64_t>(chunk) / chunks / kBlock * kBlock;
  }
};

void SumPieces(void* user, size_t chunk) {
  auto& task = *static_cast<PieceTask*>(user);
  const Geometry& g = *task.call->geometry;
  Scratch scratch;
  GroupWorker worker(*task.call, &scratch);
  worker.SetGroup(task.base);
  for (int64_t i = task.FirstPiece(chunk); i < task.FirstPiece(chunk + 1); ++i) {
    const int64_t begin = i * PieceSize(g);
    task.sums[i] = {task.shift, 0, 0};
    worker.Accumulate(task.base, begin, std::min(begin + PieceSize(g), g.group_size), false, task.emission,
                      &task.sums[i]);
  }
  if (task.call->non_temporal()) task.call->kernels->fence();
}

void LookUp(const Call& call, int64_t begin, int64_t end) {
  const auto* x = static_cast<const uint8_t*>(call.x.data);
  auto* y = static_cast<uint8_t*>(call.y);
  if (y != nullptr) call.kernels->look_up(call.spec->table, x + begin, static_cast<size_t>(end - begin), y + begin);
}

void ApplyPiece(void* user, size_t chunk) {
  auto& task = *static_cast<PieceTask*>(user);
  if (task.call->path.by_table) return LookUp(*task.call, task.Begin(chunk), task.Begin(chunk + 1));
  Scratch scratch;
  GroupWorker worker(*task.call, &scratch);
  worker.SetGroup(task.base);
  worker.Apply(task.base, task.Begin(chunk), task.Begin(chunk + 1), false, task.statistics);
  if (task.call->non_temporal()) task.call->kernels->fence();
}

Result SharedSums(const Call& call, PieceTask* task, Sums* sums) {
  task->shift = sums->shift;
  NORMFUSE_RETURN_IF_ERROR(call.context->ParallelFor(SumPieces, static_cast<size_t>(task->chunks), task));
  for (int64_t i = 0; i < task->pieces; ++i) {
    sums->first += task->sums[i].first;
    sums->second += task->sums[i].second;
  }
  return {};
}

Result SharedStatistics(const Call& call, PieceTask* task) {
  Scratch scratch;
  GroupWorker worker(call, &scratch);
  worker.SetGroup(task->base);
  Sums sums = worker.FirstSums(task->base);
  task->emission = call.emission();
  NORMFUSE_RETURN_IF_ERROR(SharedSums(call, task, &sums));
  task->emission = Emission::kNo;
  const Quality quality = Evaluate(worker.request(), sums, &task->statistics);
  if (quality == Quality::kShift) {
    sums = Recentered(worker.request(), sums);
    NORMFUSE_RETURN_IF_ERROR(SharedSums(call, task, &sums));
    Evaluate(worker.request(), sums, &task->statistics);
  } else if (quality == Quality::kWide) {
    worker.AccumulateWide(task->base, &sums);
    Evaluate(worker.request(), sums, &task->statistics);
  }
  StoreStatistics(call, task->base.at[kFormStat], task->statistics);
  return {};
}

// Groups one after the other, each by all threads.
Result RunPieces(const Call& call, int64_t chunks) {
  const Geometry& g = *call.geometry;
  PieceTask task{};
  task.call = &call;
  task.chunks = chunks;
  task.pieces = (g.group_size + PieceSize(g) - 1) / PieceSize(g);
  Odometer odometer(g.kept, g.active);
  odometer.Seek(0, Offsets{}, &task.base);
  for (int64_t group = 0; group < g.group_count; ++group) {
    if (call.spec->normalizes) {
      NORMFUSE_RETURN_IF_ERROR(SharedStatistics(call, &task));
    }
    if (chunks == 1) {
      ApplyPiece(&task, 0);
    } else {
      NORMFUSE_RETURN_IF_ERROR(call.context->ParallelFor(ApplyPiece, static_cast<size_t>(chunks), &task));
    }
    odometer.Advance(1, &task.base);
  }
  return {};
}

using RunFn = void (*)(void* user, size_t chunk);

RunFn RunOf(Walk walk) {
  if (walk == Walk::kPipeline) return RunChunk<RunPipeline>;
  if (walk == Walk::kSoftmax) return RunChunk<RunSoftmaxRows>;
  return walk == Walk::kRows ? RunChunk<RunTiles> : RunChunk<RunGroups>;
}

// How many parts the groups are shared out in. In a pipeline the first group of a part is read before anything is written,
// and its last is written after everything is read: with fewer than four groups there is little left to overlap.
int64_t Chunks(Walk walk, int64_t groups, int threads) {
  const int64_t most = std::min<int64_t>(groups, int64_t{4} * threads);
  if (walk != Walk::kPipeline) return most;
  return std::clamp<int64_t>(groups / 4, std::min<int64_t>(groups, threads), most);
}

}  // namespace

void RunGroups(const Call& call, int64_t begin, int64_t end) {
  const Geometry& g = *call.geometry;
  Scratch scratch;
  GroupWorker worker(call, &scratch);
  Odometer(g.kept, g.active).ForEachStretch({begin, end, 1}, Offsets{}, [&](const Offsets& base, int64_t, int64_t) {
    worker.Group(base);
  });
}

Result RunWalk(const Call& call) {
  const Walk walk = call.path.walk;
  const int threads = call.path.threads;
  if (walk == Walk::kColumns) return RunColumns(call);
  if (walk == Walk::kElements || walk == Walk::kShared) return RunPieces(call, std::min<int64_t>(threads, kMaxPieces));
  GroupTask task{&call, 1};
  if (threads == 1 || call.work_sharing->HasNoThreads()) {
    RunOf(walk)(&task, 0);
    return {};
  }
  task.chunks = Chunks(walk, call.geometry->group_count, threads);
  return call.work_sharing->ParallelFor(*call.context, RunOf(walk), static_cast<size_t>(task.chunks), &task);
}

}  // namespace normfuse::cpu
