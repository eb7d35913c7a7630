#include "custom_ops/shape_inference.h"

#include <atomic>

#include "abi/ort_attributes.h"
#include "abi/ort_kernel_node.h"

namespace normfuse::custom_ops {
namespace {

using ort::FromStatus;
using ort::GetApi;

Result ReadDimensionNames(const ort::TensorTypeAndShapeInfo* tensor, int rank, std::vector<std::string>* names) {
  if (rank <= 0) return {};
  std::vector<const char*> pointers(static_cast<size_t>(rank), nullptr);
  NORMFUSE_RETURN_IF_ORT_ERROR(GetApi().GetSymbolicDimensions(tensor, pointers.data(), pointers.size()));
  for (const char* name : pointers) names->emplace_back(name == nullptr ? "" : name);
  return {};
}

// Inputs of the node; ORT names neither node nor outputs here. `dimension_names` gets the names of X's unknown dimensions.
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
    if (!ort::ReadTensorFacts(tensor, &node->inputs[i]).ok()) node->inputs[i] = TensorFacts{};
    if (i == 0) NORMFUSE_RETURN_IF_ERROR(ReadDimensionNames(tensor, node->inputs[0].rank, dimension_names));
  }
  return {};
}

// Shape of the sum of X and the residual as far as it is known; rank -1 when it is not.
TensorFacts SumShape(const OperatorNode& node, const Plan& plan) {
  TensorFacts sum = node.inputs[0];
  if (!plan.residual.present()) return sum;
  const TensorFacts& residual = node.inputs[static_cast<size_t>(FusedNormalizationInput::kResidual)];
  if (residual.rank < 0 || residual.rank != sum.rank) {
    if (residual.rank < 0 || residual.rank > sum.rank) sum.rank = -1;
    return sum;
  }
  for (int i = 0; i < sum.rank; ++i) {
    if (sum.dims[i] == 1) sum.dims[i] = residual.dims[i];
  }
  return sum;
}

// Mean and inverse deviation have the sum's shape with every normalised dimension 1.
TensorFacts StatisticsShape(const Plan& plan, TensorFacts shape) {
  if (plan.normalization.num_groups > 0) shape.rank = -1;
  for (int64_t axis : plan.normalization.axes) {
    const int64_t index = axis < 0 ? axis + shape.rank : axis;
    if (index >= 0 && index < shape.rank) shape.dims[index] = 1;
  }
  return shape;
}

// Dimensions that are not known are given the names that X has for them, or new ones: ORT would take a dimension
// without a name as the number -1.
Result SetShape(ort::TensorTypeAndShapeInfo* info, const TensorFacts& shape,
                const std::vector<std::string>& dimension_names) {
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

Result SetOutput(ort::ShapeInferContext* context, size_t index, DataType type, const TensorFacts& shape,
                 const std::vector<std::string>& dimension_names) {
  const ort::Api& api = GetApi();
  ort::TensorTypeAndShapeInfo* info = nullptr;
  NORMFUSE_RETURN_IF_ORT_ERROR(api.CreateTensorTypeAndShapeInfo(&info));
  Result result = ort::FromStatus(api.SetTensorElementType(info, static_cast<int>(type)));
  if (result.ok() && shape.rank >= 0) result = SetShape(info, shape, dimension_names);
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
  std::vector<std::string> names;
  NORMFUSE_RETURN_IF_ERROR(ReadInferenceInputs(context, &node, &names));
  Plan plan;
  if (!node.inputs[0].present) return {};  // ORT does not know X's type yet
  if (std::optional<Declined> declined = PlanFromOperator(node, &plan)) {
    return Result::Error(ErrorCode::kInvalidArgument, declined->message);
  }
  const TensorFacts shape = SumShape(node, plan);
  NORMFUSE_RETURN_IF_ERROR(SetOutput(context, 0, plan.y_type, shape, names));
  if (kind != OperatorKind::kFusedNormalization) return {};
  // There is no way to ask which further outputs the node has. ORT refuses one that it does not have from 1.28 on, and
  // ends the process before; without inference the output takes its type and shape at run time.
  constexpr uint32_t kOutputsAreChecked = 28;
  if (ort::GetHost().version < kOutputsAreChecked) return {};
  const TensorFacts statistics = StatisticsShape(plan, shape);
  (void)SetOutput(context, static_cast<size_t>(FusedNormalizationOutput::kSum), plan.sum_type, shape, names);
  for (const auto output : {FusedNormalizationOutput::kMean, FusedNormalizationOutput::kInvStdDev}) {
    (void)SetOutput(context, static_cast<size_t>(output), plan.stats_type, statistics, names);
  }
  return {};
}

}  // namespace normfuse::custom_ops
