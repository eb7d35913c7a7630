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
  template <typename T>
  void Append(const T& value);
  void Put(abi::DmlField field);
  const abi::DML_TENSOR_DESC* Tensor(const TensorDesc& desc);
  const abi::DML_TENSOR_DESC* Input();
  const abi::DML_TENSOR_DESC* OtherInputs();
  const abi::DML_OPERATOR_DESC* Fused();
  uint32_t CountOfOtherInputs() const;

  struct StoredTensor {
    abi::DML_BUFFER_TENSOR_DESC buffer;
    abi::DML_TENSOR_DESC desc;
  };
  const Operator& op_;
  size_t inputs_ = 0, parameters_ = 0;  // of them that are in the structure
  std::vector<std::unique_ptr<StoredTensor>> tensors_;
  std::vector<abi::DML_TENSOR_DESC> tensor_array_;
  abi::DML_ACTIVATION_OPERATOR_DESC fused_struct_{};
  abi::DML_OPERATOR_DESC fused_{};
  alignas(8) unsigned char struct_[128] = {};
  size_t bytes_ = 0;
  abi::DML_OPERATOR_DESC desc_;
};

}  // namespace normfuse::directml
