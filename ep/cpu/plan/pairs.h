// What of pairs of QuantizeLinear and DequantizeLinear (fake quantisations) need not be done; the bits are the same.
#pragma once

#include <optional>

#include "cpu/plan/chain_spec.h"

namespace normfuse::cpu {

struct IntegerBounds {
  float low = 0.0f;
  float high = 0.0f;
};

// A Clip behind a fake quantisation, whose bounds stand for integers: quantisers write it for types of fewer than 8 bits. The
// quantisation saturates there instead, which takes no time. The integers between which d is then; none where `pair` and `clip`,
// the step behind it, are no such two steps.
std::optional<IntegerBounds> BoundsOfClippedPair(const Step& pair, const Step& clip);

// Two fake quantisations that are one are joined: HardSwish written out between pairs divides by 6 between two whose scales have
// that ratio, so that each integer of the first becomes the same integer of the second. Division and second pair are dropped, and
// the first one dequantises with the second one's scale. Then redundant clamps are dropped, and Quantizer::by_product is found
// out. Each integer of a pair is tried, which takes time.
void SimplifyPairs(const Chain& chain, Isa isa, CompiledChain* compiled);

// The clamps of fake quantisations and Sigmoids that nothing reaches: behind a first quantisation d is one of 65,536 numbers at
// most, and calibrated scales make the ranges behind it as wide as what they make of it. Finds these among the steps that a kernel
// runs at once (Stage::unclamped): each integer is tried, in the kernel itself, with the clamp and without it. Quantizer::by_product is
// known already.
void DropRedundantClamps(const Chain& chain, const KernelTable& kernels, CompiledChain* compiled);

}  // namespace normfuse::cpu
