// Walks a graph and builds a chain around each anchor: nodes of our own operators first, then normalisations, then
// products of integers, then activations, then what is left of DequantizeLinear and QuantizeLinear.
#include <algorithm>
#include <memory>

#include "chain/output_facts.h"
#include "plugin/find/chain_builder.h"
#include "plugin/find/found_chain.h"
#include "plugin/find/normalization_nodes.h"
#include "plugin/find/quantization_nodes.h"
#include "plugin/host/options.h"

namespace normfuse::plugin {
namespace {

std::optional<Declined> CheckAttributeNames(const GraphNode& node) {
  std::vector<std::string> names;
  if (node.node == nullptr || !ort::ListAttributes(node.node, &names).ok()) return std::nullopt;
  for (const std::string& name : names) {
    const bool known = std::any_of(std::begin(kAttributes), std::end(kAttributes),
                                   [&](const AttributeSpec& spec) { return name == spec.name; });
    if (!known) return Decline(Reason::kUnknownAttribute, {{"node", node.name}, {"attribute", name}});
  }
  return std::nullopt;
}

std::string ShapeText(const TensorFacts& facts) {
  std::string text = "[";
  for (int i = 0; i < facts.rank; ++i) {
    text += (i == 0 ? "" : ", ") + (facts.dims[i] < 0 ? "?" : std::to_string(facts.dims[i]));
  }
  return text + "]";
}

bool ShapesContradict(const TensorFacts& a, const TensorFacts& b) {
  if (a.rank < 0 || b.rank < 0) return false;
  bool contradict = a.rank != b.rank;
  for (int i = 0; i < std::min(a.rank, kMaxRank) && !contradict; ++i) {
    contradict = a.dims[i] >= 0 && b.dims[i] >= 0 && a.dims[i] != b.dims[i];
  }
  return contradict;
}

// ONNX Runtime allocates outputs by what the graph says of them, for a call of a model-local function by what the
// function's body gives. That and the node's attributes are two accounts of one thing, and only a model that is
// consistent has them agree.
std::optional<Declined> CheckOutputs(GraphView& graph, const OperatorNode& operator_node, const GraphNode& node,
                                     const Chain& chain) {
  const std::vector<TensorFacts> expected = OutputFacts(chain);
  if (node.outputs.empty() || node.outputs[0] == kNone) {
    return Decline(Reason::kInvalidConfiguration, {{"node", operator_node.name}, {"detail", "output Y is left out"}});
  }
  for (size_t i = 0; i < node.outputs.size(); ++i) {
    if (node.outputs[i] == kNone || (i > 0 && !operator_node.outputs_used[i])) continue;
    const std::string name = "output " + std::to_string(i);
    const auto contradiction = [&](const std::string& in_graph, const std::string& of_node) {
      std::string detail = name;
      detail.append(" is ").append(in_graph).append(" in the model, but ").append(of_node).append(" by the attributes");
      return Decline(Reason::kInvalidConfiguration, {{"node", operator_node.name}, {"detail", std::move(detail)}});
    };
    if (i >= expected.size()) {
      return Decline(Reason::kInvalidConfiguration,
                     {{"node", operator_node.name}, {"detail", "the operator has no " + name}});
    }
    const TensorFacts& facts = graph.Facts(node.outputs[i]);
    if (facts.type == DataType::kUndefined) {
      return Decline(Reason::kUnknownTypeOrRank, {{"tensor", name + " of " + operator_node.name}});
    }
    if (facts.type != expected[i].type) return contradiction(NameOf(facts.type), NameOf(expected[i].type));
    // A custom operator's output of unknown shape is shown as one without dimensions; a function's shape is its body's.
    const bool unknown = facts.rank == 0 && node.op_type.find('_') == std::string::npos;
    if (!unknown && ShapesContradict(facts, expected[i]))
      return contradiction(ShapeText(facts), ShapeText(expected[i]));
  }
  return std::nullopt;
}

// A node of domain ai.normfuse: the chain's inputs and outputs are the node's.
std::optional<Declined> ReadOwnOperator(GraphView& graph, int index, OperatorKind kind, FoundChain* found) {
  const GraphNode& node = graph.node(index);
  if (std::optional<Declined> declined = CheckAttributeNames(node)) return declined;
  OperatorNode operator_node;
  operator_node.kind = kind;
  operator_node.name = node.name.empty() ? node.op_type : node.name;
  operator_node.attributes = node.attributes.get();
  for (int value : node.inputs) operator_node.inputs.push_back(graph.Facts(value));
  for (int value : node.outputs) operator_node.outputs_used.push_back(graph.IsUsed(value));
  if (std::optional<Declined> declined = ChainFromOperator(operator_node, &found->chain)) return declined;
  const Result valid = Validate(found->chain);
  if (!valid.ok()) {
    return Decline(Reason::kInvalidConfiguration, {{"node", operator_node.name}, {"detail", valid.message()}});
  }
  if (std::optional<Declined> declined = CheckOutputs(graph, operator_node, node, found->chain)) return declined;
  ForEachTensorRef(found->chain, [&](TensorRef& ref) {
    if (ref.input == TensorRef::kAbsent) return;
    found->inputs.push_back(node.inputs[static_cast<size_t>(ref.input)]);
    ref.input = static_cast<int>(found->inputs.size()) - 1;
  });
  ForEachOutput(found->chain, [&](int& output) {
    found->outputs.push_back(node.outputs[static_cast<size_t>(output)]);
    output = static_cast<int>(found->outputs.size()) - 1;
  });
  found->nodes = {index};
  found->description = node.op_type;
  return std::nullopt;
}

// Whether ONNX Runtime has the activation as a part of its convolutions.
bool IsInsideConv(const GraphNode& node) {
  return node.domain.empty() && std::any_of(std::begin(kInsideConv), std::end(kInsideConv), [&](Activation activation) {
           return node.op_type == kActivations[static_cast<int>(activation)].name;
         });
}

class Finder {
 public:
  Finder(GraphView& graph, const Search& search)
      : graph_(graph),
        search_(search),
        taken_(search.claimed != nullptr ? *search.claimed : std::vector<bool>(graph.nodes().size(), false)),
        sites_(graph.nodes().size()) {}

