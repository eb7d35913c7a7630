#include "cpu/plan/path.h"

#include <algorithm>
#include <bit>
#include <cstdlib>

#include "cpu/plan/cost_model.h"
#include "cpu/run/call.h"
#include "cpu/run/softmax_rows.h"

namespace normfuse::cpu {
namespace {

bool OnlyZeroStrides(const DimList& dims, FormId form) {
  for (int i = 0; i < dims.count; ++i) {
    if (dims.dims[i].stride[form] != 0) return false;
  }
  return true;
}

// Whether a run along `dim` is contiguous in `form`.
bool Contiguous(const Dim& dim, FormId form) { return dim.stride[form] == 1 || dim.size == 1; }

// The facts that the choice depends on.
struct Facts {
  explicit Facts(const Call& of)
      : call(of),
        spec(*of.spec),
        kernels(*of.kernels),
        g(*of.geometry),
        run(Innermost(g.reduced)),
        run_d(Innermost(g.reduced_d)),
        has_bias(of.params[kFormResidualBias].present()),
        plain(of.spec->usual_before && of.residual.data == nullptr && !has_bias && of.sum == nullptr),
        normalizes(spec.normalizes) {}

  const Call& call;
  const ChainSpec& spec;
  const KernelTable& kernels;
  const Geometry& g;
  const Dim& run;    // innermost of what is normalised
  const Dim& run_d;  // innermost of what d is made of
  bool has_bias;
  bool plain;  // d is X
  bool normalizes;

