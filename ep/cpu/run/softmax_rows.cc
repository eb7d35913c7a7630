#include "cpu/run/softmax_rows.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "cpu/kernels/flush_denormals.h"
#include "cpu/run/softmax_statistics.h"

namespace normfuse::cpu {
namespace {

// How d is read by one kernel, where it can be: X with at most a factor and an addend. With `masked` what is in front of a mask,
// which is the last step: the mask takes the place of an addend.
class RowReader {
 public:
  explicit RowReader(const Call& call, bool masked = false)
      : call_(call), inner_(Innermost(call.geometry->reduced)), masked_(masked) {
    if (!ReadsX() || !ReadsSteps()) return;
    read_ = call.kernels->read_rows[static_cast<int>(call.x.type)];
    read_usual_ = call.kernels->usual_rows[static_cast<int>(call.x.type)];
  }
  bool possible() const { return read_ != nullptr; }

  void Read(const ReadRowsArgs& args) const { read_(args); }
  void ReadUsual(const ReadRowsArgs& args, double* sums) const { read_usual_(args, sums); }

  // For rows that follow each other along `row_step`.
  ReadRowsArgs ArgsAt(const Offsets& at, const Dim& row_step, int64_t n, int rows, float* most, float* d) const {
    ReadRowsArgs args;
    args.x = ElementAt(call_.x.data, call_.x.type, at.at[kFormX]);
    args.x_stride = row_step.stride[kFormX];
    args.n = static_cast<size_t>(n);
    args.rows = rows;
    if (call_.x.quantized()) {
      const Param& zero = call_.params[kFormXZero];
      args.scale = call_.params[kFormXScale].data[at.at[kFormXScale]];
      args.zero = zero.present() ? zero.data[at.at[kFormXZero]] : 0.0f;
    }
    args.factor = OperandAt(factor_, at, &kOne);
    args.addend = OperandAt(addend_, at, &kNoBias);
    if (factor_ != nullptr) args.factor_stride = row_step.stride[factor_->form];
    if (addend_ != nullptr) args.addend_stride = row_step.stride[addend_->form];
    args.d = d;
    args.d_stride = KeptStride(n);
    args.most = most;
    return args;
  }

 private:
  bool ReadsX() const {
    if (inner_.size != 1 && inner_.stride[kFormX] != 1) return false;
    const bool is_integer = !IsFloat(call_.x.type);
    if (!call_.x.quantized()) return !is_integer;
    return is_integer && call_.x.block_size <= 0 && inner_.stride[kFormXScale] == 0 && inner_.stride[kFormXZero] == 0;
  }

  bool ReadsSteps() {
    for (const Stage& stage : call_.spec->before) {
      if (masked_ && &stage == &call_.spec->before.back()) return stage.kind == StepKind::kMask && addend_ == nullptr;
      const bool is_factor = stage.kind == StepKind::kMul;
      if (!is_factor && stage.kind != StepKind::kAdd) return false;
      // A factor after an addend, or a second one.
      if (addend_ != nullptr || (is_factor && factor_ != nullptr) || !IsFloats(stage.operand)) return false;
      (is_factor ? factor_ : addend_) = &stage.operand;
    }
    return !masked_;
  }

  // Whether an operand is float32 where it lies.
  bool IsFloats(const StageOperand& operand) const {
    if (operand.is_parameter) return true;
    const BoundTensor& tensor = call_.tensor(operand.form);
    return tensor.type == DataType::kFloat32 && !tensor.quantized();
  }

  Vec OperandAt(const StageOperand* operand, const Offsets& at, const float* absent) const {
    if (operand == nullptr) return {absent, 0};
    if (operand->is_parameter) return VecAt(call_, operand->form, at, inner_, absent);
    const auto* data = static_cast<const float*>(call_.tensor(operand->form).data);
    return {data + at.at[operand->form], static_cast<int>(inner_.stride[operand->form])};
  }

