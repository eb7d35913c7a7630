// Elements of every type, one at a time or a block at a time in plain C++: float16, bfloat16, the four float8 types, and
// the packed 4- and 2-bit integers. For parameters and for the types that have no vector kernel.
#pragma once

#include <cstddef>
#include <cstdint>

#include "chain/data_type.h"

namespace normfuse::cpu {

float HalfToFloat(uint16_t bits);
float Bfloat16ToFloat(uint16_t bits);

float Float8ToFloat(DataType type, uint8_t bits);
// saturate: beyond the range comes the largest finite value (also for infinity), else NaN or infinity as the type has it.
uint8_t FloatToFloat8(DataType type, float value, bool saturate);

// Element `index` of a tensor of any type that IsFloat or IsQuantized holds for; exact.
double ReadElement(DataType type, const void* data, int64_t index);

// `n` elements from `index` on of a type without a vector kernel (float8, 4 and 2 bits) to float32.
void LoadRare(DataType type, const void* data, int64_t index, size_t n, float* out);
// The way back: integers are expected rounded and in range; float8 is rounded here.
void StoreRare(DataType type, bool saturate, void* data, int64_t index, size_t n, const float* in);

// The largest finite number of a type that IsFloat holds for.
float LargestNumber(DataType type);

// Smallest and largest value of an integer type of at most 16 bits.
void IntegerRange(DataType type, float* low, float* high);

}  // namespace normfuse::cpu
