// Validate: what can be judged about a chain before a call is made. The sentences end up before users, so each names the
// node, the operand and the values seen.
#include <algorithm>
#include <cmath>
#include <string>

#include "chain/chain.h"

namespace normfuse {
namespace {

std::string ShapeText(const std::vector<int64_t>& dims) {
  std::string text = "[";
  for (size_t i = 0; i < dims.size(); ++i) text += (i > 0 ? ", " : "") + std::to_string(dims[i]);
  return text + "]";
}

// Name of the input that holds a tensor's scale or another part of its quantisation: "x_scale" belongs to "X".
std::string PartOf(const std::string& tensor, const char* part) { return (tensor == "X" ? "x" : tensor) + "_" + part; }

class Validator {
 public:
  explicit Validator(const Chain& chain) : chain_(chain) {}
  Result Run();

 private:
  Result Error(const std::string& text) const {
    return Result::Error(ErrorCode::kInvalidArgument, chain_.name + ": " + text);
  }

  Result CheckOperand(const Operand& operand) const;
  Result CheckQuantization(const std::string& name, const Quantization& q, DataType type,
                           const PartialShape& shape) const;
  Result CheckQuantizationShape(const std::string& what, const Quantization& q, const PartialShape& shape) const;
  Result CheckQuantizationPart(const std::string& name, const std::vector<int64_t>& dims, int64_t axis,
                               const PartialShape& shape) const;
  Result CheckBlocks(const std::string& name, const std::vector<int64_t>& dims, const Quantization& q,
                     const PartialShape& shape) const;
  Result CheckAxis(const std::string& name, int64_t axis, int64_t length, const PartialShape& shape) const;
  Result TooManyDimensions(const std::string& name, const PartialShape& shape) const {
    return Error(name + " has " + std::to_string(shape.rank) + " dimensions; at most 8 are supported");
  }
  Result CheckTrailing(const std::string& name, const PartialShape& shape) const;
  Result CheckMeeting(const Operand& operand) const;
  Result CheckNormalization() const;
  Result CheckAxes() const;
  Result CheckGroups() const;
  Result CheckStep(const Step& step) const;
  Result CheckActivation(const Step& step) const;
  Result CheckMask(const Step& step) const;
  Result CheckRequantise(const Step& step) const;
  Result CheckSize() const;
  Result CheckStore() const;

