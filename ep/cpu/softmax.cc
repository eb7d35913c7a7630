#include "cpu/softmax.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace normfuse::cpu {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kLowest = -std::numeric_limits<float>::infinity();
constexpr double kLog2E = 1.4426950408889634;
constexpr double kLn2 = 0.6931471805599453;

// What exponentials of a group are taken of and by: exp(d - shift) * 2^-down is about 2^-kUsualDown for the largest value of
// d. Small values are not shifted, as the difference would be rounded; large ones are, whose differences are exact wherever
// their exponentials are not 0.
struct Base {
  float shift = 0.0f;
  float down = 0.0f;
};

bool IsUsual(float most) { return most >= kUsualLeast && most <= kUsualMost; }

Base BaseFor(float most) {
  constexpr float kLarge = 256.0f;
  Base base;
  if (!(std::fabs(most) <= std::numeric_limits<float>::max())) return base;
  base.down = kUsualDown;
  if (IsUsual(most)) return base;
  if (std::fabs(most) < kLarge) {
    base.down += std::nearbyint(static_cast<float>(static_cast<double>(most) * kLog2E));
  } else {
    base.shift = most;
  }
  return base;
}

// The same for columns side by side. Without branches, for compilers that make vectors of it.
void BasesFor(const float* most, int64_t width, float* shift, float* down) {
  bool usual = true;
  for (int64_t i = 0; i < width; ++i) usual &= IsUsual(most[i]);
  std::fill_n(shift, width, 0.0f);
  std::fill_n(down, width, kUsualDown);
  if (usual) return;
  for (int64_t i = 0; i < width; ++i) {
    const Base base = BaseFor(most[i]);
    shift[i] = base.shift;
    down[i] = base.down;
  }
}

// Whether a group has a finite largest value.
bool IsDefined(float most, double sum) { return std::fabs(most) <= std::numeric_limits<float>::max() && sum > 0; }

// Of the sum of exponentials; NaN of a group that is not defined.
float Reciprocal(float most, double sum) {
  const auto inverse = static_cast<float>(1.0 / sum);
  return IsDefined(most, sum) ? inverse : kNan;
}

// Y of what the exponentials left, or for the logarithm of d itself. NaN of a group that is not defined.
Normalizer NormalizerFor(Method method, float most, const Base& base, double sum) {
  if (method == Method::kSoftmax) return {0.0f, 0.0f, Reciprocal(most, sum)};
  if (!IsDefined(most, sum)) return {0.0f, kNan, 1.0f};
  // The logarithm of the sum would be lost beside a large shift; what remains of d without the shift is exact.
  const double log = base.down * kLn2 + std::log(sum);
  if (base.shift != 0) return {base.shift, static_cast<float>(log), 1.0f};
  const auto mean = static_cast<float>(log);
  return {mean, static_cast<float>(log - mean), 1.0f};
}

// Whether the group is 0 because it would be NaN: it has no exponentials that a factor would make 0 of.
bool IsCleared(const Call& call, const Normalizer& normalizer) {
  return call.spec->normalization.zero_for_nan && std::isnan(normalizer.inv);
}

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

// Whether rows of the last dimension become Y without anything behind them.
bool StoresQuotients(const Call& call) {
  const Stage& stage = call.spec->behind.front();
  return call.geometry->reduced.count == 1 && call.spec->behind.size() == 1 && call.y != nullptr &&
         !stage.scale.present() && !stage.bias.present() && !stage.slope.present();
}

// Whether several rows pass through the kernels at once.
bool HasShortRows(const Call& call) { return call.geometry->group_size <= kBlock; }

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

// Rows that are read by one kernel and written by another, several in each call of these, or by one that does both. While the
// largest values are usual ones, exponentials are taken as X is read; the bits are the same either way.
class TileWorker {
 public:
  TileWorker(const Call& call, Scratch* scratch)
      : call_(call),
        scratch_(scratch),
        reader_(call),
        inner_(Innermost(call.geometry->reduced)),
        step_(Innermost(call.geometry->kept)),
        size_(call.geometry->group_size),
        usual_(call.spec->normalization.method == Method::kSoftmax),
        one_kernel_(HasOneKernel(call)) {}

  static bool Suits(const Call& call) {
    return call.path.sums == Source::kInput && call.block_apply != nullptr && StoresQuotients(call) &&
           HasShortRows(call);
  }

  void Rows(const Offsets& base, int64_t rows) {
    const int64_t most_rows = RowsOfTile();
    for (int64_t row = 0; row < rows;) {
      const Offsets at = Moved(base, step_, row);
      if (one_kernel_ && usual_) {
        row += InOneKernel(at, static_cast<int>(std::min<int64_t>(rows - row, std::numeric_limits<int>::max())));
        usual_ = row == rows;
      } else {
        const int64_t count = std::min(most_rows, rows - row);
        Tile(at, static_cast<int>(count));
        row += count;
      }
    }
  }

