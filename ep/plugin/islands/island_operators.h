// Which operators may join an island on DirectML, by directml_operators.toml, and why others stay on the CPU.
#pragma once

#include <functional>
#include <string>

#include "plugin/find/graph_view.h"
#include "spec/tables.h"

namespace normfuse::plugin {

// Whether the content of a value is known when a program is made. kNone, for an input that is left out, counts as known.
using IsKnown = std::function<bool(int value)>;

// The table's row for a node of the graph; null where there is none for its operator, version, attributes and outputs. `why`,
// where it is given, then says what is in the way, as the end of a sentence about the node.
const DirectMlOperatorSpec* FindDirectMlOperator(const GraphNode& node, std::string* why = nullptr);

// Whether element types, ranks and constants of a node are such that a GPU takes it.
bool TensorsFit(GraphView& graph, const GraphNode& node, const DirectMlOperatorSpec& row, const IsKnown& is_known,
                std::string* why = nullptr);

// Whether the row lists the position among its `shape_inputs`.
bool DecidesShapes(const DirectMlOperatorSpec& row, size_t input);

// Elements of a tensor, those dimensions that are not known being taken as kAssumedDimension.
double ElementsOf(const TensorFacts& facts);

}  // namespace normfuse::plugin
