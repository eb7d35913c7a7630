#pragma once

namespace normfuse::test {

// The larger of two errors; NaN, which std::max passes over, is the largest.
inline double Worse(double a, double b) { return a != a || a > b ? a : b; }

}  // namespace normfuse::test
