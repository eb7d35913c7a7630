// From sums to the three numbers that normalise: shared by rows and columns.
#pragma once

#include <cmath>
#include <cstdint>

#include "cpu/call.h"

namespace normfuse::cpu {

// Sums of (d - shift) and (d - shift)^2 over `count` values.
struct Sums {
  double shift = 0;
  double first = 0;
  double second = 0;
};

struct Statistics {
  float mean = 0.0f;       // subtracted first: the mean rounded to float32
  float inv = 1.0f;        // then multiplied
  float offset = kNoBias;  // then added: what rounding the mean left over
  float true_mean = 0.0f;  // for the outputs
  float true_inv = 1.0f;
};

enum class Quality {
  kGood,
  kShift,  // the shift lies too far from the mean: sum again around the mean
  kWide,   // squares left the range of float32: sum again in double
};

// What a normalisation asks for, and how stored values become d: d = (value - zero) * scale.
struct StatisticsRequest {
  bool use_mean = true;
  bool normalize = true;
  EpsilonOn epsilon_on = EpsilonOn::kVariance;
  double epsilon = 0;
  double scale = 1;
  double zero = 0;
};

StatisticsRequest RequestFor(const Plan& plan);

// How good the sums are. One pass around a shift has the accuracy of two passes while the shift is within one standard
// deviation of the mean; `widened` = the sums were made in double already.
Quality Judge(const StatisticsRequest& request, const Sums& sums, double count, bool widened);

Statistics Finish(const StatisticsRequest& request, const Sums& sums, double count);

// Writes the outputs mean and inv_std_dev, where wanted.
void StoreStatistics(const Call& call, int64_t index, const Statistics& statistics);

}  // namespace normfuse::cpu