 private:
  int64_t RowsOfTile() const {
    if (step_.stride[kFormXScale] != 0 || step_.stride[kFormXZero] != 0) return 1;
    return std::clamp<int64_t>(kKeepLimit / 2 / KeptStride(size_), 1, kTileRows);
  }

  // How many of the rows were done: up to an unusual one.
  int InOneKernel(const Offsets& at, int rows) const {
    const ReadRowsArgs args = reader_.ArgsAt(at, step_, size_, rows, nullptr, scratch_->kept);
    return call_.kernels->softmax_rows(args, static_cast<float*>(call_.y) + at.at[kFormY], step_.stride[kFormY],
                                       call_.path.store == Store::kNonTemporal);
  }

  void Tile(const Offsets& base, int rows) {
    float most[kTileRows];
    Normalizer normalizers[kTileRows];
    std::fill_n(most, rows, kLowest);
    Exponentials(reader_.ArgsAt(base, step_, size_, rows, most, scratch_->kept), normalizers);
    ApplyArgs args = ApplyArgsAt(call_, base, inner_, step_, size_, rows, normalizers);
    args.x = scratch_->kept;
    args.x_stride = KeptStride(size_);
    args.stream = call_.spec->y_type == DataType::kFloat32 && call_.path.store == Store::kNonTemporal;
    call_.block_apply(args);
  }

  // d of the rows, or its exponentials, and how they become Y.
  void Exponentials(const ReadRowsArgs& args, Normalizer* normalizers) {
    const Method method = call_.spec->normalization.method;
    const bool at_once = usual_;
    float shift[kTileRows], down[kTileRows];
    double sums[kTileRows];
    if (at_once) {
      reader_.ReadUsual(args, sums);
    } else {
      reader_.Read(args);
    }
    usual_ = method == Method::kSoftmax && std::all_of(args.most, args.most + args.rows, IsUsual);
    if (at_once && !usual_) {
      std::fill_n(args.most, args.rows, kLowest);
      reader_.Read(args);
    }
    for (int i = 0; i < args.rows; ++i) {
      const Base base = BaseFor(args.most[i]);
      shift[i] = base.shift;
      down[i] = base.down;
    }
    if (!(at_once && usual_)) {
      const bool keep = method == Method::kSoftmax;
      call_.kernels->exp_rows({args.d, args.d_stride, args.n, args.rows, shift, down, keep, sums});
    }
    for (int i = 0; i < args.rows; ++i) {
      normalizers[i] = NormalizerFor(method, args.most[i], {shift[i], down[i]}, sums[i]);
      if (!IsCleared(call_, normalizers[i])) continue;
      std::fill_n(args.d + args.d_stride * i, size_, 0.0f);
      normalizers[i] = {};
    }
  }

  const Call& call_;
  Scratch* scratch_;
  RowReader reader_;
  const Dim& inner_;
  const Dim& step_;
  int64_t size_;
  bool usual_;  // the rows before
  bool one_kernel_;
};

// One row after the other. What is in the row is kept between the passes: in working memory, or, of a long row, in Y itself.
class RowWorker {
 public:
  RowWorker(const Call& call, Scratch* scratch)
      : call_(call),
        scratch_(scratch),
        reader_(call),
        inner_(Innermost(call.geometry->reduced)),
        in_y_(KeepsInY(call)),
        kept_(in_y_ || call.geometry->group_size <= kKeepLimit),
        is_log_(call.spec->normalization.method == Method::kLogSoftmax),
        at_once_(kept_ && !is_log_ && call.path.sums == Source::kInput && call.has_result()),
        usual_(at_once_) {}

  void Row(const Offsets& base) {
    float most = kLowest;
    double sum = 0;
    if (in_y_) y_ = static_cast<float*>(call_.y) + base.at[kFormY];
    const bool done = usual_ && ReadUsual(base, &most, &sum);
    if (!done) Read(base, &most);
    usual_ = at_once_ && IsUsual(most);
    if (!call_.has_result()) return;
    const Base exponents = BaseFor(most);
    if (!done) {
      ForEachBlock(base, [&](const Offsets& at, int64_t position, int64_t n) {
        float* d = Again(at, position, n);
        sum += call_.kernels->row_exp(d, static_cast<size_t>(n), exponents.shift, exponents.down, kept_ && !is_log_);
      });
    }
    Normalizer normalizer = NormalizerFor(call_.spec->normalization.method, most, exponents, sum);
    const bool is_cleared = IsCleared(call_, normalizer);
    if (is_cleared) normalizer = {};
    ForEachBlock(base, [&](const Offsets& at, int64_t position, int64_t n) {
      float* d = Again(at, position, n);
      if (!kept_ && !is_log_) {
        call_.kernels->row_exp(d, static_cast<size_t>(n), exponents.shift, exponents.down, true);
      }
      if (is_cleared) std::fill_n(d, n, 0.0f);
      StoreBlock({call_, at, inner_, n, scratch_}, normalizer, d, d);
    });
  }

