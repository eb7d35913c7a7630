#include "plugin/claim/claimed_nodes.h"

#include <algorithm>
#include <string>
#include <unordered_map>
#include <utility>

namespace normfuse::plugin {
namespace {

using ort::GetApi;

Result NoPort(const std::string& name) {
  return Result::Error(ErrorCode::kFail, "normfuse: fused node has no port for value '" + name + "'");
}

// Gives the values that chains pass to each other numbers behind the node's own outputs.
class Connector {
 public:
  explicit Connector(const Ports& ports) : ports_(ports) {
    for (const auto& [name, port] : ports.outputs) output_count_ = std::max(output_count_, port + 1);
    next_inner_ = output_count_;
  }

  int output_count() const { return output_count_; }

  Result Connect(NamedChain* named) {
    Result result;
    ForEachTensorRef(named->chain, [&](TensorRef& ref) {
      if (ref.input != TensorRef::kAbsent && result.ok()) {
        result = ConnectInput(named->inputs[static_cast<size_t>(ref.input)], &ref);
      }
    });
    ForEachOutput(named->chain, [&](int& output) {
      const std::string& name = named->outputs[static_cast<size_t>(output)];
      const auto port = ports_.outputs.find(name);
      output = port != ports_.outputs.end() ? port->second : next_inner_++;
      made_[name] = output;
    });
    return result;
  }

 private:
  Result ConnectInput(const std::string& name, TensorRef* ref) {
    const auto made = made_.find(name);
    const auto port = ports_.inputs.find(name);
    if (made == made_.end() && port == ports_.inputs.end()) return NoPort(name);
    ref->input = made != made_.end() ? kFromOutput + made->second : port->second;
    return {};
  }

  const Ports& ports_;
  std::unordered_map<std::string, int> made_;
  int output_count_ = 0;
  int next_inner_ = 0;
};

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

std::vector<std::string> NamesOf(const GraphView& graph, const std::vector<int>& values) {
  std::vector<std::string> names;
  names.reserve(values.size());
  for (int value : values) names.push_back(graph.value(value).name);
  return names;
}

}  // namespace

NamedChain Named(const GraphView& graph, FoundChain found) {
  ForEachTensorRef(found.chain, [](TensorRef& ref) {
    if (ref.constant != nullptr && ref.constant->storage.empty()) ref.constant = Owned(*ref.constant);
  });
  return {std::move(found.chain),
          NamesOf(graph, found.inputs),
          NamesOf(graph, found.outputs),
          NamesOf(graph, found.x_parts),
          NamesOf(graph, found.y_parts),
          std::move(found.sizes),
          found.axis};
}

Result ReadPorts(const ort::Node* fused_node, Ports* ports) {
  NORMFUSE_RETURN_IF_ERROR(PortsByName(fused_node, /*inputs=*/true, &ports->inputs));
  return PortsByName(fused_node, /*inputs=*/false, &ports->outputs);
}

Result Connect(std::vector<NamedChain> chains, const Ports& ports, ChainSequence* sequence) {
  Connector connector(ports);
  sequence->output_count = connector.output_count();
  for (NamedChain& named : chains) {
    NORMFUSE_RETURN_IF_ERROR(connector.Connect(&named));
    sequence->chains.push_back(std::move(named.chain));
  }
  return {};
}

Result Connect(NamedChain chain, const Ports& ports, ChainOfParts* connected) {
  NORMFUSE_RETURN_IF_ERROR(Connector(ports).Connect(&chain));
  const auto connect = [](const std::vector<std::string>& names, const std::unordered_map<std::string, int>& named,
                          std::vector<int>* found) -> Result {
    for (const std::string& name : names) {
      const auto port = named.find(name);
      if (port == named.end()) return NoPort(name);
      found->push_back(port->second);
    }
    return {};
  };
  NORMFUSE_RETURN_IF_ERROR(connect(chain.x_parts, ports.inputs, &connected->x_parts));
  NORMFUSE_RETURN_IF_ERROR(connect(chain.y_parts, ports.outputs, &connected->y_parts));
  if (connected->x_parts.empty()) connected->x_parts.push_back(chain.chain.x.tensor.input);
  if (connected->y_parts.empty()) connected->y_parts.push_back(chain.chain.store.output);
  connected->chain = std::move(chain.chain);
  connected->sizes = std::move(chain.sizes);
  connected->axis = chain.axis;
  return {};
}

std::vector<std::string> MadeBy(const GraphView& graph, const std::vector<int>& nodes) {
  std::vector<std::string> made;
  for (int node : nodes) {
    for (int value : graph.node(node).outputs) {
      if (value != kNone) made.push_back(graph.value(value).name);
    }
  }
  return made;
}

Result MadeInside(const ort::Graph* fused_graph, std::vector<std::string>* made) {
  const ort::Api& api = GetApi();
  size_t count = 0;
  NORMFUSE_RETURN_IF_ORT_ERROR(api.Graph_GetNumNodes(fused_graph, &count));
  std::vector<const ort::Node*> nodes(count);
  NORMFUSE_RETURN_IF_ORT_ERROR(api.Graph_GetNodes(fused_graph, nodes.data(), count));
  std::unordered_map<std::string, int> outputs;
  if (!nodes.empty()) NORMFUSE_RETURN_IF_ERROR(PortsByName(nodes.front(), /*inputs=*/false, &outputs));
  for (const auto& [name, position] : outputs) made->push_back(name);
  return {};
}

void ClaimedNodes::Clear() {
  claimed_.clear();
  maker_.clear();
  left_ = 0;
}

void ClaimedNodes::Keep(const std::vector<std::string>& made, ClaimedNode claimed) {
  for (const std::string& name : made) maker_[name] = claimed_.size();
  claimed_.push_back(std::move(claimed));
  ++left_;
}

Result ClaimedNodes::Take(const std::vector<std::string>& made, ClaimedNode* claimed) {
  for (const std::string& name : made) {
    const auto maker = maker_.find(name);
    if (maker == maker_.end() || !claimed_[maker->second]) continue;
    *claimed = *std::exchange(claimed_[maker->second], std::nullopt);
    if (--left_ == 0) Clear();
    return {};
  }
  return Result::Error(ErrorCode::kEpFail,
                       "normfuse: ONNX Runtime compiles the node that makes '" + (made.empty() ? "" : made.front()) +
                           "', which the provider has not claimed to compile. Set the provider's option compile=0, and "
                           "please report this as a fault of normfuse, with the version of ONNX Runtime");
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

}  // namespace normfuse::plugin
