// A chain whose X is the Concat of several tensors: it reads each where it lies and writes its part of Y, so that the joined tensor
// is never made.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "chain/execution.h"

namespace normfuse {

struct ConcatenatedChain {
  Chain chain;             // of single elements: DependsOnElementsAlone. Its X is the first of the parts.
  std::vector<int> parts;  // inputs of the node, in order; all of X's type
  int64_t axis = 0;        // may be negative
};

// Whether each element of Y, which has X's shape, depends on the same element of X, and on nothing else that can change.
bool DependsOnElementsAlone(const Chain& chain);

// On the CPU path. Running it fails where the parts do not fit each other.
Result CompileForCpu(ConcatenatedChain concatenated, std::unique_ptr<Executable>* executable);

}  // namespace normfuse
