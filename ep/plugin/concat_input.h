// The Concat in front of a chain: what quantisers put a pair behind.
#pragma once

#include "plugin/found_chain.h"

namespace normfuse::plugin {

// Takes the Concat that makes X into the chain, where nothing else reads X, the chain treats each element by itself, and that is
// expected to gain or `takes_all`. False: the chain is as it was.
bool TakeConcat(GraphView& graph, bool takes_all, FoundChain* found);

}  // namespace normfuse::plugin
