// Einsum of two operands as a matrix product over batches.
#pragma once

#include <optional>
#include <string>

namespace normfuse::directml {

// Letters of the dimensions, in the order of the operands and of the result.
struct Einsum {
  std::string a;
  std::string b;
  std::string result;
  std::string batch;    // in all three
  std::string rows;     // only in `a` and the result
  std::string columns;  // only in `b` and the result
  std::string inner;    // only in `a` and `b`: summed over
};

// Nothing where the equation is no such product: another number of operands, an ellipsis, a letter twice in one term, a letter of
// one operand alone that is summed over.
std::optional<Einsum> ReadEinsum(const std::string& equation);

}  // namespace normfuse::directml
