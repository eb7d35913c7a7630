#include "directml/lowering/activations.h"

#include <algorithm>
#include <cmath>

#include "cpu/run/elements.h"

namespace normfuse::directml {
namespace {

using namespace abi;

const ActivationSpec& SpecOf(Activation kind) { return kActivations[static_cast<int>(kind)]; }

// The activation under a simpler name where the parameters allow it: DirectML fuses Relu and LeakyRelu, but neither Clip
// nor PRelu.
ActivationCall Simplified(const Step& step) {
  const ActivationCall& call = step.activation;
  ActivationCall simple = call;
  if (call.kind == Activation::kClip) {
    if (call.params[0] == 0 && call.params[1] == INFINITY) simple.kind = Activation::kRelu;
    if (call.params[0] == -INFINITY && call.params[1] == INFINITY) simple.kind = Activation::kIdentity;
  }
  const auto& slope = step.operand.tensor.constant;
  if (call.kind == Activation::kPRelu && slope != nullptr && slope->ElementCount() == 1) {
    simple.kind = Activation::kLeakyRelu;
    simple.params[0] = static_cast<float>(cpu::ReadElement(slope->type, slope->data, 0));
  }
  return simple;
}

// Parameters that the operator itself does not take at this level.
bool ParametersFit(const ActivationCall& call, FeatureLevel level) {
  return call.kind != Activation::kSoftplus || call.params[0] >= 1 || Allows(RuleId::kSmallSoftplusSteepness, level);
}

FusedActivation AsDirectMl(const ActivationCall& call) {
  const DirectMlActivation& directml = SpecOf(call.kind).directml;
  FusedActivation activation{static_cast<DML_OPERATOR_TYPE>(directml.type), {}, directml.field_count};
  for (int i = 0; i < directml.field_count; ++i) activation.parameters[i] = call.params[directml.fields[i]];
  return activation;
}

Value EmitOne(ProgramBuilder& builder, const FusedActivation& activation, const Value& x, const char* purpose) {
  Operator op = OpOf(activation.type, purpose);
  std::copy(std::begin(activation.parameters), std::end(activation.parameters), op.parameters);
  op.parameter_count = activation.parameter_count;
  return builder.Unary(std::move(op), x);
}

Value EmitPlain(ProgramBuilder& builder, DML_OPERATOR_TYPE type, const Value& x, const char* purpose) {
  return EmitOne(builder, {type, {}, 0}, x, purpose);
}

Value EmitLinear(ProgramBuilder& builder, float alpha, float beta, const Value& x, const char* purpose) {
  if (alpha == 1 && beta == 0) return x;
  return EmitOne(builder, {DML_OPERATOR_ACTIVATION_LINEAR, {alpha, beta}, 2}, x, purpose);
}

Value EmitProduct(ProgramBuilder& builder, const Value& a, const Value& b, const char* purpose) {
  return builder.Binary(DML_OPERATOR_ELEMENT_WISE_MULTIPLY, purpose, a, b, a.dims);
}

Value EmitSinSquared(ProgramBuilder& builder, const Value& x) {
  const Value sine = EmitPlain(builder, DML_OPERATOR_ELEMENT_WISE_SIN, x, "SinSquared: sin");
  return EmitProduct(builder, sine, sine, "SinSquared: squared");
}

// x * Phi(x), Phi by the error function.
Value EmitGelu(ProgramBuilder& builder, const Value& x) {
  constexpr DML_SCALE_BIAS kRootOfHalf = {0.70710678118654752f, 0.0f};
  const Value erf = builder.Unary(OpOf(DML_OPERATOR_ELEMENT_WISE_ERF, "Gelu: erf(x / sqrt(2))", kRootOfHalf), x);
  const Value phi = EmitLinear(builder, 0.5f, 0.5f, erf, "Gelu: (1 + erf) / 2");
  return EmitProduct(builder, x, phi, "Gelu: times x");
}

// 0.5 x (1 + tanh(u)) = x sigmoid(2u), u = sqrt(2 / pi) (x + 0.044715 x^3): without cancellation for negative x.
Value EmitGeluTanh(ProgramBuilder& builder, const Value& x) {
  constexpr double kTwice = 1.5957691216057308;  // 2 sqrt(2 / pi)
  const Value square = EmitProduct(builder, x, x, "GeluTanh: x^2");
  const Value factor = EmitLinear(builder, static_cast<float>(0.044715 * kTwice), static_cast<float>(kTwice), square,
                                  "GeluTanh: 2 sqrt(2 / pi) (1 + 0.044715 x^2)");
  const Value argument = EmitProduct(builder, factor, x, "GeluTanh: times x");
  const Value gate = EmitPlain(builder, DML_OPERATOR_ACTIVATION_SIGMOID, argument, "GeluTanh: sigmoid");
  return EmitProduct(builder, x, gate, "GeluTanh: times x");
}

Value EmitMish(ProgramBuilder& builder, const Value& x) {
  const Value softplus = EmitOne(builder, {DML_OPERATOR_ACTIVATION_SOFTPLUS, {1.0f}, 1}, x, "Mish: softplus(x)");
  const Value gate = EmitPlain(builder, DML_OPERATOR_ACTIVATION_TANH, softplus, "Mish: tanh");
  return EmitProduct(builder, x, gate, "Mish: times x");
}

Value EmitSwish(ProgramBuilder& builder, float alpha, const Value& x) {
  const Value argument = EmitLinear(builder, alpha, 0, x, "Swish: alpha x");
  const Value gate = EmitPlain(builder, DML_OPERATOR_ACTIVATION_SIGMOID, argument, "Swish: sigmoid");
  return EmitProduct(builder, x, gate, "Swish: times x");
}

Value EmitHardSwish(ProgramBuilder& builder, const ActivationCall& call, const Value& x) {
  const FusedActivation hard_sigmoid{DML_OPERATOR_ACTIVATION_HARD_SIGMOID, {call.params[0], call.params[1]}, 2};
  return EmitProduct(builder, x, EmitOne(builder, hard_sigmoid, x, "HardSwish: gate"), "HardSwish: times x");
}

Value EmitClip(ProgramBuilder& builder, const ActivationCall& call, const Value& x) {
  // ONNX takes the upper bound where the bounds are crossed; DirectML's formula takes the lower one.
  const float low = std::min(call.params[0], call.params[1]);
  return EmitOne(builder, {DML_OPERATOR_ELEMENT_WISE_CLIP, {low, call.params[1]}, 2}, x, "Clip");
}

// log(1 + exp(s x)) / s by way of steepness 1, for s that the operator refuses.
Value EmitSoftplus(ProgramBuilder& builder, float steepness, const Value& x) {
  if (steepness == 0) builder.Unsupported("Softplus with a steepness of 0");
  const Value argument = EmitLinear(builder, steepness, 0, x, "Softplus: s x");
  const Value softplus = EmitOne(builder, {DML_OPERATOR_ACTIVATION_SOFTPLUS, {1.0f}, 1}, argument, "Softplus");
  return EmitLinear(builder, 1 / steepness, 0, softplus, "Softplus: divided by s");
}

// alpha ELU(x / alpha), for levels without CELU.
Value EmitCelu(ProgramBuilder& builder, float alpha, const Value& x) {
  if (!(alpha > 0)) builder.NeedsLevel("Celu with an alpha that is not positive", DML_FEATURE_LEVEL_3_0);
  const Value argument = EmitLinear(builder, 1 / alpha, 0, x, "Celu: x / alpha");
  const Value elu = EmitOne(builder, {DML_OPERATOR_ACTIVATION_ELU, {1.0f}, 1}, argument, "Celu: elu");
  return EmitLinear(builder, alpha, 0, elu, "Celu: times alpha");
}

Value EmitPRelu(ProgramBuilder& builder, const Value& x, const Value& slope) {
  return builder.Emit(OpOf(DML_OPERATOR_ACTIVATION_PARAMETERIZED_RELU, "PRelu"), x.dims,
                      {ProgramBuilder::Whole(x), ProgramBuilder::Broadcast(slope, x.dims)}, x.type);
}

}  // namespace

std::optional<FusedActivation> Fusable(const Step& step, FeatureLevel level) {
  const ActivationCall simple = Simplified(step);
  const int fused_level = SpecOf(simple.kind).directml.fused_level;
  const bool fits = fused_level != 0 && level >= static_cast<uint32_t>(fused_level) && ParametersFit(simple, level);
  return fits ? std::optional(AsDirectMl(simple)) : std::nullopt;
}

bool ReadsSlope(const Step& step) { return Simplified(step).kind == Activation::kPRelu && step.operand.present(); }

Value EmitActivation(ProgramBuilder& builder, const Step& step, const Value& x, const std::optional<Value>& slope) {
  const ActivationCall simple = Simplified(step);
  if (simple.kind == Activation::kIdentity) return x;
  const ActivationSpec& spec = SpecOf(simple.kind);
  const bool available = spec.directml.level != 0 && builder.level() >= static_cast<uint32_t>(spec.directml.level);
  if (available && ParametersFit(simple, builder.level())) {
    return EmitOne(builder, AsDirectMl(simple), x, spec.name);
  }
  using enum Activation;
  const auto plain = [&](DML_OPERATOR_TYPE type) { return EmitPlain(builder, type, x, spec.name); };
  if (simple.kind == kGelu) return EmitGelu(builder, x);
  if (simple.kind == kGeluTanh) return EmitGeluTanh(builder, x);
  if (simple.kind == kErf) return plain(DML_OPERATOR_ELEMENT_WISE_ERF);
  if (simple.kind == kExp) return plain(DML_OPERATOR_ELEMENT_WISE_EXP);
  if (simple.kind == kSin) return plain(DML_OPERATOR_ELEMENT_WISE_SIN);
  if (simple.kind == kSinSquared) return EmitSinSquared(builder, x);
  if (simple.kind == kMish) return EmitMish(builder, x);
  if (simple.kind == kSwish) return EmitSwish(builder, simple.params[0], x);
  if (simple.kind == kHardSwish) return EmitHardSwish(builder, simple, x);
  if (simple.kind == kClip) return EmitClip(builder, simple, x);
  if (simple.kind == kSoftplus) return EmitSoftplus(builder, simple.params[0], x);
  if (simple.kind == kCelu) return EmitCelu(builder, simple.params[0], x);
  if (simple.kind == kPRelu) return EmitPRelu(builder, x, *slope);
  const std::string what = std::string("activation ") + spec.name;
  const auto level = static_cast<uint32_t>(spec.directml.level);
  level == 0 ? builder.Unsupported(what) : builder.NeedsLevel(what, level);
  return x;
}

}  // namespace normfuse::directml
