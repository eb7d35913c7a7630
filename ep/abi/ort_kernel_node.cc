#include "abi/ort_kernel_node.h"

#include "abi/ort_attributes.h"
#include "abi/ort_execution.h"

namespace normfuse::ort {
namespace {

Result ReadType(TypeInfo* type_info, TensorFacts* facts) {
  const TensorTypeAndShapeInfo* tensor = nullptr;
  Result result = FromStatus(GetApi().CastTypeInfoToTensorInfo(type_info, &tensor));
  if (result.ok() && tensor != nullptr) result = ReadTensorFacts(tensor, facts);
  GetApi().ReleaseTypeInfo(type_info);
  return result;
}

Result ReadInput(const KernelInfo* info, size_t index, TensorFacts* facts) {
  const Api& api = GetApi();
  const std::string name =
      ReadText([&](char* out, size_t* size) { return api.KernelInfo_GetInputName(info, index, out, size); });
  if (name.empty()) return {};  // an optional input that was left out
  TypeInfo* type_info = nullptr;
  NORMFUSE_RETURN_IF_ORT_ERROR(api.KernelInfo_GetInputTypeInfo(info, index, &type_info));
  NORMFUSE_RETURN_IF_ERROR(ReadType(type_info, facts));
  int is_constant = 0;
  const Value* value = nullptr;
  NORMFUSE_RETURN_IF_ORT_ERROR(api.KernelInfoGetConstantInput_tensor(info, index, &is_constant, &value));
  return is_constant != 0 && value != nullptr ? ReadConstant(value, &facts->constant) : Result{};
}

Result ReadOutput(const KernelInfo* info, size_t index, TensorFacts* facts) {
  const Api& api = GetApi();
  const std::string name =
      ReadText([&](char* out, size_t* size) { return api.KernelInfo_GetOutputName(info, index, out, size); });
  if (name.empty()) return {};
  TypeInfo* type_info = nullptr;
  NORMFUSE_RETURN_IF_ORT_ERROR(api.KernelInfo_GetOutputTypeInfo(info, index, &type_info));
  return ReadType(type_info, facts);
}

}  // namespace

Result ReadKernelNode(const KernelInfo* info, KernelNode* node) {
  const Api& api = GetApi();
  node->name = ReadText([&](char* out, size_t* size) { return api.KernelInfo_GetNodeName(info, out, size); });
  node->op_type = ReadText([&](char* out, size_t* size) { return api.KernelInfo_GetOperatorType(info, out, size); });
  node->domain = ReadText([&](char* out, size_t* size) { return api.KernelInfo_GetOperatorDomain(info, out, size); });
  NORMFUSE_RETURN_IF_ORT_ERROR(api.KernelInfo_GetOperatorSinceVersion(info, &node->since_version));
  if (node->domain == "ai.onnx") node->domain.clear();
  if (node->name.empty()) node->name = node->op_type;
  size_t count = 0;
  NORMFUSE_RETURN_IF_ORT_ERROR(api.KernelInfo_GetInputCount(info, &count));
  node->inputs.resize(count);
  for (size_t i = 0; i < count; ++i) NORMFUSE_RETURN_IF_ERROR(ReadInput(info, i, &node->inputs[i]));
  NORMFUSE_RETURN_IF_ORT_ERROR(api.KernelInfo_GetOutputCount(info, &count));
  node->outputs.resize(count);
  for (size_t i = 0; i < count; ++i) NORMFUSE_RETURN_IF_ERROR(ReadOutput(info, i, &node->outputs[i]));
  return {};
}

Result ReadTensorFacts(const TensorTypeAndShapeInfo* tensor, TensorFacts* facts) {
  const Api& api = GetApi();
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

Result ReadConstant(const Value* value, std::shared_ptr<const ConstantTensor>* constant) {
  TensorView view;
  NORMFUSE_RETURN_IF_ERROR(ViewOf(value, &view));
  auto tensor = std::make_shared<ConstantTensor>();
  tensor->type = view.type;
  tensor->dims.assign(view.dims, view.dims + view.rank);
  tensor->data = view.data;
  *constant = std::move(tensor);
  return {};
}

}  // namespace normfuse::ort
