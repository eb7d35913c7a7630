// What stands in the graph of a fused node: its chains, in the order in which they run, and its ports.
#pragma once

#include <cstddef>
#include <string>
#include <unordered_map>
#include <vector>

#include "chain/sequence.h"
#include "plugin/found_chain.h"

namespace normfuse::plugin {

// The values that a node reads, and those that it makes.
struct ValuesOf {
  const std::vector<int>* read;
  const std::vector<int>* made;
};

// Positions in the list, producers first: a chain can stand behind a node that reads what it makes in the middle.
std::vector<size_t> ProducersFirst(const std::vector<ValuesOf>& nodes);

// The chains of all sites of a fused node's graph as one sequence; TensorRef::input and the outputs become positions of
// the node. Fails when the sites are not chains that cover the graph.
Result SequenceOf(const GraphView& graph, std::vector<Site> sites, const ort::Node* fused_node,
                  ChainSequence* sequence);

// Positions of a fused node's inputs or outputs, by name of the value.
Result PortsByName(const ort::Node* node, bool inputs, std::unordered_map<std::string, int>* ports);

}  // namespace normfuse::plugin
