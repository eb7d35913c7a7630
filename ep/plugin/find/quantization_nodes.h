// QuantizeLinear and DequantizeLinear nodes, and when two of them belong together.
#pragma once

#include <optional>

#include "plugin/find/graph_view.h"

namespace normfuse::plugin {

// Whether a QuantizeLinear asks for no other type than float32 to divide in (attribute precision).
bool DividesInFloat32(const GraphNode& node);

bool IsDequantize(const GraphNode& node);

// Those that divide in float32 alone.
bool IsQuantize(const GraphNode& node);

// Whether the value lies between a QuantizeLinear and its one DequantizeLinear. So it may beside a node of our own: one that is
// given back becomes standard nodes, the first of which dequantises, and the last of which quantises.
bool IsInPair(const GraphView& graph, int value);

// Whether two values are one, or constants of the same type, shape and numbers.
bool SameConstant(GraphView& graph, int value, int other);

// Whether two nodes dequantise the same tensor in the same way.
bool AreTwins(const GraphView& graph, const GraphNode& a, const GraphNode& b);

// Whether a QuantizeLinear and a DequantizeLinear have the same scale, zero point, axis and blocks.
bool HaveSameParameters(GraphView& graph, const GraphNode& quantize, const GraphNode& dequantize);

struct FloatRange {
  float low = 0.0f;
  float high = 0.0f;
};

// What the bounds of a Clip of integers stand for, which a QuantizeLinear made. As dequantised numbers are in the order of the
// integers, a Clip to these bounds is the same behind the DequantizeLinear. None where they are not known, or where that is not so:
// where the scale is not one positive number, or numbers overflow.
std::optional<FloatRange> DequantizedBounds(GraphView& graph, const GraphNode& quantize, const GraphNode& clip);

}  // namespace normfuse::plugin
