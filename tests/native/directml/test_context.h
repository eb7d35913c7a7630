// An ExecutionContext over plain arrays.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "chain/execution.h"
#include "chain_generator.h"

namespace normfuse::test {

class TestContext final : public ExecutionContext {
 public:
  explicit TestContext(const std::vector<TestTensor>& inputs) : inputs_(inputs) {}

  Result Input(int index, TensorView* view) override {
    if (index < 0 || static_cast<size_t>(index) >= inputs_.size()) {
      return Result::Error(ErrorCode::kInvalidArgument, "no input " + std::to_string(index));
    }
    const TestTensor& tensor = inputs_[static_cast<size_t>(index)];
    *view = {tensor.bytes.data(), tensor.type, tensor.dims.data(), tensor.dims.size()};
    return {};
  }
  Result Output(int index, DataType type, const int64_t* dims, size_t rank, void** data) override {
    TestTensor& tensor = outputs_[index];
    tensor.type = type;
    tensor.dims.assign(dims, dims + rank);
    tensor.bytes.assign(static_cast<size_t>(tensor.count()) * 4 + 64, 0xEE);
    *data = tensor.bytes.data();
    return {};
  }
  Result ParallelFor(void (*task)(void* user, size_t index), size_t count, void* user) override {
    for (size_t i = 0; i < count; ++i) task(user, i);
    return {};
  }
  int ThreadCount() const override { return 1; }
  void Warn(const std::string& message) override { warning_ = message; }

  // The last one; empty when there was none.
  const std::string& warning() const { return warning_; }
  bool has(int index) const { return outputs_.count(index) != 0; }
  // An output, read as `type`.
  TestTensor output(int index, DataType type) const {
    TestTensor tensor = outputs_.at(index);
    tensor.type = type;
    return tensor;
  }

 private:
  const std::vector<TestTensor>& inputs_;
  std::map<int, TestTensor> outputs_;
  std::string warning_;
};

}  // namespace normfuse::test
