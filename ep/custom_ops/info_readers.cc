#include "custom_ops/info_readers.h"

#include "abi/ort_execution.h"

namespace normfuse::custom_ops {
namespace {

using ort::FromStatus;
using ort::GetApi;

// Reads text by the size-then-fill convention; empty when there is none.
template <typename Read>
std::string ReadText(Read&& read) {
  size_t size = 0;
  if (!FromStatus(read(nullptr, &size)).ok() || size == 0) return {};
  std::string text(size, '\0');
  if (!FromStatus(read(text.data(), &size)).ok()) return {};
  while (!text.empty() && text.back() == '\0') text.pop_back();
  return text;
}

template <typename T, typename Read>
bool ReadArray(std::vector<T>* value, Read&& read) {
  size_t size = 0;
  if (!FromStatus(read(nullptr, &size)).ok()) return false;
  value->resize(size);
  return size == 0 || FromStatus(read(value->data(), &size)).ok();
}

Result ReadTensorFacts(const ort::TensorTypeAndShapeInfo* tensor, TensorFacts* facts) {
  const ort::Api& api = GetApi();
  int type = 0;
  NORMFUSE_RETURN_IF_ORT_ERROR(api.GetTensorElementType(tensor, &type));
  facts->type = static_cast<DataType>(type);
  facts->present = facts->type != DataType::kUndefined;
  if (!api.TensorTypeAndShape_HasShape(tensor)) return {};
  size_t rank = 0;
  NORMFUSE_RETURN_IF_ORT_ERROR(api.GetDimensionsCount(tensor, &rank));
  facts->rank = static_cast<int>(rank);
  if (rank <= kMaxRank) NORMFUSE_RETURN_IF_ORT_ERROR(api.GetDimensions(tensor, facts->dims, rank));
  return {};
}

Result ReadKernelInput(const ort::KernelInfo* info, size_t index, TensorFacts* facts) {
  const ort::Api& api = GetApi();
  const std::string name =
      ReadText([&](char* out, size_t* size) { return api.KernelInfo_GetInputName(info, index, out, size); });
  if (name.empty()) return {};  // an optional input that was left out
  ort::TypeInfo* type_info = nullptr;
  NORMFUSE_RETURN_IF_ORT_ERROR(api.KernelInfo_GetInputTypeInfo(info, index, &type_info));
  const ort::TensorTypeAndShapeInfo* tensor = nullptr;
  Result result = FromStatus(api.CastTypeInfoToTensorInfo(type_info, &tensor));
  if (result.ok() && tensor != nullptr) result = ReadTensorFacts(tensor, facts);
  api.ReleaseTypeInfo(type_info);
  NORMFUSE_RETURN_IF_ERROR(std::move(result));
  int is_constant = 0;
  const ort::Value* value = nullptr;
  NORMFUSE_RETURN_IF_ORT_ERROR(api.KernelInfoGetConstantInput_tensor(info, index, &is_constant, &value));
  if (is_constant == 0 || value == nullptr) return {};
  TensorView view;
  NORMFUSE_RETURN_IF_ERROR(ort::ViewOf(value, &view));
  auto constant = std::make_shared<ConstantTensor>();
  constant->type = view.type;
  constant->dims.assign(view.dims, view.dims + view.rank);
  constant->data = view.data;
  facts->constant = std::move(constant);
  return {};
}

}  // namespace

bool KernelAttributes::GetInt(const char* name, int64_t* value) const {
  return FromStatus(GetApi().KernelInfoGetAttribute_int64(info_, name, value)).ok();
}

bool KernelAttributes::GetFloat(const char* name, float* value) const {
  return FromStatus(GetApi().KernelInfoGetAttribute_float(info_, name, value)).ok();
}

bool KernelAttributes::GetString(const char* name, std::string* value) const {
  const std::string text =
      ReadText([&](char* out, size_t* size) { return GetApi().KernelInfoGetAttribute_string(info_, name, out, size); });
  if (text.empty()) return false;
  *value = text;
  return true;
}

bool KernelAttributes::GetInts(const char* name, std::vector<int64_t>* value) const {
  return ReadArray(value, [&](int64_t* out, size_t* size) {
    return GetApi().KernelInfoGetAttributeArray_int64(info_, name, out, size);
  });
}

bool KernelAttributes::GetFloats(const char* name, std::vector<float>* value) const {
  return ReadArray(value, [&](float* out, size_t* size) {
    return GetApi().KernelInfoGetAttributeArray_float(info_, name, out, size);
  });
}

const ort::OpAttr* InferenceAttributes::Find(const char* name) const {
  const ort::OpAttr* attribute = nullptr;
  return FromStatus(GetApi().ShapeInferContext_GetAttribute(context_, name, &attribute)).ok() ? attribute : nullptr;
}

namespace {

template <typename T>
bool ReadOne(const ort::OpAttr* attribute, ort::OpAttrType type, T* value) {
  size_t needed = 0;
  return attribute != nullptr && FromStatus(GetApi().ReadOpAttr(attribute, type, value, sizeof(*value), &needed)).ok();
}

template <typename Container>
bool ReadMany(const ort::OpAttr* attribute, ort::OpAttrType type, Container* out) {
  if (attribute == nullptr) return false;
  size_t needed = 0;
  (void)FromStatus(GetApi().ReadOpAttr(attribute, type, nullptr, 0, &needed));
  out->assign(needed / sizeof(typename Container::value_type), {});
  return needed == 0 || FromStatus(GetApi().ReadOpAttr(attribute, type, out->data(), needed, &needed)).ok();
}

}  // namespace

bool InferenceAttributes::GetInt(const char* name, int64_t* value) const {
  return ReadOne(Find(name), ort::OpAttrType::kInt, value);
}

bool InferenceAttributes::GetFloat(const char* name, float* value) const {
  return ReadOne(Find(name), ort::OpAttrType::kFloat, value);
}

bool InferenceAttributes::GetString(const char* name, std::string* value) const {
  if (!ReadMany(Find(name), ort::OpAttrType::kString, value)) return false;
  while (!value->empty() && value->back() == '\0') value->pop_back();
  return true;
}

bool InferenceAttributes::GetInts(const char* name, std::vector<int64_t>* value) const {
  return ReadMany(Find(name), ort::OpAttrType::kInts, value);
}

bool InferenceAttributes::GetFloats(const char* name, std::vector<float>* value) const {
  return ReadMany(Find(name), ort::OpAttrType::kFloats, value);
}

namespace {

Result ReadKernelNode(const ort::KernelInfo* info, OperatorNode* node) {
  const ort::Api& api = GetApi();
  node->name = ReadText([&](char* out, size_t* size) { return api.KernelInfo_GetNodeName(info, out, size); });
  size_t count = 0;
  NORMFUSE_RETURN_IF_ORT_ERROR(api.KernelInfo_GetInputCount(info, &count));
  node->inputs.resize(count);
  for (size_t i = 0; i < count; ++i) NORMFUSE_RETURN_IF_ERROR(ReadKernelInput(info, i, &node->inputs[i]));
  NORMFUSE_RETURN_IF_ORT_ERROR(api.KernelInfo_GetOutputCount(info, &count));
  for (size_t i = 0; i < count; ++i) {
    const std::string output =
        ReadText([&](char* out, size_t* size) { return api.KernelInfo_GetOutputName(info, i, out, size); });
    node->outputs_used.push_back(!output.empty());
  }
  return {};
}

}  // namespace

Result ReadPlan(const ort::KernelInfo* info, Plan* plan) {
  const ort::Api& api = GetApi();
  const std::string op_type =
      ReadText([&](char* out, size_t* size) { return api.KernelInfo_GetOperatorType(info, out, size); });
  const KernelAttributes attributes(info);
  OperatorNode node;
  node.kind = OperatorKindOf(op_type).value_or(OperatorKind::kFusedNormalization);
  node.attributes = &attributes;
  NORMFUSE_RETURN_IF_ERROR(ReadKernelNode(info, &node));
  if (node.name.empty()) node.name = op_type;
  if (std::optional<Declined> declined = PlanFromOperator(node, plan)) {
    return Result::Error(ErrorCode::kInvalidArgument, declined->message);
  }
  return Validate(*plan);
}

namespace {

Result ReadDimensionNames(const ort::TensorTypeAndShapeInfo* tensor, int rank, std::vector<std::string>* names) {
  if (rank <= 0) return {};
  std::vector<const char*> pointers(static_cast<size_t>(rank), nullptr);
  NORMFUSE_RETURN_IF_ORT_ERROR(GetApi().GetSymbolicDimensions(tensor, pointers.data(), pointers.size()));
  for (const char* name : pointers) names->emplace_back(name == nullptr ? "" : name);
  return {};
}

}  // namespace

Result ReadInferenceInputs(const ort::ShapeInferContext* context, OperatorNode* node,
                           std::vector<std::string>* dimension_names) {
  const ort::Api& api = GetApi();
  size_t count = 0;
  NORMFUSE_RETURN_IF_ORT_ERROR(api.ShapeInferContext_GetInputCount(context, &count));
  node->inputs.resize(count);
  for (size_t i = 0; i < count; ++i) {
    // An input whose type is not known yet (or that was left out) gives an error here; it stays "absent".
    ort::TensorTypeAndShapeInfo* tensor = nullptr;
    if (!FromStatus(api.ShapeInferContext_GetInputTypeShape(context, i, &tensor)).ok() || tensor == nullptr) continue;
    // ORT keeps ownership of this object.
    if (!ReadTensorFacts(tensor, &node->inputs[i]).ok()) node->inputs[i] = TensorFacts{};
    if (i == 0) NORMFUSE_RETURN_IF_ERROR(ReadDimensionNames(tensor, node->inputs[0].rank, dimension_names));
  }
  return {};
}

}  // namespace normfuse::custom_ops
