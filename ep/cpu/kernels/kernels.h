// The kernels that are compiled once per instruction set, as a table of functions. All work on blocks that lie without
// gaps in memory; where operands are broadcast or quantised in blocks, the caller clamps the work accordingly.
#pragma once

#include <cstddef>
#include <cstdint>

#include "chain/data_type.h"
#include "cpu/kernels/simd/isa.h"
#include "spec/activation_list.h"

namespace normfuse::cpu {

// As many elements of an operand that repeats are laid out for kernels to read: whole multiples of what they take at a time.
inline constexpr size_t kPattern = 128;
// Every element has a value of its own.
inline constexpr size_t kNoPattern = ~size_t{0};

// One float per element (step 1) or one for all (step 0).
struct Vec {
  const float* data;
  int step;
  bool repeats = false;  // there are kPattern of them, which begin again: for operands, not for scales and zero points
};

inline constexpr int64_t kShiftElements = 64;  // as many as any instruction set reads

inline constexpr float kOne = 1.0f;
// Added where a bias is absent: x + -0.0 is x for every x, also for -0.0.
inline constexpr float kNoBias = -0.0f;

// Sums of (d - shift) and (d - shift)^2.
struct Sums {
  double shift = 0;
  double first = 0;
  double second = 0;

  void Add(const Sums& of_next) {
    first += of_next.first;
    second += of_next.second;
  }
};

// n = ((d - mean) - rest) * inv; mean + rest is the mean to twice the precision.
struct Normalizer {
  float mean = 0.0f;
  float rest = 0.0f;
  float inv = 1.0f;
};

// What a normalisation by variance, around the mean or around 0, needs to make normalizers of sums.
struct UsualRequest {
  double count;       // values per row
  double mean_count;  // the same, or infinite around 0
  double inv_count;   // 1 / values per row
  double mean_share;  // the same, or 0 around 0
  double epsilon;
  bool exact;  // the sums are free of rounding, wherever their shift lies
};

// What d is: X, X + residual, or X + residual + a bias along the row.
enum class SumKind { kSingle, kPair, kBiasedPair };

// How the kernels go through rows. A kernel that does both passes is for rows that have nothing unusual.
enum class Passes {
  kSeparate,     // the first pass over a tile, then the second
  kTogether,     // likewise, in one kernel
  kOverlapping,  // in one kernel, the first pass over one row while the second over another
};

// Rows of `n` values each, the next one a stride further on (in elements). d = x, x + x2 or x + x2 + x_bias by the
// kernel's SumKind, and a sum is also written to `sum` where that is given.
struct RowSumsArgs {
  const void* x;
  const void* x2;
  const float* x_bias;
  void* sum;
  int64_t x_stride;
  int64_t x2_stride;
  int64_t x_bias_stride;
  int64_t sum_stride;
  size_t n;
  int rows;
  bool find_shift;  // take the shift from the row's first values instead of `shift`
  bool resume;      // a single row: `sums` are of what lies before it, and go on (`shift` is theirs)
  bool stream;      // `sum`, of type float32 or float16 and aligned to 64, is stored non-temporally
  float shift;
  Sums* sums;  // one for each row
  // Where given, each row's normalizer is made as well. X of integers: a value stands for itself times the row's scale.
  const UsualRequest* usual;
  const float* x_scale;  // null: 1
  int64_t x_scale_stride;
  Normalizer* normalizers;
  // X of 16 bits only: d itself is written to `kept` as well, and X is fetched `ahead` elements before it is needed.
  float* kept;
  int64_t kept_stride;
  size_t ahead;
};

// y = activation(n * scale + bias), n made from d by the row's normalizer, and for integer types of y
// saturate(round_half_even(that / y_scale) + y_zero).
struct ApplyArgs {
  const void* x;
  const void* x2 = nullptr;
  const float* x_bias = nullptr;
  void* y;
  int64_t x_stride = 0;
  int64_t x2_stride = 0;
  int64_t x_bias_stride = 0;
  int64_t y_stride = 0;
  size_t n;
  int rows = 1;
  const Normalizer* normalizers;  // one for each row
  Vec scale;
  Vec bias;
  Vec slope;  // activations that have one; in gated kernels the gate
  int64_t scale_stride = 0;
  int64_t bias_stride = 0;
  int64_t slope_stride = 0;
  const float* params;  // kMaxActivationParams
  float y_scale = 1.0f;
  float y_zero = 0.0f;
  // Y, of type float32 or float16 and aligned to 64, is stored non-temporally, where the instruction set can do that. A fence must
  // follow. X is then read `ahead` elements before it is needed.
  bool stream = false;
  size_t ahead = 0;
  bool behind_normalization = false;
};

// Quantisation with one scale and zero point, to an integer type of 16 bits at most, as kernels with a fused multiply-add do
// it.
struct Quantizer {
  float scale = 1.0f;
  float inverse = 1.0f;
  float zero = 0.0f;
  float least = 0.0f;  // what the type's lowest and highest value stand for
  float most = 0.0f;
  // 1 / scale - inverse, where x * inverse + x * rest is rounded to the same integers as x / scale: RoundsByProduct knows.
  float rest = 0.0f;
  bool by_product = false;
  float factor = 1.0f;  // of a fake quantisation: what the integers are multiplied with

