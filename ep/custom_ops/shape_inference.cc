#include "custom_ops/shape_inference.h"

#include <algorithm>
#include <atomic>
#include <iterator>

#include "abi/ort_attributes.h"
#include "abi/ort_kernel_node.h"
#include "chain/output_facts.h"

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

// There is no way to ask which outputs the node has.
constexpr size_t kMostOutputs = std::size(kFusedNormalizationOutputs);

// Inputs of the node and their dimensions' names; ORT names neither node nor outputs here.
Result ReadInferenceInputs(const ort::ShapeInferContext* context, OperatorNode* node,
                           std::vector<DimensionNames>* names) {
  const ort::Api& api = GetApi();
  size_t count = 0;
  NORMFUSE_RETURN_IF_ORT_ERROR(api.ShapeInferContext_GetInputCount(context, &count));
  node->inputs.resize(count);
  node->outputs_used.assign(kMostOutputs, true);
  names->resize(count);
  for (size_t i = 0; i < count; ++i) {
    // An input whose type is not known yet (or that was left out) gives an error here; it stays "absent".
    ort::TensorTypeAndShapeInfo* tensor = nullptr;
    if (!FromStatus(api.ShapeInferContext_GetInputTypeShape(context, i, &tensor)).ok() || tensor == nullptr) continue;
    // ORT keeps ownership of this object.
    if (!ort::ReadTensorFacts(tensor, &node->inputs[i]).ok()) node->inputs[i] = TensorFacts{};
    // A tensor whose shape is not known comes here as one without dimensions.
    if (node->inputs[i].rank == 0 && i == 0) node->inputs[i].rank = -1;
    NORMFUSE_RETURN_IF_ERROR(ReadDimensionNames(tensor, node->inputs[i].rank, &(*names)[i]));
  }
  return {};
}

// The names of d's unknown dimensions: those on which all operands agree that may have more than one element there. Two
// names may stand for two sizes, of which d has the larger one.
DimensionNames NamesOfD(const Chain& chain, const PartialShape& d, const std::vector<DimensionNames>& names) {
  if (d.rank < 0) return {};
  DimensionNames agreed(static_cast<size_t>(d.rank));
  std::vector<bool> seen(agreed.size(), false);
  const auto add = [&](const Operand& operand) {
    const PartialShape& shape = operand.shape;
    if (operand.tensor.input == TensorRef::kAbsent) return;
    for (int i = 0; i < shape.rank; ++i) {
      if (shape.dims[i] >= 0) continue;
      const auto at = static_cast<size_t>(d.rank) - static_cast<size_t>(shape.rank) + static_cast<size_t>(i);
      const std::string& name = names[static_cast<size_t>(operand.tensor.input)][static_cast<size_t>(i)];
      agreed[at] = seen[at] && agreed[at] != name ? "" : name;
      seen[at] = true;
    }
  };
  bool has_channels = false;
  const auto add_steps = [&](const std::vector<Step>& steps) {
    for (const Step& step : steps) {
      if (!step.operand.present()) continue;
      has_channels |= step.operand.align == Align::kChannel;
      if (step.operand.align == Align::kTrailing) add(step.operand);
    }
  };
  add(chain.x);
  add_steps(chain.before);
  if (!chain.normalizes()) add_steps(chain.behind);
  if (has_channels && d.rank > 1) agreed[1].clear();
  return agreed;
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
      if (names[i].empty()) names[i] = kUnnamedDimension + std::to_string(unnamed++);
    }
    pointers[i] = names[i].c_str();
  }
  NORMFUSE_RETURN_IF_ORT_ERROR(GetApi().SetSymbolicDimensions(info, pointers, rank));
  return {};
}

// What ORT takes an output for of which nothing is said: it has the type of the last input.
DataType GuessedType(const OperatorNode& node) {
  const auto last =
      std::find_if(node.inputs.rbegin(), node.inputs.rend(), [](const auto& facts) { return facts.present; });
  return last == node.inputs.rend() ? DataType::kUndefined : last->type;
}

Result SetOutput(ort::ShapeInferContext* context, size_t index, const TensorFacts& facts, DataType guessed,
                 const DimensionNames& dimension_names) {
  // ORT before 1.28 would take a type without a shape as that of a tensor without dimensions.
  if (facts.rank < 0 && facts.type == guessed) return {};
  const ort::Api& api = GetApi();
  ort::TensorTypeAndShapeInfo* info = nullptr;
  NORMFUSE_RETURN_IF_ORT_ERROR(api.CreateTensorTypeAndShapeInfo(&info));
  Result result = ort::FromStatus(api.SetTensorElementType(info, static_cast<int>(facts.type)));
  if (result.ok() && facts.rank >= 0) result = SetShape(info, facts, dimension_names);
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
  node.shows_constants = false;
  std::vector<DimensionNames> input_names;
  NORMFUSE_RETURN_IF_ERROR(ReadInferenceInputs(context, &node, &input_names));
  Chain chain;
  if (std::optional<Declined> declined = ChainFromOperator(node, &chain)) {
    // A tensor that is not there may be one whose type ORT does not know yet; if not, the kernel is refused.
    const bool all_present =
        std::all_of(node.inputs.begin(), node.inputs.end(), [](auto& facts) { return facts.present; });
    return all_present ? Result::Error(ErrorCode::kInvalidArgument, declined->message) : Result{};
  }
  // So does a residual whose shape is not known; unlike a parameter it seldom has no dimensions.
  for (Step& step : chain.before) {
    if (step.kind == StepKind::kAdd && step.operand.shape.rank == 0) step.operand.shape.rank = -1;
  }
  const std::vector<TensorFacts> outputs = OutputFacts(chain);
  const DimensionNames names = NamesOfD(chain, KnownShapeOfD(chain), input_names);
  NORMFUSE_RETURN_IF_ERROR(SetOutput(context, 0, outputs[0], GuessedType(node), names));
  // ORT refuses an output that the node does not have from 1.28 on, and writes past the end of its list before; there the model itself says what the further outputs are (value_info).
  constexpr uint32_t kOutputsAreChecked = 28;
  if (ort::GetHost().version < kOutputsAreChecked) return {};
  for (size_t i = 1; i < outputs.size(); ++i) (void)SetOutput(context, i, outputs[i], GuessedType(node), names);
  return {};
}

}  // namespace normfuse::custom_ops
