// Element types, numbered as ORT's ONNXTensorElementDataType. ONNX's TensorProto.DataType agrees but for the 2-bit
// types; attributes of our operators hold TensorProto numbers and pass through FromTensorProto.
#pragma once

#include <cstddef>
#include <cstdint>

namespace normfuse {

enum class DataType : int32_t {
  kUndefined = 0,
  kFloat32 = 1,
  kUint8 = 2,
  kInt8 = 3,
  kUint16 = 4,
  kInt16 = 5,
  kInt32 = 6,
  kInt64 = 7,
  kString = 8,
  kBool = 9,
  kFloat16 = 10,
  kFloat64 = 11,
  kUint32 = 12,
  kUint64 = 13,
  kBfloat16 = 16,
  kFloat8E4M3FN = 17,
  kFloat8E4M3FNUZ = 18,
  kFloat8E5M2 = 19,
  kFloat8E5M2FNUZ = 20,
  kUint4 = 21,
  kInt4 = 22,
  kUint2 = 24,
  kInt2 = 25,
};

constexpr DataType FromTensorProto(int64_t number) {
  switch (number) {
    case 24:  // FLOAT8E8M0, which no operator of ours takes
      return DataType::kUndefined;
    case 25:
      return DataType::kUint2;
    case 26:
      return DataType::kInt2;
    default:
      return static_cast<DataType>(number);
  }
}

// Bits of one element; 0 for types that no operator of ours takes. 4- and 2-bit types are packed, first element lowest.
constexpr int BitsOf(DataType type) {
  switch (type) {
    case DataType::kFloat32:
    case DataType::kInt32:
    case DataType::kUint32:
      return 32;
    case DataType::kFloat16:
    case DataType::kBfloat16:
    case DataType::kInt16:
    case DataType::kUint16:
      return 16;
    case DataType::kInt64:
    case DataType::kUint64:
    case DataType::kFloat64:
      return 64;
    case DataType::kInt8:
    case DataType::kUint8:
    case DataType::kBool:
    case DataType::kFloat8E4M3FN:
    case DataType::kFloat8E4M3FNUZ:
    case DataType::kFloat8E5M2:
    case DataType::kFloat8E5M2FNUZ:
      return 8;
    case DataType::kUint4:
    case DataType::kInt4:
      return 4;
    case DataType::kUint2:
    case DataType::kInt2:
      return 2;
    default:
      return 0;
  }
}

constexpr size_t BytesFor(DataType type, size_t elements) {
  return (elements * static_cast<size_t>(BitsOf(type)) + 7) / 8;
}

// The types in which tensors that are not quantised come: d, scale, bias, residual, Y.
constexpr bool IsFloat(DataType type) {
  return type == DataType::kFloat32 || type == DataType::kFloat16 || type == DataType::kBfloat16;
}

constexpr bool IsFloat8(DataType type) { return type >= DataType::kFloat8E4M3FN && type <= DataType::kFloat8E5M2FNUZ; }

// What DequantizeLinear may read.
constexpr bool IsQuantized(DataType type) {
  switch (type) {
    case DataType::kInt8:
    case DataType::kUint8:
    case DataType::kInt16:
    case DataType::kUint16:
    case DataType::kInt32:
    case DataType::kUint32:
    case DataType::kInt4:
    case DataType::kUint4:
    case DataType::kInt2:
    case DataType::kUint2:
      return true;
    default:
      return IsFloat8(type);
  }
}

const char* NameOf(DataType type);  // "float32", "int8" ...

}  // namespace normfuse
