// Tiles of rows, each a group of one contiguous run: summed side by side, then normalised side by side while they are still
// in the level-1 cache.
#include <algorithm>
#include <optional>

#include "cpu/run/group_worker.h"
#include "cpu/run/non_temporal_writer.h"

namespace normfuse::cpu {
namespace {

// A stretch of rows along the innermost kept dimension. From batch to batch only pointers move on.
class Tiles {
 public:
  Tiles(const Call& call, Scratch* scratch)
      : call_(call),
        scratch_(scratch),
        worker_(call, scratch),
        writer_(call),
        kept_(Innermost(call.geometry->kept)),
        run_(Innermost(call.geometry->reduced)),
        most_(call.path.rows),
        keeps_(call.path.result == Source::kKept),
        by_steps_(call.path.sums == Source::kSteps),
        row_sums_(by_steps_ ? call.kernels->first_pass(DataType::kFloat32, SumKind::kSingle) : call.row_sums),
        stores_statistics_(call.mean != nullptr || call.inv_std_dev != nullptr),
        usual_request_(UsualOf(worker_.request())) {
    if (keeps_ || by_steps_) kept_rows_.emplace(&scratch->kept);
  }

  void Rows(const Offsets& base, int64_t rows);

 private:
  void Prepare(const Offsets& base);
  template <class Visit>
  void ForEachBlock(int64_t row, int rows, Visit visit);
  void Sum(int64_t row, int rows);
  void Finish(int64_t row);
  void Apply(int64_t row, int rows);
  void ApplyInDouble(int64_t row);
  Offsets RowBase(int64_t row) const { return Moved(*base_, kept_, row); }

