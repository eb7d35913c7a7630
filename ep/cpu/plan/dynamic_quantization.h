// The end of a chain whose Y finds its scale and zero point itself: DynamicQuantization in chain/chain.h.
#pragma once

#include "cpu/run/call.h"

namespace normfuse::cpu {

struct ByteQuantization {
  float scale = 1.0f;
  uint8_t zero = 0;
};

// Of values from `low` (at most 0) to `high` (at least 0), in float32 as ONNX Runtime computes them.
ByteQuantization QuantizationOf(float low, float high);

// Quantises what a call made, Call::y: finds the range of all its values first. `y` may be null.
Result QuantizeDynamically(const Call& call, uint8_t* y, ByteQuantization* made);

}  // namespace normfuse::cpu
