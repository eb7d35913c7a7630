#include "cpu/run/statistics.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace normfuse::cpu {
namespace {

void StoreFloat(StoreFn store, DataType type, void* data, int64_t index, float value) {
  if (data == nullptr) return;
  if (type == DataType::kFloat32) {
    static_cast<float*>(data)[index] = value;
  } else {
    store(&value, 1, ElementAt(data, type, index));
  }
}

}  // namespace

StatisticsRequest RequestFor(const Call& call) {
  const Normalization& norm = call.spec->normalization;
  StatisticsRequest request;
  request.use_mean = norm.use_mean;
  request.normalize = norm.normalize_variance;
  request.integers = call.path.stored_integers;
  request.exact = call.path.stored_integers && call.row_sums != nullptr && BitsOf(call.x.type) == 8;
  request.epsilon_on = norm.epsilon_on;
  request.epsilon = norm.epsilon;
  request.count = static_cast<double>(call.geometry->group_size);
  return request;
}

bool IsUsual(const StatisticsRequest& request) {
  return request.normalize && request.epsilon_on == EpsilonOn::kVariance;
}

UsualRequest UsualOf(const StatisticsRequest& request) {
  const double inv_count = 1.0 / request.count;
  return {request.count,   request.use_mean ? request.count : std::numeric_limits<double>::infinity(),
          inv_count,       request.use_mean ? inv_count : 0.0,
          request.epsilon, request.exact};
}

bool IsBeyondFloat(double factor) {
  const double size = std::fabs(factor);
  return std::isfinite(factor) && factor != 0 && (size < 1e-29 || size > 1e29);
}

Quality Evaluate(const StatisticsRequest& request, const Sums& sums, Statistics* s) {
  // Sums of integers divided by their number: the mean of equal ones is exact.
  const double inv_count = 1.0 / request.count;
  const double off = request.integers ? sums.first / request.count : sums.first * inv_count;
  const double square = request.integers ? sums.second / request.count : sums.second * inv_count;
  // Of the values as stored; the variance is around the zero point where the mean is not used.
  const double mean = sums.shift + off;
  const double from_zero = sums.shift - request.zero;
  // Where the shift is the zero point itself nothing is added: 0 times an infinite sum would be NaN.
  const double moved = from_zero == 0 ? 0.0 : from_zero * (2 * off + from_zero);
  const double variance = request.use_mean ? std::max(square - off * off, 0.0) : square + moved;

  const double scale2 = request.scale * request.scale;
  const double inv = request.epsilon_on == EpsilonOn::kVariance
                         ? 1.0 / std::sqrt(variance * scale2 + request.epsilon)
                         : 1.0 / (std::sqrt(variance * scale2) + request.epsilon);
  s->mean = static_cast<float>((mean - request.zero) * request.scale);
  s->inv_std_dev = static_cast<float>(inv);
  const double factor = (request.normalize ? inv : 1.0) * request.scale;
  const double center = request.use_mean ? mean : request.zero;
  Normalizer& n = s->normalizer;
  n.inv = static_cast<float>(factor);
  n.mean = static_cast<float>(center);
  n.rest = static_cast<float>(center - static_cast<double>(n.mean));
  s->center = center;
  s->factor = factor;
  // Which it is of a variance above 1e58: float32 holds the differences from the mean of any other.
  s->beyond_float = IsBeyondFloat(factor);
  // False for NaN as well.
  if (!(std::fabs(mean) + variance <= std::numeric_limits<double>::max())) {
    if (!(std::fabs(center) <= std::numeric_limits<double>::max())) {
      // Of a row that holds an infinity all results are NaN.
      s->center = std::numeric_limits<double>::quiet_NaN();
      n.mean = std::numeric_limits<float>::quiet_NaN();
      n.rest = 0.0f;
    }
    return Quality::kWide;
  }
  if (variance < 1e-32 && request.normalize && !request.exact) {
    // Squares of such small values lose bits to underflow, which matters only where epsilon is smaller still.
    const double floor =
        request.epsilon_on == EpsilonOn::kVariance ? request.epsilon : request.epsilon * request.epsilon;
    if (floor < 1e-26 * scale2) return Quality::kWide;
  }
  if (!request.use_mean || request.exact) return Quality::kGood;
  return off * off <= variance ? Quality::kGood : Quality::kShift;
}

Sums Recentered(const StatisticsRequest& request, const Sums& sums) {
  return {static_cast<double>(static_cast<float>(sums.shift + sums.first / request.count)), 0, 0};
}

void StoreStatistics(const Call& call, int64_t index, const Statistics& statistics) {
  const DataType type = call.spec->normalization.stats_type;
  const StoreFn store = call.kernels->store[static_cast<int>(type)];
  StoreFloat(store, type, call.mean, index, statistics.mean);
  StoreFloat(store, type, call.inv_std_dev, index, statistics.inv_std_dev);
}

}  // namespace normfuse::cpu
