// Which nodes join an island on DirectML: chains, and the operators of directml_operators.toml between them. An island is a
// connected and convex set of nodes, as ONNX Runtime demands of what it fuses.
#pragma once

#include <string>
#include <vector>

#include "directml/lowering/rules.h"
#include "plugin/find/found_chain.h"

namespace normfuse::plugin {

struct FoundIsland {
  std::vector<int> nodes;     // of the graph, those of its chains included
  std::vector<size_t> sites;  // positions of its chains among the sites
  bool pays = false;          // by the cost rule: what it saves outweighs its copies and its wait
  bool computes = false;      // it has a chain or a product, or anything but data movement
};

// An operator that joins no island, and why: the end of a sentence about it. Computations of shapes that no island needs
// are not counted among them.
struct LeftOperator {
  int node;
  std::string why;
};

// The sites of a graph whose chains a GPU may run: with every pair of a QuantizeLinear and a DequantizeLinear as one step.
std::vector<Site> FindSitesForGpu(GraphView& graph);

// Every island of the graph, in time that grows with its nodes and values. Sites that are declined are in none. `left`, where
// it is given, gets the operators that join none.
std::vector<FoundIsland> FindIslands(GraphView& graph, const std::vector<Site>& sites,
                                     const directml::Capabilities& capabilities,
                                     std::vector<LeftOperator>* left = nullptr);

}  // namespace normfuse::plugin