  const Chain& chain_;
  PartialShape d_;
};

Result Validator::CheckAxis(const std::string& name, int64_t axis, int64_t length, const PartialShape& shape) const {
  const int64_t at = axis < 0 ? axis + shape.rank : axis;
  if (at < 0 || at >= shape.rank) {
    return Error(name + ": axis " + std::to_string(axis) + " is out of range for shape " + shape.Text());
  }
  if (shape.dims[at] >= 0 && shape.dims[at] != length) {
    return Error(name + " has " + std::to_string(length) + " elements, but dimension " + std::to_string(at) +
                 " of shape " + shape.Text() + " has " + std::to_string(shape.dims[at]));
  }
  return {};
}

Result Validator::CheckBlocks(const std::string& name, const std::vector<int64_t>& dims, const Quantization& q,
                              const PartialShape& shape) const {
  const int64_t axis = q.axis < 0 ? q.axis + shape.rank : q.axis;
  if (axis < 0 || axis >= shape.rank) {
    return Error(name + ": axis " + std::to_string(q.axis) + " is out of range for shape " + shape.Text());
  }
  bool fits = static_cast<int>(dims.size()) == shape.rank;
  for (int i = 0; i < shape.rank && fits; ++i) {
    if (shape.dims[i] < 0) continue;
    fits = dims[i] == (i == axis ? (shape.dims[i] + q.block_size - 1) / q.block_size : shape.dims[i]);
  }
  if (fits) return {};
  return Error(name + " of shape " + ShapeText(dims) + " does not fit blocks of " + std::to_string(q.block_size) +
               " along axis " + std::to_string(q.axis) + " of shape " + shape.Text());
}

// A scale or a zero point that is not blocked: one for all, one for each element of an axis, or of the tensor's rank.
Result Validator::CheckQuantizationPart(const std::string& name, const std::vector<int64_t>& dims, int64_t axis,
                                        const PartialShape& shape) const {
  if (dims.size() == 1 && dims[0] != 1) return CheckAxis(name, shape.rank == 1 ? 0 : axis, dims[0], shape);
  if (std::all_of(dims.begin(), dims.end(), [](int64_t dim) { return dim == 1; })) return {};
  bool fits = static_cast<int>(dims.size()) == shape.rank;
  for (int i = 0; i < shape.rank && fits; ++i) fits = dims[i] == 1 || shape.dims[i] < 0 || dims[i] == shape.dims[i];
  if (fits) return {};
  return Error(name + " of shape " + ShapeText(dims) + " does not broadcast to shape " + shape.Text());
}

Result Validator::CheckQuantizationShape(const std::string& what, const Quantization& q,
                                         const PartialShape& shape) const {
  const ConstantTensor* scale = q.scale.constant.get();
  const ConstantTensor* zero = q.zero_point.constant.get();
  const bool blocked = q.block_size > 0;
  if (blocked && scale != nullptr && zero != nullptr && zero->ElementCount() != 1 && zero->dims != scale->dims) {
    return Error(PartOf(what, "zero_point") + " of shape " + ShapeText(zero->dims) +
                 " is neither one element nor of the shape " + ShapeText(scale->dims) + " of " + PartOf(what, "scale"));
  }
  if (shape.rank < 0) return {};
  if (scale != nullptr) {
    const std::string name = PartOf(what, "scale");
    Result fits =
        blocked ? CheckBlocks(name, scale->dims, q, shape) : CheckQuantizationPart(name, scale->dims, q.axis, shape);
    if (!fits.ok()) return fits;
  }
  if (zero == nullptr || blocked) return {};
  return CheckQuantizationPart(PartOf(what, "zero_point"), zero->dims, q.axis, shape);
}

// `type`: element type of the quantised tensor.
Result Validator::CheckQuantization(const std::string& name, const Quantization& q, DataType type,
                                    const PartialShape& shape) const {
  if (!IsQuantized(type)) {
    return Error(PartOf(name, "scale") + " is given, but " + name + " has element type " + NameOf(type) +
                 ", which is not a quantised one");
  }
  if (q.block_size < 0)
    return Error(PartOf(name, "block_size") + " is " + std::to_string(q.block_size) + "; it must not be negative");
  if (q.scale.constant != nullptr && !IsFloat(q.scale.constant->type)) {
    return Error(PartOf(name, "scale") + " has element type " + NameOf(q.scale.constant->type) +
                 "; float32, float16 and bfloat16 are supported");
  }
  if (q.zero_point.constant != nullptr && q.zero_point.constant->type != type) {
    return Error(PartOf(name, "zero_point") + " has element type " + NameOf(q.zero_point.constant->type) + ", but " +
                 name + " has " + NameOf(type));
  }
  return CheckQuantizationShape(name, q, shape);
}

Result Validator::CheckOperand(const Operand& operand) const {
  const std::string& name = operand.name;
  const PartialShape shape = KnownShape(operand);
  const TensorRef& tensor = operand.tensor;
  if (tensor.constant != nullptr && tensor.constant->type != operand.type) {
    return Error(name + " is a constant of element type " + NameOf(tensor.constant->type) + ", expected " +
                 NameOf(operand.type));
  }
  if (shape.rank > kMaxRank) return TooManyDimensions(name, shape);
  if (!operand.quantization.present()) {
    if (operand.quantization.zero_point.present())
      return Error(PartOf(name, "zero_point") + " is given without " + PartOf(name, "scale"));
    if (IsFloat(operand.type)) return {};
    return Error(name + " has element type " + NameOf(operand.type) +
                 (IsQuantized(operand.type) ? ", which needs " + PartOf(name, "scale")
                                            : "; float32, float16, bfloat16 and the quantised types are supported"));
  }
  return CheckQuantization(name, operand.quantization, operand.type, shape);
}

// A tensor that broadcasts to d from the last dimension.
Result Validator::CheckTrailing(const std::string& name, const PartialShape& shape) const {
  if (shape.rank > kMaxRank) return TooManyDimensions(name, shape);
  if (d_.rank < 0) return {};
  // More dimensions would give Y more than d has, even those of one element.
  const int missing = d_.rank - shape.rank;
  bool fits = missing >= 0;
  for (int i = 0; i < shape.rank && fits; ++i) {
    const int64_t whole = d_.dims[i + missing];
    fits = shape.dims[i] == 1 || shape.dims[i] < 0 || whole < 0 || shape.dims[i] == whole;
  }
  if (fits) return {};
  return Error(name + " of shape " + shape.Text() + " does not broadcast to X of shape " + d_.Text());
}

// How the operand of a step meets d.
Result Validator::CheckMeeting(const Operand& operand) const {
  if (!operand.present()) return {};
  const PartialShape shape = KnownShape(operand);
  if (operand.align == Align::kTrailing) return CheckTrailing(operand.name, shape);
  const int64_t groups = chain_.num_groups();
  if (operand.align == Align::kGroup && groups <= 0) {
    return Error(operand.name + " has an element for each group, but num_groups is " + std::to_string(groups));
  }
  const auto one = [](int64_t dim) { return dim == 1; };
  if (shape.rank < 0 || std::all_of(shape.dims, shape.dims + shape.rank, one)) return {};
  if (shape.rank != 1) return Error(operand.name + " of shape " + shape.Text() + " must have one dimension");
  const int64_t length = shape.dims[0];
  if (operand.align == Align::kGroup) {
    if (length < 0 || length == groups) return {};
    return Error(operand.name + " of shape " + shape.Text() + " does not have one element for each of the " +
                 std::to_string(groups) + " groups");
  }
  if (d_.rank < 0 || length < 0) return {};
  return CheckAxis(operand.name, 1, length, d_);
}

Result Validator::CheckAxes() const {
  const Normalization& norm = *chain_.normalization;
  if (norm.from_first_axis) {
    const int64_t axis = norm.first_axis;
    if (axis < -kMaxRank || axis >= kMaxRank || (d_.rank >= 0 && (axis < -d_.rank || axis >= d_.rank))) {
      return Error("axis " + std::to_string(axis) + " is out of range" +
                   (d_.rank >= 0 ? " for X of shape " + d_.Text() : ""));
    }
    return {};
  }
  if (norm.axes.empty()) return Error("no axes are given");
  std::vector<int64_t> seen;
  for (int64_t axis : norm.axes) {
    if (axis < -kMaxRank || axis >= kMaxRank || (d_.rank >= 0 && (axis < -d_.rank || axis >= d_.rank))) {
      return Error("axes " + ShapeText(norm.axes) + ": " + std::to_string(axis) + " is out of range" +
                   (d_.rank >= 0 ? " for X of shape " + d_.Text() : ""));
    }
    const int64_t at = axis < 0 && d_.rank >= 0 ? axis + d_.rank : axis;
    if (std::find(seen.begin(), seen.end(), at) != seen.end()) {
      return Error("axes " + ShapeText(norm.axes) + ": dimension " + std::to_string(axis) + " is given twice");
    }
    seen.push_back(at);
  }
  return {};
}

Result Validator::CheckGroups() const {
  const Normalization& norm = *chain_.normalization;
  if (!norm.axes.empty() || norm.from_first_axis) return Error("both num_groups and axes are given");
  if (d_.rank < 0) return {};
  if (d_.rank < 2) return Error("group normalisation needs at least 2 dimensions, X has shape " + d_.Text());
  if (d_.dims[1] >= 0 && d_.dims[1] % norm.num_groups != 0) {
    return Error("the " + std::to_string(d_.dims[1]) + " channels of X of shape " + d_.Text() +
                 " cannot be divided into " + std::to_string(norm.num_groups) + " groups");
  }
  return {};
}

Result Validator::CheckNormalization() const {
  if (!chain_.normalization) return {};
  const Normalization& norm = *chain_.normalization;
  if (norm.num_groups < 0)
    return Error("num_groups is " + std::to_string(norm.num_groups) + "; it must not be negative");
  if (std::isnan(norm.epsilon)) return Error("epsilon is nan; it must be a number");
  if (norm.has_statistics() && !IsFloat(norm.stats_type)) {
    return Error("mean and inv_std_dev have element type " + std::string(NameOf(norm.stats_type)) +
                 "; float32, float16 and bfloat16 are supported");
  }
  if (norm.is_softmax() && (norm.num_groups > 0 || !norm.use_mean || !norm.normalize_variance)) {
    return Error("num_groups, use_mean and normalize_variance are of method standard; a softmax takes axes alone");
  }
  if (norm.is_softmax() && norm.has_statistics()) return Error("a softmax has no outputs mean and inv_std_dev");
  return norm.num_groups > 0 ? CheckGroups() : CheckAxes();
}

Result Validator::CheckActivation(const Step& step) const {
  const ActivationCall& activation = step.activation;
  const int kind = static_cast<int>(activation.kind);
  if (kind < 0 || kind >= kActivationCount) return Error("unknown activation number " + std::to_string(kind));
  const ActivationSpec& spec = kActivations[kind];
  const std::string name = spec.name;
  for (int i = 0; i < spec.param_count; ++i) {
    const std::string parameter = "parameter " + std::string(spec.params[i].name) + " of activation " + name;
    if (std::isnan(activation.params[i])) return Error(parameter + " is NaN");
    if (spec.params[i].nonzero && activation.params[i] == 0.0f) return Error(parameter + " is 0, by which it divides");
  }
  const Operand& slope = step.operand;
  if (spec.has_slope != slope.present()) {
    return Error(spec.has_slope ? "activation " + name + " needs the input slope"
                                : "the input slope is given, but activation " + name + " takes none");
  }
  if (!spec.has_slope || IsFloat(slope.type)) return {};
  return Error("slope has element type " + std::string(NameOf(slope.type)) +
               "; float32, float16 and bfloat16 are supported");
}

Result Validator::CheckMask(const Step& step) const {
  const PartialShape shape = KnownShape(step.operand);
  if (shape.rank > kMaxRank) return TooManyDimensions(step.operand.name, shape);
  if (step.operand.type == DataType::kBool && chain_.has_softmax()) return {};
  return Error("a mask has element type " + std::string(NameOf(step.operand.type)) +
               "; bool is supported, before a softmax");
}

Result Validator::CheckRequantise(const Step& step) const {
  const Quantization& q = step.quantization;
  const auto is_constant_scalar = [](const TensorRef& ref) {
    return ref.constant && ref.constant->ElementCount() == 1;
  };
  if (!is_constant_scalar(q.scale) || (q.zero_point.present() && !is_constant_scalar(q.zero_point))) {
    return Error("sum_scale and sum_zero_point must be constants of one element");
  }
  if (!IsFloat(q.scale.constant->type)) {
    return Error("sum_scale has element type " + std::string(NameOf(q.scale.constant->type)) +
                 "; float32, float16 and bfloat16 are supported");
  }
  const bool fits = IsQuantized(step.type) && !IsFloat8(step.type) && BitsOf(step.type) >= 8 && BitsOf(step.type) <= 16;
  if (!fits) {
    return Error("sum has element type " + std::string(NameOf(step.type)) +
                 "; with sum_scale int8, uint8, int16 and uint16 are supported");
  }
  if (q.zero_point.present() && q.zero_point.constant->type != step.type) {
    return Error("sum_zero_point has element type " + std::string(NameOf(q.zero_point.constant->type)) +
                 ", but sum is " + NameOf(step.type));
  }
  return {};
}

Result Validator::CheckStep(const Step& step) const {
  switch (step.kind) {
    case StepKind::kActivate:
      NORMFUSE_RETURN_IF_ERROR(CheckActivation(step));
      break;
    case StepKind::kRequantise:
      return CheckRequantise(step);
    case StepKind::kEmit:
      if (IsFloat(step.type)) return {};
      return Error("sum has element type " + std::string(NameOf(step.type)) +
                   "; float32, float16 and bfloat16 are supported");
    default:  // a combination, or a mask
      if (!step.operand.present()) return Error("a step has no operand");
  }
  return CheckMeeting(step.operand);
}

// Whether the steps do not read and write too much.
Result Validator::CheckSize() const {
  const int tensors = StepTensors(chain_);
  int emitted = 0;
  ForEachStep(chain_, [&](const Step& step) {
    if (step.output != kNoOutput) ++emitted;
  });
  if (tensors > kMostStepTensors) {
    return Error("the steps read " + std::to_string(tensors) + " tensors (a quantised one counts as four); at most " +
                 std::to_string(kMostStepTensors) + " are supported");
  }
  if (emitted > kMostEmitted) {
    return Error("the steps have " + std::to_string(emitted) + " outputs; at most " + std::to_string(kMostEmitted) +
                 " are supported");
  }
  return {};
}

Result Validator::CheckStore() const {
  const Store& store = chain_.store;
  const std::string type = NameOf(store.type);
  if (store.dynamic) {
    if (store.quantization.present()) return Error("y_scale is given, but Y finds its scale itself");
    if (store.type == DataType::kUint8) return {};
    return Error("Y has element type " + type + "; where it finds its scale itself, it is uint8");
  }
  if (!store.quantization.present()) {
    if (store.quantization.zero_point.present()) return Error("y_zero_point is given without y_scale");
    if (IsFloat(store.type)) return {};
    return Error("Y has element type " + type + ", which needs y_scale");
  }
  if (BitsOf(store.type) > 16) return Error("Y has element type " + type + ", which cannot be quantised to");
  return CheckQuantization("y", store.quantization, store.type, d_);
}

Result Validator::Run() {
  if (!chain_.x.present()) return Error("input X is missing");
  Result result = CheckOperand(chain_.x);
  ForEachStep(chain_, [&](const Step& step) {
    if (!step.operand.present() || !result.ok()) return;
    result = step.kind == StepKind::kMask ? CheckMask(step) : CheckOperand(step.operand);
  });
  if (!result.ok()) return result;
  NORMFUSE_RETURN_IF_ERROR(ShapeOfD(chain_, KnownShape, &d_));
  NORMFUSE_RETURN_IF_ERROR(CheckNormalization());
  ForEachStep(chain_, [&](const Step& step) {
    if (result.ok()) result = CheckStep(step);
  });
  if (!result.ok()) return result;
  NORMFUSE_RETURN_IF_ERROR(CheckSize());
  return CheckStore();
}

}  // namespace

Result Validate(const Chain& chain) { return Validator(chain).Run(); }

}  // namespace normfuse
