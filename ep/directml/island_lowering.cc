// From an island to a DmlProgram. Every value is a view of a packed tensor on the GPU, or known on the CPU, or both; data
// movement changes the view, and copies only what DirectML cannot read that way.
#include <algorithm>
#include <map>

#include "directml/island.h"
#include "directml/known_tensors.h"
#include "directml/tensor_views.h"

namespace normfuse::directml {
namespace {

using namespace abi;

constexpr auto kFloat = DML_TENSOR_DATA_TYPE_FLOAT32;

struct Tensor {
  DataType type = DataType::kUndefined;
  StridedView view;
  std::optional<Value> value;        // on the GPU, packed; view looks at it
  std::optional<KnownTensor> known;  // on the CPU; of the view's dimensions
  std::shared_ptr<const ConstantTensor> constant;
};

class IslandLowering {
 public:
  IslandLowering(const Island& island, ProgramBuilder& builder) : island_(island), builder_(builder) {
    tensors_.resize(island.values.size());
  }

  std::optional<Declined> Run(const std::vector<InputShape>& inputs) {
    for (size_t i = 0; i < tensors_.size(); ++i) Begin(island_.values[i], inputs, &tensors_[i]);
    for (const IslandNode& node : island_.nodes) {
      if (builder_.refused()) return builder_.refused();
      node_ = &node;
      if (node.chain) {
        LowerChain(*node.chain);
      } else if (!LowerOnCpu()) {
        LowerOperator();
      }
    }
    for (size_t i = 0; i < tensors_.size() && !builder_.refused(); ++i) GiveOut(island_.values[i], &tensors_[i]);
    return builder_.refused();
  }

 private:
  // --- values -------------------------------------------------------------------------------------------------------

