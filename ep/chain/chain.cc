#include "chain/chain.h"

#include <algorithm>
#include <utility>

namespace normfuse {
namespace {

// Reads steps one after the other while they are of the kinds that are asked for.
class Steps {
 public:
  explicit Steps(const std::vector<Step>& steps) : steps_(steps) {}
  const Step* Take(StepKind kind) {
    const bool fits = next_ < steps_.size() && steps_[next_].kind == kind;
    return fits ? &steps_[next_++] : nullptr;
  }
  const Operand* TakeOperand(StepKind kind) {
    const Step* step = Take(kind);
    return step == nullptr ? nullptr : &step->operand;
  }
  bool AtEnd() const { return next_ == steps_.size(); }

 private:
  const std::vector<Step>& steps_;
  size_t next_ = 0;
};

bool IsOneNumber(const TensorRef& tensor) {
  return !tensor.present() || (tensor.constant != nullptr && tensor.constant->ElementCount() == 1);
}

// Whether it is dequantised in each call.
bool IsDequantised(const Operand* operand) {
  return operand != nullptr && operand->quantization.present() && !operand->constant();
}

bool IsTrailing(const Operand* operand) { return operand == nullptr || operand->align == Align::kTrailing; }

}  // namespace

bool Normalization::Reduces(int64_t dim, int64_t rank) const {
  const auto is_from = [&](int64_t axis) { return dim >= (axis < 0 ? axis + rank : axis); };
  const auto is_at = [&](int64_t axis) { return dim == (axis < 0 ? axis + rank : axis); };
  return (from_first_axis && is_from(first_axis)) || std::any_of(axes.begin(), axes.end(), is_at);
}

bool IsOneNumber(const Quantization& quantization) {
  return quantization.block_size == 0 && IsOneNumber(quantization.scale) && IsOneNumber(quantization.zero_point);
}

bool ReadsX(const Chain& chain, const Operand& operand) {
  return operand.tensor.constant == nullptr && operand.tensor.input == chain.x.tensor.input;
}

bool DependsOnOneNumber(const Chain& chain, const Step& step) {
  const Operand& operand = step.operand;
  const bool is_number = operand.constant() && operand.tensor.constant->ElementCount() == 1;
  const bool reads_number = !operand.present() || is_number || ReadsX(chain, operand);
  return reads_number && step.output == kNoOutput && IsOneNumber(step.quantization) &&
         (!operand.quantization.present() || IsOneNumber(operand.quantization));
}

int StepTensors(const Chain& chain) {
  int tensors = 0;
  ForEachStep(chain, [&](const Step& step) {
    if (step.operand.present()) tensors += step.operand.quantization.present() ? kTensorsOfQuantized : 1;
    // What all of d is quantised with is kept beside the tensors.
    if (step.kind == StepKind::kFakeQuantize && !IsOneNumber(step.quantization)) tensors += kTensorsOfQuantized - 1;
  });
  return tensors;
}

Step Combine(StepKind kind, Operand operand) {
  Step step;
  step.kind = kind;
  step.operand = std::move(operand);
  return step;
}

Step Add(Operand operand) { return Combine(StepKind::kAdd, std::move(operand)); }

Step Mul(Operand operand) { return Combine(StepKind::kMul, std::move(operand)); }

Step Activate(const ActivationCall& activation, Operand slope) {
  Step step;
  step.kind = StepKind::kActivate;
  step.activation = activation;
  step.operand = std::move(slope);
  return step;
}

Step Requantise(Quantization quantization, DataType type, int output) {
  Step step;
  step.kind = StepKind::kRequantize;
  step.quantization = std::move(quantization);
  step.type = type;
  step.output = output;
  return step;
}

Step FakeQuantise(Quantization quantization, DataType type, bool saturate) {
  Step step;
  step.kind = StepKind::kFakeQuantize;
  step.quantization = std::move(quantization);
  step.type = type;
  step.saturate = saturate;
  return step;
}

Step Emit(DataType type, int output) {
  Step step;
  step.kind = StepKind::kEmit;
  step.type = type;
  step.output = output;
  return step;
}

Step Mask(Operand shown, bool shows, float fill) {
  Step step;
  step.kind = StepKind::kMask;
  step.operand = std::move(shown);
  step.mask = {shows, fill};
  return step;
}

const StepSpec& SpecOf(StepKind kind) {
  return *std::find_if(std::begin(kSteps), std::end(kSteps), [kind](const StepSpec& each) {
    return each.kind == kind && (each.has_operand || each.output >= 0);
  });
}

bool Takes(const StepSpec& spec, Argument argument) {
  const Argument* end = spec.arguments + spec.argument_count;
  return std::find(spec.arguments, end, argument) != end;
}

UsualForm UsualFormOf(const Chain& chain) {
  UsualForm form;
  Steps before(chain.before);
  form.residual = before.TakeOperand(StepKind::kAdd);
  form.residual_bias = before.TakeOperand(StepKind::kAdd);
  form.requantise = before.Take(StepKind::kRequantize);
  const bool emits_stored = form.requantise != nullptr && form.requantise->output != kNoOutput;
  form.sum = emits_stored ? form.requantise : before.Take(StepKind::kEmit);
  const bool emits_requantised = form.requantise != nullptr && form.sum != nullptr && form.sum != form.requantise;
  form.before = before.AtEnd() && IsTrailing(form.residual) && IsTrailing(form.residual_bias) && !emits_requantised;
  Steps behind(chain.behind);
  form.scale = behind.TakeOperand(StepKind::kMul);
  form.bias = behind.TakeOperand(StepKind::kAdd);
  form.activate = behind.Take(StepKind::kActivate);
  form.behind = behind.AtEnd() && (chain.normalizes() || !(IsDequantised(form.scale) || IsDequantised(form.bias)));
  return form;
}

std::shared_ptr<const ConstantTensor> Owned(const ConstantTensor& tensor) {
  auto copy = std::make_shared<ConstantTensor>(tensor);
  const size_t bytes = BytesFor(tensor.type, static_cast<size_t>(tensor.ElementCount()));
  const auto* from = static_cast<const unsigned char*>(tensor.data);
  copy->storage.assign(from, from + bytes);
  copy->data = copy->storage.data();
  return copy;
}

}  // namespace normfuse
