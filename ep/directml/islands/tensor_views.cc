#include "directml/islands/tensor_views.h"

#include <algorithm>

namespace normfuse::directml {

bool StridedView::IsPacked() const {
  const Dims packed = PackedStrides(dims);
  for (size_t i = 0; i < dims.size(); ++i) {
    if (dims[i] != 1 && strides[i] != packed[i]) return false;
  }
  return offset == 0;
}

std::optional<size_t> AxisOf(int64_t axis, size_t rank) {
  const auto count = static_cast<int64_t>(rank);
  if (axis < -count || axis >= count) return std::nullopt;
  return static_cast<size_t>(axis < 0 ? axis + count : axis);
}

std::optional<Dims> ReshapedDims(const Dims& dims, const std::vector<int64_t>& shape, bool allow_zero) {
  Dims result = shape;
  int64_t known = 1;
  std::optional<size_t> open;
  for (size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] == 0 && !allow_zero) {
      if (i >= dims.size()) return std::nullopt;
      result[i] = dims[i];
    }
    if (result[i] >= 0) {
      known *= result[i];
    } else if (result[i] != -1 || open) {
      return std::nullopt;
    } else {
      open = i;
    }
  }
  const int64_t count = Product(dims);
  if (open) {
    if (known == 0 || count % known != 0) return std::nullopt;
    result[*open] = count / known;
    return result;
  }
  return known == count ? std::optional(result) : std::nullopt;
}

std::optional<Dims> BroadcastDims(const Dims& a, const Dims& b) {
  Dims dims(std::max(a.size(), b.size()), 1);
  for (size_t i = 1; i <= dims.size(); ++i) {
    const int64_t x = i <= a.size() ? a[a.size() - i] : 1;
    const int64_t y = i <= b.size() ? b[b.size() - i] : 1;
    if (x != y && x != 1 && y != 1) return std::nullopt;
    dims[dims.size() - i] = x == 1 ? y : x;
  }
  return dims;
}

StridedView Expanded(const StridedView& view, const Dims& dims) {
  StridedView result{dims, Dims(dims.size(), 0), view.offset};
  for (size_t i = 1; i <= view.dims.size(); ++i) {
    const size_t from = view.dims.size() - i;
    if (view.dims[from] != 1) result.strides[dims.size() - i] = view.strides[from];
  }
  return result;
}

void SliceAxis(StridedView* view, size_t axis, int64_t start, int64_t end, int64_t step) {
  const int64_t size = view->dims[axis];
  if (size == 0) return;
  step = std::clamp(step, -size, size);  // a longer one takes one element as well
  const auto from_end = [size](int64_t at) { return at < 0 ? at + size : at; };
  // Starts and ends may be as far out as an int64 goes.
  start = std::clamp<int64_t>(from_end(std::max(start, -size - 1)), 0, step > 0 ? size : size - 1);
  end = std::clamp<int64_t>(end < -size ? -1 : from_end(end), step > 0 ? 0 : -1, size);
  const int64_t span = step > 0 ? end - start : start - end;
  const int64_t stride = step > 0 ? step : -step;
  view->dims[axis] = span <= 0 ? 0 : (span + stride - 1) / stride;
  view->offset += start * view->strides[axis];
  view->strides[axis] *= step;
}

}  // namespace normfuse::directml
