// Operators that make a tensor larger or smaller: Pad and Resize.
#include <algorithm>
#include <cmath>

#include "directml/islands/operators.h"

namespace normfuse::directml {

using namespace abi;

namespace {

// More than any tensor has, and sums of it do not overflow.
constexpr int64_t kFarthest = int64_t{1} << 40;

// The pads of every dimension: those in front, then those behind.
std::optional<Dims> PadsOf(NodeLowering& node, size_t rank) {
  const auto given = node.Integers(1);
  if (!given) return std::nullopt;
  std::vector<int64_t> axes;
  for (size_t i = 0; i < rank; ++i) axes.push_back(static_cast<int64_t>(i));
  if (node.Has(3)) axes = node.Integers(3).value_or(axes);
  if (given->size() != 2 * axes.size()) return node.Refused<Dims>("pads that do not fit");
  Dims pads(2 * rank, 0);
  for (size_t i = 0; i < axes.size(); ++i) {
    const auto axis = AxisOf(axes[i], rank);
    if (!axis) return node.Refused<Dims>("an axis that there is not");
    pads[*axis] = std::clamp((*given)[i], -kFarthest, kFarthest);
    pads[rank + *axis] = std::clamp((*given)[axes.size() + i], -kFarthest, kFarthest);
  }
  return pads;
}

// What negative pads leave of a tensor; they become 0.
Tensor Cropped(NodeLowering& node, const Tensor& x, Dims* pads) {
  const size_t rank = x.view.dims.size();
  Dims offsets(rank, 0), dims = x.view.dims;
  bool crops = false;
  for (size_t i = 0; i < rank; ++i) {
    int64_t& before = (*pads)[i];
    int64_t& behind = (*pads)[rank + i];
    crops = crops || before < 0 || behind < 0;
    offsets[i] = std::max<int64_t>(0, -before);
    dims[i] = std::max<int64_t>(0, dims[i] - offsets[i] - std::max<int64_t>(0, -behind));
    before = std::max<int64_t>(0, before);
    behind = std::max<int64_t>(0, behind);
  }
  return crops ? Window(node, x, offsets, dims, Dims(rank, 1)) : x;
}

float FloatOf(const Tensor& constant, size_t index) {
  return static_cast<const float*>(constant.constant->data)[index];
}

// How an element of a resized dimension finds where it comes from.
class Coordinates {
 public:
  Coordinates(const std::string& mode, int64_t from, int64_t to, float scale)
      : mode_(mode), from_(from), to_(to), scale_(scale) {}

  float Of(int64_t at) const {
    const auto x = static_cast<float>(at);
    if (mode_ == "asymmetric") return x / scale_;
    if (mode_ == "align_corners") {
      return to_ == 1 ? 0 : x * static_cast<float>(from_ - 1) / static_cast<float>(to_ - 1);
    }
    if (mode_ == "pytorch_half_pixel" && to_ == 1) return 0;
    return (x + 0.5F) / scale_ - 0.5F;
  }

