#include "cpu/run/elements.h"

#include <bit>
#include <cmath>
#include <limits>

namespace normfuse::cpu {
namespace {

// Layout of a float8 type. fnuz types have no infinity and no negative zero: 0x80 is their only NaN.
struct Float8Format {
  int mantissa_bits;
  int bias;
  bool has_infinity;
  bool fnuz;
};

constexpr Float8Format FormatOf(DataType type) {
  switch (type) {
    case DataType::kFloat8e4m3fn:
      return {3, 7, false, false};
    case DataType::kFloat8e4m3fnuz:
      return {3, 8, false, true};
    case DataType::kFloat8e5m2:
      return {2, 15, true, false};
    default:
      return {2, 16, false, true};
  }
}

// The largest finite code without its sign.
constexpr uint8_t LargestCode(const Float8Format& format) {
  if (format.fnuz) return 0x7f;
  return format.has_infinity ? 0x7b : 0x7e;
}

float DecodeMagnitude(const Float8Format& format, uint8_t magnitude) {
  const int exponent = magnitude >> format.mantissa_bits;
  const int mantissa = magnitude & ((1 << format.mantissa_bits) - 1);
  if (exponent == 0) return std::ldexp(static_cast<float>(mantissa), 1 - format.bias - format.mantissa_bits);
  return std::ldexp(static_cast<float>(mantissa | (1 << format.mantissa_bits)),
                    exponent - format.bias - format.mantissa_bits);
}

constexpr int kTable = 256;

struct Float8Tables {
  float values[4][kTable];

  Float8Tables() {
    for (int t = 0; t < 4; ++t) {
      const auto type = static_cast<DataType>(static_cast<int>(DataType::kFloat8e4m3fn) + t);
      for (int code = 0; code < kTable; ++code) values[t][code] = Decode(type, static_cast<uint8_t>(code));
    }
  }

  static float Decode(DataType type, uint8_t code) {
    const Float8Format format = FormatOf(type);
    const float nan = std::numeric_limits<float>::quiet_NaN();
    const uint8_t magnitude = code & 0x7f;
    const float sign = (code & 0x80) != 0 ? -1.0f : 1.0f;
    if (format.fnuz) return code == 0x80 ? nan : sign * DecodeMagnitude(format, magnitude);
    if (magnitude <= LargestCode(format)) return sign * DecodeMagnitude(format, magnitude);
    if (format.has_infinity && magnitude == 0x7c) return sign * std::numeric_limits<float>::infinity();
    return nan;
  }
};

const float* TableOf(DataType type) {
  static const Float8Tables tables;
  return tables.values[static_cast<int>(type) - static_cast<int>(DataType::kFloat8e4m3fn)];
}

// Of an integer type of at most 16 bits.
bool IsSigned(DataType type) {
  return type == DataType::kInt2 || type == DataType::kInt4 || type == DataType::kInt8 || type == DataType::kInt16;
}

// 4- and 2-bit integers, packed from the lowest bits of a byte on.
class Packed {
 public:
  explicit Packed(DataType type)
      : bits_(BitsOf(type)), mask_((1 << bits_) - 1), sign_(IsSigned(type) ? 1 << (bits_ - 1) : 0) {}

  int Read(const void* data, int64_t index) const {
    const int code = static_cast<const uint8_t*>(data)[ByteOf(index)] >> ShiftOf(index) & mask_;
    return (code ^ sign_) - sign_;
  }
  void Write(void* data, int64_t index, int value) const {
    uint8_t& byte = static_cast<uint8_t*>(data)[ByteOf(index)];
    byte = static_cast<uint8_t>((byte & ~(mask_ << ShiftOf(index))) | (value & mask_) << ShiftOf(index));
  }

 private:
  int64_t ByteOf(int64_t index) const { return index * bits_ >> 3; }
  int ShiftOf(int64_t index) const { return static_cast<int>(index * bits_ & 7); }

