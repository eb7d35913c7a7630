// Reductions.
#include "directml/islands/operators.h"

namespace normfuse::directml {

using namespace abi;

void LowerReduce(NodeLowering& node, DML_REDUCE_FUNCTION function) {
  const Tensor x = node.Real(0);
  const auto given = node.Axes();
  if (node.builder().refused()) return;
  const bool all = !given || given->empty();
  if (all && node.attributes().Int("noop_with_empty_axes", 0) != 0) return node.Give(0, x);
  std::vector<bool> axes(x.view.dims.size(), all);
  for (int64_t axis : given.value_or(std::vector<int64_t>())) {
    const auto at = AxisOf(axis, axes.size());
    if (!at) return node.Refuse("an axis that there is not");
    axes[*at] = true;
  }
  Tensor result = x;
  if (!axes.empty()) {
    Operator op = OpOf(DML_OPERATOR_REDUCE, node.name());
    op.reduce_function = function;
    result = node.Computed(std::move(op), x.view.dims, {x}, DataType::kFloat32, axes);
  }
  Dims dims;
  for (size_t i = 0; i < axes.size(); ++i) {
    if (!axes[i]) dims.push_back(x.view.dims[i]);
    if (axes[i] && node.attributes().Int("keepdims", 1) != 0) dims.push_back(1);
  }
  if (!axes.empty()) result.view = StridedView::Packed(dims);
  node.Give(0, std::move(result));
}

void LowerGlobalPool(NodeLowering& node, DML_REDUCE_FUNCTION function) {
  const Tensor x = node.Real(0);
  std::vector<bool> axes(x.view.dims.size(), true);
  axes[0] = axes[1] = false;
  Operator op = OpOf(DML_OPERATOR_REDUCE, node.name());
  op.reduce_function = function;
  node.Give(0, node.Computed(std::move(op), x.view.dims, {x}, DataType::kFloat32, axes));
}

}  // namespace normfuse::directml
