// The scalar conversions of ep/cpu/run/elements.h: every code of every 8- and 16-bit float type both ways, ties, overflow and
// NaN, and the packed integers at every offset.
#include "cpu/run/elements.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <vector>

#include "check.h"
#include "scalar_conversions.h"

namespace normfuse::test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// What the float8 types are, from their definition: value = significand * 2^exponent.
struct Float8 {
  DataType type;
  int significand_bits;
  int bias;
  int infinity;   // code, -1 for none
  int first_nan;  // codes from here to 0x7f are NaN; 0x80 for the types whose only NaN is 0x80
};
constexpr Float8 kFloat8[] = {
    {DataType::kFloat8e4m3fn, 3, 7, -1, 0x7F},
    {DataType::kFloat8e4m3fnuz, 3, 8, -1, 0x80},
    {DataType::kFloat8e5m2, 2, 15, 0x7C, 0x7D},
    {DataType::kFloat8e5m2fnuz, 2, 16, -1, 0x80},
};

// Value of a code below 0x80.
double Magnitude(const Float8& format, int code) {
  if (code == format.infinity) return std::numeric_limits<double>::infinity();
  if (code >= format.first_nan) return std::numeric_limits<double>::quiet_NaN();
  const int exponent = code >> format.significand_bits;
  const double significand = code & ((1 << format.significand_bits) - 1);
  const double one = 1 << format.significand_bits;
  return exponent == 0 ? std::ldexp(significand / one, 1 - format.bias)
                       : std::ldexp(1 + significand / one, exponent - format.bias);
}

int Largest(const Float8& format) { return format.infinity >= 0 ? format.infinity - 1 : format.first_nan - 1; }

// The code nearest to value by looking at all of them, the even one of two as near.
int Nearest(const Float8& format, float value, bool saturate) {
  const bool only_nan = format.first_nan == 0x80;
  const int sign = std::signbit(value) ? 0x80 : 0;
  const int nan = only_nan ? 0x80 : sign | 0x7F;
  if (std::isnan(value)) return nan;
  const double magnitude = std::fabs(static_cast<double>(value));
  const int largest = Largest(format);
  // Beyond the largest value the next code would follow at the same distance.
  const double step = Magnitude(format, largest) - Magnitude(format, largest - 1);
  const double limit = Magnitude(format, largest) + step / 2;
  // On the tie, the larger neighbour wins only if its code is even.
  if (magnitude > limit || (magnitude == limit && largest % 2 == 1)) {
    if (saturate) return sign | largest;
    return format.infinity >= 0 ? sign | format.infinity : nan;
  }
  int best = 0;
  for (int code = 1; code <= largest; ++code) {
    const double was = std::fabs(Magnitude(format, best) - magnitude);
    const double is = std::fabs(Magnitude(format, code) - magnitude);
    if (is < was || (is == was && code % 2 == 0)) best = code;
  }
  return best == 0 && only_nan ? 0 : sign | best;
}

void CheckNarrow(const Float8& format, float value) {
  for (bool saturate : {false, true}) {
    const int got = cpu::FloatToFloat8(format.type, value, saturate);
    const int wanted = Nearest(format, value, saturate);
    CHECK(got == wanted, "%s: %.9g with saturate %d gives 0x%02x instead of 0x%02x", NameOf(format.type),
          static_cast<double>(value), saturate, got, wanted);
  }
}

void TestFloat8(const Float8& format) {
  for (int code = 0; code < 256; ++code) {
    const float got = cpu::Float8ToFloat(format.type, static_cast<uint8_t>(code));
    double wanted = Magnitude(format, code & 0x7F) * ((code & 0x80) != 0 ? -1 : 1);
    if (code == 0x80 && format.first_nan == 0x80) wanted = std::nan("");
    const bool same = std::isnan(wanted) ? std::isnan(got) : static_cast<double>(got) == wanted;
    CHECK(same, "%s 0x%02x gives %.9g instead of %.9g", NameOf(format.type), code, static_cast<double>(got), wanted);
    if (code >= Largest(format)) continue;
    // Each value, the middle to the next one, and what lies on either side.
    const float middle = static_cast<float>((Magnitude(format, code) + Magnitude(format, code + 1)) / 2);
    for (float value : {got, middle}) {
      for (float near : {value, std::nextafter(value, kInf), std::nextafter(value, -kInf)}) {
        CheckNarrow(format, near);
        CheckNarrow(format, -near);
      }
    }
  }
  const float largest = static_cast<float>(Magnitude(format, Largest(format)));
  const float step = largest - static_cast<float>(Magnitude(format, Largest(format) - 1));
  for (float value : {largest, largest + step / 2, std::nextafter(largest + step / 2, kInf),
                      std::nextafter(largest + step / 2, 0.0f), largest + step, 1e30f, kInf, kNan, 1e-40f}) {
    CheckNarrow(format, value);
    CheckNarrow(format, -value);
  }
}