 private:
  // The exponentials as X is read. False, and nothing is done, where the largest value is no usual one.
  bool ReadUsual(const Offsets& base, float* most, double* sum) {
    ForEachBlock(base, [&](const Offsets& at, int64_t position, int64_t n) {
      double part;
      reader_.ReadUsual(reader_.ArgsAt(at, inner_, n, 1, most, At(position)), &part);
      *sum += part;
    });
    if (IsUsual(*most)) return true;
    *most = kLowest;
    *sum = 0;
    return false;
  }

  void Read(const Offsets& base, float* most) {
    ForEachBlock(base, [&](const Offsets& at, int64_t position, int64_t n) {
      if (call_.path.sums == Source::kInput) {
        reader_.Read(reader_.ArgsAt(at, inner_, n, 1, most, At(position)));
      } else {
        *most = call_.kernels->row_max(Load(at, position, n, call_.emission()), static_cast<size_t>(n), *most);
      }
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
    return scratch_->kept + (kept_ && !in_y_ ? position : 0);
  }
  float* Load(const Offsets& at, int64_t position, int64_t n, Emission emission) {
    float* d = At(position);
    LoadBlock({call_, at, inner_, n, scratch_}, emission, d);
    return d;
  }
  float* Again(const Offsets& at, int64_t position, int64_t n) {
    return kept_ ? At(position) : Load(at, position, n, Emission::kNo);
  }

  const Call& call_;
  Scratch* scratch_;
  RowReader reader_;
  const Dim& inner_;
  float* y_ = nullptr;  // of the row, where it is kept there
  bool in_y_;
  bool kept_;
  bool is_log_;
  bool at_once_;
  bool usual_;  // the row before
};

// Rows under a mask: minus infinity is added to what it hides. Where a row's largest value is a usual one, the exponentials of
// what it hides are 0 whatever it is filled with, as far as that is below kHidden; other rows are masked as they are read.
class MaskedWorker {
 public:
  MaskedWorker(const Call& call, Scratch* scratch)
      : call_(call),
        scratch_(scratch),
        reader_(call, /*masked=*/true),
        others_(call, scratch),
        inner_(Innermost(call.geometry->reduced)),
        step_(Innermost(call.geometry->kept)),
        size_(call.geometry->group_size) {}

  static bool Suits(const Call& call) {
    return !call.spec->before.empty() && call.spec->before.back().mask.fill <= kHidden && HasOneKernel(call) &&
           StoresQuotients(call) && HasShortRows(call) && RowReader(call, /*masked=*/true).possible();
  }

  void Rows(const Offsets& base, int64_t rows) {
    const int64_t most_rows = std::clamp<int64_t>(kKeepLimit / 2 / KeptStride(size_), 1, kTileRows);
    int64_t ready = 0;  // rows for which there are addends
    for (int64_t row = 0; row < rows;) {
      const int64_t count = std::min(most_rows, rows - row);
      const Offsets at = Moved(base, step_, row);
      if (!IsSame() || ready < 1) MakeAddends(at, IsSame() ? 1 : count);
      ready = 1;
      const int64_t done = InOneKernel(at, static_cast<int>(count));
      row += done;
      if (done == count) continue;
      others_.Row(Moved(base, step_, row++));
      ready = 0;
    }
  }

 private:
  static constexpr float kHidden = -300.0f;

  const Stage& mask() const { return call_.spec->before.back(); }
  // Whether all rows have the mask of the first.
  bool IsSame() const { return step_.stride[mask().operand.form] == 0; }
  float* addends() const { return scratch_->kept + kKeepLimit / 2; }

  void MakeAddends(const Offsets& base, int64_t rows) const {
    for (int64_t row = 0; row < rows; ++row) {
      float* addend = addends() + row * KeptStride(size_);
      std::fill_n(addend, size_, 0.0f);
      HideBlock({call_, Moved(base, step_, row), inner_, size_, scratch_}, mask(), kLowest, addend);
    }
  }

  // How many of the rows were done: up to an unusual one.
  int InOneKernel(const Offsets& at, int rows) const {
    ReadRowsArgs args = reader_.ArgsAt(at, step_, size_, rows, nullptr, scratch_->kept);
    args.addend = {addends(), 1};
    args.addend_stride = IsSame() ? 0 : KeptStride(size_);
    return call_.kernels->softmax_rows(args, static_cast<float*>(call_.y) + at.at[kFormY], step_.stride[kFormY],
                                       call_.path.store == Store::kNonTemporal);
  }

  const Call& call_;
  Scratch* scratch_;
  RowReader reader_;
  RowWorker others_;
  const Dim& inner_;
  const Dim& step_;
  int64_t size_;
};

}  // namespace

bool ReadsRows(const Call& call) { return RowReader(call).possible(); }

bool KeepsInY(const Call& call) {
  return call.geometry->group_size > kKeepLimit && HasOneKernel(call) && StoresQuotients(call) &&
         Innermost(call.geometry->reduced).stride[kFormY] == 1 && !ReadsWhatYHolds(call);
}

void RunSoftmaxRows(const Call& call, int64_t begin, int64_t end) {
  const FlushDenormals flush;
  Scratch scratch;
  Odometer odometer(call.geometry->kept, call.geometry->active);
  const auto run = [&](auto worker) {
    odometer.ForEachStretch({begin, end}, Offsets{},
                            [&](const Offsets& base, int64_t, int64_t rows) { worker.Rows(base, rows); });
  };
  if (MaskedWorker::Suits(call)) {
    run(MaskedWorker(call, &scratch));
  } else if (TileWorker::Suits(call)) {
    run(TileWorker(call, &scratch));
  } else {
    RowWorker worker(call, &scratch);
    odometer.ForEachStretch({begin, end, 1}, Offsets{},
                            [&](const Offsets& base, int64_t, int64_t) { worker.Row(base); });
  }
}

int64_t SoftmaxColumns::WidthFor(int64_t rows) {
  constexpr int64_t kNarrowest = 64;
  return std::clamp(kKeepLimit / std::max<int64_t>(rows, 1) / 16 * 16, kNarrowest, kWidest);
}

SoftmaxColumns::SoftmaxColumns(const Call& call, Scratch* scratch)
    : call_(call), s_(scratch), columns_(Innermost(call.geometry->kept)) {}

float* SoftmaxColumns::Read(const Offsets& at, int64_t row, Emission emission) {
  float* d = s_->blocks.kept + (kept_ ? row * width_ : 0);
  LoadBlock({call_, at, columns_, width_, &s_->blocks}, emission, d);
  return d;
}

float* SoftmaxColumns::Again(const Offsets& at, int64_t row) {
  return kept_ ? s_->blocks.kept + row * width_ : Read(at, row, Emission::kNo);
}

void SoftmaxColumns::MakeNormalizers() {
  const auto sum_of = [this](int64_t i) { return static_cast<double>(s_->sum[i]) + static_cast<double>(s_->lost[i]); };
  if (call_.spec->normalization.method == Method::kSoftmax) {
    // As NormalizerFor does, without branches.
    std::fill_n(s_->mean, width_, 0.0f);
    std::fill_n(s_->rest, width_, 0.0f);
    for (int64_t i = 0; i < width_; ++i) s_->inv[i] = Reciprocal(s_->most[i], sum_of(i));
    return;
  }
  for (int64_t i = 0; i < width_; ++i) {
    const double sum = sum_of(i);
    const Normalizer n = NormalizerFor(call_.spec->normalization.method, s_->most[i], {s_->shift[i], s_->down[i]}, sum);
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
  BasesFor(s_->most, width, s_->shift, s_->down);
  std::fill_n(s_->sum, width, 0.0f);
  std::fill_n(s_->lost, width, 0.0f);
  ForEachRow(call_, base, rows, [&](const Offsets& at, int64_t row) {
    float* d = Again(at, row);
    if (is_log) d = std::copy_n(d, width, s_->blocks.wide) - width;
    kernels.column_exp(d, n, s_->shift, s_->down, s_->sum, s_->lost);
  });
  MakeNormalizers();
  ForEachRow(call_, base, rows, [&](const Offsets& at, int64_t row) {
    float* d = Again(at, row);
    if (!kept_ && !is_log) kernels.column_exp(d, n, s_->shift, s_->down, s_->sum, s_->lost);
    kernels.column_normalize(d, n, s_->mean, s_->rest, s_->inv);
    for (int64_t i = 0; call_.spec->normalization.zero_for_nan && i < width; ++i) {
      if (std::isnan(s_->inv[i])) d[i] = 0.0f;
    }
    StoreBlock({call_, at, columns_, width_, &s_->blocks}, Normalizer{}, d, d);
  });
}

}  // namespace normfuse::cpu
