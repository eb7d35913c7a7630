// Validate: what can be judged about a chain before a call is made. The sentences end up before users, so each names the
// node, the operand and the values seen.
#include <algorithm>
#include <cmath>
#include <string>

#include "chain/chain.h"

namespace normfuse {
namespace {

// Name of the input that holds a tensor's scale or another part of its quantisation: "x_scale" belongs to "X".
std::string PartOf(const std::string& tensor, const char* part) { return (tensor == "X" ? "x" : tensor) + "_" + part; }

// Whether a step can have the type as its argument `type`.
bool Stores(const StepSpec& step, DataType type) {
  const auto number = static_cast<uint32_t>(type);
  return number < kTypeSlots && (step.types >> number & 1u) != 0;
}

bool Stores(StepName step, DataType type) { return Stores(kSteps[static_cast<int>(step)], type); }

std::string StoredBy(const StepSpec& step) {
  std::string names;
  for (int type = 0; type < kTypeSlots; ++type) {
    if (Stores(step, static_cast<DataType>(type)))
      names.append(names.empty() ? "" : ", ").append(kElementTypes[type].name);
  }
  return names;
}

class Validator {
 public:
  explicit Validator(const Chain& chain) : chain_(chain) {}
  Result Run();

 private:
  Result Error(const std::string& text) const {
    return Result::Error(ErrorCode::kInvalidArgument, chain_.name + ": " + text);
  }

  Result CheckRank(const Operand& operand) const;
  Result CheckOperand(const Operand& operand) const;
  Result CheckQuantization(const std::string& name, const Quantization& q, DataType type) const;
  Result CheckNormalization() const;
  Result CheckStep(const Step& step) const;
  Result CheckActivation(const Step& step) const;
  Result CheckMask(const Step& step) const;
  Result CheckStoring(const Step& step) const;
  Result CheckFakeQuantization(const Step& step) const;
  Result CheckSize() const;
  Result CheckStore() const;

  const Chain& chain_;
};

// `type`: element type of the quantised tensor.
Result Validator::CheckQuantization(const std::string& name, const Quantization& q, DataType type) const {
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
  return {};
}

Result Validator::CheckRank(const Operand& operand) const {
  const int rank = KnownShape(operand).rank;
  if (rank <= kMaxRank) return {};
  return Error(operand.name + " has " + std::to_string(rank) + " dimensions; at most 8 are supported");
}

Result Validator::CheckOperand(const Operand& operand) const {
  const std::string& name = operand.name;
  const TensorRef& tensor = operand.tensor;
  if (tensor.constant != nullptr && tensor.constant->type != operand.type) {
    return Error(name + " is a constant of element type " + NameOf(tensor.constant->type) + ", expected " +
                 NameOf(operand.type));
  }
  NORMFUSE_RETURN_IF_ERROR(CheckRank(operand));
  if (!operand.quantization.present()) {
    if (operand.quantization.zero_point.present())
      return Error(PartOf(name, "zero_point") + " is given without " + PartOf(name, "scale"));
    if (IsFloat(operand.type)) return {};
    return Error(name + " has element type " + NameOf(operand.type) +
                 (IsQuantized(operand.type) ? ", which needs " + PartOf(name, "scale")
                                            : "; float32, float16, bfloat16 and the quantised types are supported"));
  }
  return CheckQuantization(name, operand.quantization, operand.type);
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
  const bool has_axes = !norm.axes.empty() || norm.from_first_axis;
  if (norm.num_groups > 0) return has_axes ? Error("both num_groups and axes are given") : Result();
  return has_axes ? Result() : Error("no axes are given");
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
  NORMFUSE_RETURN_IF_ERROR(CheckRank(step.operand));
  if (step.operand.type == DataType::kBool && chain_.has_softmax()) return {};
  return Error("a mask has element type " + std::string(NameOf(step.operand.type)) +
               "; bool is supported, before a softmax");
}

Result Validator::CheckStoring(const Step& step) const {
  const StepSpec& spec = SpecOf(step.kind);
  const std::string name = kFusedNormalizationOutputs[spec.output];
  const Quantization& q = step.quantization;
  const bool quantizes = Takes(spec, Argument::kScale);
  const auto is_constant_scalar = [](const TensorRef& ref) {
    return ref.constant && ref.constant->ElementCount() == 1;
  };
  if (quantizes && (!is_constant_scalar(q.scale) || (q.zero_point.present() && !is_constant_scalar(q.zero_point)))) {
    return Error(name + "_scale and " + name + "_zero_point must be constants of one element");
  }
  if (quantizes && !IsFloat(q.scale.constant->type)) {
    return Error(name + "_scale has element type " + NameOf(q.scale.constant->type) +
                 "; float32, float16 and bfloat16 are supported");
  }
  if (!Stores(spec, step.type)) {
    return Error(name + " has element type " + NameOf(step.type) + ", which " + spec.name + " does not store; " +
                 StoredBy(spec) + " are supported");
  }
  if (quantizes && q.zero_point.present() && q.zero_point.constant->type != step.type) {
    return Error(name + "_zero_point has element type " + NameOf(q.zero_point.constant->type) + ", but " + name +
                 " is " + NameOf(step.type));
  }
  return {};
}

Result Validator::CheckFakeQuantization(const Step& step) const {
  const StepSpec& spec = kSteps[static_cast<int>(StepName::kFakeQuantize)];
  if (!step.quantization.present()) return Error(std::string(spec.name) + " has no scale");
  if (!Stores(spec, step.type)) {
    return Error("d has element type " + std::string(NameOf(step.type)) + " in " + spec.name + "; " + StoredBy(spec) +
                 " are supported");
  }
  return CheckQuantization("d", step.quantization, step.type);
}

Result Validator::CheckStep(const Step& step) const {
  if (step.kind == StepKind::kActivate) return CheckActivation(step);
  if (step.kind == StepKind::kFakeQuantize) return CheckFakeQuantization(step);
  if (IsStoring(step.kind)) return CheckStoring(step);
  return step.operand.present() || step.operand.is_kept ? Result() : Error("a step has no operand");
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
    if (Stores(StepName::kStore, store.type)) return {};
    return Error("Y has element type " + type + ", which needs y_scale");
  }
  if (!Stores(StepName::kQuantize, store.type))
    return Error("Y has element type " + type + ", which cannot be quantised to");
  return CheckQuantization("y", store.quantization, store.type);
}

Result Validator::Run() {
  if (!chain_.x.present()) return Error("input X is missing");
  Result result = CheckOperand(chain_.x);
  ForEachStep(chain_, [&](const Step& step) {
    if (!step.operand.present() || !result.ok()) return;
    result = step.kind == StepKind::kMask ? CheckMask(step) : CheckOperand(step.operand);
  });
  if (!result.ok()) return result;
  NORMFUSE_RETURN_IF_ERROR(CheckNormalization());
  ForEachStep(chain_, [&](const Step& step) {
    if (result.ok()) result = CheckStep(step);
  });
  if (!result.ok()) return result;
  NORMFUSE_RETURN_IF_ERROR(CheckSize());
  NORMFUSE_RETURN_IF_ERROR(CheckStore());
  PartialShape d;
  const auto of_operand = [](const Operand& operand) { return KnownShape(operand); };
  const auto of_parameter = [](const TensorRef& parameter) { return KnownShape(parameter); };
  return CheckShapes(chain_, {of_operand, of_parameter}, &d);
}

}  // namespace

Result Validate(const Chain& chain) { return Validator(chain).Run(); }

}  // namespace normfuse