  // Where neither the reciprocal nor what a product with it leaves over leaves the range of normal numbers.
  static bool Fits(float scale) { return scale > 1e-9f && scale < 1e9f; }
};
inline Quantizer QuantizerOf(float scale, float zero, float low, float high) {
  const float inverse = 1.0f / scale;
  return {.scale = scale,
          .inverse = inverse,
          .zero = zero,
          .least = (low - zero) * scale,
          .most = (high - zero) * scale,
          .rest = static_cast<float>(1.0 / static_cast<double>(scale) - static_cast<double>(inverse)),
          .factor = scale};
}

// Elements as a kernel reads them: float32, or integers of 8 and 16 bits, which are dequantised.
struct ElementsRead {
  const void* data;
  DataType type;
  size_t mask;  // element i is at i & mask: 0 for one number, kPattern - 1 where they repeat
  float scale;  // of integers, as the zero point
  float zero;
};

// A step of a chain, of several that a kernel does at once, in registers: d = d + operand, d * operand, d / operand, an
// activation of NORMFUSE_STEP_ACTIVATIONS, or d quantised and dequantised.
struct ElementStep {
  StepKind kind;
  Activation activation;  // of kActivate
  const float* params;    // likewise
  ElementsRead operand;
  bool by_reciprocal;          // kDiv: by one number, of values that a quantisation keeps in a small range
  bool unclamped;              // kFakeQuantize, Sigmoid: without the clamp to their range, which nothing here leaves
  const Quantizer* quantizer;  // of kFakeQuantize
  float* kept;                 // of kFakeQuantize: null, or where its result is stored, too
};

// y = the steps of x, one after the other.
struct ElementStepsArgs {
  ElementsRead x;
  void* y;              // may be x, if both are float32
  DataType y_type;      // float32, or an integer of 8 or 16 bits
  Quantizer quantizer;  // of Y, if it is an integer
  size_t n;
  const ElementStep* steps;
  int count;
  bool stream;  // y, of type float32 and aligned to 64, is stored non-temporally
};

// (saturate(round(x / scale) + zero) - zero) * scale, to an integer type with the values `low` to `high`. y may be x.
struct FakeQuantizeArgs {
  const float* x;
  float* y;
  size_t n;
  Vec scale;
  Vec zero;
  float low;
  float high;
  bool stream;  // y, aligned to 64, is stored non-temporally
};

using LoadFn = void (*)(const void* x, size_t n, float* out);
using StoreFn = void (*)(const float* x, size_t n, void* out);
// False where the normalizer of one of the rows needs more than its sums: see cpu/run/statistics.h.
using RowSumsFn = bool (*)(const RowSumsArgs& args);
using ApplyFn = void (*)(const ApplyArgs& args);
// Both of them for rows that lie one after the other, of which `sums` and `apply` give the first: how many of `rows` were
// done. Those after it are not even begun.
using BothPassesFn = int64_t (*)(const RowSumsArgs& sums, const ApplyArgs& apply, int64_t rows);
// Normalises a run, with one scale and one bias, while it sums another one of the same length, both of float32. The sums always
// go on. False, and nothing is done, where the normalizer's factor times the scale leaves the range of float32.
using StepFn = bool (*)(const ApplyArgs& args, const RowSumsArgs& next);

// d of rows, where they lie: x as float32, dequantised with one scale and zero point if it is an integer, times a factor,
// plus an addend. `most` of each row becomes the larger one of itself and the row's largest value.
struct ReadRowsArgs {
  const void* x;
  int64_t x_stride = 0;
  size_t n;
  int rows = 1;
  float scale = 1.0f;
  float zero = 0.0f;
  Vec factor;
  Vec addend;
  int64_t factor_stride = 0;
  int64_t addend_stride = 0;
  float* d;  // with room for whole vectors
  int64_t d_stride = 0;
  float* most;
};
using ReadRowsFn = void (*)(const ReadRowsArgs& args);

// Where a row's largest value is of the size that scores have, the exponentials need no other maximum: they are multiplied with
// 2^-kUsualDown, which keeps the small ones normal beside a sum that does not overflow.
inline constexpr float kUsualDown = -32.0f;
inline constexpr float kUsualLeast = -22.0f;
inline constexpr float kUsualMost = 40.0f;

using UsualRowsFn = void (*)(const ReadRowsArgs& args, double* sums);

// Of the exponentials of columns, one element each; `lost` is what rounding loses of the sums.
struct ColumnSums {
  const float* shift;
  const float* down;
  float* sum;
  float* lost;
};

struct KernelTable {
  // By element type; null for types without a vector kernel (elements.h has those).
  LoadFn load[kTypeSlots];
  // (x - zero) * scale; x of float32 may be `out`. With `stream`, `out` is aligned to 64 and stored non-temporally.
  void (*dequantize[kTypeSlots])(const void* x, size_t n, Vec scale, Vec zero, float* out, bool stream);
  StoreFn store[kTypeSlots];  // integers: expects rounded values, saturates

