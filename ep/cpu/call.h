// One call of a plan: everything that its threads share, and how they read and write blocks of it.
#pragma once

#include "cpu/geometry.h"
#include "cpu/helpers.h"
#include "cpu/kernels.h"
#include "cpu/parameters.h"

namespace normfuse::cpu {

inline constexpr int64_t kBlock = 1024;      // elements that pass through the level-1 cache together
inline constexpr int64_t kKeepLimit = 8192;  // elements of a group that are kept between its two passes

struct Call {
  const Plan* plan = nullptr;
  const KernelTable* kernels = nullptr;
  ExecutionContext* context = nullptr;
  int threads = 1;  // that the work is worth
  Helpers* helpers = nullptr;
  const Geometry* geometry = nullptr;

  const void* x = nullptr;
  const void* residual = nullptr;
  DataType x_type = DataType::kUndefined;
  DataType residual_type = DataType::kUndefined;
  Param params[kFormCount];

  // Plan::sum_quantization.
  bool requantizes = false;
  float sum_scale = 1.0f;
  float sum_zero = 0.0f;

  void* y = nullptr;
  void* sum = nullptr;
  void* mean = nullptr;
  void* inv_std_dev = nullptr;

  // X is quantised with one scale and zero point per group and nothing is added to it: statistics and normalisation
  // work on the stored integers, whose zero point cancels, and the scale goes into the factor.
  bool raw = false;
  // Y is X dequantised and nothing else: LoadBlock writes it.
  bool only_dequantizes = false;

  // Kernels that work where tensors lie, null where blocks must pass through Scratch.
  RowSumsFn row_sums = nullptr;
  const void* row_x2 = nullptr;         // the residual, added on the way
  SumKind sum_kind = SumKind::kSingle;  // what they read
  // The second pass reads X (and the residual), or the output sum that the first pass wrote.
  SumKind apply_kind = SumKind::kSingle;
  ApplyFn apply = nullptr;
  const void* apply_x = nullptr;
  const void* apply_x2 = nullptr;
  DataType apply_type = DataType::kUndefined;
  FormId apply_form = kFormX;
  // Of rows that the first pass kept as float32, which it does for types of 16 bits.
  ApplyFn apply_kept = nullptr;
  ApplyFn block_apply = nullptr;      // of blocks of float32 straight into Y; null where Y's type has none
  const DimList* sum_dims = nullptr;  // the runs that sums go along: one order for all ways through a group
  StepFn step = nullptr;              // both passes, of different groups
  WholeRowsFn whole_rows = nullptr;   // both passes, of rows that have nothing unusual
  bool stream = false;                // X and Y are so large that Y goes past the caches; a fence must follow
  bool cut = false;                   // so it does, but not all rows begin with a line of the cache: see RowWriter
};

// Working memory of one thread, on its stack.
struct Scratch {
  alignas(64) float kept[kKeepLimit];
  alignas(64) float wide[kBlock];
  alignas(64) float block[kBlock];
  alignas(64) float scale[kBlock];
  alignas(64) float zero[kBlock];
};

// Reads d (or the stored integers, where call.raw) for `n` <= kBlock elements along a dimension with strides `step`.
void LoadBlock(const Call& call, const Offsets& at, const Dim& step, int64_t n, Scratch* scratch, float* d);

// Writes n <= kBlock elements of float32 as the output sum.
void StoreSum(const Call& call, const Offsets& at, int64_t n, Scratch* scratch, const float* d);

// Normalisation, scale, bias, activation, quantisation of n <= kBlock values of d, into Y. Changes d.
void StoreBlock(const Call& call, const Offsets& at, const Dim& step, int64_t n, const Normalizer& normalizer,
                Scratch* scratch, float* d);

// The arguments of call.apply for `rows` rows of n values from `at` on; strides between rows come from `row_step`.
ApplyArgs ApplyArgsAt(const Call& call, const Offsets& at, const Dim& step, const Dim& row_step, int64_t n, int rows,
                      const Normalizer* normalizers);

// The arguments of call.row_sums, or of the second half of call.step, likewise.
RowSumsArgs RowSumsArgsAt(const Call& call, const Offsets& at, const Dim& row_step, int64_t n, int rows, Sums* sums);

// A parameter that is never in blocks, from its place for `at` on.
inline Vec VecAt(const Call& call, FormId form, const Offsets& at, const Dim& step, const float* absent) {
  if (!call.params[form].present()) return {absent, 0};
  return {call.params[form].data + at.at[form], static_cast<int>(step.stride[form])};
}

inline const void* ElementAt(const void* base, DataType type, int64_t index) {
  return static_cast<const unsigned char*>(base) + index * (BitsOf(type) / 8);
}
inline void* ElementAt(void* base, DataType type, int64_t index) {
  return static_cast<unsigned char*>(base) + index * (BitsOf(type) / 8);
}

// What goes past the caches does so in units of this, in bytes.
inline constexpr int64_t kCacheLine = 64;
inline bool BeginsLine(const void* data) { return reinterpret_cast<uintptr_t>(data) % kCacheLine == 0; }

// The ways through a tensor.
Result RunRows(const Call& call);
Result RunColumns(const Call& call);

}  // namespace normfuse::cpu