  const Call& call_;
  const Dim& inner_;
  bool masked_;
  ReadRowsFn read_ = nullptr;
  UsualRowsFn read_usual_ = nullptr;
  const StageOperand* factor_ = nullptr;
  const StageOperand* addend_ = nullptr;
};

// Whether it goes along the last dimension alone.
bool HasRows(const Call& call) { return call.geometry->reduced.count == 1 && call.y != nullptr; }

// Whether such rows become Y without anything behind them.
bool StoresQuotients(const Call& call) {
  const Stage& stage = call.spec->behind.front();
  return HasRows(call) && call.spec->behind.size() == 1 && !stage.scale.present() && !stage.bias.present() &&
         !stage.slope.present();
}

// Whether several rows pass through the kernels at once.
bool HasShortRows(const Call& call) { return call.geometry->group_size <= kBlock; }

int64_t ShortRowsOfTile(const Call& call) {
  return std::clamp<int64_t>(kKeepLimit / 2 / KeptStride(call.geometry->group_size), 1, kTileRows);
}

// Whether one kernel makes quotients of rows while their largest values are usual ones.
bool HasOneKernel(const Call& call) {
  return call.spec->normalization.method == Method::kSoftmax && call.x.type == DataType::kFloat32 &&
         call.spec->y_type == DataType::kFloat32 && call.spec->activation == Activation::kIdentity;
}

// From the first to behind the last element of a tensor that begins at `data`, in bytes.
int64_t Extent(const Call& call, FormId form, DataType type) {
  int64_t elements = 1;
  for (const DimList* dims : {&call.geometry->kept, &call.geometry->reduced}) {
    for (int i = 0; i < dims->count; ++i) elements += (dims->dims[i].size - 1) * dims->dims[i].stride[form];
  }
  return elements * BitsOf(type) / 8;
}

// Whether the caller has put Y where X or an operand lies, which may be read again.
bool ReadsWhatYHolds(const Call& call) {
  const auto y = reinterpret_cast<uintptr_t>(call.y);
  const auto y_bytes = static_cast<uintptr_t>(Extent(call, kFormY, call.spec->y_type));
  const auto overlaps = [&](const void* data, FormId form, DataType type) {
    const auto begin = reinterpret_cast<uintptr_t>(data);
    return begin < y + y_bytes && y < begin + static_cast<uintptr_t>(Extent(call, form, type));
  };
  const auto is_in_y = [&](const Stage& stage) {
    const StageOperand& operand = stage.operand;
    if (!operand.present()) return false;
    if (operand.is_parameter) return overlaps(call.params[operand.form].data, operand.form, DataType::kFloat32);
    const BoundTensor& tensor = call.tensor(operand.form);
    return overlaps(tensor.data, operand.form, tensor.type);
  };
  return overlaps(call.x.data, kFormX, call.x.type) ||
         std::any_of(call.spec->before.begin(), call.spec->before.end(), is_in_y);
}

// Short rows that one kernel reads and writes while their largest values are usual ones. A mask in front of it is an addend, minus
// infinity where it hides: the exponentials of what is filled with less than kHidden are 0 as well.
class UsualRows {
 public:
  // `room` for kKeepLimit floats.
  UsualRows(const Call& call, Scratch* scratch, float* room)
      : call_(call),
        scratch_(scratch),
        room_(room),
        mask_(MaskOf(call)),
        reader_(call, mask_ != nullptr),
        inner_(Innermost(call.geometry->reduced)),
        step_(Innermost(call.geometry->kept)),
        size_(call.geometry->group_size) {}

  bool possible() const {
    const bool reads = mask_ != nullptr ? reader_.possible() : call_.path.sums == Source::kInput;
    return reads && HasOneKernel(call_) && StoresQuotients(call_) && HasShortRows(call_);
  }

  // How many of the rows were done: up to an unusual one.
  int64_t Run(const Offsets& at, int64_t rows) const {
    ReadRowsArgs args = reader_.ArgsAt(at, step_, size_, 1, nullptr, room_);
    if (mask_ != nullptr) {
      const bool is_same = step_.stride[mask_->operand.form] == 0;
      if (!is_same) rows = std::min(rows, ShortRowsOfTile(call_));
      MakeAddends(at, is_same ? 1 : rows);
      args.addend = {addends(), 1};
      args.addend_stride = is_same ? 0 : KeptStride(size_);
    }
    args.rows = static_cast<int>(std::min<int64_t>(rows, std::numeric_limits<int>::max()));
    return call_.kernels->softmax_rows(args, static_cast<float*>(call_.y) + at.at[kFormY], step_.stride[kFormY],
                                       call_.path.store == Store::kNonTemporal);
  }

