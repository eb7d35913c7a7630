// A chain whose X is the Concat of several tensors, or whose Y is split into several: it reads each part where it lies and writes each
// where it belongs, so that the whole tensor is never made.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "chain/execution.h"

namespace normfuse {

struct ChainOfParts {
  Chain chain;                 // DependsOnElementsAlone. Its X and Y are the first of the parts.
  std::vector<int> x_parts;    // inputs of the node, in order, all of X's type; at least one
  std::vector<int> y_parts;    // outputs of the node; at least one
  std::vector<int64_t> sizes;  // of Y's parts along the axis; none where Y is one
  int64_t axis = 0;            // from the front
};

// Whether each element of Y, which has X's shape, depends on the same element of X, and on nothing else that can change.
bool DependsOnElementsAlone(const Chain& chain);

// On the CPU path. Running it fails where the parts do not fit each other.
Result CompileForCpu(ChainOfParts chain, std::unique_ptr<Executable>* executable);

}  // namespace normfuse
