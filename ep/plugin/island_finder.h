// Which nodes join an island on DirectML: chains, and the operators of directml_operators.toml between them. An island is a
// connected and convex set of nodes, as ONNX Runtime demands of what it fuses.
#pragma once

#include <optional>
#include <vector>

#include "plugin/backend.h"
#include "plugin/found_chain.h"

namespace normfuse::plugin {

struct FoundIsland {
  std::vector<int> nodes;     // of the graph, those of its chains included
  std::vector<size_t> sites;  // positions of its chains among the sites
  bool pays = false;          // by the cost rule: what it saves outweighs its copies and its wait
  bool computes = false;      // it has a chain or a product, or anything but data movement
};

// The table's row for a node of the graph; null where there is none for its operator, version and attributes.
const DirectMlOperatorSpec* FindDirectMlOperator(const GraphNode& node);

// Every island of the graph, in time that grows with its nodes and values. Sites that are declined are in none.
std::vector<FoundIsland> FindIslands(GraphView& graph, const std::vector<Site>& sites, const Backend& backend);

}  // namespace normfuse::plugin
