#include "cpu/plan/cost_model.h"

#include <algorithm>

#include "cpu/kernels/kernel_list.h"
#include "cpu/plan/geometry.h"
#include "cpu/plan/pairs.h"

namespace normfuse::cpu {
namespace {

const Price& PriceOf(Activation activation) { return kActivations[static_cast<int>(activation)].price; }

bool IsByte(DataType type) { return type == DataType::kInt8 || type == DataType::kUint8; }

// Whether ONNX Runtime runs it in integers.
bool IsSoftmaxOfBytes(const Chain& chain) {
  return chain.has_softmax() && chain.normalization->method == Method::kSoftmax && chain.before.empty() &&
         chain.behind.empty() && IsByte(chain.x.type) && IsByte(chain.store.type);
}

// Whether an axis is that many dimensions from the end.
bool IsOver(const Normalization& n, int from_end, int rank) {
  return std::any_of(n.axes.begin(), n.axes.end(),
                     [=](int64_t axis) { return axis == -from_end || axis + from_end == rank; });
}

Price SoftmaxPrice(const Chain& chain) {
  const Normalization& n = *chain.normalization;
  const int rank = KnownShapeOfD(chain).rank;
  if (IsOverLast(n, rank)) return kSoftmaxPrice;
  return IsOver(n, 2, rank) ? kSoftmaxOfColumnsPrice : kSoftmaxAcrossPrice;
}

Price NormalizationPrice(const Chain& chain) {
  const Normalization& n = *chain.normalization;
  if (n.is_softmax()) return SoftmaxPrice(chain);
  if (!n.use_mean) return kRmsNormPrice;
  if (n.num_groups > 0) return kGroupNormPrice;
  if (n.epsilon_on == EpsilonOn::kStddev) return kMeanVariancePrice;
  const bool channels = !chain.behind.empty() && chain.behind.front().operand.align == Align::kChannel;
  return channels ? kInstanceNormPrice : kLayerNormPrice;
}

// Whether the scale or the zero point changes from element to element of a row.
bool IsAlongRow(const Quantization& q, int64_t rank) {
  if (q.scale.constant != nullptr && q.scale.constant->ElementCount() == 1) return false;
  return q.block_size > 0 || q.axis == -1 || q.axis == rank - 1;
}

Price DequantizationPrice(DataType stored, bool along_row) {
  if (IsFloat8(stored)) return along_row ? kDequantizeFloat8AlongRowPrice : kDequantizeFloat8Price;
  if (BitsOf(stored) < 8) return along_row ? kDequantizePackedAlongRowPrice : kDequantizePackedPrice;
  if (BitsOf(stored) > 8) return along_row ? kDequantizeWideAlongRowPrice : kDequantizeWidePrice;
  return along_row ? kDequantize8AlongRowPrice : kDequantize8Price;
}

bool GoesThroughBlocks(const Chain& chain, Activation activation) {
  if (chain.normalizes() || !chain.x.quantization.present()) return false;
  // Steps without an activation are done at once: see element_steps.h.
  if (activation == Activation::kIdentity && !IsByte(chain.x.type)) return false;
#define NORMFUSE_HAS_NO_KERNEL(kernel) &&activation != Activation::k##kernel
  return chain.store.quantization.present() NORMFUSE_FOLLOWING_ACTIVATIONS(NORMFUSE_HAS_NO_KERNEL);
#undef NORMFUSE_HAS_NO_KERNEL
}

bool OnlyDequantizes(const Chain& chain, Activation activation) {
  return !chain.normalizes() && chain.x.quantization.present() && !chain.store.quantization.present() &&
         activation == Activation::kIdentity;
}

// Whether the pair before a step does what the step says.
bool IsDoneByPair(const Step* before, const Step& step) {
  return before != nullptr && BoundsOfClippedPair(*before, step).has_value();
}

// The last activation among the steps, if there is one.
Activation ActivationOf(const Chain& chain) {
  Activation activation = Activation::kIdentity;
  const Step* before = nullptr;
  ForEachStep(chain, [&](const Step& step) {
    if (step.kind == StepKind::kActivate && !IsDoneByPair(before, step)) activation = step.activation.kind;
    before = &step;
  });
  return activation;
}

// Whether an operand has a value of its own for each index of a dimension of d.
bool VariesAlong(const Operand& operand, const PartialShape& d, int dim) {
  const PartialShape shape = KnownShape(operand);
  if (operand.align == Align::kChannel) return dim == std::min(1, d.rank - 1) && shape.rank > 0 && shape.dims[0] != 1;
  const int own = dim - (d.rank - shape.rank);
  return own >= 0 && shape.dims[own] != 1;
}

// Whether one of a chain without a normalisation has few elements along the last dimension, again and again: see geometry.h.
bool Repeats(const Chain& chain, const Operand& operand) {
  const PartialShape d = KnownShapeOfD(chain);
  return !chain.normalizes() && d.rank > 1 && VariesAlong(operand, d, d.rank - 1) && d.dims[d.rank - 2] != 1 &&
         !VariesAlong(operand, d, d.rank - 2);
}

// Whether an operand of a chain without a normalisation is read element by element with X, and no parameter.
bool IsWhole(const Chain& chain, const Operand& operand) {
  const PartialShape shape = KnownShape(operand);
  return !chain.normalizes() && !operand.constant() && shape.rank > 1 && shape.rank == chain.x.shape.rank &&
         shape.dims[shape.rank - 1] != 1 && !Repeats(chain, operand);
}

// Calls add(price, nodes), with how many nodes of ONNX Runtime's that is, for everything that the steps do. Scale and bias
// belong to what is before them.
template <class Add>
void ForEachPriceOfSteps(const Chain& chain, Add&& add) {
  const auto add_step = [&](const Step& step) {
    if (IsCombination(step.kind)) add(kAddPrice, 1);
    if (step.operand.is_kept) add(kDequantizeWidePrice, 1);
    if (step.kind == StepKind::kActivate) add(PriceOf(step.activation.kind), 1);
    if (step.kind == StepKind::kMask) add(kMaskPrice, 1);
    const bool is_pair = step.kind == StepKind::kFakeQuantize || step.kind == StepKind::kRequantize;
    if (is_pair) add(kFakeQuantizePrice, 2);
  };
  const UsualForm usual = UsualFormOf(chain);
  for (const Step& step : chain.before) add_step(step);
  const Step* before = nullptr;
  for (const Step& step : chain.behind) {
    const bool is_affine = usual.behind && step.kind != StepKind::kActivate;
    if (IsDoneByPair(before, step)) {
      add({PriceOf(Activation::kClip).ort, 0.0, 0.0, 0.0}, 1);
    } else if (!is_affine || IsWhole(chain, step.operand)) {
      add_step(step);
    }
    before = &step;
  }
}

}  // namespace

bool IsSoftmaxOfBlocks(const Chain& chain) {
  if (!chain.has_softmax() || !IsOverLast(*chain.normalization, KnownShapeOfD(chain).rank)) return false;
  const auto is_quantised = [](const Step& step) {
    return step.operand.quantization.present() || step.quantization.present();
  };
  return (chain.x.quantization.present() && BitsOf(chain.x.type) > 8) ||
         std::any_of(chain.before.begin(), chain.before.end(), is_quantised);
}

namespace {

// X and the operands that are tensors, where the shapes of all of them are known in rank.
std::vector<const Operand*> OperandsOf(const Chain& chain) {
  std::vector<const Operand*> operands = {&chain.x};
  ForEachStep(chain, [&](const Step& step) {
    if (step.operand.present() && !step.operand.is_kept) operands.push_back(&step.operand);
  });
  const auto is_unknown = [](const Operand* operand) { return KnownShape(*operand).rank < 0; };
  if (std::any_of(operands.begin(), operands.end(), is_unknown)) operands.clear();
  return operands;
}

}  // namespace

RunLengths KnownRunLengths(const Chain& chain) {
  RunLengths lengths;
  const PartialShape d = KnownShapeOfD(chain);
  const std::vector<const Operand*> operands = OperandsOf(chain);
  if (chain.normalizes() || d.rank < 0 || operands.empty()) return lengths;
  double run = 1;
  bool joined = false;
  int inner = -1;
  for (int dim = d.rank - 1; dim >= 0; --dim) {
    if (d.dims[dim] == 1) continue;
    const auto differs = [&](const Operand* operand) {
      return VariesAlong(*operand, d, inner) != VariesAlong(*operand, d, dim);
    };
    const auto begins_again = [&](const Operand* operand) {
      return !differs(operand) || VariesAlong(*operand, d, inner);
    };
    if (inner >= 0 && std::any_of(operands.begin(), operands.end(), differs)) {
      lengths.ort = std::min(lengths.ort, run);
      const auto lanes = static_cast<int64_t>(run);
      const bool joins = !joined && lanes <= kLongestPeriod && kBlock % lanes == 0 &&
                         std::all_of(operands.begin(), operands.end(), begins_again);
      if (!joins) {
        lengths.own = run;
        return lengths;
      }
      joined = true;
    }
    run *= static_cast<double>(d.dims[dim] < 0 ? kTypicalDimension : std::max<int64_t>(d.dims[dim], 1));
    inner = dim;
  }
  return lengths;
}

bool HasCheapRuns(const Chain& chain) {
  const PartialShape d = KnownShapeOfD(chain);
  const bool varies = std::any_of(chain.behind.begin(), chain.behind.end(), [&](const Step& step) {
    return step.operand.present() && VariesAlong(step.operand, d, d.rank - 1);
  });
  return UsualFormOf(chain).behind && chain.before.empty() && !varies && !chain.x.quantization.present() &&
         !chain.store.quantization.present();
}

bool IsOverLast(const Normalization& n, int rank) { return n.from_first_axis || IsOver(n, 1, rank); }

// Nothing has been measured for NEON.
double PriceOn(const Price& price, Isa isa) {
  if (isa == Isa::kAvx512) return price.avx512;
  return isa == Isa::kBaseline ? price.baseline : price.avx2;
}

void ForEachPrice(const Chain& chain, const std::function<void(const Price& price, int nodes)>& add) {
  const Activation activation = ActivationOf(chain);
  const auto dequantization = [&](const Operand& input) {
    if (!input.quantization.present()) return;
    if (input.by_cast) return add(kScaleIntegersPrice, 2);
    add(DequantizationPrice(input.type, IsAlongRow(input.quantization, input.shape.rank)), 1);
  };
  if (IsSoftmaxOfBytes(chain)) return add(kSoftmaxOfBytesPrice, 1);
  if (!Repeats(chain, chain.x)) dequantization(chain.x);
  for (const Step& step : chain.before) dequantization(step.operand);
  for (const Step& step : chain.behind) {
    if (IsWhole(chain, step.operand)) dequantization(step.operand);
  }
  if (GoesThroughBlocks(chain, activation)) add(kThroughBlocksPrice, 0);
  if (OnlyDequantizes(chain, activation) && chain.store.type == DataType::kFloat16) add(kDequantizeToHalfPrice, 0);
  if (chain.normalizes()) add(NormalizationPrice(chain), 1);
  if (IsSoftmaxOfBlocks(chain)) add(kSoftmaxOfBlocksPrice, 0);
  if (chain.normalizes() && chain.normalization->zero_for_nan) add(kZeroForNanPrice, 2);
  ForEachPriceOfSteps(chain, add);
  if (chain.store.quantization.present()) add(kQuantizePrice, 1);
  if (chain.store.quantization.present() && BitsOf(chain.store.type) == 16) add(kQuantize16Price, 0);
  if (chain.store.dynamic) add(kDynamicQuantizePrice, 1);
  if (chain.x.type == DataType::kFloat16) add(kHalfPrice, 0);
}

bool IsOfBytes(const Chain& chain) {
  const std::optional<Codes> codes = CodesOf(chain);
  return codes && codes->step == Codes::kX && IsByte(chain.x.type) && IsByte(chain.store.type);
}

namespace {

const Price& TablePrice(const Codes& codes) { return codes.is_wide() ? kWideCodeTablePrice : kCodeTablePrice; }

// Without a table.
double PerElement(const Chain& chain, Isa isa) {
  double total = 0;
  ForEachPrice(chain, [&](const Price& price, int) { total += PriceOn(price, isa); });
  // An activation of a chain saves reading and writing; the conversions and the addition have no such part in them.
  const bool activates = ActivationOf(chain) != Activation::kIdentity;
  if (chain.normalizes() && activates) total -= PriceOn(PriceOf(Activation::kIdentity), isa);
  if (!chain.normalizes() && !activates) total += PriceOn(PriceOf(Activation::kIdentity), isa);
  return total;
}

}  // namespace

std::optional<Codes> WorthwhileCodes(const Chain& chain, Isa isa) {
  std::optional<Codes> codes = CodesOf(chain);
  if (!codes || IsOfBytes(chain)) return codes;
  constexpr double kClearly = 1.25;
  const bool has_head = codes->step != Codes::kX;
  const double steps = PerElement(chain, isa) - (has_head ? PerElement(HeadOf(chain, *codes), isa) : 0.0);
  return steps > kClearly * PriceOn(TablePrice(*codes), isa) ? codes : std::nullopt;
}

double EstimateNanoseconds(const Chain& chain, Isa isa, int64_t elements) {
  const auto many = static_cast<double>(elements);
  if (IsOfBytes(chain)) return kOwnNodeNanoseconds + many * PriceOn(kByteTablePrice, isa);
  const std::optional<Codes> codes = WorthwhileCodes(chain, isa);
  if (!codes || (codes->is_wide() && elements < kLeastForWideCodes)) {
    return kOwnNodeNanoseconds + many * PerElement(chain, isa);
  }
  const double head = codes->step == Codes::kX ? 0.0 : PerElement(HeadOf(chain, *codes), isa);
  return kOwnNodeNanoseconds + many * (head + PriceOn(TablePrice(*codes), isa));
}

int WorthwhileThreads(double nanoseconds, int available) {
  const double most = nanoseconds / kHandOffNanoseconds;
  return std::max(1, std::min(available, most > 64 ? 64 : static_cast<int>(most)));
}

}  // namespace normfuse::cpu
