#include "cpu/run/parameters.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <type_traits>

#include "cpu/run/elements.h"

namespace normfuse::cpu {
namespace {

Result Invalid(const std::string& node, const std::string& text) {
  return Result::Error(ErrorCode::kInvalidArgument, node + ": " + text);
}

int64_t CountOf(const TensorView& view) {
  int64_t count = 1;
  for (size_t i = 0; i < view.rank; ++i) count *= view.dims[i];
  return count;
}

TensorView ViewOf(const ConstantTensor& constant) {
  return {constant.data, constant.type, constant.dims.data(), constant.dims.size()};
}

// Compared bit by bit: 0 and -0 differ, and NaN equals itself.
template <class T>
bool AllEqual(const std::vector<T>& values) {
  using Bits = std::conditional_t<sizeof(T) == sizeof(uint64_t), uint64_t, uint32_t>;
  const auto equals_first = [&](T value) { return std::bit_cast<Bits>(value) == std::bit_cast<Bits>(values[0]); };
  return !values.empty() && std::all_of(values.begin(), values.end(), equals_first);
}

PartialShape ShapeOf(const TensorView& view) {
  PartialShape shape;
  shape.rank = static_cast<int>(view.rank);
  std::copy_n(view.dims, std::min(view.rank, static_cast<size_t>(kMaxRank)), shape.dims);
  return shape;
}

// Which element of a quantisation parameter belongs to an element of the tensor. The parameter fits: CheckQuantization.
class ParameterIndex {
 public:
  ParameterIndex(const TensorView& tensor, const Quantization& quantization, const TensorView& parameter)
      : count_(CountOf(parameter)), block_(quantization.block_size), parameter_(parameter) {
    const auto rank = static_cast<int64_t>(tensor.rank);
    axis_ = rank == 1 ? 0 : quantization.axis < 0 ? quantization.axis + rank : quantization.axis;
  }

  int64_t At(const int64_t* coordinate, int rank) const {
    if (count_ == 1) return 0;
    if (parameter_.rank == 1 && block_ <= 0) return coordinate[axis_];
    int64_t index = 0;
    for (int i = 0; i < rank; ++i) {
      const int64_t at = block_ > 0 && i == axis_ ? coordinate[i] / block_ : coordinate[i];
      index = index * parameter_.dims[i] + (parameter_.dims[i] == 1 ? 0 : at);
    }
    return index;
  }

 private:
  int64_t count_;
  int64_t block_;
  int64_t axis_;
  const TensorView& parameter_;
};

}  // namespace

float OneNumberOf(const TensorRef& constant, float absent) {
  if (!constant.present()) return absent;
  return static_cast<float>(ReadElement(constant.constant->type, constant.constant->data, 0));
}

std::vector<double> BufferPool::Take(size_t count) {
  std::vector<double> memory;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!free_.empty()) {
      memory = std::move(free_.back());
      free_.pop_back();
    }
  }
  if (memory.size() < count) memory.resize(count);
  return memory;
}

void BufferPool::Return(std::vector<double> memory) {
  if (memory.empty()) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  free_.push_back(std::move(memory));
}

Result GetTensor(ExecutionContext& context, const std::string& node, const std::string& what, const TensorRef& ref,
                 DataType type, TensorView* view) {
  if (ref.constant != nullptr) {
    *view = ViewOf(*ref.constant);
  } else {
    NORMFUSE_RETURN_IF_ERROR(context.Input(ref.input, view));
  }
  const bool type_fits = type == DataType::kUndefined ? IsFloat(view->type) : view->type == type;
  if (!type_fits) {
    return Invalid(node, what + " has element type " + NameOf(view->type) + ", expected " +
                             (type == DataType::kUndefined ? "a float type" : NameOf(type)));
  }
  if (view->data == nullptr && CountOf(*view) != 0) return Invalid(node, what + " is missing");
  return {};
}

Result ReadAll(const std::string& node, const std::string& what, const TensorView& tensor,
               const Quantization& quantization, const TensorView* scale, const TensorView* zero, double* out) {
  const int64_t count = CountOf(tensor);
  if (scale == nullptr) {
    for (int64_t i = 0; i < count; ++i) out[i] = ReadElement(tensor.type, tensor.data, i);
    return {};
  }
  if (tensor.rank > static_cast<size_t>(kMaxRank)) return Invalid(node, what + " has more than 8 dimensions");
  const PartialShape zero_shape = zero == nullptr ? PartialShape{} : ShapeOf(*zero);
  NORMFUSE_RETURN_IF_ERROR(CheckQuantization({node, what, quantization, ShapeOf(tensor), ShapeOf(*scale), zero_shape}));
  const ParameterIndex scale_at(tensor, quantization, *scale);
  const ParameterIndex zero_at(tensor, quantization, zero == nullptr ? *scale : *zero);
  const auto rank = static_cast<int>(tensor.rank);
  int64_t coordinate[kMaxRank] = {};
  for (int64_t i = 0; i < count; ++i) {
    double value = ReadElement(tensor.type, tensor.data, i);
    if (zero != nullptr) value -= ReadElement(zero->type, zero->data, zero_at.At(coordinate, rank));
    out[i] = static_cast<float>(value) *
             static_cast<float>(ReadElement(scale->type, scale->data, scale_at.At(coordinate, rank)));
    for (int d = rank - 1; d >= 0 && ++coordinate[d] == tensor.dims[d]; --d) coordinate[d] = 0;
  }
  return {};
}

