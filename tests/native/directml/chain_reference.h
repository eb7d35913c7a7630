// What a chain means, in float64, element by element: the other side of the comparison. Written from chain.h's formulas.
#pragma once

#include <string>
#include <vector>

#include "chain_generator.h"

namespace normfuse::test {

// An output's exact values, and the interval that float32 arithmetic may end in, before they are stored.
struct Reference {
  int output = 0;
  DataType type = DataType::kUndefined;
  std::vector<int64_t> dims;
  std::vector<double> low, high;
  std::vector<double> zero_point;  // of a quantised output; the interval is then in steps
};

std::vector<Reference> Evaluate(const TestCase& test);

// How float32 becomes float16. A GPU's driver may also truncate.
enum class HalfRounding { kToNearest, kAny };

// Empty when every element of `got` lies within the interval; else the first one that does not.
std::string Compare(const Reference& expected, const TestTensor& got, HalfRounding half);

}  // namespace normfuse::test
