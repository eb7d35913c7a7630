// One call of a chain: everything that its threads share, and how they read and write blocks of it.
#pragma once

#include "cpu/kernels/room.h"
#include "cpu/plan/chain_spec.h"
#include "cpu/plan/path.h"
#include "cpu/run/work_sharing.h"

namespace normfuse::cpu {

inline constexpr int64_t kKeepLimit = 8192;  // elements of a group, or of a tile, that are kept between its two passes
inline constexpr int64_t kTileRows = 16;     // at most

inline const Dim& Innermost(const DimList& dims) { return dims.dims[dims.count - 1]; }

// Elements from one kept row to the next.
inline int64_t KeptStride(int64_t row) { return (row + 15) / 16 * 16; }

// A tensor that is read where it lies: X, and operands of steps.
struct BoundTensor {
  const void* data;
  DataType type;
  FormId form;
  FormId scale_form;  // its quantisation's, or kFormCount; the next forms are zero point and block
  int64_t block_size;

  bool quantized() const { return scale_form != kFormCount; }
};
inline constexpr BoundTensor kNoTensor{nullptr, DataType::kUndefined, kFormX, kFormCount, 0};

// Whether what steps before the normalisation emit is written: once for each element.
enum class Emission { kNo, kYes };

// What Choose and Resolve find: the same for every call of the same shapes and the same PlanKey.
struct Plan {
  Path path;
  // What the path's passes call. Null where a path has none.
  RowSumsFn row_sums = nullptr;
  ApplyFn apply = nullptr;  // of what the second pass reads where it lies
  // The last stage, of blocks of float32 straight into Y, for types that have such a kernel.
  ApplyFn block_apply = nullptr;
  StepFn step = nullptr;
  BothPassesFn both_passes = nullptr;
};

struct Call : Plan {
  const ChainSpec* spec = nullptr;
  const KernelTable* kernels = nullptr;
  ExecutionContext* context = nullptr;
  WorkSharing* work_sharing = nullptr;

  // Bound: what the chain names, for this call.
  const Geometry* geometry = nullptr;
  BoundTensor x = kNoTensor;
  BoundTensor residual = kNoTensor;
  BoundTensor further[kFormCount - kFormFurther];  // those that the chain names
  Param params[kFormCount];
  void* y = nullptr;
  void* emitted[kMostEmitted] = {};
  void* sum = nullptr;  // the one that is d, where the chain is of UsualForm
  bool emits_before = false;
  const CodeTable* table = nullptr;  // of ChainSpec::codes, where the path takes it
  bool is_joined = false;            // scale and bias are those of all products and sums behind the normalisation
  void* mean = nullptr;
  void* inv_std_dev = nullptr;

