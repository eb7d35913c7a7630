// What ONNX Runtime's own kernels take for a chain, and what a claim is expected to save: claim=profitable. All figures are
// measured: ep/spec/prices.toml.
#pragma once

#include <cstdint>

#include "chain/chain.h"
#include "cpu/kernels/simd/isa.h"

namespace normfuse::plugin {

// What of a chain ONNX Runtime runs on 8-bit integers, without the conversions around it.
struct RunInIntegers {
  int steps = 0;         // Add and Mul
  int clamps = 0;        // Relu and Clip between these and a QuantizeLinear that saturates there, which it drops
  bool softmax = false;  // which becomes slower by that: the QuantizeLinear behind it is no part of the chain
};

// Time of a chain with ONNX Runtime's own kernels, node by node, for a tensor of `elements`.
double EstimateOrtNanoseconds(const Chain& chain, int64_t elements, RunInIntegers in_integers = {});

// Whether it is a softmax of float32 over the last dimension with at most a factor, which ONNX Runtime makes part of the
// product before it: it has fast kernels for the rest (docs/decisions/0020-softmax.md).
bool IsPlainSoftmax(const Chain& chain);

// Whether it is a Sigmoid or Tanh of float32 and nothing else. ONNX Runtime's kernels take as long and work in place: past the caches
// they are faster (docs/decisions/0004-claims-by-cost-model.md).
bool IsPlainActivation(const Chain& chain);

// Nanoseconds that a call of the CPU path is expected to save against ONNX Runtime's own kernels for the same nodes;
// negative where those are faster.
double ExpectedGain(const Chain& chain, cpu::Isa isa, RunInIntegers in_integers = {});

}  // namespace normfuse::plugin
