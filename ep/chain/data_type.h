// What is asked about element types (spec/element_types.toml). Attributes of nodes have the numbers of ONNX's
// TensorProto.DataType, which pass through FromTensorProto.
#pragma once

#include <cstddef>
#include <cstdint>

#include "spec/element_types.h"

namespace normfuse {

constexpr const ElementTypeSpec& SpecOf(DataType type) {
  const auto number = static_cast<uint32_t>(type);
  return kElementTypes[number < kTypeSlots ? number : kTypeSlots];
}

constexpr const char* NameOf(DataType type) { return SpecOf(type).name; }  // "float32", "int8" ...

// kUndefined: a type that the table does not have.
constexpr DataType FromTensorProto(int64_t number) {
  for (int type = 0; type < kTypeSlots; ++type) {
    if (kElementTypes[type].tensor_proto == number) return static_cast<DataType>(type);
  }
  return DataType::kUndefined;
}

// Bits of one element; 0 for types that no operator of ours takes. 4- and 2-bit types are packed, first element lowest.
constexpr int BitsOf(DataType type) { return SpecOf(type).bits; }

constexpr size_t BytesFor(DataType type, size_t elements) {
  return (elements * static_cast<size_t>(BitsOf(type)) + 7) / 8;
}

// The types in which tensors that are not quantised come: d, scale, bias, residual, Y.
constexpr bool IsFloat(DataType type) { return SpecOf(type).kind == TypeKind::kFloat; }

constexpr bool IsFloat8(DataType type) { return SpecOf(type).kind == TypeKind::kFloat8; }

// What DequantizeLinear may read.
constexpr bool IsQuantized(DataType type) { return SpecOf(type).kind == TypeKind::kInteger || IsFloat8(type); }

}  // namespace normfuse
