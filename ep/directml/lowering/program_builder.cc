#include "directml/lowering/program_builder.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "directml/lowering/quantization.h"

namespace normfuse::directml {
namespace {

using namespace abi;

constexpr size_t kUsualRank = 4;

bool IsNibble(DataType type) { return type == DataType::kUint4 || type == DataType::kInt4; }

uint64_t BufferBytes(DataType type, int64_t elements) {
  return (BytesFor(type, static_cast<size_t>(elements)) + 3) / 4 * 4;
}

// By DML_TENSOR_DATA_TYPE.
constexpr DataType kTypes[] = {DataType::kUndefined, DataType::kFloat32,   DataType::kFloat16,   DataType::kUint32,
                               DataType::kUint16,    DataType::kUint8,     DataType::kInt32,     DataType::kInt16,
                               DataType::kInt8,      DataType::kUndefined, DataType::kUndefined, DataType::kUndefined,
                               DataType::kUint4,     DataType::kInt4};

// An operator's dimensions: their sizes, which of them are reduced, and each input's strides.
struct Geometry {
  Dims sizes;
  std::vector<bool> axes;
  std::vector<Dims> strides;

  void Erase(size_t dim) {
    sizes.erase(sizes.begin() + dim);
    axes.erase(axes.begin() + dim);
    for (Dims& s : strides) s.erase(s.begin() + dim);
  }
};

// Dimensions of 1 say nothing; only one of them stays where every reduced dimension is 1.
void DropOnes(Geometry* geometry) {
  bool axis_kept = false;
  for (size_t i = 0; i < geometry->sizes.size(); ++i) axis_kept |= geometry->axes[i] && geometry->sizes[i] != 1;
  for (size_t i = geometry->sizes.size(); i-- > 0;) {
    if (geometry->sizes[i] != 1) continue;
    if (!geometry->axes[i] || axis_kept) {
      geometry->Erase(i);
    } else {
      axis_kept = true;
    }
  }
}

// Joins neighbours that every input steps through as if they were one dimension.
void MergeNeighbours(Geometry* geometry) {
  for (size_t i = geometry->sizes.size(); i-- > 1;) {
    const size_t outer = i - 1;
    const int64_t inner_size = geometry->sizes[i];
    bool merge = geometry->axes[outer] == geometry->axes[i] && geometry->sizes[outer] != 1 && inner_size != 1;
    for (const Dims& s : geometry->strides) merge = merge && s[outer] == s[i] * inner_size;
    if (!merge) continue;
    geometry->sizes[i] *= geometry->sizes[outer];
    geometry->Erase(outer);
  }
}

void PadLeft(Geometry* geometry, size_t rank) {
  while (geometry->sizes.size() < rank) {
    geometry->sizes.insert(geometry->sizes.begin(), 1);
    geometry->axes.insert(geometry->axes.begin(), false);
    for (Dims& s : geometry->strides) s.insert(s.begin(), 0);
  }
}

OperatorInput Described(const Value& value, const Dims& sizes, const Dims& strides) {
  TensorDesc desc{value.type, Narrow(sizes), {}, value.bytes, value.owned_by_dml};
  const Dims packed = PackedStrides(sizes);
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] != 1 && strides[i] != packed[i]) desc.strides = Narrow(strides);
  }
  return {std::move(desc), value.from_graph_input, value.index};
}

// QUANTIZE and DEQUANTIZE tell the block size by the sizes of scale and zero point, which must be the same: 1 in every
// dimension that neither runs along.
Dims BlockSizes(const Geometry& geometry) {
  Dims sizes = geometry.sizes;
  for (size_t i = 0; i < sizes.size(); ++i) {
    bool used = false;
    for (size_t parameter = 1; parameter < geometry.strides.size(); ++parameter) {
      used = used || geometry.strides[parameter][i] != 0;
    }
    if (!used) sizes[i] = 1;
  }
  return sizes;
}

}  // namespace