 private:
  static constexpr float kHidden = -300.0f;

  static const Stage* MaskOf(const Call& call) {
    if (call.spec->before.empty()) return nullptr;
    const Stage& last = call.spec->before.back();
    return last.kind == StepKind::kMask && last.mask.fill <= kHidden ? &last : nullptr;
  }
  float* addends() const { return room_ + kKeepLimit / 2; }

  void MakeAddends(const Offsets& base, int64_t rows) const {
    for (int64_t row = 0; row < rows; ++row) {
      float* addend = addends() + row * KeptStride(size_);
      std::fill_n(addend, size_, 0.0f);
      HideBlock({call_, Moved(base, step_, row), inner_, size_, scratch_}, *mask_, kLowest, addend);
    }
  }

  const Call& call_;
  Scratch* scratch_;
  float* room_;
  const Stage* mask_;  // null: there is none
  RowReader reader_;
  const Dim& inner_;
  const Dim& step_;
  int64_t size_;
};

// What is known of rows that follow each other.
struct Tile {
  int rows;
  float most[kTileRows];
  ExponentBase bases[kTileRows];
  double sums[kTileRows];
};

// Any rows, in tiles of one or, of short ones, several. What is in a row is kept between the passes: in working memory, or, of a
// long row, in Y itself. While the largest values are usual ones, exponentials are taken as X is read; the bits are the same
// either way.
class RowWorker {
 public:
  RowWorker(const Call& call, Scratch* scratch)
      : call_(call),
        scratch_(scratch),
        d_(&scratch->kept),
        usual_rows_(call, scratch, d_.data()),
        reader_(call),
        inner_(Innermost(call.geometry->reduced)),
        step_(Innermost(call.geometry->kept)),
        method_(call.spec->normalization.method),
        in_place_(call.path.sums == Source::kInput),
        in_one_kernel_(usual_rows_.possible()),
        in_y_(KeepsInY(call)),
        kept_(in_y_ || call.geometry->group_size <= kKeepLimit),
        most_rows_(RowsOfTile()) {}

  void Rows(const Offsets& base, int64_t rows) {
    for (int64_t row = 0; row < rows;) {
      const Offsets at = Moved(base, step_, row);
      if (in_one_kernel_ && usual_) {
        const int64_t done = usual_rows_.Run(at, rows - row);
        usual_ = done != 0;
        row += done;
      } else {
        Tile tile{static_cast<int>(std::min(most_rows_, rows - row)), {}, {}, {}};
        Run(at, &tile);
        row += tile.rows;
      }
    }
  }

 private:
  int64_t RowsOfTile() const {
    const bool one_scale = step_.stride[kFormXScale] == 0 && step_.stride[kFormXZero] == 0;
    const bool reads = in_place_ ? one_scale : call_.reads_by_steps();
    const bool stores = call_.stores_by_steps() || (StoresQuotients(call_) && call_.block_apply != nullptr);
    return reads && stores && HasRows(call_) && HasShortRows(call_) ? ShortRowsOfTile(call_) : 1;
  }

  // From `base` on, where the first one is.
  template <class Visit>
  void ForEachRow(const Offsets& base, const Tile& tile, Visit visit) {
    Offsets at = base;
    for (int i = 0; i < tile.rows; ++i) {
      visit(at, i);
      MoveOn(step_, call_.geometry->active, 1, &at);
    }
  }

  // d of a tile's rows, from `position` on.
  float* LoadRows(const Offsets& at, int64_t position, int64_t n, const Tile& tile) {
    float* d = At(position);
    ForEachRow(at, tile, [&](const Offsets& row, int i) {
      LoadBlock({call_, row, inner_, n, scratch_}, call_.emission(), d + i * KeptStride(n));
    });
    return d;
  }

