// One OrtGraph read into plain data, in linear time: nodes, values, who makes and who reads each value. Pointers into
// ORT stay valid for the callback (GetCapability or Compile) that got the graph, and so does a GraphView.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "abi/ort_attributes.h"
#include "chain/operator_node.h"
#include "plugin/host/given_initializers.h"

namespace normfuse::plugin {

inline constexpr int kNone = -1;

struct GraphNode {
  const ort::Node* node = nullptr;  // null when read from a kernel
  std::unique_ptr<const NodeAttributes> attributes;
  std::string name;
  std::string op_type;
  std::string domain;
  int since_version = 0;
  std::vector<int> inputs;           // values; kNone where left out
  std::vector<int> outputs;          // likewise
  std::vector<int> implicit_inputs;  // values that its subgraphs read
  std::string provider;              // of the EP that has the node already; empty if none

  bool Is(std::string_view other_domain, std::string_view other_op_type) const {
    return op_type == other_op_type && domain == other_domain;
  }
  // Of ONNX's own operators.
  template <size_t kSize>
  bool IsOneOf(const std::string_view (&op_types)[kSize]) const {
    return domain.empty() && std::find(op_types, op_types + kSize, op_type) != op_types + kSize;
  }
};

struct GraphValue {
  const ort::ValueInfo* info = nullptr;
  std::string name;
  int producer = kNone;        // node; kNone for graph inputs, initialisers and outer values
  std::vector<int> consumers;  // nodes, one entry for each input that reads the value; kNone for a use in a subgraph
  bool is_output = false;      // of the graph
};

class GraphView {
 public:
  // Constants that the session's options replace are none in this view; `given` must live as long as it.
  Result Read(const ort::Graph* graph, GivenInitializers* given);
  // A graph of one node: the one that a kernel is created for. Values are in the order of the node's inputs and
  // outputs, those that are left out included.
  Result ReadKernel(const ort::KernelInfo* info);

  const std::vector<GraphNode>& nodes() const { return nodes_; }
  const std::vector<GraphValue>& values() const { return values_; }
  const GraphNode& node(int index) const { return nodes_[static_cast<size_t>(index)]; }
  const GraphValue& value(int index) const { return values_[static_cast<size_t>(index)]; }

  // Value made or read by a node at that position; kNone if left out.
  int Input(const GraphNode& node, size_t position) const {
    return position < node.inputs.size() ? node.inputs[position] : kNone;
  }
  int Output(const GraphNode& node, size_t position) const {
    return position < node.outputs.size() ? node.outputs[position] : kNone;
  }
  // The node that makes the value; null for inputs, constants and kNone.
  const GraphNode* ProducerOf(int value) const {
    const int producer = value == kNone ? kNone : values_[static_cast<size_t>(value)].producer;
    return producer == kNone ? nullptr : &node(producer);
  }
  // The node that alone reads the value; kNone where there is none, or the value is an output of the graph.
  int OnlyReader(int value) const {
    if (value == kNone || values_[static_cast<size_t>(value)].is_output) return kNone;
    const std::vector<int>& consumers = values_[static_cast<size_t>(value)].consumers;
    return consumers.size() == 1 ? consumers.front() : kNone;
  }
  // Whether anything reads the value.
  bool IsUsed(int value) const {
    return value != kNone &&
           (values_[static_cast<size_t>(value)].is_output || !values_[static_cast<size_t>(value)].consumers.empty());
  }

  // Type, shape and, for a constant initialiser, data. Read on first use. Data points into ORT's memory.
  const TensorFacts& Facts(int value);

 private:
  Result ReadNode(const ort::Node* node);
  void NameByOutput(GraphNode* node) const;
  template <typename Owner, typename Count, typename Get>
  Result ReadValues(const Owner* owner, Count count, Get get, std::vector<int>* values);
  Result ReadUses(size_t node_index);
  Result Intern(const ort::ValueInfo* info, int* value);
  Result ReadFacts(const GraphValue& value, TensorFacts* facts) const;

  std::vector<GraphNode> nodes_;
  std::vector<GraphValue> values_;
  std::unordered_map<std::string_view, int> by_name_;
  std::vector<std::unique_ptr<TensorFacts>> facts_;  // by value; null where not read yet
  std::vector<const ort::ValueInfo*> buffer_;
  GivenInitializers* given_ = nullptr;  // null when read from a kernel
};

}  // namespace normfuse::plugin
