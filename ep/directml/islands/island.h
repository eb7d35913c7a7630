// An island: nodes that run on the GPU as one DirectML graph. Chains, and operators of directml_operators.toml; plain data, of
// which no part belongs to ONNX Runtime.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "chain/chain.h"
#include "directml/lowering/chain_lowering.h"

namespace normfuse::directml {

inline constexpr int kNoValue = -1;

struct IslandValue {
  std::string name;
  DataType type = DataType::kUndefined;
  std::shared_ptr<const ConstantTensor> constant;
  int input = kNoValue;   // position among the inputs of the fused node
  int output = kNoValue;  // and among its outputs
};

struct IslandAttributes {
  std::map<std::string, std::vector<int64_t>> ints;  // a single number is a list of one
  std::map<std::string, float> floats;
  std::map<std::string, std::string> strings;
  std::map<std::string, std::shared_ptr<const ConstantTensor>> tensors;

  int64_t Int(const char* name, int64_t otherwise) const;
  float Float(const char* name, float otherwise) const;
  std::string String(const char* name, const char* otherwise) const;
  // Null where there is none of the name.
  const std::vector<int64_t>* Ints(const char* name) const;
};

// A chain, or an operator of the table. A chain's TensorRef::input is kFromOutput plus the number of a value, its outputs are
// numbers of values.
struct IslandNode {
  std::string name;
  std::optional<Chain> chain;
  DirectMlOperator op = DirectMlOperator::kMatMul;
  IslandAttributes attributes;
  std::vector<int> inputs;  // values; kNoValue where left out
  std::vector<int> outputs;
};

struct Island {
  std::string name;  // of its first node, for reports
  std::vector<IslandValue> values;
  std::vector<IslandNode> nodes;  // in an order in which they can run
  bool shapes_vary = false;       // more than one program may be compiled

  const IslandValue& value(int index) const { return values[static_cast<size_t>(index)]; }
};

// Whether the operator may read and write the element type on the GPU.
bool Reads(const DirectMlOperatorSpec& row, DataType type);

// By input of the fused node: whether its content decides shapes, so that it is read on the CPU and is part of what a program
// is compiled for.
std::vector<bool> InputsReadOnCpu(const Island& island);

// The program for inputs of known shapes (indexed by input of the node; with their content where InputsReadOnCpu says so),
// or why DirectML cannot run it.
std::optional<Declined> Lower(const Island& island, const std::vector<InputShape>& inputs,
                              const Capabilities& capabilities, DmlProgram* program);

}  // namespace normfuse::directml
