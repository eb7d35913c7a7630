#include "plugin/islands/island_reader.h"

#include <algorithm>
#include <unordered_map>

#include "abi/ort_attributes.h"
#include "plugin/islands/island_operators.h"

namespace normfuse::plugin {
namespace {

class Reader {
 public:
  Reader(GraphView& graph, const FoundIsland& found, directml::Island* island)
      : graph_(graph), nodes_(found.nodes), island_(*island) {
    std::sort(nodes_.begin(), nodes_.end());
  }

  Result Run(const std::vector<size_t>& chains, const std::vector<Site>& sites) {
    std::unordered_map<int, const FoundChain*> chain_of;
    for (size_t site : chains) {
      for (int node : sites[site].found->nodes) chain_of[node] = &*sites[site].found;
    }
    for (int node : nodes_) {
      const auto chain = chain_of.find(node);
      if (chain == chain_of.end()) {
        NORMFUSE_RETURN_IF_ERROR(AddOperator(graph_.node(node)));
        continue;
      }
      // All that a chain reads is there once its last node can run.
      const std::vector<int>& nodes = chain->second->nodes;
      if (node == *std::max_element(nodes.begin(), nodes.end())) AddChain(*chain->second);
    }
    Sort();
    return {};
  }

 private:
  int ValueOf(int value) {
    if (value == kNone) return directml::kNoValue;
    const auto [number, is_new] = numbers_.try_emplace(value, static_cast<int>(island_.values.size()));
    if (is_new) AddValue(value);
    return number->second;
  }

  void AddValue(int value) {
    const GraphValue& from = graph_.value(value);
    const TensorFacts& facts = graph_.Facts(value);
    directml::IslandValue& made = island_.values.emplace_back();
    made.name = from.name;
    made.type = facts.type;
    if (facts.constant) {
      made.constant = Owned(*facts.constant);
    } else if (!std::binary_search(nodes_.begin(), nodes_.end(), from.producer)) {
      const bool varies =
          facts.rank < 0 ||
          std::any_of(facts.dims, facts.dims + std::min(facts.rank, kMaxRank), [](int64_t dim) { return dim < 0; });
      island_.shapes_vary = island_.shapes_vary || varies;
    }
  }

  std::vector<int> NumbersOf(const std::vector<int>& values) {
    std::vector<int> numbers;
    for (int value : values) numbers.push_back(ValueOf(value));
    return numbers;
  }

  void AddChain(const FoundChain& found) {
    directml::IslandNode node;
    node.name = found.chain.name;
    node.chain = found.chain;
    ForEachTensorRef(*node.chain, [&](TensorRef& ref) {
      if (ref.constant) {
        if (ref.constant->storage.empty()) ref.constant = Owned(*ref.constant);
      } else if (ref.input != TensorRef::kAbsent) {
        const int value = ValueOf(found.inputs[static_cast<size_t>(ref.input)]);
        node.inputs.push_back(value);
        ref.input = kFromOutput + value;
      }
    });
    ForEachOutput(*node.chain, [&](int& output) {
      output = ValueOf(found.outputs[static_cast<size_t>(output)]);
      node.outputs.push_back(output);
    });
    island_.nodes.push_back(std::move(node));
  }

  Result AddOperator(const GraphNode& from) {
    const DirectMlOperatorSpec* row = FindDirectMlOperator(from);
    if (row == nullptr) {
      return Result::Error(ErrorCode::kEpFail,
                           "normfuse: an island has the node '" + from.name + "', which is no operator of islands");
    }
    directml::IslandNode& node = island_.nodes.emplace_back();
    node.name = from.name.empty() ? from.op_type : from.name;
    node.op = static_cast<DirectMlOperator>(row - kDirectMlOperators);
    node.inputs = NumbersOf(from.inputs);
    node.outputs = NumbersOf(from.outputs);
    for (int i = 0; i < row->attribute_count; ++i) {
      NORMFUSE_RETURN_IF_ERROR(ReadAttribute(from, row->attributes[i], &node.attributes));
    }
    return {};
  }

  static Result ReadAttribute(const GraphNode& node, const AttributeSpec& spec,
                              directml::IslandAttributes* attributes) {
    const std::string_view type = spec.type;
    int64_t number = 0;
    float real = 0;
    std::vector<int64_t> numbers;
    std::string words;
    if (type == "int" && node.attributes->GetInt(spec.name, &number)) attributes->ints[spec.name] = {number};
    if (type == "ints" && node.attributes->GetInts(spec.name, &numbers)) attributes->ints[spec.name] = numbers;
    if (type == "string" && node.attributes->GetString(spec.name, &words)) attributes->strings[spec.name] = words;
    if (type == "float" && node.attributes->GetFloat(spec.name, &real)) attributes->floats[spec.name] = real;
    if (type != "tensor") return {};
    std::shared_ptr<const ConstantTensor> tensor;
    NORMFUSE_RETURN_IF_ERROR(ort::ReadTensorAttribute(node.node, spec.name, &tensor));
    if (tensor) attributes->tensors[spec.name] = std::move(tensor);
    return {};
  }

  void Sort() {
    std::vector<ValuesOf> nodes;
    for (const directml::IslandNode& node : island_.nodes) nodes.push_back({&node.inputs, &node.outputs});
    std::vector<directml::IslandNode> sorted;
    for (size_t index : ProducersFirst(nodes)) sorted.push_back(std::move(island_.nodes[index]));
    island_.nodes = std::move(sorted);
    if (!island_.nodes.empty()) island_.name = island_.nodes.front().name;
  }

  GraphView& graph_;
  std::vector<int> nodes_;
  directml::Island& island_;
  std::unordered_map<int, int> numbers_;  // of the island's values, by the graph's
};

}  // namespace

Result ReadIsland(GraphView& graph, const FoundIsland& found, const std::vector<Site>& sites,
                  directml::Island* island) {
  return Reader(graph, found, island).Run(found.sites, sites);
}

void Connect(const Ports& ports, directml::Island* island) {
  const auto at = [](const auto& by_name, const std::string& name) {
    const auto port = by_name.find(name);
    return port == by_name.end() ? directml::kNoValue : port->second;
  };
  for (directml::IslandValue& value : island->values) {
    if (!value.constant) value.input = at(ports.inputs, value.name);
    value.output = at(ports.outputs, value.name);
  }
  const std::vector<bool> read = directml::InputsReadOnCpu(*island);
  island->shapes_vary = island->shapes_vary || std::find(read.begin(), read.end(), true) != read.end();
}

}  // namespace normfuse::plugin
