// QuantizeLinear and DequantizeLinear nodes, and when two of them belong together.
#pragma once

#include "plugin/graph_view.h"

namespace normfuse::plugin {

// Whether a QuantizeLinear asks for no other type than float32 to divide in (attribute precision).
bool DividesInFloat32(const GraphNode& node);

bool IsDequantize(const GraphNode& node);

// Those that divide in float32 alone.
bool IsQuantize(const GraphNode& node);

// Whether two values are one, or constants of the same type, shape and numbers.
bool SameConstant(GraphView& graph, int value, int other);

// Whether two nodes dequantise the same tensor in the same way.
bool AreTwins(const GraphView& graph, const GraphNode& a, const GraphNode& b);

// Whether a QuantizeLinear and a DequantizeLinear have the same scale, zero point, axis and blocks.
bool HaveSameParameters(GraphView& graph, const GraphNode& quantize, const GraphNode& dequantize);

}  // namespace normfuse::plugin
