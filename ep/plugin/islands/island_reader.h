// A found island as an Island, which outlives its graph.
#pragma once

#include "plugin/claim/claimed_nodes.h"
#include "plugin/islands/island_finder.h"

namespace normfuse::plugin {

// Without ports. Fails when a node is neither in a chain of the island nor an operator of directml_operators.toml. Constants
// are copied: ONNX Runtime's memory may go away.
Result ReadIsland(GraphView& graph, const FoundIsland& found, const std::vector<Site>& sites, directml::Island* island);

// Gives the values the positions that they have in the fused node.
void Connect(const Ports& ports, directml::Island* island);

}  // namespace normfuse::plugin
