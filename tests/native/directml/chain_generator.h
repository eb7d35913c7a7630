// Random chains with data, the same for the same seed, for the tests of the DirectML path.
#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "../parts.h"
#include "chain/chain.h"
#include "directml/lowering.h"

namespace normfuse::test {

// A tensor of any type as bytes.
struct TestTensor {
  DataType type = DataType::kUndefined;
  std::vector<int64_t> dims;
  std::vector<unsigned char> bytes;

  int64_t count() const;
  double at(int64_t index) const;
};

struct TestCase {
  Parts parts;
  std::vector<TestTensor> inputs;  // by TensorRef::input
  std::string description;

  Chain chain() const { return parts.Make(); }
  std::vector<directml::InputShape> shapes() const;
};

struct GeneratorLimits {
  int64_t max_elements = 4096;
  bool four_bit = true;
};

TestCase RandomCase(std::mt19937& random, const GeneratorLimits& limits);

}  // namespace normfuse::test
