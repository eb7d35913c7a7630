// Several steps of a chain without a normalisation in one kernel: see element_steps-inl.h.
#pragma once

#include "cpu/run/call.h"

namespace normfuse::cpu {

// What Stage::element_steps is. The functions below need it.
int CountElementSteps(const Stage& stage);

// Whether a chain has steps that a kernel does faster together than one by one, and no others.
bool HasElementSteps(const ChainSpec& spec, const Chain& chain, const KernelTable& kernels);

// The same of the steps before a normalisation, and of those behind its first stage.
bool HasStepsBefore(const ChainSpec& spec, const Chain& chain, const KernelTable& kernels);
bool HasStepsBehind(const ChainSpec& spec, const KernelTable& kernels);

// A whole run, of any length, from X to Y. False: an operand has another form; it goes stage by stage, block by block.
bool RunElementSteps(const Block& run);

// Of a chain with a normalisation: from X into d, and from d into Y by way of `room`, which may be d.
bool RunStepsBefore(const Block& block, float* d);
bool RunStepsBehind(const Block& block, const Normalizer& normalizer, const float* d, float* room);

}  // namespace normfuse::cpu
