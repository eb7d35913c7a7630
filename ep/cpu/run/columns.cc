// Groups whose innermost dimension is a kept one: as many groups side by side as a tile is wide, one statistic per
// column, read row by row.
#include <algorithm>
#include <cmath>

#include "cpu/kernels/flush_denormals.h"
#include "cpu/run/call.h"
#include "cpu/run/softmax_statistics.h"
#include "cpu/run/statistics.h"

namespace normfuse::cpu {
namespace {

constexpr int64_t kTile = 512;
constexpr int64_t kShiftRows = 16;
constexpr int64_t kFoldRows = 16;  // rows summed in float32 before the sums go on in double; see kSumBlock

// Calls visit(offsets, row) for the first `rows` rows of groups that lie side by side, the first of which begins at `base`.
template <class Visit>
void ForEachRow(const Call& call, const Offsets& base, int64_t rows, Visit visit) {
  Odometer odometer(call.geometry->reduced, call.geometry->active);
  odometer.ForEachStretch({0, rows, 1}, base, [&](const Offsets& at, int64_t row, int64_t) { visit(at, row); });
}

struct ColumnScratch {
  Scratch blocks;
  alignas(64) float shift[kTile];
  alignas(64) float first[kTile];
  alignas(64) float second[kTile];
  alignas(64) double total_first[kTile];
  alignas(64) double total_second[kTile];
  alignas(64) float mean[kTile];
  alignas(64) float inv[kTile];
  alignas(64) float rest[kTile];
  Quality quality[kTile];
  // For columns that need double precision: see Statistics::beyond_float.
  int64_t beyond_count;
  int64_t beyond[kTile];
  double center[kTile];
  double factor[kTile];
};

class ColumnWorker {
 public:
  using Scratch = ColumnScratch;
  ColumnWorker(const Call& call, ColumnScratch* scratch)
      : call_(call),
        s_(scratch),
        request_(RequestFor(call)),
        columns_(Innermost(call.geometry->kept)),
        d_(&scratch->blocks.kept) {}

  void Tile(const Offsets& base, int64_t width);

 private:
  void FindShift(const Offsets& base, int64_t width);
  void Accumulate(const Offsets& base, int64_t width, Emission emission);
  void AccumulateWide(const Offsets& base, int64_t width);
  bool Finish(const Offsets& base, int64_t width, Quality wanted);
  void Normalize(int64_t width, float* d);
  Sums SumsOf(int64_t i) const { return {s_->shift[i], s_->total_first[i], s_->total_second[i]}; }

