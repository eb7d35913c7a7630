// The kernels that are compiled once per instruction set, as a table of functions. All work on blocks that lie without
// gaps in memory; where operands are broadcast or quantised in blocks, the caller cuts the work accordingly.
#pragma once

#include <cstddef>

#include "cpu/isa.h"
#include "plan/data_type.h"
#include "plan/tables.h"

namespace normfuse::cpu {

inline constexpr int kTypeSlots = 26;  // DataType as an index

// One float per element (step 1) or one for all (step 0).
struct Vec {
  const float* data;
  int step;
};

inline constexpr float kOne = 1.0f;
// Added where a bias is absent: x + -0.0 is x for every x, also for -0.0.
inline constexpr float kNoBias = -0.0f;

// y[i] = activation(((x[i] [+ x2[i]] - mean) * inv + offset) * scale[i] + bias[i]), and for integer types of y
// saturate(round_half_even(that / y_scale) + y_zero).
struct ApplyArgs {
  const void* x;
  const void* x2;
  void* y;
  size_t n;
  float mean;
  float inv;
  float offset;
  Vec scale;
  Vec bias;
  Vec slope;            // activations that have one
  const float* params;  // kMaxActivationParams
  float y_scale;
  float y_zero;
};

using LoadFn = void (*)(const void* x, size_t n, float* out);
using StoreFn = void (*)(const float* x, size_t n, void* out);
// Adds the sums of (x - shift) and (x - shift)^2 to sums[0] and sums[1].
using MomentsFn = void (*)(const void* x, size_t n, float shift, double* sums);
using ApplyFn = void (*)(const ApplyArgs& args);

struct KernelTable {
  // By element type; null for types without a vector kernel (elements.h has those).
  LoadFn load[kTypeSlots];
  StoreFn store[kTypeSlots];  // integers: expects rounded values, saturates
  MomentsFn moments[kTypeSlots];

  // In place on float32.
  void (*dequantize)(float* x, size_t n, Vec scale, Vec zero);  // (x - zero) * scale
  void (*add)(float* x, size_t n, Vec other);
  void (*quantize)(float* x, size_t n, Vec scale, Vec zero, float low, float high);  // clamped, integral values
  void (*divide)(float* x, size_t n, Vec scale, Vec zero);                           // x / scale + zero
  ApplyFn apply[kActivationCount];  // float32 to float32, x == y allowed

  // Columns: one statistic per element.
  void (*column_sum)(const float* x, size_t n, const float* shift, float* sum);
  void (*column_moments)(const float* x, size_t n, const float* shift, float* sum, float* square);
  void (*column_normalize)(float* x, size_t n, const float* mean, const float* inv, const float* offset);

  // The fused kernel for a combination, or null where blocks in between do the work.
  ApplyFn (*fused_apply)(DataType x, DataType y, Activation activation);
};

const KernelTable& KernelsFor(Isa isa);

}  // namespace normfuse::cpu
