#include "plugin/island_reader.h"

#include <algorithm>

#include "abi/ort_attributes.h"
#include "plugin/fused_graph.h"
#include "plugin/island_operators.h"

namespace normfuse::plugin {
namespace {

class Reader {
 public:
  Reader(GraphView& graph, directml::Island* island) : graph_(graph), island_(*island) {}

  Result Run(const std::vector<Site>& sites, const ort::Node* fused_node) {
    NORMFUSE_RETURN_IF_ERROR(ReadValues(fused_node));
    std::vector<const Site*> site_at(graph_.nodes().size(), nullptr);
    std::vector<bool> in_site(graph_.nodes().size(), false);
    for (const Site& site : sites) {
      for (int node : site.found->nodes) in_site[static_cast<size_t>(node)] = true;
      // All that a chain reads is there once its last node can run.
      const auto last = std::max_element(site.found->nodes.begin(), site.found->nodes.end());
      site_at[static_cast<size_t>(*last)] = &site;
    }
    for (size_t i = 0; i < graph_.nodes().size(); ++i) {
      if (site_at[i] != nullptr) {
        AddChain(*site_at[i]->found);
      } else if (!in_site[i]) {
        NORMFUSE_RETURN_IF_ERROR(AddOperator(graph_.nodes()[i]));
      }
    }
    Sort();
    const std::vector<bool> read = directml::InputsReadOnCpu(island_);
    island_.shapes_vary = island_.shapes_vary || std::find(read.begin(), read.end(), true) != read.end();
    return {};
  }

 private:
  Result ReadValues(const ort::Node* fused_node) {
    std::unordered_map<std::string, int> inputs, outputs;
    NORMFUSE_RETURN_IF_ERROR(PortsByName(fused_node, /*inputs=*/true, &inputs));
    NORMFUSE_RETURN_IF_ERROR(PortsByName(fused_node, /*inputs=*/false, &outputs));
    const auto at = [](const auto& ports, const std::string& name) {
      const auto port = ports.find(name);
      return port == ports.end() ? directml::kNoValue : port->second;
    };
    for (size_t i = 0; i < graph_.values().size(); ++i) {
      const GraphValue& value = graph_.values()[i];
      const TensorFacts& facts = graph_.Facts(static_cast<int>(i));
      directml::IslandValue& made = island_.values.emplace_back();
      made.name = value.name;
      made.type = facts.type;
      if (facts.constant) {
        made.constant = Owned(*facts.constant);
      } else {
        made.input = at(inputs, value.name);
        const bool varies =
            facts.rank < 0 ||
            std::any_of(facts.dims, facts.dims + std::min(facts.rank, kMaxRank), [](int64_t dim) { return dim < 0; });
        island_.shapes_vary = island_.shapes_vary || (made.input != directml::kNoValue && varies);
      }
      made.output = at(outputs, value.name);
    }
    return {};
  }

  void AddChain(const FoundChain& found) {
    directml::IslandNode& node = island_.nodes.emplace_back();
    node.name = found.chain.name;
    node.chain = found.chain;
    ForEachTensorRef(*node.chain, [&](TensorRef& ref) {
      if (ref.constant) {
        if (ref.constant->storage.empty()) ref.constant = Owned(*ref.constant);
      } else if (ref.input != TensorRef::kAbsent) {
        const int value = found.inputs[static_cast<size_t>(ref.input)];
        node.inputs.push_back(value);
        ref.input = kFromOutput + value;
      }
    });
    ForEachOutput(*node.chain, [&](int& output) {
      output = found.outputs[static_cast<size_t>(output)];
      node.outputs.push_back(output);
    });
  }

  Result AddOperator(const GraphNode& from) {
    const DirectMlOperatorSpec* row = FindDirectMlOperator(from);
    if (row == nullptr) {
      return Result::Error(ErrorCode::kEpFail, "normfuse: the fused subgraph has the node '" + from.name +
                                                   "', which is no operator of an island");
    }
    directml::IslandNode& node = island_.nodes.emplace_back();
    node.name = from.name.empty() ? from.op_type : from.name;
    node.op = static_cast<DirectMlOperator>(row - kDirectMlOperators);
    node.inputs = from.inputs;
    node.outputs = from.outputs;
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
  directml::Island& island_;
};

}  // namespace

Result ReadIsland(GraphView& graph, const std::vector<Site>& sites, const ort::Node* fused_node,
                  directml::Island* island) {
  return Reader(graph, island).Run(sites, fused_node);
}

}  // namespace normfuse::plugin
