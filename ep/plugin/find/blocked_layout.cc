#include "plugin/find/blocked_layout.h"

#include <algorithm>
#include <string_view>

#include "cpu/kernels/simd/isa.h"

namespace normfuse::plugin {
namespace {

// Channels of one block.
int64_t BlockSize() { return cpu::IsAvailable(cpu::Isa::kAvx512) ? 16 : 8; }

// As ORT sees it behind its own fusions: GELU and SiLU written out become one node that reads blocked tensors, the tanh
// form written out becomes a FastGelu, which does not.
bool IsPassedThrough(const FoundChain& found, Activation activation) {
  switch (activation) {
    case Activation::kRelu:
    case Activation::kSigmoid:
    case Activation::kTanh:
    case Activation::kGelu:
    case Activation::kHardSigmoid:
    case Activation::kHardSwish:
    case Activation::kSwish:
      return true;
    case Activation::kGeluTanh:
      return found.nodes.size() == 1;
    default:
      return false;
  }
}

}  // namespace

BlockedLayout::BlockedLayout(GraphView& graph, const std::vector<Site>& sites)
    : graph_(graph), holds_(graph.values().size(), false) {
  std::vector<const FoundChain*> ends(graph.nodes().size(), nullptr);
  for (const Site& site : sites) {
    if (site.found && !site.found->chain.normalizes()) {
      ends[static_cast<size_t>(site.found->nodes.back())] = &*site.found;
    }
  }
  for (size_t i = 0; i < graph.nodes().size(); ++i) {
    const GraphNode& node = graph.nodes()[i];
    const int y = graph.Output(node, 0);
    if (y == kNone) continue;
    holds_[static_cast<size_t>(y)] = ends[i] != nullptr ? KeptByActivation(*ends[i]) : KeptBy(node);
  }
}

bool BlockedLayout::KeptBy(const GraphNode& node) {
  if (!node.domain.empty()) return false;
  if (node.op_type == "Conv") return KeptByConv(node);
  if (node.op_type == "MaxPool" || node.op_type == "AveragePool") {
    return node.outputs.size() == 1 && HasWholeBlocks(graph_.Input(node, 0));
  }
  if (node.op_type == "Mul" && IsScaleOfBlocked(node)) return true;
  if (node.inputs.empty() || !Holds(node.inputs.front())) return false;
  if (node.op_type == "GlobalAveragePool" || node.op_type == "GlobalMaxPool") {
    return HasWholeBlocks(node.inputs.front());
  }
  if (node.op_type == "Add" || node.op_type == "Sum") return HoldsAll(node.inputs);
  if (node.op_type == "Mul") return HoldsAll(node.inputs) && MayHaveOneShape(node.inputs);
  if (node.op_type == "Concat") {
    int64_t axis = 0;
    return node.attributes->GetInt("axis", &axis) && axis == 1 && HoldsAll(node.inputs) &&
           std::all_of(node.inputs.begin(), node.inputs.end(), [this](int value) { return HasWholeBlocks(value); });
  }
  // Only some ways of resizing are passed through; which, is not worth being wrong about.
  return node.op_type == "Resize" || node.op_type == "Upsample" || node.IsOneOf(kReadBlocked);
}

// Weights [M, C / group, kH, kW]. A convolution of several groups is blocked where blocks do not cross groups.
bool BlockedLayout::KeptByConv(const GraphNode& node) {
  const int weights = graph_.Input(node, 1);
  if (weights == kNone || !IsConstantFloat(weights)) return false;
  const TensorFacts& w = graph_.Facts(weights);
  if (w.rank != 4) return false;
  const int bias = graph_.Input(node, 2);
  if (bias != kNone && !IsConstantFloat(bias)) return false;
  int64_t groups = 1;
  node.attributes->GetInt("group", &groups);
  if (groups <= 1) return true;
  const int64_t block = BlockSize(), outputs = w.dims[0], inputs = w.dims[1];
  if (outputs % block != 0) return false;
  const bool depthwise = inputs == 1 && outputs == groups;
  return depthwise || (inputs % block == 0 && outputs % groups == 0 && outputs / groups % block == 0);
}

// A factor for each channel, [C, 1, 1] with or without a batch in front, which ORT makes a depthwise convolution of.
bool BlockedLayout::IsScaleOfBlocked(const GraphNode& node) {
  if (node.inputs.size() != 2) return false;
  for (const size_t x : {size_t{0}, size_t{1}}) {
    if (!Holds(node.inputs[x]) || node.inputs[1 - x] == kNone || !IsConstantFloat(node.inputs[1 - x])) continue;
    const TensorFacts& scale = graph_.Facts(node.inputs[1 - x]);
    const int last = scale.rank - 1;
    if (last >= 2 && scale.dims[last] == 1 && scale.dims[last - 1] == 1 && scale.dims[last - 2] > 1) return true;
  }
  return false;
}

bool BlockedLayout::KeptByActivation(const FoundChain& found) {
  const Chain& chain = found.chain;
  const int x = chain.x.tensor.input;
  if (x == TensorRef::kAbsent || !Holds(found.inputs[static_cast<size_t>(x)])) return false;
  if (chain.x.quantization.present() || chain.store.quantizes()) return false;
  const std::vector<Step>& steps = chain.behind;
  const bool activates = chain.before.empty() && !steps.empty() && steps[0].kind == StepKind::kActivate &&
                         !steps[0].operand.present() && IsPassedThrough(found, steps[0].activation.kind);
  return activates && (steps.size() == 1 || (steps.size() == 2 && IsProductOfBlocked(found, steps[1])));
}

// A Mul by a blocked tensor of X's shape, as in HardSwish, which ORT writes out. Constants are not blocked.
bool BlockedLayout::IsProductOfBlocked(const FoundChain& found, const Step& step) {
  const int factor = step.operand.tensor.input;
  if (step.kind != StepKind::kMul || factor == TensorRef::kAbsent) return false;
  const auto value = [&](int input) { return found.inputs[static_cast<size_t>(input)]; };
  const std::vector<int> both = {value(found.chain.x.tensor.input), value(factor)};
  return HoldsAll(both) && MayHaveOneShape(both);
}

bool BlockedLayout::HoldsAll(const std::vector<int>& values) const {
  return std::all_of(values.begin(), values.end(), [this](int value) { return Holds(value); });
}

bool BlockedLayout::IsConstantFloat(int value) {
  const TensorFacts& facts = graph_.Facts(value);
  return facts.constant != nullptr && facts.type == DataType::kFloat32;
}

// Whether the channels of a tensor [N, C, H, W] fill blocks.
bool BlockedLayout::HasWholeBlocks(int value) {
  if (value == kNone) return false;
  const TensorFacts& facts = graph_.Facts(value);
  return facts.type == DataType::kFloat32 && facts.rank == 4 && facts.dims[1] > 0 && facts.dims[1] % BlockSize() == 0;
}

bool BlockedLayout::MayHaveOneShape(const std::vector<int>& values) {
  const TensorFacts first = graph_.Facts(values.front());
  return std::all_of(values.begin(), values.end(), [&](int value) {
    const TensorFacts& other = graph_.Facts(value);
    if (first.rank < 0 || other.rank < 0) return true;
    // A gate [N, C, 1, 1] is no tensor of that shape, whatever the latter's height is.
    const auto differ = [](int64_t a, int64_t b) { return a != b && (a >= 0 || b == 1) && (b >= 0 || a == 1); };
    if (first.rank != other.rank) return false;
    for (int i = 0; i < first.rank; ++i) {
      if (differ(first.dims[i], other.dims[i])) return false;
    }
    return true;
  });
}

}  // namespace normfuse::plugin
