#include "scalar_conversions.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace normfuse::test {
namespace {

double Value(uint32_t bits, int significand_bits, int bias, int exponent_bits) {
  const uint32_t significand = bits & ((1u << significand_bits) - 1);
  const int exponent = static_cast<int>(bits >> significand_bits) & ((1 << exponent_bits) - 1);
  const double sign = (bits >> (significand_bits + exponent_bits) & 1) != 0 ? -1 : 1;
  if (exponent == (1 << exponent_bits) - 1) {
    return significand != 0 ? std::numeric_limits<double>::quiet_NaN() : sign * std::numeric_limits<double>::infinity();
  }
  if (exponent == 0) return sign * std::ldexp(significand, 1 - bias - significand_bits);
  return sign * std::ldexp(significand + std::ldexp(1.0, significand_bits), exponent - bias - significand_bits);
}

uint16_t Narrow(float f, int significand_bits, int bias, int exponent_bits) {
  uint32_t bits;
  std::memcpy(&bits, &f, sizeof(bits));
  const uint16_t sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
  const uint16_t infinity = static_cast<uint16_t>(((1 << exponent_bits) - 1) << significand_bits);
  if (std::isnan(f)) {
    const uint32_t payload = (bits & 0x7FFFFF) >> (23 - significand_bits);
    return static_cast<uint16_t>(sign | infinity | 1 << (significand_bits - 1) | payload);
  }
  const double magnitude = std::fabs(static_cast<double>(f));
  if (std::isinf(magnitude)) return sign | infinity;
  if (magnitude == 0) return sign;
  // The unit of the result, and how many units there are, rounded half to even by the default rounding mode.
  const int exponent = std::max(std::ilogb(magnitude), 1 - bias);
  const double units = std::nearbyint(std::ldexp(magnitude, significand_bits - exponent));
  // A carry into the next exponent, and from the largest value to infinity, comes out of the addition by itself.
  const uint32_t result =
      (static_cast<uint32_t>(exponent + bias - 1) << significand_bits) + static_cast<uint32_t>(units);
  return result >= infinity ? sign | infinity : static_cast<uint16_t>(sign | result);
}

}  // namespace

double HalfValue(uint16_t bits) { return Value(bits, 10, 15, 5); }
double Bfloat16Value(uint16_t bits) { return Value(bits, 7, 127, 8); }
uint16_t NarrowToHalf(float f) { return Narrow(f, 10, 15, 5); }
uint16_t NarrowToBfloat16(float f) { return Narrow(f, 7, 127, 8); }

}  // namespace normfuse::test
