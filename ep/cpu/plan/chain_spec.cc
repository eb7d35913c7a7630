#include "cpu/plan/chain_spec.h"

#include <algorithm>

#include "cpu/plan/cost_model.h"
#include "cpu/plan/element_steps.h"
#include "cpu/plan/pairs.h"
#include "cpu/run/elements.h"

namespace normfuse::cpu {
namespace {

bool Is32Bit(DataType type) { return type == DataType::kInt32 || type == DataType::kUint32; }

// Whether an operand is constant, small or float32 already; others may be as large as X. One along channels or groups is
// small, and its own quantisation runs along it, not along d.
bool IsParameter(const Operand& operand) {
  return operand.type != DataType::kBool && (operand.constant() || operand.align != Align::kTrailing ||
                                             (operand.type == DataType::kFloat32 && !operand.quantization.present()));
}

bool IsParameter(const StageOperand& operand) { return !operand.present() || operand.is_parameter; }

bool IsAffine(StepKind kind) { return kind == StepKind::kAdd || kind == StepKind::kMul; }

bool IsIdentity(const Stage& stage) {
  return stage.kind == StepKind::kActivate && stage.activation == Activation::kIdentity;
}

// Whether a kernel for scale, bias and activation can do the step as well as what `stage` has already.
bool Joins(const Stage& stage, StepKind kind) {
  if (!IsIdentity(stage)) return false;
  if (kind == StepKind::kActivate) return true;
  const bool has_bias = stage.bias.present() || !stage.further.empty();
  return IsAffine(kind) && !has_bias && (kind == StepKind::kAdd || !stage.scale.present());
}

class ChainReader {
 public:
  ChainReader(const Chain& chain, Isa isa, CompiledChain* compiled)
      : chain_(chain), isa_(isa), compiled_(*compiled), usual_(compiled->usual), spec_(compiled->spec) {}

  Result Read() {
    usual_ = UsualFormOf(chain_);
    const FormId x_scale = chain_.x.quantization.present() ? kFormXScale : kFormCount;
    NORMFUSE_RETURN_IF_ERROR(ReadTensor({&chain_.x, kFormX, x_scale, /*of_d=*/true}, "x"));
    NORMFUSE_RETURN_IF_ERROR(ReadBefore());
    NORMFUSE_RETURN_IF_ERROR(ReadBehind());
    NORMFUSE_RETURN_IF_ERROR(ReadQuantization(chain_.store.quantization, chain_.store.type, kFormYScale, "y"));
    if (chain_.store.quantization.present()) {
      compiled_.forms.quantizations.push_back({&chain_.store.quantization, kFormYScale, /*of_d=*/false});
    }
    ReadSpec();
    return {};
  }

 private:
  Result ReadQuantization(const Quantization& q, DataType type, FormId scale_form, const std::string& name);
  Result ReadTensor(const OperandForms& forms, const std::string& name);
  Result ReadOperand(const Operand& operand, bool of_d, StageOperand* stage);
  Result ReadBefore();
  Result ReadBehind();
  Result ReadBehind(const Step& step, const Step* next);
  Result Join(const Step& step, Stage* stage);
  bool IsGate(const Step& step, const Step* next) const;
  bool RoundsBetween(const Stage& stage, const Step& step) const;
  bool JoinsAffine(const Step& step) const;
  Stage StageOf(const Step& step);
  static void SaturateAt(IntegerBounds codes, Stage* stage);
  Result ReadFakeQuantization(const Step& step, bool of_d, Stage* stage);
  FormId FormOf(const Operand& operand);
  FormId NextForm(int count);
  void ReadSpec();