  std::vector<Site> Run() {
    MarkForeignNodes();
    for (const auto attempt : {&Finder::TryOwnOperator, &Finder::TryNormalization, &Finder::TryIntegers,
                               &Finder::TryElementwise, &Finder::TryPair, &Finder::TryQuantization}) {
      for (size_t i = 0; i < graph_.nodes().size(); ++i) {
        if (!taken_[i]) (this->*attempt)(static_cast<int>(i));
      }
    }
    std::vector<Site> found;
    for (const std::unique_ptr<Site>& site : sites_) {
      if (site != nullptr && !IsTakenByOther(*site)) found.push_back(std::move(*site));
    }
    return found;
  }

 private:
  // A node that could not start a chain may have been taken up by another one after all.
  bool IsTakenByOther(const Site& site) const {
    return !site.found && taken_[static_cast<size_t>(site.anchor)] &&
           site.declined->reason != Reason::kAssignedElsewhere;
  }

  void MarkForeignNodes() {
    for (size_t i = 0; i < graph_.nodes().size(); ++i) {
      const GraphNode& node = graph_.nodes()[i];
      if (node.provider.empty() || node.provider == kEpName) continue;
      taken_[i] = true;
      if (FindNormalization(node) != nullptr) {
        Refuse(static_cast<int>(i),
               Decline(Reason::kAssignedElsewhere, {{"node", node.name}, {"provider", node.provider}}));
      }
    }
  }

  void Accept(int index, FoundChain found) {
    for (int node : found.nodes) taken_[static_cast<size_t>(node)] = true;
    Site& site = SiteOf(index);
    site.found = std::move(found);
    site.declined.reset();
  }

  void Refuse(int index, Declined declined) { SiteOf(index).declined = std::move(declined); }

  Site& SiteOf(int index) {
    std::unique_ptr<Site>& site = sites_[static_cast<size_t>(index)];
    if (site == nullptr) site = std::make_unique<Site>();
    site->anchor = index;
    return *site;
  }

  void TryOwnOperator(int index) {
    const GraphNode& node = graph_.node(index);
    if (node.domain != kOperatorDomain) return;
    const std::optional<OperatorKind> kind = OperatorKindOf(node.op_type);
    if (!kind) return;
    FoundChain found;
    if (std::optional<Declined> declined = ReadOwnOperator(graph_, index, *kind, &found)) {
      return Refuse(index, std::move(*declined));
    }
    ChainBuilder builder(graph_, taken_, search_, index, found);
    FoundChain longer;
    if (!builder.TakeAroundOwnNode() || builder.Take(&longer)) return Accept(index, std::move(found));
    Accept(index, std::move(longer));
    SiteOf(index).alone = std::move(found);
  }

  // Tries the longest chain first: with the residual Add before it, then without.
  void TryNormalization(int index) {
    const NormalizationSpec* row = FindNormalization(graph_.node(index));
    if (row == nullptr) return;
    for (const bool with_residual : {true, false}) {
      ChainBuilder builder(graph_, taken_, search_, index);
      int y = kNone;
      std::optional<Declined> declined = ReadNormalization(*row, builder, with_residual, &y);
      FoundChain found;
      if (!declined) {
        builder.Finish(y);
        declined = builder.Take(&found);
      }
      if (!declined && with_residual && search_.leaves_to_ort && IsFasterWithoutAdd(found.chain)) continue;
      if (!declined) return Accept(index, std::move(found));
      Refuse(index, std::move(*declined));
    }
  }