  void Run(const Offsets& base, Tile* tile) {
    if (in_y_) y_ = static_cast<float*>(call_.y) + base.at[kFormY];
    const bool is_log = method_ == Method::kLogSoftmax;
    const bool by_kernels = in_place_ || call_.reads_by_steps();
    const bool at_once = usual_ && by_kernels && kept_ && !is_log && call_.has_result();
    if (at_once) {
      ReadExponentials(base, tile);
    } else {
      Read(base, tile);
    }
    usual_ = std::all_of(tile->most, tile->most + tile->rows, IsUsual);
    if (at_once && !usual_) Read(base, tile);
    if (!call_.has_result()) return;
    std::transform(tile->most, tile->most + tile->rows, tile->bases, BaseFor);
    if (!at_once || !usual_) TakeExponentials(base, /*keep=*/kept_ && !is_log, tile);
    Store(base, /*take_again=*/!kept_ && !is_log, *tile);
  }

  void Read(const Offsets& base, Tile* tile) {
    std::fill_n(tile->most, tile->rows, kLowest);
    ForEachBlock(base, [&](const Offsets& at, int64_t position, int64_t n) {
      if (in_place_) {
        reader_.Read(reader_.ArgsAt(at, step_, n, tile->rows, tile->most, At(position)));
      } else {
        const float* d = LoadRows(at, position, n, *tile);
        for (int i = 0; i < tile->rows; ++i) {
          tile->most[i] = call_.kernels->row_max(d + i * KeptStride(n), static_cast<size_t>(n), tile->most[i]);
        }
      }
    });
  }

  // Of rows of float32 in place.
  static ReadRowsArgs ArgsOf(float* d, int64_t n, Tile* tile) {
    ReadRowsArgs args;
    args.x = args.d = d;
    args.x_stride = args.d_stride = KeptStride(n);
    args.n = static_cast<size_t>(n);
    args.rows = tile->rows;
    args.factor = {&kOne, 0};
    args.addend = {&kNoBias, 0};
    args.most = tile->most;
    return args;
  }

  // The exponentials of usual rows.
  void ReadExponentials(const Offsets& base, Tile* tile) {
    std::fill_n(tile->most, tile->rows, kLowest);
    std::fill_n(tile->sums, tile->rows, 0.0);
    ForEachBlock(base, [&](const Offsets& at, int64_t position, int64_t n) {
      double parts[kTileRows];
      if (in_place_) {
        reader_.ReadUsual(reader_.ArgsAt(at, step_, n, tile->rows, tile->most, At(position)), parts);
      } else {
        float* d = LoadRows(at, position, n, *tile);
        call_.kernels->usual_rows[static_cast<int>(DataType::kFloat32)](ArgsOf(d, n, tile), parts);
      }
      for (int i = 0; i < tile->rows; ++i) tile->sums[i] += parts[i];
    });
  }

  // Of what was read.
  void TakeExponentials(const Offsets& base, bool keep, Tile* tile) {
    std::fill_n(tile->sums, tile->rows, 0.0);
    ForEachBlock(base, [&](const Offsets& at, int64_t position, int64_t n) {
      float* d = Again(at, position, n);
      for (int i = 0; i < tile->rows; ++i) {
        tile->sums[i] += Exponentials(tile->bases[i], n, keep, d + i * KeptStride(n));
      }
    });
  }
  double Exponentials(const ExponentBase& base, int64_t n, bool keep, float* d) const {
    return call_.kernels->row_exp(d, static_cast<size_t>(n), base.shift, base.down, keep);
  }

  // The exponentials of the rows' largest values, with the bits that they have in the sums.
  void TakeLargest(const Tile& tile, float* largest) const {
    float shift[kTileRows], down[kTileRows], unused[2][kTileRows] = {};
    for (int i = 0; i < tile.rows; ++i) {
      shift[i] = tile.bases[i].shift;
      down[i] = tile.bases[i].down;
    }
    call_.kernels->column_exp(tile.most, static_cast<size_t>(tile.rows), {shift, down, unused[0], unused[1]}, largest);
  }

