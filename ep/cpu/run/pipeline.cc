// Groups in a pipeline: while some are normalised and written, the next ones are read and summed. Reading and writing
// then go on all the time, and a large group is read again while it is still in the level-2 cache.
#include <algorithm>

#include "cpu/run/group_worker.h"

namespace normfuse::cpu {
namespace {

struct Group {
  Offsets base;
  Sums sums;
  Statistics statistics;
};

class GroupPipeline {
 public:
  GroupPipeline(const Call& call, Scratch* scratch) : call_(call), worker_(call, scratch) {}

  void Run(int64_t begin, int64_t end);

 private:
  void Step(const Group& group, Group* next);

  const Call& call_;
  GroupWorker worker_;
};

void GroupPipeline::Step(const Group& group, Group* next) {
  const Geometry& g = *call_.geometry;
  const Dim& run = Innermost(g.reduced);
  next->sums = worker_.FirstSums(next->base);
  Sums piece;
  const auto step = [&](const Offsets& at, int64_t, int64_t n) {
    Offsets next_at = at;
    for (int form : {kFormX, kFormY, kFormResidual, kFormResidualBias}) {
      next_at.at[form] += next->base.at[form] - group.base.at[form];
    }
    const ApplyArgs apply = ApplyArgsAt(call_, at, run, run, n, 1, &group.statistics.normalizer);
    RowSumsArgs args = RowSumsArgsAt(call_, next_at, run, n, 1, &piece);
    args.shift = static_cast<float>(piece.shift);
    if (call_.step(apply, args)) return;
    call_.apply(apply);
    args.resume = true;
    call_.row_sums(args);
  };
  for (int64_t i = 0; i < g.piece_count; ++i) {
    piece = {next->sums.shift, 0, 0};
    Odometer(g.reduced, g.active).ForEachStretch(g.Piece(i), group.base, step);
    next->sums.Add(piece);
  }
  if (group.statistics.beyond_float) worker_.ApplyInDouble(group.base, {0, g.group_size}, group.statistics);
}

void GroupPipeline::Run(int64_t begin, int64_t end) {
  const int64_t size = call_.geometry->group_size;
  Odometer odometer(call_.geometry->kept, call_.geometry->active);
  Group groups[2];
  Group* now = &groups[0];
  Group* next = &groups[1];
  odometer.Seek(begin, Offsets{}, &now->base);
  now->sums = worker_.FirstSums(now->base);
  worker_.AccumulateGroup(now->base, nullptr, call_.emission(), &now->sums);
  worker_.Finish(now->base, now->sums, &now->statistics);
  for (int64_t group = begin + 1; group < end; ++group) {
    next->base = now->base;
    odometer.Advance(1, &next->base);
    Step(*now, next);
    worker_.Finish(next->base, next->sums, &next->statistics);
    std::swap(now, next);
  }
  worker_.Apply(now->base, {0, size}, nullptr, now->statistics);
}

}  // namespace

void RunPipeline(const Call& call, int64_t begin, int64_t end) {
  Scratch scratch;
  GroupPipeline(call, &scratch).Run(begin, end);
}

}  // namespace normfuse::cpu
