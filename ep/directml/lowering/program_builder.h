// Puts a DmlProgram together operator by operator. Tensors between operators are packed, so that each reader may see one
// under any sizes and strides: broadcasting is a stride of 0, regrouping and reshaping cost nothing.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "chain/reason.h"
#include "directml/lowering/program.h"

namespace normfuse::directml {

using Dims = std::vector<int64_t>;

// DirectML's name of an element type; nothing where it has none.
std::optional<abi::DML_TENSOR_DATA_TYPE> ToDirectMl(DataType type);

// kUndefined for what no tensor of a program has.
DataType FromDirectMl(abi::DML_TENSOR_DATA_TYPE type);

// How a tensor of the model lies on the GPU: int64 as int32 and bool as uint8, all others as they are.
DataType StoredType(DataType type);

// The number of elements; for sizes that no tensor has, as negative ones, the largest number.
int64_t Product(const Dims& dims);

// What DirectML has room for.
inline constexpr int64_t kMaxElements = 0xFFFFFFFF;

// As DirectML has sizes and strides.
inline std::vector<uint32_t> Narrow(const Dims& dims) { return {dims.begin(), dims.end()}; }

// Strides of a packed tensor.
Dims PackedStrides(const Dims& dims);

// Strides that show a packed tensor of shape `dims` under `sizes`, NumPy broadcasting from the last dimension.
Dims BroadcastStrides(const Dims& dims, const Dims& sizes);

// A packed tensor of the program: an input of the graph, or the output of an operator.
struct Value {
  bool from_graph_input = false;
  uint32_t index = 0;
  abi::DML_TENSOR_DATA_TYPE type = abi::DML_TENSOR_DATA_TYPE_UNKNOWN;
  Dims dims;
  uint64_t bytes = 0;
  bool owned_by_dml = false;
};

// A value as one operator reads it: strides in elements, one for each of the operator's sizes.
struct View {
  Value value;
  Dims strides;
};

// A value under the very sizes and strides that an operator is to see.
struct ExactView {
  Value value;
  Dims sizes;
  Dims strides;
};

class ProgramBuilder {
 public:
  // With `shares_weights` they are no part of the program: it reads them where those of other shapes do, too.
  ProgramBuilder(const Capabilities& capabilities, DmlProgram* program, bool shares_weights = false);

  FeatureLevel level() const { return capabilities_.level; }
  // Whether tensors may be of the type.
  bool Supports(DataType type) const;

  // Input `node_input` of the node; asked for twice, it is one input of the graph.
  Value Input(const std::string& name, int node_input, DataType type, const Dims& dims);
  Value Constant(const std::string& name, DataType type, const void* data, const Dims& dims);
  Value FloatConstant(const std::string& name, const std::vector<float>& values, const Dims& dims);

  // Appends `op` over tensors of `sizes`. An input that is nothing is left out. `axes` marks the dimensions that a
  // normalisation or reduction goes over; the output of REDUCE has size 1 there, every other has `sizes`. Dimensions
  // that all tensors allow to are merged, so that most operators have four, which every level takes.
  Value Emit(Operator op, const Dims& sizes, const std::vector<std::optional<View>>& inputs,
             abi::DML_TENSOR_DATA_TYPE output_type, const std::vector<bool>& axes = {});

  // Appends `op` as it is: nothing is merged, sizes are those given. The output is packed.
  Value EmitExact(Operator op, const Dims& sizes, const std::vector<std::optional<ExactView>>& inputs,
                  abi::DML_TENSOR_DATA_TYPE output_type);

  // A constant of the model, of its own type or as float32. Asked for twice, it is one input of the graph.
  Value Weight(const std::string& name, std::shared_ptr<const ConstantTensor> tensor, DataType type);
  // Such a value of float16 as float32; nothing for other values.
  std::optional<Value> FloatWeight(const Value& value);

  // Elements of the input `node_input` of the node are indices: a call whose elements are not within the range is an error.
  void LimitInput(int node_input, IndexRange range);

  // The whole of a value, in an operator over value.dims.
  static View Whole(const Value& value) { return {value, PackedStrides(value.dims)}; }
  static View Broadcast(const Value& value, const Dims& sizes) { return {value, BroadcastStrides(value.dims, sizes)}; }

  // f(x) element by element.
  Value Unary(Operator op, const Value& x);
  // a op b over `sizes`, both broadcast from the last dimension.
  Value Binary(abi::DML_OPERATOR_TYPE type, const char* purpose, const Value& a, const Value& b, const Dims& sizes);
  Value Cast(const Value& x, abi::DML_TENSOR_DATA_TYPE type, const char* purpose);

  void Output(int node_output, DataType type, const Dims& dims, const Value& value);
  // An output of the node whose content is known.
  void KnownOutput(int node_output, ConstantTensor value);

  // Why the chain cannot be lowered. The first reason stays; what is emitted after it has no meaning.
  void Refuse(Declined reason);
  void NeedsLevel(const std::string& what, uint32_t level);
  void Unsupported(const std::string& what);
  // Refuses with the rule's own words when the rule stands at this level.
  bool Check(RuleId rule);
  const std::optional<Declined>& refused() const { return refused_; }

 private:
  // The type as DirectML names it, or UNKNOWN and a refusal.
  abi::DML_TENSOR_DATA_TYPE Supported(DataType type, const std::string& name);
  void CheckRank(abi::DML_OPERATOR_TYPE type, size_t rank);

  Value Add(GraphInput input, const Dims& dims);
  bool Begin(const Operator& op, const Dims& sizes, Value* result);

  Capabilities capabilities_;
  DmlProgram* program_;
  bool shares_weights_;
  std::map<uint32_t, std::shared_ptr<const ConstantTensor>> weights_;  // by input of the graph
  std::map<std::pair<const ConstantTensor*, DataType>, Value> values_of_weights_;
  std::optional<Declined> refused_;
};

}  // namespace normfuse::directml