Result ParamSource::Init(const Operand& operand, bool wide) {
  present_ = operand.present();
  wide_ = wide;
  operand_ = operand;
  is_constant_ = present_ && operand.constant();
  if (!is_constant_) return {};
  const ConstantTensor& tensor = *operand.tensor.constant;
  dims_ = tensor.dims;
  std::vector<double> all(static_cast<size_t>(tensor.ElementCount()));
  const Quantization& q = operand.quantization;
  TensorView scale, zero;
  if (q.scale.present()) scale = ViewOf(*q.scale.constant);
  if (q.zero_point.present()) zero = ViewOf(*q.zero_point.constant);
  NORMFUSE_RETURN_IF_ERROR(ReadAll("", operand.name, ViewOf(tensor), q, q.scale.present() ? &scale : nullptr,
                                   q.zero_point.present() ? &zero : nullptr, all.data()));
  if (wide_) {
    wide_values_ = std::move(all);
    uniform_ = AllEqual(wide_values_);
    return {};
  }
  const std::vector<float> narrow(all.begin(), all.end());
  uniform_ = AllEqual(narrow);
  // Aligned to a cache line: a vector load across two lines costs twice.
  constexpr size_t kLine = 64 / sizeof(float);
  values_.resize(narrow.size() + kLine);
  const size_t past = reinterpret_cast<uintptr_t>(values_.data()) / sizeof(float) % kLine;
  aligned_ = values_.data() + (kLine - past) % kLine;
  std::copy(narrow.begin(), narrow.end(), aligned_);
  return {};
}

Param ParamSource::Constant() const {
  return {aligned_, wide_ ? wide_values_.data() : nullptr, {dims_.data(), static_cast<int>(dims_.size())}};
}

bool ParamSource::IsReady(const TensorView& view) const {
  return !wide_ && view.type == DataType::kFloat32 && !operand_.quantization.present();
}

Result ParamSource::Prepare(ExecutionContext& context, const std::string& node, TensorView* view,
                            size_t* doubles) const {
  *doubles = 0;
  NORMFUSE_RETURN_IF_ERROR(GetTensor(context, node, operand_.name, operand_.tensor, operand_.type, view));
  if (view->rank > static_cast<size_t>(kMaxRank)) {
    return Invalid(node, std::string(operand_.name) + " has more than 8 dimensions");
  }
  if (!IsReady(*view)) *doubles = static_cast<size_t>(CountOf(*view));
  return {};
}

Result ParamSource::Read(ExecutionContext& context, const std::string& node, const TensorView& view, double* memory,
                         Param* param) const {
  param->shape = {view.dims, static_cast<int>(view.rank)};
  const Quantization& q = operand_.quantization;
  if (IsReady(view)) {
    param->data = static_cast<const float*>(view.data);
    return {};
  }
  TensorView scale, zero;
  if (q.scale.present()) {
    NORMFUSE_RETURN_IF_ERROR(GetTensor(context, node, operand_.name, q.scale, DataType::kUndefined, &scale));
  }
  if (q.zero_point.present()) {
    NORMFUSE_RETURN_IF_ERROR(GetTensor(context, node, operand_.name, q.zero_point, operand_.type, &zero));
  }
  NORMFUSE_RETURN_IF_ERROR(ReadAll(node, operand_.name, view, q, q.scale.present() ? &scale : nullptr,
                                   q.zero_point.present() ? &zero : nullptr, memory));
  if (wide_) {
    param->wide = memory;
    return {};
  }
  // Converted in place: a float never overwrites a double that is still to be read.
  auto* narrow = reinterpret_cast<unsigned char*>(memory);
  const int64_t count = CountOf(view);
  for (int64_t i = 0; i < count; ++i) {
    const auto value = static_cast<float>(memory[i]);
    std::memcpy(narrow + static_cast<size_t>(i) * sizeof(float), &value, sizeof(float));
  }
  param->data = reinterpret_cast<const float*>(narrow);
  return {};
}

}  // namespace normfuse::cpu
