// A custom-op node as ORT shows it: to a kernel that is created (OrtKernelInfo), and to shape inference
// (OrtShapeInferContext).
#pragma once

#include "abi/ort_host.h"
#include "plan/operator_node.h"

namespace normfuse::custom_ops {

class KernelAttributes final : public NodeAttributes {
 public:
  explicit KernelAttributes(const ort::KernelInfo* info) : info_(info) {}
  bool GetInt(const char* name, int64_t* value) const override;
  bool GetFloat(const char* name, float* value) const override;
  bool GetString(const char* name, std::string* value) const override;
  bool GetInts(const char* name, std::vector<int64_t>* value) const override;
  bool GetFloats(const char* name, std::vector<float>* value) const override;

 private:
  const ort::KernelInfo* info_;
};

class InferenceAttributes final : public NodeAttributes {
 public:
  explicit InferenceAttributes(const ort::ShapeInferContext* context) : context_(context) {}
  bool GetInt(const char* name, int64_t* value) const override;
  bool GetFloat(const char* name, float* value) const override;
  bool GetString(const char* name, std::string* value) const override;
  bool GetInts(const char* name, std::vector<int64_t>* value) const override;
  bool GetFloats(const char* name, std::vector<float>* value) const override;

 private:
  const ort::OpAttr* Find(const char* name) const;

  const ort::ShapeInferContext* context_;
};

// The plan of a node of our own operators. Constants point into memory that lives as long as the kernel.
Result ReadPlan(const ort::KernelInfo* info, Plan* plan);
// Inputs only; ORT names neither node nor outputs here. `dimension_names` gets the names of X's unknown dimensions.
Result ReadInferenceInputs(const ort::ShapeInferContext* context, OperatorNode* node,
                           std::vector<std::string>* dimension_names);

}  // namespace normfuse::custom_ops