void TestSixteenBits() {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const uint16_t code = static_cast<uint16_t>(bits);
    const double half = HalfValue(code), bfloat16 = Bfloat16Value(code);
    const float got_half = cpu::HalfToFloat(code), got_bfloat16 = cpu::Bfloat16ToFloat(code);
    CHECK(std::isnan(half) ? std::isnan(got_half) : static_cast<double>(got_half) == half, "float16 0x%04x", bits);
    CHECK(std::isnan(bfloat16) ? std::isnan(got_bfloat16) : static_cast<double>(got_bfloat16) == bfloat16,
          "bfloat16 0x%04x", bits);
  }
}

// Reads and writes of every length at every offset: the right elements, and their neighbours untouched.
void TestPacked(DataType type, int bits, bool is_signed) {
  constexpr int kElements = 24;
  const int per_byte = 8 / bits, count = 1 << bits;
  const int low = is_signed ? -count / 2 : 0;
  const auto value_of = [&](int i) { return low + i * 7 % count; };
  std::vector<uint8_t> bytes(static_cast<size_t>(kElements / per_byte));
  for (int i = 0; i < kElements; ++i) {
    const int raw = value_of(i) & (count - 1);
    bytes[static_cast<size_t>(i / per_byte)] |= static_cast<uint8_t>(raw << (bits * (i % per_byte)));
  }
  for (int offset = 0; offset < 9; ++offset) {
    for (int n = 0; n <= kElements - 9; ++n) {
      std::vector<float> values(static_cast<size_t>(n) + 1, 99.0f);
      cpu::LoadRare(type, bytes.data(), offset, static_cast<size_t>(n), values.data());
      for (int i = 0; i < n; ++i) {
        CHECK(values[static_cast<size_t>(i)] == static_cast<float>(value_of(offset + i)), "%s element %d from %d",
              NameOf(type), i, offset);
        CHECK(cpu::ReadElement(type, bytes.data(), offset + i) == value_of(offset + i), "%s element %d", NameOf(type),
              offset + i);
      }
      CHECK(values[static_cast<size_t>(n)] == 99.0f, "%s: %d elements read, more written", NameOf(type), n);
      // All bits turned over outside, the same elements inside.
      std::vector<uint8_t> out = bytes;
      for (uint8_t& byte : out) byte = static_cast<uint8_t>(~byte);
      cpu::StoreRare(type, true, out.data(), offset, static_cast<size_t>(n), values.data());
      for (int i = 0; i < kElements; ++i) {
        const int inverted = ~value_of(i) & (count - 1);
        const int outside = is_signed && inverted >= count / 2 ? inverted - count : inverted;
        const int wanted = i >= offset && i < offset + n ? value_of(i) : outside;
        CHECK(cpu::ReadElement(type, out.data(), i) == wanted, "%s: %d elements stored at %d changed element %d",
              NameOf(type), n, offset, i);
      }
    }
  }
  float smallest = 0, largest = 0;
  cpu::IntegerRange(type, &smallest, &largest);
  CHECK(smallest == static_cast<float>(low) && largest == static_cast<float>(low + count - 1), "range of %s",
        NameOf(type));
}

}  // namespace
}  // namespace normfuse::test

int main() {
  using namespace normfuse::test;
  for (const Float8& format : kFloat8) TestFloat8(format);
  TestSixteenBits();
  TestPacked(normfuse::DataType::kUint4, 4, false);
  TestPacked(normfuse::DataType::kInt4, 4, true);
  TestPacked(normfuse::DataType::kUint2, 2, false);
  TestPacked(normfuse::DataType::kInt2, 2, true);
  return ExitCode();
}
