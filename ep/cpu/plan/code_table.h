// The last steps of a chain as a table: what becomes of each integer of 8 or 16 bits, where nothing else counts. The integers
// are X, or what a fake quantisation makes on the way. A quantiser writes GELU as seven operators with a pair behind each: one
// look-up takes a fourth of the time of their arithmetic, and gives the same bits.
#pragma once

#include <optional>
#include <vector>

#include "chain/execution.h"

namespace normfuse::cpu {

// From as many elements on it pays to make and to hold 65,536 values.
inline constexpr int64_t kLeastForWideCodes = int64_t{1} << 16;

// Where the integers come from.
struct Codes {
  static constexpr int kX = -1;
  int step = kX;  // the fake quantisation among Chain::behind that makes them
  DataType type = DataType::kUndefined;

  bool is_wide() const { return BitsOf(type) > 8; }
};

// The first integers of a chain on which all that follows depends; nothing: there are none.
std::optional<Codes> CodesOf(const Chain& chain);

// What stands before and behind them: Y of the head, and X of the tail, are the integers.
Chain HeadOf(const Chain& chain, const Codes& codes);
Chain TailOf(const Chain& chain, const Codes& codes);

// Y's float32 at the end of a tail that quantises and dequantises last: of the integers, which are as many bits as those that
// are looked up, or fewer. These are what the table holds then: bytes are looked up with shuffles, and words take half of the
// cache.
struct Ending {
  DataType type = DataType::kUndefined;
  float scale = 1.0f;
  float zero = 0.0f;
};
std::optional<Ending> EndingOf(const Chain& tail, DataType code);

// The tail whose Y are these integers.
Chain WithoutEnding(const Chain& tail);

// What stands between two fake quantisations to one type, of which behind[first] and behind[second] are the steps: X are the
// integers of the first one, and Y those of the second. Nothing: more than these integers count.
std::optional<Chain> BetweenPairs(const Chain& chain, int first, int second);

struct CodeTable {
  DataType code = DataType::kUndefined;  // what is looked up
  DataType type = DataType::kUndefined;  // of the values
  std::optional<Ending> ending;          // what makes Y of them
  std::vector<unsigned char> values;     // by the code's bits
};

// Runs a tail, or one without its ending, on all integers.
Result Tabulate(const Executable& tail, CodeTable* table);
// Whether each integer became itself.
bool IsIdentity(const CodeTable& table);

// The values of n integers. Where both are bytes there is a kernel: see byte_table-inl.h.
void LookUpValues(const CodeTable& table, const void* codes, size_t n, void* y);

}  // namespace normfuse::cpu
