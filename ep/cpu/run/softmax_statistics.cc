#include "cpu/run/softmax_statistics.h"

#include <algorithm>

namespace normfuse::cpu {
namespace {

constexpr double kLog2E = 1.4426950408889634;
constexpr double kLn2 = 0.6931471805599453;

// The logarithm of the sum of exp(d - base.shift). Where the largest value has more than half of the sum, of their quotient: the
// error of its exponential cancels there, beside which the logarithm of a probability near 1 is nothing, and no logarithm of
// a probability is above 0.
double LogOfSum(float most, const ExponentBase& base, const ExponentialSum& of) {
  const auto largest = static_cast<double>(of.largest);
  if (of.sum >= 2 * largest) return base.down * kLn2 + std::log(of.sum);
  return static_cast<double>(most - base.shift) + std::max(std::log(of.sum / largest), 0.0);
}

}  // namespace

ExponentBase BaseFor(float most) {
  constexpr float kLarge = 256.0f;
  if (!IsFinite(most)) return {};
  if (IsUsual(most)) return {0.0f, kUsualDown};
  if (std::fabs(most) >= kLarge) return {most, kUsualDown};
  return {0.0f, kUsualDown + std::nearbyint(static_cast<float>(static_cast<double>(most) * kLog2E))};
}

Normalizer NormalizerFor(Method method, float most, const ExponentBase& base, const ExponentialSum& of) {
  if (method == Method::kSoftmax) return {0.0f, 0.0f, ReciprocalOfSum(most, of.sum)};
  if (!IsFinite(most) || !(of.sum > 0)) return {0.0f, std::numeric_limits<float>::quiet_NaN(), 1.0f};
  // The logarithm of the sum would be lost beside a large shift; what remains of d without the shift is exact.
  const double log = LogOfSum(most, base, of);
  if (base.shift != 0) return {base.shift, static_cast<float>(log), 1.0f};
  const auto mean = static_cast<float>(log);
  return {mean, static_cast<float>(log - mean), 1.0f};
}

}  // namespace normfuse::cpu
