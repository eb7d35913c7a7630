// Element by element.
#include "directml/islands/operators.h"

namespace normfuse::directml {

using namespace abi;

namespace {

std::optional<Dims> Broadcasted(NodeLowering& node, const std::vector<Tensor>& operands) {
  std::optional<Dims> dims = Dims{};
  for (const Tensor& operand : operands) {
    dims = BroadcastDims(*dims, operand.view.dims);
    if (!dims) return node.Refused<Dims>("shapes that do not broadcast");
  }
  return dims;
}

// CAST would take the lowest byte, or round to 0 first.
Tensor NotZero(NodeLowering& node, const Tensor& x) {
  const Tensor real = x.type == DataType::kFloat32 ? x : node.Converted(x, DataType::kFloat32);
  const Tensor zero = {DataType::kFloat32, {}, node.builder().FloatConstant("0", {0}, {})};
  const Dims& dims = x.view.dims;
  const Tensor is_zero = node.Computed(OpOf(DML_OPERATOR_ELEMENT_WISE_LOGICAL_EQUALS, "compare with 0"), dims,
                                       {real, zero}, DataType::kBool);
  return node.Computed(OpOf(DML_OPERATOR_ELEMENT_WISE_LOGICAL_NOT, node.name()), dims, {is_zero}, DataType::kBool);
}

}  // namespace

void LowerUnary(NodeLowering& node, DML_OPERATOR_TYPE type, float scale) {
  const Tensor x = node.Real(0);
  Operator op = OpOf(type, node.name());
  if (scale != 1) op.scale_bias = DML_SCALE_BIAS{scale, 0};
  node.Give(0, node.Computed(std::move(op), x.view.dims, {x}, DataType::kFloat32));
}

void LowerBinary(NodeLowering& node, DML_OPERATOR_TYPE type) {
  Tensor result = node.Real(0);
  if (node.inputs().size() == 1) return node.Give(0, std::move(result));
  for (size_t i = 1; i < node.inputs().size() && !node.builder().refused(); ++i) {
    const Tensor other = node.Real(i);
    const auto dims = Broadcasted(node, {result, other});
    if (!dims) return;
    result = node.Computed(OpOf(type, node.name()), *dims, {result, other}, DataType::kFloat32);
  }
  node.Give(0, std::move(result));
}

// The exponent is often one number, and mostly 2.
void LowerPow(NodeLowering& node) {
  const Tensor x = node.Real(0);
  const auto& constant = node.In(1).constant;
  if (constant != nullptr && constant->ElementCount() == 1 && constant->type == DataType::kFloat32 &&
      constant->dims.size() <= x.view.dims.size()) {
    const float exponent = *static_cast<const float*>(constant->data);
    if (exponent == 2) {
      const Operator op = OpOf(DML_OPERATOR_ELEMENT_WISE_MULTIPLY, node.name());
      return node.Give(0, node.Computed(op, x.view.dims, {x, x}, DataType::kFloat32));
    }
    Operator op = OpOf(DML_OPERATOR_ELEMENT_WISE_CONSTANT_POW, node.name());
    op.parameters[0] = exponent;
    op.parameter_count = 1;
    return node.Give(0, node.Computed(std::move(op), x.view.dims, {x}, DataType::kFloat32));
  }
  LowerBinary(node, DML_OPERATOR_ELEMENT_WISE_POW);
}

void LowerLogical(NodeLowering& node, DML_OPERATOR_TYPE type) {
  const std::vector<Tensor> operands = {node.Real(0), node.Real(1)};
  const auto dims = Broadcasted(node, operands);
  if (dims) node.Give(0, node.Computed(OpOf(type, node.name()), *dims, operands, DataType::kBool));
}

void LowerPredicate(NodeLowering& node, DML_OPERATOR_TYPE type) {
  const Tensor x = node.Real(0);
  node.Give(0, node.Computed(OpOf(type, node.name()), x.view.dims, {x}, DataType::kBool));
}

void LowerWhere(NodeLowering& node) {
  const std::vector<Tensor> operands = {node.Raw(0), node.Raw(1), node.Raw(2)};
  const auto dims = Broadcasted(node, operands);
  if (!dims) return;
  node.Give(0, node.Computed(OpOf(DML_OPERATOR_ELEMENT_WISE_IF, node.name()), *dims, operands, operands[1].type));
}

void LowerCast(NodeLowering& node) {
  Tensor x = node.Raw(0);
  const DataType type = FromTensorProto(node.attributes().Int("to", 0));
  if (type == x.type) return node.Give(0, x);
  if (StoredType(type) == DataType::kInt32 && StoredType(x.type) == DataType::kInt32) {  // the same on the GPU
    x.known.reset();
    x.constant.reset();
    return node.Give(0, x);
  }
  if (type == DataType::kBool) return node.Give(0, NotZero(node, x));
  node.Give(0, node.Computed(OpOf(DML_OPERATOR_CAST, node.name()), x.view.dims, {x}, type));
}

void LowerBatchNormalization(NodeLowering& node) {
  const Tensor x = node.Real(0);
  const Dims& dims = x.view.dims;
  // DirectML's order: mean, variance, scale, bias.
  std::vector<Tensor> operands = {x, node.Real(3), node.Real(4), node.Real(1), node.Real(2)};
  for (size_t i = 1; i < operands.size(); ++i) {
    StridedView& view = operands[i].view;
    if (view.dims.size() != 1 || view.dims[0] != dims[1]) return node.Refuse("a parameter of another length");
    view.dims.resize(dims.size() - 1, 1);
    view.strides.resize(dims.size() - 1, 0);
  }
  Operator op = OpOf(DML_OPERATOR_BATCH_NORMALIZATION, node.name());
  op.epsilon = node.attributes().Float("epsilon", 1e-5F);
  node.Give(0, node.Computed(std::move(op), dims, operands, DataType::kFloat32));
}

}  // namespace normfuse::directml
