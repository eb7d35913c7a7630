// Groups in a pipeline: while some are normalised and written, the next ones are read and summed. Reading and writing
// then go on all the time, and a large group is read again while it is still in the level-2 cache.
#include <algorithm>

#include "cpu/row_worker.h"

namespace normfuse::cpu {
namespace {

constexpr int kMostRows = 2;

template <class T>
void Move(T** pointer, DataType type, int64_t elements) {
  if (*pointer != nullptr) *pointer = static_cast<T*>(ElementAt(*pointer, type, elements));
}

// ---- Groups of one run each: rows ----

// A stretch of rows along the innermost kept dimension. From step to step only pointers move on.
class RowPipeline {
 public:
  RowPipeline(const Call& call, Scratch* scratch)
      : call_(call),
        worker_(call, scratch),
        scratch_(scratch),
        request_(worker_.request()),
        rows_per_step_(RowsPerStep(call)),
        stores_statistics_(call.mean != nullptr || call.inv_std_dev != nullptr) {}

  void Rows(const Offsets& base, int64_t rows);

 private:
  void AdvanceApply();
  void AdvanceSums();
  void Sum(int64_t row);
  // Makes normalizers of the sums of `rows` rows from `row` on.
  void Finish(int64_t row, int rows);
  void FinishBadly(int64_t row, const Sums& sums, Statistics* statistics);

  const Call& call_;
  RowWorker worker_;
  Scratch* scratch_;
  const StatisticsRequest request_;
  int rows_per_step_;
  bool stores_statistics_;
  const Offsets* base_ = nullptr;  // of row 0
  ApplyArgs apply_{};
  RowSumsArgs next_{};
  Sums sums_[kMostRows];
  Normalizer normalizers_[kMostRows];
};

void RowPipeline::AdvanceApply() {
  const int64_t rows = rows_per_step_;
  Move(&apply_.x, call_.apply_type, rows * apply_.x_stride);
  Move(&apply_.x2, call_.apply_type, rows * apply_.x2_stride);
  Move(&apply_.y, call_.plan->y_type, rows * apply_.y_stride);
  Move(&apply_.x_bias, DataType::kFloat32, rows * apply_.x_bias_stride);
  apply_.scale.data += rows * apply_.scale_stride;
  apply_.bias.data += rows * apply_.bias_stride;
}

void RowPipeline::AdvanceSums() {
  const int64_t rows = rows_per_step_;
  Move(&next_.x, call_.x_type, rows * next_.x_stride);
  Move(&next_.x2, call_.x_type, rows * next_.x2_stride);
  Move(&next_.sum, call_.x_type, rows * next_.sum_stride);
  Move(&next_.x_bias, DataType::kFloat32, rows * next_.x_bias_stride);
}

void RowPipeline::Finish(int64_t row, int rows) {
  for (int i = 0; i < rows; ++i) {
    Statistics s;
    if (Evaluate(request_, sums_[i], &s) != Quality::kGood) FinishBadly(row + i, sums_[i], &s);
    normalizers_[i] = s.normalizer;
    if (!stores_statistics_) continue;
    const Dim& kept = Innermost(call_.geometry.kept);
    StoreStatistics(call_, base_->at[kFormStat] + (row + i) * kept.stride[kFormStat], s);
  }
}

void RowPipeline::FinishBadly(int64_t row, const Sums& sums, Statistics* statistics) {
  const Dim& kept = Innermost(call_.geometry.kept);
  Offsets at = *base_;
  for (int form = 0; form < kFormCount; ++form) at.at[form] += row * kept.stride[form];
  worker_.Finish(at, false, sums, statistics);
}

void RowPipeline::Rows(const Offsets& base, int64_t rows) {
  const Dim& run = Innermost(call_.geometry.reduced);
  const Dim& kept = Innermost(call_.geometry.kept);
  base_ = &base;
  next_ = RowSumsArgsAt(call_, base, kept, run.size, rows_per_step_, sums_);
  next_.find_shift = request_.use_mean;
  apply_ = ApplyArgsAt(call_, base, run, kept, run.size, rows_per_step_, normalizers_);
  apply_.stream = call_.stream;
  const int64_t step = rows_per_step_;
  int64_t row = 0;
  if (rows >= step) {
    Sum(0);
    for (; row + 2 * step <= rows; row += step) {
      call_.step(apply_, next_);
      Finish(row + step, rows_per_step_);
      AdvanceApply();
      AdvanceSums();
    }
    ApplyInPlace(call_, apply_, scratch_);
    AdvanceApply();
    row += step;
  }
  if (row == rows) return;
  apply_.rows = next_.rows = static_cast<int>(rows - row);
  Sum(row);
  ApplyInPlace(call_, apply_, scratch_);
}

// Sums the next rows, the first of which is `row`.
void RowPipeline::Sum(int64_t row) {
  call_.row_sums(next_);
  Finish(row, next_.rows);
  AdvanceSums();
}

// ---- Groups of several runs ----

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
  const Geometry& g = call_.geometry;
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
    ApplyArgs apply = ApplyArgsAt(call_, at, run, run, run.size, 1, &group.normalizer);
    apply.stream = call_.stream;
    RowSumsArgs args = RowSumsArgsAt(call_, next_at, run, run.size, 1, &sums);
    args.shift = static_cast<float>(next->sums.shift);
    call_.step(apply, args);
    next->sums.first += sums.first;
    next->sums.second += sums.second;
    odometer.Advance(run.size, &at);
  }
}

void GroupPipeline::Run(int64_t begin, int64_t end) {
  Odometer odometer(call_.geometry.kept, call_.geometry.active);
  Group groups[2];
  Group* now = &groups[0];
  Group* next = &groups[1];
  odometer.Seek(begin, Offsets{}, &now->base);
  now->sums = worker_.FirstSums(now->base);
  worker_.Accumulate(now->base, 0, call_.geometry.group_size, false, call_.sum != nullptr, &now->sums);
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
  worker_.Apply(now->base, 0, call_.geometry.group_size, false, s);
}

bool IsOneRun(const Geometry& g) { return g.reduced.count == 1 && g.reduced_d.count == 1; }

}  // namespace

int RowsPerStep(const Call& call) {
  const Dim& run = Innermost(call.geometry.reduced);
  const Dim& kept = Innermost(call.geometry.kept);
  if (run.stride[kFormScale] == 0 && run.stride[kFormBias] == 0) return 1;
  if (call.kernels->step_rows == 1) return 1;
  const bool shared = kept.stride[kFormScale] == 0 && kept.stride[kFormBias] == 0;
  return shared && IsOneRun(call.geometry) ? call.kernels->step_rows : 0;
}

void RunPipeline(const Call& call, int64_t begin, int64_t end) {
  Scratch scratch;
  if (IsOneRun(call.geometry)) {
    RowPipeline pipeline(call, &scratch);
    Odometer odometer(call.geometry.kept, call.geometry.active);
    Offsets base;
    odometer.Seek(begin, Offsets{}, &base);
    for (int64_t row = begin; row < end;) {
      const int64_t rows = std::min(odometer.RunLength(), end - row);
      pipeline.Rows(base, rows);
      odometer.Advance(rows, &base);
      row += rows;
    }
  } else {
    GroupPipeline(call, &scratch).Run(begin, end);
  }
  if (call.stream) call.kernels->fence();
}

}  // namespace normfuse::cpu
