#include "directml/islands/known_tensors.h"

#include <algorithm>
#include <cstdlib>
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
  using enum DirectMlOperator;
  const auto x = static_cast<uint64_t>(a), y = static_cast<uint64_t>(b);
  if (op == kAdd) return Wrapped(type, x + y);
  if (op == kSub) return Wrapped(type, x - y);
  if (op == kMul) return Wrapped(type, x * y);
  if (op == kMin) return std::min(a, b);
  if (op == kMax) return std::max(a, b);
  if (op == kEqual) return a == b;
  if (op == kGreater) return a > b;
  if (op == kGreaterOrEqual) return a >= b;
  if (op == kLess) return a < b;
  if (op == kLessOrEqual) return a <= b;
  if (op == kAnd) return a & b;
  if (op == kOr) return a | b;
  if (op == kXor) return a ^ b;
  if (op != kDiv || b == 0 || (b == -1 && a == std::numeric_limits<int64_t>::min())) return std::nullopt;
  return a / b;
}

template <typename... Operators>
bool IsOneOf(DirectMlOperator op, Operators... operators) {
  return ((op == operators) || ...);
}

// Whether the result has the operands' type, not bool.
bool IsArithmetic(DirectMlOperator op) {
  using enum DirectMlOperator;
  return IsOneOf(op, kAdd, kSub, kMul, kDiv, kMin, kMax);
}

bool IsPredicate(DirectMlOperator op) {
  using enum DirectMlOperator;
  return IsOneOf(op, kEqual, kGreater, kGreaterOrEqual, kLess, kLessOrEqual, kAnd, kOr, kXor);
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
  if (!IsArithmetic(op)) result.type = DataType::kBool;
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

std::optional<KnownTensor> ComputeConstantOfShape(const IslandNode& node, const KnownTensor& dims) {
  const auto given = node.attributes.tensors.find("value");
  if (given == node.attributes.tensors.end()) return std::nullopt;  // a float
  const ConstantTensor& value = *given->second;
  const auto known = Known(value.type, value.dims, value.data);
  const bool is_shape = std::all_of(dims.values.begin(), dims.values.end(), [](int64_t dim) { return dim >= 0; });
  if (!known || known->values.size() != 1 || !is_shape || Product(dims.values) > kMostKnownElements)
    return std::nullopt;
  const auto count = static_cast<size_t>(Product(dims.values));
  return KnownTensor{known->type, dims.values, std::vector<int64_t>(count, known->values[0])};
}

std::optional<KnownTensor> ComputeNot(KnownTensor tensor) {
  for (int64_t& value : tensor.values) value = value == 0;
  return tensor;
}

std::optional<KnownTensor> ComputeRange(const KnownTensor& start, const KnownTensor& limit, const KnownTensor& delta) {
  if (start.values.size() != 1 || limit.values.size() != 1 || delta.values.size() != 1) return std::nullopt;
  const int64_t first = start.values[0], end = limit.values[0], step = delta.values[0];
  // Beyond these the numbers below could overflow.
  constexpr int64_t kFar = int64_t{1} << 60;
  for (int64_t each : {first, end, step}) {
    if (each < -kFar || each > kFar) return std::nullopt;
  }
  if (step == 0) return std::nullopt;
  const int64_t span = step > 0 ? end - first : first - end, stride = std::abs(step);
  const int64_t count = span <= 0 ? 0 : (span + stride - 1) / stride;
  if (count > kMostKnownElements) return std::nullopt;
  KnownTensor result{start.type, {count}, {}};
  for (int64_t i = 0; i < count; ++i) result.values.push_back(first + i * step);
  return result;
}

// What GatherND takes, as rows of the data seen as a matrix.
std::optional<KnownTensor> ComputeGatherNd(const IslandNode& node, const KnownTensor& data,
                                           const KnownTensor& indices) {
  const auto rows = RowsOfGatherNd(node, data.dims, indices);
  if (!rows || Product(rows->result_dims) > kMostKnownElements) return std::nullopt;
  KnownTensor result{data.type, rows->result_dims, {}};
  for (int64_t row : rows->rows) {
    const auto from = data.values.begin() + row * rows->width;
    result.values.insert(result.values.end(), from, from + rows->width);
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

std::optional<GatheredRows> RowsOfGatherNd(const IslandNode& node, const Dims& dims, const KnownTensor& indices) {
  const int64_t batch_dims = node.attributes.Int("batch_dims", 0);
  const auto rank = static_cast<int64_t>(dims.size()), index_rank = static_cast<int64_t>(indices.dims.size());
  if (index_rank == 0 || batch_dims < 0 || batch_dims >= std::min(rank, index_rank)) return std::nullopt;
  const int64_t depth = indices.dims.back(), end = batch_dims + depth;
  if (depth < 1 || end > rank || !std::equal(dims.begin(), dims.begin() + batch_dims, indices.dims.begin())) {
    return std::nullopt;
  }
  GatheredRows gathered;
  gathered.width = Product(Dims(dims.begin() + end, dims.end()));
  gathered.result_dims.assign(indices.dims.begin(), indices.dims.end() - 1);
  gathered.result_dims.insert(gathered.result_dims.end(), dims.begin() + end, dims.end());
  const int64_t batches = Product(Dims(dims.begin(), dims.begin() + batch_dims));
  const auto count = static_cast<int64_t>(indices.values.size()) / depth;
  for (int64_t i = 0; i < count; ++i) {
    int64_t row = i / std::max<int64_t>(1, count / std::max<int64_t>(1, batches));
    for (int64_t d = 0; d < depth; ++d) {
      const int64_t size = dims[static_cast<size_t>(batch_dims + d)];
      int64_t index = indices.values[static_cast<size_t>(i * depth + d)];
      if (index < 0) index += size;
      if (index < 0 || index >= size) return std::nullopt;
      row = row * size + index;
    }
    gathered.rows.push_back(row);
  }
  return gathered;
}

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
  using enum DirectMlOperator;
  if (IsArithmetic(node.op) || IsPredicate(node.op)) {  // Min and Max are of one tensor or more
    std::optional<KnownTensor> result = *inputs[0];
    for (size_t i = 1; i < inputs.size() && result; ++i) result = ComputeBinary(node.op, *result, *inputs[i]);
    return result;
  }
  if (node.op == kConstantOfShape) return ComputeConstantOfShape(node, *inputs[0]);
  if (node.op == kNot) return ComputeNot(*inputs[0]);
  if (node.op == kRange) return ComputeRange(*inputs[0], *inputs[1], *inputs[2]);
  if (node.op == kGatherND) return ComputeGatherNd(node, *inputs[0], *inputs[1]);
  if (node.op == kWhere) return ComputeWhere(inputs);
  if (node.op == kConcat) return ComputeConcat(node, inputs);
  if (node.op == kGather) return ComputeGather(node, *inputs[0], *inputs[1]);
  if (node.op == kCast) return ComputeCast(node, *inputs[0]);
  return std::nullopt;
}

}  // namespace normfuse::directml
