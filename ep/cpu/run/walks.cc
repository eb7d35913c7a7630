// The walks over groups, and how threads share them: see path.h and group_worker.h.
#include <algorithm>

#include "cpu/plan/look_up.h"
#include "cpu/run/group_worker.h"
#include "cpu/run/softmax_rows.h"

namespace normfuse::cpu {
namespace {

// The sums of a group by all threads, around the shift that they have.
Result SharedSums(const Call& call, const Offsets& base, int64_t parts, Emission emission, Sums* sums) {
  const Geometry& g = *call.geometry;
  Sums of_pieces[kMaxPieces];
  const auto sum = [&](int64_t part) {
    Scratch scratch;
    GroupWorker worker(call, &scratch);
    worker.SetGroup(base);
    const int64_t end = BeginOfPart(part + 1, parts, g.piece_count);
    for (int64_t i = BeginOfPart(part, parts, g.piece_count); i < end; ++i) {
      of_pieces[i] = {sums->shift, 0, 0};
      worker.Accumulate(base, g.Piece(i), nullptr, emission, &of_pieces[i]);
    }
  };
  NORMFUSE_RETURN_IF_ERROR(ForEachPart(call, parts, sum));
  for (int64_t i = 0; i < g.piece_count; ++i) sums->Add(of_pieces[i]);
  return {};
}

Result SharedStatistics(const Call& call, const Offsets& base, int64_t parts, Statistics* statistics) {
  Scratch scratch;
  GroupWorker worker(call, &scratch);
  worker.SetGroup(base);
  Sums sums = worker.FirstSums(base);
  NORMFUSE_RETURN_IF_ERROR(SharedSums(call, base, parts, call.emission(), &sums));
  if (Evaluate(worker.request(), sums, statistics) != Quality::kShift) {
    worker.Finish(base, sums, statistics);
    return {};
  }
  sums = Recentered(worker.request(), sums);
  NORMFUSE_RETURN_IF_ERROR(SharedSums(call, base, parts, Emission::kNo, &sums));
  Evaluate(worker.request(), sums, statistics);
  StoreStatistics(call, base.at[kFormStat], *statistics);
  return {};
}

void LookUp(const Call& call, const Range& range) {
  const void* codes = ElementAt(call.x.data, call.spec->codes->type, range.begin);
  void* y = ElementAt(call.y, call.spec->y_type, range.begin);
  LookUpCodes(call, codes, static_cast<size_t>(range.end - range.begin), y, /*stream=*/false);
}

Result SharedApply(const Call& call, const Offsets& base, int64_t parts, const Statistics& statistics) {
  // It may be cut anywhere but within a block, so that packed and vector elements are not torn apart.
  const int64_t size = call.geometry->group_size;
  const auto begin = [&](int64_t part) {
    return part == parts ? size : BeginOfPart(part, parts, size) / kBlock * kBlock;
  };
  return ForEachPart(call, parts, [&](int64_t part) {
    const Range range{begin(part), begin(part + 1)};
    if (call.path.by_table && call.spec->codes->step == Codes::kX) return LookUp(call, range);
    Scratch scratch;
    GroupWorker worker(call, &scratch);
    worker.SetGroup(base);
    worker.Apply(base, range, nullptr, statistics);
  });
}

// Groups one after the other, each by all threads.
Result RunShared(const Call& call) {
  const Geometry& g = *call.geometry;
  const int threads = call.path.threads;
  const int64_t parts = call.work_sharing->PartsFor(threads, std::min<int64_t>(threads, kMaxPieces));
  Odometer odometer(g.kept, g.active);
  Offsets base;
  odometer.Seek(0, Offsets{}, &base);
  for (int64_t group = 0; group < g.group_count; ++group) {
    Statistics statistics;
    if (call.spec->normalizes) NORMFUSE_RETURN_IF_ERROR(SharedStatistics(call, base, parts, &statistics));
    NORMFUSE_RETURN_IF_ERROR(SharedApply(call, base, parts, statistics));
    odometer.Advance(1, &base);
  }
  return {};
}

using RunFn = void (*)(const Call& call, int64_t begin, int64_t end);

RunFn RunOf(Walk walk) {
  if (walk == Walk::kPipeline) return RunPipeline;
  if (walk == Walk::kSoftmax) return RunSoftmaxRows;
  return walk == Walk::kRows ? RunTiles : RunGroups;
}

// How many parts the groups are shared out in. In a pipeline the first group of a part is read before anything is written,
// and its last is written after everything is read: with fewer than four groups there is little left to overlap.
int64_t MostParts(Walk walk, int64_t groups, int threads) {
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
  const int64_t groups = call.geometry->group_count;
  if (walk == Walk::kColumns) return RunColumns(call);
  if (walk == Walk::kElements || walk == Walk::kShared) return RunShared(call);
  const RunFn run = RunOf(walk);
  const int64_t parts = call.work_sharing->PartsFor(threads, MostParts(walk, groups, threads));
  return ForEachPart(call, parts, [&](int64_t part) {
    run(call, BeginOfPart(part, parts, groups), BeginOfPart(part + 1, parts, groups));
  });
}

}  // namespace normfuse::cpu
