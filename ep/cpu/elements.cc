#include "cpu/elements.h"

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

// Two's complement value of the lowest `bits` bits, or the unsigned one.
int Unpack(unsigned raw, int bits, bool is_signed) {
  const int value = static_cast<int>(raw & ((1u << bits) - 1u));
  return is_signed && value >= (1 << (bits - 1)) ? value - (1 << bits) : value;
}

bool IsSignedPacked(DataType type) { return type == DataType::kInt4 || type == DataType::kInt2; }

template <int kBits>
int ReadPacked(bool is_signed, const void* data, int64_t index) {
  constexpr int kPerByte = 8 / kBits;
  const uint8_t byte = static_cast<const uint8_t*>(data)[index / kPerByte];
  return Unpack(static_cast<unsigned>(byte) >> (kBits * (index % kPerByte)), kBits, is_signed);
}

template <int kBits>
void LoadPacked(bool is_signed, const void* data, int64_t index, size_t n, float* out) {
  for (size_t i = 0; i < n; ++i) {
    out[i] = static_cast<float>(ReadPacked<kBits>(is_signed, data, index + static_cast<int64_t>(i)));
  }
}

template <int kBits>
void StorePacked(void* data, int64_t index, size_t n, const float* in) {
  constexpr int kPerByte = 8 / kBits;
  constexpr unsigned kMask = (1u << kBits) - 1u;
  auto* bytes = static_cast<uint8_t*>(data);
  for (size_t i = 0; i < n; ++i) {
    const int64_t at = index + static_cast<int64_t>(i);
    const int shift = kBits * static_cast<int>(at % kPerByte);
    uint8_t& byte = bytes[at / kPerByte];
    const unsigned value = static_cast<unsigned>(static_cast<int>(in[i])) & kMask;
    byte = static_cast<uint8_t>((byte & ~(kMask << shift)) | value << shift);
  }
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
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t magnitude = bits & 0x7fffffffu;
  const uint32_t sign = bits >> 24 & 0x80u;
  const uint32_t largest = LargestCode(format);
  const uint32_t nan = format.fnuz ? 0x80u : sign | 0x7fu;
  if (magnitude > 0x7f800000u) return static_cast<uint8_t>(nan);
  // As in FloatToHalf: below the normal range an addition rounds, above it the bits themselves do.
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
      if (BitsOf(type) == 4) return ReadPacked<4>(IsSignedPacked(type), data, index);
      return ReadPacked<2>(IsSignedPacked(type), data, index);
  }
}

void LoadRare(DataType type, const void* data, int64_t index, size_t n, float* out) {
  if (IsFloat8(type)) {
    const float* table = TableOf(type);
    const uint8_t* codes = static_cast<const uint8_t*>(data) + index;
    for (size_t i = 0; i < n; ++i) out[i] = table[codes[i]];
    return;
  }
  if (BitsOf(type) == 4) {
    LoadPacked<4>(IsSignedPacked(type), data, index, n, out);
  } else {
    LoadPacked<2>(IsSignedPacked(type), data, index, n, out);
  }
}

void StoreRare(DataType type, bool saturate, void* data, int64_t index, size_t n, const float* in) {
  if (IsFloat8(type)) {
    uint8_t* codes = static_cast<uint8_t*>(data) + index;
    for (size_t i = 0; i < n; ++i) codes[i] = FloatToFloat8(type, in[i], saturate);
    return;
  }
  if (BitsOf(type) == 4) {
    StorePacked<4>(data, index, n, in);
  } else {
    StorePacked<2>(data, index, n, in);
  }
}

void IntegerRange(DataType type, float* low, float* high) {
  const int bits = BitsOf(type);
  const bool is_signed = type == DataType::kInt8 || type == DataType::kInt16 || IsSignedPacked(type);
  *low = is_signed ? -std::ldexp(1.0f, bits - 1) : 0.0f;
  *high = std::ldexp(1.0f, is_signed ? bits - 1 : bits) - 1.0f;
}

}  // namespace normfuse::cpu
