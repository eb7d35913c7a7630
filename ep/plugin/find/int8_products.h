// Products of int8 that ORT runs in integers, and would run in float beside a claim.
//
// On x86 ORT's integer kernels take uint8. So where a QuantizeLinear to int8 has one reader, a DequantizeLinear, ORT
// shifts both to uint8 (QDQS8ToU8Transformer), and a MatMul, Gemm or Conv between such pairs becomes one operator.
// That is after we have claimed: a pair of which we have one half stays int8, and the product beside it float.
#pragma once

#include "plugin/find/found_chain.h"

namespace normfuse::plugin {

// Whether a claim of the chain would take half of a pair from a product that ORT would run in integers.
bool SplitsInt8Pair(GraphView& graph, const FoundChain& found);

}  // namespace normfuse::plugin
