// From the largest value of a softmax's group and the sum of its exponentials to what normalises: shared by rows and columns.
#pragma once

#include <cmath>
#include <limits>

#include "cpu/run/call.h"

namespace normfuse::cpu {

inline constexpr float kLowest = -std::numeric_limits<float>::infinity();

// What exponentials of a group are taken of and by: exp(d - shift) * 2^-down is about 2^-kUsualDown for the largest value of
// d. Small values are not shifted, as the difference would be rounded; large ones are, whose differences are exact wherever
// their exponentials are not 0.
struct ExponentBase {
  float shift = 0.0f;
  float down = 0.0f;
};

// Whether the base is the usual one, which has no shift.
inline bool IsUsual(float most) { return most >= kUsualLeast && most <= kUsualMost; }

ExponentBase BaseFor(float most);

inline bool IsFinite(float value) { return std::fabs(value) <= std::numeric_limits<float>::max(); }

// The reciprocal of the sum of exponentials; NaN of a group that has no finite largest value. Without branches, for compilers
// that make vectors of a loop over columns.
inline float ReciprocalOfSum(float most, double sum) {
  const auto inverse = static_cast<float>(1.0 / sum);
  return IsFinite(most) && sum > 0 ? inverse : std::numeric_limits<float>::quiet_NaN();
}

// Of a group: the sum of its exponentials, and for the logarithm also that of its largest value, as the kernels make it.
struct ExponentialSum {
  double sum = 0;
  float largest = 0.0f;
};

// Makes Y of the exponentials, or for the logarithm of d itself. NaN of a group that has no finite largest value.
Normalizer NormalizerFor(Method method, float most, const ExponentBase& base, const ExponentialSum& of);

}  // namespace normfuse::cpu
