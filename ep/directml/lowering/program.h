// A lowered chain as data: a list of DirectML operators, what each reads, and what the graph takes in and gives out. It
// knows nothing of devices, so it can be printed and tested anywhere; execution/operator_desc.h turns it into DirectML's structures.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "chain/chain.h"
#include "directml/lowering/rules.h"

namespace normfuse::directml {

struct TensorDesc {
  abi::DML_TENSOR_DATA_TYPE type = abi::DML_TENSOR_DATA_TYPE_UNKNOWN;
  std::vector<uint32_t> sizes;
  std::vector<uint32_t> strides;  // in elements; empty: packed
  uint64_t bytes = 0;             // of the whole buffer, a multiple of 4
  bool owned_by_dml = false;      // a constant, given once when the operator is initialised
};

// Where an operator's input comes from: output 0 of a node, or an input of the graph.
struct OperatorInput {
  TensorDesc desc;
  bool from_graph_input = false;
  uint32_t index = 0;
};

struct FusedActivation {
  abi::DML_OPERATOR_TYPE type = abi::DML_OPERATOR_ACTIVATION_IDENTITY;
  float parameters[2] = {};
  int parameter_count = 0;
};

// How a window moves over the spatial dimensions, by dimension.
struct Sliding {
  std::vector<uint32_t> strides;
  std::vector<uint32_t> dilations;
  std::vector<uint32_t> window;  // of POOLING
  std::vector<uint32_t> start_padding;
  std::vector<uint32_t> end_padding;
  std::vector<uint32_t> output_padding;  // of CONVOLUTION
};

// One DirectML operator. Which of the fields behind `output` count depends on the type.
struct Operator {
  abi::DML_OPERATOR_TYPE type = abi::DML_OPERATOR_ELEMENT_WISE_IDENTITY;
  std::string purpose;                               // for people: "add the residual"
  std::vector<std::optional<OperatorInput>> inputs;  // by DirectML's input position; nothing: left out
  TensorDesc output;
  std::vector<uint32_t> axes;                                                   // MVN, REDUCE
  bool use_mean = true;                                                         // MVN2
  bool normalize_variance = true;                                               // MVN
  float epsilon = 0;                                                            // MVN, BATCH_NORMALIZATION
  std::optional<FusedActivation> fused_activation;                              // MVN
  float parameters[2] = {};                                                     // activations, CLIP (min, max)
  int parameter_count = 0;                                                      // of the two above
  std::optional<abi::DML_SCALE_BIAS> scale_bias;                                // IDENTITY, SQRT, RECIP, ERF
  abi::DML_REDUCE_FUNCTION reduce_function = abi::DML_REDUCE_FUNCTION_AVERAGE;  // REDUCE
  float alpha = 1;                                                              // GEMM
  float beta = 1;                                                               // GEMM
  uint32_t axis = 0;                                                            // JOIN, GATHER
  uint32_t index_dimensions = 0;                                                // GATHER
  std::vector<uint32_t> offsets;                                                // SLICE1
  std::vector<uint32_t> window;                                                 // SLICE1
  std::vector<int32_t> steps;                                                   // SLICE1
  Sliding sliding;                                                              // CONVOLUTION, POOLING, PADDING
  bool backward = false;                                                        // CONVOLUTION
  uint32_t groups = 1;                                                          // CONVOLUTION
  bool include_padding = false;                                                 // AVERAGE_POOLING
  abi::DML_PADDING_MODE padding_mode = abi::DML_PADDING_MODE_CONSTANT;          // PADDING; its value: parameters[0]
};

inline Operator OpOf(abi::DML_OPERATOR_TYPE type, std::string purpose,
                     std::optional<abi::DML_SCALE_BIAS> scale_bias = {}) {
  Operator op;
  op.type = type;
  op.purpose = std::move(purpose);
  op.scale_bias = scale_bias;
  return op;
}

// What integers must be within that are indices. None are by default.
struct IndexRange {
  int64_t least;
  int64_t most;
};

// A tensor that the graph reads: an input of the node, or a constant.
struct GraphInput {
  std::string name;
  int node_input = -1;                                // -1: constant
  std::vector<unsigned char> value;                   // of a constant that belongs to the program, `bytes` long
  std::shared_ptr<const ConstantTensor> weight = {};  // of one that other programs read, too
  DataType type = DataType::kUndefined;
  DataType stored = DataType::kUndefined;  // on the GPU: int32 for int64, uint8 for bool
  uint64_t elements = 0;
  uint64_t bytes = 0;  // a multiple of 4
  std::optional<IndexRange> indices = {};
  bool only_moved = false;  // see MarkMoved
};

// A tensor that the graph writes.
struct GraphOutput {
  int node_output = 0;
  DataType type = DataType::kUndefined;
  DataType stored = DataType::kUndefined;  // on the GPU: int32 for int64, uint8 for bool
  std::vector<int64_t> dims;
  uint64_t elements = 0;
  uint64_t bytes = 0;
  uint32_t from_node = 0;
};

// An output of the node that was computed on the CPU when the program was made: shapes.
struct KnownOutput {
  int node_output = 0;
  ConstantTensor value;
};

struct DmlProgram {
  FeatureLevel level = kMinimumLevel;
  std::vector<GraphInput> inputs;
  std::vector<Operator> operators;
  std::vector<GraphOutput> outputs;
  std::vector<KnownOutput> known_outputs;
};

// Drops operators and inputs that no output comes of: DirectML's graphs have none.
void DropUnused(DmlProgram* program);

// Marks the inputs of int64 whose elements are only moved and selected, as they are, on their way to outputs of int64: what
// becomes of an element is found there again, so that one of more than 32 bits matters where it arrives, and nowhere else.
void MarkMoved(DmlProgram* program);

// One line of JSON: {"level", "inputs", "operators", "outputs"}.
std::string ToJson(const DmlProgram& program);

}  // namespace normfuse::directml
