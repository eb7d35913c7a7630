// From sums to the three numbers that normalise: shared by rows and columns.
#pragma once

#include <cstdint>

#include "cpu/run/call.h"

namespace normfuse::cpu {

struct Statistics {
  Normalizer normalizer;
  float mean = 0.0f;  // these two for the outputs
  float inv_std_dev = 1.0f;
  // n = (d - center) * factor, where float32 does not hold the factor or the differences and `beyond_float` says so.
  double center = 0;
  double factor = 1;
  bool beyond_float = false;
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
  bool integers = false;  // d is what is stored
  bool exact = false;     // the sums are free of rounding, wherever their shift lies
  EpsilonOn epsilon_on = EpsilonOn::kVariance;
  double epsilon = 0;
  double scale = 1;
  double zero = 0;
  double count = 1;  // values per group
};

// Whether float32 loses what it should not of a factor, also where the reciprocal of a y_scale joins it.
bool IsBeyondFloat(double factor);

StatisticsRequest RequestFor(const Call& call);

// Turns sums into statistics, and says how good the sums were. One pass around a shift has the accuracy of two passes
// while the shift is within one standard deviation of the mean.
Quality Evaluate(const StatisticsRequest& request, const Sums& sums, Statistics* statistics);

// Whether the kernels of sums can make normalizers as the request asks for. Where they find nothing unusual in the sums,
// they give the same ones as Evaluate.
bool IsUsual(const StatisticsRequest& request);
UsualRequest UsualOf(const StatisticsRequest& request);

// Where to sum again after Quality::kShift.
Sums Recentered(const StatisticsRequest& request, const Sums& sums);

// Writes the outputs mean and inv_std_dev, where wanted.
void StoreStatistics(const Call& call, int64_t index, const Statistics& statistics);

}  // namespace normfuse::cpu
