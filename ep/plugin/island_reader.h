// The graph of a fused node as an Island.
#pragma once

#include "directml/island.h"
#include "plugin/found_chain.h"

namespace normfuse::plugin {

// `sites` are those of the fused node's graph that run as chains. Fails when a node is neither in one nor an operator of
// directml_operators.toml. Constants are copied: ONNX Runtime's memory may go away.
Result ReadIsland(GraphView& graph, const std::vector<Site>& sites, const ort::Node* fused_node,
                  directml::Island* island);

}  // namespace normfuse::plugin
