#include "plugin/claim/claim_policy.h"

#include <algorithm>

#include "cpu/run/elements.h"
#include "plugin/claim/expected_gain.h"
#include "plugin/find/int8_products.h"
#include "plugin/find/quantization_nodes.h"
#include "spec/tables.h"

namespace normfuse::plugin {
namespace {

Declined NotProfitable(const FoundChain& found, const char* detail) {
  return Decline(Reason::kNotProfitable, {{"node", found.chain.name}, {"detail", detail}});
}

const GraphNode* ProducerOfX(const GraphView& graph, const FoundChain& found) {
  const int input = found.chain.x.tensor.input;
  if (input == TensorRef::kAbsent) return nullptr;
  return graph.ProducerOf(found.inputs[static_cast<size_t>(input)]);
}

template <typename Predicate>
bool AnyConsumerOfY(const GraphView& graph, const FoundChain& found, Predicate&& predicate) {
  const int y = found.outputs[static_cast<size_t>(found.chain.store.output)];
  const std::vector<int>& consumers = graph.value(y).consumers;
  return std::any_of(consumers.begin(), consumers.end(),
                     [&](int consumer) { return consumer != kNone && predicate(graph.node(consumer)); });
}

// A single DequantizeLinear or QuantizeLinear, without an activation.
std::optional<Declined> CheckQuantizationAlone(const FoundChain& found) {
  if (found.chain.store.quantization.present()) return NotProfitable(found, "its kernel runs at the speed of memory");
  return std::nullopt;
}

// A single QuantizeLinear before a Clip. Where it could be, both are in a chain with the DequantizeLinear behind them.
bool IsBeforeClip(const GraphView& graph, const FoundChain& found) {
  return found.chain.store.quantization.present() &&
         AnyConsumerOfY(graph, found, [](const GraphNode& node) { return node.Is("", "Clip"); });
}

// The Add and Mul of a chain that ORT runs in integers, each with a QuantizeLinear of its own.
RunInIntegers IntegerSteps(const GraphView& graph, const FoundChain& found, const IntegerUnits& units) {
  RunInIntegers in_integers;
  for (const int index : found.nodes) {
    if (!IsQuantize(graph.node(index)) || units.UnitOf(index) != IntegerUnit::kElementwise) continue;
    const GraphNode* producer = graph.ProducerOf(graph.node(index).inputs[0]);
    const bool clamps = producer != nullptr && (producer->Is("", "Relu") || producer->Is("", "Clip"));
    if (clamps) producer = graph.ProducerOf(producer->inputs[0]);
    if (producer == nullptr || !(producer->Is("", "Add") || producer->Is("", "Mul"))) continue;
    ++in_integers.steps;
    in_integers.clamps += clamps ? 1 : 0;
  }
  return in_integers;
}

// Whether ORT would make a QLinearSoftmax of the end of a chain and of the QuantizeLinear behind it.
bool EndsInIntegerSoftmax(const GraphView& graph, const FoundChain& found, const IntegerUnits& units) {
  const Chain& chain = found.chain;
  if (!chain.has_softmax() || !chain.behind.empty() || chain.store.quantization.present()) return false;
  const std::vector<int>& consumers = graph.value(found.outputs[static_cast<size_t>(chain.store.output)]).consumers;
  return consumers.size() == 1 && consumers[0] != kNone && IsQuantize(graph.node(consumers[0])) &&
         units.UnitOf(consumers[0]) == IntegerUnit::kElementwise;
}

std::optional<Declined> CheckGain(const FoundChain& found, cpu::Isa isa, RunInIntegers in_integers,
                                  bool has_registered_kernel) {
  const double gain = ExpectedGain(found.chain, isa, in_integers);
  if (gain < 0) return NotProfitable(found, "ONNX Runtime's own kernels are as fast for a tensor of this size");
  // A normalisation without a registered kernel is a chain of several nodes, which gains more than the model knows.
  if (has_registered_kernel || found.chain.normalizes() || gain >= kLeastGainNanoseconds) return std::nullopt;
  return NotProfitable(found, "the tensor is too small");
}

// ORT has no integer kernels for int8 on x86, and has them on Arm.
#if defined(__x86_64__) || defined(_M_X64)
constexpr bool kInt8BecomesUint8 = true;
#else
constexpr bool kInt8BecomesUint8 = false;
#endif

// What a chain stands beside that ORT would run together with its ends.
struct Place {
  const char* name;    // in the name of its group
  const char* detail;  // why that makes a claim slower
};
constexpr Place kBehindQuantized = {"behind a quantised operator",
                                    "its QuantizeLinear belongs to the quantised operator before it"};
constexpr Place kBeforeQuantized = {"before a quantised operator",
                                    "its DequantizeLinear belongs to the quantised operator behind it"};
constexpr Place kAmongConvolutions = {"among convolutions",
                                      "ONNX Runtime keeps the tensors around convolutions in a layout of its own"};
constexpr Place kAmongQuantizedConvolutions = {
    "among quantised convolutions",
    "ONNX Runtime keeps the tensors around convolutions of integers in a layout of its own"};
constexpr Place kInConvolution = {"behind a convolution", "ONNX Runtime runs it inside of the convolution before it"};

constexpr Place kBesideInt8 = {"beside a product of int8",
                               "ONNX Runtime would run the product of int8 beside it in float"};
constexpr Place kBehindClipped = {"behind a clipped product",
                                  "ONNX Runtime would run the product before the Relu or Clip that it reads in float"};

// Whether ORT, were the chain claimed, would run a product in float that it runs in integers.
bool LosesProduct(const Place* place) { return place == &kBesideInt8 || place == &kBehindClipped; }

bool IsInsideConv(const GraphView& graph, const GraphNode& conv, const FoundChain& found) {
  const std::vector<Step>& steps = found.chain.behind;
  const bool alone = steps.size() == 1 && steps[0].kind == StepKind::kActivate;
  const Activation kind = alone ? steps[0].activation.kind : Activation::kIdentity;
  return alone && graph.value(conv.outputs.front()).consumers.size() == 1 &&
         std::find(std::begin(kInsideConv), std::end(kInsideConv), kind) != std::end(kInsideConv);
}

// Whether what the chain gives, other than bytes, would stay in the layout of the convolutions before it.
bool LeavesBlocked(const FoundChain& found, const BlockedLayout& blocked) {
  const Store& store = found.chain.store;
  if (!store.dynamic) return blocked.Holds(found.outputs[static_cast<size_t>(store.output)]);
  const int value = store.dynamic->value_output;
  return value != kNoOutput && blocked.Holds(found.outputs[static_cast<size_t>(value)]);
}

// Whether the chain does nothing but dequantise or quantise.
bool OnlyConverts(const Chain& chain) { return !chain.normalizes() && chain.behind.empty(); }

// Where a node of the chain is part of an operator that ORT runs on integers. A chain with steps may be faster than those that
// go element by element.
const Place* PlaceInUnit(const GraphView& graph, const FoundChain& found, const IntegerUnits& units) {
  const IntegerUnit least = OnlyConverts(found.chain) ? IntegerUnit::kElementwise : IntegerUnit::kProduct;
  for (const int node : found.nodes) {
    if (units.UnitOf(node) < least) continue;
    return IsDequantize(graph.node(node)) ? &kBeforeQuantized : &kBehindQuantized;
  }
  if (graph.node(found.nodes.front()).domain != kOperatorDomain) return nullptr;
  // A node of our own that is given back becomes standard nodes, the last of them a QuantizeLinear.
  const GraphNode* producer = ProducerOfX(graph, found);
  const bool quantizes = found.chain.store.quantization.present() && BitsOf(found.chain.store.type) == 8;
  const bool follows = quantizes && !found.chain.x.quantization.present() && producer != nullptr;
  return follows && producer->IsOneOf(kQuantizedKernels) ? &kBehindQuantized : nullptr;
}

// Whether a chain from 8 bits to 8 bits reads what a convolution writes that ORT runs in integers (NhwcTransformer).
bool IsBehindQuantizedConv(const GraphView& graph, const FoundChain& found, const IntegerUnits& units) {
  const Chain& chain = found.chain;
  if (chain.normalizes() || chain.x.tensor.input == TensorRef::kAbsent || !chain.x.quantization.present()) return false;
  if (!chain.store.quantization.present() || BitsOf(chain.x.type) != 8 || BitsOf(chain.store.type) != 8) return false;
  const int quantize = graph.value(found.inputs[static_cast<size_t>(chain.x.tensor.input)]).producer;
  if (quantize == kNone || !IsQuantize(graph.node(quantize)) || !units.IsOfProduct(quantize)) return false;
  const GraphNode* producer = graph.ProducerOf(graph.node(quantize).inputs[0]);
  if (producer != nullptr && (producer->Is("", "Relu") || producer->Is("", "Clip"))) {
    producer = graph.ProducerOf(producer->inputs[0]);
  }
  return producer != nullptr && producer->Is("", "Conv");
}

// Whether all that reads the Relu or Clip behind a product of integers is in the chain, several nodes of it: they become
// one. Of a Relu or Clip with one reader ORT wants that this is a QuantizeLinear, or leaves the product before it in float
// (NodeGroupSelector::GetQDQSelection).
bool JoinsReadersOfClip(const GraphView& graph, const FoundChain& found, const IntegerUnits& units) {
  return std::any_of(found.inputs.begin(), found.inputs.end(), [&](int value) {
    if (!units.ClipsProduct(graph.value(value).producer)) return false;
    const GraphValue& clipped = graph.value(value);
    return !clipped.is_output && clipped.consumers.size() > 1 &&
           std::all_of(clipped.consumers.begin(), clipped.consumers.end(), [&](int consumer) {
             return std::find(found.nodes.begin(), found.nodes.end(), consumer) != found.nodes.end();
           });
  });
}

// Null where the chain stands beside nothing of the kind.
const Place* PlaceOf(GraphView& graph, const FoundChain& found, const ClaimContext& context) {
  if (context.on_cpu && kInt8BecomesUint8 && !context.options.int8_stays && SplitsInt8Pair(graph, found)) {
    return &kBesideInt8;
  }
  if (context.on_cpu && JoinsReadersOfClip(graph, found, context.units)) return &kBehindClipped;
  if (const Place* place = PlaceInUnit(graph, found, context.units)) return place;
  if (context.on_cpu && IsBehindQuantizedConv(graph, found, context.units)) return &kAmongQuantizedConvolutions;
  const GraphNode* producer = ProducerOfX(graph, found);
  const Operand& x = found.chain.x;
  const bool dequantizes = x.quantization.present() && !x.by_cast;
  const bool quantizes = found.chain.store.quantization.present();
  if (dequantizes || quantizes) return nullptr;
  if (LeavesBlocked(found, context.blocked)) return &kAmongConvolutions;
  if (producer != nullptr && producer->Is("", "Conv") && IsInsideConv(graph, *producer, found)) return &kInConvolution;
  return nullptr;
}

// Follows a float16 tensor to a MatMul behind a Transpose. ORT makes one node of Transpose, the Cast that it inserts, and
// MatMul (MatmulTransposeFusion); FuseFp16InitializerToFp32NodeTransformer then loses the Cast of the weights and reads a
// node that is not there. ORT does the same to a graph input, without any claim; a claim must not lead there.
class Float16Walk {
 public:
  explicit Float16Walk(const GraphView& graph) : graph_(graph) {}

