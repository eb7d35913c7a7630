#include "cpu/plan/element_steps.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <span>

#include "cpu/kernels/kernel_list.h"
#include "cpu/plan/look_up.h"
#include "cpu/run/elements.h"

namespace normfuse::cpu {
namespace {

constexpr int kMostElementSteps = 32;

bool IsSmallInteger(DataType type) {
  return type == DataType::kInt8 || type == DataType::kUint8 || type == DataType::kInt16 || type == DataType::kUint16;
}

bool Activates(const Stage& stage) {
  return stage.kind == StepKind::kActivate && (stage.activation != Activation::kIdentity || stage.gated);
}

bool IsStepActivation(Activation activation) {
#define NORMFUSE_ACTIVATION(kernel) \
  if (activation == Activation::k##kernel) return true;
  NORMFUSE_STEP_ACTIVATIONS(NORMFUSE_ACTIVATION)
#undef NORMFUSE_ACTIVATION
  return false;
}

// An activation that a kernel of its own does, with the scale and bias in front of it. Around it the steps are done in two
// parts.
bool ActivatesAlone(const Stage& stage) {
  const bool is_step = IsStepActivation(stage.activation) && !stage.gated && stage.further.empty() &&
                       !(stage.scale.present() && stage.bias.present());  // these with one rounding
  return Activates(stage) && !is_step;
}

ElementsRead Floats(const void* data, size_t mask) { return {data, DataType::kFloat32, mask, 1.0f, 0.0f}; }

// The steps of one block, with what they read there. The block may be the first one of a run, and go on to those behind it.
class StepsOfBlock {
 public:
  StepsOfBlock(const Block& block, std::span<const Stage> stages)
      : at_(block.at), b_{block.call, at_, block.step, block.n, block.scratch}, call_(block.call), stages_(stages) {}

  // Where the steps begin, the steps, where they end. False: an operand has another form.
  bool ReadX();
  void ReadFrom(const float* d) { args_.x = Floats(d, kNoPattern); }
  void AddFactor(const float* factor);
  bool ReadSteps();
  bool ReadY();
  // To Y.
  void Run();
  // To the next block, of n elements; all before it have kBlock. False: what was read is of one block only.
  bool GoOn(int64_t n);
  // To float32.
  void RunInto(float* d) { RunTo(count_, d, DataType::kFloat32, /*stream=*/false); }

 private:
  bool ReadOneNumbers(FormId scale_form, float* scale, float* zero) const;
  bool HasSmallRange() const;
  bool AddStep(StepKind kind, const StageOperand& operand);
  void AddActivation(const Stage& stage);
  bool ReadTensor(const BoundTensor& tensor, ElementsRead* elements);
  void LookUp(int end);
  bool StreamsY() const { return call_.spec->y_type == DataType::kFloat32 && call_.path.store == Store::kNonTemporal; }
  void RunTo(int end, void* y, DataType type, bool stream);

  Offsets at_;
  Block b_;
  const Call& call_;
  std::span<const Stage> stages_;
  ElementStep steps_[kMostElementSteps];
  size_t bytes_[kMostElementSteps];  // of an element of the operand, where each has its own
  float singles_[kMostElementSteps];
  // Of what repeats: X, then the operands.
  alignas(64) float patterns_[1 + kMostElementSteps][kPattern];
  int count_ = 0;
  bool goes_on_ = true;
  bool behind_activation_ = false;            // is what comes next
  std::optional<BlockRoom::Loan> operand_;    // the one that is read into it
  std::optional<BlockRoom::Loan> kept_step_;  // what a step keeps
  ElementStepsArgs args_{};
  Quantizer y_quantizer_;
  const Stage* maker_ = nullptr;  // of the integers that are looked up
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
  if (call_.geometry->Repeats(kFormX)) {
    args_.x = Floats(OperandAt(b_, {.form = kFormX, .is_parameter = false}, nullptr, patterns_[0]).data, kPattern - 1);
  } else {
    if (b_.n > 1 && b_.step.stride[kFormX] != 1) return false;
    args_.x = {ElementAt(call_.x.data, call_.x.type, b_.at.at[kFormX]), call_.x.type, kNoPattern, 1.0f, 0.0f};
  }
  return !call_.x.quantized() || ReadOneNumbers(kFormXScale, &args_.x.scale, &args_.x.zero);
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
bool StepsOfBlock::ReadTensor(const BoundTensor& tensor, ElementsRead* elements) {
  const bool is_float = tensor.type == DataType::kFloat32 && !tensor.quantized();
  if (b_.step.stride[tensor.form] != 1 || !(is_float || IsSmallInteger(tensor.type)) || tensor.block_size > 0)
    return false;
  *elements = {ElementAt(tensor.data, tensor.type, b_.at.at[tensor.form]), tensor.type, kNoPattern, 1.0f, 0.0f};
  bytes_[count_] = BytesFor(tensor.type, 1);
  return !tensor.quantized() || ReadOneNumbers(tensor.scale_form, &elements->scale, &elements->zero);
}

bool StepsOfBlock::AddStep(StepKind kind, const StageOperand& operand) {
  ElementStep& step = steps_[count_];
  step.kind = kind;
  bytes_[count_] = 0;
  const bool lies_there = !operand.is_parameter && ReadTensor(call_.tensor(operand.form), &step.operand);
  if (!operand.is_kept && call_.geometry->Repeats(operand.form)) {
    step.operand = Floats(OperandAt(b_, operand, nullptr, patterns_[1 + count_]).data, kPattern - 1);
    bytes_[count_] = 0;
  } else if (!lies_there) {
    const bool single = !operand.is_kept && (b_.n == 1 || b_.step.stride[operand.form] == 0);
    const bool takes_room = !single && !operand.is_parameter;
    if (takes_room) {
      if (operand_) return false;
      operand_.emplace(&b_.scratch->operand);
      goes_on_ = false;
    }
    float* room = takes_room ? operand_->data() : &singles_[count_];
    const Vec vec = OperandAt(b_, operand, nullptr, room);
    step.operand = Floats(vec.data, vec.step == 0 ? 0 : kNoPattern);
    if (operand.is_parameter && !operand.is_kept) bytes_[count_] = sizeof(float) * static_cast<size_t>(vec.step);
  }
  step.by_reciprocal = kind == StepKind::kDiv && step.operand.mask == 0 && HasSmallRange() &&
                       Quantizer::Fits(std::abs(*static_cast<const float*>(step.operand.data)));
  behind_activation_ = false;
  ++count_;
  return true;
}

void StepsOfBlock::AddActivation(const Stage& stage) {
  bytes_[count_] = 0;
  ElementStep& step = steps_[count_++];
  step.kind = StepKind::kActivate;
  step.by_reciprocal = false;
  step.activation = stage.activation;
  step.params = stage.params;
  step.unclamped = stage.unclamped;
  behind_activation_ = false;
}

// As the first step.
void StepsOfBlock::AddFactor(const float* factor) {
  ElementStep& step = steps_[count_++];
  step.kind = StepKind::kMul;
  step.operand = Floats(factor, 0);
  step.by_reciprocal = false;
  bytes_[count_ - 1] = 0;
}

// Whether d, before the step that is being added, is one of few multiples of a scale.
bool StepsOfBlock::HasSmallRange() const {
  if (behind_activation_) return false;
  if (count_ > 0) return steps_[count_ - 1].kind == StepKind::kFakeQuantize;
  return call_.x.quantized() && Quantizer::Fits(args_.x.scale);
}

bool StepsOfBlock::ReadSteps() {
  for (const Stage& stage : stages_) {
    if (ActivatesAlone(stage)) {
      behind_activation_ = true;
      continue;
    }
    if (stage.quantizes) {
      if (stage.makes_codes && call_.path.by_table) {
        maker_ = &stage;
        return true;
      }
      bytes_[count_] = 0;
      ElementStep& step = steps_[count_++];
      step.kind = StepKind::kFakeQuantize;
      step.by_reciprocal = false;
      step.quantizer = &stage.quantizer;
      step.unclamped = stage.unclamped;
      if (stage.keeps) kept_step_.emplace(&b_.scratch->stage);
      step.kept = stage.keeps ? kept_step_->data() : nullptr;
      behind_activation_ = false;
    } else if (stage.kind != StepKind::kActivate) {
      if (!AddStep(stage.kind, stage.operand)) return false;
    } else {
      if (stage.scale.present() && !AddStep(StepKind::kMul, stage.scale)) return false;
      if (stage.bias.present() && !AddStep(StepKind::kAdd, stage.bias)) return false;
      if (Activates(stage)) AddActivation(stage);
    }
  }
  return true;
}

bool StepsOfBlock::GoOn(int64_t n) {
  if (!goes_on_) return false;
  MoveOn(b_.step, call_.geometry->active, kBlock, &at_);
  for (int i = 0; i < count_; ++i) {
    const void*& data = steps_[i].operand.data;
    if (bytes_[i] != 0) data = static_cast<const char*>(data) + kBlock * bytes_[i];
  }
  b_.n = n;
  args_.steps = nullptr;
  return ReadX();
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
  args_.x = Floats(y, kNoPattern);
}

// What is left: the steps up to `end`, to integers, and Y's elements for these.
void StepsOfBlock::LookUp(int end) {
  alignas(64) uint16_t codes[kBlock];
  y_quantizer_ = maker_->quantizer;
  RunTo(end, codes, maker_->type, /*stream=*/false);
  LookUpCodes(call_, codes, args_.n, ElementAt(call_.y, call_.spec->y_type, b_.at.at[kFormY]), StreamsY());
}

void StepsOfBlock::Run() {
  std::optional<BlockRoom::Loan> room;
  int end = 0;
  for (const Stage& stage : stages_) {
    if (&stage == maker_) return LookUp(end);
    end += stage.element_steps;
    if (!ActivatesAlone(stage)) continue;
    if (!room) room.emplace(&b_.scratch->read);
    RunTo(end, room->data(), DataType::kFloat32, /*stream=*/false);
    ApplyStage(b_, stage, Normalizer{}, room->data(), room->data());
  }
  const DataType type = call_.spec->y_type;
  RunTo(count_, ElementAt(call_.y, type, b_.at.at[kFormY]), type, StreamsY());
}

// What comes behind the stage that normalises.
std::span<const Stage> RestOf(const ChainSpec& spec) { return std::span(spec.behind).subspan(1); }

bool StoresElements(const ChainSpec& spec) {
  return spec.y_quantized ? IsSmallInteger(spec.y_type) && spec.y_block_size == 0 : spec.y_type == DataType::kFloat32;
}

bool IsElementType(const Operand& operand) {
  const bool quantized = operand.quantization.present();
  return quantized ? IsSmallInteger(operand.type) && operand.quantization.block_size == 0
                   : operand.type == DataType::kFloat32;
}

// What all of them become; -1: one has to be run by itself.
int CountAll(std::span<const Stage> stages) {
  int count = 0;
  for (const Stage& stage : stages) {
    if (stage.element_steps < 0) return -1;
    count += stage.element_steps;
  }
  return count;
}

}  // namespace

int CountElementSteps(const Stage& stage) {
  if (stage.kind == StepKind::kActivate) {
    if (stage.scale.present() && stage.bias.present() && !Activates(stage)) return -1;  // with one rounding
    if (!stage.further.empty()) return -1;
    return ActivatesAlone(stage) ? 0 : stage.scale.present() + stage.bias.present() + Activates(stage);
  }
  // A sum that is stored nowhere is only quantised and dequantised.
  const bool is_pair =
      stage.kind == StepKind::kFakeQuantize || (stage.kind == StepKind::kRequantize && stage.emitted < 0);
  if (!is_pair) return IsCombination(stage.kind) ? 1 : -1;
  const bool is_one = stage.quantization_form == kFormCount && !IsFloat8(stage.type);
  return is_one && Quantizer::Fits(stage.quantization_scale) ? 1 : -1;
}

bool HasElementSteps(const ChainSpec& spec, const Chain& chain, const KernelTable& kernels) {
  if (kernels.element_steps == nullptr || spec.normalizes || !spec.before.empty() || !IsElementType(chain.x))
    return false;
  if (!StoresElements(spec) || spec.emits_behind) return false;
  // One step that reads and writes float32 has a kernel of its own.
  const bool converts = spec.y_quantized || chain.x.quantization.present();
  const auto gains = [converts](const Stage& stage) {
    const bool combines = (converts && stage.scale.present()) || !stage.bias.is_parameter;
    return stage.kind != StepKind::kActivate || (!Activates(stage) && combines);
  };
  const int count = CountAll(spec.behind);
  return count + converts > 1 && count <= kMostElementSteps &&
         std::any_of(spec.behind.begin(), spec.behind.end(), gains);
}

bool HasStepsBefore(const ChainSpec& spec, const Chain& chain, const KernelTable& kernels) {
  const auto is_step = [](const Stage& stage) { return stage.element_steps == 1 && !Activates(stage); };
  const bool converts = chain.x.quantization.present();
  return kernels.element_steps != nullptr && spec.normalizes && IsElementType(chain.x) &&
         (converts || !spec.before.empty()) && spec.before.size() <= kMostElementSteps &&
         std::all_of(spec.before.begin(), spec.before.end(), is_step);
}

bool HasStepsBehind(const ChainSpec& spec, const KernelTable& kernels) {
  if (kernels.element_steps == nullptr || !spec.normalizes || spec.emits_behind || !StoresElements(spec)) return false;
  const std::span<const Stage> rest = RestOf(spec);
  const int count = CountAll(rest);
  return count >= 0 && count + spec.y_quantized > 0 && count <= kMostElementSteps &&
         std::none_of(rest.begin(), rest.end(), Activates);
}

bool RunElementSteps(const Block& run) {
  Offsets at = run.at;
  for (int64_t done = 0; done < run.n;) {
    int64_t n = std::min(run.n - done, kBlock);
    StepsOfBlock steps({run.call, at, run.step, n, run.scratch}, run.call.spec->behind);
    if (!steps.ReadX() || !steps.ReadSteps() || !steps.ReadY()) return false;
    if (run.call.y == nullptr) return true;
    do {
      steps.Run();
      MoveOn(run.step, run.call.geometry->active, n, &at);
      done += n;
      n = std::min(run.n - done, kBlock);
    } while (n > 0 && steps.GoOn(n));
  }
  return true;
}

bool RunStepsBefore(const Block& block, float* d) {
  StepsOfBlock steps(block, block.call.spec->before);
  if (!steps.ReadX() || !steps.ReadSteps()) return false;
  steps.RunInto(d);
  return true;
}

bool RunStepsBehind(const Block& block, const Normalizer& normalizer, const float* d, float* room) {
  const Stage& first = block.call.spec->behind.front();
  StepsOfBlock steps(block, RestOf(*block.call.spec));
  const bool is_factor = normalizer.mean == 0.0f && first.changes_nothing();  // what rounds to 0 leaves nothing over
  if (is_factor) steps.AddFactor(&normalizer.inv);
  steps.ReadFrom(is_factor ? d : room);
  if (!steps.ReadSteps() || !steps.ReadY()) return false;
  if (block.call.y == nullptr) return true;
  if (!is_factor) ApplyStage(block, first, normalizer, d, room);
  steps.Run();
  return true;
}

}  // namespace normfuse::cpu
