#include "plan/operator_node.h"

#include <algorithm>
#include <cmath>

namespace normfuse {
namespace {

// Reads the attributes and inputs of one node into a plan; the first problem is kept and ends the reading.
class Reader {
 public:
  Reader(const OperatorNode& node, Plan* plan) : node_(node), plan_(*plan) {}

  std::optional<Declined> Read() {
    plan_.name = node_.name;
    CheckSpecVersion();
    if (!declined_) ReadActivation();
    if (!declined_) ReadOperator();
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

  void ReadActivation() {
    const std::string name = String("activation", "Identity");
    int index = 0;
    while (index < kActivationCount && name != kActivations[index].name) ++index;
    if (index == kActivationCount) {
      declined_ = Decline(Reason::kUnknownActivation, {{"node", node_.name}, {"activation", name}});
      return;
    }
    const ActivationSpec& spec = kActivations[index];
    plan_.activation.kind = static_cast<Activation>(index);
    for (int i = 0; i < kMaxActivationParams; ++i) plan_.activation.params[i] = spec.defaults[i];
    std::vector<float> params;
    node_.attributes->GetFloats("activation_params", &params);
    if (!params.empty() && static_cast<int>(params.size()) != spec.param_count) {
      Invalid("activation_params has " + std::to_string(params.size()) + " values; " + name + " takes " +
              std::to_string(spec.param_count));
      return;
    }
    for (size_t i = 0; i < params.size(); ++i) plan_.activation.params[i] = params[i];
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
  Operand Tensor(Input input) const {
    const TensorFacts& facts = Facts(static_cast<int>(input));
    return {Ref(input), facts.type, {}, ShapeOf(facts)};
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
    ReadQuantization(&plan_.y_quantization, scale, zero_point, "y_axis", "y_block_size", 1);
    plan_.y_saturate = Flag("y_saturate", true);
    y_zero_point_type_ = Facts(static_cast<int>(zero_point)).type;
  }

  template <typename Input>
  void ReadSlope(Input slope) {
    plan_.activation.slope = Ref(slope);
    plan_.activation.slope_type = Facts(static_cast<int>(slope)).type;
    plan_.activation.slope_shape = ShapeOf(Facts(static_cast<int>(slope)));
    if (kActivations[static_cast<int>(plan_.activation.kind)].has_slope != plan_.activation.slope.present()) {
      Invalid(plan_.activation.slope.present() ? "input slope is given, but the activation takes none"
                                               : "the activation needs input slope");
    }
  }

  void ReadOperator() {
    switch (node_.kind) {
      case OperatorKind::kFusedNormalization:
        ReadNormalization();
        return;
      case OperatorKind::kFusedActivation:
        ReadElementwise();
        return;
      case OperatorKind::kFusedDequantizeLinear:
        ReadDequantize();
        return;
    }
  }

  void ReadAffineAlign() {
    const std::string align = String("affine_align", "trailing");
    if (align == "trailing") {
      plan_.affine_align = AffineAlign::kTrailing;
    } else if (align == "channel") {
      plan_.affine_align = AffineAlign::kChannel;
    } else if (align == "group") {
      plan_.affine_align = AffineAlign::kGroup;
    } else {
      Invalid("affine_align is '" + align + "'; it must be trailing, channel or group");
    }
  }

  void ReadStatistics() {
    Normalization& n = plan_.normalization;
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
  }

  void ReadNormalization() {
    using In = FusedNormalizationInput;
    plan_.kind = PlanKind::kNormalization;
    ReadStatistics();
    ReadAffineAlign();
    plan_.x = Tensor(In::kX);
    plan_.residual = Tensor(In::kResidual);
    plan_.residual_bias = Tensor(In::kResidualBias);
    plan_.scale = Tensor(In::kScale);
    plan_.bias = Tensor(In::kBias);
    ReadQuantization(&plan_.x.quantization, In::kXScale, In::kXZeroPoint, "x_axis", "x_block_size", 1);
    ReadQuantization(&plan_.residual.quantization, In::kResidualScale, In::kResidualZeroPoint, "residual_axis",
                     "residual_block_size", 1);
    ReadQuantization(&plan_.scale.quantization, In::kScaleScale, In::kScaleZeroPoint, "scale_axis", nullptr, 0);
    ReadQuantization(&plan_.bias.quantization, In::kBiasScale, In::kBiasZeroPoint, "bias_axis", nullptr, 0);
    ReadYQuantization(In::kYScale, In::kYZeroPoint);
    ReadSlope(In::kSlope);
    plan_.sum_type = ElementType("sum_dtype");
    plan_.sum_quantization.scale = Ref(In::kSumScale);
    plan_.sum_quantization.zero_point = Ref(In::kSumZeroPoint);
    if (plan_.sum_quantization.zero_point.present() && !plan_.sum_quantization.present()) {
      Invalid("a zero point is given without its scale");
    }
    if (plan_.sum_quantization.present() && plan_.sum_type == DataType::kUndefined) {
      plan_.sum_type = plan_.sum_quantization.zero_point.present() ? Facts(static_cast<int>(In::kSumZeroPoint)).type
                                                                   : DataType::kUint8;
    }
    plan_.sum_output = OutputIndex(FusedNormalizationOutput::kSum);
    plan_.mean_output = OutputIndex(FusedNormalizationOutput::kMean);
    plan_.inv_std_dev_output = OutputIndex(FusedNormalizationOutput::kInvStdDev);
    x_scale_type_ = Facts(static_cast<int>(In::kXScale)).type;
  }

  void ReadElementwise() {
    using In = FusedActivationInput;
    plan_.kind = PlanKind::kElementwise;
    ReadAffineAlign();
    plan_.x = Tensor(In::kX);
    plan_.scale = Tensor(In::kScale);
    plan_.bias = Tensor(In::kBias);
    ReadQuantization(&plan_.x.quantization, In::kXScale, In::kXZeroPoint, "x_axis", "x_block_size", 1);
    ReadYQuantization(In::kYScale, In::kYZeroPoint);
    ReadSlope(In::kSlope);
    x_scale_type_ = Facts(static_cast<int>(In::kXScale)).type;
  }

  void ReadDequantize() {
    using In = FusedDequantizeLinearInput;
    plan_.kind = PlanKind::kElementwise;
    plan_.x = Tensor(In::kX);
    ReadQuantization(&plan_.x.quantization, In::kXScale, In::kXZeroPoint, "x_axis", "x_block_size", 1);
    ReadSlope(In::kSlope);
    x_scale_type_ = Facts(static_cast<int>(In::kXScale)).type;
    if (!plan_.x.quantization.present()) Invalid("input x_scale is missing");
  }

  template <typename Output>
  int OutputIndex(Output output) const {
    const auto index = static_cast<size_t>(output);
    return index < node_.outputs_used.size() && node_.outputs_used[index] ? static_cast<int>(index) : Plan::kNoOutput;
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
    plan_.y_type = ElementType("y_dtype");
    const DataType float_type = plan_.x.quantization.present() ? x_scale_type_ : plan_.x.type;
    if (plan_.y_type == DataType::kUndefined) {
      if (!plan_.y_quantization.present()) {
        plan_.y_type = float_type;
      } else {
        plan_.y_type = plan_.y_quantization.zero_point.present() ? y_zero_point_type_ : DataType::kUint8;
      }
    }
    if (plan_.sum_type == DataType::kUndefined) plan_.sum_type = float_type;
  }

  const OperatorNode& node_;
  Plan& plan_;
  std::optional<Declined> declined_;
  DataType x_scale_type_ = DataType::kUndefined;
  DataType y_zero_point_type_ = DataType::kUndefined;
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

std::optional<Declined> PlanFromOperator(const OperatorNode& node, Plan* plan) { return Reader(node, plan).Read(); }

}  // namespace normfuse