  // Of the first pass over each element.
  Emission emission() const { return emits_before ? Emission::kYes : Emission::kNo; }
  bool has_result() const { return y != nullptr || spec->emits_behind; }
  // Of UsualForm, as it is or joined.
  bool usual_behind() const { return spec->usual_behind && (is_joined || geometry->joined_count == 0); }
  BoundTensor& tensor(FormId form) {
    if (form >= kFormFurther) return further[form - kFormFurther];
    return form == kFormResidual ? residual : x;
  }
  const BoundTensor& tensor(FormId form) const { return const_cast<Call*>(this)->tensor(form); }
  // What the second pass reads where it lies: X, or the output sum.
  bool applies_to_sum() const { return path.result == Source::kSum; }
  DataType apply_type() const { return applies_to_sum() ? spec->sum_type : x.type; }
  // Several steps by one kernel, on either side of a normalisation.
  bool reads_by_steps() const { return path.steps_at_once && spec->steps_before_at_once && !path.stored_integers; }
  bool stores_by_steps() const {
    return path.steps_at_once && spec->steps_behind_at_once && (spec->behind.size() > 1 || block_apply == nullptr);
  }
  bool non_temporal() const { return path.store != Store::kCached; }
  // The runs that sums go along, and shifts are found in.
  const DimList& sum_dims() const { return path.sums_along_reduced ? geometry->reduced : geometry->reduced_d; }
};

// Calls run(part) for each part of a call's work, on its threads.
template <class Run>
Result ForEachPart(const Call& call, int64_t parts, const Run& run) {
  return call.work_sharing->ForEachPart(*call.context, parts, [&](int64_t part) {
    run(part);
    if (call.non_temporal()) call.kernels->fence();
  });
}

// Working memory of one thread, on its stack.
using BlockRoom = Room<kBlock>;
using KeptRoom = Room<kKeepLimit>;
struct Scratch {
  KeptRoom kept;    // d of rows or columns between the passes over them
  BlockRoom read;   // d of a block that is not kept
  BlockRoom stage;  // what a stage keeps for a later one
  BlockRoom operand;
  // Quantisation parameters that come in blocks, one for each element.
  BlockRoom scale;
  BlockRoom zero;
  // Operands of kActivate.
  BlockRoom apply_scale;
  BlockRoom apply_bias;
  BlockRoom apply_slope;
};

// The operands of a stage kActivate, for as long as its kernel reads them.
struct ActivateRooms {
  explicit ActivateRooms(Scratch* s) : scale(&s->apply_scale), bias(&s->apply_bias), slope(&s->apply_slope) {}
  BlockRoom::Loan scale;
  BlockRoom::Loan bias;
  BlockRoom::Loan slope;
};

// Elements that pass through the level-1 cache together: n <= kBlock of them from `at` on, along a dimension with strides
// `step`.
struct Block {
  const Call& call;
  const Offsets& at;
  const Dim& step;
  int64_t n;
  Scratch* scratch;
};

// Reads X (the stored integers, where the path works on them) and makes d of it.
void LoadBlock(const Block& block, Emission emission, float* d);

// The same; returns X's own memory where no step changes X, otherwise `room`.
const float* ReadBlock(const Block& block, Emission emission, float* room);

// Normalisation, steps and quantisation of d, into Y. Works in `room`, which may be d.
void StoreBlock(const Block& block, const Normalizer& normalizer, const float* d, float* room);

// An operand along a run: its own memory if it can be read there, otherwise a copy in `room`, of one element where it is
// broadcast, of kPattern where it repeats.
Vec OperandAt(const Block& block, const StageOperand& operand, const float* absent, float* room);

// Runs a stage kActivate on float32, from x into y, which may be x.
void ApplyStage(const Block& block, const Stage& stage, const Normalizer& normalizer, const float* x, float* y);

// What the stage, a mask, hides of n values along dimension `step` becomes `fill`.
void HideBlock(const Block& block, const Stage& stage, float fill, float* values);

// The arguments of call.apply for `rows` rows of n values from `at` on; strides between rows come from `row_step`.
ApplyArgs ApplyArgsAt(const Call& call, const Offsets& at, const Dim& step, const Dim& row_step, int64_t n, int rows,
                      const Normalizer* normalizers);

// Lays out the operands that repeat for them.
void SetPatterns(const Block& block, const ActivateRooms& rooms, ApplyArgs* args);

// The arguments of call.row_sums, or of the second half of call.step, likewise.
RowSumsArgs RowSumsArgsAt(const Call& call, const Offsets& at, const Dim& row_step, int64_t n, int rows, Sums* sums);

inline const void* ElementAt(const void* base, DataType type, int64_t index) {
  return static_cast<const unsigned char*>(base) + index * (BitsOf(type) / 8);
}
inline void* ElementAt(void* base, DataType type, int64_t index) {
  return static_cast<unsigned char*>(base) + index * (BitsOf(type) / 8);
}

template <class T>
void MoveOn(T** pointer, int64_t bytes) {
  if (*pointer != nullptr) *pointer = static_cast<T*>(ElementAt(*pointer, DataType::kInt8, bytes));
}

// Calls visit(pointer, stride, step) for each pointer that moves on: by `stride` bytes to the next row, by `step` bytes to
// the next element of a row.
template <class Visit>
void ForEachPointer(ApplyArgs* args, DataType x_type, DataType y_type, Visit visit) {
  const int64_t x = BitsOf(x_type) / 8;
  const int64_t y = BitsOf(y_type) / 8;
  constexpr int64_t kFloat = sizeof(float);
  visit(&args->x, args->x_stride * x, x);
  visit(&args->x2, args->x2_stride * x, x);
  visit(&args->x_bias, args->x_bias_stride * kFloat, kFloat);
  visit(&args->y, args->y_stride * y, y);
  visit(&args->scale.data, args->scale_stride * kFloat, args->scale.step * kFloat);
  visit(&args->bias.data, args->bias_stride * kFloat, args->bias.step * kFloat);
  visit(&args->slope.data, args->slope_stride * kFloat, args->slope.step * kFloat);
}
// To the next row alone.
template <class Visit>
void ForEachPointer(RowSumsArgs* args, DataType x_type, Visit visit) {
  const int64_t x = BitsOf(x_type) / 8;
  constexpr int64_t kFloat = sizeof(float);
  visit(&args->x, args->x_stride * x);
  visit(&args->x2, args->x2_stride * x);
  visit(&args->sum, args->sum_stride * x);
  visit(&args->x_bias, args->x_bias_stride * kFloat);
  visit(&args->x_scale, args->x_scale_stride * kFloat);
}

// A parameter that has no blocks of its own, from its element for `at` on.
inline Vec VecAt(const Call& call, FormId form, const Offsets& at, const Dim& step, const float* absent) {
  if (!call.params[form].present()) return {absent, 0};
  return {call.params[form].data + at.at[form], static_cast<int>(step.stride[form])};
}

// The size of a cache line in bytes, which non-temporal stores write as a whole.
inline constexpr int64_t kCacheLine = 64;
inline bool BeginsLine(const void* data) { return reinterpret_cast<uintptr_t>(data) % kCacheLine == 0; }

// Whether Y is a float, or quantised as the kernels do it: with one scale, by its reciprocal, which scale and bias are
// multiplied with. Nothing may overflow on the way, and NaN, of which they make a negative number, must become the lowest
// value.
bool QuantizesByKernel(const Call& call);

// Looks up the kernels that call.path needs.
void Resolve(Call* call);

// Runs the call along call.path.
Result RunWalk(const Call& call);
Result RunColumns(const Call& call);

}  // namespace normfuse::cpu