 private:
  std::string mode_;
  int64_t from_, to_;
  float scale_;
};

// A scale may be any number, or none.
int64_t ScaledSize(int64_t from, float scale) {
  const float size = std::floor(static_cast<float>(from) * scale);
  return size >= 0 ? static_cast<int64_t>(std::min(size, static_cast<float>(kFarthest))) : 0;
}

int64_t Nearest(const std::string& mode, float x) {
  if (mode == "floor") return static_cast<int64_t>(std::floor(x));
  if (mode == "ceil") return static_cast<int64_t>(std::ceil(x));
  if (mode == "round_prefer_ceil") return static_cast<int64_t>(std::floor(x + 0.5F));
  return static_cast<int64_t>(std::ceil(x - 0.5F));
}

Tensor ResizedByNearest(NodeLowering& node, const Tensor& x, size_t axis, const Coordinates& coordinates, int64_t to) {
  const std::string mode = node.attributes().String("nearest_mode", "round_prefer_floor");
  const int64_t last = x.view.dims[axis] - 1;
  std::vector<int32_t> picked;
  for (int64_t i = 0; i < to; ++i) {
    picked.push_back(static_cast<int32_t>(std::clamp<int64_t>(Nearest(mode, coordinates.Of(i)), 0, last)));
  }
  return Picked(node, x, axis, picked);
}

// low + (high - low) * weight
Tensor ResizedByLine(NodeLowering& node, const Tensor& x, size_t axis, const Coordinates& coordinates, int64_t to) {
  const int64_t last = x.view.dims[axis] - 1;
  std::vector<int32_t> below, above;
  std::vector<float> weights;
  for (int64_t i = 0; i < to; ++i) {
    const float at = std::clamp(coordinates.Of(i), 0.0F, static_cast<float>(last));
    const auto low = std::min(static_cast<int64_t>(at), last);
    below.push_back(static_cast<int32_t>(low));
    above.push_back(static_cast<int32_t>(std::min(low + 1, last)));
    weights.push_back(at - static_cast<float>(low));
  }
  const Tensor low = Picked(node, x, axis, below), high = Picked(node, x, axis, above);
  const Dims& dims = low.view.dims;
  Dims along(dims.size(), 1);
  along[axis] = to;
  if (node.builder().refused()) return low;
  const Value numbers = node.builder().FloatConstant("weights of " + node.name(), weights, along);
  const Tensor weight = {DataType::kFloat32, StridedView::Packed(along), numbers};
  const auto made = [&](DML_OPERATOR_TYPE type, const Tensor& a, const Tensor& b) {
    return node.Computed(OpOf(type, node.name()), dims, {a, b}, DataType::kFloat32);
  };
  const Tensor step = made(DML_OPERATOR_ELEMENT_WISE_SUBTRACT, high, low);
  const Tensor part = made(DML_OPERATOR_ELEMENT_WISE_MULTIPLY, step, weight);
  return made(DML_OPERATOR_ELEMENT_WISE_ADD, low, part);
}

}  // namespace

void LowerPad(NodeLowering& node) {
  const Tensor given = node.Real(0);
  auto pads = PadsOf(node, given.view.dims.size());
  if (!pads) return;
  const Tensor x = node.Packed(Cropped(node, given, &*pads));
  if (node.builder().refused()) return;
  const std::string mode = node.attributes().String("mode", "constant");
  Dims sizes = x.view.dims, result = x.view.dims;
  const size_t rank = sizes.size(), added = rank < 4 ? 4 - rank : 0;
  Dims before(added, 0), behind(added, 0);
  for (size_t i = 0; i < rank; ++i) {
    before.push_back((*pads)[i]);
    behind.push_back((*pads)[rank + i]);
    if (mode == "reflect" && std::max(before.back(), behind.back()) >= sizes[i]) {
      return node.Refuse("a reflection that is longer than the tensor");
    }
    result[i] += before.back() + behind.back();
  }
  Operator op = OpOf(DML_OPERATOR_PADDING, node.name());
  op.padding_mode = mode == "edge"      ? DML_PADDING_MODE_EDGE
                    : mode == "reflect" ? DML_PADDING_MODE_REFLECTION
                                        : DML_PADDING_MODE_CONSTANT;
  if (node.Has(2)) op.parameters[0] = FloatOf(node.In(2), 0);
  op.parameter_count = 1;
  op.sliding.start_padding = Narrow(before);
  op.sliding.end_padding = Narrow(behind);
  Dims padded = result;
  for (Dims* each : {&sizes, &padded}) each->insert(each->begin(), added, 1);
  node.Give(0, node.Made(std::move(op), padded, {ExactView{*x.value, sizes, PackedStrides(sizes)}}, DataType::kFloat32,
                         result));
}

void LowerResize(NodeLowering& node) {
  Tensor x = node.Real(0);
  const Dims from = x.view.dims;
  const bool by_scale = node.Has(2) && node.In(2).constant->ElementCount() > 0;
  std::optional<std::vector<int64_t>> sizes;
  if (!by_scale) {
    if (!node.Has(3)) return node.Refuse("neither scales nor sizes");
    sizes = node.Integers(3);
    if (!sizes) return;
  }
  const auto given = static_cast<size_t>(by_scale ? node.In(2).constant->ElementCount() : sizes->size());
  if (given != from.size()) return node.Refuse("scales or sizes of another rank");
  const bool nearest = node.attributes().String("mode", "nearest") == "nearest";
  const std::string how = node.attributes().String("coordinate_transformation_mode", "half_pixel");
  node.RefuseSize(from);
  const auto scale_of = [&](size_t axis) {
    return by_scale ? FloatOf(node.In(2), axis) : static_cast<float>((*sizes)[axis]) / static_cast<float>(from[axis]);
  };
  Dims to = sizes.value_or(Dims());
  for (size_t axis = 0; by_scale && axis < from.size(); ++axis) {
    to.push_back(ScaledSize(from[axis], scale_of(axis)));
  }
  node.RefuseSize(to);
  for (size_t axis = 0; axis < from.size() && !node.builder().refused(); ++axis) {
    if (to[axis] == from[axis] && scale_of(axis) == 1) continue;
    const Coordinates coordinates(how, from[axis], to[axis], scale_of(axis));
    x = nearest ? ResizedByNearest(node, x, axis, coordinates, to[axis])
                : ResizedByLine(node, x, axis, coordinates, to[axis]);
  }
  node.Give(0, std::move(x));
}

}  // namespace normfuse::directml
