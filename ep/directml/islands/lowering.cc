// From an island to a DmlProgram, node by node.
#include <algorithm>
#include <map>

#include "directml/islands/operators.h"

namespace normfuse::directml {
namespace {

using namespace abi;

void LowerChain(const Chain& chain, NodeLowering& node) {
  std::map<int, Value> values;
  ForEachTensorRef(chain, [&](const TensorRef& ref) {
    if (ref.input < kFromOutput || ref.constant) return;
    const int index = ref.input - kFromOutput;
    node.OnGpu(index);
    Tensor packed = node.Packed(node.At(index));
    packed.value->dims = packed.view.dims;
    values[index] = *packed.value;
  });
  if (node.builder().refused()) return;
  LowerInto(chain, node.builder(), &values);
  if (node.builder().refused()) return;
  ForEachOutput(chain, [&](int output) {
    Tensor& tensor = node.At(output);
    tensor.value = values.at(output);
    tensor.view = StridedView::Packed(tensor.value->dims);
  });
}

// --- shapes, on the CPU -----------------------------------------------------------------------------------------------

bool ReadShape(NodeLowering& node) {
  const Dims dims = node.DimsOf(0);
  const auto rank = static_cast<int64_t>(dims.size());
  const auto bounded = [rank](int64_t at) { return std::clamp<int64_t>(at < 0 ? at + rank : at, 0, rank); };
  const int64_t start = bounded(node.attributes().Int("start", 0));
  const int64_t end = std::max(start, bounded(node.attributes().Int("end", rank)));
  Tensor tensor;
  tensor.type = DataType::kInt64;
  tensor.known = KnownTensor{DataType::kInt64, {end - start}, {dims.begin() + start, dims.begin() + end}};
  tensor.view = StridedView::Packed({end - start});
  node.At(node.outputs()[0]) = std::move(tensor);
  return true;
}

bool LowerOnCpu(NodeLowering& node) {
  if (node.op() == DirectMlOperator::kShape) return ReadShape(node);
  if (!kDirectMlOperators[static_cast<int>(node.op())].on_cpu) return false;
  std::vector<const KnownTensor*> inputs;
  for (size_t i = 0; i < node.inputs().size(); ++i) {
    if (!node.Has(i)) continue;
    if (!node.In(i).known) return false;
    inputs.push_back(&*node.In(i).known);
  }
  std::optional<KnownTensor> result = ComputeKnown(node.node(), inputs);
  if (!result) {
    const auto view = Moved(node, StridedView::Packed(node.DimsOf(0)));
    if (!view || node.builder().refused() || Product(view->dims) > kMostKnownElements)
      return node.builder().refused().has_value();
    result = Taken(*node.In(0).known, *view);
  }
  Tensor tensor;
  tensor.type = result->type;
  tensor.view = StridedView::Packed(result->dims);
  tensor.known = std::move(result);
  node.At(node.outputs()[0]) = std::move(tensor);
  return true;
}

// --- by operator ------------------------------------------------------------------------------------------------------

void LowerOperator(NodeLowering& node) {
  // Of rows that have one alone.
  const DirectMlOperatorSpec& row = kDirectMlOperators[static_cast<int>(node.op())];
  const DML_OPERATOR_TYPE type = row.directml_count == 1 ? OperatorNamed(row.directml[0]) : DML_OPERATOR_INVALID;
  switch (node.op()) {
    case DirectMlOperator::kMatMul:
      return LowerMatMul(node);
    case DirectMlOperator::kGemm:
      return LowerGemm(node);
    case DirectMlOperator::kAdd:
    case DirectMlOperator::kSub:
    case DirectMlOperator::kMul:
    case DirectMlOperator::kDiv:
    case DirectMlOperator::kMin:
    case DirectMlOperator::kMax:
      return LowerBinary(node, type);
    case DirectMlOperator::kPow:
      return LowerPow(node);
    case DirectMlOperator::kNeg:
      return LowerUnary(node, DML_OPERATOR_ELEMENT_WISE_IDENTITY, -1);
    case DirectMlOperator::kSqrt:
    case DirectMlOperator::kSin:
    case DirectMlOperator::kCos:
    case DirectMlOperator::kAbs:
    case DirectMlOperator::kExp:
    case DirectMlOperator::kLog:
    case DirectMlOperator::kErf:
    case DirectMlOperator::kReciprocal:
    case DirectMlOperator::kTanh:
    case DirectMlOperator::kSigmoid:
    case DirectMlOperator::kRelu:
      return LowerUnary(node, type);
    case DirectMlOperator::kEqual:
    case DirectMlOperator::kGreater:
    case DirectMlOperator::kGreaterOrEqual:
    case DirectMlOperator::kLess:
    case DirectMlOperator::kLessOrEqual:
    case DirectMlOperator::kAnd:
    case DirectMlOperator::kOr:
    case DirectMlOperator::kXor:
      return LowerLogical(node, type);
    case DirectMlOperator::kNot:
    case DirectMlOperator::kIsNaN:
      return LowerPredicate(node, type);
    case DirectMlOperator::kWhere:
      return LowerWhere(node);
    case DirectMlOperator::kCast:
      return LowerCast(node);
    case DirectMlOperator::kMatMulInteger:
      return LowerMatMulInteger(node);
    case DirectMlOperator::kQLinearMatMul:
      return LowerQLinearMatMul(node);
    case DirectMlOperator::kConvInteger:
      return LowerConvInteger(node);
    case DirectMlOperator::kQLinearConv:
      return LowerQLinearConv(node);
    case DirectMlOperator::kDynamicQuantizeLinear:
      return LowerDynamicQuantizeLinear(node);
    case DirectMlOperator::kConstantOfShape:
      return LowerConstantOfShape(node);
    case DirectMlOperator::kGather:
      return LowerGather(node);
    case DirectMlOperator::kGatherND:
      return LowerGatherNd(node);
    case DirectMlOperator::kConcat:
      return LowerConcat(node);
    case DirectMlOperator::kSplit:
      return LowerSplit(node);
    case DirectMlOperator::kReduceMean:
      return LowerReduce(node, DML_REDUCE_FUNCTION_AVERAGE);
    case DirectMlOperator::kReduceSum:
      return LowerReduce(node, DML_REDUCE_FUNCTION_SUM);
    case DirectMlOperator::kReduceMax:
      return LowerReduce(node, DML_REDUCE_FUNCTION_MAX);
    case DirectMlOperator::kGlobalAveragePool:
      return LowerGlobalPool(node, DML_REDUCE_FUNCTION_AVERAGE);
    case DirectMlOperator::kGlobalMaxPool:
      return LowerGlobalPool(node, DML_REDUCE_FUNCTION_MAX);
    case DirectMlOperator::kEinsum:
      return LowerEinsum(node);
    case DirectMlOperator::kConv:
      return LowerConv(node);
    case DirectMlOperator::kConvTranspose:
      return LowerConvTranspose(node);
    case DirectMlOperator::kMaxPool:
    case DirectMlOperator::kAveragePool:
      return LowerPool(node, type);
    case DirectMlOperator::kBatchNormalization:
      return LowerBatchNormalization(node);
    case DirectMlOperator::kPad:
      return LowerPad(node);
    case DirectMlOperator::kResize:
      return LowerResize(node);
    case DirectMlOperator::kSlice:
    case DirectMlOperator::kTranspose:
    case DirectMlOperator::kReshape:
    case DirectMlOperator::kFlatten:
    case DirectMlOperator::kSqueeze:
    case DirectMlOperator::kUnsqueeze:
    case DirectMlOperator::kExpand:
    case DirectMlOperator::kIdentity:
      return LowerMovement(node);
    case DirectMlOperator::kShape:
      return;
    case DirectMlOperator::kRange:
      return node.Refuse("a range that is computed on the GPU, or of more than a million integers");
  }
}

}  // namespace

std::optional<Declined> Lower(const Island& island, const std::vector<InputShape>& inputs,
                              const Capabilities& capabilities, DmlProgram* program) {
  ProgramBuilder builder(capabilities, program, /*shares_weights=*/island.shapes_vary);
  NodeLowering lowering(island, inputs, builder);
  for (const IslandNode& node : island.nodes) {
    if (builder.refused()) return builder.refused();
    lowering.MoveTo(node);
    if (node.chain) {
      LowerChain(*node.chain, lowering);
    } else if (!LowerOnCpu(lowering)) {
      LowerOperator(lowering);
    }
  }
  for (size_t i = 0; i < island.values.size() && !builder.refused(); ++i) lowering.GiveOut(static_cast<int>(i));
  if (builder.refused()) return builder.refused();
  DropUnused(program);
  MarkMoved(program);
  return std::nullopt;
}

}  // namespace normfuse::directml
