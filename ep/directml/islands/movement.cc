// Data movement: mostly another view of the tensor, else a copy of a part.
#include <algorithm>

#include "directml/islands/operators.h"

namespace normfuse::directml {

using namespace abi;

namespace {

std::optional<Dims> NewDims(NodeLowering& node, const Dims& dims) {
  if (node.op() == DirectMlOperator::kFlatten) {
    const int64_t axis = node.attributes().Int("axis", 1), rank = static_cast<int64_t>(dims.size());
    const int64_t at = axis < 0 ? axis + rank : axis;
    if (at < 0 || at > rank) return node.Refused<Dims>("an axis that there is not");
    return Dims{Product(Dims(dims.begin(), dims.begin() + at)), Product(Dims(dims.begin() + at, dims.end()))};
  }
  const auto shape = node.Integers(1);
  if (!shape) return std::nullopt;
  const auto result = ReshapedDims(dims, *shape, node.attributes().Int("allowzero", 0) != 0);
  return result ? result : node.Refused<Dims>("a shape that the tensor does not fit");
}

std::optional<StridedView> Transposed(NodeLowering& node, const StridedView& from) {
  const std::vector<int64_t>* perm = node.attributes().Ints("perm");
  const size_t rank = from.dims.size();
  StridedView view{Dims(rank), Dims(rank), from.offset};
  if (perm != nullptr && perm->size() != rank) return node.Refused<StridedView>("a permutation of another rank");
  for (size_t i = 0; i < rank; ++i) {
    const auto axis = AxisOf(perm == nullptr ? static_cast<int64_t>(rank - 1 - i) : (*perm)[i], rank);
    if (!axis) return node.Refused<StridedView>("an axis that there is not");
    view.dims[i] = from.dims[*axis];
    view.strides[i] = from.strides[*axis];
  }
  return view;
}

std::optional<StridedView> Squeezed(NodeLowering& node, const StridedView& from) {
  const auto axes = node.Axes();
  if (node.builder().refused()) return std::nullopt;
  std::vector<bool> drop(from.dims.size(), false);
  for (size_t i = 0; i < drop.size(); ++i) drop[i] = !axes && from.dims[i] == 1;
  for (int64_t axis : axes.value_or(std::vector<int64_t>())) {
    const auto at = AxisOf(axis, drop.size());
    if (!at || from.dims[*at] != 1) return node.Refused<StridedView>("a dimension that cannot be squeezed");
    drop[*at] = true;
  }
  StridedView view{{}, {}, from.offset};
  for (size_t i = 0; i < drop.size(); ++i) {
    if (drop[i]) continue;
    view.dims.push_back(from.dims[i]);
    view.strides.push_back(from.strides[i]);
  }
  return view;
}

std::optional<StridedView> Unsqueezed(NodeLowering& node, const StridedView& from) {
  const auto axes = node.Axes();
  if (!axes) return node.Refused<StridedView>("no axes");
  const size_t rank = from.dims.size() + axes->size();
  std::vector<bool> made(rank, false);
  for (int64_t axis : *axes) {
    const auto at = AxisOf(axis, rank);
    if (!at || made[*at]) return node.Refused<StridedView>("an axis that there is not");
    made[*at] = true;
  }
  StridedView view{Dims(rank, 1), Dims(rank, 0), from.offset};
  for (size_t i = 0, next = 0; i < rank; ++i) {
    if (made[i]) continue;
    view.dims[i] = from.dims[next];
    view.strides[i] = from.strides[next++];
  }
  return view;
}

std::optional<StridedView> ExpandedTo(NodeLowering& node, const StridedView& from) {
  const auto shape = node.Integers(1);
  if (!shape) return std::nullopt;
  const auto dims = BroadcastDims(from.dims, *shape);
  if (!dims) return node.Refused<StridedView>("shapes that do not broadcast");
  return Expanded(from, *dims);
}

std::optional<StridedView> Sliced(NodeLowering& node, StridedView view) {
  const auto starts = node.Integers(1), ends = node.Integers(2);
  std::optional<std::vector<int64_t>> axes, steps;
  if (node.Has(3)) axes = node.Integers(3);
  if (node.Has(4)) steps = node.Integers(4);
  if (node.builder().refused()) return std::nullopt;
  for (size_t i = 0; i < starts->size(); ++i) {
    const bool listed = (!axes || i < axes->size()) && (!steps || i < steps->size()) && i < ends->size();
    const auto axis = AxisOf(axes && listed ? (*axes)[i] : static_cast<int64_t>(i), view.dims.size());
    const int64_t step = steps && listed ? (*steps)[i] : 1;
    if (!listed || !axis || step == 0) return node.Refused<StridedView>("a slice that there is not");
    SliceAxis(&view, *axis, (*starts)[i], (*ends)[i], step);
  }
  return view;
}

// Of a packed tensor that is seen under `from`, four dimensions, the indices of the third one that a packed tensor names.
Tensor Gathered(NodeLowering& node, const Tensor& data, const Dims& from, const Tensor& indices,
                const Dims& result_dims) {
  const int64_t count = Product(indices.view.dims);
  const Dims index = {1, 1, 1, count};
  Operator op = OpOf(DML_OPERATOR_GATHER, "gather");
  op.axis = 2;
  op.index_dimensions = 1;
  node.RefuseSize(result_dims);
  return node.Made(
      std::move(op), {1, from[1], count, from[3]},
      {ExactView{*data.value, from, PackedStrides(from)}, ExactView{*indices.value, index, PackedStrides(index)}},
      data.type, result_dims);
}

}  // namespace

Tensor Window(NodeLowering& node, const Tensor& from, const Dims& offsets, const Dims& dims, const Dims& steps) {
  const Tensor packed = node.Packed(from);
  if (node.builder().refused()) return packed;
  Operator op = OpOf(DML_OPERATOR_SLICE1, node.name());
  Dims sizes = packed.view.dims, result = dims, begin = offsets, step = steps;
  for (Dims* each : {&sizes, &result, &step}) each->insert(each->begin(), each->size() < 4 ? 4 - each->size() : 0, 1);
  begin.insert(begin.begin(), begin.size() < 4 ? 4 - begin.size() : 0, 0);
  for (size_t i = 0; i < result.size(); ++i) {
    op.offsets.push_back(static_cast<uint32_t>(begin[i]));
    op.window.push_back(static_cast<uint32_t>((result[i] - 1) * step[i] + 1));
    op.steps.push_back(static_cast<int32_t>(step[i]));
  }
  return node.Made(std::move(op), result, {ExactView{*packed.value, sizes, PackedStrides(sizes)}}, from.type, dims);
}

Tensor Picked(NodeLowering& node, const Tensor& from, size_t axis, const std::vector<int32_t>& indices) {
  const Tensor packed = node.Packed(from);
  const Dims& dims = packed.view.dims;
  const auto count = static_cast<int64_t>(indices.size());
  node.RefuseSize({count});
  if (node.builder().refused()) return packed;
  const Value rows = node.builder().Constant("rows of " + node.name(), DataType::kInt32, indices.data(), {count});
  const Tensor chosen = {DataType::kInt32, StridedView::Packed({count}), rows};
  const auto at = static_cast<int64_t>(axis);
  const Dims outer(dims.begin(), dims.begin() + at), inner(dims.begin() + at + 1, dims.end());
  Dims result = dims;
  result[axis] = count;
  return Gathered(node, packed, {1, Product(outer), dims[axis], Product(inner)}, chosen, result);
}

std::optional<StridedView> Moved(NodeLowering& node, const StridedView& from) {
  using enum DirectMlOperator;
  if (node.op() == kIdentity) return from;
  if (node.op() == kTranspose) return Transposed(node, from);
  if (node.op() == kSqueeze) return Squeezed(node, from);
  if (node.op() == kUnsqueeze) return Unsqueezed(node, from);
  if (node.op() == kExpand) return ExpandedTo(node, from);
  if (node.op() == kSlice) return Sliced(node, from);
  if (node.op() != kReshape && node.op() != kFlatten) return std::nullopt;
  const auto dims = NewDims(node, from.dims);
  return dims ? std::optional(StridedView::Packed(*dims)) : std::nullopt;
}

namespace {

// The node's slice of a packed tensor, as offsets and steps.
Tensor CopiedSlice(NodeLowering& node, Tensor packed) {
  const auto view = Moved(node, packed.view);
  const Dims strides = PackedStrides(packed.view.dims);
  Dims offsets, steps;
  int64_t left = view->offset;
  for (size_t i = 0; i < strides.size(); ++i) {
    int64_t offset = left / strides[i];
    int64_t step = view->strides[i] / strides[i];
    left %= strides[i];
    if (step < 0) {  // element by element, as windows only move forwards
      std::vector<int32_t> indices;
      for (int64_t n = 0; n < view->dims[i]; ++n) indices.push_back(static_cast<int32_t>(offset + n * step));
      packed = Picked(node, packed, i, indices);
      offset = 0;
      step = 1;
    }
    offsets.push_back(offset);
    steps.push_back(step);
  }
  return packed.view.dims == view->dims ? packed : Window(node, packed, offsets, view->dims, steps);
}

}  // namespace

void LowerMovement(NodeLowering& node) {
  Tensor tensor = node.Raw(0);
  const int all_of_input = node.op() == DirectMlOperator::kSlice ? kNoValue : tensor.all_of_input;
  if (node.op() == DirectMlOperator::kReshape || node.op() == DirectMlOperator::kFlatten) tensor = node.Packed(tensor);
  if (node.builder().refused()) return;
  const auto view = Moved(node, tensor.view);
  if (!view) return;
  node.RefuseSize(view->dims);
  if (view->dims.size() > kDmlMaxRank) node.builder().Check(RuleId::kNineDimensions);
  if (node.builder().refused()) return;
  const bool seen = view->offset == 0 &&
                    std::all_of(view->strides.begin(), view->strides.end(), [](int64_t stride) { return stride >= 0; });
  if (seen) {
    tensor.view = *view;
  } else {
    tensor = CopiedSlice(node, node.Packed(tensor));
  }
  tensor.known.reset();
  tensor.constant.reset();
  tensor.all_of_input = all_of_input;
  node.Give(0, std::move(tensor));
}

// One element, seen everywhere.
void LowerConstantOfShape(NodeLowering& node) {
  const auto dims = node.Integers(0);
  if (!dims) return;
  node.RefuseSize(*dims);
  if (dims->size() > kDmlMaxRank) node.builder().Check(RuleId::kNineDimensions);
  const DataType type = node.OutputType(0);
  if (type == DataType::kInt64) node.Refuse("so many integers of 64 bits");
  if (node.builder().refused()) return;
  const auto given = node.attributes().tensors.find("value");
  const bool has_value = given != node.attributes().tensors.end();
  const float zero = 0;
  const Value value = node.builder().Constant(node.name(), has_value ? StoredType(type) : DataType::kFloat32,
                                              has_value ? given->second->data : &zero, {});
  node.Give(0, {type, {*dims, Dims(dims->size(), 0), 0}, value});
}

void LowerSplit(NodeLowering& node) {
  const Tensor from = node.Raw(0);
  const auto axis = AxisOf(node.attributes().Int("axis", 0), from.view.dims.size());
  if (!axis) return node.Refuse("an axis that there is not");
  std::vector<int64_t> sizes;
  if (const std::vector<int64_t>* split = node.attributes().Ints("split")) {
    sizes = *split;
  } else if (node.Has(1)) {
    sizes = node.Integers(1).value_or(std::vector<int64_t>());
  } else {
    const auto count = static_cast<int64_t>(node.outputs().size());
    const int64_t size = (from.view.dims[*axis] + count - 1) / count;
    sizes.assign(node.outputs().size(), size);
    sizes.back() = from.view.dims[*axis] - size * (count - 1);
  }
  if (node.builder().refused()) return;
  int64_t total = 0;
  for (int64_t size : sizes) total += size;
  if (sizes.size() != node.outputs().size() || total != from.view.dims[*axis])
    return node.Refuse("a split that does not fit");
  Dims offsets(from.view.dims.size(), 0), dims = from.view.dims;
  for (size_t i = 0; i < sizes.size() && !node.builder().refused(); ++i) {
    dims[*axis] = sizes[i];
    if (node.outputs()[i] != kNoValue) node.Give(i, Window(node, from, offsets, dims, Dims(dims.size(), 1)));
    offsets[*axis] += sizes[i];
  }
}

void LowerConcat(NodeLowering& node) {
  const Dims first = node.DimsOf(0);
  const auto axis = AxisOf(node.attributes().Int("axis", 0), first.size());
  if (!axis) return node.Refuse("an axis that there is not");
  int64_t outer = 1;
  for (size_t i = 0; i < *axis; ++i) outer *= first[i];
  Operator op = OpOf(DML_OPERATOR_JOIN, "concatenate");
  op.axis = 3;
  std::vector<std::optional<ExactView>> inputs;
  Dims dims = first;
  dims[*axis] = 0;
  for (size_t i = 0; i < node.inputs().size() && !node.builder().refused(); ++i) {
    const Tensor packed = node.Packed(node.Raw(i));
    const Dims& each = packed.view.dims;
    for (size_t d = 0; d < first.size() && each.size() == first.size(); ++d) {
      if (d != *axis && each[d] != first[d]) node.Refuse("shapes that do not fit");
    }
    if (each.size() != first.size()) node.Refuse("shapes that do not fit");
    if (node.builder().refused()) return;
    if (Product(each) == 0) continue;  // adds nothing
    const Dims sizes = {1, 1, outer, Product(each) / outer};
    inputs.emplace_back(ExactView{*packed.value, sizes, PackedStrides(sizes)});
    dims[*axis] += each[*axis];
  }
  node.RefuseSize(dims);
  if (node.builder().refused()) return;
  node.Give(0, node.Made(std::move(op), {1, 1, outer, Product(dims) / outer}, inputs, node.In(0).type, dims));
}

namespace {

// The indices of a Gather along a dimension of this size, as they lie on the GPU. DirectML does not check them: known ones are
// checked here, and counted from the beginning; those of an input when it arrives.
Tensor CheckedIndices(NodeLowering& node, int64_t size) {
  const auto& known = node.In(1).known;
  const bool counts_from_end = node.builder().level() >= DML_FEATURE_LEVEL_3_0;
  const IndexRange range = {known || counts_from_end ? -size : 0, size - 1};
  if (!known) {
    const Tensor indices = node.Raw(1);
    if (indices.all_of_input == kNoValue) {
      node.Refuse("indices that the GPU computes");
    } else {
      node.builder().LimitInput(indices.all_of_input, range);
    }
    return node.Packed(indices);
  }
  std::vector<int32_t> counted;
  for (int64_t index : known->values) {
    if (index < range.least || index > range.most) node.Refuse("indices that do not fit");
    counted.push_back(static_cast<int32_t>(index < 0 ? index + size : index));
  }
  node.RefuseSize(known->dims);
  const std::string name = "indices of " + node.name();
  const Value value =
      node.builder().refused() ? Value{} : node.builder().Constant(name, DataType::kInt32, counted.data(), known->dims);
  return {DataType::kInt32, StridedView::Packed(known->dims), value};
}

}  // namespace

void LowerGather(NodeLowering& node) {
  const Tensor data = node.Packed(node.Raw(0));
  const Dims& dims = data.view.dims;
  const auto axis = AxisOf(node.attributes().Int("axis", 0), dims.size());
  if (!axis) return node.Refuse("an axis that there is not");
  const Tensor indices = CheckedIndices(node, dims[*axis]);
  if (node.builder().refused()) return;
  const Dims outer(dims.begin(), dims.begin() + *axis), inner(dims.begin() + *axis + 1, dims.end());
  Dims result_dims = outer;
  result_dims.insert(result_dims.end(), indices.view.dims.begin(), indices.view.dims.end());
  result_dims.insert(result_dims.end(), inner.begin(), inner.end());
  node.Give(0, Gathered(node, data, {1, Product(outer), dims[*axis], Product(inner)}, indices, result_dims));
}

void LowerGatherNd(NodeLowering& node) {
  const Tensor data = node.Packed(node.Raw(0));
  if (!node.Integers(1)) return;
  const auto rows = RowsOfGatherNd(node.node(), data.view.dims, *node.In(1).known);
  if (!rows) return node.Refuse("indices that do not fit");
  // As a matrix, of which rows are taken.
  const int64_t width = std::max<int64_t>(1, rows->width);
  Tensor matrix = data;
  matrix.view = StridedView::Packed({Product(data.view.dims) / width, width});
  Tensor result = Picked(node, matrix, 0, {rows->rows.begin(), rows->rows.end()});
  result.view = StridedView::Packed(rows->result_dims);
  node.Give(0, std::move(result));
}

}  // namespace normfuse::directml