DataType FromDirectMl(DML_TENSOR_DATA_TYPE type) { return kTypes[type]; }

std::optional<DML_TENSOR_DATA_TYPE> ToDirectMl(DataType type) {
  const auto* found = std::find(std::begin(kTypes) + 1, std::end(kTypes), type);
  if (type == DataType::kUndefined || found == std::end(kTypes)) return std::nullopt;
  return static_cast<DML_TENSOR_DATA_TYPE>(found - kTypes);
}

DataType StoredType(DataType type) {
  return type == DataType::kInt64 ? DataType::kInt32 : type == DataType::kBool ? DataType::kUint8 : type;
}

int64_t Product(const Dims& dims) {
  int64_t product = 1;
  for (int64_t dim : dims) {
    if (dim == 0) return 0;
    if (dim < 0 || product > std::numeric_limits<int64_t>::max() / dim) {
      product = std::numeric_limits<int64_t>::max();
    } else {
      product *= dim;
    }
  }
  return product;
}

Dims PackedStrides(const Dims& dims) {
  Dims strides(dims.size());
  int64_t step = 1;
  for (size_t i = dims.size(); i-- > 0;) {
    strides[i] = step;
    step *= dims[i];
  }
  return strides;
}

Dims BroadcastStrides(const Dims& dims, const Dims& sizes) {
  Dims strides(sizes.size(), 0);
  const Dims packed = PackedStrides(dims);
  for (size_t i = 0; i < dims.size() && i < sizes.size(); ++i) {
    const size_t from = dims.size() - 1 - i;
    if (dims[from] != 1) strides[sizes.size() - 1 - i] = packed[from];
  }
  return strides;
}

ProgramBuilder::ProgramBuilder(const Capabilities& capabilities, DmlProgram* program, bool shares_weights)
    : capabilities_(capabilities), program_(program), shares_weights_(shares_weights) {
  *program = DmlProgram{};
  program->level = capabilities.level;
}

bool ProgramBuilder::Supports(DataType type) const {
  const auto found = ToDirectMl(type);
  return found && (!IsNibble(type) || level() >= DML_FEATURE_LEVEL_6_3) && (capabilities_.types & Bit(*found)) != 0;
}

DML_TENSOR_DATA_TYPE ProgramBuilder::Supported(DataType type, const std::string& name) {
  const auto found = ToDirectMl(type);
  if (Supports(type)) return *found;
  const std::string what = std::string("a tensor of type ") + NameOf(type) + " (" + name + ")";
  if (!found) {
    Unsupported(what);
  } else if (IsNibble(type) && level() < DML_FEATURE_LEVEL_6_3) {
    NeedsLevel(what, DML_FEATURE_LEVEL_6_3);
  } else {
    Unsupported(what + " on this GPU, whose driver does not support the type");
  }
  return found.value_or(DML_TENSOR_DATA_TYPE_UNKNOWN);
}

Value ProgramBuilder::Input(const std::string& name, int node_input, DataType type, const Dims& dims) {
  Value value = Add({name, node_input, {}, {}, type, StoredType(type)}, dims);
  const auto same = [=](const GraphInput& each) { return each.node_input == node_input; };
  const auto known = std::find_if(program_->inputs.begin(), program_->inputs.end(), same);
  if (known == program_->inputs.end() - 1) return value;
  value.index = static_cast<uint32_t>(known - program_->inputs.begin());
  program_->inputs.pop_back();
  return value;
}

void ProgramBuilder::LimitInput(int node_input, IndexRange range) {
  for (GraphInput& input : program_->inputs) {
    if (input.node_input != node_input) continue;
    const IndexRange known = input.indices.value_or(range);
    input.indices = {std::max(known.least, range.least), std::min(known.most, range.most)};
  }
}

