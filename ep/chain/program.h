// The text of a node's attribute `steps`, taken apart by the table of steps (operators.toml):
//
//   Dequantize scale=x_scale; Add residual; Normalize axes=-1 epsilon=1e-05; Mul scale; Add bias; Gelu; Quantize scale=y_scale
//
// What is written here is the form: names, places, which arguments there are. What their values mean is the reader's.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "chain/reason.h"
#include "spec/tables.h"

namespace normfuse {

// Names and values are parts of the text, which must live as long.
struct ProgramStep {
  const StepSpec* step = nullptr;  // one of kSteps, or null:
  int activation = 0;              // then this one of kActivations
  bool in_front = false;           // of the core
  size_t number = 0;               // from 1
  std::string_view name;
  std::string_view operand;                                              // label, "" without one
  std::vector<std::pair<std::string_view, std::string_view>> arguments;  // key and value

  bool Is(StepName kind) const { return step == &kSteps[static_cast<int>(kind)]; }
  // Nothing: it is not given.
  std::optional<std::string_view> Find(std::string_view key) const;
  std::optional<std::string_view> Find(Argument argument) const {
    return Find(kArgumentNames[static_cast<int>(argument)]);
  }
  // "step 2 (Mul)", for messages.
  std::string Where() const;
};

// Whether a tensor may be called that: ASCII letters, digits and underscores.
bool IsLabel(std::string_view word);

// `node` is named in what is returned: why the text is no program that this library knows.
std::optional<Declined> ParseProgram(const std::string& node, std::string_view text, std::vector<ProgramStep>* steps);

}  // namespace normfuse
