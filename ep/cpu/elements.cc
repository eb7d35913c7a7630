#include "cpu/elements.h"

#include <algorithm>
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
    case DataType::kFloat8E4M3FN:
      return {3, 7, false, false};
    case DataType::kFloat8E4M3FNUZ:
      return {3, 8, false, true};
    case DataType::kFloat8E5M2:
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
      const auto type = static_cast<DataType>(static_cast<int>(DataType::kFloat8E4M3FN) + t);
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
  return tables.values[static_cast<int>(type) - static_cast<int>(DataType::kFloat8E4M3FN)];
}

// Two's complement value of the lowest `bits` bits, or the unsigned one.
int Unpack(unsigned raw, int bits, bool is_signed) {
  const int value = static_cast<int>(raw & ((1u << bits) - 1u));
  return is_signed && value >= (1 << (bits - 1)) ? value - (1 << bits) : value;
}

bool IsSignedPacked(DataType type) { return type == DataType::kInt4 || type == DataType::kInt2; }

int ReadPacked(DataType type, const void* data, int64_t index) {
  const int bits = BitsOf(type);
  const int per_byte = 8 / bits;
  const uint8_t byte = static_cast<const uint8_t*>(data)[index / per_byte];
  return Unpack(static_cast<unsigned>(byte) >> (bits * (index % per_byte)), bits, IsSignedPacked(type));
}

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

uint16_t FloatToHalf(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = bits >> 16 & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u | (magnitude >> 13 & 0x3ffu));
  if (magnitude >= 0x47800000u) return static_cast<uint16_t>(sign | 0x7c00u);  // 65536 and above
  if (magnitude < 0x38800000u) {  // below 2^-14: adding 0.5 leaves the rounded multiple of 2^-24 in the low bits
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000u));
  }
  const uint32_t rounded = magnitude + 0xfffu + (magnitude >> 13 & 1u);
  return static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}

uint16_t FloatToBfloat16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>(bits >> 16 | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

float Float8ToFloat(DataType type, uint8_t bits) { return TableOf(type)[bits]; }

uint8_t FloatToFloat8(DataType type, float value, bool saturate) {
  const Float8Format format = FormatOf(type);
  const auto sign = static_cast<uint8_t>(std::signbit(value) ? 0x80 : 0);
  const uint8_t largest = LargestCode(format);
  const uint8_t nan = format.fnuz ? 0x80 : static_cast<uint8_t>(sign | 0x7f);
  if (std::isnan(value)) return nan;
  const float magnitude = std::fabs(value);
  const int lowest_place = 1 - format.bias - format.mantissa_bits;
  int code = largest + 1;
  if (std::isfinite(magnitude)) {
    // Round to a multiple of the last place at this magnitude, then count codes from zero.
    int exponent = 0;
    std::frexp(magnitude, &exponent);
    const int place = std::max(exponent - 1 - format.mantissa_bits, lowest_place);
    const auto units = static_cast<int>(std::min(std::nearbyint(std::ldexp(magnitude, -place)), 1024.0f));
    code = units == 0 ? 0 : ((place - lowest_place) << format.mantissa_bits) + units;
  }
  if (code > largest) {
    if (saturate) return static_cast<uint8_t>(sign | largest);
    return format.has_infinity ? static_cast<uint8_t>(sign | 0x7c) : nan;
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
      return ReadPacked(type, data, index);
  }
}

void LoadRare(DataType type, const void* data, int64_t index, size_t n, float* out) {
  if (IsFloat8(type)) {
    const float* table = TableOf(type);
    const uint8_t* codes = static_cast<const uint8_t*>(data) + index;
    for (size_t i = 0; i < n; ++i) out[i] = table[codes[i]];
    return;
  }
  for (size_t i = 0; i < n; ++i) out[i] = static_cast<float>(ReadPacked(type, data, index + static_cast<int64_t>(i)));
}

void StoreRare(DataType type, bool saturate, void* data, int64_t index, size_t n, const float* in) {
  if (IsFloat8(type)) {
    uint8_t* codes = static_cast<uint8_t*>(data) + index;
    for (size_t i = 0; i < n; ++i) codes[i] = FloatToFloat8(type, in[i], saturate);
    return;
  }
  const int bits = BitsOf(type);
  const int per_byte = 8 / bits;
  const unsigned mask = (1u << bits) - 1u;
  auto* bytes = static_cast<uint8_t*>(data);
  for (size_t i = 0; i < n; ++i) {
    const int64_t at = index + static_cast<int64_t>(i);
    const int shift = bits * static_cast<int>(at % per_byte);
    uint8_t& byte = bytes[at / per_byte];
    const unsigned value = static_cast<unsigned>(static_cast<int>(in[i])) & mask;
    byte = static_cast<uint8_t>((byte & ~(mask << shift)) | value << shift);
  }
}

void IntegerRange(DataType type, float* low, float* high) {
  const int bits = BitsOf(type);
  const bool is_signed = type == DataType::kInt8 || type == DataType::kInt16 || IsSignedPacked(type);
  *low = is_signed ? -static_cast<float>(1 << (bits - 1)) : 0.0f;
  *high = static_cast<float>((1 << (is_signed ? bits - 1 : bits)) - 1);
}

}  // namespace normfuse::cpu
