#include "cpu/cost_model.h"

#include <algorithm>

namespace normfuse::cpu {
namespace {

// Handing work to another thread of the session's pool and waiting for it.
constexpr double kHandOffNanoseconds = 5000;

// Nanoseconds per element of one pass over a float32 tensor in cache.
double PerElement(const Plan& plan, Isa isa) {
  double cost = plan.kind == PlanKind::kNormalization ? 0.12 : 0.06;
  if (plan.residual.present()) cost += 0.05;
  if (plan.activation.kind != Activation::kIdentity && plan.activation.kind != Activation::kRelu) cost += 0.1;
  if (plan.y_quantization.present()) cost += 0.05;
  const double lanes = isa == Isa::kAvx512 ? 1.0 : isa == Isa::kAvx2 ? 1.3 : 3.0;
  return cost * lanes;
}

}  // namespace

double EstimateNanoseconds(const Plan& plan, Isa isa, int64_t elements) {
  return static_cast<double>(elements) * PerElement(plan, isa);
}

int WorthwhileThreads(double nanoseconds, int available) {
  const double most = nanoseconds / kHandOffNanoseconds;
  return std::max(1, std::min(available, most > 64 ? 64 : static_cast<int>(most)));
}

}  // namespace normfuse::cpu

namespace normfuse {

bool Profitable(const Plan& plan, cpu::Isa isa) {
  (void)plan;
  return isa != cpu::Isa::kBaseline;
}

}  // namespace normfuse
