#include "plan/plan.h"

namespace normfuse {

Result Validate(const Plan& plan) {
  if (!plan.x.present()) return Result::Error(ErrorCode::kInvalidArgument, plan.name + ": input X is missing");
  return {};
}

}  // namespace normfuse
