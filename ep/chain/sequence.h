// Chains that run one after the other as one node: chains that follow each other, for backends that gain from it.
#pragma once

#include <vector>

#include "chain/chain.h"

namespace normfuse {

// TensorRef::input of what an earlier chain gives: kFromOutput plus the number of that output.
inline constexpr int kFromOutput = 65536;

// Outputs of the chains are numbered across the sequence. The first `output_count` numbers are the node's own outputs, the
// rest are tensors that only later chains read.
struct ChainSequence {
  std::vector<Chain> chains;
  int output_count = 0;
};

}  // namespace normfuse
