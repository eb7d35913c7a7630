// The chain of a single node, read when its kernel is created: for the custom ops and for registered kernels.
#pragma once

#include "abi/ort_abi.h"
#include "chain/chain.h"

namespace normfuse::plugin {

// Inputs and outputs of the chain are those of the node. An error says why the node cannot be run.
Result ReadChain(const ort::KernelInfo* info, Chain* chain);

}  // namespace normfuse::plugin
