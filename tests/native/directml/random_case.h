// Random chains of what DirectML has.
#pragma once

#include <string>
#include <vector>

#include "chain_generator.h"
#include "directml/lowering/chain_lowering.h"

namespace normfuse::test {

// Every other one of the usual parts, the others of any steps. `text` says which it is.
inline Case RandomCase(uint64_t seed, const GeneratorLimits& limits, std::string* text) {
  Case test = seed % 2 == 0 ? RandomChain(seed, limits) : RandomSteps(seed, limits);
  *text = seed % 2 == 0 ? Describe(test, seed) : DescribeSteps(test, seed);
  return test;
}

inline std::vector<directml::InputShape> InputShapes(const Case& test) {
  std::vector<directml::InputShape> shapes;
  for (const auto& tensor : test.tensors) shapes.push_back({tensor->type, tensor->dims});
  return shapes;
}

}  // namespace normfuse::test