  void Store(const Offsets& base, bool take_again, const Tile& tile) {
    Normalizer normalizers[kTileRows];
    bool is_cleared[kTileRows];
    float largest[kTileRows] = {};
    if (method_ == Method::kLogSoftmax) TakeLargest(tile, largest);
    for (int i = 0; i < tile.rows; ++i) {
      normalizers[i] = NormalizerFor(method_, tile.most[i], tile.bases[i], {tile.sums[i], largest[i]});
      // 0 because it would be NaN, which no factor makes 0.
      is_cleared[i] = call_.spec->normalization.zero_for_nan && std::isnan(normalizers[i].inv);
      if (is_cleared[i]) normalizers[i] = {};
    }
    ForEachBlock(base, [&](const Offsets& at, int64_t position, int64_t n) {
      float* d = Again(at, position, n);
      if (take_again) Exponentials(tile.bases[0], n, /*keep=*/true, d);
      for (int i = 0; i < tile.rows; ++i) {
        if (is_cleared[i]) std::fill_n(d + i * KeptStride(n), n, 0.0f);
      }
      if (tile.rows == 1 || call_.stores_by_steps()) {
        return ForEachRow(at, tile, [&](const Offsets& row, int i) {
          float* const of_row = d + i * KeptStride(n);
          StoreBlock({call_, row, inner_, n, scratch_}, normalizers[i], of_row, of_row);
        });
      }
      ApplyArgs args = ApplyArgsAt(call_, at, inner_, step_, n, tile.rows, normalizers);
      args.x = d;
      args.x_stride = KeptStride(n);
      args.stream = call_.spec->y_type == DataType::kFloat32 && call_.path.store == Store::kNonTemporal;
      call_.block_apply(args);
    });
  }

  // In blocks from the beginning of each run on, which the sums depend on.
  template <class Visit>
  void ForEachBlock(const Offsets& base, Visit visit) {
    Odometer odometer(call_.geometry->reduced, call_.geometry->active);
    odometer.ForEachStretch({0, call_.geometry->group_size, kBlock}, base, visit);
  }

  // Kernels write whole vectors: the last block stays in working memory, as Y ends behind it.
  float* At(int64_t position) {
    if (in_y_ && position + kBlock <= inner_.size) return y_ + position;
    return d_.data() + (kept_ && !in_y_ ? position : 0);
  }
  float* Again(const Offsets& at, int64_t position, int64_t n) {
    float* d = At(position);
    if (!kept_) LoadBlock({call_, at, inner_, n, scratch_}, Emission::kNo, d);
    return d;
  }

  const Call& call_;
  Scratch* scratch_;
  KeptRoom::Loan d_;
  UsualRows usual_rows_;
  RowReader reader_;
  const Dim& inner_;
  const Dim& step_;
  Method method_;
  bool in_place_;  // reader_ reads d
  bool in_one_kernel_;
  bool in_y_;
  bool kept_;
  int64_t most_rows_;
  bool usual_ = true;   // the rows before
  float* y_ = nullptr;  // of the row, where it is kept there
};

}  // namespace

bool ReadsRows(const Call& call) { return RowReader(call).possible(); }

bool KeepsInY(const Call& call) {
  const bool makes_float =
      call.spec->normalization.method == Method::kSoftmax && call.spec->y_type == DataType::kFloat32;
  const bool stores =
      (StoresQuotients(call) && HasOneKernel(call)) || (HasRows(call) && makes_float && call.stores_by_steps());
  return call.geometry->group_size > kKeepLimit && stores && Innermost(call.geometry->reduced).stride[kFormY] == 1 &&
         !ReadsWhatYHolds(call);
}

void RunSoftmaxRows(const Call& call, int64_t begin, int64_t end) {
  const FlushDenormals flush;
  Scratch scratch;
  RowWorker worker(call, &scratch);
  Odometer(call.geometry->kept, call.geometry->active)
      .ForEachStretch({begin, end}, Offsets{},
                      [&](const Offsets& base, int64_t, int64_t rows) { worker.Rows(base, rows); });
}

}  // namespace normfuse::cpu
