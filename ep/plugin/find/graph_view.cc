#include "plugin/find/graph_view.h"

#include <algorithm>

#include "abi/ort_execution.h"
#include "abi/ort_kernel_node.h"

namespace normfuse::plugin {
namespace {

using ort::GetApi;

Result ReadText(ort::Status* (*getter)(const ort::Node*, const char**), const ort::Node* node, std::string* out) {
  const char* text = nullptr;
  NORMFUSE_RETURN_IF_ORT_ERROR(getter(node, &text));
  if (text != nullptr) *out = text;
  return {};
}

}  // namespace

Result GraphView::Read(const ort::Graph* graph, GivenInitializers* given) {
  given_ = given;
  const ort::Api& api = GetApi();
  size_t count = 0;
  NORMFUSE_RETURN_IF_ORT_ERROR(api.Graph_GetNumNodes(graph, &count));
  std::vector<const ort::Node*> nodes(count);
  NORMFUSE_RETURN_IF_ORT_ERROR(api.Graph_GetNodes(graph, nodes.data(), count));
  nodes_.reserve(count);
  values_.reserve(2 * count);
  by_name_.reserve(2 * count);
  for (const ort::Node* node : nodes) NORMFUSE_RETURN_IF_ERROR(ReadNode(node));
  std::vector<int> outputs;
  NORMFUSE_RETURN_IF_ERROR(ReadValues(graph, api.Graph_GetNumOutputs, api.Graph_GetOutputs, &outputs));
  for (const int value : outputs) {
    if (value != kNone) values_[static_cast<size_t>(value)].is_output = true;
  }
  return {};
}

Result GraphView::ReadNode(const ort::Node* node) {
  const ort::Api& api = GetApi();
  GraphNode& entry = nodes_.emplace_back();
  entry.node = node;
  entry.attributes = std::make_unique<ort::GraphNodeAttributes>(node);
  NORMFUSE_RETURN_IF_ERROR(ReadText(api.Node_GetName, node, &entry.name));
  NORMFUSE_RETURN_IF_ERROR(ReadText(api.Node_GetOperatorType, node, &entry.op_type));
  NORMFUSE_RETURN_IF_ERROR(ReadText(api.Node_GetDomain, node, &entry.domain));
  NORMFUSE_RETURN_IF_ERROR(ReadText(api.Node_GetEpName, node, &entry.provider));
  NORMFUSE_RETURN_IF_ORT_ERROR(api.Node_GetSinceVersion(node, &entry.since_version));
  if (entry.domain == "ai.onnx") entry.domain.clear();
  const size_t index = nodes_.size() - 1;
  NORMFUSE_RETURN_IF_ERROR(ReadUses(index));
  NameByOutput(&nodes_[index]);
  return {};
}

// Names of nodes are optional in ONNX. Reports name such a node by its first output, as the rewriting pass does.
void GraphView::NameByOutput(GraphNode* node) const {
  if (!node->name.empty()) return;
  const auto named = std::find_if(node->outputs.begin(), node->outputs.end(), [](int value) { return value != kNone; });
  if (named != node->outputs.end()) node->name = value(*named).name;
}

Result GraphView::ReadUses(size_t node_index) {
  const ort::Api& api = GetApi();
  GraphNode& entry = nodes_[node_index];
  const int index = static_cast<int>(node_index);
  NORMFUSE_RETURN_IF_ERROR(ReadValues(entry.node, api.Node_GetNumInputs, api.Node_GetInputs, &entry.inputs));
  NORMFUSE_RETURN_IF_ERROR(ReadValues(entry.node, api.Node_GetNumOutputs, api.Node_GetOutputs, &entry.outputs));
  NORMFUSE_RETURN_IF_ERROR(
      ReadValues(entry.node, api.Node_GetNumImplicitInputs, api.Node_GetImplicitInputs, &entry.implicit_inputs));
  const auto add = [this](const std::vector<int>& read, int consumer) {
    for (const int value : read) {
      if (value != kNone) values_[static_cast<size_t>(value)].consumers.push_back(consumer);
    }
  };
  add(entry.inputs, index);
  add(entry.implicit_inputs, kNone);
  for (const int value : entry.outputs) {
    if (value != kNone) values_[static_cast<size_t>(value)].producer = index;
  }
  return {};
}

template <typename Owner, typename Count, typename Get>
Result GraphView::ReadValues(const Owner* owner, Count count, Get get, std::vector<int>* values) {
  size_t size = 0;
  NORMFUSE_RETURN_IF_ORT_ERROR(count(owner, &size));
  if (size == 0) return {};
  buffer_.assign(size, nullptr);
  NORMFUSE_RETURN_IF_ORT_ERROR(get(owner, buffer_.data(), size));
  values->reserve(size);
  for (const ort::ValueInfo* info : buffer_) NORMFUSE_RETURN_IF_ERROR(Intern(info, &values->emplace_back(kNone)));
  return {};
}

Result GraphView::Intern(const ort::ValueInfo* info, int* value) {
  *value = kNone;
  if (info == nullptr) return {};
  const char* name = nullptr;
  NORMFUSE_RETURN_IF_ORT_ERROR(GetApi().GetValueInfoName(info, &name));
  if (name == nullptr || *name == '\0') return {};
  const auto [position, inserted] = by_name_.try_emplace(name, static_cast<int>(values_.size()));
  if (inserted) {
    GraphValue& entry = values_.emplace_back();
    entry.info = info;
    entry.name = name;
  }
  *value = position->second;
  return {};
}

const TensorFacts& GraphView::Facts(int value) {
  static const TensorFacts kMissing;
  if (value == kNone) return kMissing;
  if (facts_.size() < values_.size()) facts_.resize(values_.size());
  std::unique_ptr<TensorFacts>& facts = facts_[static_cast<size_t>(value)];
  if (facts != nullptr) return *facts;
  facts = std::make_unique<TensorFacts>();
  // A value that ORT cannot describe stays "present, type unknown", which every check refuses.
  if (!ReadFacts(this->value(value), facts.get()).ok()) {
    *facts = TensorFacts{};
    facts->present = true;
  }
  return *facts;
}

Result GraphView::ReadFacts(const GraphValue& value, TensorFacts* facts) const {
  const ort::Api& api = GetApi();
  facts->present = true;
  const ort::TypeInfo* type_info = nullptr;
  NORMFUSE_RETURN_IF_ORT_ERROR(api.GetValueInfoTypeInfo(value.info, &type_info));
  if (type_info == nullptr) return {};
  const ort::TensorTypeAndShapeInfo* tensor = nullptr;
  NORMFUSE_RETURN_IF_ORT_ERROR(api.CastTypeInfoToTensorInfo(type_info, &tensor));
  if (tensor == nullptr) return {};  // a sequence, map or optional
  NORMFUSE_RETURN_IF_ERROR(ort::ReadTensorFacts(tensor, facts));
  bool constant = false;
  NORMFUSE_RETURN_IF_ORT_ERROR(api.ValueInfo_IsConstantInitializer(value.info, &constant));
  if (!constant) return {};
  facts->given = given_->Has(value.name);
  if (facts->given) return {};
  const ort::Value* data = nullptr;
  NORMFUSE_RETURN_IF_ORT_ERROR(api.ValueInfo_GetInitializerValue(value.info, &data));
  if (data != nullptr) NORMFUSE_RETURN_IF_ERROR(ort::ReadConstant(data, &facts->constant));
  return {};
}

Result GraphView::ReadKernel(const ort::KernelInfo* info) {
  ort::KernelNode kernel;
  NORMFUSE_RETURN_IF_ERROR(ort::ReadKernelNode(info, &kernel));
  GraphNode& node = nodes_.emplace_back();
  node.attributes = std::make_unique<ort::KernelAttributes>(info);
  node.name = std::move(kernel.name);
  node.op_type = std::move(kernel.op_type);
  node.domain = std::move(kernel.domain);
  node.since_version = kernel.since_version;
  for (const std::vector<TensorFacts>* tensors : {&kernel.inputs, &kernel.outputs}) {
    const bool inputs = tensors == &kernel.inputs;
    for (const TensorFacts& facts : *tensors) {
      const int index = static_cast<int>(values_.size());
      GraphValue& value = values_.emplace_back();
      value.is_output = !inputs;
      if (!inputs) value.producer = 0;
      facts_.push_back(std::make_unique<TensorFacts>(facts));
      (inputs ? node.inputs : node.outputs).push_back(facts.present ? index : kNone);
    }
  }
  return {};
}

}  // namespace normfuse::plugin
