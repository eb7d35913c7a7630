// The Concat in front of a chain, which quantisers put a pair behind, and the Split behind one, as in the blocks of detectors.
#pragma once

#include "plugin/find/found_chain.h"

namespace normfuse::plugin {

// Takes the Concat that makes X and the Split of Y into the chain, where it treats each element by itself, nothing else reads X, or
// Y, and that is expected to gain or `takes_all`.
void TakeParts(GraphView& graph, bool takes_all, FoundChain* found);

}  // namespace normfuse::plugin