  const Call& call_;
  ColumnScratch* s_;
  StatisticsRequest request_;
  const Dim& columns_;
  KeptRoom::Loan d_;  // of one row of the tile
};

void ColumnWorker::FindShift(const Offsets& base, int64_t width) {
  std::fill_n(s_->shift, width, 0.0f);
  if (!request_.use_mean) return;
  const int64_t rows = std::min(call_.geometry->group_size, kShiftRows);
  std::fill_n(s_->first, width, 0.0f);
  float* const d = d_.data();
  ForEachRow(call_, base, rows, [&](const Offsets& at, int64_t r) {
    LoadBlock({call_, at, columns_, width, &s_->blocks}, Emission::kNo, d);
    if (r == 0) std::copy_n(d, width, s_->shift);
    call_.kernels->column_sum(d, static_cast<size_t>(width), s_->shift, s_->first);
  });
  for (int64_t i = 0; i < width; ++i) {
    const float shift = s_->shift[i] + s_->first[i] / static_cast<float>(rows);
    s_->shift[i] = std::isfinite(shift) ? shift : 0.0f;
  }
}

void ColumnWorker::Accumulate(const Offsets& base, int64_t width, Emission emission) {
  const auto fold = [&] {
    for (int64_t i = 0; i < width; ++i) {
      s_->total_first[i] += static_cast<double>(s_->first[i]);
      s_->total_second[i] += static_cast<double>(s_->second[i]);
      s_->first[i] = s_->second[i] = 0.0f;
    }
  };
  std::fill_n(s_->first, width, 0.0f);
  std::fill_n(s_->second, width, 0.0f);
  std::fill_n(s_->total_first, width, 0.0);
  std::fill_n(s_->total_second, width, 0.0);
  float* const d = d_.data();
  ForEachRow(call_, base, call_.geometry->group_size, [&](const Offsets& at, int64_t r) {
    LoadBlock({call_, at, columns_, width, &s_->blocks}, emission, d);
    call_.kernels->column_moments(d, static_cast<size_t>(width), s_->shift, s_->first, s_->second);
    if (r % kFoldRows == kFoldRows - 1) fold();
  });
  fold();
}

void ColumnWorker::AccumulateWide(const Offsets& base, int64_t width) {
  float* const d = d_.data();
  const int64_t rows = call_.geometry->group_size;
  // The shift must fit in float32, which the mean of float32 values does.
  for (int pass = request_.use_mean ? 0 : 1; pass < 2; ++pass) {
    std::fill_n(s_->total_first, width, 0.0);
    std::fill_n(s_->total_second, width, 0.0);
    ForEachRow(call_, base, rows, [&](const Offsets& at, int64_t) {
      LoadBlock({call_, at, columns_, width, &s_->blocks}, Emission::kNo, d);
      for (int64_t i = 0; i < width; ++i) {
        const double off = static_cast<double>(d[i]) - static_cast<double>(s_->shift[i]);
        s_->total_first[i] += off;
        s_->total_second[i] += off * off;
      }
    });
    if (pass == 1) return;
    for (int64_t i = 0; i < width; ++i) {
      if (!std::isfinite(s_->total_first[i])) continue;  // so is the mean, then, and no difference from it a number
      s_->shift[i] = static_cast<float>(s_->shift[i] + s_->total_first[i] / static_cast<double>(rows));
    }
  }
}

// Turns the sums of the columns whose quality is `wanted` into statistics and writes those, and says whether any is there.
bool ColumnWorker::Finish(const Offsets& base, int64_t width, Quality wanted) {
  bool any = false;
  for (int64_t i = 0; i < width; ++i) {
    if (s_->quality[i] != wanted) continue;
    any = true;
    Statistics s;
    const Quality quality = Evaluate(request_, SumsOf(i), &s);
    const bool last = wanted != Quality::kGood || quality == Quality::kGood;
    s_->quality[i] = last ? Quality::kGood : quality;
    s_->mean[i] = s.normalizer.mean;
    s_->inv[i] = s.normalizer.inv;
    s_->rest[i] = s.normalizer.rest;
    if (last && s.beyond_float) {
      s_->center[s_->beyond_count] = s.center;
      s_->factor[s_->beyond_count] = s.factor;
      s_->beyond[s_->beyond_count++] = i;
    }
    StoreStatistics(call_, base.at[kFormStat] + i * columns_.stride[kFormStat], s);
  }
  return any;
}

void ColumnWorker::Normalize(int64_t width, float* d) {
  float* before = s_->first;
  if (s_->beyond_count != 0) std::copy_n(d, width, before);
  call_.kernels->column_normalize(d, static_cast<size_t>(width), s_->mean, s_->rest, s_->inv);
  for (int64_t k = 0; k < s_->beyond_count; ++k) {
    const int64_t i = s_->beyond[k];
    d[i] = static_cast<float>((static_cast<double>(before[i]) - s_->center[k]) * s_->factor[k]);
  }
}

// Columns that need it are summed again; the others keep their shifts, and with them their sums.
void ColumnWorker::Tile(const Offsets& base, int64_t width) {
  s_->beyond_count = 0;
  std::fill_n(s_->quality, width, Quality::kGood);
  FindShift(base, width);
  Accumulate(base, width, call_.emission());
  Finish(base, width, Quality::kGood);
  bool again = false;
  for (int64_t i = 0; i < width; ++i) {
    if (s_->quality[i] != Quality::kShift) continue;
    s_->shift[i] = static_cast<float>(Recentered(request_, SumsOf(i)).shift);
    again = true;
  }
  const bool wide = std::find(s_->quality, s_->quality + width, Quality::kWide) != s_->quality + width;
  if (again) {
    Accumulate(base, width, Emission::kNo);
    Finish(base, width, Quality::kShift);
  }
  if (wide) {
    AccumulateWide(base, width);
    Finish(base, width, Quality::kWide);
  }
  if (!call_.has_result()) return;
  float* const d = d_.data();
  ForEachRow(call_, base, call_.geometry->group_size, [&](const Offsets& at, int64_t) {
    LoadBlock({call_, at, columns_, width, &s_->blocks}, Emission::kNo, d);
    Normalize(width, d);
    StoreBlock({call_, at, columns_, width, &s_->blocks}, Normalizer{}, d, d);
  });
}

// Their softmax, or its logarithm.
class SoftmaxColumns {
 public:
  // Tiles of that many columns are kept between the passes, where they are not too many rows.
  static int64_t WidthFor(int64_t rows);

