// ExecutionContext over an OrtKernelContext, and helpers that read tensors through the ABI.
#pragma once

#include "abi/ort_host.h"
#include "chain/execution.h"

namespace normfuse::ort {

Result ViewOf(const Value* value, TensorView* view);

class KernelExecution final : public ExecutionContext {
 public:
  explicit KernelExecution(KernelContext* context) : context_(context) {}

  Result Input(int index, TensorView* view) override;
  Result Output(int index, DataType type, const int64_t* dims, size_t rank, void** data) override;
  Result ParallelFor(void (*task)(void* user, size_t index), size_t count, void* user) override;
  int ThreadCount() const override;
  void Warn(const std::string& message) override;

 private:
  KernelContext* context_;
};

}  // namespace normfuse::ort
