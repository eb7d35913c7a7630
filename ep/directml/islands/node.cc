#include "directml/islands/node.h"

namespace normfuse::directml {

using namespace abi;

DML_TENSOR_DATA_TYPE OnGpuType(DataType type) {
  return ToDirectMl(StoredType(type)).value_or(DML_TENSOR_DATA_TYPE_UNKNOWN);
}

NodeLowering::NodeLowering(const Island& island, const std::vector<InputShape>& inputs, ProgramBuilder& builder)
    : island_(island), builder_(builder), tensors_(island.values.size()) {
  for (size_t i = 0; i < tensors_.size(); ++i) Begin(island_.values[i], inputs, &tensors_[i]);
}

void NodeLowering::Begin(const IslandValue& value, const std::vector<InputShape>& inputs, Tensor* tensor) {
  tensor->type = value.type;
  if (value.constant) {
    tensor->constant = value.constant;
    tensor->view = StridedView::Packed(value.constant->dims);
    tensor->known = Known(value.type, value.constant->dims, value.constant->data);
  } else if (value.input != kNoValue) {
    const InputShape& shape = inputs[static_cast<size_t>(value.input)];
    tensor->view = StridedView::Packed(shape.dims);
    if (static_cast<int64_t>(shape.content.size()) == Product(shape.dims) && IsKnowable(shape.type)) {
      tensor->known = KnownTensor{shape.type, shape.dims, shape.content};
    }
  }
}

Value& NodeLowering::OnGpu(int index) {
  Tensor& tensor = At(index);
  if (tensor.value) return *tensor.value;
  const IslandValue& value = island_.value(index);
  if (value.input != kNoValue && !tensor.constant) {
    tensor.all_of_input = value.input;
    tensor.value = builder_.Input(value.name, value.input, value.type, tensor.view.dims);
  } else if (tensor.known) {
    KnownTensor stored = *tensor.known;
    for (int64_t& each : stored.values) {
      // Starts and ends of slices may be as large as they like, but they are not read on the GPU.
      if (each != static_cast<int32_t>(each)) Refuse("an integer of more than 32 bits");
    }
    if (stored.type == DataType::kInt64) stored.type = DataType::kInt32;
    const ConstantTensor made = AsConstant(stored);
    tensor.value = builder_.Constant(value.name, StoredType(stored.type), made.data, stored.dims);
  } else if (tensor.constant) {
    tensor.value = builder_.Weight(value.name, tensor.constant, tensor.type);
  } else {
    Refuse("a value that nothing makes");
    tensor.value = Value{};
  }
  return *tensor.value;
}

Tensor NodeLowering::Real(size_t input) {
  const Tensor tensor = Raw(input);
  return tensor.type == DataType::kFloat16 ? Converted(tensor, DataType::kFloat32) : tensor;
}

Tensor NodeLowering::Raw(size_t input) {
  const int index = node_->inputs[input];
  OnGpu(index);
  return At(index);
}

Tensor NodeLowering::Packed(const Tensor& tensor) {
  const int64_t elements = Product(tensor.view.dims);
  if (tensor.view.IsPacked() && elements == Product(tensor.value->dims)) {
    Tensor packed = tensor;
    packed.view = StridedView::Packed(tensor.view.dims);  // strides of dimensions of 1 may be any
    return packed;
  }
  return Computed(OpOf(DML_OPERATOR_ELEMENT_WISE_IDENTITY, "copy " + node_->name), tensor.view.dims, {tensor},
                  tensor.type);
}

Tensor NodeLowering::Converted(const Tensor& tensor, DataType type) {
  const auto weight = type == DataType::kFloat32 ? builder_.FloatWeight(*tensor.value) : std::nullopt;
  if (weight) return {type, tensor.view, weight};
  return Computed(OpOf(DML_OPERATOR_CAST, std::string("to ") + NameOf(type)), tensor.view.dims, {tensor}, type);
}

std::optional<std::vector<int64_t>> NodeLowering::Integers(size_t input) {
  const Tensor& tensor = In(input);
  if (tensor.known) return tensor.known->values;
  Refuse("a shape that is computed on the GPU");
  return std::nullopt;
}

std::optional<std::vector<int64_t>> NodeLowering::Axes() {
  if (const std::vector<int64_t>* axes = attributes().Ints("axes")) return *axes;
  if (Has(1)) return Integers(1);
  return std::nullopt;
}

void NodeLowering::RefuseSize(const Dims& dims) {
  for (int64_t dim : dims) {
    if (dim == 0) builder_.Check(RuleId::kZeroDimension);
  }
  if (Product(dims) > kMaxElements) builder_.Check(RuleId::kTooManyElements);
}

Tensor NodeLowering::Computed(Operator op, const Dims& dims, const std::vector<Tensor>& operands, DataType type,
                              const std::vector<bool>& axes) {
  std::vector<std::optional<View>> views;
  for (const Tensor& operand : operands) {
    views.emplace_back(View{*operand.value, Expanded(operand.view, dims).strides});
  }
  RefuseSize(dims);
  const Value value = builder_.refused() ? Value{} : builder_.Emit(std::move(op), dims, views, OnGpuType(type), axes);
  return {type, StridedView::Packed(builder_.refused() ? dims : value.dims), value};
}

Tensor NodeLowering::Made(Operator op, const Dims& sizes, const std::vector<std::optional<ExactView>>& operands,
                          DataType type, const Dims& dims) {
  RefuseSize(sizes);
  const Value value =
      builder_.refused() ? Value{} : builder_.EmitExact(std::move(op), sizes, operands, OnGpuType(type));
  return {type, StridedView::Packed(dims), value};
}

void NodeLowering::Give(size_t output, Tensor result) {
  const DataType type = OutputType(output);
  if (type == DataType::kFloat16 && result.type == DataType::kFloat32) result = Converted(result, type);
  result.type = type;
  At(node_->outputs[output]) = std::move(result);
}

void NodeLowering::GiveOut(int index) {
  const IslandValue& value = island_.value(index);
  if (value.output == kNoValue) return;
  Tensor& tensor = At(index);
  if (tensor.known) return builder_.KnownOutput(value.output, AsConstant(*tensor.known));
  OnGpu(index);
  Tensor packed = Packed(tensor);
  if (packed.value->from_graph_input) {
    packed = Computed(OpOf(DML_OPERATOR_ELEMENT_WISE_IDENTITY, "copy " + value.name), packed.view.dims, {packed},
                      packed.type);
  }
  if (!builder_.refused()) builder_.Output(value.output, value.type, packed.view.dims, *packed.value);
}

}  // namespace normfuse::directml
