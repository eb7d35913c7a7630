#include "cpu/softmax_statistics.h"

namespace normfuse::cpu {
namespace {

constexpr double kLog2E = 1.4426950408889634;
constexpr double kLn2 = 0.6931471805599453;

}  // namespace

ExponentBase BaseFor(float most) {
  constexpr float kLarge = 256.0f;
  if (!IsFinite(most)) return {};
  if (IsUsual(most)) return {0.0f, kUsualDown};
  if (std::fabs(most) >= kLarge) return {most, kUsualDown};
  return {0.0f, kUsualDown + std::nearbyint(static_cast<float>(static_cast<double>(most) * kLog2E))};
}

Normalizer NormalizerFor(Method method, float most, const ExponentBase& base, double sum) {
  const float reciprocal = ReciprocalOfSum(most, sum);
  if (method == Method::kSoftmax) return {0.0f, 0.0f, reciprocal};
  if (std::isnan(reciprocal)) return {0.0f, reciprocal, 1.0f};
  // The logarithm of the sum would be lost beside a large shift; what remains of d without the shift is exact.
  const double log = base.down * kLn2 + std::log(sum);
  if (base.shift != 0) return {base.shift, static_cast<float>(log), 1.0f};
  const auto mean = static_cast<float>(log);
  return {mean, static_cast<float>(log - mean), 1.0f};
}

}  // namespace normfuse::cpu