Value ProgramBuilder::Add(GraphInput input, const Dims& dims) {
  const DML_TENSOR_DATA_TYPE dml_type = Supported(input.stored, input.name);
  if (std::find(dims.begin(), dims.end(), 0) != dims.end()) Check(RuleId::kZeroDimension);
  const int64_t elements = Product(dims);
  input.elements = static_cast<uint64_t>(elements);
  input.bytes = BufferBytes(input.stored, elements);
  const bool owned = input.node_input < 0 && !input.weight;
  const auto index = static_cast<uint32_t>(program_->inputs.size());
  program_->inputs.push_back(std::move(input));
  return {true, index, dml_type, dims, program_->inputs.back().bytes, owned};
}

Value ProgramBuilder::Constant(const std::string& name, DataType type, const void* data, const Dims& dims) {
  const Value value = Add({name, -1, {}, {}, type, type}, dims);
  GraphInput& input = program_->inputs.back();
  input.value.resize(input.bytes);
  if (input.elements > 0) std::memcpy(input.value.data(), data, BytesFor(type, static_cast<size_t>(input.elements)));
  return value;
}

Value ProgramBuilder::Weight(const std::string& name, std::shared_ptr<const ConstantTensor> tensor, DataType type) {
  const auto key = std::pair(tensor.get(), type);
  if (const auto known = values_of_weights_.find(key); known != values_of_weights_.end()) return known->second;
  Value value;
  if (shares_weights_) {
    value = Add({name, -1, {}, tensor, type, type}, tensor->dims);
  } else if (type == tensor->type) {
    value = Constant(name, type, tensor->data, tensor->dims);
  } else {
    value = FloatConstant(name, FloatsOf(*tensor), tensor->dims);
  }
  values_of_weights_[key] = value;
  weights_[value.index] = std::move(tensor);
  return value;
}

std::optional<Value> ProgramBuilder::FloatWeight(const Value& value) {
  const auto weight = weights_.find(value.index);
  if (!value.from_graph_input || value.type != DML_TENSOR_DATA_TYPE_FLOAT16 || weight == weights_.end()) {
    return std::nullopt;
  }
  return Weight(program_->inputs[value.index].name, weight->second, DataType::kFloat32);
}

Value ProgramBuilder::FloatConstant(const std::string& name, const std::vector<float>& values, const Dims& dims) {
  return Constant(name, DataType::kFloat32, values.data(), dims);
}

// Its size; false where there is a refusal already.
bool ProgramBuilder::Begin(const Operator& op, const Dims& sizes, Value* result) {
  const DataType type = FromDirectMl(result->type);
  result->bytes = BufferBytes(type, Product(result->dims));
  if (refused_) return false;
  Supported(type, op.purpose);
  if (Product(sizes) > kMaxElements) Check(RuleId::kTooManyElements);
  return true;
}

Value ProgramBuilder::Emit(Operator op, const Dims& sizes, const std::vector<std::optional<View>>& inputs,
                           DML_TENSOR_DATA_TYPE output_type, const std::vector<bool>& axes) {
  Value result{false, static_cast<uint32_t>(program_->operators.size()), output_type, sizes, 0, false};
  if (op.type == DML_OPERATOR_REDUCE) {
    for (size_t i = 0; i < sizes.size(); ++i) {
      if (axes[i]) result.dims[i] = 1;
    }
  }
  if (!Begin(op, sizes, &result)) return result;
  Geometry geometry{sizes, axes.empty() ? std::vector<bool>(sizes.size()) : axes, {}};
  for (const auto& input : inputs) {
    if (input) geometry.strides.push_back(input->strides);
  }
  DropOnes(&geometry);
  MergeNeighbours(&geometry);
  CheckRank(op.type, geometry.sizes.size());
  PadLeft(&geometry, kUsualRank);

  const bool by_size = op.type == DML_OPERATOR_QUANTIZE || op.type == DML_OPERATOR_DEQUANTIZE;
  const Dims parameter_sizes = by_size ? BlockSizes(geometry) : geometry.sizes;
  size_t present = 0;
  for (size_t i = 0; i < inputs.size(); ++i) {
    op.inputs.emplace_back();
    if (!inputs[i]) continue;
    const Dims& strides = geometry.strides[present++];
    const Value& value = inputs[i]->value;
    op.inputs.back() = Described(value, i == 0 ? geometry.sizes : parameter_sizes, strides);
  }
  Dims output_sizes = geometry.sizes;
  for (size_t i = 0; i < geometry.sizes.size(); ++i) {
    if (!geometry.axes[i]) continue;
    op.axes.push_back(static_cast<uint32_t>(i));
    if (op.type == DML_OPERATOR_REDUCE) output_sizes[i] = 1;
  }
  op.output = {output_type, Narrow(output_sizes), {}, result.bytes, false};
  program_->operators.push_back(std::move(op));
  return result;
}

