// Operators whose windows move over the spatial dimensions: convolutions and pooling.
#include <algorithm>
#include <numeric>

#include "directml/islands/operators.h"

namespace normfuse::directml {

using namespace abi;

namespace {

// DirectML takes two and three spatial dimensions: one of 1 is added to a single one.
constexpr size_t kFewestSpatial = 2;

Dims Spatial(const Dims& dims) { return {dims.begin() + 2, dims.end()}; }

// What a window that moves over a tensor of these spatial dimensions does, before a dimension is added.
struct Windows {
  Dims kernel, strides, dilations, begin, end, out;

  // Elements that a window reaches over.
  int64_t Reach(size_t i) const { return (kernel[i] - 1) * dilations[i] + 1; }
};

Dims OrOnes(NodeLowering& node, const char* name, size_t count) {
  const std::vector<int64_t>* given = node.attributes().Ints(name);
  return given == nullptr ? Dims(count, 1) : *given;
}

void PadToSame(NodeLowering& node, const Dims& spatial, Windows* windows) {
  const bool upper = node.attributes().String("auto_pad", "") == "SAME_UPPER";
  for (size_t i = 0; i < spatial.size(); ++i) {
    const int64_t steps = (spatial[i] + windows->strides[i] - 1) / windows->strides[i];
    const int64_t total = std::max<int64_t>(0, (steps - 1) * windows->strides[i] + windows->Reach(i) - spatial[i]);
    windows->begin[i] = upper ? total / 2 : total - total / 2;
    windows->end[i] = total - windows->begin[i];
  }
}

// Kernel, strides, dilations and padding; nothing, and a refusal, where the lists have other lengths than there are dimensions.
std::optional<Windows> WindowsOf(NodeLowering& node, const Dims& spatial, Dims kernel) {
  const size_t count = spatial.size();
  Windows windows{std::move(kernel),
                  OrOnes(node, "strides", count),
                  OrOnes(node, "dilations", count),
                  Dims(count, 0),
                  Dims(count, 0),
                  {}};
  const std::vector<int64_t>* pads = node.attributes().Ints("pads");
  if (windows.kernel.size() != count || windows.strides.size() != count || windows.dilations.size() != count ||
      (pads != nullptr && pads->size() != 2 * count)) {
    return node.Refused<Windows>("lists of other lengths than there are dimensions");
  }
  const std::string automatic = node.attributes().String("auto_pad", "NOTSET");
  if (automatic == "SAME_UPPER" || automatic == "SAME_LOWER") {
    PadToSame(node, spatial, &windows);
  } else if (automatic != "VALID" && pads != nullptr) {
    windows.begin.assign(pads->begin(), pads->begin() + static_cast<int64_t>(count));
    windows.end.assign(pads->begin() + static_cast<int64_t>(count), pads->end());
  }
  for (const Dims* each : {&windows.kernel, &windows.strides, &windows.dilations}) {
    if (std::any_of(each->begin(), each->end(), [](int64_t n) { return n < 1; })) {
      return node.Refused<Windows>("a kernel, a stride or a dilation below 1");
    }
  }
  return windows;
}

// The sizes of what windows give that move forwards. Rounded up, the last one begins in the tensor or in the padding before it;
// what it needs behind the tensor becomes padding.
bool SetOut(NodeLowering& node, const Dims& spatial, bool round_up, Windows* windows) {
  for (size_t i = 0; i < spatial.size(); ++i) {
    const int64_t stride = windows->strides[i], before = spatial[i] + windows->begin[i];
    const int64_t room = before + windows->end[i] - windows->Reach(i);
    if (room < 0) {
      node.Refuse("a window that is larger than the tensor");
      return false;
    }
    int64_t last = (room + (round_up ? stride - 1 : 0)) / stride;
    if (round_up && last * stride >= before) --last;
    windows->out.push_back(last + 1);
    windows->end[i] = std::max(windows->end[i], last * stride + windows->Reach(i) - before);
  }
  return true;
}

// ONNX Runtime pools with a window that is larger than the padded tensor as with one that covers it, where it is less than a
// stride larger.
void CoverWithLargerWindows(const Dims& spatial, Windows* windows) {
  for (size_t i = 0; i < spatial.size(); ++i) {
    const int64_t padded = windows->begin[i] + spatial[i] + windows->end[i], larger = windows->Reach(i) - padded;
    if (larger <= 0 || larger >= windows->strides[i]) continue;
    windows->kernel[i] = (padded - 1) / windows->dilations[i] + 1;
    windows->strides[i] = padded;  // one step
  }
}

Dims WithSpatial(const Dims& first, const Dims& spatial) {
  Dims dims = first;
  if (spatial.size() < kFewestSpatial) dims.push_back(1);
  dims.insert(dims.end(), spatial.begin(), spatial.end());
  return dims;
}

Sliding SlidingOf(const Windows& windows) {
  const auto wide = [](const Dims& given, int64_t filler) {
    Dims all(given.size() < kFewestSpatial ? 1 : 0, filler);
    all.insert(all.end(), given.begin(), given.end());
    return Narrow(all);
  };
  const Dims none(windows.kernel.size(), 0);
  return {wide(windows.strides, 1), wide(windows.dilations, 1), wide(windows.kernel, 1),
          wide(windows.begin, 0),   wide(windows.end, 0),       wide(none, 0)};
}

// A packed tensor under four or five dimensions.
ExactView Seen(const Tensor& tensor) {
  const Dims& dims = tensor.view.dims;
  const Dims sizes = WithSpatial({dims[0], dims[1]}, Spatial(dims));
  return {*tensor.value, sizes, PackedStrides(sizes)};
}

void GiveConvolution(NodeLowering& node, Operator op, const Tensor& x, const Tensor& w, const Dims& result) {
  std::optional<ExactView> bias;
  if (node.Has(2)) {
    const Tensor b = node.Packed(node.Real(2));
    if (Product(b.view.dims) != result[1]) return node.Refuse("a bias of another length");
    const Dims sizes = WithSpatial({1, result[1]}, Dims(result.size() - 2, 1));
    bias = ExactView{*b.value, sizes, PackedStrides(sizes)};
  }
  if (node.builder().refused()) return;
  const Dims sizes = WithSpatial({result[0], result[1]}, Spatial(result));
  node.Give(0, node.Made(std::move(op), sizes, {Seen(x), Seen(w), bias}, DataType::kFloat32, result));
}

// The sizes of what a filter gives that moves over a tensor; nothing, and a refusal, where they do not fit.
std::optional<Dims> Slide(NodeLowering& node, const Dims& dims, const Dims& filter, Operator* op) {
  const int64_t groups = node.attributes().Int("group", 1);
  if (dims.size() != filter.size() || groups < 1 || filter[1] * groups != dims[1] || filter[0] % groups != 0) {
    return node.Refused<Dims>("shapes that do not fit");
  }
  auto windows = WindowsOf(node, Spatial(dims), Spatial(filter));
  if (!windows || !SetOut(node, Spatial(dims), false, &*windows)) return std::nullopt;
  op->sliding = SlidingOf(*windows);
  op->groups = static_cast<uint32_t>(groups);
  Dims result = {dims[0], filter[0]};
  result.insert(result.end(), windows->out.begin(), windows->out.end());
  return result;
}

// One element, or one for each channel of the result.
std::optional<ExactView> FilterParameter(NodeLowering& node, size_t input, const Dims& result) {
  return ParameterOf(node, input, result.size(), 1, result[1]);
}

}  // namespace

void LowerConv(NodeLowering& node) {
  const Tensor x = node.Packed(node.Real(0)), w = node.Packed(node.Real(1));
  Operator op = OpOf(DML_OPERATOR_CONVOLUTION, node.name());
  const auto result = Slide(node, x.view.dims, w.view.dims, &op);
  if (result) GiveConvolution(node, std::move(op), x, w, *result);
}

void LowerConvInteger(NodeLowering& node) {
  const Tensor x = node.Packed(node.Raw(0)), w = node.Packed(node.Raw(1));
  Operator op = OpOf(DML_OPERATOR_CONVOLUTION_INTEGER, node.name());
  const auto result = Slide(node, x.view.dims, w.view.dims, &op);
  if (!result) return;
  const auto sizes = WithSpatial({(*result)[0], (*result)[1]}, Spatial(*result));
  const auto of_filter = FilterParameter(node, 3, sizes);
  const auto of_x = ParameterOf(node, 2, sizes.size(), 1, 1);
  if (node.builder().refused()) return;
  node.Give(0, node.Made(std::move(op), sizes, {Seen(x), of_x, Seen(w), of_filter}, DataType::kInt32, *result));
}

void LowerQLinearConv(NodeLowering& node) {
  const Tensor x = node.Packed(node.Raw(0)), w = node.Packed(node.Raw(3));
  Operator op = OpOf(DML_OPERATOR_QUANTIZED_LINEAR_CONVOLUTION, node.name());
  const auto result = Slide(node, x.view.dims, w.view.dims, &op);
  if (!result) return;
  const auto sizes = WithSpatial({(*result)[0], (*result)[1]}, Spatial(*result));
  const auto one = [&](size_t input) { return ParameterOf(node, input, sizes.size(), 1, 1); };
  const std::vector<std::optional<ExactView>> parameters = {
      one(1), one(2), FilterParameter(node, 4, sizes), FilterParameter(node, 5, sizes), FilterParameter(node, 8, sizes),
      one(6), one(7)};
  if (node.builder().refused()) return;
  node.Give(0, node.Made(std::move(op), sizes,
                         {Seen(x), parameters[0], parameters[1], Seen(w), parameters[2], parameters[3], parameters[4],
                          parameters[5], parameters[6]},
                         node.OutputType(0), *result));
}

void LowerConvTranspose(NodeLowering& node) {
  const Tensor x = node.Packed(node.Real(0)), w = node.Packed(node.Real(1));
  const Dims &dims = x.view.dims, &filter = w.view.dims, spatial = Spatial(dims);
  const int64_t groups = node.attributes().Int("group", 1);
  if (dims.size() != filter.size() || groups < 1 || filter[0] != dims[1] || dims[1] % groups != 0) {
    return node.Refuse("shapes that do not fit");
  }
  const auto windows = WindowsOf(node, spatial, Spatial(filter));
  if (!windows) return;
  const std::vector<int64_t>* more = node.attributes().Ints("output_padding");
  Operator op = OpOf(DML_OPERATOR_CONVOLUTION, node.name());
  op.backward = true;
  op.sliding = SlidingOf(*windows);
  op.groups = static_cast<uint32_t>(groups);
  Dims result = {dims[0], filter[1] * groups};
  for (size_t i = 0; i < spatial.size(); ++i) {
    const int64_t padding = more == nullptr || more->size() <= i ? 0 : (*more)[i];
    op.sliding.output_padding[op.sliding.output_padding.size() - spatial.size() + i] = static_cast<uint32_t>(padding);
    result.push_back((spatial[i] - 1) * windows->strides[i] + padding + windows->Reach(i) - windows->begin[i] -
                     windows->end[i]);
    if (result.back() < 1) return node.Refuse("a result of no elements");
  }
  GiveConvolution(node, std::move(op), x, w, result);
}

void LowerPool(NodeLowering& node, DML_OPERATOR_TYPE type) {
  const Tensor x = node.Packed(node.Real(0));
  const Dims& dims = x.view.dims;
  const std::vector<int64_t>* kernel = node.attributes().Ints("kernel_shape");
  if (kernel == nullptr) return node.Refuse("no kernel");
  auto windows = WindowsOf(node, Spatial(dims), *kernel);
  if (!windows) return;
  CoverWithLargerWindows(Spatial(dims), &*windows);
  if (!SetOut(node, Spatial(dims), node.attributes().Int("ceil_mode", 0) != 0, &*windows)) return;
  Operator op = OpOf(type, node.name());
  op.sliding = SlidingOf(*windows);
  op.include_padding = node.attributes().Int("count_include_pad", 0) != 0;
  Dims result = {dims[0], dims[1]};
  result.insert(result.end(), windows->out.begin(), windows->out.end());
  if (node.builder().refused()) return;
  const Dims sizes = WithSpatial({dims[0], dims[1]}, windows->out);
  node.Give(0, node.Made(std::move(op), sizes, {Seen(x)}, DataType::kFloat32, result));
}

}  // namespace normfuse::directml
