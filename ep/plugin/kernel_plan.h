// The plan of a single node, read when its kernel is created: for the custom ops and for registered kernels.
#pragma once

#include "abi/ort_abi.h"
#include "plan/plan.h"

namespace normfuse::plugin {

// Inputs and outputs of the plan are those of the node. An error says why the node cannot be run.
Result ReadPlan(const ort::KernelInfo* info, Plan* plan);

}  // namespace normfuse::plugin
