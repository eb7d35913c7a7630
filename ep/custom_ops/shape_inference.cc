#include "custom_ops/shape_inference.h"

#include <algorithm>
#include <atomic>

#include "abi/ort_attributes.h"
#include "abi/ort_kernel_node.h"
#include "plan/output_facts.h"

namespace normfuse::custom_ops {
namespace {

using ort::FromStatus;
using ort::GetApi;

// For each dimension its name; "" where it is known, or unknown without a name.
using DimensionNames = std::vector<std::string>;

Result ReadDimensionNames(const ort::TensorTypeAndShapeInfo* tensor, int rank, DimensionNames* names) {
  if (rank <= 0 || rank > kMaxRank) return {};
  std::vector<const char*> pointers(static_cast<size_t>(rank), nullptr);
  NORMFUSE_RETURN_IF_ORT_ERROR(GetApi().GetSymbolicDimensions(tensor, pointers.data(), pointers.size()));
  for (const char* name : pointers) names->emplace_back(name == nullptr ? "" : name);
  return {};
}

// Inputs of the node and their dimensions' names; ORT names neither node nor outputs here.
Result ReadInferenceInputs(const ort::ShapeInferContext* context, OperatorNode* node,
                           std::vector<DimensionNames>* names) {
  const ort::Api& api = GetApi();
  size_t count = 0;
  NORMFUSE_RETURN_IF_ORT_ERROR(api.ShapeInferContext_GetInputCount(context, &count));
  node->inputs.resize(count);
  names->resize(count);
  for (size_t i = 0; i < count; ++i) {
    // An input whose type is not known yet (or that was left out) gives an error here; it stays "absent".
    ort::TensorTypeAndShapeInfo* tensor = nullptr;
    if (!FromStatus(api.ShapeInferContext_GetInputTypeShape(context, i, &tensor)).ok() || tensor == nullptr) continue;
    // ORT keeps ownership of this object.
    if (!ort::ReadTensorFacts(tensor, &node->inputs[i]).ok()) node->inputs[i] = TensorFacts{};
    // A tensor without a shape comes here as one without dimensions.
    if (node->inputs[i].rank == 0) node->inputs[i].rank = -1;
    NORMFUSE_RETURN_IF_ERROR(ReadDimensionNames(tensor, node->inputs[i].rank, &(*names)[i]));
  }
  return {};
}

// The names of the dimensions of X + residual: an unknown one has the name of the operand that it must come from.
DimensionNames NamesOfSum(const OperatorNode& node, const std::vector<DimensionNames>& names) {
  constexpr auto kResidual = static_cast<size_t>(FusedNormalizationInput::kResidual);
  const bool has_residual = node.kind == OperatorKind::kFusedNormalization && node.inputs.size() > kResidual &&
                            node.inputs[kResidual].present;
  if (!has_residual) return names[0];
  const DimensionNames& x = names[0];
  const DimensionNames& residual = names[kResidual];
  DimensionNames sum(std::max(x.size(), residual.size()));
  for (size_t back = 1; back <= sum.size(); ++back) {
    const auto name_of = [&](const DimensionNames& operand) {
      return back <= operand.size() ? operand[operand.size() - back] : std::string();
    };
    const bool x_unknown = back <= x.size() && node.inputs[0].dims[x.size() - back] < 0;
    const bool residual_unknown = back <= residual.size() && node.inputs[kResidual].dims[residual.size() - back] < 0;
    if (x_unknown && residual_unknown && name_of(x) != name_of(residual)) continue;
    sum[sum.size() - back] = x_unknown ? name_of(x) : name_of(residual);
  }
  return sum;
}

// Dimensions that are not known are given the names found for them, or new ones: ORT would take a dimension
// without a name as the number -1.
Result SetShape(ort::TensorTypeAndShapeInfo* info, const TensorFacts& shape, const DimensionNames& dimension_names) {
  static std::atomic<unsigned> unnamed = 0;
  const auto rank = static_cast<size_t>(shape.rank);
  NORMFUSE_RETURN_IF_ORT_ERROR(GetApi().SetDimensions(info, shape.dims, rank));
  std::string names[kMaxRank];
  const char* pointers[kMaxRank] = {};
  for (size_t i = 0; i < rank; ++i) {
    if (shape.dims[i] < 0) {
      if (i < dimension_names.size()) names[i] = dimension_names[i];
      if (names[i].empty()) names[i] = "normfuse_unknown_" + std::to_string(unnamed++);
    }
    pointers[i] = names[i].c_str();
  }
  NORMFUSE_RETURN_IF_ORT_ERROR(GetApi().SetSymbolicDimensions(info, pointers, rank));
  return {};
}

Result SetOutput(ort::ShapeInferContext* context, size_t index, const TensorFacts& facts,
                 const DimensionNames& dimension_names) {
  // ORT would take a type without a shape as that of a tensor without dimensions.
  if (facts.rank < 0) return {};
  const ort::Api& api = GetApi();
  ort::TensorTypeAndShapeInfo* info = nullptr;
  NORMFUSE_RETURN_IF_ORT_ERROR(api.CreateTensorTypeAndShapeInfo(&info));
  Result result = ort::FromStatus(api.SetTensorElementType(info, static_cast<int>(facts.type)));
  if (result.ok()) result = SetShape(info, facts, dimension_names);
  if (result.ok()) result = ort::FromStatus(api.ShapeInferContext_SetOutputTypeShape(context, index, info));
  api.ReleaseTensorTypeAndShapeInfo(info);
  return result;
}

}  // namespace

Result InferOutputs(OperatorKind kind, const char* op_type, ort::ShapeInferContext* context) {
  const ort::InferenceAttributes attributes(context);
  OperatorNode node;
  node.kind = kind;
  node.name = op_type;
  node.attributes = &attributes;
  std::vector<DimensionNames> input_names;
  NORMFUSE_RETURN_IF_ERROR(ReadInferenceInputs(context, &node, &input_names));
  Plan plan;
  if (!node.inputs[0].present) return {};  // ORT does not know X's type yet
  if (std::optional<Declined> declined = PlanFromOperator(node, &plan)) {
    return Result::Error(ErrorCode::kInvalidArgument, declined->message);
  }
  const std::vector<TensorFacts> outputs = OutputFacts(node, plan);
  const DimensionNames names = NamesOfSum(node, input_names);
  NORMFUSE_RETURN_IF_ERROR(SetOutput(context, 0, outputs[0], names));
  // There is no way to ask which further outputs the node has. ORT refuses one that it does not have from 1.28 on, and
  // writes past the end of its list before; there the model itself says what the further outputs are (value_info).
  constexpr uint32_t kOutputsAreChecked = 28;
  if (ort::GetHost().version < kOutputsAreChecked) return {};
  for (size_t i = 1; i < outputs.size(); ++i) (void)SetOutput(context, i, outputs[i], names);
  return {};
}

}  // namespace normfuse::custom_ops