  // Each group is one run.
  bool OneRun() const { return g.reduced.count == 1 && g.reduced_d.count == 1; }
  int64_t YBytes() const { return BitsOf(spec.y_type) / 8; }
};

// Whether the stored values of a group, or without a normalisation those of a run, share scale and zero point.
bool HasOneScale(const Facts& f) {
  if (f.normalizes) return OnlyZeroStrides(f.g.reduced, kFormXScale) && OnlyZeroStrides(f.g.reduced, kFormXZero);
  return f.run.stride[kFormXScale] == 0 && f.run.stride[kFormXZero] == 0;
}

bool ReadsStoredIntegers(const Facts& f) {
  return !f.spec.requantizes && !f.g.columns && f.plain && f.call.x.quantized() && !f.g.Repeats(kFormX) &&
         f.call.params[kFormXZero].wide == nullptr && HasOneScale(f) && OnlyZeroStrides(f.g.reduced, kFormXBlock) &&
         OnlyZeroStrides(f.g.kept, kFormXBlock);
}

bool OnlyDequantizes(const Facts& f, bool stored_integers) {
  const bool has_affine = f.call.params[kFormScale].present() || f.call.params[kFormBias].present();
  return !f.normalizes && f.spec.usual_behind && !f.spec.requantizes && f.plain && !stored_integers &&
         f.call.x.quantized() && f.spec.activation == Activation::kIdentity && !has_affine &&
         f.spec.y_type == DataType::kFloat32;
}

// Whether kernels can read d where its operands lie, and as what.
bool ReadsInput(const Facts& f, bool stored_integers, SumKind* operands) {
  if (f.g.columns || !f.spec.usual_before || f.spec.requantizes || !Contiguous(f.run_d, kFormX)) return false;
  *operands = SumKind::kSingle;
  if (f.plain) return stored_integers || !f.call.x.quantized();
  *operands = f.has_bias ? SumKind::kBiasedPair : SumKind::kPair;
  return f.normalizes && f.call.residual.data != nullptr && f.call.residual.type == f.call.x.type &&
         IsFloat(f.call.x.type) && Contiguous(f.run_d, kFormResidual) &&
         (!f.has_bias || Contiguous(f.run_d, kFormResidualBias)) &&
         (f.call.sum == nullptr || f.spec.sum_type == f.call.x.type);
}

// Whether Y does not stay in the caches anyway.
bool IsLarge(const Facts& f) {
  return f.g.element_count * (BitsOf(f.spec.y_type) + BitsOf(f.call.x.type)) / 8 >= kNonTemporalBytes;
}

bool CanStoreNonTemporal(const Facts& f) {
  return f.kernels.stream_line != nullptr && !f.spec.y_dynamic &&
         (f.spec.y_type == DataType::kFloat32 || f.spec.y_type == DataType::kFloat16);
}

// Whether every run of Y, and of the sum, begins with a line of the cache.
bool BeginsLines(const Facts& f) {
  return f.run.size * f.YBytes() % kCacheLine == 0 && BeginsLine(f.call.y) && BeginsLine(f.call.sum);
}

// Whether rows that do not are long enough for three calls of the kernel each, and their operands may be cut anywhere.
bool CanPutLinesTogether(const Facts& f, bool any_length) {
  constexpr int64_t kShortest = 1024;  // bytes
  return f.call.sum == nullptr && f.g.repeating == 0 && (any_length || f.run.size * f.YBytes() >= kShortest) &&
         reinterpret_cast<uintptr_t>(f.call.y) % static_cast<uintptr_t>(f.YBytes()) == 0;
}

Store ChooseStore(const Facts& f, bool by_blocks, const ForcedPath& forced) {
  if (f.g.columns || f.spec.requantizes || !CanStoreNonTemporal(f)) return Store::kCached;
  if (!forced.non_temporal.value_or(IsLarge(f))) return Store::kCached;
  // What passes through blocks is float32 before it is stored.
  if (BeginsLines(f)) return by_blocks && f.spec.y_type != DataType::kFloat32 ? Store::kCached : Store::kNonTemporal;
  return !by_blocks && CanPutLinesTogether(f, forced.non_temporal.has_value()) ? Store::kNonTemporalLines
                                                                               : Store::kCached;
}

// The source of the second pass, if there is a kernel that reads it.
Source ChooseResult(const Facts& f, SumKind operands, bool not_sum) {
  if (!f.spec.usual_behind || !QuantizesByKernel(f.call)) return Source::kBlocks;
  const auto kernel = [&](DataType type, SumKind kind) {
    return f.kernels.second_pass(type, f.spec.y_type, f.spec.activation, kind) != nullptr;
  };
  // A sum that bypassed the caches is added again, which gives the same: its operands are still near.
  if (f.call.sum != nullptr && f.spec.sum_type == DataType::kFloat32 && !not_sum) {
    return kernel(DataType::kFloat32, SumKind::kSingle) ? Source::kSum : Source::kBlocks;
  }
  const bool contiguous = Contiguous(f.run, kFormX) &&
                          (operands == SumKind::kSingle || Contiguous(f.run, kFormResidual)) &&
                          (operands != SumKind::kBiasedPair || Contiguous(f.run, kFormResidualBias));
  return contiguous && kernel(f.call.x.type, operands) ? Source::kInput : Source::kBlocks;
}

// Whether the kernel of both passes at once, of different groups, could be used. With a scale or a bias for each element rows
// share the loads of these in tiles, which is faster.
bool HasPipeline(const Facts& f, const Path& path) {
  const bool has_vectors = f.run.stride[kFormScale] != 0 || f.run.stride[kFormBias] != 0;
  return f.normalizes && !has_vectors && f.call.x.type == DataType::kFloat32 && f.spec.y_type == DataType::kFloat32 &&
         path.operands == SumKind::kSingle && path.sums == Source::kInput && path.result == Source::kInput &&
         f.kernels.step(f.spec.activation) != nullptr;
}

// For groups that do not stay in the level-1 cache between the passes, in runs that are worth the call.
bool SuitsPipeline(const Facts& f, const Path& path) {
  if (f.g.columns) return false;
  constexpr int64_t kLongGroup = 4096;
  constexpr int64_t kShortestRun = 96;
  return HasPipeline(f, path) && f.g.group_size >= kLongGroup && f.run.size >= kShortestRun;
}

bool SuitsRows(const Facts& f, const Path& path) {
  return f.normalizes && path.sums == Source::kInput && path.result != Source::kBlocks && f.OneRun() &&
         f.g.group_size <= f.g.piece_size;
}

// Whether one kernel does all that follows on rows of float32.
bool HasKernelBehind(const Facts& f) {
  return f.call.usual_behind() && QuantizesByKernel(f.call) &&
         f.kernels.second_pass(DataType::kFloat32, f.spec.y_type, f.spec.activation, SumKind::kSingle) != nullptr;
}

// Whether steps make rows that stay in the level-1 cache.
bool SuitsRowsOfSteps(const Facts& f, const Path& path, const ForcedPath& forced) {
  if (forced.blocks || (forced.walk && *forced.walk != Walk::kRows)) return false;
  if (!f.spec.steps_before_at_once || path.stored_integers || f.call.emits_before || f.spec.emits_behind) return false;
  return f.OneRun() && f.g.group_size <= f.g.piece_size && KeptStride(f.run.size) <= kKeepLimit;
}

Walk ChooseWalk(const Facts& f, const Path& path, const ForcedPath& forced) {
  if (!f.normalizes) return Walk::kElements;
  if (f.g.columns) return Walk::kColumns;
  // Its kernel reads X where it lies: not where blocks are forced.
  const bool pipeline = path.sums_along_reduced && path.result == Source::kInput && f.call.y != nullptr;
  if (forced.walk == Walk::kGroups || forced.walk == Walk::kShared) return *forced.walk;
  if (forced.walk == Walk::kRows && SuitsRows(f, path)) return Walk::kRows;
  if (forced.walk == Walk::kPipeline && f.call.y != nullptr && HasPipeline(f, path) && (pipeline || f.OneRun())) {
    return Walk::kPipeline;
  }
  if (path.threads > 1 && f.g.group_count < path.threads) return Walk::kShared;
  if (pipeline) return Walk::kPipeline;
  return SuitsRows(f, path) ? Walk::kRows : Walk::kGroups;
}

// Memory is fastest where all that is read or written follows what was before. Where arithmetic takes longer than that,
// as conversions do for the half as many bytes of float16, two rows share some of it.
bool TakesLongerThanMemory(const Facts& f) {
  const Activation activation = f.spec.activation;
  if (activation != Activation::kIdentity && activation != Activation::kRelu) return true;
  return BitsOf(f.call.x.type) == 16 && f.plain;
}

// So that a tile and its results stay in the level-1 cache between the passes. A power of two.
int RowsOfTile(const Facts& f, const Path& path) {
  const bool keeps = path.result == Source::kKept || path.sums == Source::kSteps;
  if (keeps && 2 * KeptStride(f.run.size) > kKeepLimit) return 1;
  constexpr int64_t kTileBytes = 16 * 1024;
  const bool pair = path.operands != SumKind::kSingle;
  const int64_t bits = 2 * BitsOf(f.call.x.type) + BitsOf(f.spec.y_type);
  const bool from_memory = pair && f.g.element_count * bits / 8 >= kOneByOneBytes;
  if (path.store != Store::kCached || from_memory) return TakesLongerThanMemory(f) ? 2 : 1;
  // Otherwise two or more, as the kernels take two or four rows side by side.
  const int64_t bits_of_d = keeps ? 32 : BitsOf(f.call.x.type) * (pair ? 2 : 1);
  const int64_t most = kTileBytes / std::max<int64_t>(f.g.group_size * bits_of_d / 8, 1);
  return static_cast<int>(std::bit_floor(static_cast<uint64_t>(std::clamp<int64_t>(most, 2, kTileRows))));
}

// Values of 16 bits that the first pass keeps as float32, if a row of them fits.
bool Keeps(const Facts& f, const Path& path, const ForcedPath& forced) {
  const bool in_rows = forced.walk ? forced.walk == Walk::kRows : f.g.group_count >= path.threads;
  return f.kernels.keeps && f.normalizes && path.sums == Source::kInput && in_rows && f.OneRun() &&
         KeptStride(f.run.size) <= kKeepLimit && BitsOf(f.call.x.type) == 16 && IsFloat(f.call.x.type) &&
         f.spec.usual_behind && QuantizesByKernel(f.call) &&
         f.kernels.second_pass(DataType::kFloat32, f.spec.y_type, f.spec.activation, SumKind::kSingle) != nullptr;
}

Passes ChoosePasses(const Facts& f, const Path& path, const ForcedPath& forced) {
  if (forced.separate || path.sums != Source::kInput || path.result == Source::kSum ||
      path.store == Store::kNonTemporalLines) {
    return Passes::kSeparate;
  }
  // Rows that pass through memory, and those of 16 bits that are too long to be kept in twos.
  const bool overlap = path.store == Store::kNonTemporal || (path.result == Source::kKept && path.rows == 1);
  if (!overlap && (path.rows < 4 || f.call.sum != nullptr)) return Passes::kSeparate;
  const Passes passes = overlap ? Passes::kOverlapping : Passes::kTogether;
  const auto kernel = f.kernels.both_passes(passes, f.call.x.type, f.spec.y_type, f.spec.activation, path.operands);
  return kernel != nullptr ? passes : Passes::kSeparate;
}

// Whether Y, or what follows a quantisation, was computed before for all integers.
bool TakesTable(const Facts& f) {
  if (!f.spec.codes || f.call.y == nullptr) return false;
  if (f.spec.codes->is_wide() && f.g.element_count < kLeastForWideCodes) return false;
  return f.spec.codes->step == Codes::kX || f.spec.steps_at_once;
}

int ThreadsFor(const Facts& f, int available) {
  // Groups of packed elements may begin in the middle of a byte, which two threads must not share.
  if (f.normalizes && BitsOf(f.spec.y_type) < 8 && f.call.y != nullptr) return 1;
  return WorthwhileThreads(f.spec.nanoseconds + static_cast<double>(f.g.element_count) * f.spec.nanoseconds_per_element,
                           available);
}

struct Word {
  const char* name;
  void (*set)(ForcedPath* forced);
};
constexpr Word kWords[] = {
    {"groups", [](ForcedPath* forced) { forced->walk = Walk::kGroups; }},
    {"shared", [](ForcedPath* forced) { forced->walk = Walk::kShared; }},
    {"rows", [](ForcedPath* forced) { forced->walk = Walk::kRows; }},
    {"pipeline", [](ForcedPath* forced) { forced->walk = Walk::kPipeline; }},
    {"cached", [](ForcedPath* forced) { forced->non_temporal = false; }},
    {"nontemporal", [](ForcedPath* forced) { forced->non_temporal = true; }},
    {"blocks", [](ForcedPath* forced) { forced->blocks = true; }},
    {"input", [](ForcedPath* forced) { forced->input = true; }},
    {"separate", [](ForcedPath* forced) { forced->separate = true; }},
};

std::string ThreadsText(int threads) {
  return ", " + std::to_string(threads) + (threads == 1 ? " thread" : " threads");
}

}  // namespace

bool QuantizesByKernel(const Call& call) {
  // What a scale or a bias makes of exact values is exact, and has ties, that the kernel's product with the reciprocal breaks.
  const Stage& last = call.spec->behind.back();
  if (call.spec->y_quantized && !call.spec->normalizes && (last.scale.present() || last.bias.present()) &&
      (last.activation == Activation::kIdentity || last.activation == Activation::kRelu)) {
    return false;
  }
  if (call.params[kFormYScale].shape.ElementCount() > 1 || call.params[kFormYZero].shape.ElementCount() > 1) {
    return false;
  }
  if (!call.params[kFormYScale].present()) return true;
  const float scale = *call.params[kFormYScale].data;
  return scale > 1e-9f && scale < 1e9f;
}

uint64_t PlanKey(const Call& call) {
  const int64_t y_bytes = std::max(BitsOf(call.spec->y_type) / 8, 1);
  uint64_t key = static_cast<uint64_t>(call.x.type) << 8 | static_cast<uint64_t>(call.residual.type);
  for (const bool fact :
       {call.y != nullptr, call.sum != nullptr, call.residual.data != nullptr, BeginsLine(call.y), BeginsLine(call.sum),
        reinterpret_cast<uintptr_t>(call.y) % static_cast<uintptr_t>(y_bytes) == 0, QuantizesByKernel(call),
        call.is_joined, call.spec->normalization.is_softmax() && KeepsInY(call)}) {
    key = key << 1 | static_cast<uint64_t>(fact);
  }
  return key;
}

Path Choose(const Call& call, int threads, const ForcedPath& forced) {
  const Facts f(call);
  Path path;
  path.threads = ThreadsFor(f, threads);
  path.steps_at_once = !forced.blocks;
  if (f.spec.normalization.is_softmax()) {
    path.walk = f.g.columns ? Walk::kColumns : Walk::kSoftmax;
    if (!f.g.columns && !forced.blocks && ReadsRows(call)) path.sums = Source::kInput;
    if (path.walk == Walk::kColumns || !KeepsInY(call)) path.store = ChooseStore(f, /*by_blocks=*/true, forced);
    return path;
  }
  path.by_table = TakesTable(f) && !forced.blocks && !forced.input;
  path.stored_integers = ReadsStoredIntegers(f);
  path.only_dequantizes = OnlyDequantizes(f, path.stored_integers);
  const bool in_place = ReadsInput(f, path.stored_integers, &path.operands) &&
                        (!f.normalizes || f.kernels.first_pass(call.x.type, path.operands) != nullptr);
  if (!in_place) path.operands = SumKind::kSingle;
  if (in_place) {
    if (f.normalizes) path.sums = Source::kInput;
    path.result = ChooseResult(f, path.operands, forced.input || ChooseStore(f, false, forced) == Store::kNonTemporal);
  }
  if (in_place && !forced.input && Keeps(f, path, forced)) path.result = Source::kKept;
  path.sums_along_reduced = SuitsPipeline(f, path);
  if (forced.blocks || !f.call.usual_behind()) path.result = Source::kBlocks;
  // Sums of stored integers are exact only by their own kernels.
  if (forced.blocks && !path.stored_integers) path.sums = Source::kBlocks;
  path.store = ChooseStore(f, path.result == Source::kBlocks, forced);
  path.walk = ChooseWalk(f, path, forced);
  if (path.walk == Walk::kGroups && SuitsRowsOfSteps(f, path, forced)) {
    path.walk = Walk::kRows;
    path.sums = Source::kSteps;
    path.result = HasKernelBehind(f) ? Source::kKept : Source::kBlocks;
  }
  // The pipeline stores whole lines or none.
  if (path.walk == Walk::kPipeline && path.store == Store::kNonTemporalLines) path.store = Store::kCached;
  if (path.walk != Walk::kRows) return path;
  path.rows = RowsOfTile(f, path);
  path.passes = ChoosePasses(f, path, forced);
  return path;
}

void Resolve(Call* call) {
  const ChainSpec& spec = *call->spec;
  const KernelTable& kernels = *call->kernels;
  const Path& path = call->path;
  const Activation activation = spec.activation;
  if (spec.behind.back().gated) {
    if (spec.y_type == DataType::kFloat32) call->block_apply = kernels.gated[static_cast<int>(activation)];
  } else if (QuantizesByKernel(*call)) {
    call->block_apply = kernels.second_pass(DataType::kFloat32, spec.y_type, activation, SumKind::kSingle);
  }
  if (path.sums == Source::kInput) call->row_sums = kernels.first_pass(call->x.type, path.operands);
  if (path.walk == Walk::kPipeline) call->step = kernels.step(activation);
  if (path.passes != Passes::kSeparate) {
    call->both_passes = kernels.both_passes(path.passes, call->x.type, spec.y_type, activation, path.operands);
  }
  if (path.result == Source::kSum || path.result == Source::kKept) {
    call->apply = kernels.second_pass(DataType::kFloat32, spec.y_type, activation, SumKind::kSingle);
  } else if (path.result == Source::kInput) {
    call->apply = kernels.second_pass(call->x.type, spec.y_type, activation, path.operands);
  }
}

Result ParseForcedPath(std::string_view text, ForcedPath* forced) {
  for (std::string_view rest = text; !rest.empty();) {
    const size_t comma = std::min(rest.find(','), rest.size());
    const std::string_view word = rest.substr(0, comma);
    rest.remove_prefix(std::min(comma + 1, rest.size()));
    const auto* known =
        std::find_if(std::begin(kWords), std::end(kWords), [&](const Word& w) { return word == w.name; });
    if (known == std::end(kWords)) {
      std::string names;
      for (const Word& w : kWords) names += (names.empty() ? "" : ", ") + std::string(w.name);
      return Result::Error(ErrorCode::kInvalidArgument, "The environment variable NORMFUSE_PATH has the word '" +
                                                            std::string(word) + "'; there are " + names +
                                                            ". Use these, separated by commas, or unset it.");
    }
    known->set(forced);
  }
  return {};
}

Result ForcedPathOfEnvironment(ForcedPath* forced) {
  const char* text = std::getenv("NORMFUSE_PATH");
  return text == nullptr ? Result() : ParseForcedPath(text, forced);
}

std::string Text(const Path& path) {
  constexpr const char* kWalks[] = {"elements", "columns", "groups", "shared groups", "rows", "pipeline", "softmax"};
  constexpr const char* kSources[] = {"blocks", "input", "sum", "kept", "steps"};
  constexpr const char* kStores[] = {"cached", "non-temporal", "non-temporal lines"};
  std::string text = kWalks[static_cast<int>(path.walk)];
  if (path.by_table) return text + " by a table" + ThreadsText(path.threads);
  if (path.walk != Walk::kElements) text += std::string(" of ") + kSources[static_cast<int>(path.sums)];
  text += std::string(", result of ") + kSources[static_cast<int>(path.result)];
  if (path.stored_integers) text += ", stored integers";
  if (path.passes == Passes::kTogether) text += ", both passes in one kernel";
  if (path.passes == Passes::kOverlapping) text += ", overlapping passes";
  text += std::string(", ") + kStores[static_cast<int>(path.store)];
  if (path.walk == Walk::kRows) text += ", tiles of " + std::to_string(path.rows);
  return text + ThreadsText(path.threads);
}

}  // namespace normfuse::cpu
