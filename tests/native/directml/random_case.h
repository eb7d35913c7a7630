// Random chains of what DirectML has.
#pragma once

#include <string>
#include <vector>

#include "chain_generator.h"
#include "directml/lowering/chain_lowering.h"

namespace normfuse::test {

// `text` says which it is.
inline Case RandomCase(uint64_t seed, const GeneratorLimits& limits, std::string* text) {
  Case test = RandomChain(seed, limits);
  *text = Describe(test, seed);
  return test;
}

inline std::vector<directml::InputShape> InputShapes(const Case& test) {
  std::vector<directml::InputShape> shapes;
  for (const auto& tensor : test.tensors) shapes.push_back({tensor->type, tensor->dims});
  return shapes;
}

}  // namespace normfuse::test
