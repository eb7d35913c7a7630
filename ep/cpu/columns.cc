// Groups whose innermost dimension is a kept one: as many groups side by side as a tile is wide, one statistic per
// column, read row by row.
#include <algorithm>
#include <cmath>

#include "cpu/call.h"
#include "cpu/softmax_columns.h"
#include "cpu/statistics.h"

namespace normfuse::cpu {
namespace {

constexpr int64_t kTile = 512;
constexpr int64_t kShiftRows = 16;
constexpr int64_t kFoldRows = 16;  // rows summed in float32 before the sums go on in double; see kSumBlock

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
      : call_(call), s_(scratch), request_(RequestFor(call)), columns_(Innermost(call.geometry->kept)) {}

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
};

void ColumnWorker::FindShift(const Offsets& base, int64_t width) {
  std::fill_n(s_->shift, width, 0.0f);
  if (!request_.use_mean) return;
  const int64_t rows = std::min(call_.geometry->group_size, kShiftRows);
  std::fill_n(s_->first, width, 0.0f);
  float* d = s_->blocks.kept;
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
  float* d = s_->blocks.kept;
  ForEachRow(call_, base, call_.geometry->group_size, [&](const Offsets& at, int64_t r) {
    LoadBlock({call_, at, columns_, width, &s_->blocks}, emission, d);
    call_.kernels->column_moments(d, static_cast<size_t>(width), s_->shift, s_->first, s_->second);
    if (r % kFoldRows == kFoldRows - 1) fold();
  });
  fold();
}

void ColumnWorker::AccumulateWide(const Offsets& base, int64_t width) {
  float* d = s_->blocks.kept;
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
  float* d = s_->blocks.kept;
  ForEachRow(call_, base, call_.geometry->group_size, [&](const Offsets& at, int64_t) {
    LoadBlock({call_, at, columns_, width, &s_->blocks}, Emission::kNo, d);
    Normalize(width, d);
    StoreBlock({call_, at, columns_, width, &s_->blocks}, Normalizer{}, d, d);
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
