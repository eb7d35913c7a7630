// A node's attributes through the three ways in which ORT shows a node: in a graph, in shape inference, to a kernel.
#pragma once

#include "abi/ort_host.h"
#include "chain/operator_node.h"

namespace normfuse::ort {

// Attributes that ORT hands out as OrtOpAttr objects.
class OpAttrAttributes : public NodeAttributes {
 public:
  bool GetInt(const char* name, int64_t* value) const override;
  bool GetFloat(const char* name, float* value) const override;
  bool GetString(const char* name, std::string* value) const override;
  bool GetInts(const char* name, std::vector<int64_t>* value) const override;

 protected:
  // Null when the node does not have the attribute.
  virtual const OpAttr* Find(const char* name) const = 0;
};

// ORT fills in the constant defaults of the operator's schema here.
class GraphNodeAttributes final : public OpAttrAttributes {
 public:
  explicit GraphNodeAttributes(const Node* node) : node_(node) {}

 private:
  const OpAttr* Find(const char* name) const override;

  const Node* node_;
};

class InferenceAttributes final : public OpAttrAttributes {
 public:
  explicit InferenceAttributes(const ShapeInferContext* context) : context_(context) {}

 private:
  const OpAttr* Find(const char* name) const override;

  const ShapeInferContext* context_;
};

class KernelAttributes final : public NodeAttributes {
 public:
  explicit KernelAttributes(const KernelInfo* info) : info_(info) {}
  bool GetInt(const char* name, int64_t* value) const override;
  bool GetFloat(const char* name, float* value) const override;
  bool GetString(const char* name, std::string* value) const override;
  bool GetInts(const char* name, std::vector<int64_t>* value) const override;

 private:
  const KernelInfo* info_;
};

// Names of the attributes that a graph node itself carries.
Result ListAttributes(const Node* node, std::vector<std::string>* names);

// A tensor attribute of a graph node, with data of its own; null where the node does not carry it.
Result ReadTensorAttribute(const Node* node, const char* name, std::shared_ptr<const ConstantTensor>* value);

// Reads text by ORT's size-then-fill convention; empty when there is none.
template <typename Read>
std::string ReadText(Read&& read) {
  size_t size = 0;
  if (!FromStatus(read(nullptr, &size)).ok() || size == 0) return {};
  std::string text(size, '\0');
  if (!FromStatus(read(text.data(), &size)).ok()) return {};
  while (!text.empty() && text.back() == '\0') text.pop_back();
  return text;
}

}  // namespace normfuse::ort
