#include "directml/execution/operator_desc.h"

#include <algorithm>
#include <iterator>

namespace normfuse::directml {

using namespace abi;

OperatorDesc::OperatorDesc(const Operator& op) { Fill(op); }

void OperatorDesc::Fill(const Operator& op) {
  const auto is = [&op](auto... types) { return ((op.type == types) || ...); };
  const auto in = [&](size_t index) { return Input(op, index); };
  const DML_TENSOR_DESC* y = Tensor(op.output);
  desc_.Type = op.type;
  if (is(DML_OPERATOR_ELEMENT_WISE_IDENTITY, DML_OPERATOR_ELEMENT_WISE_RECIP, DML_OPERATOR_ELEMENT_WISE_SQRT,
         DML_OPERATOR_ELEMENT_WISE_ERF, DML_OPERATOR_ELEMENT_WISE_EXP, DML_OPERATOR_ELEMENT_WISE_COS,
         DML_OPERATOR_ELEMENT_WISE_SIN, DML_OPERATOR_ELEMENT_WISE_ABS, DML_OPERATOR_ELEMENT_WISE_LOG)) {
    return Set(DML_ELEMENT_WISE_UNARY_OPERATOR_DESC{in(0), y, op.scale_bias ? &*op.scale_bias : nullptr});
  }
  if (is(DML_OPERATOR_ELEMENT_WISE_ADD, DML_OPERATOR_ELEMENT_WISE_SUBTRACT, DML_OPERATOR_ELEMENT_WISE_MULTIPLY,
         DML_OPERATOR_ELEMENT_WISE_DIVIDE, DML_OPERATOR_ELEMENT_WISE_MAX, DML_OPERATOR_ELEMENT_WISE_MIN,
         DML_OPERATOR_ELEMENT_WISE_LOGICAL_AND, DML_OPERATOR_ELEMENT_WISE_LOGICAL_OR,
         DML_OPERATOR_ELEMENT_WISE_LOGICAL_XOR, DML_OPERATOR_ELEMENT_WISE_LOGICAL_EQUALS,
         DML_OPERATOR_ELEMENT_WISE_LOGICAL_GREATER_THAN, DML_OPERATOR_ELEMENT_WISE_LOGICAL_LESS_THAN,
         DML_OPERATOR_ELEMENT_WISE_LOGICAL_GREATER_THAN_OR_EQUAL,
         DML_OPERATOR_ELEMENT_WISE_LOGICAL_LESS_THAN_OR_EQUAL)) {
    return Set(DML_ELEMENT_WISE_BINARY_OPERATOR_DESC{in(0), in(1), y});
  }
  if (is(DML_OPERATOR_CAST, DML_OPERATOR_ELEMENT_WISE_LOGICAL_NOT, DML_OPERATOR_ELEMENT_WISE_IS_NAN)) {
    return Set(DML_CAST_OPERATOR_DESC{in(0), y});
  }
  if (is(DML_OPERATOR_ELEMENT_WISE_QUANTIZE_LINEAR, DML_OPERATOR_ELEMENT_WISE_DEQUANTIZE_LINEAR)) {
    return Set(DML_ELEMENT_WISE_QUANTIZE_LINEAR_OPERATOR_DESC{in(0), in(1), in(2), y});
  }
  if (is(DML_OPERATOR_QUANTIZE, DML_OPERATOR_DEQUANTIZE)) return SetQuantization(op, y);
  if (is(DML_OPERATOR_CONVOLUTION, DML_OPERATOR_CONVOLUTION_INTEGER, DML_OPERATOR_QUANTIZED_LINEAR_CONVOLUTION,
         DML_OPERATOR_AVERAGE_POOLING, DML_OPERATOR_MAX_POOLING2, DML_OPERATOR_PADDING)) {
    return SetSliding(op, y);
  }
  if (is(DML_OPERATOR_ACTIVATION_SOFTMAX1, DML_OPERATOR_ACTIVATION_LOG_SOFTMAX1)) {
    return Set(DML_ACTIVATION_SOFTMAX1_OPERATOR_DESC{in(0), y, static_cast<UINT>(op.axes.size()), op.axes.data()});
  }
  SetAlone(op, y);
}

// Operators whose structure describes no other.
void OperatorDesc::SetAlone(const Operator& op, const DML_TENSOR_DESC* y) {
  const auto in = [&](size_t index) { return Input(op, index); };
  const auto axis_count = static_cast<UINT>(op.axes.size()), rank = static_cast<UINT>(op.offsets.size());
  switch (op.type) {
    case DML_OPERATOR_ELEMENT_WISE_CLIP:
      return Set(DML_ELEMENT_WISE_CLIP_OPERATOR_DESC{in(0), y, nullptr, op.parameters[0], op.parameters[1]});
    case DML_OPERATOR_ELEMENT_WISE_ROUND:
      return Set(DML_ELEMENT_WISE_ROUND_OPERATOR_DESC{in(0), y, DML_ROUNDING_MODE_HALVES_TO_NEAREST_EVEN});
    case DML_OPERATOR_ELEMENT_WISE_POW:
      return Set(DML_ELEMENT_WISE_POW_OPERATOR_DESC{in(0), in(1), y, nullptr});
    case DML_OPERATOR_ELEMENT_WISE_CONSTANT_POW:
      return Set(DML_ELEMENT_WISE_CONSTANT_POW_OPERATOR_DESC{in(0), y, nullptr, op.parameters[0]});
    case DML_OPERATOR_ELEMENT_WISE_IF:
      return Set(DML_ELEMENT_WISE_IF_OPERATOR_DESC{in(0), in(1), in(2), y});
    case DML_OPERATOR_GEMM:
      return Set(DML_GEMM_OPERATOR_DESC{in(0), in(1), in(2), y, DML_MATRIX_TRANSFORM_NONE, DML_MATRIX_TRANSFORM_NONE,
                                        op.alpha, op.beta, nullptr});
    case DML_OPERATOR_MATRIX_MULTIPLY_INTEGER:
      return Set(DML_MATRIX_MULTIPLY_INTEGER_OPERATOR_DESC{in(0), in(1), in(2), in(3), y});
    case DML_OPERATOR_QUANTIZED_LINEAR_MATRIX_MULTIPLY:
      return Set(DML_QUANTIZED_LINEAR_MATRIX_MULTIPLY_OPERATOR_DESC{in(0), in(1), in(2), in(3), in(4), in(5), in(6),
                                                                    in(7), y});
    case DML_OPERATOR_GATHER:
      return Set(DML_GATHER_OPERATOR_DESC{in(0), in(1), y, op.axis, op.index_dimensions});
    case DML_OPERATOR_JOIN:
      return SetJoin(op, y);
    case DML_OPERATOR_SLICE1:
      return Set(DML_SLICE1_OPERATOR_DESC{in(0), y, rank, op.offsets.data(), op.window.data(), op.steps.data()});
    case DML_OPERATOR_BATCH_NORMALIZATION:
      return Set(DML_BATCH_NORMALIZATION_OPERATOR_DESC{in(0), in(1), in(2), in(3), in(4), y, 1, op.epsilon, nullptr});
    case DML_OPERATOR_REDUCE:
      return Set(DML_REDUCE_OPERATOR_DESC{op.reduce_function, in(0), y, axis_count, op.axes.data()});
    case DML_OPERATOR_ACTIVATION_PARAMETERIZED_RELU:
      return Set(DML_ACTIVATION_PARAMETERIZED_RELU_OPERATOR_DESC{in(0), in(1), y});
    case DML_OPERATOR_MEAN_VARIANCE_NORMALIZATION1:
      return Set(DML_MEAN_VARIANCE_NORMALIZATION1_OPERATOR_DESC{in(0), in(1), in(2), y, axis_count, op.axes.data(),
                                                                op.normalize_variance, op.epsilon, Fused(op)});
    case DML_OPERATOR_MEAN_VARIANCE_NORMALIZATION2:
      return Set(DML_MEAN_VARIANCE_NORMALIZATION2_OPERATOR_DESC{in(0), in(1), in(2), y, axis_count, op.axes.data(),
                                                                op.use_mean, op.normalize_variance, op.epsilon,
                                                                Fused(op)});
    default:
      return SetActivation(op, y);
  }
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

const DML_TENSOR_DESC* OperatorDesc::Input(const Operator& op, size_t index) {
  const bool present = index < op.inputs.size() && op.inputs[index].has_value();
  return present ? Tensor(op.inputs[index]->desc) : nullptr;
}

const DML_OPERATOR_DESC* OperatorDesc::Fused(const Operator& op) {
  if (!op.fused_activation) return nullptr;
  std::copy(std::begin(op.fused_activation->parameters), std::end(op.fused_activation->parameters),
            fused_struct_.Parameters);
  fused_ = {op.fused_activation->type, &fused_struct_};
  return &fused_;
}

template <typename Desc>
void OperatorDesc::Set(const Desc& desc) {
  auto stored = std::make_shared<Desc>(desc);
  desc_.Desc = stored.get();
  struct_ = std::move(stored);
}

void OperatorDesc::SetActivation(const Operator& op, const DML_TENSOR_DESC* output) {
  DML_ACTIVATION_OPERATOR_DESC desc{Input(op, 0), output, {}};
  std::copy(std::begin(op.parameters), std::end(op.parameters), desc.Parameters);
  Set(desc);
}

void OperatorDesc::SetQuantization(const Operator& op, const DML_TENSOR_DESC* output) {
  for (size_t i = 1; i < op.inputs.size(); ++i) {
    if (op.inputs[i]) tensor_array_.push_back(*Tensor(op.inputs[i]->desc));
  }
  const auto count = static_cast<UINT>(tensor_array_.size());
  const auto type = count == 2 ? DML_QUANTIZATION_TYPE_SCALE_ZERO_POINT : DML_QUANTIZATION_TYPE_SCALE;
  Set(DML_QUANTIZE_OPERATOR_DESC{Input(op, 0), type, count, tensor_array_.data(), output});
}

void OperatorDesc::SetSliding(const Operator& op, const DML_TENSOR_DESC* y) {
  const auto in = [&](size_t index) { return Input(op, index); };
  const Sliding& s = op.sliding;
  const auto count = static_cast<UINT>(s.start_padding.size());
  const UINT *strides = s.strides.data(), *dilations = s.dilations.data(), *window = s.window.data();
  const UINT *begin = s.start_padding.data(), *end = s.end_padding.data();
  switch (op.type) {
    case DML_OPERATOR_PADDING:
      return Set(DML_PADDING_OPERATOR_DESC{in(0), y, op.padding_mode, op.parameters[0], count, begin, end});
    case DML_OPERATOR_AVERAGE_POOLING:
      return Set(DML_AVERAGE_POOLING_OPERATOR_DESC{in(0), y, count, strides, window, begin, end, op.include_padding});
    case DML_OPERATOR_MAX_POOLING2:
      return Set(DML_MAX_POOLING2_OPERATOR_DESC{in(0), y, nullptr, count, strides, window, begin, end, dilations});
    case DML_OPERATOR_CONVOLUTION_INTEGER:
      return Set(DML_CONVOLUTION_INTEGER_OPERATOR_DESC{in(0), in(1), in(2), in(3), y, count, strides, dilations, begin,
                                                       end, op.groups});
    case DML_OPERATOR_QUANTIZED_LINEAR_CONVOLUTION:
      return Set(DML_QUANTIZED_LINEAR_CONVOLUTION_OPERATOR_DESC{in(0), in(1), in(2), in(3), in(4), in(5), in(6), in(7),
                                                                in(8), y, count, strides, dilations, begin, end,
                                                                op.groups});
    default: {
      const auto direction = op.backward ? DML_CONVOLUTION_DIRECTION_BACKWARD : DML_CONVOLUTION_DIRECTION_FORWARD;
      return Set(DML_CONVOLUTION_OPERATOR_DESC{in(0), in(1), in(2), y, DML_CONVOLUTION_MODE_CROSS_CORRELATION,
                                               direction, count, strides, dilations, begin, end,
                                               s.output_padding.data(), op.groups, nullptr});
    }
  }
}

void OperatorDesc::SetJoin(const Operator& op, const DML_TENSOR_DESC* output) {
  for (size_t i = 0; i < op.inputs.size(); ++i) tensor_array_.push_back(*Input(op, i));
  Set(DML_JOIN_OPERATOR_DESC{static_cast<UINT>(tensor_array_.size()), tensor_array_.data(), output, op.axis});
}

}  // namespace normfuse::directml
