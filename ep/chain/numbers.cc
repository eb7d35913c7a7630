#include "chain/numbers.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <string>
#include <system_error>

namespace normfuse {
namespace {

// Far beyond any float32.
constexpr int64_t kMostExponent = 1'000'000;

// Removes the digits that `text` begins with and returns them.
std::string_view TakeDigits(std::string_view* text) {
  const size_t count = std::min(text->find_first_not_of("0123456789"), text->size());
  const std::string_view digits = text->substr(0, count);
  text->remove_prefix(count);
  return digits;
}

}  // namespace

bool ParseInt(std::string_view text, int64_t* number) {
  const char* const begin = text.data();
  const char* const end = begin + text.size();
  const std::from_chars_result read = std::from_chars(begin, end, *number);
  return read.ec == std::errc() && read.ptr == end;
}

bool ParseFloat(std::string_view text, float* number) {
  const bool negative = !text.empty() && text[0] == '-';
  if (text == "nan" || text.substr(negative ? 1 : 0) == "inf") {
    *number = text == "nan" ? std::nanf("") : negative ? -INFINITY : INFINITY;
    return true;
  }
  text.remove_prefix(negative ? 1 : 0);
  const std::string_view whole = TakeDigits(&text);
  std::string_view fraction;
  if (!text.empty() && text[0] == '.') {
    text.remove_prefix(1);
    fraction = TakeDigits(&text);
    if (fraction.empty()) return false;
  }
  int64_t exponent = 0;
  if (!text.empty()) {
    if (text[0] != 'e') return false;
    const bool has_plus = text.size() > 1 && text[1] == '+';
    text.remove_prefix(has_plus ? 2 : 1);
    if (!ParseInt(text, &exponent) || (has_plus && text[0] == '-')) return false;
    if (exponent < -kMostExponent || exponent > kMostExponent) return false;
  }
  if (whole.empty()) return false;
  // Without a point, which is a comma in some locales, strtof reads the same everywhere.
  const std::string digits = std::string(negative ? "-" : "").append(whole).append(fraction);
  const std::string plain = digits + "e" + std::to_string(exponent - static_cast<int64_t>(fraction.size()));
  *number = std::strtof(plain.c_str(), nullptr);
  return std::isfinite(*number);
}

}  // namespace normfuse