  const Chain& chain_;
  Isa isa_;
  CompiledChain& compiled_;
  UsualForm& usual_;
  ChainSpec& spec_;
  int next_form_ = kFormFurther;
};

Result ChainReader::ReadQuantization(const Quantization& q, DataType type, FormId scale_form, const std::string& name) {
  Operand scale;
  scale.tensor = q.scale;
  scale.name = name + "_scale";
  NORMFUSE_RETURN_IF_ERROR(compiled_.sources[scale_form].Init(scale, false));
  Operand zero;
  zero.tensor = q.zero_point;
  zero.type = type;
  zero.name = name + "_zero_point";
  return compiled_.sources[scale_form + 1].Init(zero, Is32Bit(type));
}

FormId ChainReader::NextForm(int count) {
  const auto form = static_cast<FormId>(next_form_);
  next_form_ += count;
  return form;
}

// That of UsualForm, where its half of the chain is of it.
FormId ChainReader::FormOf(const Operand& operand) {
  if (usual_.before && &operand == usual_.residual) return kFormResidual;
  if (usual_.before && &operand == usual_.residual_bias) return kFormResidualBias;
  if (usual_.behind && &operand == usual_.scale) return kFormScale;
  if (usual_.behind && &operand == usual_.bias) return kFormBias;
  if (usual_.behind && usual_.activate != nullptr && &operand == &usual_.activate->operand) return kFormSlope;
  return NextForm(1);
}

// A tensor that is read where it lies.
Result ChainReader::ReadTensor(const OperandForms& forms, const std::string& name) {
  compiled_.tensors.push_back(compiled_.forms.operands.size());
  compiled_.forms.operands.push_back(forms);
  if (!forms.has_quantization()) return {};
  return ReadQuantization(forms.operand->quantization, forms.operand->type, forms.scale_form, name);
}

Result ChainReader::ReadOperand(const Operand& operand, bool of_d, StageOperand* stage) {
  if (!operand.present()) return {};
  const FormId form = FormOf(operand);
  const bool is_residual = form == kFormResidual;
  *stage = {form, form < kFormFurther ? !is_residual : IsParameter(operand)};
  if (stage->is_parameter) {
    compiled_.forms.operands.push_back({&operand, form, kFormCount, of_d});
    return compiled_.sources[form].Init(operand, false);
  }
  FormId scale_form = kFormCount;
  if (operand.quantization.present()) scale_form = is_residual ? kFormResidualScale : NextForm(3);
  return ReadTensor({&operand, form, scale_form, of_d}, operand.name);
}

Stage ChainReader::StageOf(const Step& step) {
  Stage stage;
  stage.kind = step.kind;
  stage.activation = step.activation.kind;
  stage.params = step.activation.params;
  stage.type = step.type;
  stage.mask = step.mask;
  stage.saturate = step.saturate;
  stage.keeps = step.keeps;
  stage.operand.is_kept = step.operand.is_kept;
  stage.quantizes = step.quantization.present();
  if (stage.quantizes && IsOneNumber(step.quantization)) {
    stage.quantization_scale = OneNumberOf(step.quantization.scale, 1.0f);
    stage.quantization_zero = OneNumberOf(step.quantization.zero_point, 0.0f);
  }
  if (stage.quantizes && !IsFloat8(stage.type) && BitsOf(stage.type) <= 16) {
    IntegerRange(stage.type, &stage.least_code, &stage.most_code);
    SaturateAt({stage.least_code, stage.most_code}, &stage);
  }
  if (step.output != kNoOutput) {
    stage.emitted = static_cast<int>(compiled_.emitting.size());
    compiled_.emitting.push_back(&step);
  }
  return stage;
}

// Of a stage that quantises: the least and the most integer.
void ChainReader::SaturateAt(IntegerBounds codes, Stage* stage) {
  stage->least_code = codes.low;
  stage->most_code = codes.high;
  stage->quantizer = QuantizerOf(stage->quantization_scale, stage->quantization_zero, codes.low, codes.high);
}

// Scale and zero point of a stage that has more than two numbers of them.
Result ChainReader::ReadFakeQuantization(const Step& step, bool of_d, Stage* stage) {
  if (step.kind != StepKind::kFakeQuantize || IsOneNumber(step.quantization)) return {};
  stage->quantization_form = NextForm(3);
  stage->block_size = step.quantization.block_size;
  compiled_.forms.quantizations.push_back({&step.quantization, stage->quantization_form, of_d});
  return ReadQuantization(step.quantization, step.type, stage->quantization_form, "d");
}

// Before the normalisation each step is a stage.
Result ChainReader::ReadBefore() {
  for (const Step& step : chain_.before) {
    Stage& stage = spec_.before.emplace_back(StageOf(step));
    NORMFUSE_RETURN_IF_ERROR(ReadFakeQuantization(step, /*of_d=*/true, &stage));
    StageOperand* operand = step.kind == StepKind::kActivate ? &stage.slope : &stage.operand;
    NORMFUSE_RETURN_IF_ERROR(ReadOperand(step.operand, /*of_d=*/true, operand));
  }
  return {};
}

// Behind it scale, bias and activation become one wherever they follow each other. There is one at each end.
Result ChainReader::ReadBehind() {
  spec_.codes = WorthwhileCodes(chain_, isa_);
  spec_.behind.emplace_back();
  for (const Step& step : chain_.behind) {
    const Step* const next = &step == &chain_.behind.back() ? nullptr : &step + 1;
    const bool is_first = &step == &chain_.behind.front();
    if (!is_first && BoundsOfClippedPair(*(&step - 1), step)) continue;  // done by the pair
    NORMFUSE_RETURN_IF_ERROR(ReadBehind(step, next));
  }
  if (spec_.behind.back().kind != StepKind::kActivate) spec_.behind.emplace_back();
  return {};
}

Result ChainReader::ReadBehind(const Step& step, const Step* next) {
  if (step.operand.is_kept) {
    spec_.behind.emplace_back(StageOf(step));
    return {};
  }
  Stage& last = spec_.behind.back();
  if (IsGate(step, next)) {
    last.gated = true;
    return ReadOperand(step.operand, /*of_d=*/false, &last.slope);
  }
  if (Joins(last, step.kind) && !RoundsBetween(last, step)) return Join(step, &last);
  if (JoinsAffine(step)) {
    StageOperand operand;
    NORMFUSE_RETURN_IF_ERROR(ReadOperand(step.operand, /*of_d=*/false, &operand));
    last.further.push_back({step.kind, operand.form});
    return {};
  }
  if (IsAffine(step.kind) || step.kind == StepKind::kActivate) return Join(step, &spec_.behind.emplace_back());
  Stage& stage = spec_.behind.emplace_back(StageOf(step));
  stage.step = static_cast<int>(&step - chain_.behind.data());
  stage.makes_codes = spec_.codes && spec_.codes->step == stage.step;
  if (next != nullptr) {
    if (const std::optional<IntegerBounds> bounds = BoundsOfClippedPair(step, *next)) SaturateAt(*bounds, &stage);
  }
  NORMFUSE_RETURN_IF_ERROR(ReadFakeQuantization(step, /*of_d=*/false, &stage));
  return ReadOperand(step.operand, /*of_d=*/false, &stage.operand);
}

// Makes a scale, a bias or the activation of the stage.
Result ChainReader::Join(const Step& step, Stage* stage) {
  if (step.kind == StepKind::kMul) return ReadOperand(step.operand, /*of_d=*/false, &stage->scale);
  if (step.kind == StepKind::kAdd) return ReadOperand(step.operand, /*of_d=*/false, &stage->bias);
  stage->activation = step.activation.kind;
  stage->params = step.activation.params;
  return ReadOperand(step.operand, /*of_d=*/false, &stage->slope);
}

// Whether the kernel of the activation in front can do the product, too. One that an Add follows is done with that.
bool ChainReader::IsGate(const Step& step, const Step* next) const {
  const Stage& last = spec_.behind.back();
  return !chain_.normalizes() && step.kind == StepKind::kMul && last.kind == StepKind::kActivate && !last.gated &&
         KernelsFor(isa_).gated[static_cast<int>(last.activation)] != nullptr &&
         (next == nullptr || next->kind != StepKind::kAdd);
}

// Whether a product and the sum behind it are two roundings, as in ORT's nodes: among quantised tensors, which take a last bit to
// the next integer.
bool ChainReader::RoundsBetween(const Stage& stage, const Step& step) const {
  const auto is_pair = [](const Step& each) { return each.kind == StepKind::kFakeQuantize; };
  const bool among_quantised = chain_.x.quantization.present() || chain_.store.quantization.present() ||
                               std::any_of(chain_.behind.begin(), chain_.behind.end(), is_pair);
  return step.kind == StepKind::kAdd && stage.scale.present() && !chain_.normalizes() && among_quantised;
}

// Whether the step joins scale and bias of the first stage behind a normalisation, whose values need not be more accurate
// than the normalisation is.
bool ChainReader::JoinsAffine(const Step& step) const {
  const Stage& first = spec_.behind.front();
  return chain_.normalizes() && !chain_.has_softmax() && spec_.behind.size() == 1 && IsIdentity(first) &&
         IsParameter(first.scale) && IsParameter(first.bias) && IsAffine(step.kind) && IsParameter(step.operand);
}

void ChainReader::ReadSpec() {
  const Stage& first = spec_.behind.front();
  const Stage& last = spec_.behind.back();
  spec_.normalizes = chain_.normalizes();
  spec_.normalization = chain_.normalization.value_or(Normalization{});
  spec_.usual_before = usual_.before;
  spec_.usual_behind = usual_.behind || (spec_.joins() && spec_.behind.size() == 1 && !first.slope.present());
  spec_.activation = last.activation;
  spec_.activation_params = last.params;
  spec_.y_dynamic = chain_.store.dynamic.has_value();
  spec_.y_type = spec_.y_dynamic ? DataType::kFloat32 : chain_.store.type;
  spec_.y_quantized = chain_.store.quantization.present();
  spec_.y_saturate = chain_.store.saturate;
  spec_.y_block_size = chain_.store.quantization.block_size;
  const size_t stages = spec_.behind.size();
  spec_.ends_fake_quantized = stages > 1 && spec_.behind[stages - 2].kind == StepKind::kFakeQuantize &&
                              last.changes_nothing() && spec_.y_type == DataType::kFloat32;
  if (usual_.sum != nullptr) spec_.sum_type = usual_.sum->type;
  for (const Stage& stage : spec_.before) spec_.requantizes |= stage.quantizes;
  for (const Stage& stage : spec_.behind) spec_.emits_behind |= stage.emitted >= 0;
  for (Stage& stage : spec_.before) stage.element_steps = CountElementSteps(stage);
  for (Stage& stage : spec_.behind) stage.element_steps = CountElementSteps(stage);
  spec_.steps_at_once = HasElementSteps(spec_, chain_, KernelsFor(isa_));
  spec_.steps_before_at_once = HasStepsBefore(spec_, chain_, KernelsFor(isa_));
  spec_.steps_behind_at_once = HasStepsBehind(spec_, KernelsFor(isa_));
  spec_.nanoseconds = EstimateNanoseconds(chain_, isa_, 0);
  constexpr int64_t kMany = kLeastForWideCodes;
  spec_.nanoseconds_per_element = (EstimateNanoseconds(chain_, isa_, kMany) - spec_.nanoseconds) / kMany;
}

}  // namespace

Result ReadChain(const Chain& chain, Isa isa, CompiledChain* compiled) {
  return ChainReader(chain, isa, compiled).Read();
}

}  // namespace normfuse::cpu
