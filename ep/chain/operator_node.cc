#include "chain/operator_node.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <sstream>
#include <string>
#include <utility>

namespace normfuse {
namespace {

// operand_0, operand_1 ..., which are the last inputs of both operators that take steps.
constexpr int kFurtherOperands =
    static_cast<int>(std::size(kFusedNormalizationInputs)) - static_cast<int>(FusedNormalizationInput::kOperand0);
static_assert(kFurtherOperands ==
              static_cast<int>(std::size(kFusedActivationInputs)) - static_cast<int>(FusedActivationInput::kOperand0));

// Reads the attributes and inputs of one node into a chain; the first problem is kept and ends the reading.
class Reader {
 public:
  Reader(const OperatorNode& node, Chain* chain) : node_(node), chain_(*chain) {}

  std::optional<Declined> Read() {
    chain_.name = node_.name;
    node_.attributes->GetFloats("step_params", &step_params_);
    CheckSpecVersion();
    ActivationCall activation;
    if (!declined_) ReadActivation(&activation);
    if (!declined_) ReadOperator(activation);
    if (!declined_) CheckFurtherSteps();
    if (!declined_) CheckInputCount();
    if (!declined_) ReadX();
    return declined_;
  }

 private:
  void Invalid(std::string detail) {
    if (!declined_) {
      declined_ = Decline(Reason::kInvalidConfiguration, {{"node", node_.name}, {"detail", detail}});
    }
  }

  int64_t Int(const char* name, int64_t fallback) const {
    int64_t value = fallback;
    node_.attributes->GetInt(name, &value);
    return value;
  }

  // An attribute that names the element type of an output; kUndefined when it is 0 or absent.
  DataType ElementType(const char* name) {
    const int64_t number = Int(name, 0);
    const DataType type = FromTensorProto(number);
    if (number != 0 && !IsFloat(type) && !IsQuantized(type)) {
      Invalid(std::string(name) + " is " + std::to_string(number) +
              ", which is no element type that normfuse writes (onnx.TensorProto.DataType)");
    }
    return type;
  }

  bool Flag(const char* name, bool fallback) {
    const int64_t value = Int(name, fallback ? 1 : 0);
    if (value != 0 && value != 1) Invalid(std::string(name) + " is " + std::to_string(value) + "; it must be 0 or 1");
    return value != 0;
  }

  std::string String(const char* name, const char* fallback) const {
    std::string value = fallback;
    node_.attributes->GetString(name, &value);
    return value;
  }

  void CheckSpecVersion() {
    const int64_t version = Int("spec_version", 1);
    if (version > kSpecVersion) {
      declined_ = Decline(
          Reason::kNewerSpecVersion,
          {{"node", node_.name}, {"version", std::to_string(version)}, {"known", std::to_string(kSpecVersion)}});
    } else if (version < 1) {
      Invalid("spec_version is " + std::to_string(version) + "; the first one is 1");
    }
  }

  void ReadActivation(ActivationCall* call) {
    const std::string name = String("activation", "Identity");
    const int index = ActivationIndex(name);
    if (index == kActivationCount) {
      declined_ = Decline(Reason::kUnknownActivation, {{"node", node_.name}, {"activation", name}});
      return;
    }
    const ActivationSpec& spec = kActivations[index];
    call->kind = static_cast<Activation>(index);
    for (int i = 0; i < kMaxActivationParams; ++i) call->params[i] = spec.defaults[i];
    std::vector<float> params;
    node_.attributes->GetFloats("activation_params", &params);
    if (!params.empty() && static_cast<int>(params.size()) != spec.param_count) {
      Invalid("activation_params has " + std::to_string(params.size()) + " values; " + name + " takes " +
              std::to_string(spec.param_count));
      return;
    }
    for (size_t i = 0; i < params.size(); ++i) call->params[i] = params[i];
  }

  // kActivationCount: there is none of that name.
  static int ActivationIndex(const std::string& name) {
    int index = 0;
    while (index < kActivationCount && name != kActivations[index].name) ++index;
    return index;
  }

  const TensorFacts& Facts(int index) const {
    static const TensorFacts kMissing;
    return static_cast<size_t>(index) < node_.inputs.size() ? node_.inputs[index] : kMissing;
  }

