// A DmlProgram's operators as the structures that IDMLDevice::CreateOperator and CompileGraph read.
#pragma once

#include <memory>
#include <vector>

#include "abi/directml_abi.h"
#include "directml/lowering/program.h"

namespace normfuse::directml {

// One DML_OPERATOR_DESC and everything that it points to.
class OperatorDesc {
 public:
  explicit OperatorDesc(const Operator& op);
  OperatorDesc(const OperatorDesc&) = delete;  // its structures point at one another

  // Valid as long as this object and the Operator live.
  const abi::DML_OPERATOR_DESC& get() const { return desc_; }

 private:
  void Fill(const Operator& op);
  const abi::DML_TENSOR_DESC* Tensor(const TensorDesc& desc);
  const abi::DML_TENSOR_DESC* Input(const Operator& op, size_t index);
  const abi::DML_OPERATOR_DESC* Fused(const Operator& op);
  template <typename Desc>
  void Set(const Desc& desc);
  void SetAlone(const Operator& op, const abi::DML_TENSOR_DESC* y);
  void SetActivation(const Operator& op, const abi::DML_TENSOR_DESC* output);
  void SetQuantization(const Operator& op, const abi::DML_TENSOR_DESC* output);
  void SetSliding(const Operator& op, const abi::DML_TENSOR_DESC* output);
  void SetJoin(const Operator& op, const abi::DML_TENSOR_DESC* output);

  struct StoredTensor {
    abi::DML_BUFFER_TENSOR_DESC buffer;
    abi::DML_TENSOR_DESC desc;
  };
  std::vector<std::unique_ptr<StoredTensor>> tensors_;
  std::vector<abi::DML_TENSOR_DESC> tensor_array_;
  abi::DML_ACTIVATION_OPERATOR_DESC fused_struct_{};
  abi::DML_OPERATOR_DESC fused_{};
  std::shared_ptr<void> struct_;
  abi::DML_OPERATOR_DESC desc_{};
};

}  // namespace normfuse::directml
