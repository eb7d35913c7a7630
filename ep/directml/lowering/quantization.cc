#include "directml/lowering/quantization.h"

#include <limits>
#include <vector>

#include "cpu/run/elements.h"

namespace normfuse::directml {
namespace {

using namespace abi;

std::string ShapeText(const Dims& dims) {
  std::string text = "[";
  for (size_t i = 0; i < dims.size(); ++i) text += (i ? ", " : "") + std::to_string(dims[i]);
  return text + "]";
}

// Strides of a scale or zero point over the tensor's split dimensions; nothing when it does not fit.
std::optional<Dims> ParameterStrides(const Dims& tensor, const Dims& parameter, size_t axis, int64_t block,
                                     const Dims& sizes) {
  if (Product(parameter) == 1) return Dims(sizes.size(), 0);
  if (parameter.size() == 1 && tensor.size() != 1) {
    if (axis >= tensor.size() || parameter[0] != tensor[axis]) return std::nullopt;
    Dims strides(sizes.size(), 0);
    strides[axis] = 1;
    return strides;
  }
  if (parameter.size() != tensor.size()) return std::nullopt;
  Dims strides = PackedStrides(parameter);
  for (size_t i = 0; i < tensor.size(); ++i) {
    const int64_t expected = block > 0 && i == axis ? sizes[i] : tensor[i];
    if (parameter[i] != expected && (block > 0 || parameter[i] != 1)) return std::nullopt;
    if (parameter[i] == 1) strides[i] = 0;
  }
  if (sizes.size() > tensor.size()) strides.insert(strides.begin() + static_cast<int64_t>(axis) + 1, 0);
  return strides;
}

bool IsFourBit(DataType type) { return type == DataType::kUint4 || type == DataType::kInt4; }
bool IsFourBit(DML_TENSOR_DATA_TYPE type) { return IsFourBit(FromDirectMl(type)); }

// Zeros of the given type where DirectML wants a zero point all the same.
Value ZeroPoint(ProgramBuilder& builder, DataType type, const Dims& dims) {
  const std::vector<unsigned char> zeros(BytesFor(type, static_cast<size_t>(Product(dims))));
  return builder.Constant("zero point 0", type, zeros.data(), dims);
}

// The zero point as the operator wants it: given where it is present or must be.
std::optional<View> ZeroPointView(ProgramBuilder& builder, const QuantizationValues& values,
                                  const QuantizationGeometry& geometry, DataType type) {
  if (values.zero_point) return View{*values.zero_point, geometry.zero_point_strides};
  // DEQUANTIZE without a zero point takes the middle of an unsigned type's range.
  const bool needed = IsFourBit(type) || !Allows(RuleId::kOptionalZeroPoint, builder.level());
  if (!needed) return std::nullopt;
  if (!IsFourBit(type)) return View{ZeroPoint(builder, type, {1}), Dims(geometry.sizes.size(), 0)};
  // DEQUANTIZE wants it in the scale's shape.
  return View{ZeroPoint(builder, type, values.scale.dims), geometry.scale_strides};
}

std::optional<QuantizationGeometry> Geometry(ProgramBuilder& builder, const Dims& tensor,
                                             const QuantizationValues& values, const Quantization& quantization,
                                             Shapes shapes, const std::string& name) {
  std::string problem;
  const auto zero_point = values.zero_point ? std::optional(values.zero_point->dims) : std::nullopt;
  auto geometry = GeometryOf(tensor, values.scale.dims, zero_point, quantization, &problem);
  if (geometry) return geometry;
  if (shapes == Shapes::kAssumed) return QuantizationGeometry{tensor, Dims(tensor.size(), 0), Dims(tensor.size(), 0)};
  builder.Unsupported("the quantisation of " + name + ": " + problem);
  return std::nullopt;
}

// An operator of a value and a parameter that runs over the value's dimensions.
Value WithParameter(ProgramBuilder& builder, DML_OPERATOR_TYPE type, const char* purpose, const Value& a,
                    const View& parameter) {
  return builder.Emit(OpOf(type, purpose), a.dims, {ProgramBuilder::Whole(a), parameter}, DML_TENSOR_DATA_TYPE_FLOAT32);
}

Operator Saturate(DataType type, const char* purpose) {
  Operator clip = OpOf(DML_OPERATOR_ELEMENT_WISE_CLIP, purpose);
  cpu::IntegerRange(type, &clip.parameters[0], &clip.parameters[1]);
  clip.parameter_count = 2;
  return clip;
}

// The type's least number for NaN, as QUANTIZE_LINEAR makes of it; CLIP may leave it as it is. On a GPU without the type of
// conditions it may.
Value LeastForNan(ProgramBuilder& builder, const Value& a, float least) {
  if (!builder.Supports(DataType::kUint8)) return a;
  const Value nan = builder.Emit(OpOf(DML_OPERATOR_ELEMENT_WISE_IS_NAN, "quantise: find NaN"), a.dims,
                                 {ProgramBuilder::Whole(a)}, DML_TENSOR_DATA_TYPE_UINT8);
  const View number{builder.FloatConstant("least number", {least}, {1}), Dims(a.dims.size(), 0)};
  return builder.Emit(OpOf(DML_OPERATOR_ELEMENT_WISE_IF, "quantise: the least number for NaN"), a.dims,
                      {ProgramBuilder::Whole(nan), number, ProgramBuilder::Whole(a)}, DML_TENSOR_DATA_TYPE_FLOAT32);
}

// saturate(round(a / scale) + zero_point) in float32, which has room for all integers of up to 16 bits; of the geometry's
// dimensions.
Value EmitRounded(ProgramBuilder& builder, const Value& a, const QuantizationValues& values,
                  const QuantizationGeometry& geometry, DataType type) {
  Value result = a;
  result.dims = geometry.sizes;
  result = WithParameter(builder, DML_OPERATOR_ELEMENT_WISE_DIVIDE, "quantise: divide by the scale", result,
                         {values.scale, geometry.scale_strides});
  result = builder.Unary(OpOf(DML_OPERATOR_ELEMENT_WISE_ROUND, "quantise: round half to even"), result);
  if (values.zero_point) {
    result = WithParameter(builder, DML_OPERATOR_ELEMENT_WISE_ADD, "quantise: add the zero point", result,
                           {*values.zero_point, geometry.zero_point_strides});
  }
  Operator clip = Saturate(type, "quantise: saturate");
  const float least = clip.parameters[0];
  return LeastForNan(builder, builder.Unary(std::move(clip), result), least);
}

bool IsByte(DataType type) { return type == DataType::kUint8 || type == DataType::kInt8; }

}  // namespace

bool HasQuantizer(const ProgramBuilder& builder, DataType type) {
  return (IsByte(type) || IsFourBit(type)) && builder.Supports(type);
}

std::optional<QuantizationGeometry> GeometryOf(const Dims& tensor, const Dims& scale,
                                               const std::optional<Dims>& zero_point, const Quantization& quantization,
                                               std::string* problem) {
  const auto rank = static_cast<int64_t>(tensor.size());
  const auto axis = static_cast<size_t>(quantization.axis < 0 ? quantization.axis + rank : quantization.axis);
  QuantizationGeometry geometry{tensor, {}, {}};
  const bool blocked =
      quantization.block_size > 0 && scale.size() == tensor.size() && axis < tensor.size() && Product(scale) != 1;
  // One block over the whole dimension is broadcasting.
  const bool one_block = blocked && scale[axis] == 1 && tensor[axis] <= quantization.block_size;
  if (blocked && !one_block) {
    if (tensor[axis] != scale[axis] * quantization.block_size) {
      *problem = RuleOf(RuleId::kUnevenBlocks).what;
      return std::nullopt;
    }
    geometry.sizes[axis] = scale[axis];
    geometry.sizes.insert(geometry.sizes.begin() + static_cast<int64_t>(axis) + 1, quantization.block_size);
  }
  const int64_t block = geometry.sizes.size() > tensor.size() ? quantization.block_size : 0;
  const auto scale_strides = ParameterStrides(tensor, scale, axis, block, geometry.sizes);
  const auto zero_strides =
      zero_point ? ParameterStrides(tensor, *zero_point, axis, block, geometry.sizes) : std::optional(Dims());
  if (!scale_strides || !zero_strides) {
    *problem = (scale_strides ? "zero point " + ShapeText(*zero_point) : "scale " + ShapeText(scale)) +
               " does not fit shape " + ShapeText(tensor);
    return std::nullopt;
  }
  geometry.scale_strides = *scale_strides;
  geometry.zero_point_strides = *zero_strides;
  return geometry;
}

Value EmitDequantize(ProgramBuilder& builder, const Value& x, const QuantizationValues& values,
                     const Quantization& quantization, Shapes shapes, const std::string& name) {
  Value result = x;
  result.type = DML_TENSOR_DATA_TYPE_FLOAT32;
  if (builder.refused()) return result;
  const auto geometry = Geometry(builder, x.dims, values, quantization, shapes, name);
  if (!geometry) return result;
  const bool wide = x.type == DML_TENSOR_DATA_TYPE_INT32 || x.type == DML_TENSOR_DATA_TYPE_UINT32;
  if (wide && values.zero_point) builder.Check(RuleId::kWideIntegerZeroPoint);
  Value viewed = x;
  viewed.dims = geometry->sizes;
  result = builder.Emit(OpOf(IsFourBit(x.type) ? DML_OPERATOR_DEQUANTIZE : DML_OPERATOR_ELEMENT_WISE_DEQUANTIZE_LINEAR,
                             "dequantise " + name),
                        geometry->sizes,
                        {ProgramBuilder::Whole(viewed), View{values.scale, geometry->scale_strides},
                         ZeroPointView(builder, values, *geometry, FromDirectMl(x.type))},
                        DML_TENSOR_DATA_TYPE_FLOAT32);
  result.dims = x.dims;
  return result;
}

Value EmitQuantize(ProgramBuilder& builder, const Value& a, const QuantizationValues& values,
                   const Quantization& quantization, Shapes shapes, DataType type, const std::string& name) {
  Value result = a;
  if (builder.refused()) return result;
  const auto geometry = Geometry(builder, a.dims, values, quantization, shapes, name);
  if (!geometry) return result;
  if (type == DataType::kUint16 || type == DataType::kInt16) {
    QuantizationValues floats = values;
    if (floats.zero_point) {
      floats.zero_point = builder.Cast(*floats.zero_point, DML_TENSOR_DATA_TYPE_FLOAT32, "quantise: zero point");
    }
    result = builder.Cast(EmitRounded(builder, a, floats, *geometry, type), *ToDirectMl(type),
                          "quantise: to the integer type");
  } else if (IsByte(type) || IsFourBit(type)) {
    Value viewed = a;
    viewed.dims = geometry->sizes;
    result = builder.Emit(
        OpOf(IsByte(type) ? DML_OPERATOR_ELEMENT_WISE_QUANTIZE_LINEAR : DML_OPERATOR_QUANTIZE, "quantise " + name),
        geometry->sizes,
        {ProgramBuilder::Whole(viewed), View{values.scale, geometry->scale_strides},
         ZeroPointView(builder, values, *geometry, type)},
        *ToDirectMl(type));
  } else {
    builder.Unsupported(std::string("quantisation to ") + NameOf(type));
  }
  result.dims = a.dims;
  return result;
}

Value EmitFakeQuantize(ProgramBuilder& builder, const Value& a, const QuantizationValues& values,
                       const Quantization& quantization, Shapes shapes, DataType type) {
  const std::string name = "d";
  if (IsFloat8(type)) builder.Unsupported(std::string("quantisation to ") + NameOf(type));
  if (HasQuantizer(builder, type)) {
    const Value stored = EmitQuantize(builder, a, values, quantization, shapes, type, name);
    return EmitDequantize(builder, stored, values, quantization, shapes, name);
  }
  if (builder.refused()) return a;
  const auto geometry = Geometry(builder, a.dims, values, quantization, shapes, name);
  if (!geometry) return a;
  Value result = EmitRounded(builder, a, values, *geometry, type);
  if (values.zero_point) {
    result = WithParameter(builder, DML_OPERATOR_ELEMENT_WISE_SUBTRACT, "dequantise: subtract the zero point", result,
                           {*values.zero_point, geometry->zero_point_strides});
  }
  result = WithParameter(builder, DML_OPERATOR_ELEMENT_WISE_MULTIPLY, "dequantise: multiply by the scale", result,
                         {values.scale, geometry->scale_strides});
  result.dims = a.dims;
  return result;
}

DynamicValues EmitDynamicQuantize(ProgramBuilder& builder, const Value& a, const std::string& name) {
  const auto scalar = [&](const char* text, float number) { return builder.FloatConstant(text, {number}, {}); };
  const Value zero = scalar("0", 0), one = scalar("1", 1), steps = scalar("255", 255);
  const auto extreme = [&](DML_REDUCE_FUNCTION function, DML_OPERATOR_TYPE with_zero) {
    Operator op = OpOf(DML_OPERATOR_REDUCE, "range of " + name);
    op.reduce_function = function;
    Value found = a;
    if (!a.dims.empty()) {
      found = builder.Emit(std::move(op), a.dims, {ProgramBuilder::Whole(a)}, a.type,
                           std::vector<bool>(a.dims.size(), true));
    }
    found.dims = {};
    return builder.Binary(with_zero, "range with 0", found, zero, {});
  };
  const Value least = extreme(DML_REDUCE_FUNCTION_MIN, DML_OPERATOR_ELEMENT_WISE_MIN);
  const Value most = extreme(DML_REDUCE_FUNCTION_MAX, DML_OPERATOR_ELEMENT_WISE_MAX);
  const Value range = builder.Binary(DML_OPERATOR_ELEMENT_WISE_SUBTRACT, "range", most, least, {});
  const auto whole = [](const Value& value) { return ProgramBuilder::Whole(value); };
  const Value is_zero = builder.Emit(OpOf(DML_OPERATOR_ELEMENT_WISE_LOGICAL_EQUALS, "all are 0"), {},
                                     {whole(range), whole(zero)}, DML_TENSOR_DATA_TYPE_UINT8);
  const Value quotient = builder.Binary(DML_OPERATOR_ELEMENT_WISE_DIVIDE, "scale", range, steps, {});
  const Value scale = builder.Emit(OpOf(DML_OPERATOR_ELEMENT_WISE_IF, "scale"), {},
                                   {whole(is_zero), whole(one), whole(quotient)}, a.type);
  Value zero_point = builder.Binary(DML_OPERATOR_ELEMENT_WISE_DIVIDE, "zero point", least, scale, {});
  for (const Operator& op : {OpOf(DML_OPERATOR_ELEMENT_WISE_IDENTITY, "zero point: negate", DML_SCALE_BIAS{-1, 0}),
                             OpOf(DML_OPERATOR_ELEMENT_WISE_ROUND, "zero point: round half to even"),
                             Saturate(DataType::kUint8, "zero point: saturate")}) {
    zero_point = builder.Unary(op, zero_point);
  }
  zero_point = builder.Cast(zero_point, DML_TENSOR_DATA_TYPE_UINT8, "zero point to uint8");
  const Value y = EmitQuantize(builder, a, {scale, zero_point}, {}, Shapes::kKnown, DataType::kUint8, name);
  return {y, scale, zero_point};
}

std::vector<float> FloatsOf(const ConstantTensor& tensor) {
  std::vector<float> values(static_cast<size_t>(tensor.ElementCount()));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(cpu::ReadElement(tensor.type, tensor.data, static_cast<int64_t>(i)));
  }
  return values;
}

