#include "cpu/element_steps.h"

#include <cmath>
#include <utility>

#include "cpu/elements.h"

namespace normfuse::cpu {
namespace {

constexpr int kMostElementSteps = 32;

bool IsSmallInteger(DataType type) {
  return type == DataType::kInt8 || type == DataType::kUint8 || type == DataType::kInt16 || type == DataType::kUint16;
}

// An activation, which has a kernel of its own. Around it the steps are done in two parts.
bool Activates(const Stage& stage) {
  return stage.kind == StepKind::kActivate && (stage.activation != Activation::kIdentity || stage.gated);
}

// Steps that the stage becomes; -1: it has to be run by itself.
int CountSteps(const Stage& stage) {
  if (stage.kind == StepKind::kActivate) {
    if (stage.scale.present() && stage.bias.present() && !Activates(stage)) return -1;  // with one rounding
    return stage.further.empty() ? (Activates(stage) ? 0 : stage.scale.present() + stage.bias.present()) : -1;
  }
  if (stage.kind != StepKind::kFakeQuantize) return IsCombination(stage.kind) ? 1 : -1;
  const bool is_one = stage.quantization_form == kFormCount && !IsFloat8(stage.type);
  return is_one && Quantizer::Fits(stage.quantization_scale) ? 1 : -1;
}

// The steps of one block, with what they read there.
class StepsOfBlock {
 public:
  explicit StepsOfBlock(const Block& block) : b_(block), call_(block.call) {}

  bool Read();
  void Run();

 private:
  bool ReadX();
  bool ReadY();
  bool ReadOneNumbers(FormId scale_form, float* scale, float* zero) const;
  bool HasSmallRange() const;
  bool AddStep(StepKind kind, const StageOperand& operand);
  bool ReadTensor(const BoundTensor& tensor, ElementStep* step);
  void RunTo(int end, void* y, DataType type, bool stream);