  bool Reaches(int value, bool transposed) {
    // A graph this tangled is given up rather than searched.
    if (++steps_ > kMostSteps) return true;
    for (const int consumer : graph_.value(value).consumers) {
      if (consumer == kNone) return true;  // in a subgraph, which is not seen from here
      const GraphNode& node = graph_.node(consumer);
      if (transposed && node.Is("", "MatMul")) return true;
      if (!node.IsOneOf(kKeepFloat16)) continue;
      for (const int output : node.outputs) {
        if (output != kNone && Reaches(output, transposed || node.op_type == "Transpose")) return true;
      }
    }
    return false;
  }

 private:
  static constexpr int kMostSteps = 64;
  const GraphView& graph_;
  int steps_ = 0;
};

bool LeadsToFloat16Fault(GraphView& graph, const FoundChain& found) {
  return std::any_of(found.outputs.begin(), found.outputs.end(), [&](int value) {
    return graph.Facts(value).type == DataType::kFloat16 && Float16Walk(graph).Reaches(value, /*transposed=*/false);
  });
}

// The LayerNormalization that the scores of a softmax come from, as ORT's AttentionFusion wants it; kNone if they do not:
//   LayerNormalization -> MatMul -> Add -> Reshape -> Transpose -> MatMul -> Div or Mul -> [Add] -> Softmax -> MatMul
int RootOfAttention(const GraphView& graph, const FoundChain& found) {
  const auto is_product = [](const GraphNode& node) { return node.Is("", "MatMul"); };
  if (found.chain.x.quantization.present() || !AnyConsumerOfY(graph, found, is_product)) return kNone;
  const GraphNode* node = ProducerOfX(graph, found);
  int index = kNone;
  const auto step_back = [&] {
    index = node == nullptr || node->inputs.empty() || node->inputs[0] == kNone ? kNone
                                                                                : graph.value(node->inputs[0]).producer;
    node = index == kNone ? nullptr : &graph.node(index);
  };
  if (node != nullptr && (node->Is("", "Div") || node->Is("", "Mul"))) step_back();
  for (const char* op_type : {"MatMul", "Transpose", "Reshape", "Add", "MatMul"}) {
    if (node == nullptr || !node->Is("", op_type)) return kNone;
    step_back();
  }
  return node != nullptr && node->Is("", "LayerNormalization") ? index : kNone;
}

// Whether ORT would make an Attention of what is around the softmax: not if the normalisation before it is ours.
bool BelongsToAttention(const GraphView& graph, const FoundChain& found, const std::vector<Site>& sites) {
  const int root = found.chain.has_softmax() ? RootOfAttention(graph, found) : kNone;
  if (root == kNone) return false;
  return std::none_of(sites.begin(), sites.end(), [root](const Site& site) {
    if (!site.found || site.declined) return false;
    const std::vector<int>& nodes = site.found->nodes;
    return std::find(nodes.begin(), nodes.end(), root) != nodes.end();
  });
}

bool IsOne(const Operand& operand) {
  const ConstantTensor* constant = operand.tensor.constant.get();
  return constant != nullptr && !operand.quantization.present() && constant->ElementCount() == 1 &&
         cpu::ReadElement(constant->type, constant->data, 0) == 1;
}

// Whether it holds the 1 + tanh(...) of which, and of what is around it, ORT makes one FastGelu (FastGeluFusion).
bool BelongsToFastGelu(const FoundChain& found) {
  const std::vector<Step>& steps = found.chain.behind;
  if (found.chain.normalizes()) return false;
  return std::adjacent_find(steps.begin(), steps.end(), [](const Step& tanh, const Step& add) {
           return tanh.kind == StepKind::kActivate && tanh.activation.kind == Activation::kTanh &&
                  add.kind == StepKind::kAdd && IsOne(add.operand);
         }) != steps.end();
}

bool HasPair(const Chain& chain) {
  return std::any_of(chain.behind.begin(), chain.behind.end(),
                     [](const Step& step) { return step.kind == StepKind::kFakeQuantize; });
}

// What stands against any claim of the chain.
std::optional<Declined> CheckPossible(GraphView& graph, const FoundChain& found, const EpOptions& options,
                                      bool has_registered_kernel) {
  if (!has_registered_kernel && options.generates_context) return Decline(Reason::kContextGeneration, {});
  if (!has_registered_kernel && !options.compile) return Decline(Reason::kCompilationOff, {});
  if (!options.survives_float16 && LeadsToFloat16Fault(graph, found)) {
    return Decline(Reason::kUnsupportedType,
                   {{"tensor", "the result of " + found.chain.name + ", of which a Transpose leads to a MatMul,"},
                    {"type", "float16"},
                    {"what",
                     "ONNX Runtime's MatmulTransposeFusion (which optimization.disable_specified_optimizers "
                     "switches off)"}});
  }
  return std::nullopt;
}

// What the cost model says, and what is known of ORT's ways.
std::optional<Declined> CheckProfit(const GraphView& graph, const FoundChain& found, const ClaimContext& context,
                                    const Place* place, bool has_registered_kernel) {
  if (LosesProduct(place) || (place != nullptr && !found.chain.normalizes())) {
    return NotProfitable(found, place->detail);
  }
  if (OnlyConverts(found.chain) && IsBeforeClip(graph, found)) {
    return NotProfitable(found,
                         "a chain takes the Clip behind it where that has constant bounds, the scale is one constant "
                         "above 0, and nothing but a DequantizeLinear of the same parameters reads the result");
  }
  if (context.on_cpu) {
    // A node of our own: what its body leaves of it, the normalisation behind the Add, is a chain again.
    if (AddsIntegers(found.chain)) return NotProfitable(found, "ONNX Runtime adds the uint8 tensors in integers");
    if (IsPlainSoftmax(found.chain) || IsPlainActivation(found.chain)) {
      return NotProfitable(found, "ONNX Runtime's own kernel is as fast");
    }
    cpu::Isa isa = cpu::Isa::kBaseline;
    // An instruction set that does not exist is an error when the chain is compiled.
    if (cpu::SelectIsa(&isa).ok()) {
      RunInIntegers in_integers = IntegerSteps(graph, found, context.units);
      in_integers.softmax = EndsInIntegerSoftmax(graph, found, context.units);
      if (std::optional<Declined> declined = CheckGain(found, isa, in_integers, has_registered_kernel)) return declined;
    }
  }
  return OnlyConverts(found.chain) ? CheckQuantizationAlone(found) : std::nullopt;
}

}  // namespace

void DecideClaim(GraphView& graph, const ClaimContext& context, bool has_registered_kernel, Site* site) {
  const FoundChain& found = *site->found;
  const Place* place = PlaceOf(graph, found, context);
  site->group = GroupOf(graph, found, place == nullptr ? "" : place->name);
  site->declined = CheckPossible(graph, found, context.options, has_registered_kernel);
  if (site->declined) return;
  if (context.options.claim_all) {
    site->decided_by = DecidedBy::kOption;
    return;
  }
  if (const std::optional<bool> claim = context.tuning.Decision(site->group)) {
    site->decided_by = DecidedBy::kTuning;
    if (!*claim) site->declined = Decline(Reason::kTunedOff, {{"node", found.chain.name}});
    return;
  }
  if (BelongsToAttention(graph, found, context.sites)) {
    site->declined = NotProfitable(found, "ONNX Runtime makes an Attention of it and what is around it");
    return;
  }
  if (BelongsToFastGelu(found)) {
    site->declined = NotProfitable(found, "ONNX Runtime makes a FastGelu of it and what is around it");
    return;
  }
  site->declined = CheckProfit(graph, found, context, place, has_registered_kernel);
}

bool CompilesTooMuch(const GraphView& graph, const std::vector<Site>& sites, const std::vector<bool>& has_kernel,
                     const EpOptions& options) {
  double groups = 0;
  bool normalizes = false;
  bool has_pairs = false;
  for (size_t i = 0; i < sites.size(); ++i) {
    if (sites[i].declined || has_kernel[i]) continue;
    groups += 1;
    normalizes |= sites[i].found->chain.normalizes();
    has_pairs |= HasPair(sites[i].found->chain);
  }
  const auto nodes = static_cast<double>(graph.nodes().size());
  const double usual = has_pairs    ? kCompiledWithPairsLimit
                       : normalizes ? kCompiledWithNormalizationLimit
                                    : kCompiledLimit;
  const double limit = options.claim_all ? std::max(kCompiledWithAllLimit, usual) : usual;
  return groups * nodes * nodes > limit;
}

void DeclineCompilation(std::vector<Site>* sites, const std::vector<bool>& has_kernel) {
  for (size_t i = 0; i < sites->size(); ++i) {
    Site& site = (*sites)[i];
    if (site.declined || has_kernel[i]) continue;
    site.decided_by = DecidedBy::kCostModel;
    site.declined = NotProfitable(*site.found,
                                  "ONNX Runtime would compile it for long in a graph of this size; "
                                  "'normfuse optimize' avoids that");
  }
}

}  // namespace normfuse::plugin
