// The scalar conversions of ep/cpu/run/elements.h: every code of every 8- and 16-bit float type both ways, ties, overflow and
// NaN, and the packed integers at every offset.
#include "cpu/run/elements.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <vector>

#include "chain_harness.h"
#include "check.h"
#include "scalar_conversions.h"

namespace normfuse::test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

constexpr DataType kFloat8[] = {DataType::kFloat8e4m3fn, DataType::kFloat8e4m3fnuz, DataType::kFloat8e5m2,
                                DataType::kFloat8e5m2fnuz};

double ValueOf(DataType type, int code) { return DecodeElement(type, static_cast<uint32_t>(code)); }

// The code of the largest value.
int Largest(DataType type) {
  int code = 0x7F;
  while (!std::isfinite(ValueOf(type, code))) --code;
  return code;
}

// The code nearest to value by looking at all of them, the even one of two as near.
int Nearest(DataType type, float value, bool saturate) {
  const bool only_nan = std::isnan(ValueOf(type, 0x80));
  const int sign = std::signbit(value) ? 0x80 : 0;
  const int nan = only_nan ? 0x80 : sign | 0x7F;
  if (std::isnan(value)) return nan;
  const double magnitude = std::fabs(static_cast<double>(value));
  const int largest = Largest(type);
  // Beyond the largest value the next code would follow at the same distance.
  const double step = ValueOf(type, largest) - ValueOf(type, largest - 1);
  const double limit = ValueOf(type, largest) + step / 2;
  // On the tie, the larger neighbour wins only if its code is even.
  if (magnitude > limit || (magnitude == limit && largest % 2 == 1)) {
    if (saturate) return sign | largest;
    return std::isinf(ValueOf(type, largest + 1)) ? sign | (largest + 1) : nan;
  }
  int best = 0;
  for (int code = 1; code <= largest; ++code) {
    const double was = std::fabs(ValueOf(type, best) - magnitude);
    const double is = std::fabs(ValueOf(type, code) - magnitude);
    if (is < was || (is == was && code % 2 == 0)) best = code;
  }
  return best == 0 && only_nan ? 0 : sign | best;
}

void CheckNarrow(DataType type, float value) {
  for (bool saturate : {false, true}) {
    const int got = cpu::FloatToFloat8(type, value, saturate);
    const int wanted = Nearest(type, value, saturate);
    CHECK(got == wanted, "%s: %.9g with saturate %d gives 0x%02x instead of 0x%02x", NameOf(type),
          static_cast<double>(value), saturate, got, wanted);
  }
}

void TestFloat8(DataType type) {
  for (int code = 0; code < 256; ++code) {
    const float got = cpu::Float8ToFloat(type, static_cast<uint8_t>(code));
    const double wanted = ValueOf(type, code);
    const bool same = std::isnan(wanted) ? std::isnan(got) : static_cast<double>(got) == wanted;
    CHECK(same, "%s 0x%02x gives %.9g instead of %.9g", NameOf(type), code, static_cast<double>(got), wanted);
    if (code >= Largest(type)) continue;
    // Each value, the middle to the next one, and what lies on either side.
    const float middle = static_cast<float>((ValueOf(type, code) + ValueOf(type, code + 1)) / 2);
    for (float value : {got, middle}) {
      for (float near : {value, std::nextafter(value, kInf), std::nextafter(value, -kInf)}) {
        CheckNarrow(type, near);
        CheckNarrow(type, -near);
      }
    }
  }
  const float largest = static_cast<float>(ValueOf(type, Largest(type)));
  const float step = largest - static_cast<float>(ValueOf(type, Largest(type) - 1));
  for (float value : {largest, largest + step / 2, std::nextafter(largest + step / 2, kInf),
                      std::nextafter(largest + step / 2, 0.0f), largest + step, 1e30f, kInf, kNan, 1e-40f}) {
    CheckNarrow(type, value);
    CheckNarrow(type, -value);
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
  for (const normfuse::DataType type : kFloat8) TestFloat8(type);
  TestSixteenBits();
  TestPacked(normfuse::DataType::kUint4, 4, false);
  TestPacked(normfuse::DataType::kInt4, 4, true);
  TestPacked(normfuse::DataType::kUint2, 2, false);
  TestPacked(normfuse::DataType::kInt2, 2, true);
  return ExitCode();
}