  struct Scratch {
    cpu::Scratch blocks;
    alignas(64) float most[kTile];
    alignas(64) float shift[kTile];
    alignas(64) float down[kTile];
    alignas(64) float sum[kTile];
    alignas(64) float lost[kTile];
    alignas(64) float largest[kTile];  // the exponential of `most`
    alignas(64) float mean[kTile];
    alignas(64) float rest[kTile];
    alignas(64) float inv[kTile];
  };

  SoftmaxColumns(const Call& call, Scratch* scratch)
      : call_(call), s_(scratch), columns_(Innermost(call.geometry->kept)), d_(&scratch->blocks.kept) {}
  void Tile(const Offsets& base, int64_t width);

 private:
  // Row `row` of d, kept or read again.
  float* Read(const Offsets& at, int64_t row, Emission emission);
  float* Again(const Offsets& at, int64_t row);
  void FindBases();
  void MakeNormalizers();

  FlushDenormals flush_;
  const Call& call_;
  Scratch* s_;
  const Dim& columns_;
  KeptRoom::Loan d_;  // of the tile, or of one row of it
  int64_t width_ = 0;
  bool kept_ = false;
};

int64_t SoftmaxColumns::WidthFor(int64_t rows) {
  constexpr int64_t kNarrowest = 64;
  return std::clamp(kKeepLimit / std::max<int64_t>(rows, 1) / 16 * 16, kNarrowest, kTile);
}

float* SoftmaxColumns::Read(const Offsets& at, int64_t row, Emission emission) {
  float* d = d_.data() + (kept_ ? row * width_ : 0);
  LoadBlock({call_, at, columns_, width_, &s_->blocks}, emission, d);
  return d;
}

float* SoftmaxColumns::Again(const Offsets& at, int64_t row) {
  return kept_ ? d_.data() + row * width_ : Read(at, row, Emission::kNo);
}

void SoftmaxColumns::FindBases() {
  std::fill_n(s_->shift, width_, 0.0f);
  std::fill_n(s_->down, width_, kUsualDown);
  bool usual = true;
  for (int64_t i = 0; i < width_; ++i) usual &= IsUsual(s_->most[i]);
  if (usual) return;
  for (int64_t i = 0; i < width_; ++i) {
    const ExponentBase base = BaseFor(s_->most[i]);
    s_->shift[i] = base.shift;
    s_->down[i] = base.down;
  }
}

void SoftmaxColumns::MakeNormalizers() {
  const auto sum_of = [this](int64_t i) { return static_cast<double>(s_->sum[i]) + static_cast<double>(s_->lost[i]); };
  if (call_.spec->normalization.method == Method::kSoftmax) {
    std::fill_n(s_->mean, width_, 0.0f);
    std::fill_n(s_->rest, width_, 0.0f);
    for (int64_t i = 0; i < width_; ++i) s_->inv[i] = ReciprocalOfSum(s_->most[i], sum_of(i));
    return;
  }
  const ColumnSums unused{s_->shift, s_->down, s_->mean, s_->rest};
  call_.kernels->column_exp(s_->most, static_cast<size_t>(width_), unused, s_->largest);
  for (int64_t i = 0; i < width_; ++i) {
    const ExponentBase base{s_->shift[i], s_->down[i]};
    const Normalizer n = NormalizerFor(Method::kLogSoftmax, s_->most[i], base, {sum_of(i), s_->largest[i]});
    s_->mean[i] = n.mean;
    s_->rest[i] = n.rest;
    s_->inv[i] = n.inv;
  }
}

void SoftmaxColumns::Tile(const Offsets& base, int64_t width) {
  width_ = width;
  const int64_t rows = call_.geometry->group_size;
  kept_ = width * rows <= kKeepLimit;
  const auto n = static_cast<size_t>(width);
  const KernelTable& kernels = *call_.kernels;
  const bool is_log = call_.spec->normalization.method == Method::kLogSoftmax;
  std::fill_n(s_->most, width, kLowest);
  ForEachRow(call_, base, rows,
             [&](const Offsets& at, int64_t row) { kernels.column_max(Read(at, row, call_.emission()), n, s_->most); });
  if (!call_.has_result()) return;
  FindBases();
  std::fill_n(s_->sum, width, 0.0f);
  std::fill_n(s_->lost, width, 0.0f);
  const ColumnSums sums{s_->shift, s_->down, s_->sum, s_->lost};
  ForEachRow(call_, base, rows, [&](const Offsets& at, int64_t row) {
    const BlockRoom::Loan unkept(&s_->blocks.read);
    float* d = Again(at, row);
    kernels.column_exp(d, n, sums, is_log ? unkept.data() : d);
  });
  MakeNormalizers();
  ForEachRow(call_, base, rows, [&](const Offsets& at, int64_t row) {
    float* d = Again(at, row);
    if (!kept_ && !is_log) kernels.column_exp(d, n, sums, d);
    kernels.column_normalize(d, n, s_->mean, s_->rest, s_->inv);
    for (int64_t i = 0; call_.spec->normalization.zero_for_nan && i < width; ++i) {
      if (std::isnan(s_->inv[i])) d[i] = 0.0f;
    }
    StoreBlock({call_, at, columns_, width_, &s_->blocks}, Normalizer{}, d, d);
  });
}

// Tiles of columns, `width` of them wide, for each position along the kept dimensions but the innermost.
struct ColumnTiles {
  DimList outer;
  int64_t size;  // columns of one position
  int64_t width;

