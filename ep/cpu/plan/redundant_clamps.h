// Fake quantisations and Sigmoids that cut what they get to a range which nothing leaves: behind a first quantisation d is one of
// 65,536 numbers at most, and calibrated scales make the ranges behind it as wide as what they make of it.
#pragma once

#include "cpu/plan/chain_spec.h"

namespace normfuse::cpu {

// Finds these among the steps that a kernel runs at once (Stage::uncut). Each integer is tried, in the kernel itself, with the cut
// and without it: the bits are the same. Quantizer::by_product is known already.
void DropRedundantClamps(const Chain& chain, const KernelTable& kernels, CompiledChain* compiled);

}  // namespace normfuse::cpu
