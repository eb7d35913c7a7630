#include "cpu/plan/pairs.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <span>

#include "cpu/run/elements.h"

namespace normfuse::cpu {
namespace {

// Whether it clamps what comes, in a step that may leave that out.
bool MayBeUnclamped(const Stage& stage) {
  const bool is_sigmoid = stage.kind == StepKind::kActivate && stage.activation == Activation::kSigmoid;
  return (stage.quantizes && stage.quantizer.by_product) || (is_sigmoid && stage.element_steps > 0);
}

// Numbers as they are dequantised from integers.
struct Integers {
  float low;
  float high;
  float scale;
  float zero;
};

// Some of the integers, and what becomes of them stage by stage.
class IntegersOnTheWay {
 public:
  IntegersOnTheWay(const KernelTable& kernels, const ParamSource* sources) : kernels_(kernels), sources_(sources) {
    std::iota(counted_, counted_ + kBlock, 0.0f);
  }

  // Whether nothing but d and constants of one number count.
  bool IsOfD(const Stage& stage) const;
  // From `first` on, kBlock of them at most.
  void Begin(const Integers& integers, float first);
  void Keep() { std::copy_n(d_, n_, kept_); }
  // d behind the stage, which keeps Stage::unclamped if that makes no difference.
  void Pass(Stage* stage);

 private:
  const float* NumberOf(const StageOperand& operand) const;
  bool IsNumber(const StageOperand& operand) const { return !operand.present() || NumberOf(operand) != nullptr; }
  void Combine(StepKind kind, const StageOperand& operand);
  void Run(const ElementStep& step, float* y) const;
  // A step that may clamp; whether it need not.
  bool RunUnclamped(ElementStep step);
  void RunOf(Stage* stage, const ElementStep& step);

  const KernelTable& kernels_;
  const ParamSource* sources_;
  size_t n_ = 0;
  alignas(64) float counted_[kBlock];
  alignas(64) float d_[kBlock];
  alignas(64) float kept_[kBlock];
  alignas(64) float clamped_[kBlock];
};

// Null: it is another operand.
const float* IntegersOnTheWay::NumberOf(const StageOperand& operand) const {
  if (!operand.present() || operand.is_kept || !operand.is_parameter) return nullptr;
  const ParamSource& source = sources_[operand.form];
  return source.constant() && source.uniform() ? source.Constant().data : nullptr;
}

bool IntegersOnTheWay::IsOfD(const Stage& stage) const {
  if (stage.quantizes || stage.changes_nothing()) return true;
  if (stage.kind != StepKind::kActivate) return stage.operand.is_kept || NumberOf(stage.operand) != nullptr;
  return stage.element_steps > 0 && IsNumber(stage.scale) && IsNumber(stage.bias);  // 0: a kernel of its own does it
}

void IntegersOnTheWay::Begin(const Integers& integers, float first) {
  n_ = static_cast<size_t>(std::min(integers.high - first + 1, static_cast<float>(kBlock)));
  const float zero = integers.zero - first;
  const auto dequantize = kernels_.dequantize[static_cast<int>(DataType::kFloat32)];
  dequantize(counted_, n_, {&integers.scale, 0}, {&zero, 0}, d_, /*stream=*/false);
}

void IntegersOnTheWay::Run(const ElementStep& step, float* y) const {
  ElementStepsArgs args{};
  args.x = {d_, DataType::kFloat32, kNoPattern, 1.0f, 0.0f};
  args.y = y;
  args.y_type = DataType::kFloat32;
  args.n = n_;
  args.steps = &step;
  args.count = 1;
  kernels_.element_steps(args);
}

bool IntegersOnTheWay::RunUnclamped(ElementStep step) {
  Run(step, clamped_);
  step.unclamped = true;
  Run(step, d_);
  if (std::memcmp(d_, clamped_, n_ * sizeof(float)) == 0) return true;
  std::copy_n(clamped_, n_, d_);
  return false;
}

void IntegersOnTheWay::RunOf(Stage* stage, const ElementStep& step) {
  if (!stage->unclamped) return Run(step, d_);
  stage->unclamped = RunUnclamped(step);
}

void IntegersOnTheWay::Combine(StepKind kind, const StageOperand& operand) {
  if (!operand.present() && !operand.is_kept) return;
  ElementStep step{};
  step.kind = kind;
  const float* const number = NumberOf(operand);
  step.operand = {operand.is_kept ? kept_ : number, DataType::kFloat32, operand.is_kept ? kNoPattern : 0, 1.0f, 0.0f};
  Run(step, d_);
}

void IntegersOnTheWay::Pass(Stage* stage) {
  ElementStep step{};
  step.activation = stage->activation;
  step.params = stage->params;
  step.quantizer = &stage->quantizer;
  if (stage->quantizes) {
    step.kind = StepKind::kFakeQuantize;
    RunOf(stage, step);
    if (stage->keeps) Keep();
  } else if (stage->kind != StepKind::kActivate) {
    Combine(stage->kind, stage->operand);
  } else {
    step.kind = StepKind::kActivate;
    Combine(StepKind::kMul, stage->scale);
    Combine(StepKind::kAdd, stage->bias);
    if (stage->activation != Activation::kIdentity) RunOf(stage, step);
  }
}

// Steps of one half of a chain, of which `x` is what it begins with, where that is known.
class ClampsOfSteps {
 public:
  ClampsOfSteps(std::span<Stage> stages, IntegersOnTheWay* way) : stages_(stages), way_(*way) {}
  void LeaveOut(const std::optional<Integers>& x);