  int64_t PerPosition() const { return (size + width - 1) / width; }
  int64_t Count() const { return PerPosition() * outer.ElementCount(); }
};

template <class Worker>
void RunTiles(const Call& call, const ColumnTiles& tiles, int64_t begin, int64_t end) {
  typename Worker::Scratch scratch;
  Worker worker(call, &scratch);
  Odometer odometer(tiles.outer, call.geometry->active);
  for (int64_t i = begin; i < end; ++i) {
    Offsets base;
    odometer.Seek(i / tiles.PerPosition(), Offsets{}, &base);
    const int64_t first = i % tiles.PerPosition() * tiles.width;
    const Dim& columns = Innermost(call.geometry->kept);
    worker.Tile(Moved(base, columns, first), std::min(tiles.width, tiles.size - first));
  }
}

}  // namespace

Result RunColumns(const Call& call) {
  const Geometry& g = *call.geometry;
  const bool is_softmax = call.spec->normalization.is_softmax();
  const auto run = is_softmax ? RunTiles<SoftmaxColumns> : RunTiles<ColumnWorker>;
  ColumnTiles tiles{g.kept, Innermost(g.kept).size, is_softmax ? SoftmaxColumns::WidthFor(g.group_size) : kTile};
  if (--tiles.outer.count == 0) tiles.outer.dims[tiles.outer.count++] = Dim{1, {}};
  const int threads = call.path.threads;
  // Narrower tiles where that keeps every thread busy.
  while (tiles.width > 64 && tiles.Count() < threads) tiles.width /= 2;
  const int64_t count = tiles.Count();
  const int64_t parts =
      count == 1 ? 1 : call.work_sharing->PartsFor(threads, std::min<int64_t>(count, int64_t{4} * threads));
  return ForEachPart(call, parts, [&](int64_t part) {
    run(call, tiles, BeginOfPart(part, parts, count), BeginOfPart(part + 1, parts, count));
  });
}

}  // namespace normfuse::cpu
