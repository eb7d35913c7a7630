#include "cpu/plan/geometry.h"

#include <algorithm>
#include <bit>

namespace normfuse::cpu {
namespace {

int64_t NormalizeAxis(int64_t axis, int rank) { return axis < 0 ? axis + rank : axis; }

PartialShape Whole(const Shape& shape) {
  PartialShape whole;
  whole.rank = shape.rank;
  if (shape.rank <= kMaxRank) std::copy_n(shape.dims, std::max(shape.rank, 0), whole.dims);
  return whole;
}

// A tensor that is read where it lies, or Y.
struct QuantizedTensor {
  const Quantization& quantization;
  const Shape& shape;
  FormId scale_form;  // the next two are zero point and block
};

// Strides of all forms over the dimensions of d before any joining. The shapes fit each other: CheckShapes.
struct Builder {
  Builder(const Chain& the_chain, const PartialShape& d, Geometry* geometry) : chain(the_chain), g(*geometry) {
    g.rank = dims.count = d.rank;
    std::copy_n(d.dims, d.rank, g.shape);
    for (int i = 0; i < g.rank; ++i) dims.dims[i] = Dim{g.shape[i], {}};
  }

  const Chain& chain;
  Geometry& g;
  DimList dims;
  bool reduced[kMaxDims] = {};

  void Activate(FormId form) { g.active |= 1u << form; }

