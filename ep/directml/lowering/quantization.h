// Quantisation as DirectML operators: ELEMENT_WISE_(DE)QUANTIZE_LINEAR with scale and zero point by strides of 0,
// (DE)QUANTIZE for 4-bit tensors, and element-wise operators for 16-bit results and for what nothing stores.
#pragma once

#include <optional>
#include <string>

#include "chain/chain.h"
#include "directml/lowering/program_builder.h"

namespace normfuse::directml {

std::vector<float> FloatsOf(const ConstantTensor& tensor);

// Whether shapes are what they are, or assumed because they are not known yet: parameters that do not fit an assumed shape
// are no reason to refuse a chain.
enum class Shapes { kKnown, kAssumed };

// A scale and a zero point as run-time or constant tensors of the program; the scale is float32.
struct QuantizationValues {
  Value scale;
  std::optional<Value> zero_point;  // nothing: 0
};

// How scale and zero point run over a tensor: its dimensions, the blocked one split into blocks and block elements.
struct QuantizationGeometry {
  Dims sizes;
  Dims scale_strides;
  Dims zero_point_strides;
};

// Nothing when the parameters do not fit the tensor; `problem` then says how.
std::optional<QuantizationGeometry> GeometryOf(const Dims& tensor, const Dims& scale,
                                               const std::optional<Dims>& zero_point, const Quantization& quantization,
                                               std::string* problem);

// (x - zero_point) * scale as float32, of x's shape.
Value EmitDequantize(ProgramBuilder& builder, const Value& x, const QuantizationValues& values,
                     const Quantization& quantization, Shapes shapes, const std::string& name);

// saturate(round_half_even(a / scale) + zero_point) in `type`.
Value EmitQuantize(ProgramBuilder& builder, const Value& a, const QuantizationValues& values,
                   const Quantization& quantization, Shapes shapes, DataType type, const std::string& name);

// Whether one operator quantises to the type, on this GPU.
bool HasQuantizer(const ProgramBuilder& builder, DataType type);

// Both, one after the other, as float32: where the type has a quantizer through integers, and else element by element, for
// which the zero point has to be float32.
Value EmitFakeQuantize(ProgramBuilder& builder, const Value& a, const QuantizationValues& values,
                       const Quantization& quantization, Shapes shapes, DataType type);

// What EmitDynamicQuantize makes: y of a's shape, scale and zero point without dimensions.
struct DynamicValues {
  Value y, scale, zero_point;
};

// ONNX's DynamicQuantizeLinear of a float32 tensor with elements. As in ONNX Runtime the scale is 1 where all of them are 0.
DynamicValues EmitDynamicQuantize(ProgramBuilder& builder, const Value& a, const std::string& name);

// The same as EmitDequantize for a tensor whose values are all known: done here, in float64, rounded once.
std::optional<std::vector<float>> DequantizeConstant(const ConstantTensor& tensor, const Quantization& quantization,
                                                     std::string* problem);

}  // namespace normfuse::directml
