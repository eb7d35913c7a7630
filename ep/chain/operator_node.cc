#include "chain/operator_node.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>

#include "chain/numbers.h"
#include "chain/program.h"

namespace normfuse {
namespace {

// The element type of that name which normfuse stores; kUndefined: there is none.
DataType TypeOf(std::string_view name) {
  for (int number = 0; number < kTypeSlots; ++number) {
    const auto type = static_cast<DataType>(number);
    if ((IsFloat(type) || IsQuantized(type)) && name == NameOf(type)) return type;
  }
  return DataType::kUndefined;
}

// Reads the program of one node into a chain; the first problem is kept and ends the reading.
class Reader {
 public:
  Reader(const OperatorNode& node, Chain* chain) : node_(node), chain_(*chain) {}

  std::optional<Declined> Read() {
    chain_.name = node_.name;
    CheckSpecVersion();
    std::string text;
    std::vector<ProgramStep> steps;
    // Not seen as one without steps: a misspelt attribute is no identity.
    if (!node_.attributes->GetString("steps", &text)) Invalid("its attribute steps is missing");
    if (!declined_) declined_ = ParseProgram(node_.name, text, &steps);
    if (!declined_) ReadX();
    for (const ProgramStep& step : steps) {
      if (!declined_) ReadStep(step);
    }
    if (!declined_) CheckWhole();
    return declined_;
  }

 private:
  void Invalid(const std::string& detail) {
    if (!declined_) {
      declined_ = Decline(Reason::kInvalidConfiguration, {{"node", node_.name}, {"detail", detail}});
    }
  }

  void CheckSpecVersion() {
    int64_t version = 1;
    node_.attributes->GetInt("spec_version", &version);
    if (version > kSpecVersion) {
      declined_ = Decline(
          Reason::kNewerSpecVersion,
          {{"node", node_.name}, {"version", std::to_string(version)}, {"known", std::to_string(kSpecVersion)}});
    } else if (version < 1) {
      Invalid("spec_version is " + std::to_string(version) + "; the first one is 1");
    }
  }

  // Of no tensor, kNoTensor too, nothing is known.
  const TensorFacts& Facts(int index) const {
    static const TensorFacts kMissing;
    return index >= 0 && static_cast<size_t>(index) < node_.inputs.size() ? node_.inputs[index] : kMissing;
  }

  TensorRef Ref(int index) const {
    const TensorFacts& facts = Facts(index);
    TensorRef ref;
    if (facts.constant) {
      ref.constant = facts.constant;
    } else if (facts.present) {
      ref.input = index;
    }
    return ref;
  }

  Operand Tensor(int index, const std::string& name) const {
    const TensorFacts& facts = Facts(index);
    return {Ref(index), facts.type, {}, ShapeOf(facts), Align::kTrailing, name};
  }

  void ReadX() {
    const TensorFacts& x = Facts(0);
    if (!x.present) {
      Invalid("input X is missing");
    } else if (x.rank > kMaxRank) {
      declined_ = Decline(Reason::kUnsupportedRank, {{"tensor", "X of " + node_.name},
                                                     {"rank", std::to_string(x.rank)},
                                                     {"what", "normfuse"},
                                                     {"supported", "up to 8"}});
    }
    chain_.x = Tensor(0, "X");
  }

  // Tensors: the next input is that of the next label.

  int Next(const ProgramStep& step, std::string_view label) {
    if (!IsLabel(label)) {
      Invalid(step.Where() + ": '" + std::string(label) + "' is no label of a tensor");
    } else if (std::find(labels_.begin(), labels_.end(), label) != labels_.end()) {
      Invalid(step.Where() + ": the label " + std::string(label) + " stands twice");
    }
    labels_.push_back(label);
    const int index = static_cast<int>(labels_.size());
    if (!Facts(index).present) {
      Invalid(step.Where() + ": " + std::string(label) + " is missing, input " + std::to_string(index) +
              " of the node");
    }
    return index;
  }

  // Values of arguments

  void Malformed(const ProgramStep& step, Argument argument, const std::string& what) {
    Invalid(step.Where() + ": " + kArgumentNames[static_cast<int>(argument)] + " is '" +
            std::string(*step.Find(argument)) + "', which is not " + what);
  }

  int64_t Int(const ProgramStep& step, Argument argument, int64_t fallback) {
    const std::optional<std::string_view> text = step.Find(argument);
    int64_t value = fallback;
    if (text && !ParseInt(*text, &value)) Malformed(step, argument, "a whole number");
    return value;
  }

