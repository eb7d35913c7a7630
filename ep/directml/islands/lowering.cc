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
  KnownTensor known{DataType::kInt64, {end - start}, {dims.begin() + start, dims.begin() + end}};
  node.At(node.outputs()[0]) = {DataType::kInt64, StridedView::Packed(known.dims), {}, known};
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
  node.At(node.outputs()[0]) = {result->type, StridedView::Packed(result->dims), {}, result};
  return true;
}

// --- by operator ------------------------------------------------------------------------------------------------------

void LowerOperator(NodeLowering& node) {
  using enum DirectMlOperator;
  const auto is = [&node](auto... ops) { return ((node.op() == ops) || ...); };
  // Of rows that have one alone.
  const DirectMlOperatorSpec& row = kDirectMlOperators[static_cast<int>(node.op())];
  const DML_OPERATOR_TYPE type = row.directml_count == 1 ? OperatorNamed(row.directml[0]) : DML_OPERATOR_INVALID;
  if (is(kAdd, kSub, kMul, kDiv, kMin, kMax)) return LowerBinary(node, type);
  if (is(kSqrt, kSin, kCos, kAbs, kExp, kLog, kErf, kReciprocal, kTanh, kSigmoid, kRelu)) return LowerUnary(node, type);
  if (is(kNeg)) return LowerUnary(node, type, -1);
  if (is(kPow)) return LowerPow(node);
  if (is(kEqual, kGreater, kGreaterOrEqual, kLess, kLessOrEqual, kAnd, kOr, kXor)) return LowerLogical(node, type);
  if (is(kNot, kIsNaN)) return LowerPredicate(node, type);
  if (is(kWhere)) return LowerWhere(node);
  if (is(kCast)) return LowerCast(node);
  if (is(kBatchNormalization)) return LowerBatchNormalization(node);
  if (is(kMatMul)) return LowerMatMul(node);
  if (is(kGemm)) return LowerGemm(node);
  if (is(kEinsum)) return LowerEinsum(node);
  if (is(kMatMulInteger)) return LowerMatMulInteger(node);
  if (is(kQLinearMatMul)) return LowerQLinearMatMul(node);
  if (is(kDynamicQuantizeLinear)) return LowerDynamicQuantizeLinear(node);
  if (is(kConv)) return LowerConv(node);
  if (is(kConvTranspose)) return LowerConvTranspose(node);
  if (is(kConvInteger)) return LowerConvInteger(node);
  if (is(kQLinearConv)) return LowerQLinearConv(node);
  if (is(kMaxPool, kAveragePool)) return LowerPool(node, type);
  if (is(kReduceSum)) return LowerReduce(node, DML_REDUCE_FUNCTION_SUM);
  if (is(kReduceMean)) return LowerReduce(node, DML_REDUCE_FUNCTION_AVERAGE);
  if (is(kReduceMax)) return LowerReduce(node, DML_REDUCE_FUNCTION_MAX);
  if (is(kGlobalAveragePool)) return LowerGlobalPool(node, DML_REDUCE_FUNCTION_AVERAGE);
  if (is(kGlobalMaxPool)) return LowerGlobalPool(node, DML_REDUCE_FUNCTION_MAX);
  if (is(kPad)) return LowerPad(node);
  if (is(kResize)) return LowerResize(node);
  if (is(kGather)) return LowerGather(node);
  if (is(kGatherND)) return LowerGatherNd(node);
  if (is(kConcat)) return LowerConcat(node);
  if (is(kSplit)) return LowerSplit(node);
  if (is(kConstantOfShape)) return LowerConstantOfShape(node);
  if (is(kRange)) return node.Refuse("a range that is computed on the GPU, or of more than a million integers");
  LowerMovement(node);
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
