// float16 and bfloat16 by arithmetic on values instead of bits: slow, and independent of the code under test.
#pragma once

#include <cstdint>

namespace normfuse::test {

double HalfValue(uint16_t bits);
double Bfloat16Value(uint16_t bits);

// Rounded to nearest even; NaN keeps its sign and its upper bits and becomes quiet.
uint16_t NarrowToHalf(float f);
uint16_t NarrowToBfloat16(float f);

}  // namespace normfuse::test