  template <typename Input>
  TensorRef Ref(Input input) const {
    const int index = static_cast<int>(input);
    const TensorFacts& facts = Facts(index);
    TensorRef ref;
    if (!facts.present) return ref;
    if (facts.constant) {
      ref.constant = facts.constant;
    } else {
      ref.input = index;
    }
    return ref;
  }

  template <typename Input>
  Operand Tensor(Input input, const char* name) const {
    const TensorFacts& facts = Facts(static_cast<int>(input));
    return {Ref(input), facts.type, {}, ShapeOf(facts), Align::kTrailing, name};
  }

  template <typename Input>
  void ReadQuantization(Quantization* quantization, Input scale, Input zero_point, const char* axis,
                        const char* block_size, int64_t default_axis) {
    quantization->scale = Ref(scale);
    quantization->zero_point = Ref(zero_point);
    quantization->axis = Int(axis, default_axis);
    if (block_size != nullptr) quantization->block_size = Int(block_size, 0);
    if (quantization->block_size < 0) Invalid(std::string(block_size) + " is negative");
    if (quantization->zero_point.present() && !quantization->present()) {
      const std::string_view attribute = axis;  // "x_axis" goes with x_scale and x_zero_point
      const std::string prefix(attribute.substr(0, attribute.rfind("axis")));
      Invalid(prefix + "zero_point is given without " + prefix + "scale");
    }
  }

  template <typename Input>
  void ReadYQuantization(Input scale, Input zero_point) {
    ReadQuantization(&chain_.store.quantization, scale, zero_point, "y_axis", "y_block_size", 1);
    chain_.store.saturate = Flag("y_saturate", true);
    y_zero_point_type_ = Facts(static_cast<int>(zero_point)).type;
  }

  // Appends the activation, if it is one.
  template <typename Input>
  void ReadSteps(const ActivationCall& activation, Input slope) {
    Operand operand = Tensor(slope, "slope");
    if (kActivations[static_cast<int>(activation.kind)].has_slope != operand.present()) {
      Invalid(operand.present() ? "input slope is given, but the activation takes none"
                                : "the activation needs input slope");
    }
    if (activation.kind != Activation::kIdentity) chain_.behind.push_back(Activate(activation, std::move(operand)));
  }

  // The words of `attribute`: Mul and Add, which take the next operands, and, behind, names of activations.
  template <typename Input>
  void ReadFurtherSteps(const char* attribute, Input first_operand, std::vector<Step>* steps) {
    first_operand_ = static_cast<int>(first_operand);
    std::istringstream words(String(attribute, ""));
    for (std::string word; words >> word;) {
      if (word == "Mul" || word == "Add") {
        ReadOperandStep(attribute, word, steps);
      } else {
        ReadActivationStep(attribute, word, steps);
      }
    }
  }

  void ReadOperandStep(const char* attribute, const std::string& word, std::vector<Step>* steps) {
    const std::string name = "operand_" + std::to_string(operands_read_);
    Operand operand = Tensor(first_operand_ + operands_read_, name.c_str());
    if (operands_read_ == kFurtherOperands || !operand.present()) {
      return Invalid(std::string(attribute) + " requires input " + name + ", which is missing");
    }
    ++operands_read_;
    steps->push_back(word == "Mul" ? Mul(std::move(operand)) : Add(std::move(operand)));
  }

  void ReadActivationStep(const char* attribute, const std::string& word, std::vector<Step>* steps) {
    ActivationCall call;
    const int index = ActivationIndex(word);
    if (index == kActivationCount || kActivations[index].has_slope || steps == &chain_.before) {
      return Invalid(std::string(attribute) + " has '" + word + "', which is no step that can stand there");
    }
    call.kind = static_cast<Activation>(index);
    const auto count = static_cast<size_t>(kActivations[index].param_count);
    if (step_params_.size() < params_read_ + count) return Invalid("step_params has too few numbers for " + word);
    std::copy_n(step_params_.begin() + static_cast<std::ptrdiff_t>(params_read_), count, call.params);
    params_read_ += count;
    steps->push_back(Activate(call));
  }

  // Every operand and every number belongs to a step.
  void CheckFurtherSteps() {
    if (params_read_ < step_params_.size()) Invalid("step_params has more numbers than the steps take");
    for (int i = operands_read_; first_operand_ >= 0 && i < kFurtherOperands; ++i) {
      if (Facts(first_operand_ + i).present) Invalid("no step takes input operand_" + std::to_string(i));
    }
  }

