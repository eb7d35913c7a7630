#include "plugin/islands/island_operators.h"

#include <algorithm>
#include <unordered_set>
#include <vector>

#include "directml/islands/einsum.h"
#include "directml/islands/island.h"
#include "plugin/host/options.h"

namespace normfuse::plugin {
namespace {

bool Refused(std::string* why, const std::string& text) {
  if (why != nullptr) *why = text;
  return false;
}

std::string ListOf(const int* numbers, int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += (i == 0 ? "" : ", ") + std::to_string(numbers[i]);
  return text;
}

bool Contains(const int* numbers, int count, size_t number) {
  return std::find(numbers, numbers + count, static_cast<int>(number)) != numbers + count;
}

// Whether attributes have values that the lowering knows.
bool ValuesFit(const GraphNode& node, const DirectMlOperatorSpec& row, std::string* why) {
  std::string words;
  if (node.op_type == "Einsum") {
    if (node.attributes->GetString("equation", &words) && directml::ReadEinsum(words)) return true;
    return Refused(why, "the equation '" + words + "' is no product of two operands");
  }
  for (int i = 0; i < row.value_count; ++i) {
    const AttributeValues& allowed = row.values[i];
    int64_t number = 0;
    if (node.attributes->GetInt(allowed.name, &number)) {
      words = std::to_string(number);
    } else if (!node.attributes->GetString(allowed.name, &words)) {
      continue;  // its default is one of them
    }
    if (std::string(allowed.values).find(" " + words + " ") != std::string::npos) continue;
    const std::string_view known = std::string_view(allowed.values).substr(1);
    return Refused(why, std::string("its attribute ") + allowed.name + " is '" + words +
                            "'; what can be expressed is: " + std::string(known.substr(0, known.size() - 1)));
  }
  return true;
}

bool AttributesFit(const GraphNode& node, const DirectMlOperatorSpec& row, std::string* why) {
  std::vector<std::string> names;
  if (node.node != nullptr && !ort::ListAttributes(node.node, &names).ok()) {
    return Refused(why, "its attributes cannot be read");
  }
  for (const std::string& name : names) {
    const bool known = std::any_of(row.attributes, row.attributes + row.attribute_count,
                                   [&](const AttributeSpec& attribute) { return name == attribute.name; });
    if (!known) return Refused(why, "its attribute " + name + " cannot be expressed");
  }
  return ValuesFit(node, row, why);
}

// One input or output of a node, and the words for it.
struct Port {
  const GraphView& graph;
  int value;
  std::string text() const { return "'" + graph.value(value).name + "'"; }
};

bool TypeFits(const Port& port, const TensorFacts& facts, const DirectMlOperatorSpec& row, std::string* why) {
  if (!directml::Reads(row, facts.type)) {
    const std::string type = facts.type == DataType::kUndefined ? "an unknown element type" : NameOf(facts.type);
    return Refused(why, port.text() + " has element type " + type);
  }
  if (facts.rank > kMaxRank) {
    return Refused(why, port.text() + " has more than " + std::to_string(kMaxRank) + " dimensions");
  }
  return true;
}

// DirectML has no tensors without elements; Concat leaves them out.
bool HasElements(const Port& port, const TensorFacts& facts, std::string* why) {
  return facts.rank < 0 || ElementsOf(facts) > 0 || Refused(why, port.text() + " has a dimension of 0");
}

// Of scales, zero points, and tensors that have to be there when a program is made.
bool ParameterFits(const Port& port, const TensorFacts& facts, const DirectMlOperatorSpec& row, size_t input,
                   std::string* why) {
  if (Contains(row.constants, row.constant_count, input)) {
    const bool fits = facts.constant && facts.type == DataType::kFloat32;
    return fits || Refused(why, port.text() + " is no constant of float32");
  }
  if (Contains(row.scalars, row.scalar_count, input)) {
    return (facts.rank >= 0 && ElementsOf(facts) == 1) || Refused(why, port.text() + " is not known to be one element");
  }
  const bool is_vector = Contains(row.vectors, row.vector_count, input);
  return !is_vector || (facts.rank >= 0 && facts.rank <= 1) ||
         Refused(why, port.text() + " is not known to be a vector");
}

constexpr const char* kOfFloats = " is of int64, of floats that may be larger than 32 bits";

// Integers of 64 bits have 32 on the GPU. Those that arrive there are checked; those that it makes of floats are not.
bool CastFits(GraphView& graph, const GraphNode& node, std::string* why) {
  if (node.op_type != "Cast" || !IsFloat(graph.Facts(node.inputs.front()).type)) return true;
  const Port port{graph, node.outputs.front()};
  if (graph.Facts(port.value).type != DataType::kInt64) return true;
  return Refused(why, port.text() + kOfFloats);
}

// Whether integers of 64 bits were floats once, whatever became of them since.
bool AreOfFloats(GraphView& graph, int value) {
  std::vector<int> ahead = {value};
  std::unordered_set<int> seen = {value};
  while (!ahead.empty()) {
    const int producer = graph.value(ahead.back()).producer;
    ahead.pop_back();
    if (producer == kNone) continue;
    const GraphNode& node = graph.node(producer);
    for (const int input : node.inputs) {
      if (input == kNone) continue;
      const DataType type = graph.Facts(input).type;
      if (node.op_type == "Cast" && IsFloat(type)) return true;
      if (type == DataType::kInt64 && seen.insert(input).second) ahead.push_back(input);
    }
  }
  return false;
}

// Large ones that are only moved and selected are an error where they are selected; an operator that computes reads all.
bool IntegersFit(GraphView& graph, const GraphNode& node, const DirectMlOperatorSpec& row, std::string* why) {
  if (row.moves || node.op_type == "Where") return true;
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    const int value = node.inputs[i];
    if (value == kNone || DecidesShapes(row, i) || graph.Facts(value).type != DataType::kInt64) continue;
    if (AreOfFloats(graph, value)) return Refused(why, Port{graph, value}.text() + kOfFloats);
  }
  return true;
}

bool RankFits(const Port& port, const TensorFacts& facts, const DirectMlOperatorSpec& row, std::string* why) {
  if (facts.rank >= row.ranks[0] && facts.rank <= row.ranks[1]) return true;
  if (facts.rank < 0) return Refused(why, "the rank of " + port.text() + " is not known");
  return Refused(why, port.text() + " has " + std::to_string(facts.rank) + " dimensions; " +
                          std::to_string(row.ranks[0]) + " to " + std::to_string(row.ranks[1]) + " can be expressed");
}

}  // namespace