  void AddOperand(const OperandForms& operand, const Shape& shape);
  void AddTensor(FormId form, const Shape& shape);
  void AddQuantization(const QuantizedTensor& tensor, const Shape& scale, const Shape& zero);
  void AddAlongAxis(FormId form, const Shape& tensor, int64_t axis, int64_t length);
  void AddQuantizationPart(FormId form, const QuantizedTensor& tensor, const Shape& part);
  void AddBlocked(const QuantizedTensor& tensor, const Shape& scale, const Shape& zero);
  void MarkReduced();
  void SplitGroups();
  void SpreadOverGroups(const OperandForms& operand, const Shape& shape);
  void FillOutputForms();
  void FlattenUniform(uint32_t uniform);
  void SortDims(uint32_t forms_of_d);
  void JoinRepeating(uint32_t operands);
};

// A tensor that broadcasts to d from the last dimension.
void Builder::AddTensor(FormId form, const Shape& shape) {
  int64_t stride = 1;
  for (int i = shape.rank - 1; i >= 0; --i) {
    if (shape.dims[i] == 1) continue;
    dims.dims[i + g.rank - shape.rank].stride[form] = stride;
    stride *= shape.dims[i];
  }
  Activate(form);
}

// A vector along one axis of a tensor that itself broadcasts to d.
void Builder::AddAlongAxis(FormId form, const Shape& tensor, int64_t axis, int64_t length) {
  const int64_t at = NormalizeAxis(axis, tensor.rank);
  if (length != 1) dims.dims[at + g.rank - tensor.rank].stride[form] = 1;
  Activate(form);
}

void Builder::AddBlocked(const QuantizedTensor& quantized, const Shape& scale, const Shape& zero) {
  const Shape& tensor = quantized.shape;
  const FormId scale_form = quantized.scale_form;
  const int64_t axis = NormalizeAxis(quantized.quantization.axis, tensor.rank);
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
}

// A scale or a zero point that is not blocked: one for all, one for each element of an axis, or of the tensor's rank.
void Builder::AddQuantizationPart(FormId form, const QuantizedTensor& quantized, const Shape& part) {
  const int64_t count = part.ElementCount();
  if (count == 1) return;
  if (part.rank != 1) return AddTensor(form, part);
  AddAlongAxis(form, quantized.shape, quantized.shape.rank == 1 ? 0 : quantized.quantization.axis, count);
}

void Builder::AddQuantization(const QuantizedTensor& tensor, const Shape& scale, const Shape& zero) {
  if (scale.rank < 0) return;
  const auto zero_form = static_cast<FormId>(tensor.scale_form + 1);
  Activate(tensor.scale_form);
  if (zero.rank >= 0) Activate(zero_form);
  if (tensor.quantization.block_size > 0) return AddBlocked(tensor, scale, zero);
  AddQuantizationPart(tensor.scale_form, tensor, scale);
  if (zero.rank >= 0) AddQuantizationPart(zero_form, tensor, zero);
}

// How the operand meets d; one for each group is spread once the channels are split (SpreadOverGroups).
void Builder::AddOperand(const OperandForms& forms, const Shape& shape) {
  const Align align = forms.operand->align;
  if (align == Align::kTrailing) return AddTensor(forms.form, shape);
  const int64_t count = shape.ElementCount();
  if (align == Align::kGroup || count == 1) return Activate(forms.form);
  AddAlongAxis(forms.form, Shape{g.shape, g.rank}, 1, count);
}

void Builder::MarkReduced() {
  if (!chain.normalizes() || chain.num_groups() > 0) return;
  for (int i = 0; i < g.rank; ++i) reduced[i] = chain.normalization->Reduces(i, g.rank);
}

void Builder::SplitGroups() {
  const int64_t groups = chain.num_groups();
  if (groups <= 0) return;
  const int64_t channels = g.shape[1];
  for (int i = dims.count; i > 2; --i) dims.dims[i] = dims.dims[i - 1];
  ++dims.count;
  dims.dims[2] = dims.dims[1];
  dims.dims[1].size = groups;
  dims.dims[2].size = channels / groups;
  for (int64_t& stride : dims.dims[1].stride) stride *= channels / groups;
  for (int i = 2; i < dims.count; ++i) reduced[i] = true;
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

// The operands that d, and the outputs stored on the way to it, are computed from.
uint32_t FormsOfD(const Chain& chain, const ChainForms& tensors) {
  uint32_t forms = 0;
  const auto add_quantization = [&forms](FormId scale_form) {
    for (int i = 0; i < 3; ++i) forms |= Bit(static_cast<FormId>(scale_form + i));
  };
  for (const OperandForms& operand : tensors.operands) {
    if (!operand.of_d) continue;
    forms |= Bit(operand.form);
    if (operand.has_quantization()) add_quantization(operand.scale_form);
  }
  for (const QuantizationForms& quantization : tensors.quantizations) {
    if (quantization.of_d) add_quantization(quantization.scale_form);
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
  // A piece takes about as long as it takes to wake up another thread, or more.
  const int64_t blocks = (g.group_size + kMaxPieces * kBlock - 1) / (kMaxPieces * kBlock);
  g.piece_size = std::max<int64_t>(32, blocks) * kBlock;
  g.piece_count = (g.group_size + g.piece_size - 1) / g.piece_size;
}

// Makes one run of the two innermost dimensions where each form walks through both in one stride, or repeats. `operands`: the
// forms that may; whoever reads a quantisation's scale and zero point knows no period.
void Builder::JoinRepeating(uint32_t operands) {
  DimList& list = g.reduced;
  if (chain.normalizes() || list.count < 2) return;
  const Dim& inner = list.dims[list.count - 1];
  Dim& outer = list.dims[list.count - 2];
  if (inner.size > kLongestPeriod || inner.size <= 0 || kBlock % inner.size != 0) return;
  uint32_t repeating = 0;
  for (uint32_t left = g.active & operands; left != 0; left &= left - 1) {
    const int form = std::countr_zero(left);
    if (outer.stride[form] == 0 && inner.stride[form] == 1) repeating |= left & -left;
  }
  if (!Joins(outer, inner, g.active & ~repeating)) return;
  Dim joined = inner;
  joined.size *= outer.size;
  for (uint32_t left = repeating; left != 0; left &= left - 1) joined.stride[std::countr_zero(left)] = 0;
  outer = joined;
  --list.count;
  g.repeating = repeating;
  g.period = inner.size;
}

// The forms of a chain's operands, without those of their quantisations.
uint32_t FormsOfOperands(const ChainForms& tensors) {
  uint32_t forms = 0;
  for (const OperandForms& operand : tensors.operands) forms |= Bit(operand.form);
  return forms;
}

// The shapes of a call, by the tensors that they are of.
struct TensorShapes {
  const ChainForms& tensors;
  const CallShapes& shapes;

  PartialShape Of(const Operand& operand) const {
    const auto is_operand = [&](const OperandForms& forms) { return forms.operand == &operand; };
    return Whole(shapes.of[std::find_if(tensors.operands.begin(), tensors.operands.end(), is_operand)->form]);
  }

  // Unknown: that of an operand which is converted before (parameters.cc).
  PartialShape Of(const TensorRef& parameter) const {
    const auto part = [&](const Quantization& quantization, FormId scale_form) -> const Shape* {
      if (&parameter == &quantization.scale) return &shapes.of[scale_form];
      return &parameter == &quantization.zero_point ? &shapes.of[scale_form + 1] : nullptr;
    };
    for (const QuantizationForms& forms : tensors.quantizations) {
      if (const Shape* shape = part(*forms.quantization, forms.scale_form)) return Whole(*shape);
    }
    for (const OperandForms& forms : tensors.operands) {
      if (!forms.has_quantization()) continue;
      if (const Shape* shape = part(forms.operand->quantization, forms.scale_form)) return Whole(*shape);
    }
    return {};
  }
};

}  // namespace

Result BindGeometry(const Chain& chain, const ChainForms& forms, const CallShapes& shapes, Geometry* geometry) {
  const TensorShapes tensors{forms, shapes};
  const KnownShapes known{[&tensors](const Operand& operand) { return tensors.Of(operand); },
                          [&tensors](const TensorRef& parameter) { return tensors.Of(parameter); }};
  PartialShape d;
  NORMFUSE_RETURN_IF_ERROR(CheckShapes(chain, known, &d));
  Builder b(chain, d, geometry);
  const auto add_quantization = [&](const Quantization& quantization, const Shape& tensor, FormId scale_form) {
    b.AddQuantization({quantization, tensor, scale_form}, shapes.of[scale_form], shapes.of[scale_form + 1]);
  };
  for (const OperandForms& operand : forms.operands) b.AddOperand(operand, shapes.of[operand.form]);
  for (const OperandForms& operand : forms.operands) {
    if (!operand.has_quantization()) continue;
    add_quantization(operand.operand->quantization, shapes.of[operand.form], operand.scale_form);
  }
  for (const QuantizationForms& each : forms.quantizations) {
    add_quantization(*each.quantization, {geometry->shape, geometry->rank}, each.scale_form);
  }
  b.MarkReduced();
  b.SplitGroups();
  for (const OperandForms& operand : forms.operands) b.SpreadOverGroups(operand, shapes.of[operand.form]);
  b.FillOutputForms();
  b.FlattenUniform(shapes.uniform);
  b.SortDims(FormsOfD(chain, forms) & (geometry->active | (1u << kFormY)));
  b.JoinRepeating(FormsOfOperands(forms));
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

void Odometer::Advance(int64_t steps, Offsets* offsets) {
  const int last = dims_.count - 1;
  index_[last] += steps;
  MoveOn(dims_.dims[last], active_, steps, offsets);
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

}  // namespace normfuse::cpu
