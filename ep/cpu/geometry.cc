#include "cpu/geometry.h"

#include <algorithm>
#include <bit>

namespace normfuse::cpu {
namespace {

// The name of a tensor, or of a part of its quantisation, in messages; built only when there is a message.
struct Name {
  const std::string& tensor;
  const char* part = "";

  std::string Text() const {
    if (*part == '\0') return tensor;
    return (tensor == "X" ? "x" : tensor == "Y" ? "y" : tensor) + part;
  }
};

struct QuantizedTensor {
  const std::string& name;
  const Quantization& quantization;
  const Shape& shape;
  FormId scale_form;  // the next two are zero point and block

  Name Scale() const { return {name, "_scale"}; }
  Name ZeroPoint() const { return {name, "_zero_point"}; }
};

// Strides of all forms over the dimensions of d before any joining.
struct Builder {
  Builder(const Chain& the_chain, Geometry* geometry) : chain(the_chain), g(*geometry) {}

  const Chain& chain;
  Geometry& g;
  DimList dims;
  bool reduced[kMaxDims] = {};

  Result Error(const std::string& text) const {
    return Result::Error(ErrorCode::kInvalidArgument, chain.name + ": " + text);
  }

  void Activate(FormId form) { g.active |= 1u << form; }

  Result SetLogicalShape(const std::vector<OperandForms>& operands, const CallShapes& shapes);
  Result AddOperand(const OperandForms& operand, const Shape& shape);
  Result AddTensor(FormId form, const Name& what, const Shape& shape);
  Result AddQuantization(const QuantizedTensor& tensor, const Shape& scale, const Shape& zero);
  Result AddAlongAxis(FormId form, const Name& what, const Shape& tensor, int64_t axis, int64_t length);
  Result AddQuantizationPart(FormId form, const Name& what, const QuantizedTensor& tensor, const Shape& part);
  Result AddBlocked(const QuantizedTensor& tensor, const Shape& scale, const Shape& zero);
  Result MarkReduced();
  Result SplitGroups();
  void SpreadOverGroups(const OperandForms& operand, const Shape& shape);
  void FillOutputForms();
  void FlattenUniform(uint32_t uniform);
  void SortDims(uint32_t forms_of_d);
};

int64_t NormalizeAxis(int64_t axis, int rank) { return axis < 0 ? axis + rank : axis; }

PartialShape Whole(const Shape& shape) {
  PartialShape whole;
  whole.rank = shape.rank;
  if (shape.rank <= kMaxRank) std::copy_n(shape.dims, std::max(shape.rank, 0), whole.dims);
  return whole;
}

Result Builder::SetLogicalShape(const std::vector<OperandForms>& operands, const CallShapes& shapes) {
  PartialShape d;
  const auto shape_of = [&operands, &shapes](const Operand& operand) {
    const auto is_operand = [&](const OperandForms& forms) { return forms.operand == &operand; };
    return Whole(shapes.of[std::find_if(operands.begin(), operands.end(), is_operand)->form]);
  };
  NORMFUSE_RETURN_IF_ERROR(ShapeOfD(chain, shape_of, &d));
  g.rank = d.rank;
  std::copy_n(d.dims, d.rank, g.shape);
  dims.count = g.rank;
  for (int i = 0; i < g.rank; ++i) dims.dims[i] = Dim{g.shape[i], {}};
  return {};
}

// A tensor that broadcasts to d from the last dimension.
Result Builder::AddTensor(FormId form, const Name& what, const Shape& shape) {
  const int missing = g.rank - shape.rank;  // more dimensions would give Y more than d has
  bool fits = missing >= 0;
  int64_t stride = 1;
  for (int i = shape.rank - 1; i >= 0 && fits; --i) {
    Dim& dim = dims.dims[i + missing];
    if (shape.dims[i] == 1) continue;
    fits = shape.dims[i] == dim.size;
    dim.stride[form] = stride;
    stride *= shape.dims[i];
  }
  if (!fits) {
    return Error(what.Text() + " of shape " + ShapeText(shape.dims, shape.rank) + " does not broadcast to shape " +
                 ShapeText(g.shape, g.rank));
  }
  Activate(form);
  return {};
}

// A vector along one axis of a tensor that itself broadcasts to d.
Result Builder::AddAlongAxis(FormId form, const Name& what, const Shape& tensor, int64_t axis, int64_t length) {
  const int64_t at = NormalizeAxis(axis, tensor.rank);
  if (at < 0 || at >= tensor.rank) {
    return Error(what.Text() + ": axis " + std::to_string(axis) + " is out of range for shape " +
                 ShapeText(tensor.dims, tensor.rank));
  }
  if (tensor.dims[at] != length) {
    return Error(what.Text() + " has " + std::to_string(length) + " elements, but dimension " + std::to_string(at) +
                 " of shape " + ShapeText(tensor.dims, tensor.rank) + " has " + std::to_string(tensor.dims[at]));
  }
  if (length != 1) dims.dims[at + g.rank - tensor.rank].stride[form] = 1;
  Activate(form);
  return {};
}

Result Builder::AddBlocked(const QuantizedTensor& quantized, const Shape& scale, const Shape& zero) {
  const Shape& tensor = quantized.shape;
  const FormId scale_form = quantized.scale_form;
  const int64_t axis = NormalizeAxis(quantized.quantization.axis, tensor.rank);
  const int64_t block = quantized.quantization.block_size;
  bool fits = axis >= 0 && axis < tensor.rank && scale.rank == tensor.rank;
  for (int i = 0; i < tensor.rank && fits; ++i) {
    fits = scale.dims[i] == (i == axis ? (tensor.dims[i] + block - 1) / block : tensor.dims[i]);
  }
  if (!fits) {
    return Error(quantized.Scale().Text() + " of shape " + ShapeText(scale.dims, scale.rank) +
                 " does not fit blocks of " + std::to_string(block) + " along axis " +
                 std::to_string(quantized.quantization.axis) + " of shape " + ShapeText(tensor.dims, tensor.rank));
  }
  const bool zero_like_scale = zero.rank >= 0 && zero.ElementCount() != 1;
  int64_t stride = 1;
  for (int i = tensor.rank - 1; i >= 0; --i) {
    Dim& dim = dims.dims[i + g.rank - tensor.rank];
    const bool spread = tensor.dims[i] != 1;
    if (i == axis) {
      g.block_stride[scale_form] = stride;
      dim.stride[scale_form + 2] = spread ? 1 : 0;
    } else if (spread) {
      dim.stride[scale_form] = stride;
      if (zero_like_scale) dim.stride[scale_form + 1] = stride;
    }
    stride *= scale.dims[i];
  }
  Activate(static_cast<FormId>(scale_form + 2));
  return {};
}

// A scale or a zero point that is not blocked: one for all, one for each element of an axis, or of the tensor's rank.
Result Builder::AddQuantizationPart(FormId form, const Name& what, const QuantizedTensor& quantized,
                                    const Shape& part) {
  const Shape& tensor = quantized.shape;
  const int64_t count = part.ElementCount();
  if (count == 1) return {};
  // A tensor of one dimension has only one axis, whatever the attribute says.
  const int64_t axis = tensor.rank == 1 ? 0 : quantized.quantization.axis;
  if (part.rank == 1) return AddAlongAxis(form, what, tensor, axis, count);
  bool fits = part.rank == tensor.rank;
  for (int i = 0; i < part.rank && fits; ++i) fits = part.dims[i] == 1 || part.dims[i] == tensor.dims[i];
  if (!fits) {
    return Error(what.Text() + " of shape " + ShapeText(part.dims, part.rank) + " does not broadcast to " +
                 quantized.name + " of shape " + ShapeText(tensor.dims, tensor.rank));
  }
  return AddTensor(form, what, part);
}

Result Builder::AddQuantization(const QuantizedTensor& tensor, const Shape& scale, const Shape& zero) {
  if (scale.rank < 0) return {};
  const auto zero_form = static_cast<FormId>(tensor.scale_form + 1);
  Activate(tensor.scale_form);
  if (zero.rank >= 0) Activate(zero_form);
  if (tensor.quantization.block_size <= 0) {
    NORMFUSE_RETURN_IF_ERROR(AddQuantizationPart(tensor.scale_form, tensor.Scale(), tensor, scale));
    if (zero.rank < 0) return {};
    return AddQuantizationPart(zero_form, tensor.ZeroPoint(), tensor, zero);
  }
  bool same = zero.rank < 0 || zero.ElementCount() == 1 || zero.rank == scale.rank;
  for (int i = 0; zero.ElementCount() != 1 && same && i < zero.rank; ++i) same = zero.dims[i] == scale.dims[i];
  if (!same) {
    return Error(tensor.ZeroPoint().Text() + " of shape " + ShapeText(zero.dims, zero.rank) +
                 " is neither one element nor of the shape " + ShapeText(scale.dims, scale.rank) + " of " +
                 tensor.Scale().Text());
  }
  return AddBlocked(tensor, scale, zero);
}

// How the operand meets d; one for each group is spread once the channels are split (SpreadOverGroups).
Result Builder::AddOperand(const OperandForms& forms, const Shape& shape) {
  const std::string& name = forms.operand->name;
  const Align align = forms.operand->align;
  if (align == Align::kTrailing) return AddTensor(forms.form, {name}, shape);
  const int64_t count = shape.ElementCount();
  if (align == Align::kGroup) {
    const int64_t groups = chain.num_groups();
    if (groups <= 0 || (count != groups && count != 1)) {
      return Error(name + " of shape " + ShapeText(shape.dims, shape.rank) +
                   " does not have one element for each of the " + std::to_string(groups) + " groups");
    }
    Activate(forms.form);
    return {};
  }
  if (count == 1) {
    Activate(forms.form);
    return {};
  }
  if (shape.rank != 1 || g.rank < 2) {
    return Error(name + " of shape " + ShapeText(shape.dims, shape.rank) +
                 " must have one dimension, along dimension 1 of shape " + ShapeText(g.shape, g.rank));
  }
  return AddAlongAxis(forms.form, {name}, Shape{g.shape, g.rank}, 1, count);
}

Result Builder::MarkReduced() {
  if (!chain.normalizes() || chain.num_groups() > 0) return {};
  const Normalization& norm = *chain.normalization;
  if (norm.from_first_axis) {
    const int64_t first = NormalizeAxis(norm.first_axis, g.rank);
    if (first < 0 || first >= g.rank) {
      return Error("axis " + std::to_string(norm.first_axis) + " is out of range for shape " +
                   ShapeText(g.shape, g.rank));
    }
    for (int i = static_cast<int>(first); i < g.rank; ++i) reduced[i] = true;
    return {};
  }
  for (int64_t axis : norm.axes) {
    const int64_t at = NormalizeAxis(axis, g.rank);
    if (at < 0 || at >= g.rank) {
      return Error("axis " + std::to_string(axis) + " is out of range for shape " + ShapeText(g.shape, g.rank));
    }
    if (reduced[at]) return Error("axis " + std::to_string(axis) + " is given twice");
    reduced[at] = true;
  }
  return {};
}

Result Builder::SplitGroups() {
  const int64_t groups = chain.num_groups();
  if (groups <= 0) return {};
  if (g.rank < 2)
    return Error("group normalisation needs at least 2 dimensions, X has shape " + ShapeText(g.shape, g.rank));
  const int64_t channels = g.shape[1];
  if (channels % groups != 0) {
    return Error("the " + std::to_string(channels) + " channels of X of shape " + ShapeText(g.shape, g.rank) +
                 " cannot be divided into " + std::to_string(groups) + " groups");
  }
  for (int i = dims.count; i > 2; --i) dims.dims[i] = dims.dims[i - 1];
  ++dims.count;
  dims.dims[2] = dims.dims[1];
  dims.dims[1].size = groups;
  dims.dims[2].size = channels / groups;
  for (int64_t& stride : dims.dims[1].stride) stride *= channels / groups;
  for (int i = 2; i < dims.count; ++i) reduced[i] = true;
  return {};
}

void Builder::SpreadOverGroups(const OperandForms& operand, const Shape& shape) {
  if (operand.operand->align == Align::kGroup && shape.ElementCount() != 1) dims.dims[1].stride[operand.form] = 1;
}

void Builder::FillOutputForms() {
  int64_t stride = 1;
  int64_t stat_stride = 1;
  for (int i = dims.count - 1; i >= 0; --i) {
    Dim& dim = dims.dims[i];
    dim.stride[kFormY] = stride;
    stride *= dim.size;
    if (reduced[i]) continue;
    dim.stride[kFormStat] = stat_stride;
    stat_stride *= dim.size;
  }
  Activate(kFormY);
  if (chain.normalization && chain.normalization->has_statistics()) Activate(kFormStat);
  for (int i = 0; i < g.rank; ++i) g.stat_shape[i] = reduced[i] ? 1 : g.shape[i];
  // With groups the statistics have shape [N, groups]; written with d's rank: [N, groups, 1 ...].
  if (dims.count != g.rank) {
    g.stat_shape[1] = dims.dims[1].size;
    for (int i = 2; i < g.rank; ++i) g.stat_shape[i] = 1;
  }
}

bool Joins(const Dim& outer, const Dim& inner, uint32_t active) {
  for (uint32_t left = active; left != 0; left &= left - 1) {
    const int form = std::countr_zero(left);
    if (outer.stride[form] != inner.stride[form] * inner.size) return false;
  }
  return true;
}

void Append(DimList* list, const Dim& dim, uint32_t active) {
  if (list->count > 0 && Joins(list->dims[list->count - 1], dim, active)) {
    Dim& last = list->dims[list->count - 1];
    const int64_t size = last.size * dim.size;
    last = dim;
    last.size = size;
    return;
  }
  list->dims[list->count++] = dim;
}

constexpr uint32_t Bit(FormId form) { return 1u << form; }

// The operands that d, and the outputs stored on the way to it, are computed from.
uint32_t FormsOfD(const Chain& chain, const std::vector<OperandForms>& operands) {
  uint32_t forms = 0;
  for (const OperandForms& operand : operands) {
    if (!operand.of_d) continue;
    forms |= Bit(operand.form);
    for (int i = 0; i < 3 && operand.has_quantization(); ++i) forms |= Bit(static_cast<FormId>(operand.scale_form + i));
  }
  const bool emits =
      std::any_of(chain.before.begin(), chain.before.end(), [](const Step& step) { return step.output != kNoOutput; });
  return forms | (emits ? Bit(kFormY) : 0u);
}

void Builder::FlattenUniform(uint32_t uniform) {
  for (uint32_t left = uniform; left != 0; left &= left - 1) {
    const int form = std::countr_zero(left);
    for (int i = 0; i < dims.count; ++i) dims.dims[i].stride[form] = 0;
  }
}

void Builder::SortDims(uint32_t forms_of_d) {
  const bool elementwise = !chain.normalizes();
  int innermost = -1;
  for (int i = 0; i < dims.count; ++i) {
    const Dim& dim = dims.dims[i];
    if (dim.size == 1) continue;
    innermost = i;
    // Without a normalisation all is one group, worked through in order.
    if (reduced[i] || elementwise) {
      Append(&g.reduced, dim, g.active);
      Append(&g.reduced_d, dim, forms_of_d);
    } else {
      Append(&g.kept, dim, g.active);
    }
  }
  g.columns = !elementwise && innermost >= 0 && !reduced[innermost];
  const Dim one{1, {}};
  if (g.reduced.count == 0) g.reduced.dims[g.reduced.count++] = one;
  if (g.reduced_d.count == 0) g.reduced_d.dims[g.reduced_d.count++] = one;
  if (g.kept.count == 0) g.kept.dims[g.kept.count++] = one;
  g.group_count = g.kept.ElementCount();
  g.group_size = g.reduced.ElementCount();
  g.element_count = g.group_count * g.group_size;
}

}  // namespace

Result BindGeometry(const Chain& chain, const std::vector<OperandForms>& operands, const CallShapes& shapes,
                    Geometry* geometry) {
  Builder b(chain, geometry);
  NORMFUSE_RETURN_IF_ERROR(b.SetLogicalShape(operands, shapes));
  for (const OperandForms& operand : operands) {
    NORMFUSE_RETURN_IF_ERROR(b.AddOperand(operand, shapes.of[operand.form]));
  }
  for (const OperandForms& operand : operands) {
    if (!operand.has_quantization()) continue;
    const QuantizedTensor tensor{operand.operand->name, operand.operand->quantization, shapes.of[operand.form],
                                 operand.scale_form};
    NORMFUSE_RETURN_IF_ERROR(b.AddQuantization(tensor, shapes.of[tensor.scale_form], shapes.of[tensor.scale_form + 1]));
  }
  const Shape d{geometry->shape, geometry->rank};
  static const std::string kY = "Y";
  NORMFUSE_RETURN_IF_ERROR(
      b.AddQuantization({kY, chain.store.quantization, d, kFormYScale}, shapes.of[kFormYScale], shapes.of[kFormYZero]));
  NORMFUSE_RETURN_IF_ERROR(b.MarkReduced());
  NORMFUSE_RETURN_IF_ERROR(b.SplitGroups());
  for (const OperandForms& operand : operands) b.SpreadOverGroups(operand, shapes.of[operand.form]);
  b.FillOutputForms();
  b.FlattenUniform(shapes.uniform);
  b.SortDims(FormsOfD(chain, operands) & (geometry->active | (1u << kFormY)));
  return {};
}

void Odometer::Seek(int64_t index, const Offsets& base, Offsets* offsets) {
  *offsets = base;
  for (int d = dims_.count - 1; d >= 0; --d) {
    const Dim& dim = dims_.dims[d];
    index_[d] = index % dim.size;
    index /= dim.size;
    for (uint32_t left = active_; left != 0; left &= left - 1) {
      const int form = std::countr_zero(left);
      offsets->at[form] += index_[d] * dim.stride[form];
    }
  }
}

void Odometer::Next(Offsets* offsets) { Advance(1, offsets); }

void Odometer::Advance(int64_t steps, Offsets* offsets) {
  const int last = dims_.count - 1;
  index_[last] += steps;
  for (uint32_t left = active_; left != 0; left &= left - 1) {
    const int form = std::countr_zero(left);
    offsets->at[form] += steps * dims_.dims[last].stride[form];
  }
  if (index_[last] >= dims_.dims[last].size) Carry(last, offsets);
}

void Odometer::Carry(int d, Offsets* offsets) {
  while (d > 0 && index_[d] >= dims_.dims[d].size) {
    const Dim& full = dims_.dims[d];
    const Dim& outer = dims_.dims[d - 1];
    for (uint32_t left = active_; left != 0; left &= left - 1) {
      const int form = std::countr_zero(left);
      offsets->at[form] += outer.stride[form] - full.size * full.stride[form];
    }
    index_[d] = 0;
    ++index_[--d];
  }
}

std::string ShapeText(const int64_t* dims, int rank) {
  std::string text = "[";
  for (int i = 0; i < rank; ++i) text += (i > 0 ? ", " : "") + std::to_string(dims[i]);
  return text + "]";
}

}  // namespace normfuse::cpu
