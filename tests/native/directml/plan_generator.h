// Random plans with data, the same for the same seed, for the tests of the DirectML path.
#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "directml/lowering.h"
#include "plan/plan.h"

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
  Plan plan;
  std::vector<TestTensor> inputs;  // by TensorRef::input
  std::string description;

  std::vector<directml::InputShape> shapes() const;
};

struct GeneratorLimits {
  int64_t max_elements = 4096;
  bool four_bit = true;
};

TestCase RandomCase(std::mt19937& random, const GeneratorLimits& limits);

}  // namespace normfuse::test
