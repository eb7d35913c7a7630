// Two fake quantisations that are one: HardSwish written out between pairs divides by 6 between two whose scales have that
// ratio, so that each integer of the first becomes the same integer of the second. Division and second pair go, and the first
// one dequantises with the second one's scale.
#pragma once

#include "cpu/plan/chain_spec.h"

namespace normfuse::cpu {

// Joins those behind the normalisation, or in a chain without one. Each integer of a pair is tried, which takes time.
void JoinPairs(const Chain& chain, Isa isa, ChainSpec* spec);

}  // namespace normfuse::cpu
