#include "plugin/graph_view.h"

#include "abi/ort_execution.h"

namespace normfuse::plugin {
namespace {

using ort::FromStatus;
using ort::GetApi;

Result ReadText(ort::Status* (*getter)(const ort::Node*, const char**), const ort::Node* node, std::string* out) {
  const char* text = nullptr;
  NORMFUSE_RETURN_IF_ORT_ERROR(getter(node, &text));
  if (text != nullptr) *out = text;
  return {};
}

}  // namespace

Result GraphView::Read(const ort::Graph* graph) {
  const ort::Api& api = GetApi();
  size_t count = 0;
  NORMFUSE_RETURN_IF_ORT_ERROR(api.Graph_GetNumNodes(graph, &count));
  std::vector<const ort::Node*> nodes(count);
  NORMFUSE_RETURN_IF_ORT_ERROR(api.Graph_GetNodes(graph, nodes.data(), count));
  nodes_.reserve(count);
  values_.reserve(2 * count);
  for (const ort::Node* node : nodes) NORMFUSE_RETURN_IF_ERROR(ReadNode(node));
  return MarkOutputs(graph);
}

Result GraphView::ReadNode(const ort::Node* node) {
  const ort::Api& api = GetApi();
  GraphNode& entry = nodes_.emplace_back();
  entry.node = node;
  NORMFUSE_RETURN_IF_ERROR(ReadText(api.Node_GetName, node, &entry.name));
  NORMFUSE_RETURN_IF_ERROR(ReadText(api.Node_GetOperatorType, node, &entry.op_type));
  NORMFUSE_RETURN_IF_ERROR(ReadText(api.Node_GetDomain, node, &entry.domain));
  NORMFUSE_RETURN_IF_ERROR(ReadText(api.Node_GetEpName, node, &entry.provider));
  NORMFUSE_RETURN_IF_ORT_ERROR(api.Node_GetSinceVersion(node, &entry.since_version));
  if (entry.domain == "ai.onnx") entry.domain.clear();
  const size_t index = nodes_.size() - 1;
  NORMFUSE_RETURN_IF_ERROR(ReadPorts(index, /*inputs=*/true));
  NORMFUSE_RETURN_IF_ERROR(ReadPorts(index, /*inputs=*/false));
  return ReadImplicitInputs(index);
}

Result GraphView::ReadPorts(size_t node_index, bool inputs) {
  const ort::Api& api = GetApi();
  const ort::Node* node = nodes_[node_index].node;
  size_t count = 0;
  NORMFUSE_RETURN_IF_ORT_ERROR(inputs ? api.Node_GetNumInputs(node, &count) : api.Node_GetNumOutputs(node, &count));
  buffer_.assign(count, nullptr);
  NORMFUSE_RETURN_IF_ORT_ERROR(inputs ? api.Node_GetInputs(node, buffer_.data(), count)
                                      : api.Node_GetOutputs(node, buffer_.data(), count));
  std::vector<int>& ports = inputs ? nodes_[node_index].inputs : nodes_[node_index].outputs;
  ports.reserve(count);
  for (const ort::ValueInfo* info : buffer_) {
    int value = kNone;
    NORMFUSE_RETURN_IF_ERROR(Intern(info, &value));
    ports.push_back(value);
    if (value == kNone) continue;
    if (inputs) {
      values_[static_cast<size_t>(value)].consumers.push_back(static_cast<int>(node_index));
    } else {
      values_[static_cast<size_t>(value)].producer = static_cast<int>(node_index);
    }
  }
  return {};
}

Result GraphView::ReadImplicitInputs(size_t node_index) {
  const ort::Api& api = GetApi();
  const ort::Node* node = nodes_[node_index].node;
  size_t count = 0;
  NORMFUSE_RETURN_IF_ORT_ERROR(api.Node_GetNumImplicitInputs(node, &count));
  if (count == 0) return {};
  buffer_.assign(count, nullptr);
  NORMFUSE_RETURN_IF_ORT_ERROR(api.Node_GetImplicitInputs(node, buffer_.data(), count));
  for (const ort::ValueInfo* info : buffer_) {
    int value = kNone;
    NORMFUSE_RETURN_IF_ERROR(Intern(info, &value));
    if (value != kNone) values_[static_cast<size_t>(value)].consumers.push_back(kNone);
  }
  return {};
}

Result GraphView::MarkOutputs(const ort::Graph* graph) {
  const ort::Api& api = GetApi();
  size_t count = 0;
  NORMFUSE_RETURN_IF_ORT_ERROR(api.Graph_GetNumOutputs(graph, &count));
  buffer_.assign(count, nullptr);
  NORMFUSE_RETURN_IF_ORT_ERROR(api.Graph_GetOutputs(graph, buffer_.data(), count));
  for (const ort::ValueInfo* info : buffer_) {
    int value = kNone;
    NORMFUSE_RETURN_IF_ERROR(Intern(info, &value));
    if (value != kNone) values_[static_cast<size_t>(value)].is_output = true;
  }
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
  const auto [position, inserted] = facts_.try_emplace(value);
  // A value that ORT cannot describe stays "present, type unknown", which every check refuses.
  if (inserted && !ReadFacts(this->value(value), &position->second).ok()) {
    position->second = TensorFacts{};
    position->second.present = true;
  }
  return position->second;
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
  int type = 0;
  NORMFUSE_RETURN_IF_ORT_ERROR(api.GetTensorElementType(tensor, &type));
  facts->type = static_cast<DataType>(type);
  if (api.TensorTypeAndShape_HasShape(tensor)) {
    size_t rank = 0;
    NORMFUSE_RETURN_IF_ORT_ERROR(api.GetDimensionsCount(tensor, &rank));
    facts->rank = static_cast<int>(rank);
    if (rank <= kMaxRank) NORMFUSE_RETURN_IF_ORT_ERROR(api.GetDimensions(tensor, facts->dims, rank));
  }
  bool constant = false;
  NORMFUSE_RETURN_IF_ORT_ERROR(api.ValueInfo_IsConstantInitializer(value.info, &constant));
  if (!constant) return {};
  const ort::Value* data = nullptr;
  NORMFUSE_RETURN_IF_ORT_ERROR(api.ValueInfo_GetInitializerValue(value.info, &data));
  if (data == nullptr) return {};
  TensorView view;
  NORMFUSE_RETURN_IF_ERROR(ort::ViewOf(data, &view));
  auto tensor_data = std::make_shared<ConstantTensor>();
  tensor_data->type = view.type;
  tensor_data->dims.assign(view.dims, view.dims + view.rank);
  tensor_data->data = view.data;
  facts->constant = std::move(tensor_data);
  return {};
}

const ort::OpAttr* GraphNodeAttributes::Find(const char* name, ort::OpAttrType type) const {
  const ort::OpAttr* attribute = nullptr;
  // An operator whose schema does not know the name gives an error; to us that is the same as absent.
  if (!FromStatus(GetApi().Node_GetAttributeByName(node_, name, &attribute)).ok() || attribute == nullptr) {
    return nullptr;
  }
  ort::OpAttrType actual = ort::OpAttrType::kUndefined;
  if (!FromStatus(GetApi().OpAttr_GetType(attribute, &actual)).ok() || actual != type) return nullptr;
  return attribute;
}

bool GraphNodeAttributes::GetInt(const char* name, int64_t* value) const {
  const ort::OpAttr* attribute = Find(name, ort::OpAttrType::kInt);
  size_t needed = 0;
  return attribute != nullptr &&
         FromStatus(GetApi().ReadOpAttr(attribute, ort::OpAttrType::kInt, value, sizeof(*value), &needed)).ok();
}

bool GraphNodeAttributes::GetFloat(const char* name, float* value) const {
  const ort::OpAttr* attribute = Find(name, ort::OpAttrType::kFloat);
  size_t needed = 0;
  return attribute != nullptr &&
         FromStatus(GetApi().ReadOpAttr(attribute, ort::OpAttrType::kFloat, value, sizeof(*value), &needed)).ok();
}

namespace {

// Reads an attribute of many elements: ask for the size first, then for the bytes.
template <typename Container>
bool ReadMany(const ort::OpAttr* attribute, ort::OpAttrType type, Container* out) {
  if (attribute == nullptr) return false;
  size_t needed = 0;
  const bool fits = FromStatus(GetApi().ReadOpAttr(attribute, type, nullptr, 0, &needed)).ok();
  out->assign(needed / sizeof(typename Container::value_type), {});
  return fits || FromStatus(GetApi().ReadOpAttr(attribute, type, out->data(), needed, &needed)).ok();
}

}  // namespace

bool GraphNodeAttributes::GetString(const char* name, std::string* value) const {
  if (!ReadMany(Find(name, ort::OpAttrType::kString), ort::OpAttrType::kString, value)) return false;
  while (!value->empty() && value->back() == '\0') value->pop_back();
  return true;
}

bool GraphNodeAttributes::GetInts(const char* name, std::vector<int64_t>* value) const {
  return ReadMany(Find(name, ort::OpAttrType::kInts), ort::OpAttrType::kInts, value);
}

bool GraphNodeAttributes::GetFloats(const char* name, std::vector<float>* value) const {
  return ReadMany(Find(name, ort::OpAttrType::kFloats), ort::OpAttrType::kFloats, value);
}

Result GraphNodeAttributes::List(std::vector<std::string>* names) const {
  const ort::Api& api = GetApi();
  size_t count = 0;
  NORMFUSE_RETURN_IF_ORT_ERROR(api.Node_GetNumAttributes(node_, &count));
  std::vector<const ort::OpAttr*> attributes(count);
  NORMFUSE_RETURN_IF_ORT_ERROR(api.Node_GetAttributes(node_, attributes.data(), count));
  for (const ort::OpAttr* attribute : attributes) {
    const char* name = nullptr;
    NORMFUSE_RETURN_IF_ORT_ERROR(api.OpAttr_GetName(attribute, &name));
    names->emplace_back(name);
  }
  return {};
}

}  // namespace normfuse::plugin
