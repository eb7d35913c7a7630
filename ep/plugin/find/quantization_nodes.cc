#include "plugin/find/quantization_nodes.h"

#include <cmath>
#include <cstring>

#include "cpu/run/elements.h"

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

// The one number that a constant is.
std::optional<float> NumberOf(GraphView& graph, int value, DataType type) {
  const std::shared_ptr<const ConstantTensor>& constant = graph.Facts(value).constant;
  if (!constant || constant->type != type || constant->ElementCount() != 1) return std::nullopt;
  return static_cast<float>(cpu::ReadElement(type, constant->data, 0));
}

}  // namespace

bool DividesInFloat32(const GraphNode& node) {
  int64_t precision = 0;
  node.attributes->GetInt("precision", &precision);
  return precision == 0 || precision == 1;
}

bool IsDequantize(const GraphNode& node) { return IsOf(node, "DequantizeLinear"); }

bool IsQuantize(const GraphNode& node) { return IsOf(node, "QuantizeLinear") && DividesInFloat32(node); }

bool IsInPair(const GraphView& graph, int value) {
  const GraphNode* producer = graph.ProducerOf(value);
  const int reader = graph.OnlyReader(value);
  if (producer == nullptr || reader == kNone) return false;
  const GraphNode& behind = graph.node(reader);
  return (IsQuantize(*producer) || producer->domain == kOperatorDomain) &&
         (IsDequantize(behind) || behind.domain == kOperatorDomain);
}

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

std::optional<FloatRange> DequantizedBounds(GraphView& graph, const GraphNode& quantize, const GraphNode& clip) {
  const DataType type = graph.Facts(graph.Output(quantize, 0)).type;
  int64_t block_size = 0;
  quantize.attributes->GetInt("block_size", &block_size);
  if (!IsQuantized(type) || IsFloat8(type) || BitsOf(type) > 16 || block_size != 0) return std::nullopt;
  const std::optional<float> scale = NumberOf(graph, graph.Input(quantize, 1), DataType::kFloat32);
  const int zero_point = graph.Input(quantize, 2);
  const std::optional<float> zero = zero_point == kNone ? 0.0f : NumberOf(graph, zero_point, type);
  if (!scale || !zero || !(*scale > 0)) return std::nullopt;
  float ends[2];
  cpu::IntegerRange(type, &ends[0], &ends[1]);
  for (size_t position = 1; position <= 2; ++position) {
    const int bound = graph.Input(clip, position);
    if (bound == kNone) continue;
    const std::optional<float> number = NumberOf(graph, bound, type);
    if (!number) return std::nullopt;
    ends[position - 1] = *number;
  }
  const FloatRange range = {(ends[0] - *zero) * *scale, (ends[1] - *zero) * *scale};
  return std::isfinite(range.low) && std::isfinite(range.high) ? std::optional(range) : std::nullopt;
}

}  // namespace normfuse::plugin
