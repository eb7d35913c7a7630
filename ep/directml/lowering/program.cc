#include "directml/lowering/program.h"

#include <cmath>
#include <cstdio>
#include <utility>

namespace normfuse::directml {
namespace {

constexpr const char* kTypeNames[] = {"UNKNOWN", "FLOAT32", "FLOAT16", "UINT32", "UINT16", "UINT8", "INT32",
                                      "INT16",   "INT8",    "FLOAT64", "UINT64", "INT64",  "UINT4", "INT4"};

std::string Quoted(const std::string& text) {
  std::string out = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char escape[8];
      std::snprintf(escape, sizeof(escape), "\\u%04x", c);
      out += escape;
    } else {
      out += c;
    }
  }
  return out + "\"";
}

// JSON has no infinities: they are written as strings.
std::string Number(double value) {
  if (std::isnan(value)) return "\"nan\"";
  if (std::isinf(value)) return value < 0 ? "\"-inf\"" : "\"inf\"";
  char text[32];
  std::snprintf(text, sizeof(text), "%.9g", value);
  return text;
}

template <typename T>
std::string List(const std::vector<T>& values) {
  std::string out = "[";
  for (size_t i = 0; i < values.size(); ++i) out += (i ? "," : "") + std::to_string(values[i]);
  return out + "]";
}

std::string Parameters(const float* values, int count) {
  std::string out = "[";
  for (int i = 0; i < count; ++i) out += (i ? "," : "") + Number(values[i]);
  return out + "]";
}

// By DML_REDUCE_FUNCTION.
constexpr const char* kReduceNames[] = {"", "", "AVERAGE", "", "", "", "", "MAX", "MIN", "", "SUM", "SUM_SQUARE"};

std::string Json(const TensorDesc& desc) {
  std::string out = "\"type\":\"" + std::string(kTypeNames[desc.type]) + "\",\"sizes\":" + List(desc.sizes);
  if (!desc.strides.empty()) out += ",\"strides\":" + List(desc.strides);
  out += ",\"bytes\":" + std::to_string(desc.bytes);
  if (desc.owned_by_dml) out += ",\"owned_by_dml\":true";
  return out;
}

std::string Json(const std::optional<OperatorInput>& input) {
  if (!input) return "null";
  return std::string("{\"from\":\"") + (input->from_graph_input ? "input " : "operator ") +
         std::to_string(input->index) + "\"," + Json(input->desc) + "}";
}

std::string Json(const Operator& op) {
  std::string out = "{\"operator\":\"" + OperatorName(op.type) + "\",\"purpose\":" + Quoted(op.purpose);
  out += ",\"inputs\":[";
  for (size_t i = 0; i < op.inputs.size(); ++i) out += (i ? "," : "") + Json(op.inputs[i]);
  out += "],\"output\":{" + Json(op.output) + "}";
  if (!op.axes.empty()) out += ",\"axes\":" + List(op.axes);
  const bool mvn1 = op.type == abi::DML_OPERATOR_MEAN_VARIANCE_NORMALIZATION1;
  const bool mvn2 = op.type == abi::DML_OPERATOR_MEAN_VARIANCE_NORMALIZATION2;
  if (mvn2) out += std::string(",\"use_mean\":") + (op.use_mean ? "true" : "false");
  if (mvn1 || mvn2) {
    out += std::string(",\"normalize_variance\":") + (op.normalize_variance ? "true" : "false");
    out += ",\"epsilon\":" + Number(op.epsilon);
  }
  if (op.fused_activation) {
    out += ",\"fused_activation\":{\"operator\":\"" + OperatorName(op.fused_activation->type) +
           "\",\"parameters\":" + Parameters(op.fused_activation->parameters, op.fused_activation->parameter_count) +
           "}";
  }
  if (op.parameter_count > 0) out += ",\"parameters\":" + Parameters(op.parameters, op.parameter_count);
  if (op.scale_bias) {
    out += ",\"scale_bias\":[" + Number(op.scale_bias->Scale) + "," + Number(op.scale_bias->Bias) + "]";
  }
  if (op.type == abi::DML_OPERATOR_REDUCE) {
    out += std::string(",\"function\":\"") + kReduceNames[op.reduce_function] + "\"";
  }
  if (op.type == abi::DML_OPERATOR_JOIN || op.type == abi::DML_OPERATOR_GATHER) {
    out += ",\"axis\":" + std::to_string(op.axis);
  }
  if (op.type == abi::DML_OPERATOR_SLICE1) {
    out += ",\"offsets\":" + List(op.offsets) + ",\"window\":" + List(op.window) + ",\"steps\":" + List(op.steps);
  }
  return out + "}";
}