  void Begin(const IslandValue& value, const std::vector<InputShape>& inputs, Tensor* tensor) {
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

  Tensor& At(int value) { return tensors_[static_cast<size_t>(value)]; }
  bool Has(size_t input) const { return input < node_->inputs.size() && node_->inputs[input] != kNoValue; }
  Tensor& In(size_t input) { return At(node_->inputs[input]); }
  const Dims& DimsOf(size_t input) { return In(input).view.dims; }

  // Integers of a shape input; nothing, and a refusal, where they are not known.
  std::optional<std::vector<int64_t>> Integers(size_t input) {
    const Tensor& tensor = In(input);
    if (tensor.known) return tensor.known->values;
    Refuse("a shape that is computed on the GPU");
    return std::nullopt;
  }

  void Refuse(const std::string& what) { builder_.Unsupported(what + " (" + node_->name + ")"); }

  // The tensor on the GPU.
  Value& OnGpu(int index) {
    Tensor& tensor = At(index);
    if (tensor.value) return *tensor.value;
    const IslandValue& value = island_.value(index);
    if (value.input != kNoValue && !tensor.constant) {
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
      tensor.value = builder_.Constant(value.name, tensor.type, tensor.constant->data, tensor.constant->dims);
    } else {
      Refuse("a value that nothing makes");
      tensor.value = Value{};
    }
    return *tensor.value;
  }

  // What an operator that computes reads: float16 as float32.
  Tensor Real(size_t input) {
    const int index = node_->inputs[input];
    Tensor tensor = At(index);
    tensor.value = OnGpu(index);
    tensor.view = At(index).view;
    if (tensor.type != DataType::kFloat16) return tensor;
    return Computed(OpOf(DML_OPERATOR_CAST, "to float32"), tensor.view.dims, {tensor}, DataType::kFloat32);
  }
  Tensor Raw(size_t input) {
    const int index = node_->inputs[input];
    OnGpu(index);
    return At(index);
  }

  static Operator OpOf(DML_OPERATOR_TYPE type, std::string purpose) {
    Operator op;
    op.type = type;
    op.purpose = std::move(purpose);
    return op;
  }

  static DML_TENSOR_DATA_TYPE OnGpuType(DataType type) {
    return ToDirectMl(StoredType(type)).value_or(DML_TENSOR_DATA_TYPE_UNKNOWN);
  }

  static View Wide(const Tensor& tensor, const Dims& dims) {
    return {*tensor.value, Expanded(tensor.view, dims).strides};
  }

  // An operator that works element by element; operands broadcast to `dims`.
  Tensor Computed(Operator op, const Dims& dims, const std::vector<Tensor>& operands, DataType type,
                  const std::vector<bool>& axes = {}) {
    std::vector<std::optional<View>> views;
    for (const Tensor& operand : operands) views.emplace_back(Wide(operand, dims));
    for (int64_t dim : dims) {
      if (dim == 0) builder_.Check(RuleId::kZeroDimension);
    }
    Tensor result;
    result.type = type;
    if (builder_.refused()) {
      result.value = Value{};
      result.view = StridedView::Packed(dims);
      return result;
    }
    result.value = builder_.Emit(std::move(op), dims, views, OnGpuType(type), axes);
    result.view = StridedView::Packed(result.value->dims);
    return result;
  }

  // The tensor itself where it is packed, else a copy.
  Tensor Packed(const Tensor& tensor) {
    const int64_t elements = Product(tensor.view.dims);
    if (tensor.view.IsPacked() && elements == Product(tensor.value->dims)) return tensor;
    return Computed(OpOf(DML_OPERATOR_ELEMENT_WISE_IDENTITY, "copy " + node_->name), tensor.view.dims, {tensor},
                    tensor.type);
  }

  // The node's result: float16 again where the model has it so.
  void Give(size_t output, Tensor result) {
    const int index = node_->outputs[output];
    const DataType type = island_.value(index).type;
    if (type == DataType::kFloat16 && result.type == DataType::kFloat32) {
      result = Computed(OpOf(DML_OPERATOR_CAST, "to float16"), result.view.dims, {result}, type);
    }
    result.type = type;
    At(index) = std::move(result);
  }

  void GiveOut(const IslandValue& value, Tensor* tensor) {
    if (value.output == kNoValue) return;
    const int index = static_cast<int>(tensor - tensors_.data());
    if (tensor->known) return builder_.KnownOutput(value.output, AsConstant(*tensor->known));
    OnGpu(index);
    Tensor packed = Packed(*tensor);
    if (packed.value->from_graph_input) {
      packed = Computed(OpOf(DML_OPERATOR_ELEMENT_WISE_IDENTITY, "copy " + value.name), packed.view.dims, {packed},
                        packed.type);
    }
    if (!builder_.refused()) builder_.Output(value.output, value.type, packed.view.dims, *packed.value);
  }

  // --- chains -------------------------------------------------------------------------------------------------------

  void LowerChain(const Chain& chain) {
    std::map<int, Value> values;
    ForEachTensorRef(chain, [&](const TensorRef& ref) {
      if (ref.input < kFromOutput || ref.constant) return;
      const int index = ref.input - kFromOutput;
      OnGpu(index);
      Tensor packed = Packed(At(index));
      packed.value->dims = packed.view.dims;
      values[index] = *packed.value;
    });
    if (builder_.refused()) return;
    LowerInto(chain, builder_, &values);
    if (builder_.refused()) return;
    ForEachOutput(chain, [&](int output) {
      Tensor& tensor = At(output);
      tensor.value = values.at(output);
      tensor.view = StridedView::Packed(tensor.value->dims);
    });
  }

  // --- shapes, on the CPU -------------------------------------------------------------------------------------------

  bool LowerOnCpu() {
    if (node_->op == DirectMlOperator::kShape) return ReadShape();
    if (!kDirectMlOperators[static_cast<int>(node_->op)].on_cpu) return false;
    std::vector<const KnownTensor*> inputs;
    for (size_t i = 0; i < node_->inputs.size(); ++i) {
      if (!Has(i)) continue;
      if (!In(i).known) return false;
      inputs.push_back(&*In(i).known);
    }
    std::optional<KnownTensor> result = ComputeKnown(*node_, inputs);
    if (!result) {
      const auto view = Moved(StridedView::Packed(DimsOf(0)));
      if (!view || builder_.refused() || Product(view->dims) > kMostKnownElements)
        return builder_.refused().has_value();
      result = Taken(*In(0).known, *view);
    }
    Tensor tensor;
    tensor.type = result->type;
    tensor.view = StridedView::Packed(result->dims);
    tensor.known = std::move(result);
    At(node_->outputs[0]) = std::move(tensor);
    return true;
  }

  bool ReadShape() {
    const Dims dims = DimsOf(0);
    const auto rank = static_cast<int64_t>(dims.size());
    const auto bounded = [rank](int64_t at) { return std::clamp<int64_t>(at < 0 ? at + rank : at, 0, rank); };
    const int64_t start = bounded(node_->attributes.Int("start", 0));
    const int64_t end = std::max(start, bounded(node_->attributes.Int("end", rank)));
    Tensor tensor;
    tensor.type = DataType::kInt64;
    tensor.known = KnownTensor{DataType::kInt64, {end - start}, {dims.begin() + start, dims.begin() + end}};
    tensor.view = StridedView::Packed({end - start});
    At(node_->outputs[0]) = std::move(tensor);
    return true;
  }

  // --- data movement ------------------------------------------------------------------------------------------------

  // Axes by attribute, or by input 1 in newer versions; nothing: none are given.
  std::optional<std::vector<int64_t>> Axes() {
    if (const std::vector<int64_t>* axes = node_->attributes.Ints("axes")) return *axes;
    if (Has(1)) return Integers(1);
    return std::nullopt;
  }

  // What a node of data movement makes of a view; nothing for other operators, and after a refusal.
  std::optional<StridedView> Moved(const StridedView& from) {
    switch (node_->op) {
      case DirectMlOperator::kIdentity:
        return from;
      case DirectMlOperator::kTranspose:
        return Transposed(from);
      case DirectMlOperator::kSqueeze:
        return Squeezed(from);
      case DirectMlOperator::kUnsqueeze:
        return Unsqueezed(from);
      case DirectMlOperator::kExpand:
        return ExpandedTo(from);
      case DirectMlOperator::kSlice:
        return Sliced(from);
      case DirectMlOperator::kReshape:
      case DirectMlOperator::kFlatten: {
        const auto dims = NewDims(from.dims);
        return dims ? std::optional(StridedView::Packed(*dims)) : std::nullopt;
      }
      default:
        return std::nullopt;
    }
  }

  std::optional<Dims> NewDims(const Dims& dims) {
    if (node_->op == DirectMlOperator::kFlatten) {
      const int64_t axis = node_->attributes.Int("axis", 1), rank = static_cast<int64_t>(dims.size());
      const int64_t at = axis < 0 ? axis + rank : axis;
      if (at < 0 || at > rank) return Refused<Dims>("an axis that there is not");
      return Dims{Product(Dims(dims.begin(), dims.begin() + at)), Product(Dims(dims.begin() + at, dims.end()))};
    }
    const auto shape = Integers(1);
    if (!shape) return std::nullopt;
    const auto result = ReshapedDims(dims, *shape, node_->attributes.Int("allowzero", 0) != 0);
    return result ? result : Refused<Dims>("a shape that the tensor does not fit");
  }

  template <typename T>
  std::optional<T> Refused(const char* what) {
    Refuse(what);
    return std::nullopt;
  }

  std::optional<StridedView> Transposed(const StridedView& from) {
    const std::vector<int64_t>* perm = node_->attributes.Ints("perm");
    const size_t rank = from.dims.size();
    StridedView view{Dims(rank), Dims(rank), from.offset};
    if (perm != nullptr && perm->size() != rank) return Refused<StridedView>("a permutation of another rank");
    for (size_t i = 0; i < rank; ++i) {
      const auto axis = AxisOf(perm == nullptr ? static_cast<int64_t>(rank - 1 - i) : (*perm)[i], rank);
      if (!axis) return Refused<StridedView>("an axis that there is not");
      view.dims[i] = from.dims[*axis];
      view.strides[i] = from.strides[*axis];
    }
    return view;
  }

  std::optional<StridedView> Squeezed(const StridedView& from) {
    const auto axes = Axes();
    if (builder_.refused()) return std::nullopt;
    std::vector<bool> drop(from.dims.size(), false);
    for (size_t i = 0; i < drop.size(); ++i) drop[i] = !axes && from.dims[i] == 1;
    for (int64_t axis : axes.value_or(std::vector<int64_t>())) {
      const auto at = AxisOf(axis, drop.size());
      if (!at || from.dims[*at] != 1) return Refused<StridedView>("a dimension that cannot be squeezed");
      drop[*at] = true;
    }
    StridedView view{{}, {}, from.offset};
    for (size_t i = 0; i < drop.size(); ++i) {
      if (drop[i]) continue;
      view.dims.push_back(from.dims[i]);
      view.strides.push_back(from.strides[i]);
    }
    return view;
  }

  std::optional<StridedView> Unsqueezed(const StridedView& from) {
    const auto axes = Axes();
    if (!axes) return Refused<StridedView>("no axes");
    const size_t rank = from.dims.size() + axes->size();
    std::vector<bool> made(rank, false);
    for (int64_t axis : *axes) {
      const auto at = AxisOf(axis, rank);
      if (!at || made[*at]) return Refused<StridedView>("an axis that there is not");
      made[*at] = true;
    }
    StridedView view{Dims(rank, 1), Dims(rank, 0), from.offset};
    for (size_t i = 0, next = 0; i < rank; ++i) {
      if (made[i]) continue;
      view.dims[i] = from.dims[next];
      view.strides[i] = from.strides[next++];
    }
    return view;
  }

  std::optional<StridedView> ExpandedTo(const StridedView& from) {
    const auto shape = Integers(1);
    if (!shape) return std::nullopt;
    const auto dims = BroadcastDims(from.dims, *shape);
    if (!dims) return Refused<StridedView>("shapes that do not broadcast");
    return Expanded(from, *dims);
  }

  std::optional<StridedView> Sliced(StridedView view) {
    const auto starts = Integers(1), ends = Integers(2);
    std::optional<std::vector<int64_t>> axes, steps;
    if (Has(3)) axes = Integers(3);
    if (Has(4)) steps = Integers(4);
    if (builder_.refused()) return std::nullopt;
    for (size_t i = 0; i < starts->size(); ++i) {
      const bool listed = (!axes || i < axes->size()) && (!steps || i < steps->size()) && i < ends->size();
      const auto axis = AxisOf(axes && listed ? (*axes)[i] : static_cast<int64_t>(i), view.dims.size());
      const int64_t step = steps && listed ? (*steps)[i] : 1;
      if (!listed || !axis || step == 0) return Refused<StridedView>("a slice that there is not");
      SliceAxis(&view, *axis, (*starts)[i], (*ends)[i], step);
    }
    return view;
  }

  // A view that begins behind the first element, or steps backwards.
  Tensor Window(const Tensor& from, const Dims& offsets, const Dims& dims, const Dims& steps) {
    const Tensor packed = Packed(from);
    if (builder_.refused()) return packed;
    Operator op = OpOf(DML_OPERATOR_SLICE1, node_->name);
    Dims sizes = packed.view.dims, result = dims, begin = offsets, step = steps;
    for (Dims* each : {&sizes, &result, &step}) each->insert(each->begin(), each->size() < 4 ? 4 - each->size() : 0, 1);
    begin.insert(begin.begin(), begin.size() < 4 ? 4 - begin.size() : 0, 0);
    for (size_t i = 0; i < result.size(); ++i) {
      if (step[i] < 0) Refuse("a slice that goes backwards");
      if (result[i] == 0) builder_.Check(RuleId::kZeroDimension);
      op.offsets.push_back(static_cast<uint32_t>(begin[i]));
      op.window.push_back(static_cast<uint32_t>((result[i] - 1) * step[i] + 1));
      op.steps.push_back(static_cast<int32_t>(step[i]));
    }
    Tensor made;
    made.type = from.type;
    made.value = builder_.EmitExact(std::move(op), result, {ExactView{*packed.value, sizes, PackedStrides(sizes)}},
                                    packed.value->type);
    made.view = StridedView::Packed(dims);
    return made;
  }

  void LowerMovement() {
    Tensor tensor = Raw(0);
    if (node_->op == DirectMlOperator::kReshape || node_->op == DirectMlOperator::kFlatten) tensor = Packed(tensor);
    if (builder_.refused()) return;
    const auto view = Moved(tensor.view);
    if (!view) return;
    for (int64_t dim : view->dims) {
      if (dim == 0) builder_.Check(RuleId::kZeroDimension);
    }
    if (view->dims.size() > kDmlMaxRank) builder_.Check(RuleId::kNineDimensions);
    if (builder_.refused()) return;
    const bool seen = view->offset == 0 && std::all_of(view->strides.begin(), view->strides.end(),
                                                       [](int64_t stride) { return stride >= 0; });
    if (seen) {
      tensor.view = *view;
    } else {
      // The same slice of the packed tensor, as offsets and steps.
      Tensor packed = Packed(tensor);
      const auto again = Moved(packed.view);
      Dims offsets, steps;
      int64_t left = again->offset;
      const Dims strides = PackedStrides(packed.view.dims);
      for (size_t i = 0; i < strides.size(); ++i) {
        offsets.push_back(left / strides[i]);
        left %= strides[i];
        steps.push_back(again->strides[i] / strides[i]);
      }
      tensor = Window(packed, offsets, again->dims, steps);
    }
    tensor.known.reset();
    tensor.constant.reset();
    Give(0, std::move(tensor));
  }

  void LowerSplit() {
    const Tensor from = Raw(0);
    const auto axis = AxisOf(node_->attributes.Int("axis", 0), from.view.dims.size());
    if (!axis) return Refuse("an axis that there is not");
    std::vector<int64_t> sizes;
    if (const std::vector<int64_t>* split = node_->attributes.Ints("split")) {
      sizes = *split;
    } else if (Has(1)) {
      sizes = Integers(1).value_or(std::vector<int64_t>());
    } else {
      const auto count = static_cast<int64_t>(node_->outputs.size());
      const int64_t size = (from.view.dims[*axis] + count - 1) / count;
      sizes.assign(node_->outputs.size(), size);
      sizes.back() = from.view.dims[*axis] - size * (count - 1);
    }
    if (builder_.refused()) return;
    int64_t total = 0;
    for (int64_t size : sizes) total += size;
    if (sizes.size() != node_->outputs.size() || total != from.view.dims[*axis])
      return Refuse("a split that does not fit");
    Dims offsets(from.view.dims.size(), 0), dims = from.view.dims;
    for (size_t i = 0; i < sizes.size() && !builder_.refused(); ++i) {
      dims[*axis] = sizes[i];
      if (node_->outputs[i] != kNoValue) Give(i, Window(from, offsets, dims, Dims(dims.size(), 1)));
      offsets[*axis] += sizes[i];
    }
  }

  void LowerConcat() {
    const Dims first = DimsOf(0);
    const auto axis = AxisOf(node_->attributes.Int("axis", 0), first.size());
    if (!axis) return Refuse("an axis that there is not");
    int64_t outer = 1;
    for (size_t i = 0; i < *axis; ++i) outer *= first[i];
    Operator op = OpOf(DML_OPERATOR_JOIN, "concatenate");
    op.axis = 3;
    std::vector<std::optional<ExactView>> inputs;
    Dims dims = first;
    dims[*axis] = 0;
    for (size_t i = 0; i < node_->inputs.size() && !builder_.refused(); ++i) {
      const Tensor packed = Packed(Raw(i));
      const Dims& each = packed.view.dims;
      for (size_t d = 0; d < first.size() && each.size() == first.size(); ++d) {
        if (d != *axis && each[d] != first[d]) Refuse("shapes that do not fit");
      }
      if (each.size() != first.size()) Refuse("shapes that do not fit");
      if (builder_.refused()) return;
      if (Product(each) == 0) continue;  // adds nothing
      const Dims sizes = {1, 1, outer, Product(each) / outer};
      inputs.emplace_back(ExactView{*packed.value, sizes, PackedStrides(sizes)});
      dims[*axis] += each[*axis];
    }
    if (Product(dims) == 0) builder_.Check(RuleId::kZeroDimension);
    if (builder_.refused()) return;
    Tensor result;
    result.type = In(0).type;
    result.value =
        builder_.EmitExact(std::move(op), {1, 1, outer, Product(dims) / outer}, inputs, OnGpuType(result.type));
    result.view = StridedView::Packed(dims);
    Give(0, std::move(result));
  }

  void LowerGather() {
    const Tensor data = Packed(Raw(0)), indices = Packed(Raw(1));
    const Dims& dims = data.view.dims;
    const auto axis = AxisOf(node_->attributes.Int("axis", 0), dims.size());
    if (!axis) return Refuse("an axis that there is not");
    const Dims outer(dims.begin(), dims.begin() + *axis), inner(dims.begin() + *axis + 1, dims.end());
    Dims result_dims = outer;
    result_dims.insert(result_dims.end(), indices.view.dims.begin(), indices.view.dims.end());
    result_dims.insert(result_dims.end(), inner.begin(), inner.end());
    if (Product(result_dims) == 0) builder_.Check(RuleId::kZeroDimension);
    if (builder_.refused()) return;
    const int64_t count = Product(indices.view.dims);
    const Dims from = {1, Product(outer), dims[*axis], Product(inner)}, index = {1, 1, 1, count};
    Operator op = OpOf(DML_OPERATOR_GATHER, "gather");
    op.axis = 2;
    op.index_dimensions = 1;
    Tensor result;
    result.type = data.type;
    result.value = builder_.EmitExact(
        std::move(op), {1, Product(outer), count, Product(inner)},
        {ExactView{*data.value, from, PackedStrides(from)}, ExactView{*indices.value, index, PackedStrides(index)}},
        data.value->type);
    result.view = StridedView::Packed(result_dims);
    Give(0, std::move(result));
  }

  // --- element by element -------------------------------------------------------------------------------------------

  std::optional<Dims> Broadcasted(const std::vector<Tensor>& operands) {
    std::optional<Dims> dims = Dims{};
    for (const Tensor& operand : operands) {
      dims = BroadcastDims(*dims, operand.view.dims);
      if (!dims) return Refused<Dims>("shapes that do not broadcast");
    }
    return dims;
  }

  void LowerUnary(DML_OPERATOR_TYPE type, float scale = 1) {
    const Tensor x = Real(0);
    Operator op = OpOf(type, node_->name);
    if (scale != 1) op.scale_bias = DML_SCALE_BIAS{scale, 0};
    Give(0, Computed(std::move(op), x.view.dims, {x}, DataType::kFloat32));
  }

  // Of two operands or, for Min and Max, more.
  void LowerBinary(DML_OPERATOR_TYPE type) {
    Tensor result = Real(0);
    if (node_->inputs.size() == 1) return Give(0, std::move(result));
    for (size_t i = 1; i < node_->inputs.size() && !builder_.refused(); ++i) {
      const Tensor other = Real(i);
      const auto dims = Broadcasted({result, other});
      if (!dims) return;
      result = Computed(OpOf(type, node_->name), *dims, {result, other}, DataType::kFloat32);
    }
    Give(0, std::move(result));
  }

  // The exponent is often one number, and mostly 2.
  void LowerPow() {
    const Tensor x = Real(0);
    const auto& constant = In(1).constant;
    if (constant != nullptr && constant->ElementCount() == 1 && constant->type == DataType::kFloat32 &&
        constant->dims.size() <= x.view.dims.size()) {
      const float exponent = *static_cast<const float*>(constant->data);
      if (exponent == 2) {
        const Operator op = OpOf(DML_OPERATOR_ELEMENT_WISE_MULTIPLY, node_->name);
        return Give(0, Computed(op, x.view.dims, {x, x}, DataType::kFloat32));
      }
      Operator op = OpOf(DML_OPERATOR_ELEMENT_WISE_CONSTANT_POW, node_->name);
      op.parameters[0] = exponent;
      op.parameter_count = 1;
      return Give(0, Computed(std::move(op), x.view.dims, {x}, DataType::kFloat32));
    }
    LowerBinary(DML_OPERATOR_ELEMENT_WISE_POW);
  }

  void LowerEqual() {
    const std::vector<Tensor> operands = {Real(0), Real(1)};
    const auto dims = Broadcasted(operands);
    if (!dims) return;
    Give(0, Computed(OpOf(DML_OPERATOR_ELEMENT_WISE_LOGICAL_EQUALS, node_->name), *dims, operands, DataType::kBool));
  }

  void LowerWhere() {
    const std::vector<Tensor> operands = {Raw(0), Raw(1), Raw(2)};
    const auto dims = Broadcasted(operands);
    if (!dims) return;
    Give(0, Computed(OpOf(DML_OPERATOR_ELEMENT_WISE_IF, node_->name), *dims, operands, operands[1].type));
  }

  void LowerCast() {
    const Tensor x = Raw(0);
    const DataType type = FromTensorProto(node_->attributes.Int("to", 0));
    if (type == x.type) return Give(0, x);
    if (type == DataType::kBool) return Refuse("a cast to bool");
    Give(0, Computed(OpOf(DML_OPERATOR_CAST, node_->name), x.view.dims, {x}, type));
  }

  void LowerReduce(DML_REDUCE_FUNCTION function) {
    const Tensor x = Real(0);
    const auto given = Axes();
    if (builder_.refused()) return;
    const bool all = !given || given->empty();
    if (all && node_->attributes.Int("noop_with_empty_axes", 0) != 0) return Give(0, x);
    std::vector<bool> axes(x.view.dims.size(), all);
    for (int64_t axis : given.value_or(std::vector<int64_t>())) {
      const auto at = AxisOf(axis, axes.size());
      if (!at) return Refuse("an axis that there is not");
      axes[*at] = true;
    }
    Tensor result = x;
    if (!axes.empty()) {
      Operator op = OpOf(DML_OPERATOR_REDUCE, node_->name);
      op.reduce_function = function;
      result = Computed(std::move(op), x.view.dims, {x}, DataType::kFloat32, axes);
    }
    Dims dims;
    for (size_t i = 0; i < axes.size(); ++i) {
      if (!axes[i]) dims.push_back(x.view.dims[i]);
      if (axes[i] && node_->attributes.Int("keepdims", 1) != 0) dims.push_back(1);
    }
    if (!axes.empty()) result.view = StridedView::Packed(dims);
    Give(0, std::move(result));
  }

  // --- products -----------------------------------------------------------------------------------------------------

  // Batches of both operands over the same dimensions, and the strides of each.
  struct Batches {
    Dims sizes, a, b;
  };

  static Batches Merged(const Dims& sizes, const StridedView& a, const StridedView& b) {
    Batches merged;
    for (size_t i = 0; i < sizes.size(); ++i) {
      if (sizes[i] == 1) continue;
      if (!merged.sizes.empty() && merged.a.back() == a.strides[i] * sizes[i] &&
          merged.b.back() == b.strides[i] * sizes[i]) {
        merged.sizes.back() *= sizes[i];
        merged.a.back() = a.strides[i];
        merged.b.back() = b.strides[i];
      } else {
        merged.sizes.push_back(sizes[i]);
        merged.a.push_back(a.strides[i]);
        merged.b.push_back(b.strides[i]);
      }
    }
    return merged;
  }

  void LowerMatMul() {
    Tensor a = Real(0), b = Real(1);
    const bool row = a.view.dims.size() == 1, column = b.view.dims.size() == 1;
    if (a.view.dims.empty() || b.view.dims.empty()) return Refuse("a product of scalars");
    if (row) {
      a.view.dims.insert(a.view.dims.begin(), 1);
      a.view.strides.insert(a.view.strides.begin(), 0);
    }
    if (column) {
      b.view.dims.push_back(1);
      b.view.strides.push_back(0);
    }
    const auto batch = BroadcastDims(Dims(a.view.dims.begin(), a.view.dims.end() - 2),
                                     Dims(b.view.dims.begin(), b.view.dims.end() - 2));
    if (!batch || a.view.dims.back() != *(b.view.dims.end() - 2)) return Refuse("shapes that do not fit");
    Tensor result = Product2(a, b, *batch);
    if (builder_.refused()) return;
    Dims dims = *batch;
    if (!row) dims.push_back(*(a.view.dims.end() - 2));
    if (!column) dims.push_back(b.view.dims.back());
    result.view = StridedView::Packed(dims);
    Give(0, std::move(result));
  }

  Tensor Product2(Tensor a, Tensor b, const Dims& batch) {
    const auto with_matrix = [&](const Tensor& tensor) {
      Dims dims = batch;
      dims.insert(dims.end(), tensor.view.dims.end() - 2, tensor.view.dims.end());
      return dims;
    };
    const Dims a_dims = with_matrix(a), b_dims = with_matrix(b);
    int64_t rows = *(a_dims.end() - 2);
    const int64_t inner = a_dims.back(), columns = b_dims.back();
    StridedView a_view = Expanded(a.view, a_dims), b_view = Expanded(b.view, b_dims);
    Batches batches = Merged(batch, a_view, b_view);
    // One matrix for all batches: their rows are one matrix, too.
    const bool shared = std::all_of(batches.b.begin(), batches.b.end(), [](int64_t stride) { return stride == 0; });
    const auto row_stride = [&] { return *(a_view.strides.end() - 2); };
    if (shared && batches.sizes.size() == 1 && (batches.a[0] == row_stride() * rows || rows == 1)) {
      if (rows == 1) *(a_view.strides.end() - 2) = batches.a[0];
      rows *= batches.sizes[0];
      batches = {};
    }
    if (batches.sizes.size() > 2) {
      a.view = a_view;
      b.view = b_view;
      a = Packed(a);
      b = Packed(b);
      a_view = StridedView::Packed(a_dims);
      b_view = StridedView::Packed(b_dims);
      batches = Merged(batch, a_view, b_view);
    }
    for (Dims* each : {&batches.sizes, &batches.a, &batches.b}) {
      each->insert(each->begin(), 2 - each->size(), each == &batches.sizes ? 1 : 0);
    }
    if (builder_.refused()) return a;
    const auto exact = [&](const Tensor& tensor, const StridedView& view, Dims strides, int64_t m, int64_t n) {
      strides.insert(strides.end(), view.strides.end() - 2, view.strides.end());
      return ExactView{*tensor.value, {batches.sizes[0], batches.sizes[1], m, n}, strides};
    };
    const Dims sizes = {batches.sizes[0], batches.sizes[1], rows, columns};
    for (int64_t size : {sizes[0], sizes[1], rows, columns, inner}) {
      if (size == 0) builder_.Check(RuleId::kZeroDimension);
    }
    Tensor result;
    result.type = DataType::kFloat32;
    result.value = builder_.EmitExact(
        OpOf(DML_OPERATOR_GEMM, node_->name), sizes,
        {exact(a, a_view, batches.a, rows, inner), exact(b, b_view, batches.b, inner, columns), std::nullopt}, kFloat);
    return result;
  }

  void LowerGemm() {
    Tensor a = Real(0), b = Real(1);
    const auto transpose = [](StridedView* view) {
      std::reverse(view->dims.begin(), view->dims.end());
      std::reverse(view->strides.begin(), view->strides.end());
    };
    if (a.view.dims.size() != 2 || b.view.dims.size() != 2) return Refuse("matrices of another rank");
    if (node_->attributes.Int("transA", 0) != 0) transpose(&a.view);
    if (node_->attributes.Int("transB", 0) != 0) transpose(&b.view);
    if (a.view.dims[1] != b.view.dims[0]) return Refuse("shapes that do not fit");
    const Dims sizes = {1, 1, a.view.dims[0], b.view.dims[1]};
    for (int64_t size : {sizes[2], sizes[3], a.view.dims[1]}) {
      if (size == 0) builder_.Check(RuleId::kZeroDimension);
    }
    std::optional<ExactView> c;
    if (Has(2)) {
      const Tensor bias = Real(2);
      const auto dims = BroadcastDims(bias.view.dims, {sizes[2], sizes[3]});
      if (!dims || *dims != Dims{sizes[2], sizes[3]}) return Refuse("a bias that does not broadcast");
      c = ExactView{*bias.value, sizes, Expanded(bias.view, sizes).strides};
    }
    if (builder_.refused()) return;
    const auto exact = [](const Tensor& tensor) {
      const StridedView view = Expanded(tensor.view, {1, 1, tensor.view.dims[0], tensor.view.dims[1]});
      return ExactView{*tensor.value, view.dims, view.strides};
    };
    Operator op = OpOf(DML_OPERATOR_GEMM, node_->name);
    op.alpha = node_->attributes.Float("alpha", 1);
    op.beta = node_->attributes.Float("beta", 1);
    Tensor result;
    result.type = DataType::kFloat32;
    result.value = builder_.EmitExact(std::move(op), sizes, {exact(a), exact(b), c}, kFloat);
    result.view = StridedView::Packed({sizes[2], sizes[3]});
    Give(0, std::move(result));
  }

  // --- by operator --------------------------------------------------------------------------------------------------

  void LowerOperator() {
    switch (node_->op) {
      case DirectMlOperator::kMatMul:
        return LowerMatMul();
      case DirectMlOperator::kGemm:
        return LowerGemm();
      case DirectMlOperator::kAdd:
        return LowerBinary(DML_OPERATOR_ELEMENT_WISE_ADD);
      case DirectMlOperator::kSub:
        return LowerBinary(DML_OPERATOR_ELEMENT_WISE_SUBTRACT);
      case DirectMlOperator::kMul:
        return LowerBinary(DML_OPERATOR_ELEMENT_WISE_MULTIPLY);
      case DirectMlOperator::kDiv:
        return LowerBinary(DML_OPERATOR_ELEMENT_WISE_DIVIDE);
      case DirectMlOperator::kMin:
        return LowerBinary(DML_OPERATOR_ELEMENT_WISE_MIN);
      case DirectMlOperator::kMax:
        return LowerBinary(DML_OPERATOR_ELEMENT_WISE_MAX);
      case DirectMlOperator::kPow:
        return LowerPow();
      case DirectMlOperator::kSqrt:
        return LowerUnary(DML_OPERATOR_ELEMENT_WISE_SQRT);
      case DirectMlOperator::kNeg:
        return LowerUnary(DML_OPERATOR_ELEMENT_WISE_IDENTITY, -1);
      case DirectMlOperator::kAbs:
        return LowerUnary(DML_OPERATOR_ELEMENT_WISE_ABS);
      case DirectMlOperator::kExp:
        return LowerUnary(DML_OPERATOR_ELEMENT_WISE_EXP);
      case DirectMlOperator::kLog:
        return LowerUnary(DML_OPERATOR_ELEMENT_WISE_LOG);
      case DirectMlOperator::kErf:
        return LowerUnary(DML_OPERATOR_ELEMENT_WISE_ERF);
      case DirectMlOperator::kReciprocal:
        return LowerUnary(DML_OPERATOR_ELEMENT_WISE_RECIP);
      case DirectMlOperator::kTanh:
        return LowerUnary(DML_OPERATOR_ACTIVATION_TANH);
      case DirectMlOperator::kSigmoid:
        return LowerUnary(DML_OPERATOR_ACTIVATION_SIGMOID);
      case DirectMlOperator::kRelu:
        return LowerUnary(DML_OPERATOR_ACTIVATION_RELU);
      case DirectMlOperator::kEqual:
        return LowerEqual();
      case DirectMlOperator::kWhere:
        return LowerWhere();
      case DirectMlOperator::kCast:
        return LowerCast();
      case DirectMlOperator::kGather:
        return LowerGather();
      case DirectMlOperator::kConcat:
        return LowerConcat();
      case DirectMlOperator::kSplit:
        return LowerSplit();
      case DirectMlOperator::kReduceMean:
        return LowerReduce(DML_REDUCE_FUNCTION_AVERAGE);
      case DirectMlOperator::kReduceSum:
        return LowerReduce(DML_REDUCE_FUNCTION_SUM);
      case DirectMlOperator::kReduceMax:
        return LowerReduce(DML_REDUCE_FUNCTION_MAX);
      case DirectMlOperator::kSlice:
      case DirectMlOperator::kTranspose:
      case DirectMlOperator::kReshape:
      case DirectMlOperator::kFlatten:
      case DirectMlOperator::kSqueeze:
      case DirectMlOperator::kUnsqueeze:
      case DirectMlOperator::kExpand:
      case DirectMlOperator::kIdentity:
        return LowerMovement();
      case DirectMlOperator::kShape:
        return;
    }
  }

  const Island& island_;
  ProgramBuilder& builder_;
  std::vector<Tensor> tensors_;
  const IslandNode* node_ = nullptr;
};

}  // namespace

std::optional<Declined> Lower(const Island& island, const std::vector<InputShape>& inputs,
                              const Capabilities& capabilities, DmlProgram* program) {
  ProgramBuilder builder(capabilities, program);
  return IslandLowering(island, builder).Run(inputs);
}

}  // namespace normfuse::directml
