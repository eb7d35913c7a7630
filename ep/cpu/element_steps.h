// Several steps of a chain without a normalisation in one kernel: see element_steps-inl.h.
#pragma once

#include "cpu/call.h"

namespace normfuse::cpu {

// Whether a chain has steps that a kernel does faster together than one by one, and no others.
bool HasElementSteps(const ChainSpec& spec, const Chain& chain, const KernelTable& kernels);

// The whole block, from X to Y. False: nothing was done, as an operand has another form; it goes stage by stage.
bool RunElementSteps(const Block& block);

}  // namespace normfuse::cpu