  // ONNX Runtime knows how many inputs a node may have, but not a call of a model-local function.
  void CheckInputCount() {
    size_t known = 0;
    switch (node_.kind) {
      case OperatorKind::kFusedNormalization:
        known = std::size(kFusedNormalizationInputs);
        break;
      case OperatorKind::kFusedActivation:
        known = std::size(kFusedActivationInputs);
        break;
      case OperatorKind::kFusedDequantizeLinear:
        known = std::size(kFusedDequantizeLinearInputs);
        break;
    }
    for (size_t i = known; i < node_.inputs.size(); ++i) {
      if (!node_.inputs[i].present) continue;
      return Invalid("input " + std::to_string(i) + " is given, but the operator has inputs 0 to " +
                     std::to_string(known - 1) + " only");
    }
  }

  void ReadOperator(const ActivationCall& activation) {
    switch (node_.kind) {
      case OperatorKind::kFusedNormalization:
        ReadNormalization(activation);
        return;
      case OperatorKind::kFusedActivation:
        ReadElementwise(activation);
        return;
      case OperatorKind::kFusedDequantizeLinear:
        ReadDequantize(activation);
        return;
    }
  }

  Align ReadAffineAlign() {
    const std::string align = String("affine_align", "trailing");
    if (align == "channel") return Align::kChannel;
    if (align == "group") return Align::kGroup;
    if (align != "trailing") Invalid("affine_align is '" + align + "'; it must be trailing, channel or group");
    return Align::kTrailing;
  }

  Method ReadMethod() {
    const std::string method = String("method", "standard");
    if (method == "softmax") return Method::kSoftmax;
    if (method == "log_softmax") return Method::kLogSoftmax;
    if (method != "standard") Invalid("method is '" + method + "'; it must be standard, softmax or log_softmax");
    return Method::kStandard;
  }

  void ReadStatistics(Normalization* normalization) {
    Normalization& n = *normalization;
    n.method = ReadMethod();
    node_.attributes->GetInts("axes", &n.axes);
    n.num_groups = Int("num_groups", 0);
    n.use_mean = Flag("use_mean", true);
    n.normalize_variance = Flag("normalize_variance", true);
    node_.attributes->GetFloat("epsilon", &n.epsilon);
    const std::string on = String("epsilon_on", "variance");
    if (on == "stddev") {
      n.epsilon_on = EpsilonOn::kStddev;
    } else if (on != "variance") {
      Invalid("epsilon_on is '" + on + "'; it must be variance or stddev");
    }
    if (n.num_groups < 0) Invalid("num_groups is negative");
    if (n.num_groups == 0 && n.axes.empty()) Invalid("attribute axes is missing");
    if (n.num_groups > 0 && !n.axes.empty()) Invalid("axes and num_groups exclude each other");
    if (std::isnan(n.epsilon)) Invalid("epsilon is NaN; it must be a number");
    n.mean_output = OutputIndex(FusedNormalizationOutput::kMean);
    n.inv_std_dev_output = OutputIndex(FusedNormalizationOutput::kInvStdDev);
  }

  void ReadNormalization(const ActivationCall& activation) {
    using In = FusedNormalizationInput;
    ReadStatistics(&chain_.normalization.emplace());
    chain_.x = Tensor(In::kX, "X");
    ReadQuantization(&chain_.x.quantization, In::kXScale, In::kXZeroPoint, "x_axis", "x_block_size", 1);
    ReadFurtherSteps("steps_before", In::kOperand0, &chain_.before);
    Operand residual = Tensor(In::kResidual, "residual");
    ReadQuantization(&residual.quantization, In::kResidualScale, In::kResidualZeroPoint, "residual_axis",
                     "residual_block_size", 1);
    if (residual.present()) chain_.before.push_back(Add(std::move(residual)));
    Operand residual_bias = Tensor(In::kResidualBias, "residual_bias");
    if (residual_bias.present()) chain_.before.push_back(Add(std::move(residual_bias)));
    ReadSum();
    const Align align = ReadAffineAlign();
    Operand scale = Tensor(In::kScale, "scale");
    scale.align = align;
    ReadQuantization(&scale.quantization, In::kScaleScale, In::kScaleZeroPoint, "scale_axis", nullptr, 0);
    if (scale.present()) chain_.behind.push_back(Mul(std::move(scale)));
    Operand bias = Tensor(In::kBias, "bias");
    bias.align = align;
    ReadQuantization(&bias.quantization, In::kBiasScale, In::kBiasZeroPoint, "bias_axis", nullptr, 0);
    if (bias.present()) chain_.behind.push_back(Add(std::move(bias)));
    ReadSteps(activation, In::kSlope);
    ReadFurtherSteps("steps_behind", In::kOperand0, &chain_.behind);
    ReadYQuantization(In::kYScale, In::kYZeroPoint);
    x_scale_type_ = Facts(static_cast<int>(In::kXScale)).type;
    if (chain_.num_groups() <= 0 && align == Align::kGroup) Invalid("affine_align is group, but num_groups is 0");
  }

