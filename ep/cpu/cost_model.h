// What a plan costs: decides how many threads a call is worth and, for claim=profitable, whether ONNX Runtime's own
// kernels would be faster. All figures are measured ones; cost_model.cc says where they come from.
#pragma once

#include <cstdint>

#include "cpu/isa.h"
#include "plan/plan.h"

namespace normfuse::cpu {

// Time of one call on one thread for a tensor of `elements`.
double EstimateNanoseconds(const Plan& plan, Isa isa, int64_t elements);

// How many of `available` threads work of that length is worth.
int WorthwhileThreads(double nanoseconds, int available);

}  // namespace normfuse::cpu

namespace normfuse {

// Whether the CPU path is expected to be at least as fast as ONNX Runtime's own kernels for the same nodes. Unknown
// dimensions of X are priced as kTypicalDimension.
inline constexpr int64_t kTypicalDimension = 128;
bool Profitable(const Plan& plan, cpu::Isa isa);

}  // namespace normfuse
