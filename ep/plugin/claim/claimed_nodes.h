// What GetCapability has claimed as nodes to be compiled, kept until Compile is asked for them: so chains are found once.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "chain/parts.h"
#include "chain/sequence.h"
#include "directml/islands/island.h"
#include "plugin/find/found_chain.h"

namespace normfuse::plugin {

// A chain that outlives its graph: it has its own constants, TensorRef::input indexes `inputs`, the outputs index `outputs`.
struct NamedChain {
  Chain chain;
  std::vector<std::string> inputs;  // names of values
  std::vector<std::string> outputs;
  // As in FoundChain.
  std::vector<std::string> x_parts = {};
  std::vector<std::string> y_parts = {};
  std::vector<int64_t> sizes = {};
  int64_t axis = 0;

  bool has_parts() const { return !x_parts.empty() || !y_parts.empty(); }
};

NamedChain Named(const GraphView& graph, FoundChain found);

// What one fused node computes.
struct ClaimedNode {
  std::vector<NamedChain> chains;          // producers first; none where it is an island
  bool on_gpu = false;                     // the chains
  std::optional<directml::Island> island;  // without ports
};

// Positions of a fused node's inputs and outputs, by name of the value.
struct Ports {
  std::unordered_map<std::string, int> inputs;
  std::unordered_map<std::string, int> outputs;
};

Result ReadPorts(const ort::Node* fused_node, Ports* ports);

// TensorRef::input and the outputs become positions of the node. Fails when a chain reads what the node does not.
Result Connect(std::vector<NamedChain> chains, const Ports& ports, ChainSequence* sequence);
// The same of a chain that has parts.
Result Connect(NamedChain chain, const Ports& ports, ChainOfParts* connected);

// The names of all that the nodes make.
std::vector<std::string> MadeBy(const GraphView& graph, const std::vector<int>& nodes);

// The names of what one of the nodes makes that a fused node stands for. (The fused node itself has no output where nobody
// reads what they make.)
Result MadeInside(const ort::Graph* fused_graph, std::vector<std::string>* made);

// ONNX Runtime asks for the capability of a graph, then compiles what was claimed of it, before it goes on to the next graph:
// names are those of one graph.
class ClaimedNodes {
 public:
  void Clear();
  // `made`: all that its nodes make.
  void Keep(const std::vector<std::string>& made, ClaimedNode claimed);
  // What makes one of these; it is kept no longer.
  Result Take(const std::vector<std::string>& made, ClaimedNode* claimed);

 private:
  std::vector<std::optional<ClaimedNode>> claimed_;  // empty where it was taken
  std::unordered_map<std::string, size_t> maker_;    // by name of what it makes
  size_t left_ = 0;                                  // how many of them were not taken
};

// The values that a node reads, and those that it makes.
struct ValuesOf {
  const std::vector<int>* read;
  const std::vector<int>* made;
};

// Positions in the list, producers first: a chain can stand behind a node that reads what it makes in the middle.
std::vector<size_t> ProducersFirst(const std::vector<ValuesOf>& nodes);

}  // namespace normfuse::plugin