  // The Add is faster as a chain of its own: of short rows of 16-bit integers ORT's softmax is as fast.
  static bool IsFasterWithoutAdd(const Chain& chain) {
    return chain.has_softmax() && !HasLongRows(chain.x.shape) && chain.x.quantization.present() &&
           BitsOf(chain.x.type) == 16 && !chain.before.empty();
  }

  void TryIntegers(int index) {
    ChainBuilder builder(graph_, taken_, search_, index);
    if (builder.ReadAnchorIntegers()) FinishElementwise(index, builder, graph_.Output(graph_.node(index), 0));
  }

  // Chains take up what is behind them, so the first of several such nodes begins one.
  void TryElementwise(int index) {
    if (search_.leaves_to_ort && RunsInsideConv(index)) return;
    if (!TryStep(index)) TryActivation(index);
  }

  // Whether ONNX Runtime runs an activation before a pair inside of the convolution in front of it.
  bool RunsInsideConv(int index) const {
    const GraphNode& node = graph_.node(index);
    const int x = graph_.Input(node, 0);
    const int y = graph_.Output(node, 0);
    const GraphNode* conv = graph_.ProducerOf(x);
    if (search_.units == nullptr || y == kNone || conv == nullptr || !conv->Is("", "Conv")) return false;
    if (!IsInsideConv(node) || graph_.OnlyReader(x) == kNone) return false;
    const int reader = graph_.OnlyReader(y);
    return reader != kNone && IsQuantize(graph_.node(reader));
  }

  bool TryStep(int index) {
    ChainBuilder builder(graph_, taken_, search_, index);
    int y = kNone;
    if (!builder.ReadAnchorStep(&y)) return false;
    FinishElementwise(index, builder, y);
    return SiteOf(index).found.has_value();
  }

  void TryPair(int index) {
    if (!IsQuantize(graph_.node(index))) return;
    ChainBuilder builder(graph_, taken_, search_, index);
    int y = kNone;
    if (builder.ReadAnchorPair(&y)) FinishElementwise(index, builder, y);
  }

  void TryActivation(int index) {
    ChainBuilder builder(graph_, taken_, search_, index);
    int x = kNone;
    int y = kNone;
    if (!builder.ReadAnchorActivation(&x, &y)) return;
    if (builder.chain().behind.front().kind == StepKind::kAdd) {
      builder.ReadX(x, /*with_residual=*/false);
    } else {
      builder.ReadXWithConstantBias(x);
    }
    FinishElementwise(index, builder, y);
  }

  void TryQuantization(int index) {
    const GraphNode& node = graph_.node(index);
    const bool dequantize = IsDequantize(node);
    const bool quantize = node.Is("", "QuantizeLinear") || node.Is("com.microsoft", "QuantizeLinear");
    if (!dequantize && !quantize) return;
    if (quantize && !DividesInFloat32(node)) {
      int64_t precision = 0;
      node.attributes->GetInt("precision", &precision);
      return Refuse(index, Decline(Reason::kAttributeValue, {{"attribute", "precision"},
                                                             {"node", node.name},
                                                             {"value", std::to_string(precision)},
                                                             {"supported", "0 and 1 (float32)"}}));
    }
    ChainBuilder builder(graph_, taken_, search_, index);
    builder.ReadAnchorQuantization(dequantize);
    FinishElementwise(index, builder, graph_.Output(node, 0));
  }

  void FinishElementwise(int index, ChainBuilder& builder, int y) {
    builder.Finish(y);
    FoundChain found;
    if (std::optional<Declined> declined = builder.Take(&found)) {
      Refuse(index, std::move(*declined));
    } else {
      Accept(index, std::move(found));
    }
  }

  GraphView& graph_;
  Search search_;
  std::vector<bool> taken_;
  // By node. A site is large, and few nodes are one.
  std::vector<std::unique_ptr<Site>> sites_;
};

}  // namespace

bool AddsIntegers(const Chain& chain) {
  const UsualForm form = UsualFormOf(chain);
  return form.before && form.requantise != nullptr && chain.x.type == DataType::kUint8 && form.residual != nullptr &&
         form.residual->type == DataType::kUint8;
}

std::vector<Site> FindSites(GraphView& graph, const Search& search) { return Finder(graph, search).Run(); }

}  // namespace normfuse::plugin
