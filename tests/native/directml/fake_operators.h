// What the operators of a lowering compute, on the CPU and in float64, from DirectML's own descriptions. Written from the
// formulas that DirectML documents, not from the lowering.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "abi/directml_abi.h"

namespace normfuse::test {

struct FakeTensor {
  bool present = false;
  abi::DML_TENSOR_DATA_TYPE type = abi::DML_TENSOR_DATA_TYPE_UNKNOWN;
  bool owned = false;
  std::vector<uint32_t> sizes;
  std::vector<uint32_t> strides;
  uint64_t bytes = 0;
};

// An operator: its tensors, and what it does with their memory.
struct FakeKernel {
  std::vector<FakeTensor> inputs;
  FakeTensor output;
  std::function<void(const std::vector<const uint8_t*>& inputs, uint8_t* output)> run;
};

// Empty when DirectML of this level would take the description, else why it would not.
std::string ReadOperator(const abi::DML_OPERATOR_DESC& desc, uint32_t level, FakeKernel* kernel);

}  // namespace normfuse::test