  bool Flag(const ProgramStep& step, Argument argument, bool fallback) {
    const std::optional<std::string_view> text = step.Find(argument);
    if (!text) return fallback;
    if (*text != "0" && *text != "1") Malformed(step, argument, "0 or 1");
    return *text == "1";
  }

  template <typename Value, size_t kCount>
  Value Word(const ProgramStep& step, Argument argument, const char* const (&words)[kCount], Value fallback) {
    const std::optional<std::string_view> text = step.Find(argument);
    if (!text) return fallback;
    std::string known;
    for (size_t i = 0; i < kCount; ++i) {
      if (*text == words[i]) return static_cast<Value>(i);
      known.append(i == 0 ? "" : i + 1 == kCount ? " or " : ", ").append(words[i]);
    }
    Malformed(step, argument, known);
    return fallback;
  }

  DataType Type(const ProgramStep& step) {
    const std::optional<std::string_view> text = step.Find(Argument::kType);
    if (!text) return DataType::kUndefined;
    const DataType type = TypeOf(*text);
    if (type == DataType::kUndefined) Malformed(step, Argument::kType, "an element type that normfuse writes");
    return type;
  }

  std::vector<int64_t> Ints(const ProgramStep& step, Argument argument) {
    std::vector<int64_t> values;
    const std::optional<std::string_view> text = step.Find(argument);
    if (!text) return values;
    std::string_view rest = *text;
    while (true) {
      const size_t comma = rest.find(',');
      if (!ParseInt(rest.substr(0, comma), &values.emplace_back())) {
        Malformed(step, argument, "a list of whole numbers");
        return values;
      }
      if (comma == std::string_view::npos) return values;
      rest.remove_prefix(comma + 1);
    }
  }

  struct QuantizationTypes {
    DataType scale = DataType::kUndefined;
    DataType zero_point = DataType::kUndefined;
  };

  // Reads scale, zero point, axis and block size.
  QuantizationTypes ReadQuantization(const ProgramStep& step, const std::string& prefix, Quantization* quantization) {
    int scale = kNoTensor, zero_point = kNoTensor;
    for (const auto& [key, label] : step.arguments) {  // in the text's order, as the inputs are
      if (key == kArgumentNames[static_cast<int>(Argument::kScale)]) scale = Next(step, label);
      if (key == kArgumentNames[static_cast<int>(Argument::kZeroPoint)]) zero_point = Next(step, label);
    }
    if (zero_point != kNoTensor && scale == kNoTensor) {
      Invalid(step.Where() + ": " + prefix + "_zero_point is given without " + prefix + "_scale");
    }
    if (scale != kNoTensor) quantization->scale = Ref(scale);
    if (zero_point != kNoTensor) quantization->zero_point = Ref(zero_point);
    quantization->axis = Int(step, Argument::kAxis, 1);
    quantization->block_size = Int(step, Argument::kBlockSize, 0);
    if (quantization->block_size < 0) Invalid(step.Where() + ": " + prefix + "_block_size is negative");
    return {Facts(scale).type, Facts(zero_point).type};
  }

  // Steps

  void ReadStep(const ProgramStep& step) {
    if (step.step == nullptr) return ReadActivation(step);
    if (step.step->has_operand) return Append(step, Combine(step.step->kind, ReadOperand(step)));
    if (step.step->output >= 0) return ReadStoring(step);
    switch (static_cast<StepName>(step.step - kSteps)) {
      case StepName::kDequantize:
        return ReadDequantize(step);
      case StepName::kNormalize:
        return ReadNormalize(step);
      case StepName::kSoftmax:
        return ReadSoftmax(step, Method::kSoftmax);
      case StepName::kLogSoftmax:
        return ReadSoftmax(step, Method::kLogSoftmax);
      case StepName::kStore:
        chain_.store.type = Type(step);
        return;
      case StepName::kFakeQuantize:
        return ReadFakeQuantize(step);
      case StepName::kQuantize:
        return ReadQuantize(step);
      default:
        return Invalid(step.Where() + " is none that this library reads");
    }
  }

  void Append(const ProgramStep& program_step, Step step) {
    if (program_step.in_front && sum_step_ != nullptr) {
      return Invalid(program_step.Where() + " stands behind the step that makes the output sum");
    }
    (program_step.in_front ? chain_.before : chain_.behind).push_back(std::move(step));
  }

  Operand ReadOperand(const ProgramStep& step) {
    Operand operand = Tensor(Next(step, step.operand), std::string(step.operand));
    operand.align = Word(step, Argument::kAlign, kAlignValues, Align::kTrailing);
    if (step.in_front && operand.align != Align::kTrailing) {
      Invalid(step.Where() + ": align is of steps behind the normalisation");
    }
    ReadQuantization(step, operand.name, &operand.quantization);
    return operand;
  }

