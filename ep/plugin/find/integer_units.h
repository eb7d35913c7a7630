// Operators that ORT's CPU provider runs on integers, together with the DequantizeLinear before and the QuantizeLinear
// behind them.
//
// ORT puts them together after we have claimed (QDQSelectorActionTransformer): DequantizeLinear -> Conv -> QuantizeLinear
// becomes a QLinearConv, and so on. Whether it does depends on the operator, on the element types, and on who else reads
// what is between: a QuantizeLinear behind a Conv to uint16 belongs to nothing.
#pragma once

#include <vector>

#include "plugin/find/graph_view.h"

namespace normfuse::plugin {

// What a QuantizeLinear or DequantizeLinear is a part of.
enum class IntegerUnit {
  kNone,
  kElementwise,  // Add, Mul, Sigmoid, LeakyRelu, Softmax: kernels that a chain may be faster than
  kProduct,      // a product, or what only moves or picks elements
};

class IntegerUnits {
 public:
  // `int8_stays`: ORT does not turn pairs of int8 into pairs of uint8, which its kernels on x86 take.
  IntegerUnits(GraphView& graph, bool int8_stays);
  // None, as on a GPU, where ORT runs nothing.
  explicit IntegerUnits(GraphView& graph);

  IntegerUnit UnitOf(int node) const { return units_[static_cast<size_t>(node)]; }
  bool IsOfProduct(int node) const { return UnitOf(node) == IntegerUnit::kProduct; }

  // Whether the node is the Relu or Clip behind such a product, with or without a QuantizeLinear behind it.
  bool ClipsProduct(int node) const { return node >= 0 && clips_product_[static_cast<size_t>(node)]; }

  // Whether the value lies between a QuantizeLinear and a DequantizeLinear of which one is part of a product that stays in
  // integers only as long as both are ORT's (int8_products.h).
  bool NeedsBothEnds(int value);

 private:
  struct Surroundings;

  void Mark(const GraphNode& node);
  void MarkWeights(const GraphNode& node, const Surroundings& around);
  Surroundings Around(const GraphNode& node) const;
  DataType TypeOf(int value);
  DataType InputType(const Surroundings& around, size_t position);
  DataType OutputType(const Surroundings& around);
  bool HasBias(const Surroundings& around, const GraphNode& node);
  bool IsConv(const Surroundings& around, const GraphNode& node);
  bool IsMatMul(const Surroundings& around);
  bool IsGemm(const Surroundings& around, const GraphNode& node);
  bool IsOfOneType(const Surroundings& around, size_t inputs, bool allows_16_bits);
  bool IsMove(const Surroundings& around, bool allows_16_bits);
  IntegerUnit UnitAround(const Surroundings& around, const GraphNode& node);

  GraphView& graph_;
  bool takes_int8_;  // kernels of products
  bool shifts_int8_;
  std::vector<IntegerUnit> units_;   // by node
  std::vector<bool> clips_product_;  // likewise
};

}  // namespace normfuse::plugin
