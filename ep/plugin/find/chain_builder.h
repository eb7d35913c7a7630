// Grows one chain: the bookkeeping of its nodes, inputs and outputs, and the absorption of neighbours.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "plugin/find/found_chain.h"
#include "plugin/find/quantization_nodes.h"

namespace normfuse::plugin {

// The step that an Add, Mul or Div is.
std::optional<StepKind> CombinationOf(const GraphNode& node);

// Whether a pair, with or without a Clip inside, is the last of the steps.
bool EndsInPair(const std::vector<Step>& steps);

// Of shorter rows between pairs ONNX Runtime's softmax is as fast.
inline bool HasLongRows(const auto& shape) {
  constexpr int64_t kLongRow = 1024;
  return shape.rank > 0 && shape.rank <= kMaxRank && shape.dims[shape.rank - 1] >= kLongRow;
}

// A QuantizeLinear and the DequantizeLinear of the same parameters behind it. Between the two Brevitas writes a Clip of the
// integers, for types of fewer than 8 bits.
struct QuantizedPair {
  int quantize = kNone;
  int clip = kNone;
  int dequantize = kNone;
  FloatRange range;  // what the Clip keeps the dequantised numbers within
};

class ChainBuilder {
 public:
  // `taken[n]` is true for nodes that are in another chain or belong to another provider.
  ChainBuilder(GraphView& graph, const std::vector<bool>& taken, const Search& search, int anchor);
  // Goes on from a chain that is a node of our own operators, the anchor.
  ChainBuilder(GraphView& graph, const std::vector<bool>& taken, const Search& search, int anchor, FoundChain own);

  GraphView& graph() { return graph_; }
  const GraphNode& anchor() const { return graph_.node(anchor_); }
  Chain& chain() { return found_.chain; }

  // The constant or the chain input that stands for a value.
  TensorRef Ref(int value);

  // A tensor that is read as it is, or through a DequantizeLinear that then joins the chain. `name` is for messages.
  Operand ReadOperand(int value, const char* name, Align align = Align::kTrailing);

  // A step behind what there is so far, with such an operand; none if `value` is.
  void ReadStep(StepKind kind, int value, const char* name, Align align = Align::kTrailing);

  // The steps before the normalisation.
  std::vector<Step>& before();

  // X of the chain: through [DequantizeLinear], through Add when `with_residual`, and through a Mul by one number before
  // that when `with_factor`. A sum that is needed elsewhere becomes an output of the chain.
  void ReadX(int value, bool with_residual, bool with_factor = false);

  // An Add of a constant before an activation: the chain's bias.
  void ReadXWithConstantBias(int value);

  // Makes `value` an output of the chain; returns its position.
  int AddOutput(int value);

  // Continues behind `value` (Y so far): activation, then QuantizeLinear. Sets the chain's Y.
  void Finish(int value);

  // Takes the activation that `node` (or it and the Mul behind it) computes from `value`; false when it is none that
  // the chain can hold. On success *value is the activation's output.
  bool TakeActivation(int* value);
  bool TakeQuantize(int* value);
  // A DynamicQuantizeLinear of `value`, which then may have other readers, too.
  bool TakeDynamicQuantize(int* value);
  // Takes Where(IsNaN(value), 0, value), as exporters write it behind the softmax of an attention whose mask may hide a
  // whole row.
  bool TakeNanToZero(int* value);
  // Takes a Mul or an Add behind `value` whose other operand fits it: a scale, a bias or a gate.
  bool TakeStep(int* value);

  // Activation whose node is the anchor: X is its input.
  bool ReadAnchorActivation(int* x, int* y);

  // Takes what dynamic quantisers write around a node of our own: Cast of int32 and Mul in front of it, and a
  // DynamicQuantizeLinear behind it. False: there is neither.
  bool TakeAroundOwnNode();

  // Cast and Mul behind a product of integers, of which the Mul is the anchor.
  bool ReadAnchorIntegers();

  // An Add, Mul or Div among quantised tensors that is the anchor.
  bool ReadAnchorStep(int* y);