  // The output `sum`, and the type in which d is stored on the way.
  void ReadSum() {
    using In = FusedNormalizationInput;
    const int output = OutputIndex(FusedNormalizationOutput::kSum);
    DataType type = ElementType("sum_dtype");
    Quantization quantization;
    quantization.scale = Ref(In::kSumScale);
    quantization.zero_point = Ref(In::kSumZeroPoint);
    if (quantization.present()) {
      const bool has_zero = quantization.zero_point.present();
      if (type == DataType::kUndefined)
        type = has_zero ? Facts(static_cast<int>(In::kSumZeroPoint)).type : DataType::kUint8;
      chain_.before.push_back(Requantise(std::move(quantization), type, output));
      return;
    }
    if (quantization.zero_point.present()) Invalid("a zero point is given without its scale");
    if (output == kNoOutput) return;
    const TensorFacts& as_default = Facts(static_cast<int>(chain_.x.quantization.present() ? In::kXScale : In::kX));
    chain_.before.push_back(Emit(type == DataType::kUndefined ? as_default.type : type, output));
  }

  void ReadElementwise(const ActivationCall& activation) {
    using In = FusedActivationInput;
    chain_.x = Tensor(In::kX, "X");
    ReadQuantization(&chain_.x.quantization, In::kXScale, In::kXZeroPoint, "x_axis", "x_block_size", 1);
    Operand scale = Tensor(In::kScale, "scale");
    Operand bias = Tensor(In::kBias, "bias");
    scale.align = bias.align = ReadAffineAlign();
    if (scale.align == Align::kGroup) Invalid("affine_align is group, but num_groups is 0");
    if (scale.present()) chain_.behind.push_back(Mul(std::move(scale)));
    if (bias.present()) chain_.behind.push_back(Add(std::move(bias)));
    ReadSteps(activation, In::kSlope);
    ReadFurtherSteps("steps_behind", In::kOperand0, &chain_.behind);
    ReadYQuantization(In::kYScale, In::kYZeroPoint);
    x_scale_type_ = Facts(static_cast<int>(In::kXScale)).type;
  }

  void ReadDequantize(const ActivationCall& activation) {
    using In = FusedDequantizeLinearInput;
    chain_.x = Tensor(In::kX, "X");
    ReadQuantization(&chain_.x.quantization, In::kXScale, In::kXZeroPoint, "x_axis", "x_block_size", 1);
    ReadSteps(activation, In::kSlope);
    x_scale_type_ = Facts(static_cast<int>(In::kXScale)).type;
    if (!chain_.x.quantization.present()) Invalid("input x_scale is missing");
  }

  template <typename Output>
  int OutputIndex(Output output) const {
    const auto index = static_cast<size_t>(output);
    return index < node_.outputs_used.size() && node_.outputs_used[index] ? static_cast<int>(index) : kNoOutput;
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
    Store& store = chain_.store;
    store.type = ElementType("y_dtype");
    if (store.type != DataType::kUndefined) return;
    if (!store.quantization.present()) {
      store.type = chain_.x.quantization.present() ? x_scale_type_ : chain_.x.type;
    } else {
      store.type = store.quantization.zero_point.present() ? y_zero_point_type_ : DataType::kUint8;
    }
  }

  const OperatorNode& node_;
  Chain& chain_;
  std::optional<Declined> declined_;
  DataType x_scale_type_ = DataType::kUndefined;
  DataType y_zero_point_type_ = DataType::kUndefined;
  // Of steps_before and steps_behind.
  std::vector<float> step_params_;
  size_t params_read_ = 0;
  int first_operand_ = -1;  // -1: the operator has none
  int operands_read_ = 0;
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