  void ReadDequantize(const ProgramStep& step) {
    x_float_ = ReadQuantization(step, "x", &chain_.x.quantization).scale;
    if (!step.Find(Argument::kScale)) return Invalid(step.Where() + ": its scale, x_scale, is missing");
  }

  void ReadActivation(const ProgramStep& step) {
    const ActivationSpec& spec = kActivations[step.activation];
    ActivationCall call;
    call.kind = static_cast<Activation>(step.activation);
    std::copy_n(spec.defaults, kMaxActivationParams, call.params);
    for (int i = 0; i < spec.param_count; ++i) {
      const std::optional<std::string_view> text = step.Find(spec.params[i].name);
      if (!text || ParseFloat(*text, &call.params[i])) continue;
      return Invalid(step.Where() + ": " + spec.params[i].name + " is '" + std::string(*text) +
                     "', which is not a number");
    }
    Operand slope;
    if (spec.has_slope) slope = Tensor(Next(step, step.operand), std::string(step.operand));
    if (call.kind != Activation::kIdentity) Append(step, Activate(call, std::move(slope)));
  }

  // A step that stores the output sum, in front of the core.
  void ReadStoring(const ProgramStep& program_step) {
    const StepSpec& spec = *program_step.step;
    if (sum_step_ == &spec) return Invalid(program_step.Where() + " stands twice");
    const std::string name = kFusedNormalizationOutputs[spec.output];
    if (sum_step_ != nullptr) {
      return Invalid("the output " + name + " has two steps, " + sum_step_->name + " and " + spec.name);
    }
    const bool quantizes = Takes(spec, Argument::kScale);
    Step step;
    step.kind = spec.kind;
    step.output = OutputIndex(static_cast<FusedNormalizationOutput>(spec.output));
    const DataType zero_type = ReadQuantization(program_step, name, &step.quantization).zero_point;
    if (quantizes && !step.quantization.present()) {
      return Invalid(program_step.Where() + ": its scale, " + name + "_scale, is missing");
    }
    step.type = Type(program_step);
    if (step.type == DataType::kUndefined) {
      step.type = !quantizes ? FloatOfX() : step.quantization.zero_point.present() ? zero_type : DataType::kUint8;
    }
    if (quantizes || step.output != kNoOutput) Append(program_step, std::move(step));
    sum_step_ = &spec;
  }

  // In front of the core: the output sum is d as it is there, where no step says otherwise.
  void EmitSum() {
    const int output = OutputIndex(FusedNormalizationOutput::kSum);
    if (sum_step_ == nullptr && output != kNoOutput) chain_.before.push_back(Emit(FloatOfX(), output));
  }

  // A core without its arguments: sum is made in front of it, the statistics by it.
  Normalization& BeginCore() {
    EmitSum();
    Normalization& n = chain_.normalization.emplace();
    n.mean_output = OutputIndex(FusedNormalizationOutput::kMean);
    n.inv_std_dev_output = OutputIndex(FusedNormalizationOutput::kInvStdDev);
    return n;
  }

  void ReadNormalize(const ProgramStep& step) {
    Normalization& n = BeginCore();
    n.axes = Ints(step, Argument::kAxes);
    n.num_groups = Int(step, Argument::kNumGroups, 0);
    n.use_mean = Flag(step, Argument::kUseMean, true);
    n.normalize_variance = Flag(step, Argument::kNormalizeVariance, true);
    n.epsilon_on = Word(step, Argument::kEpsilonOn, kEpsilonOnValues, EpsilonOn::kVariance);
    const std::optional<std::string_view> epsilon = step.Find(Argument::kEpsilon);
    if (epsilon && !ParseFloat(*epsilon, &n.epsilon)) Malformed(step, Argument::kEpsilon, "a number");
    if (n.num_groups < 0) Invalid(step.Where() + ": num_groups is negative");
    if (n.num_groups == 0 && n.axes.empty()) Invalid(step.Where() + ": axes is missing");
    if (n.num_groups > 0 && !n.axes.empty()) Invalid(step.Where() + ": axes and num_groups exclude each other");
    if (std::isnan(n.epsilon)) Invalid(step.Where() + ": epsilon is NaN; it must be a number");
  }

  void ReadSoftmax(const ProgramStep& step, Method method) {
    Normalization& n = BeginCore();
    n.method = method;
    n.axes = Ints(step, Argument::kAxes);
    if (n.axes.empty()) Invalid(step.Where() + ": axes is missing");
  }