  // In place on float32.
  void (*combine[kCombinationCount])(float* x, size_t n, Vec other);
  // x where the byte is `shown`, and `fill` elsewhere. Bytes are 0 or 1.
  void (*mask)(float* x, size_t n, const uint8_t* bytes, bool shown, float fill);
  void (*quantize)(float* x, size_t n, Vec scale, Vec zero, float low, float high);  // clamped, integral values
  void (*fake_quantize)(const FakeQuantizeArgs& args);
  void (*element_steps)(const ElementStepsArgs& args);  // null without fused multiply-add
  // Whether Quantizer::by_product may be true, for integers from `low` to `high`.
  bool (*rounds_by_product)(const Quantizer& quantizer, float low, float high);
  void (*divide)(float* x, size_t n, Vec scale, Vec zero);  // x / scale + zero
  // Lowers *low and raises *high to the least and the largest value; NaN has no say.
  void (*widen_range)(const float* x, size_t n, float* low, float* high);
  void (*quantize_to_bytes)(const float* x, size_t n, float scale, float zero, uint8_t* y);
  ApplyFn apply[kActivationCount];  // float32 to float32, x == y allowed
  ApplyFn gated[kActivationCount];  // the same times the slope; null for activations that have no such kernel

  // Columns: one statistic per element.
  void (*column_sum)(const float* x, size_t n, const float* shift, float* sum);
  void (*column_moments)(const float* x, size_t n, const float* shift, float* sum, float* square);
  void (*column_normalize)(float* x, size_t n, const float* mean, const float* rest, const float* inv);

  // Softmax. By element type; null for types that are read by other kernels.
  ReadRowsFn read_rows[kTypeSlots];
  // With the exponentials at once, right for rows whose largest value is a usual one.
  UsualRowsFn usual_rows[kTypeSlots];
  // From float32 to float32, with room for two rows at d: how many rows were done. The one after them is unusual.
  int (*softmax_rows)(const ReadRowsArgs& args, float* y, int64_t y_stride, bool stream);
  // exp(x - shift) * 2^-down, of a row in place, with `keep`, and its sum.
  float (*row_max)(const float* x, size_t n, float most);
  double (*row_exp)(float* x, size_t n, float shift, float down, bool keep);
  void (*column_max)(const float* x, size_t n, float* most);
  void (*column_exp)(const float* x, size_t n, const ColumnSums& sums, float* exponentials);  // in place, too

  // Kernels that read and write where tensors lie, or null where blocks in between do the work. The operands of a sum
  // are of one type.
  RowSumsFn (*first_pass)(DataType x, SumKind kind);
  // The shift that the first pass finds for a row of n values, of which d holds the first kShiftElements, or all.
  float (*find_shift)(const float* d, size_t n);
  bool keeps;  // first passes of 16-bit types honour RowSumsArgs::kept
  ApplyFn (*second_pass)(DataType x, DataType y, Activation activation, SumKind kind);
  StepFn (*step)(Activation activation);
  BothPassesFn (*both_passes)(Passes passes, DataType x, DataType y, Activation activation, SumKind kind);

  // y[i] = table[x[i]] for n bytes.
  void (*look_up)(const uint8_t* table, const uint8_t* x, size_t n, uint8_t* y);

  // 64 bytes, by non-temporal stores to the beginning of a line of the cache. Null where there are none, and what is
  // said of `stream` does not hold.
  void (*stream_line)(void* to, const void* from);
  // Orders non-temporal stores before everything that follows.
  void (*fence)();
};

const KernelTable& KernelsFor(Isa isa);

}  // namespace normfuse::cpu
