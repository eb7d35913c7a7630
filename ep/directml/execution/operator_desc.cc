#include "directml/execution/operator_desc.h"

#include <algorithm>
#include <cstring>
#include <iterator>

namespace normfuse::directml {

using namespace abi;

OperatorDesc::OperatorDesc(const Operator& op) : op_(op), desc_{op.type, struct_} {
  for (DmlField field : FieldsOf(op.type)) Put(field);
}

template <typename T>
void OperatorDesc::Append(const T& value) {
  bytes_ = (bytes_ + sizeof(T) - 1) / sizeof(T) * sizeof(T);
  std::memcpy(struct_ + bytes_, &value, sizeof(T));
  bytes_ += sizeof(T);
}

void OperatorDesc::Put(DmlField field) {
  using enum DmlField;
  if (field == kInput) return Append(Input());
  if (field == kOutput) return Append(Tensor(op_.output));
  if (field == kNone) return Append(static_cast<const void*>(nullptr));
  if (field == kScaleBias) return Append(op_.scale_bias ? &*op_.scale_bias : nullptr);
  if (field == kFused) return Append(Fused());
  if (field == kTensors) return Append(OtherInputs());
  if (field == kParameter) return Append(op_.parameters[parameters_++]);
  // The others in the order of DmlField.
  const auto at = static_cast<size_t>(field);
  const Sliding& s = op_.sliding;
  const void* lists[] = {op_.axes.data(),        s.strides.data(),     s.dilations.data(),      s.window.data(),
                         s.start_padding.data(), s.end_padding.data(), s.output_padding.data(), op_.offsets.data(),
                         op_.window.data(),      op_.steps.data()};
  const float reals[] = {op_.epsilon, op_.alpha, op_.beta};
  const size_t others = CountOfOtherInputs();  // for QUANTIZE a scale, or a scale and a zero point
  const size_t dimensions = s.start_padding.size() + op_.offsets.size();  // one of the two is empty
  const size_t numbers[] = {others,
                            op_.axes.size(),
                            dimensions,
                            op_.axis,
                            op_.index_dimensions,
                            op_.groups,
                            op_.backward,
                            op_.padding_mode,
                            op_.reduce_function,
                            others,
                            op_.include_padding,
                            op_.use_mean,
                            op_.normalize_variance,
                            0,
                            1};
  static_assert(std::size(lists) == size_t(kTensorCount) - size_t(kAxes));
  static_assert(std::size(numbers) == size_t(kParameter) - size_t(kTensorCount));
  if (field < kTensorCount) return Append(lists[at - size_t(kAxes)]);
  if (field < kParameter) return Append(static_cast<UINT>(numbers[at - size_t(kTensorCount)]));
  Append(reals[at - size_t(kEpsilon)]);
}

const DML_TENSOR_DESC* OperatorDesc::Tensor(const TensorDesc& desc) {
  auto stored = std::make_unique<StoredTensor>();
  stored->buffer = {desc.type,
                    desc.owned_by_dml ? DML_TENSOR_FLAG_OWNED_BY_DML : DML_TENSOR_FLAG_NONE,
                    static_cast<UINT>(desc.sizes.size()),
                    desc.sizes.data(),
                    desc.strides.empty() ? nullptr : desc.strides.data(),
                    desc.bytes,
                    0};
  stored->desc = {DML_TENSOR_TYPE_BUFFER, &stored->buffer};
  tensors_.push_back(std::move(stored));
  return &tensors_.back()->desc;
}

const DML_TENSOR_DESC* OperatorDesc::Input() {
  const size_t index = inputs_++;
  const bool present = index < op_.inputs.size() && op_.inputs[index].has_value();
  return present ? Tensor(op_.inputs[index]->desc) : nullptr;
}

uint32_t OperatorDesc::CountOfOtherInputs() const {
  const auto first = op_.inputs.begin() + static_cast<std::ptrdiff_t>(inputs_);
  return static_cast<uint32_t>(std::count_if(first, op_.inputs.end(), [](const auto& each) { return bool(each); }));
}

const DML_TENSOR_DESC* OperatorDesc::OtherInputs() {
  for (; inputs_ < op_.inputs.size(); ++inputs_) {
    if (op_.inputs[inputs_]) tensor_array_.push_back(*Tensor(op_.inputs[inputs_]->desc));
  }
  return tensor_array_.data();
}

const DML_OPERATOR_DESC* OperatorDesc::Fused() {
  if (!op_.fused_activation) return nullptr;
  std::copy(std::begin(op_.fused_activation->parameters), std::end(op_.fused_activation->parameters),
            fused_struct_.Parameters);
  fused_ = {op_.fused_activation->type, &fused_struct_};
  return &fused_;
}

}  // namespace normfuse::directml
