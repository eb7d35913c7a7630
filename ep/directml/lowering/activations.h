// Activations as DirectML operators: fused into a normalisation where DirectML takes them, one operator of their own, or a
// small graph.
#pragma once

#include <optional>

#include "chain/chain.h"
#include "directml/lowering/program_builder.h"

namespace normfuse::directml {

// The FusedActivation that a normalisation at this level can carry; nothing when it needs operators of its own.
std::optional<FusedActivation> Fusable(const Step& step, FeatureLevel level);

// Whether the activation reads a slope tensor: PRelu, but for one constant slope, which makes it LeakyRelu.
bool ReadsSlope(const Step& step);

// Appends the operators of an activation to x. `slope` is PRelu's, broadcast to x from the last dimension.
Value EmitActivation(ProgramBuilder& builder, const Step& step, const Value& x, const std::optional<Value>& slope);

}  // namespace normfuse::directml
