// What ORT tells about a node when its kernel is created, and about any tensor type.
#pragma once

#include <string>
#include <vector>

#include "abi/ort_host.h"
#include "chain/operator_node.h"

namespace normfuse::ort {

struct KernelNode {
  std::string name;  // the op type where the node has no name
  std::string op_type;
  std::string domain;
  int since_version = 0;
  std::vector<TensorFacts> inputs;  // positional; constants point into memory that lives as long as the kernel
  std::vector<TensorFacts> outputs;
};

Result ReadKernelNode(const KernelInfo* info, KernelNode* node);

// Element type and shape.
Result ReadTensorFacts(const TensorTypeAndShapeInfo* tensor, TensorFacts* facts);

// The data of a constant, not copied.
Result ReadConstant(const Value* value, std::shared_ptr<const ConstantTensor>* constant);

}  // namespace normfuse::ort
