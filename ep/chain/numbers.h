// Numbers as text, the same in every locale.
#pragma once

#include <cstdint>
#include <string_view>

namespace normfuse {

// All of `text`, which is -?digits, is a number that fits. False: it is none, and `number` is of no use.
bool ParseInt(std::string_view text, int64_t* number);

// -?digits[.digits][e[+-]digits], inf, -inf or nan; what float32 cannot hold is no number.
bool ParseFloat(std::string_view text, float* number);

}  // namespace normfuse
