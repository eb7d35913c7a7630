#include "plugin/find/int8_products.h"

#include <algorithm>

#include "plugin/find/quantization_nodes.h"

namespace normfuse::plugin {
namespace {

bool IsProduct(const GraphNode& node) { return node.Is("", "MatMul") || node.Is("", "Gemm") || node.Is("", "Conv"); }

bool IsInt8(GraphView& graph, int value) { return value != kNone && graph.Facts(value).type == DataType::kInt8; }

bool IsConstant(GraphView& graph, int value) {
  return value != kNone && graph.value(value).producer == kNone && graph.Facts(value).constant != nullptr;
}

// Whether ORT, with nothing claimed, runs a product of int8 in integers.
bool RunsInIntegers(GraphView& graph, const GraphNode& product) {
  bool multiplies_int8 = false;
  for (const size_t position : {0, 1}) {
    const GraphNode* dequantize = graph.ProducerOf(graph.Input(product, position));
    if (dequantize == nullptr || !IsDequantize(*dequantize)) return false;
    const int source = graph.Input(*dequantize, 0);
    if (!IsInt8(graph, source) || IsConstant(graph, source)) continue;
    if (!IsInPair(graph, source)) return false;
    multiplies_int8 = true;
  }
  const int reader = graph.OnlyReader(graph.Output(product, 0));
  if (reader == kNone || !IsQuantize(graph.node(reader))) return multiplies_int8 && !product.Is("", "Conv");
  const int y = graph.Output(graph.node(reader), 0);
  return multiplies_int8 && (!IsInt8(graph, y) || IsInPair(graph, y));
}

bool IsResultOfProduct(GraphView& graph, int value) {
  if (!IsInt8(graph, value) || !IsInPair(graph, value)) return false;
  const GraphNode* quantize = graph.ProducerOf(value);
  const GraphNode* product = quantize->inputs.empty() ? nullptr : graph.ProducerOf(quantize->inputs.front());
  return product != nullptr && IsProduct(*product) && RunsInIntegers(graph, *product);
}

bool IsFactorOfProduct(GraphView& graph, int value) {
  if (!IsInt8(graph, value) || !IsInPair(graph, value)) return false;
  const int factor = graph.Output(graph.node(graph.OnlyReader(value)), 0);
  if (factor == kNone) return false;
  const std::vector<int>& consumers = graph.value(factor).consumers;
  return std::any_of(consumers.begin(), consumers.end(), [&](int consumer) {
    return consumer != kNone && IsProduct(graph.node(consumer)) && RunsInIntegers(graph, graph.node(consumer));
  });
}

}  // namespace

bool SplitsInt8Pair(GraphView& graph, const FoundChain& found) {
  return std::any_of(found.inputs.begin(), found.inputs.end(),
                     [&](int value) { return IsResultOfProduct(graph, value); }) ||
         std::any_of(found.outputs.begin(), found.outputs.end(),
                     [&](int value) { return IsFactorOfProduct(graph, value); });
}

}  // namespace normfuse::plugin
