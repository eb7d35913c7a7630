// How the shapes of two values fit each other, as far as they are known.
#pragma once

#include "chain/operator_node.h"

namespace normfuse::plugin {

// Whether a tensor certainly broadcasts to another one, which keeps its shape.
bool CertainlyFits(const TensorFacts& operand, const TensorFacts& whole);

// Whether a tensor broadcasts to another one, which keeps its shape unless a dimension that is not known is 1.
bool MayFit(const TensorFacts& operand, const TensorFacts& whole);

bool HasOneElement(const TensorFacts& facts);

bool HaveOneShape(const TensorFacts& a, const TensorFacts& b);

}  // namespace normfuse::plugin
