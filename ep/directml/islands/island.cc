#include "directml/islands/island.h"

#include <algorithm>

namespace normfuse::directml {

int64_t IslandAttributes::Int(const char* name, int64_t otherwise) const {
  const std::vector<int64_t>* values = Ints(name);
  return values == nullptr || values->empty() ? otherwise : values->front();
}

float IslandAttributes::Float(const char* name, float otherwise) const {
  const auto found = floats.find(name);
  return found == floats.end() ? otherwise : found->second;
}

std::string IslandAttributes::String(const char* name, const char* otherwise) const {
  const auto found = strings.find(name);
  return found == strings.end() ? otherwise : found->second;
}

const std::vector<int64_t>* IslandAttributes::Ints(const char* name) const {
  const auto found = ints.find(name);
  return found == ints.end() ? nullptr : &found->second;
}

bool Reads(const DirectMlOperatorSpec& row, DataType type) {
  return static_cast<unsigned>(type) < 32 && (row.types >> static_cast<unsigned>(type) & 1U) != 0;
}

std::vector<bool> InputsReadOnCpu(const Island& island) {
  std::vector<bool> needed(island.values.size(), false);
  const auto need = [&](int value) {
    if (value != kNoValue) needed[static_cast<size_t>(value)] = true;
  };
  for (auto node = island.nodes.rbegin(); node != island.nodes.rend(); ++node) {
    if (node->chain) continue;
    const DirectMlOperatorSpec& row = kDirectMlOperators[static_cast<int>(node->op)];
    for (int i = 0; i < row.shape_input_count; ++i) {
      const auto at = static_cast<size_t>(row.shape_inputs[i]);
      if (at < node->inputs.size()) need(node->inputs[at]);
    }
    // Integers that the GPU cannot compute with.
    const bool is_integer = row.on_cpu && !Reads(row, island.value(node->outputs.front()).type);
    const bool is_needed = is_integer || std::any_of(node->outputs.begin(), node->outputs.end(), [&](int value) {
                             return value != kNoValue && needed[static_cast<size_t>(value)];
                           });
    if (!is_needed || node->op == DirectMlOperator::kShape) continue;
    for (int value : node->inputs) need(value);
  }
  std::vector<bool> read;
  for (size_t i = 0; i < island.values.size(); ++i) {
    const int input = island.values[i].input;
    if (input == kNoValue) continue;
    if (read.size() <= static_cast<size_t>(input)) read.resize(static_cast<size_t>(input) + 1);
    read[static_cast<size_t>(input)] = needed[i] && !island.values[i].constant;
  }
  return read;
}

}  // namespace normfuse::directml
