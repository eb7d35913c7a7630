// What a chain costs here: decides how many threads a call is worth. What is claimed is decided by plugin/claim/expected_gain.h.
// All figures are measured: ep/spec/prices.toml.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>

#include "chain/chain.h"
#include "cpu/kernels/simd/isa.h"
#include "cpu/plan/code_table.h"

namespace normfuse::cpu {

// From this size of X and Y together on Y is stored non-temporally: it saves reading what is overwritten, unless that is still in the
// last cache, of which 32 MB are usual. Measured figures: docs/decisions/0010-non-temporal-stores.md.
inline constexpr int64_t kNonTemporalBytes = int64_t{24} * 1024 * 1024;

// From this size of X, residual and Y together on rows with a residual are read one after the other: the streams of two
// or four rows side by side are too many where a part of them comes from memory. Measured as above, neighbours busy: Add
// -> LayerNorm of float16 at 19 MB 1.05 instead of 1.45 ms, of float32 at 9 MB 0.21 to 0.26 instead of 0.22 to 0.53.
inline constexpr int64_t kOneByOneBytes = int64_t{8} * 1024 * 1024;

// Time of one call on one thread for a tensor of `elements`.
double EstimateNanoseconds(const Chain& chain, Isa isa, int64_t elements);

// Calls add(price, nodes), with how many nodes of ONNX Runtime's that is, for everything that the chain does.
void ForEachPrice(const Chain& chain, const std::function<void(const Price& price, int nodes)>& add);

// The column of a price that holds for an instruction set.
double PriceOn(const Price& price, Isa isa);

// How many elements of d follow each other in every operand, as far as shapes are known: what ONNX Runtime goes through at once,
// and what is gone through at once here, where operands may repeat (geometry.h). As many as there are with a normalisation.
struct RunLengths {
  double ort = std::numeric_limits<double>::infinity();
  double own = std::numeric_limits<double>::infinity();
};
RunLengths KnownRunLengths(const Chain& chain);

// Whether a chain without a normalisation goes through its runs by one kernel that keeps to one scale and one bias.
bool HasCheapRuns(const Chain& chain);

// Whether a softmax is over the last dimension of d.
bool IsOverLast(const Normalization& softmax, int rank);

// Those of a chain whose table takes clearly less time than the steps behind them.
std::optional<Codes> WorthwhileCodes(const Chain& chain, Isa isa);

// Whether no kernel reads the rows of a softmax where they lie.
bool IsSoftmaxOfBlocks(const Chain& chain);

// Whether each byte of X becomes a byte of Y whatever is around it, so that a table of 256 says it all.
bool IsOfBytes(const Chain& chain);

// How many of `available` threads work of that length is worth.
int WorthwhileThreads(double nanoseconds, int available);

}  // namespace normfuse::cpu
