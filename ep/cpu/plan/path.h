// The path of a call: how it goes through its tensors. Chosen before anything is computed, from the chain, the shapes and
// where the tensors lie; a value that can be compared, printed and, for tests, forced.
//
// All paths give the same bits of the same row, on any number of threads (ep/README.md has the exceptions), so that a path
// is a matter of speed alone.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "chain/chain.h"
#include "chain/result.h"
#include "cpu/kernels/kernels.h"

namespace normfuse::cpu {

struct Call;

// The order in which groups are visited.
enum class Walk {
  kElements,  // no normalisation: all elements in one go, shared between threads
  kColumns,   // the innermost dimension is a kept one: many groups side by side
  kGroups,    // one group after the other
  kShared,    // likewise, each by all threads: there are fewer groups than threads
  kRows,      // each group is one run: a tile of rows after the other, both passes over each
  kPipeline,  // one group is normalised while the next is summed
  kSoftmax,   // one group after the other, each with its softmax; columns are as above
};

// What a pass over a group reads.
enum class Source {
  kBlocks,  // blocks of float32 that LoadBlock makes of any operands
  kInput,   // X, or the sum of X, residual and residual_bias, where they lie
  kSum,     // the output sum, which the first pass wrote
  kKept,    // d as the first pass kept it in the level-1 cache, for X of 16 bits
  kSteps,   // rows of float32 in the level-1 cache that several steps at once make of any operands: see element_steps.h
};

enum class Store {
  kCached,
  kNonTemporal,       // rows begin with lines of the cache
  kNonTemporalLines,  // they need not: lines where one ends and the next begins are put together first (NonTemporalWriter)
};

struct Path {
  Walk walk = Walk::kGroups;
  Source sums = Source::kBlocks;
  Source result = Source::kBlocks;
  SumKind operands = SumKind::kSingle;  // of what is read where it lies
  // X is quantised with one scale and zero point per group and nothing is added to it: both passes work on the stored
  // integers, whose zero point cancels, and the scale goes into the factor.
  bool stored_integers = false;
  bool only_dequantizes = false;  // Y is X dequantised and nothing else: LoadBlock writes it
  bool by_table = false;          // see code_table.h
  bool steps_at_once = true;      // where ChainSpec has them
  Passes passes = Passes::kSeparate;
  // Sums go along the runs of what is normalised, as in the pipeline, not of what d is made of: whether that is so does not
  // depend on the path that is taken.
  bool sums_along_reduced = false;
  Store store = Store::kCached;
  int rows = 1;     // in a tile
  int threads = 1;  // that the work is worth

  bool operator==(const Path&) const = default;
};

// Parts of a path that are taken whatever Choose would prefer, where they suit the call.
struct ForcedPath {
  std::optional<Walk> walk;
  bool blocks = false;
  bool input = false;     // the second pass reads neither the output sum nor what the first one kept
  bool separate = false;  // each pass by its own kernel
  std::optional<bool> non_temporal;
};

// Words separated by commas: groups, shared, rows or pipeline; blocks or input; separate; cached or nontemporal. Empty: nothing.
Result ParseForcedPath(std::string_view text, ForcedPath* forced);
// What the environment variable NORMFUSE_PATH asks for: a means of tests and of the search for errors.
Result ForcedPathOfEnvironment(ForcedPath* forced);

// All that Choose reads of a call besides the chain and shapes.
uint64_t PlanKey(const Call& call);

// A pure function. `threads`: the number of threads that the call may use.
Path Choose(const Call& call, int threads, const ForcedPath& forced);

// "rows of input, result of kept, non-temporal, tiles of 4, 2 threads"
std::string Text(const Path& path);

// A call that is only described, not run.
struct PathQuery {
  std::vector<int64_t> x = {};  // the shape; empty: as far as the chain knows it, else kTypicalDimension
  int threads = 1;
  size_t y_offset = 0;  // in bytes, from the beginning of a line of the cache
};

// The text of its path on the instruction set in use. Fails where parameters are no constants, whose shapes are not known.
Result DescribePath(const Chain& chain, const PathQuery& query, std::string* text);

}  // namespace normfuse::cpu
