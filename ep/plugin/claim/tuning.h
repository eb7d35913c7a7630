// What `normfuse optimize --tune` measured: which groups of chains are worth claiming. The model carries it.
//
// The value of the model's metadata entry "ai.normfuse.tuning" holds a line for each fact:
//   version 1
//   isa avx2                 the instruction set of the kernels that were measured
//   onnxruntime 1.31.1       the host
//   others cost              chains of groups that are not listed: cost (by the cost model), on or off
//   on <group>               claimed
//   off <group>              left to ONNX Runtime
// It holds for this instruction set and this release (1.31) alone. What it does not hold for, or cannot be read, is as if
// it were not there: the cost model decides.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "plugin/find/found_chain.h"

namespace normfuse::plugin {

class Tuning {
 public:
  // `isa` and `host`: those of this session. *unused says why the text is not used; empty if it is.
  static Tuning Parse(std::string_view text, std::string_view isa, std::string_view host, std::string* unused);

  // Whether to claim the chains of the group; empty where the cost model decides.
  std::optional<bool> Decision(const std::string& group) const;

 private:
  std::optional<bool> others_;
  std::unordered_map<std::string, bool> groups_;
};

// Reads it from the model of the graph; nothing where the model carries none.
Result ReadTuning(const ort::Graph* graph, Tuning* tuning, std::string* unused);

// The group of a chain: what it is made of, the type and shape of what it reads, and `place`, what it stands beside.
// Two sites that the same things can be said of gain or lose alike.
std::string GroupOf(GraphView& graph, const FoundChain& found, std::string_view place);

}  // namespace normfuse::plugin
