#include "directml/known_tensors.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <limits>

namespace normfuse::directml {
namespace {

template <typename T>
void Read(const void* data, std::vector<int64_t>* values) {
  for (size_t i = 0; i < values->size(); ++i) {
    T value;
    std::memcpy(&value, static_cast<const char*>(data) + i * sizeof(T), sizeof(T));
    (*values)[i] = value;
  }
}

template <typename T>
void Write(const std::vector<int64_t>& values, std::vector<unsigned char>* storage) {
  storage->resize(values.size() * sizeof(T));
  for (size_t i = 0; i < values.size(); ++i) {
    const T value = static_cast<T>(values[i]);
    std::memcpy(storage->data() + i * sizeof(T), &value, sizeof(T));
  }
}

// Overflow wraps, as ONNX Runtime's kernels do.
int64_t Wrapped(DataType type, uint64_t value) {
  return type == DataType::kInt32 ? static_cast<int32_t>(value) : static_cast<int64_t>(value);
}

std::optional<int64_t> Combine(DirectMlOperator op, DataType type, int64_t a, int64_t b) {
  const auto x = static_cast<uint64_t>(a), y = static_cast<uint64_t>(b);
  switch (op) {
    case DirectMlOperator::kAdd:
      return Wrapped(type, x + y);
    case DirectMlOperator::kSub:
      return Wrapped(type, x - y);
    case DirectMlOperator::kMul:
      return Wrapped(type, x * y);
    case DirectMlOperator::kDiv:
      if (b == 0 || (b == -1 && a == std::numeric_limits<int64_t>::min())) return std::nullopt;
      return a / b;
    case DirectMlOperator::kMin:
      return std::min(a, b);
    case DirectMlOperator::kMax:
      return std::max(a, b);
    case DirectMlOperator::kEqual:
      return a == b ? 1 : 0;
    default:
      return std::nullopt;
  }
}

std::optional<KnownTensor> ComputeBinary(DirectMlOperator op, const KnownTensor& a, const KnownTensor& b) {
  const auto dims = BroadcastDims(a.dims, b.dims);
  if (!dims || Product(*dims) > kMostKnownElements) return std::nullopt;
  KnownTensor result = Taken(a, Expanded(StridedView::Packed(a.dims), *dims));
  const KnownTensor other = Taken(b, Expanded(StridedView::Packed(b.dims), *dims));
  for (size_t i = 0; i < result.values.size(); ++i) {
    const auto value = Combine(op, a.type, result.values[i], other.values[i]);
    if (!value) return std::nullopt;
    result.values[i] = *value;
  }
  if (op == DirectMlOperator::kEqual) result.type = DataType::kBool;
  return result;
}

std::optional<KnownTensor> ComputeWhere(const std::vector<const KnownTensor*>& inputs) {
  auto dims = BroadcastDims(inputs[0]->dims, inputs[1]->dims);
  if (dims) dims = BroadcastDims(*dims, inputs[2]->dims);
  if (!dims || Product(*dims) > kMostKnownElements) return std::nullopt;
  const auto wide = [&](size_t i) { return Taken(*inputs[i], Expanded(StridedView::Packed(inputs[i]->dims), *dims)); };
  const KnownTensor condition = wide(0), other = wide(2);
  KnownTensor result = wide(1);
  for (size_t i = 0; i < result.values.size(); ++i) {
    if (condition.values[i] == 0) result.values[i] = other.values[i];
  }
  return result;
}

std::optional<KnownTensor> ComputeConcat(const IslandNode& node, const std::vector<const KnownTensor*>& inputs) {
  const Dims& first = inputs[0]->dims;
  const auto axis = AxisOf(node.attributes.Int("axis", 0), first.size());
  if (!axis) return std::nullopt;
  KnownTensor result{inputs[0]->type, first, {}};
  result.dims[*axis] = 0;
  int64_t outer = 1;
  for (size_t i = 0; i < *axis; ++i) outer *= first[i];
  for (const KnownTensor* input : inputs) {
    if (input->dims.size() != first.size()) return std::nullopt;
    for (size_t i = 0; i < first.size(); ++i) {
      if (i != *axis && input->dims[i] != first[i]) return std::nullopt;
    }
    result.dims[*axis] += input->dims[*axis];
  }
  for (int64_t row = 0; row < outer; ++row) {
    for (const KnownTensor* input : inputs) {
      const auto width = static_cast<int64_t>(input->values.size()) / outer;
      result.values.insert(result.values.end(), input->values.begin() + row * width,
                           input->values.begin() + (row + 1) * width);
    }
  }
  return result;
}

std::optional<KnownTensor> ComputeGather(const IslandNode& node, const KnownTensor& data, const KnownTensor& indices) {
  const auto axis = AxisOf(node.attributes.Int("axis", 0), data.dims.size());
  if (!axis) return std::nullopt;
  const int64_t size = data.dims[*axis];
  Dims outer(data.dims.begin(), data.dims.begin() + *axis), inner(data.dims.begin() + *axis + 1, data.dims.end());
  KnownTensor result{data.type, outer, {}};
  result.dims.insert(result.dims.end(), indices.dims.begin(), indices.dims.end());
  result.dims.insert(result.dims.end(), inner.begin(), inner.end());
  if (Product(result.dims) > kMostKnownElements) return std::nullopt;
  for (int64_t row = 0; row < Product(outer); ++row) {
    for (int64_t index : indices.values) {
      if (index < 0) index += size;
      if (index < 0 || index >= size) return std::nullopt;
      const auto from = data.values.begin() + (row * size + index) * Product(inner);
      result.values.insert(result.values.end(), from, from + Product(inner));
    }
  }
  return result;
}

std::optional<KnownTensor> ComputeCast(const IslandNode& node, KnownTensor tensor) {
  tensor.type = FromTensorProto(node.attributes.Int("to", 0));
  if (!IsKnowable(tensor.type)) return std::nullopt;
  for (int64_t& value : tensor.values) {
    if (tensor.type == DataType::kBool) value = value != 0 ? 1 : 0;
    if (tensor.type == DataType::kInt32) value = static_cast<int32_t>(value);
  }
  return tensor;
}

}  // namespace

bool IsKnowable(DataType type) {
  return type == DataType::kInt64 || type == DataType::kInt32 || type == DataType::kBool;
}

std::optional<KnownTensor> Known(DataType type, const Dims& dims, const void* data) {
  if (!IsKnowable(type) || Product(dims) > kMostKnownElements) return std::nullopt;
  KnownTensor tensor{type, dims, std::vector<int64_t>(static_cast<size_t>(Product(dims)))};
  if (type == DataType::kInt64) Read<int64_t>(data, &tensor.values);
  if (type == DataType::kInt32) Read<int32_t>(data, &tensor.values);
  if (type == DataType::kBool) Read<uint8_t>(data, &tensor.values);
  return tensor;
}

ConstantTensor AsConstant(const KnownTensor& tensor) {
  ConstantTensor constant{tensor.type, tensor.dims, nullptr, {}};
  if (tensor.type == DataType::kInt64) Write<int64_t>(tensor.values, &constant.storage);
  if (tensor.type == DataType::kInt32) Write<int32_t>(tensor.values, &constant.storage);
  if (tensor.type == DataType::kBool) Write<uint8_t>(tensor.values, &constant.storage);
  constant.data = constant.storage.data();
  return constant;
}

KnownTensor Taken(const KnownTensor& tensor, const StridedView& view) {
  KnownTensor result{tensor.type, view.dims, {}};
  const std::function<void(size_t, int64_t)> walk = [&](size_t dim, int64_t at) {
    if (dim == view.dims.size()) {
      result.values.push_back(tensor.values[static_cast<size_t>(at)]);
      return;
    }
    for (int64_t i = 0; i < view.dims[dim]; ++i) walk(dim + 1, at + i * view.strides[dim]);
  };
  walk(0, view.offset);
  return result;
}

std::optional<KnownTensor> ComputeKnown(const IslandNode& node, const std::vector<const KnownTensor*>& inputs) {
  switch (node.op) {
    case DirectMlOperator::kAdd:
    case DirectMlOperator::kSub:
    case DirectMlOperator::kMul:
    case DirectMlOperator::kDiv:
    case DirectMlOperator::kEqual:
      return ComputeBinary(node.op, *inputs[0], *inputs[1]);
    case DirectMlOperator::kMin:
    case DirectMlOperator::kMax: {
      std::optional<KnownTensor> result = *inputs[0];
      for (size_t i = 1; i < inputs.size() && result; ++i) result = ComputeBinary(node.op, *result, *inputs[i]);
      return result;
    }
    case DirectMlOperator::kWhere:
      return ComputeWhere(inputs);
    case DirectMlOperator::kConcat:
      return ComputeConcat(node, inputs);
    case DirectMlOperator::kGather:
      return ComputeGather(node, *inputs[0], *inputs[1]);
    case DirectMlOperator::kCast:
      return ComputeCast(node, *inputs[0]);
    default:
      return std::nullopt;
  }
}

}  // namespace normfuse::directml
