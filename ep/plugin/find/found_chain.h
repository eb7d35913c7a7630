// Chains of canonical operators that become one fused node:
//   [DequantizeLinear] -> [Add] -> normalisation -> [activation] -> [Mul, Add, activation ...] -> [QuantizeLinear]
//   Cast of int32 -> Mul -> [activation] -> [Mul, Add, activation ...] -> [QuantizeLinear]
//   [DequantizeLinear] -> [Mul] -> [Add] -> [Where] -> Softmax -> [IsNaN and Where] -> [QuantizeLinear]
//   [DequantizeLinear] -> [Add of a constant] -> activation -> [Mul, Add, activation ...] -> [QuantizeLinear]
//   [Concat] -> [DequantizeLinear] -> Add, Mul or Div of tensors that are quantised, pairs, activations ... -> [QuantizeLinear]
//     -> [Split]
// with Cast of int32 and Mul instead of a DequantizeLinear, with DynamicQuantizeLinear instead of QuantizeLinear, and nodes of our
// own operators. Decomposed spellings are the rewriting pass's job alone.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "chain/chain.h"
#include "chain/reason.h"
#include "plugin/find/graph_view.h"
#include "plugin/find/integer_units.h"

namespace normfuse::plugin {

struct FoundChain {
  Chain chain;              // TensorRef::input indexes `inputs`, the outputs index `outputs`
  std::vector<int> nodes;   // of the graph, from the first to the last
  std::vector<int> inputs;  // values
  std::vector<int> outputs;
  std::string description;  // "DequantizeLinear -> LayerNormalization -> Gelu"
  // Values whose Concat is X, where that is the first of the nodes; those into which Y is split, where that is the last one, and their
  // sizes. X, or Y, is the first of them then.
  std::vector<int> x_parts = {};
  std::vector<int> y_parts = {};
  std::vector<int64_t> sizes = {};
  int64_t axis = 0;
};

// What decided whether a chain is claimed.
enum class DecidedBy { kCostModel, kTuning, kOption };

// What became of one normalisation, activation, Q/DQ or ai.normfuse node: a chain, or the reason why not.
struct Site {
  int anchor = kNone;  // node
  std::optional<FoundChain> found;
  std::optional<FoundChain> alone = {};  // a node of our own, where `found` is that and its neighbours
  std::optional<Declined> declined;
  std::string group = {};  // of chains: those that tuning measures together
  DecidedBy decided_by = DecidedBy::kCostModel;
  std::optional<Declined> off_gpu =
      {};  // why a chain runs on the CPU path although there is a GPU, if not for what it is
};

// Whether a chain may take up the neighbours of its anchor. Single nodes can run on registered kernels; longer chains
// have to be compiled by ORT. Nodes of our own have most of theirs in them already; what dynamic quantisers write around them
// does not run on a GPU.
enum class ChainLength { kAny, kOwnNodesAlone, kSingleNode };

// Whether the chain begins with the Add of two uint8 tensors whose sum is uint8 again. ONNX Runtime has a kernel for it
// that never leaves the integers (QLinearAdd).
bool AddsIntegers(const Chain& chain);

// What chains are looked for.
struct Search {
  ChainLength length = ChainLength::kAny;
  // With these, pairs of QuantizeLinear and DequantizeLinear become steps, but for those that belong to a product.
  IntegerUnits* units = nullptr;
  // What ONNX Runtime does as well or better is no part of chains: an Add that it runs in integers, an activation that it runs inside
  // of the convolution before it, halves of pairs whose other half keeps a product in integers. `units` is needed for these.
  bool leaves_to_ort = false;
  // A value that two nodes read may be kept until the second one: on the CPU.
  bool keeps_values = false;
  // By node, those that are claimed already; null: none.
  const std::vector<bool>* claimed = nullptr;
};

// Every site of the graph, in the order of its nodes. A node is in one chain at most.
std::vector<Site> FindSites(GraphView& graph, const Search& search);

}  // namespace normfuse::plugin