std::optional<std::vector<float>> DequantizeConstant(const ConstantTensor& tensor, const Quantization& quantization,
                                                     std::string* problem) {
  if (!quantization.present()) return FloatsOf(tensor);
  const int64_t count = tensor.ElementCount();
  std::vector<float> values(static_cast<size_t>(count));
  const ConstantTensor& scale = *quantization.scale.constant;
  const ConstantTensor* zero_point = quantization.zero_point.constant.get();
  const auto geometry = GeometryOf(tensor.dims, scale.dims, zero_point ? std::optional(zero_point->dims) : std::nullopt,
                                   quantization, problem);
  if (!geometry) return std::nullopt;
  Dims index(geometry->sizes.size(), 0);
  for (int64_t i = 0; i < count; ++i) {
    int64_t scale_at = 0, zero_at = 0;
    for (size_t d = 0; d < index.size(); ++d) {
      scale_at += index[d] * geometry->scale_strides[d];
      if (zero_point != nullptr) zero_at += index[d] * geometry->zero_point_strides[d];
    }
    const double offset = zero_point ? cpu::ReadElement(zero_point->type, zero_point->data, zero_at) : 0;
    values[i] = static_cast<float>((cpu::ReadElement(tensor.type, tensor.data, i) - offset) *
                                   cpu::ReadElement(scale.type, scale.data, scale_at));
    for (size_t d = index.size(); d-- > 0;) {
      if (++index[d] < geometry->sizes[d]) break;
      index[d] = 0;
    }
  }
  return values;
}

}  // namespace normfuse::directml