 private:
  // Behind `begin`: the stages that depend on its integers alone.
  std::span<Stage> Behind(size_t begin, bool keeps) const;
  void Try(const Integers& integers, bool keeps, std::span<Stage> behind);

  std::span<Stage> stages_;
  IntegersOnTheWay& way_;
};

std::span<Stage> ClampsOfSteps::Behind(size_t begin, bool keeps) const {
  size_t end = begin;
  for (; end < stages_.size() && way_.IsOfD(stages_[end]); ++end) {
    if (stages_[end].operand.is_kept && !keeps) break;
    keeps = keeps || stages_[end].keeps;
  }
  return stages_.subspan(begin, end - begin);
}

void ClampsOfSteps::Try(const Integers& integers, bool keeps, std::span<Stage> behind) {
  while (!behind.empty() && !MayBeUnclamped(behind.back())) behind = behind.first(behind.size() - 1);
  if (behind.empty()) return;
  for (Stage& stage : behind) stage.unclamped = MayBeUnclamped(stage);
  for (float first = integers.low; first <= integers.high; first += kBlock) {
    way_.Begin(integers, first);
    if (keeps) way_.Keep();
    for (Stage& stage : behind) way_.Pass(&stage);
  }
}

void ClampsOfSteps::LeaveOut(const std::optional<Integers>& x) {
  size_t place = 0;
  if (x) {
    const std::span<Stage> behind = Behind(0, /*keeps=*/false);
    Try(*x, /*keeps=*/false, behind);
    place = behind.size();
  }
  while (place < stages_.size()) {
    const Stage& pair = stages_[place++];
    if (!pair.quantizes) continue;
    const std::span<Stage> behind = Behind(place, pair.keeps);
    Try({pair.least_code, pair.most_code, pair.quantizer.factor, pair.quantizer.zero}, pair.keeps, behind);
    place += behind.size();
  }
}

std::optional<Integers> IntegersOfX(const Operand& x) {
  if (!x.quantization.present() || !IsOneNumber(x.quantization) || IsFloat8(x.type) || BitsOf(x.type) > 16) {
    return std::nullopt;
  }
  Integers integers;
  IntegerRange(x.type, &integers.low, &integers.high);
  integers.scale = OneNumberOf(x.quantization.scale, 1.0f);
  integers.zero = OneNumberOf(x.quantization.zero_point, 0.0f);
  return integers;
}

}  // namespace

void DropRedundantClamps(const Chain& chain, const KernelTable& kernels, CompiledChain* compiled) {
  ChainSpec& spec = compiled->spec;
  IntegersOnTheWay way(kernels, compiled->sources);
  const std::optional<Integers> x = IntegersOfX(chain.x);
  if (spec.steps_before_at_once) ClampsOfSteps(spec.before, &way).LeaveOut(x);
  if (spec.steps_at_once) ClampsOfSteps(spec.behind, &way).LeaveOut(x);
  if (spec.steps_behind_at_once) ClampsOfSteps(spec.behind, &way).LeaveOut(std::nullopt);
}

}  // namespace normfuse::cpu
