#include "plugin/fused_graph.h"

#include <algorithm>
#include <string>
#include <unordered_map>
#include <utility>

namespace normfuse::plugin {
namespace {

using ort::GetApi;

// Gives the values that chains pass to each other numbers behind the node's own outputs.
class Connector {
 public:
  explicit Connector(const GraphView& graph) : graph_(graph) {}

  Result Read(const ort::Node* fused_node, ChainSequence* sequence) {
    NORMFUSE_RETURN_IF_ERROR(PortsByName(fused_node, /*inputs=*/true, &inputs_));
    NORMFUSE_RETURN_IF_ERROR(PortsByName(fused_node, /*inputs=*/false, &outputs_));
    for (const auto& [name, port] : outputs_) sequence->output_count = std::max(sequence->output_count, port + 1);
    next_inner_ = sequence->output_count;
    return {};
  }

  Result Connect(FoundChain* found) {
    Result result;
    ForEachTensorRef(found->chain, [&](TensorRef& ref) {
      if (ref.input != TensorRef::kAbsent && result.ok()) result = ConnectInput(NameOf(found->inputs, ref.input), &ref);
    });
    ForEachOutput(found->chain, [&](int& output) {
      const std::string& name = NameOf(found->outputs, output);
      const auto port = outputs_.find(name);
      output = port != outputs_.end() ? port->second : next_inner_++;
      made_[name] = output;
    });
    return result;
  }

 private:
  const std::string& NameOf(const std::vector<int>& values, int position) const {
    return graph_.value(values[static_cast<size_t>(position)]).name;
  }

  Result ConnectInput(const std::string& name, TensorRef* ref) {
    const auto made = made_.find(name);
    const auto port = inputs_.find(name);
    if (made == made_.end() && port == inputs_.end()) {
      return Result::Error(ErrorCode::kFail, "normfuse: fused node has no port for value '" + name + "'");
    }
    ref->input = made != made_.end() ? kFromOutput + made->second : port->second;
    return {};
  }

  const GraphView& graph_;
  std::unordered_map<std::string, int> inputs_;
  std::unordered_map<std::string, int> outputs_;
  std::unordered_map<std::string, int> made_;
  int next_inner_ = 0;
};

}  // namespace

Result PortsByName(const ort::Node* node, bool inputs, std::unordered_map<std::string, int>* ports) {
  const ort::Api& api = GetApi();
  size_t count = 0;
  NORMFUSE_RETURN_IF_ORT_ERROR(inputs ? api.Node_GetNumInputs(node, &count) : api.Node_GetNumOutputs(node, &count));
  std::vector<const ort::ValueInfo*> values(count);
  NORMFUSE_RETURN_IF_ORT_ERROR(inputs ? api.Node_GetInputs(node, values.data(), count)
                                      : api.Node_GetOutputs(node, values.data(), count));
  for (size_t i = 0; i < count; ++i) {
    const char* name = nullptr;
    if (values[i] == nullptr) continue;
    NORMFUSE_RETURN_IF_ORT_ERROR(api.GetValueInfoName(values[i], &name));
    ports->emplace(name, static_cast<int>(i));
  }
  return {};
}

std::vector<size_t> ProducersFirst(const std::vector<ValuesOf>& nodes) {
  std::unordered_map<int, size_t> producer;
  for (size_t n = 0; n < nodes.size(); ++n) {
    for (int value : *nodes[n].made) {
      if (value != kNone) producer[value] = n;
    }
  }
  enum class State { kNew, kOpen, kPlaced };
  std::vector<State> state(nodes.size(), State::kNew);
  std::vector<size_t> order, stack;
  for (size_t first = 0; first < nodes.size(); ++first) {
    stack.push_back(first);
    while (!stack.empty()) {
      const size_t at = stack.back();
      if (state[at] != State::kNew) {
        if (state[at] == State::kOpen) order.push_back(at);
        state[at] = State::kPlaced;
        stack.pop_back();
        continue;
      }
      state[at] = State::kOpen;
      for (int value : *nodes[at].read) {
        const auto from = producer.find(value);
        if (from != producer.end() && state[from->second] == State::kNew) stack.push_back(from->second);
      }
    }
  }
  return order;
}

Result SequenceOf(const GraphView& graph, std::vector<Site> sites, const ort::Node* fused_node,
                  ChainSequence* sequence) {
  Connector connector(graph);
  NORMFUSE_RETURN_IF_ERROR(connector.Read(fused_node, sequence));
  size_t nodes = 0;
  std::vector<ValuesOf> values;
  for (const Site& site : sites) {
    if (!site.found) break;
    nodes += site.found->nodes.size();
    values.push_back({&site.found->inputs, &site.found->outputs});
  }
  for (size_t index : ProducersFirst(values)) {
    NORMFUSE_RETURN_IF_ERROR(connector.Connect(&*sites[index].found));
    sequence->chains.push_back(std::move(sites[index].found->chain));
  }
  if (nodes == graph.nodes().size() && sequence->chains.size() == sites.size()) return {};
  return Result::Error(ErrorCode::kEpFail, "normfuse: the fused subgraph is not made of the chains that were claimed");
}

}  // namespace normfuse::plugin
