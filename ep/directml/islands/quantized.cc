// Quantised operators: parameters, and quantisation whose parameters are computed of the data.
#include "directml/islands/operators.h"
#include "directml/lowering/quantization.h"

namespace normfuse::directml {

using namespace abi;

std::optional<ExactView> ParameterOf(NodeLowering& node, size_t input, size_t rank, size_t axis, int64_t most) {
  if (!node.Has(input)) return std::nullopt;
  const Tensor packed = node.Packed(node.Raw(input));
  const int64_t count = Product(packed.view.dims);
  if (count != 1 && count != most) return node.Refused<ExactView>("a scale, a zero point or a bias of another length");
  Dims sizes(rank, 1);
  sizes[axis] = count;
  return ExactView{*packed.value, sizes, PackedStrides(sizes)};
}

void LowerDynamicQuantizeLinear(NodeLowering& node) {
  const Tensor x = node.Packed(node.Real(0));
  const Dims dims = x.view.dims;
  node.RefuseSize(dims);
  if (node.builder().refused()) return;
  Value value = *x.value;
  value.dims = dims;
  const DynamicValues made = EmitDynamicQuantize(node.builder(), value, node.name());
  const auto give = [&](size_t output, const Value& result, DataType type) {
    if (output >= node.outputs().size() || node.outputs()[output] == kNoValue || node.builder().refused()) return;
    node.Give(output, {type, StridedView::Packed(result.dims), result});
  };
  give(0, made.y, DataType::kUint8);
  give(1, made.scale, DataType::kFloat32);
  give(2, made.zero_point, DataType::kUint8);
}

}  // namespace normfuse::directml