  int bits_;
  int mask_;
  int sign_;  // the highest bit; 0 for unsigned types
};

template <class T>
double At(const void* data, int64_t index) {
  return static_cast<double>(static_cast<const T*>(data)[index]);
}

}  // namespace

float HalfToFloat(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t magnitude = bits & 0x7fffu;
  if (magnitude >= 0x7c00u) return std::bit_cast<float>(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
  if (magnitude < 0x400u) {  // subnormal: mantissa * 2^-24
    const float value = static_cast<float>(magnitude) * 0x1p-24f;
    return sign != 0 ? -value : value;
  }
  return std::bit_cast<float>(sign | ((magnitude << 13) + 0x38000000u));
}

float Bfloat16ToFloat(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

float Float8ToFloat(DataType type, uint8_t bits) { return TableOf(type)[bits]; }

uint8_t FloatToFloat8(DataType type, float value, bool saturate) {
  const Float8Format format = FormatOf(type);
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t magnitude = bits & 0x7fffffffu;
  const uint32_t sign = bits >> 24 & 0x80u;
  const uint32_t largest = LargestCode(format);
  const uint32_t nan = format.fnuz ? 0x80u : sign | 0x7fu;
  if (magnitude > 0x7f800000u) return static_cast<uint8_t>(nan);
  // Below the normal range an addition leaves the rounded multiple of the smallest number in the low bits, above it the bits
  // themselves are rounded.
  const int dropped = 23 - format.mantissa_bits;
  const int smallest_exponent = 1 - format.bias + 127;
  uint32_t code = 0;
  if (magnitude < static_cast<uint32_t>(smallest_exponent) << 23) {
    const uint32_t shift = static_cast<uint32_t>(smallest_exponent + dropped) << 23;
    code = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + std::bit_cast<float>(shift)) - shift;
  } else {
    const uint32_t rounded = magnitude + ((1u << (dropped - 1)) - 1) + (magnitude >> dropped & 1u);
    code = (rounded >> dropped) - (static_cast<uint32_t>(smallest_exponent - 1) << format.mantissa_bits);
  }
  if (code > largest) {
    if (saturate) return static_cast<uint8_t>(sign | largest);
    return static_cast<uint8_t>(format.has_infinity ? sign | 0x7cu : nan);
  }
  if (code == 0 && format.fnuz) return 0;
  return static_cast<uint8_t>(sign | code);
}

double ReadElement(DataType type, const void* data, int64_t index) {
  switch (type) {
    case DataType::kFloat32:
      return At<float>(data, index);
    case DataType::kFloat16:
      return HalfToFloat(static_cast<const uint16_t*>(data)[index]);
    case DataType::kBfloat16:
      return Bfloat16ToFloat(static_cast<const uint16_t*>(data)[index]);
    case DataType::kInt8:
      return At<int8_t>(data, index);
    case DataType::kUint8:
      return At<uint8_t>(data, index);
    case DataType::kInt16:
      return At<int16_t>(data, index);
    case DataType::kUint16:
      return At<uint16_t>(data, index);
    case DataType::kInt32:
      return At<int32_t>(data, index);
    case DataType::kUint32:
      return At<uint32_t>(data, index);
    default:
      if (IsFloat8(type)) return Float8ToFloat(type, static_cast<const uint8_t*>(data)[index]);
      return Packed(type).Read(data, index);
  }
}

void LoadRare(DataType type, const void* data, int64_t index, size_t n, float* out) {
  if (IsFloat8(type)) {
    const float* table = TableOf(type);
    const uint8_t* codes = static_cast<const uint8_t*>(data) + index;
    for (size_t i = 0; i < n; ++i) out[i] = table[codes[i]];
    return;
  }
  const Packed packed(type);
  for (size_t i = 0; i < n; ++i) out[i] = static_cast<float>(packed.Read(data, index + static_cast<int64_t>(i)));
}

void StoreRare(DataType type, bool saturate, void* data, int64_t index, size_t n, const float* in) {
  if (IsFloat8(type)) {
    uint8_t* codes = static_cast<uint8_t*>(data) + index;
    for (size_t i = 0; i < n; ++i) codes[i] = FloatToFloat8(type, in[i], saturate);
    return;
  }
  const Packed packed(type);
  for (size_t i = 0; i < n; ++i) packed.Write(data, index + static_cast<int64_t>(i), static_cast<int>(in[i]));
}

float LargestNumber(DataType type) {
  if (type == DataType::kFloat16) return 65504.0f;
  if (type == DataType::kBfloat16) return 0x1.fep127f;
  return std::numeric_limits<float>::max();
}

void IntegerRange(DataType type, float* low, float* high) {
  const int bits = BitsOf(type);
  const bool is_signed = IsSigned(type);
  *low = is_signed ? -static_cast<float>(int64_t{1} << (bits - 1)) : 0.0f;
  *high = static_cast<float>(int64_t{1} << (is_signed ? bits - 1 : bits)) - 1.0f;
}

}  // namespace normfuse::cpu