double ElementsOf(const TensorFacts& facts) {
  double count = 1;
  for (int i = 0; i < facts.rank && i < kMaxRank; ++i) {
    count *= facts.dims[i] < 0 ? kAssumedDimension : static_cast<double>(facts.dims[i]);
  }
  return count;
}

bool DecidesShapes(const DirectMlOperatorSpec& row, size_t input) {
  return Contains(row.shape_inputs, row.shape_input_count, input);
}

const DirectMlOperatorSpec* FindDirectMlOperator(const GraphNode& node, std::string* why) {
  const auto refuse = [why](const std::string& text) {
    Refused(why, text);
    return nullptr;
  };
  if (!node.provider.empty() && node.provider != kEpName) return refuse("it is assigned to " + node.provider);
  const auto* row = std::find_if(std::begin(kDirectMlOperators), std::end(kDirectMlOperators),
                                 [&](const DirectMlOperatorSpec& spec) { return node.op_type == spec.name; });
  if (!node.domain.empty() || row == std::end(kDirectMlOperators)) return refuse("islands have no such operator");
  if (!Contains(row->versions, row->version_count, static_cast<size_t>(node.since_version))) {
    return refuse("it is version " + std::to_string(node.since_version) + " of the operator, of which " +
                  ListOf(row->versions, row->version_count) + " are known");
  }
  const auto outputs =
      std::count_if(node.outputs.begin(), node.outputs.end(), [](int value) { return value != kNone; });
  if (outputs > row->most_outputs) {
    return refuse("it has " + std::to_string(outputs) + " outputs, of which " + std::to_string(row->most_outputs) +
                  " can be expressed");
  }
  return AttributesFit(node, *row, why) ? row : nullptr;
}

bool TensorsFit(GraphView& graph, const GraphNode& node, const DirectMlOperatorSpec& row, const IsKnown& is_known,
                std::string* why) {
  if (!node.inputs.empty() && node.inputs.front() != kNone) {
    const int value = node.inputs.front();
    if (!RankFits({graph, value}, graph.Facts(value), row, why)) return false;
  }
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    const int value = node.inputs[i];
    if (value == kNone) continue;
    const Port port{graph, value};
    const TensorFacts& facts = graph.Facts(value);
    if (!ParameterFits(port, facts, row, i, why)) return false;
    if (Contains(row.constants, row.constant_count, i)) continue;
    if (DecidesShapes(row, i)) {
      if (is_known(value)) continue;
      return Refused(why, port.text() + ", which decides a shape, is computed by the GPU or of large tensors");
    }
    if (!TypeFits(port, facts, row, why)) return false;
    if (node.op_type != "Concat" && !HasElements(port, facts, why)) return false;
  }
  if (!CastFits(graph, node, why) || !IntegersFit(graph, node, row, why)) return false;
  return std::all_of(node.outputs.begin(), node.outputs.end(), [&](int value) {
    if (value == kNone) return true;
    const Port port{graph, value};
    const TensorFacts& facts = graph.Facts(value);
    return TypeFits(port, facts, row, why) && HasElements(port, facts, why);
  });
}

}  // namespace normfuse::plugin