  const Block& b_;
  const Call& call_;
  ElementStep steps_[kMostElementSteps];
  float singles_[kMostElementSteps];
  int count_ = 0;
  bool has_room_ = true;
  bool behind_activation_ = false;  // is what comes next
  ElementStepsArgs args_{};
  Quantizer y_quantizer_;
};

// Scale and zero point along the run, where they are two numbers.
bool StepsOfBlock::ReadOneNumbers(FormId scale_form, float* scale, float* zero) const {
  static constexpr float kNone = 0.0f;
  const Vec scales = VecAt(call_, scale_form, b_.at, b_.step, &kOne);
  const Vec zeros = VecAt(call_, static_cast<FormId>(scale_form + 1), b_.at, b_.step, &kNone);
  if (b_.n > 1 && (scales.step != 0 || zeros.step != 0)) return false;
  *scale = *scales.data;
  *zero = *zeros.data;
  return true;
}

bool StepsOfBlock::ReadX() {
  if (b_.n > 1 && b_.step.stride[kFormX] != 1) return false;
  args_.x = ElementAt(call_.x.data, call_.x.type, b_.at.at[kFormX]);
  args_.x_type = call_.x.type;
  return !call_.x.quantized() || ReadOneNumbers(kFormXScale, &args_.x_scale, &args_.x_zero);
}

bool StepsOfBlock::ReadY() {
  if (!call_.spec->y_quantized) return true;
  float scale = 1.0f;
  float zero = 0.0f;
  if (!ReadOneNumbers(kFormYScale, &scale, &zero) || !Quantizer::Fits(scale)) return false;
  float low = 0.0f;
  float high = 0.0f;
  IntegerRange(call_.spec->y_type, &low, &high);
  y_quantizer_ = QuantizerOf(scale, zero, low, high);
  return true;
}

// A tensor that the kernel reads where it lies.
bool StepsOfBlock::ReadTensor(const BoundTensor& tensor, ElementStep* step) {
  const bool is_float = tensor.type == DataType::kFloat32 && !tensor.quantized();
  if (b_.step.stride[tensor.form] != 1 || !(is_float || IsSmallInteger(tensor.type)) || tensor.block_size > 0)
    return false;
  if (tensor.quantized() && !ReadOneNumbers(tensor.scale_form, &step->scale, &step->zero)) return false;
  step->type = tensor.type;
  step->operand = ElementAt(tensor.data, tensor.type, b_.at.at[tensor.form]);
  step->stride = 1;
  return true;
}

bool StepsOfBlock::AddStep(StepKind kind, const StageOperand& operand) {
  ElementStep& step = steps_[count_];
  step.kind = kind;
  step.type = DataType::kFloat32;
  const bool lies_there = !operand.is_parameter && ReadTensor(call_.tensor(operand.form), &step);
  if (!lies_there) {
    const bool single = !operand.is_kept && (b_.n == 1 || b_.step.stride[operand.form] == 0);
    const bool takes_room = !single && !operand.is_parameter;
    if (takes_room && !std::exchange(has_room_, false)) return false;
    float* room = single ? &singles_[count_] : b_.scratch->block;  // which no activation in between takes
    const Vec vec = OperandAt(b_, operand, nullptr, room);
    step.operand = vec.data;
    step.stride = vec.step;
  }
  step.by_reciprocal = kind == StepKind::kDiv && step.stride == 0 && HasSmallRange() &&
                       Quantizer::Fits(std::abs(*static_cast<const float*>(step.operand)));
  behind_activation_ = false;
  ++count_;
  return true;
}

// Whether d, before the step that is being added, is one of few multiples of a scale.
bool StepsOfBlock::HasSmallRange() const {
  if (behind_activation_) return false;
  if (count_ > 0) return steps_[count_ - 1].kind == StepKind::kFakeQuantize;
  return call_.x.quantized() && Quantizer::Fits(args_.x_scale);
}

bool StepsOfBlock::Read() {
  if (!ReadX() || !ReadY()) return false;
  for (const Stage& stage : call_.spec->behind) {
    if (Activates(stage)) {
      behind_activation_ = true;
      continue;
    }
    if (stage.kind == StepKind::kFakeQuantize) {
      ElementStep& step = steps_[count_++];
      step.kind = stage.kind;
      step.by_reciprocal = false;
      step.quantizer = &stage.quantizer;
      step.kept = stage.keeps ? b_.scratch->wide : nullptr;
      behind_activation_ = false;
    } else if (stage.kind != StepKind::kActivate) {
      if (!AddStep(stage.kind, stage.operand)) return false;
    } else {
      if (stage.scale.present() && !AddStep(StepKind::kMul, stage.scale)) return false;
      if (stage.bias.present() && !AddStep(StepKind::kAdd, stage.bias)) return false;
    }
  }
  return true;
}

// The steps from the first one that was not done yet up to `end`.
void StepsOfBlock::RunTo(int end, void* y, DataType type, bool stream) {
  args_.y = y;
  args_.y_type = type;
  args_.quantizer = y_quantizer_;
  args_.n = static_cast<size_t>(b_.n);
  args_.steps = args_.steps == nullptr ? steps_ : args_.steps + args_.count;
  args_.count = end - static_cast<int>(args_.steps - steps_);
  args_.stream = stream;
  call_.kernels->element_steps(args_);
  args_.x = y;
  args_.x_type = DataType::kFloat32;
}

void StepsOfBlock::Run() {
  float* const room = b_.scratch->kept;
  int end = 0;
  for (const Stage& stage : call_.spec->behind) {
    end += CountSteps(stage);
    if (!Activates(stage)) continue;
    RunTo(end, room, DataType::kFloat32, /*stream=*/false);
    ApplyStage(b_, stage, Normalizer{}, room, room);
  }
  const DataType type = call_.spec->y_type;
  const bool streams = type == DataType::kFloat32 && call_.path.store == Store::kNonTemporal;
  RunTo(end, ElementAt(call_.y, type, b_.at.at[kFormY]), type, streams);
}

bool IsElementType(const Operand& operand) {
  const bool quantized = operand.quantization.present();
  return quantized ? IsSmallInteger(operand.type) && operand.quantization.block_size == 0
                   : operand.type == DataType::kFloat32;
}

}  // namespace

bool HasElementSteps(const ChainSpec& spec, const Chain& chain, const KernelTable& kernels) {
  if (kernels.element_steps == nullptr || spec.normalizes || !spec.before.empty() || !IsElementType(chain.x))
    return false;
  const bool stores =
      spec.y_quantized ? IsSmallInteger(spec.y_type) && spec.y_block_size == 0 : spec.y_type == DataType::kFloat32;
  if (!stores || spec.emits_behind) return false;
  // One step that reads and writes float32 has a kernel of its own.
  const bool converts = spec.y_quantized || chain.x.quantization.present();
  int count = 0;
  bool gains = false;
  for (const Stage& stage : spec.behind) {
    const int steps = CountSteps(stage);
    if (steps < 0) return false;
    count += steps;
    gains |= stage.kind != StepKind::kActivate || (!Activates(stage) && !stage.bias.is_parameter);
  }
  return gains && count + converts > 1 && count <= kMostElementSteps;
}

bool RunElementSteps(const Block& block) {
  StepsOfBlock steps(block);
  if (!steps.Read()) return false;
  if (block.call.y != nullptr) steps.Run();
  return true;
}

}  // namespace normfuse::cpu