  void ReadFakeQuantize(const ProgramStep& step) {
    Quantization quantization;
    const DataType type = ReadStoredType(step, "d", &quantization);
    Append(step, FakeQuantise(std::move(quantization), type, Flag(step, Argument::kSaturate, true)));
  }

  void ReadQuantize(const ProgramStep& step) {
    Store& store = chain_.store;
    store.type = ReadStoredType(step, "y", &store.quantization);
    store.saturate = Flag(step, Argument::kSaturate, true);
  }

  // Reads a quantisation, and the element type that it gives.
  DataType ReadStoredType(const ProgramStep& step, const std::string& name, Quantization* quantization) {
    const DataType zero_type = ReadQuantization(step, name, quantization).zero_point;
    if (!quantization->present()) Invalid(step.Where() + ": its scale, " + name + "_scale, is missing");
    const DataType type = Type(step);
    if (type != DataType::kUndefined) return type;
    return quantization->zero_point.present() ? zero_type : DataType::kUint8;
  }

  // What holds of the program as a whole.
  void CheckWhole() {
    const bool normalizes = node_.kind == OperatorKind::kFusedNormalization;
    if (chain_.normalizes() != normalizes) {
      return Invalid(normalizes ? "its steps have no normalisation (Normalize with axes, or a softmax)"
                                : "its steps have a normalisation, which belongs to FusedNormalization");
    }
    if (node_.kind == OperatorKind::kFusedDequantizeLinear && !chain_.x.quantization.present()) {
      return Invalid("its steps have no Dequantize, with x_scale");
    }
    ForEachStep(chain_, [&](const Step& step) {
      if (step.operand.align == Align::kGroup && chain_.num_groups() <= 0) {
        Invalid(step.operand.name + " has align=group, but num_groups is 0");
      }
    });
    // ONNX Runtime knows how many inputs a node may have, but not a call of a model-local function.
    for (size_t i = labels_.size() + 1; i < node_.inputs.size(); ++i) {
      if (!node_.inputs[i].present) continue;
      return Invalid("input " + std::to_string(i) + " is given, but its steps name inputs 1 to " +
                     std::to_string(labels_.size()) + " only");
    }
    RequireFew("its steps name", static_cast<int>(labels_.size()), kMostTensors);
    // What a FakeQuantize counts depends on its parameters.
    if (node_.shows_constants)
      RequireFew("its steps read (a quantised one counts as four)", StepTensors(chain_), kMostStepTensors);
    if (chain_.store.type == DataType::kUndefined) chain_.store.type = FloatOfX();
  }

  void RequireFew(const std::string& what, int tensors, int most) {
    if (declined_ || tensors <= most) return;
    declined_ =
        Decline(Reason::kTooManyTensors, {{"node", node_.name},
                                          {"detail", what + " " + std::to_string(tensors) + " tensors; at most " +
                                                         std::to_string(most) + " are supported"}});
  }

  DataType FloatOfX() const { return chain_.x.quantization.present() ? x_float_ : chain_.x.type; }

  int OutputIndex(FusedNormalizationOutput output) const {
    const auto index = static_cast<size_t>(output);
    return index < node_.outputs_used.size() && node_.outputs_used[index] ? static_cast<int>(index) : kNoOutput;
  }

  static constexpr int kNoTensor = -1;

  const OperatorNode& node_;
  Chain& chain_;
  std::optional<Declined> declined_;
  std::vector<std::string_view> labels_;     // of the inputs behind X, as far as they were read
  DataType x_float_ = DataType::kUndefined;  // of x_scale
  const StepSpec* sum_step_ = nullptr;       // what makes the output sum
};

bool Names(std::string_view op_type, std::string_view name) {
  return op_type.substr(0, name.size()) == name && (op_type.size() == name.size() || op_type[name.size()] == '_');
}

}  // namespace

std::optional<OperatorKind> OperatorKindOf(std::string_view op_type) {
  if (Names(op_type, "FusedNormalization")) return OperatorKind::kFusedNormalization;
  if (Names(op_type, "FusedActivation")) return OperatorKind::kFusedActivation;
  if (Names(op_type, "FusedDequantizeLinear")) return OperatorKind::kFusedDequantizeLinear;
  return std::nullopt;
}

PartialShape ShapeOf(const TensorFacts& facts) {
  PartialShape shape;
  shape.rank = facts.rank;
  if (facts.rank <= kMaxRank) std::copy_n(facts.dims, std::max(facts.rank, 0), shape.dims);
  return shape;
}

std::optional<Declined> ChainFromOperator(const OperatorNode& node, Chain* chain) { return Reader(node, chain).Read(); }

}  // namespace normfuse
