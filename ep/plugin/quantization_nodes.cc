#include "plugin/quantization_nodes.h"

#include <cstring>

namespace normfuse::plugin {
namespace {

bool IsOf(const GraphNode& node, const char* op_type) {
  return node.op_type == op_type && (node.domain.empty() || node.domain == "com.microsoft");
}

bool HaveSameLayout(const GraphNode& a, const GraphNode& b) {
  for (const char* name : {"axis", "block_size"}) {
    int64_t first = name[0] == 'a' ? 1 : 0;
    int64_t second = first;
    a.attributes->GetInt(name, &first);
    b.attributes->GetInt(name, &second);
    if (first != second) return false;
  }
  return true;
}

}  // namespace

bool DividesInFloat32(const GraphNode& node) {
  int64_t precision = 0;
  node.attributes->GetInt("precision", &precision);
  return precision == 0 || precision == 1;
}

bool IsDequantize(const GraphNode& node) { return IsOf(node, "DequantizeLinear"); }

bool IsQuantize(const GraphNode& node) { return IsOf(node, "QuantizeLinear") && DividesInFloat32(node); }

bool SameConstant(GraphView& graph, int value, int other) {
  if (value == other) return true;
  if (value == kNone || other == kNone) return false;
  const std::shared_ptr<const ConstantTensor> a = graph.Facts(value).constant;
  const std::shared_ptr<const ConstantTensor> b = graph.Facts(other).constant;
  if (!a || !b || a->type != b->type || a->ElementCount() != b->ElementCount()) return false;
  const bool one_number = a->ElementCount() == 1;
  return (one_number || a->dims == b->dims) &&
         std::memcmp(a->data, b->data, BytesFor(a->type, static_cast<size_t>(a->ElementCount()))) == 0;
}

bool AreTwins(const GraphView& graph, const GraphNode& a, const GraphNode& b) {
  if (!IsDequantize(a) || !IsDequantize(b) || a.domain != b.domain) return false;
  for (size_t position = 0; position < 3; ++position) {
    if (graph.Input(a, position) != graph.Input(b, position)) return false;
  }
  return HaveSameLayout(a, b);
}

bool HaveSameParameters(GraphView& graph, const GraphNode& quantize, const GraphNode& dequantize) {
  for (size_t position = 1; position < 3; ++position) {
    if (!SameConstant(graph, graph.Input(quantize, position), graph.Input(dequantize, position))) return false;
  }
  return HaveSameLayout(quantize, dequantize);
}

}  // namespace normfuse::plugin
