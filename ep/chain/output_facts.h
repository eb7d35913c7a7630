// Type and shape of what a node of our own operators writes.
#pragma once

#include <vector>

#include "chain/operator_node.h"

namespace normfuse {

// By the node's output positions, as far as they are known from its inputs: an unknown dimension is -1, an unknown rank
// -1; of positions that the chain does not write nothing is present. What a custom op tells ONNX Runtime, and what a
// claimed node's outputs must not contradict.
std::vector<TensorFacts> OutputFacts(const Chain& chain);

}  // namespace normfuse
