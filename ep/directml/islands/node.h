// What the lowering of one node of an island works with. Every value is a view of a packed tensor on the GPU, or known on the
// CPU, or both; data movement changes the view, and copies only what DirectML cannot read that way.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "directml/islands/island.h"
#include "directml/islands/known_tensors.h"
#include "directml/islands/tensor_views.h"

namespace normfuse::directml {

struct Tensor {
  DataType type = DataType::kUndefined;
  StridedView view = {};
  std::optional<Value> value = {};        // on the GPU, packed; view looks at it
  std::optional<KnownTensor> known = {};  // on the CPU; of the view's dimensions
  std::shared_ptr<const ConstantTensor> constant = {};
  // The input of the node of which it shows all elements and no others; kNoValue: it is computed, or a part.
  int all_of_input = kNoValue;
};

// How DirectML names what a tensor of this type is on the GPU.
abi::DML_TENSOR_DATA_TYPE OnGpuType(DataType type);

// The values of an island, and one of its nodes. Inputs and outputs are counted as the node has them.
class NodeLowering {
 public:
  NodeLowering(const Island& island, const std::vector<InputShape>& inputs, ProgramBuilder& builder);

  void MoveTo(const IslandNode& node) { node_ = &node; }

  ProgramBuilder& builder() { return builder_; }
  DirectMlOperator op() const { return node_->op; }
  const std::string& name() const { return node_->name; }
  const IslandNode& node() const { return *node_; }
  const IslandAttributes& attributes() const { return node_->attributes; }
  const std::vector<int>& inputs() const { return node_->inputs; }
  const std::vector<int>& outputs() const { return node_->outputs; }

  Tensor& At(int value) { return tensors_[static_cast<size_t>(value)]; }
  bool Has(size_t input) const { return input < node_->inputs.size() && node_->inputs[input] != kNoValue; }
  Tensor& In(size_t input) { return At(node_->inputs[input]); }
  const Dims& DimsOf(size_t input) { return In(input).view.dims; }
  DataType OutputType(size_t output) const { return island_.value(node_->outputs[output]).type; }

  // The tensor of a value on the GPU.
  Value& OnGpu(int index);
  // What an operator that computes reads: float16 as float32.
  Tensor Real(size_t input);
  // An input as it is.
  Tensor Raw(size_t input);
  // The tensor itself where it is packed, else a copy.
  Tensor Packed(const Tensor& tensor);
  // The tensor as another element type.
  Tensor Converted(const Tensor& tensor, DataType type);

  // Integers of a shape input; nothing, and a refusal, where they are not known.
  std::optional<std::vector<int64_t>> Integers(size_t input);
  // Axes by attribute, or by input 1 in newer versions; nothing: none are given.
  std::optional<std::vector<int64_t>> Axes();

  // An operator that works element by element; operands broadcast to `dims`.
  Tensor Computed(Operator op, const Dims& dims, const std::vector<Tensor>& operands, DataType type,
                  const std::vector<bool>& axes = {});
  // An operator that is emitted with exactly these sizes; the result has `dims`.
  Tensor Made(Operator op, const Dims& sizes, const std::vector<std::optional<ExactView>>& operands, DataType type,
              const Dims& dims);

  // The node's result: float16 again where the model has it so.
  void Give(size_t output, Tensor result);
  // What leaves the island becomes an output of the program.
  void GiveOut(int index);

  void Refuse(const std::string& what) { builder_.Unsupported(what + " (" + node_->name + ")"); }
  // Refuses where there is a dimension of 0, or more elements than DirectML has.
  void RefuseSize(const Dims& dims);
  template <typename T>
  std::optional<T> Refused(const char* what) {
    Refuse(what);
    return std::nullopt;
  }

 private:
  void Begin(const IslandValue& value, const std::vector<InputShape>& inputs, Tensor* tensor);

  const Island& island_;
  ProgramBuilder& builder_;
  std::vector<Tensor> tensors_;
  const IslandNode* node_ = nullptr;
};

}  // namespace normfuse::directml
