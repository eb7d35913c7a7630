#include "cpu/statistics.h"

#include "cpu/elements.h"

namespace normfuse::cpu {
namespace {

struct Moments {
  double mean;      // of the values as stored
  double variance;  // around the mean, or around the zero point where the mean is not used
};

Moments MomentsOf(const StatisticsRequest& request, const Sums& sums, double count) {
  const double off = sums.first / count;
  if (!request.use_mean) return {sums.shift + off, sums.second / count};
  const double variance = sums.second / count - off * off;
  return {sums.shift + off, variance < 0 ? 0 : variance};
}

void StoreFloat(DataType type, void* data, int64_t index, float value) {
  if (data == nullptr) return;
  if (type == DataType::kFloat32) {
    static_cast<float*>(data)[index] = value;
  } else {
    static_cast<uint16_t*>(data)[index] = type == DataType::kFloat16 ? FloatToHalf(value) : FloatToBfloat16(value);
  }
}

}  // namespace

StatisticsRequest RequestFor(const Plan& plan) {
  const Normalization& norm = plan.normalization;
  StatisticsRequest request;
  request.use_mean = norm.use_mean;
  request.normalize = norm.normalize_variance;
  request.epsilon_on = norm.epsilon_on;
  request.epsilon = norm.epsilon;
  return request;
}

Quality Judge(const StatisticsRequest& request, const Sums& sums, double count, bool widened) {
  if (widened) return Quality::kGood;
  const Moments m = MomentsOf(request, sums, count);
  if (!std::isfinite(m.variance) || !std::isfinite(m.mean)) return Quality::kWide;
  // Squares of such small values have lost bits to underflow; it matters only where epsilon does not cover it.
  const double floor = request.epsilon_on == EpsilonOn::kVariance ? request.epsilon : request.epsilon * request.epsilon;
  const double scale2 = request.scale * request.scale;
  if (m.variance < 1e-32 && floor < 1e-26 * scale2 && request.normalize) return Quality::kWide;
  if (!request.use_mean) return Quality::kGood;
  const double off = sums.first / count;
  return off * off <= m.variance || off == 0 ? Quality::kGood : Quality::kShift;
}

Statistics Finish(const StatisticsRequest& request, const Sums& sums, double count) {
  const Moments m = MomentsOf(request, sums, count);
  const double variance = m.variance * request.scale * request.scale;
  const double inv = request.epsilon_on == EpsilonOn::kVariance ? 1.0 / std::sqrt(variance + request.epsilon)
                                                                : 1.0 / (std::sqrt(variance) + request.epsilon);
  Statistics s;
  s.true_mean = static_cast<float>((m.mean - request.zero) * request.scale);
  s.true_inv = static_cast<float>(inv);
  const double factor = (request.normalize ? inv : 1.0) * request.scale;
  s.inv = static_cast<float>(factor);
  const double center = request.use_mean ? m.mean : request.zero;
  s.mean = static_cast<float>(center);
  if (!std::isfinite(s.mean)) {
    // Infinite or NaN: x - mean is formed by the last addition, so that it is the same for every way of adding.
    s.mean = 0.0f;
    s.offset = static_cast<float>(-center * factor);
    return s;
  }
  const double left = center - static_cast<double>(s.mean);
  if (left != 0) s.offset = static_cast<float>(-left * factor);
  return s;
}

void StoreStatistics(const Call& call, int64_t index, const Statistics& statistics) {
  StoreFloat(call.plan->stats_type, call.mean, index, statistics.true_mean);
  StoreFloat(call.plan->stats_type, call.inv_std_dev, index, statistics.true_inv);
}

}  // namespace normfuse::cpu
