// A Clip behind a fake quantisation, whose bounds stand for integers: quantisers write it for types of fewer than 8 bits. The
// quantisation saturates there instead, which takes no time.
#pragma once

#include <optional>

#include "chain/chain.h"

namespace normfuse::cpu {

struct IntegerBounds {
  float low = 0.0f;
  float high = 0.0f;
};

// The integers between which d is once it was quantised, where `clip`, the step behind `pair`, says no more than that. None where
// they are no such two steps.
std::optional<IntegerBounds> BoundsOfClippedPair(const Step& pair, const Step& clip);

}  // namespace normfuse::cpu