  const Call& call_;
  Scratch* scratch_;
  GroupWorker worker_;
  NonTemporalWriter writer_;
  const Dim& kept_;
  const Dim& run_;
  int64_t most_;
  bool keeps_;
  bool by_steps_;  // d is made
  std::optional<KeptRoom::Loan> kept_rows_;
  RowSumsFn row_sums_;
  bool stores_statistics_;
  UsualRequest usual_request_;
  const Offsets* base_ = nullptr;  // of row 0
  ApplyArgs apply_;
  RowSumsArgs next_;
  Sums sums_[kTileRows];
  Normalizer normalizers_[kTileRows];
  // Of the rows of this batch whose normalizers are not accurate enough.
  bool has_beyond_ = false;
  std::optional<Statistics> beyond_[kTileRows];
};

// Makes normalizers of the sums of the batch's rows, the first of which is `row`.
void Tiles::Finish(int64_t row) {
  for (int i = 0; i < next_.rows; ++i) {
    Statistics s;
    const Offsets at = RowBase(row + i);
    worker_.SetGroup(at);
    worker_.Finish(at, sums_[i], &s);
    normalizers_[i] = s.normalizer;
    if (s.beyond_float) {
      beyond_[i] = s;
      has_beyond_ = true;
    }
  }
}

// Calls visit(block, its part of d) for all blocks of `rows` rows, the first of which is `row`.
template <class Visit>
void Tiles::ForEachBlock(int64_t row, int rows, Visit visit) {
  Offsets base = RowBase(row);
  for (int i = 0; i < rows; ++i) {
    Offsets at = base;
    float* d = kept_rows_->data() + i * KeptStride(run_.size);
    for (int64_t done = 0; done < run_.size; done += kBlock) {
      visit(i, Block{call_, at, run_, std::min(run_.size - done, kBlock), scratch_}, d + done);
      MoveOn(run_, call_.geometry->active, kBlock, &at);
    }
    MoveOn(kept_, call_.geometry->active, 1, &base);
  }
}

// Sums of `rows` rows, the first of which is `row`, and what follows from them.
void Tiles::Sum(int64_t row, int rows) {
  next_.rows = rows;
  if (by_steps_) {
    ForEachBlock(row, rows, [](int, const Block& block, float* d) { LoadBlock(block, Emission::kNo, d); });
  }
  if (row_sums_(next_) && next_.usual != nullptr) return;
  Finish(row);
}

void Tiles::Apply(int64_t row, int rows) {
  apply_.rows = rows;
  if (call_.y == nullptr) return;
  if (call_.apply == nullptr) {
    return ForEachBlock(row, rows,
                        [this](int i, const Block& block, float* d) { StoreBlock(block, normalizers_[i], d, d); });
  }
  writer_.Apply(call_.apply, keeps_ ? DataType::kFloat32 : call_.apply_type(), apply_);
}

// Normalises rows that need double precision again.
void Tiles::ApplyInDouble(int64_t row) {
  writer_.Close();
  for (int i = 0; i < next_.rows; ++i) {
    if (!beyond_[i]) continue;
    const Offsets base = RowBase(row + i);
    worker_.SetGroup(base);
    worker_.ApplyInDouble(base, {0, run_.size}, *beyond_[i]);
    beyond_[i].reset();
  }
  has_beyond_ = false;
}

void Tiles::Prepare(const Offsets& base) {
  base_ = &base;
  next_ = RowSumsArgsAt(call_, base, kept_, run_.size, 0, sums_);
  const StatisticsRequest& request = worker_.request();
  next_.find_shift = request.use_mean;
  next_.normalizers = normalizers_;
  // The stored integer that means 0 is the zero point.
  const bool known_center = request.use_mean || !call_.path.stored_integers;
  if (IsUsual(request) && known_center && !stores_statistics_) next_.usual = &usual_request_;
  if (call_.path.stored_integers) {
    next_.x_scale = call_.params[kFormXScale].data + base.at[kFormXScale];
    next_.x_scale_stride = kept_.stride[kFormXScale];
  }
  apply_ = ApplyArgsAt(call_, base, run_, kept_, run_.size, 0, normalizers_);
  apply_.ahead = static_cast<size_t>(most_ * apply_.x_stride);
  if (by_steps_) {
    next_.x = apply_.x = kept_rows_->data();
    next_.x_stride = apply_.x_stride = KeptStride(run_.size);
    apply_.ahead = 0;
  } else if (keeps_) {
    next_.kept = kept_rows_->data();
    next_.kept_stride = KeptStride(run_.size);
    apply_.x = kept_rows_->data();
    apply_.x_stride = KeptStride(run_.size);
    apply_.ahead = 0;
    // Branch predictors do not learn a loop over two short rows at a time.
    next_.ahead = static_cast<size_t>(most_ * next_.x_stride);
  }
}

void Tiles::Rows(const Offsets& base, int64_t rows) {
  Prepare(base);
  const auto move = [this](int64_t count) {
    const auto move_on = [count](auto** pointer, int64_t stride, auto...) { MoveOn(pointer, count * stride); };
    ForEachPointer(&next_, call_.x.type, move_on);
    ForEachPointer(&apply_, call_.apply_type(), call_.spec->y_type, move_on);
    if (keeps_) apply_.x = kept_rows_->data();
    if (by_steps_) next_.x = kept_rows_->data();
    return count;
  };
  const bool both = call_.both_passes != nullptr && next_.usual != nullptr;
  for (int64_t row = 0; row < rows;) {
    if (both) row += move(call_.both_passes(next_, apply_, rows - row));
    const int64_t count = std::min(most_, rows - row);
    if (count == 0) break;
    Sum(row, static_cast<int>(count));
    Apply(row, static_cast<int>(count));
    if (has_beyond_) ApplyInDouble(row);
    row += move(count);
  }
}

}  // namespace

void RunTiles(const Call& call, int64_t begin, int64_t end) {
  Scratch scratch;
  Tiles tiles(call, &scratch);
  Odometer odometer(call.geometry->kept, call.geometry->active);
  odometer.ForEachStretch({begin, end}, Offsets{},
                          [&](const Offsets& base, int64_t, int64_t rows) { tiles.Rows(base, rows); });
}

}  // namespace normfuse::cpu
