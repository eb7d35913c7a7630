// Grows one chain: the bookkeeping of its nodes, inputs and outputs, and the absorption of neighbours.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "plugin/chain.h"

namespace normfuse::plugin {

// Whether a QuantizeLinear asks for no other type than float32 to divide in (attribute precision).
bool DividesInFloat32(const GraphNode& node);

class ChainBuilder {
 public:
  // `taken[n]` is true for nodes that are in another chain or belong to another provider.
  ChainBuilder(GraphView& graph, const std::vector<bool>& taken, ChainLength length, int anchor);

  GraphView& graph() { return graph_; }
  const GraphNode& anchor() const { return graph_.node(anchor_); }
  Plan& plan() { return chain_.plan; }

  // The constant or the chain input that stands for a value.
  TensorRef Ref(int value);

  // A tensor that is read as it is, or through a DequantizeLinear that then joins the chain.
  Operand ReadOperand(int value);

  // X of the plan: through [DequantizeLinear], and through Add when `with_residual`. A sum that is needed elsewhere
  // becomes an output of the chain.
  void ReadX(int value, bool with_residual);

  // An Add of a constant before an activation: the plan's bias.
  void ReadXWithConstantBias(int value);

  // Makes `value` an output of the chain; returns its position.
  int AddOutput(int value);

  // Continues behind `value` (Y so far): activation, then QuantizeLinear. Sets the plan's Y.
  void Finish(int value);

  // Takes the activation that `node` (or it and the Mul behind it) computes from `value`; false when it is none that
  // the plan can hold. On success *value is the activation's output.
  bool TakeActivation(int* value);
  bool TakeQuantize(int* value);

  // Activation whose node is the anchor: X is its input.
  bool ReadAnchorActivation(int* x, int* y);

  // DequantizeLinear or QuantizeLinear that is the anchor.
  void ReadAnchorQuantization(bool dequantize);

  // The finished chain, or why it cannot be one.
  std::optional<Declined> Take(Chain* chain);

 private:
  void AddNode(int node) { chain_.nodes.push_back(node); }
  // The only node that reads the value, if the value is used nowhere else and that node is free.
  int SoleConsumer(int value) const;
  int FreeProducer(int value, std::string_view op_type) const;
  bool TakeDequantize(int value, Operand* operand);
  bool TakeResidualAdd(int value);
  bool TakeRequantizedAdd(int value);
  bool SameConstant(int value, int other);
  void TakeResidualBias(int* value);
  bool TakeSilu(int* value);
  bool TakeSiluOfTwins(int* value);
  bool AreTwins(const GraphNode& a, const GraphNode& b) const;
  bool ReadActivationParams(const GraphNode& node, const ActivationSpelling& spelling, ActivationCall* call);
  bool ReadScalar(int value, float* scalar);
  void Describe();
  std::optional<Declined> CheckTypes();
  bool OutputsAreSafe();

  GraphView& graph_;
  const std::vector<bool>& taken_;
  ChainLength length_;
  int anchor_;
  Chain chain_;
  int y_value_ = kNone;
  bool exports_inner_value_ = false;
};

}  // namespace normfuse::plugin
