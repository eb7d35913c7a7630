// How data movement changes the way in which a tensor is looked at: sizes, strides and the first element.
#pragma once

#include <optional>

#include "directml/lowering/program_builder.h"

namespace normfuse::directml {

// `offset` and `strides` in elements; strides may be 0 or negative.
struct StridedView {
  Dims dims;
  Dims strides;
  int64_t offset = 0;

  static StridedView Packed(const Dims& dims) { return {dims, PackedStrides(dims), 0}; }
  bool IsPacked() const;
};

// An axis counted from the front; nothing where there is none.
std::optional<size_t> AxisOf(int64_t axis, size_t rank);

// ONNX's Reshape: 0 copies a dimension unless `allow_zero`, -1 is what remains. Nothing where the elements do not fit.
std::optional<Dims> ReshapedDims(const Dims& dims, const std::vector<int64_t>& shape, bool allow_zero);

// Nothing where the shapes do not broadcast.
std::optional<Dims> BroadcastDims(const Dims& a, const Dims& b);

// The view under `dims`, broadcast from the last dimension.
StridedView Expanded(const StridedView& view, const Dims& dims);

// Dimension `axis` from `start` in steps, as ONNX's Slice clamps them.
void SliceAxis(StridedView* view, size_t axis, int64_t start, int64_t end, int64_t step);

}  // namespace normfuse::directml