// Whether what the operator gives are elements of this input as they are, if any.
bool OnlyMoves(const Operator& op, size_t input) {
  switch (op.type) {
    case abi::DML_OPERATOR_ELEMENT_WISE_IDENTITY:
      return !op.scale_bias;
    case abi::DML_OPERATOR_ELEMENT_WISE_IF:
      return input > 0;
    case abi::DML_OPERATOR_GATHER:
      return input == 0;
    case abi::DML_OPERATOR_JOIN:
    case abi::DML_OPERATOR_SLICE1:
      return true;
    default:
      return false;
  }
}

}  // namespace

std::string ToJson(const DmlProgram& program) {
  std::string out = "{\"level\":\"" + LevelName(program.level) + "\",\"inputs\":[";
  for (size_t i = 0; i < program.inputs.size(); ++i) {
    const GraphInput& input = program.inputs[i];
    out += std::string(i ? "," : "") + "{\"name\":" + Quoted(input.name) + ",\"type\":\"" + NameOf(input.type) +
           "\",\"elements\":" + std::to_string(input.elements) +
           (input.node_input < 0 ? ",\"constant\":true}" : ",\"node_input\":" + std::to_string(input.node_input) + "}");
  }
  out += "],\"operators\":[";
  for (size_t i = 0; i < program.operators.size(); ++i) out += (i ? "," : "") + Json(program.operators[i]);
  out += "],\"outputs\":[";
  for (size_t i = 0; i < program.outputs.size(); ++i) {
    const GraphOutput& output = program.outputs[i];
    out += std::string(i ? "," : "") + "{\"node_output\":" + std::to_string(output.node_output) + ",\"type\":\"" +
           NameOf(output.type) + "\",\"dims\":" + List(output.dims) +
           ",\"from_operator\":" + std::to_string(output.from_node) + "}";
  }
  return out + "]}";
}

void DropUnused(DmlProgram* program) {
  std::vector<bool> used_operators(program->operators.size()), used_inputs(program->inputs.size());
  for (const GraphOutput& output : program->outputs) used_operators[output.from_node] = true;
  for (size_t i = program->operators.size(); i-- > 0;) {
    if (!used_operators[i]) continue;
    for (const auto& input : program->operators[i].inputs) {
      if (input) (input->from_graph_input ? used_inputs : used_operators)[input->index] = true;
    }
  }
  // By old position: the new one.
  const auto keep = [](auto* items, const std::vector<bool>& used) {
    std::vector<uint32_t> places(used.size());
    uint32_t next = 0;
    for (size_t i = 0; i < used.size(); ++i) {
      places[i] = next;
      if (!used[i]) continue;
      if (next != i) (*items)[next] = std::move((*items)[i]);
      ++next;
    }
    items->resize(next);
    return places;
  };
  const std::vector<uint32_t> operators = keep(&program->operators, used_operators);
  const std::vector<uint32_t> inputs = keep(&program->inputs, used_inputs);
  for (GraphOutput& output : program->outputs) output.from_node = operators[output.from_node];
  for (Operator& op : program->operators) {
    for (auto& input : op.inputs) {
      if (input) input->index = (input->from_graph_input ? inputs : operators)[input->index];
    }
  }
}

void MarkMoved(DmlProgram* program) {
  std::vector<bool> moved(program->operators.size(), true);  // what it gives, from there on
  for (const GraphOutput& output : program->outputs) {
    if (output.type != DataType::kInt64) moved[output.from_node] = false;
  }
  for (GraphInput& input : program->inputs) input.only_moved = input.type == DataType::kInt64;
  for (size_t i = program->operators.size(); i-- > 0;) {
    const Operator& op = program->operators[i];
    for (size_t slot = 0; slot < op.inputs.size(); ++slot) {
      const auto& input = op.inputs[slot];
      if (!input || (moved[i] && OnlyMoves(op, slot))) continue;
      if (input->from_graph_input) {
        program->inputs[input->index].only_moved = false;
      } else {
        moved[input->index] = false;
      }
    }
  }
}

}  // namespace normfuse::directml