Value ProgramBuilder::EmitExact(Operator op, const Dims& sizes, const std::vector<std::optional<ExactView>>& inputs,
                                DML_TENSOR_DATA_TYPE output_type) {
  Value result{false, static_cast<uint32_t>(program_->operators.size()), output_type, sizes, 0, false};
  if (!Begin(op, sizes, &result)) return result;
  CheckRank(op.type, sizes.size());
  for (const auto& input : inputs) {
    op.inputs.emplace_back();
    if (!input) continue;
    op.inputs.back() = Described(input->value, input->sizes, input->strides);
  }
  op.output = {output_type, Narrow(sizes), {}, result.bytes, false};
  program_->operators.push_back(std::move(op));
  return result;
}

void ProgramBuilder::CheckRank(DML_OPERATOR_TYPE type, size_t rank) {
  const OperatorRule rule = *OperatorRuleOf(type);
  if (level() < rule.level) return NeedsLevel(OperatorName(type), rule.level);
  if (rank > kDmlMaxRank) Check(RuleId::kNineDimensions);
  if (rank > kUsualRank && level() < rule.all_ranks) {
    NeedsLevel(OperatorName(type) + " over " + std::to_string(rank) + " dimensions that cannot be merged",
               rule.all_ranks);
  }
}

Value ProgramBuilder::Unary(Operator op, const Value& x) { return Emit(std::move(op), x.dims, {Whole(x)}, x.type); }

Value ProgramBuilder::Binary(DML_OPERATOR_TYPE type, const char* purpose, const Value& a, const Value& b,
                             const Dims& sizes) {
  return Emit(OpOf(type, purpose), sizes, {Broadcast(a, sizes), Broadcast(b, sizes)}, a.type);
}

Value ProgramBuilder::Cast(const Value& x, DML_TENSOR_DATA_TYPE type, const char* purpose) {
  return Emit(OpOf(DML_OPERATOR_CAST, purpose), x.dims, {Whole(x)}, type);
}

void ProgramBuilder::Output(int node_output, DataType type, const Dims& dims, const Value& value) {
  program_->outputs.push_back(
      {node_output, type, StoredType(type), dims, static_cast<uint64_t>(Product(dims)), value.bytes, value.index});
}

void ProgramBuilder::KnownOutput(int node_output, ConstantTensor value) {
  program_->known_outputs.push_back({node_output, std::move(value)});
}

void ProgramBuilder::Refuse(Declined reason) {
  if (!refused_) refused_ = std::move(reason);
}

void ProgramBuilder::NeedsLevel(const std::string& what, uint32_t needed) {
  const std::string needed_name = LevelName(needed), level_name = LevelName(level());
  Refuse(Decline(Reason::kDirectmlLevel, {{"what", what}, {"needed", needed_name}, {"level", level_name}}));
}

void ProgramBuilder::Unsupported(const std::string& what) {
  Refuse(Decline(Reason::kDirectmlUnsupported, {{"what", what}}));
}

bool ProgramBuilder::Check(RuleId id) {
  if (Allows(id, level())) return true;
  const Rule& rule = RuleOf(id);
  rule.since == kNever ? Unsupported(rule.what) : NeedsLevel(rule.what, rule.since);
  return false;
}

}  // namespace normfuse::directml
