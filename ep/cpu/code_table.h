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

// Runs the tail on all integers. `values`: Y's element for each, by the integer's bits.
Result TabulateCodes(const Executable& tail, DataType code, DataType y_type, std::vector<unsigned char>* values);

// Y's elements for n integers.
struct LookUpArgs {
  const void* values;
  const void* codes;
  DataType code;
  void* y;
  DataType y_type;
  size_t n;
};
void LookUpCodes(const LookUpArgs& args);

}  // namespace normfuse::cpu