  // A pair of a QuantizeLinear, the anchor, and a DequantizeLinear of the same parameters.
  bool ReadAnchorPair(int* y);

  // X, behind pairs in front of the value, which become the first steps.
  void ReadXBehindPairs(int value);

  // DequantizeLinear or QuantizeLinear that is the anchor.
  void ReadAnchorQuantization(bool dequantize);

  // The finished chain, or why it cannot be one.
  std::optional<Declined> Take(FoundChain* found);

 private:
  void AddNode(int node) { found_.nodes.push_back(node); }
  // The only node that reads the value, if the value is used nowhere else and that node is free.
  int SoleConsumer(int value) const;
  int FreeProducer(int value, std::string_view op_type) const;
  // That of ONNX's own domain, if nothing else reads the value.
  int InnerProducer(int value, std::string_view op_type) const;
  struct InTurn {
    int first;
    int second;
  };
  // The only two nodes that read the value, of which the second alone reads what the first makes of it.
  std::optional<InTurn> ReadersInTurn(int value, std::string_view first, std::string_view second) const;
  struct AddedConstant {
    int x;
    int constant;
  };
  // An Add of a constant of at most one dimension.
  std::optional<AddedConstant> TakeAddedConstant(int value, int least_rank);
  void ReadQuantization(const GraphNode& node, Quantization* quantization);
  bool TakeDequantize(int value, Operand* operand);
  bool TakeIntegers(int mul, Operand* operand);
  int CastOfIntegers(int value) const;
  bool IsScaleOf(const TensorFacts& scale, const TensorFacts& integers) const;
  bool TakeIntegersInFront();
  bool TakeCastOfFirstProduct(int value, Operand* x);
  bool IsLeftToProduct(const GraphNode& quantize) const;
  bool IsHalfOfPair(int value);
  bool IsPair(int quantize, int dequantize);
  std::optional<QuantizedPair> PairFrom(int quantize);
  bool ReadBounds(QuantizedPair* pair);
  std::vector<Step> StepsOfPair(const QuantizedPair& pair);
  std::optional<QuantizedPair> PairBehind(int value);
  std::optional<QuantizedPair> PairInFront(int value);
  void TakePairs(int* value);
  bool SuitsPair(const QuantizedPair& pair) const;
  bool HasRoomFor(int tensors) const;
  bool IsFreeDequantized(int value) const;
  bool IsAmongQuantised(const GraphNode& step, int operand);
  void TakeSharedQuantize();
  std::optional<QuantizedPair> SharedPair(int quantized);
  bool IsBeforePair(const GraphNode& node);
  Operand ReadQuantisedOperand(int value);
  bool TakeResidualAdd(int value, bool with_factor = false);
  void TakeFactor(int* value);
  std::optional<Step> TakeMask(int* value);
  bool TakeRequantizedAdd(int value);
  Operand TakeResidualBias(int* value);
  Operand ReadTensor(int value, const char* name);
  bool TakeSilu(int* value);
  bool TakeSiluOfTwins(int* value);
  bool ReadActivationParams(const GraphNode& node, const ActivationSpelling& spelling, Step* step);
  bool ReadScalar(int value, float* scalar);
  bool IsGateOfX(int operand) const;
  bool IsX(int value) const;
  bool EndsFormula(const GraphNode& node) const;
  bool BelongsElsewhere(const GraphNode& node, int operand, const TensorFacts& whole);
  void Describe();
  std::optional<Declined> CheckTypes();
  bool OutputsAreSafe();

  GraphView& graph_;
  const std::vector<bool>& taken_;
  ChainLength length_;
  IntegerUnits* units_ = nullptr;  // null: no pairs are taken
  bool leaves_to_ort_ = false;
  bool keeps_values_ = false;
  int anchor_;
  FoundChain found_;
  int y_value_ = kNone;
  bool exports_inner_value_ = false;
  bool reads_integers_ = false;  // X is what ReadAnchorIntegers found
};

}  // namespace normfuse::plugin
