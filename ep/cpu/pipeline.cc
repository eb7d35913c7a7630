// Groups in a pipeline: while some are normalised and written, the next ones are read and summed. Reading and writing
// then go on all the time, and a large group is read again while it is still in the level-2 cache.
#include <algorithm>

#include "cpu/row_worker.h"

namespace normfuse::cpu {
namespace {

struct Group {
  Offsets base;
  Sums sums;
  Normalizer normalizer;
};

class GroupPipeline {
 public:
  GroupPipeline(const Call& call, Scratch* scratch) : call_(call), worker_(call, scratch) {}

  void Run(int64_t begin, int64_t end);

 private:
  void Finish(Group* group);
  void Step(const Group& group, Group* next);

  const Call& call_;
  RowWorker worker_;
};

void GroupPipeline::Finish(Group* group) {
  Statistics s;
  worker_.Finish(group->base, false, group->sums, &s);
  group->normalizer = s.normalizer;
  StoreStatistics(call_, group->base.at[kFormStat], s);
}

void GroupPipeline::Step(const Group& group, Group* next) {
  const Geometry& g = *call_.geometry;
  const Dim& run = Innermost(g.reduced);
  next->sums = worker_.FirstSums(next->base);
  Odometer odometer(g.reduced, g.active);
  Offsets at;
  odometer.Seek(0, group.base, &at);
  for (int64_t position = 0; position < g.group_size; position += run.size) {
    Offsets next_at = at;
    for (int form : {kFormX, kFormY, kFormResidual, kFormResidualBias}) {
      next_at.at[form] += next->base.at[form] - group.base.at[form];
    }
    Sums sums;
    const ApplyArgs apply = ApplyArgsAt(call_, at, run, run, run.size, 1, &group.normalizer);
    RowSumsArgs args = RowSumsArgsAt(call_, next_at, run, run.size, 1, &sums);
    args.shift = static_cast<float>(next->sums.shift);
    call_.step(apply, args);
    next->sums.first += sums.first;
    next->sums.second += sums.second;
    odometer.Advance(run.size, &at);
  }
}

void GroupPipeline::Run(int64_t begin, int64_t end) {
  Odometer odometer(call_.geometry->kept, call_.geometry->active);
  Group groups[2];
  Group* now = &groups[0];
  Group* next = &groups[1];
  odometer.Seek(begin, Offsets{}, &now->base);
  now->sums = worker_.FirstSums(now->base);
  worker_.Accumulate(now->base, 0, call_.geometry->group_size, false, call_.sum != nullptr, &now->sums);
  Finish(now);
  for (int64_t group = begin + 1; group < end; ++group) {
    next->base = now->base;
    odometer.Next(&next->base);
    Step(*now, next);
    Finish(next);
    std::swap(now, next);
  }
  Statistics s;
  s.normalizer = now->normalizer;
  worker_.Apply(now->base, 0, call_.geometry->group_size, false, s);
}

}  // namespace

void RunPipeline(const Call& call, int64_t begin, int64_t end) {
  Scratch scratch;
  GroupPipeline(call, &scratch).Run(begin, end);
}

}  // namespace normfuse::cpu
