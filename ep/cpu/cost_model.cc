#include "cpu/cost_model.h"

#include <algorithm>

namespace normfuse::cpu {
namespace {

// Nanoseconds per element as benchmarks/costs.py prints them: AMD EPYC (Zen 4), one thread, float32 in the level-2
// cache, ONNX Runtime 1.31.1. The ratios between the columns are what decides, and vary little between machines.
struct Cost {
  double ort;
  double avx512;
  double avx2;  // also taken for NEON, where nothing has been measured
  double baseline;

  double Of(Isa isa) const {
    if (isa == Isa::kAvx512) return avx512;
    return isa == Isa::kBaseline ? baseline : avx2;
  }
};

// Reading a tensor and writing one.
constexpr Cost kMove = {0.07, 0.08, 0.08, 0.11};

// Activations alone, from one tensor to another.
constexpr Cost CostOf(Activation activation) {
  switch (activation) {
    case Activation::kIdentity:
      return kMove;
    case Activation::kRelu:
      return {0.07, 0.09, 0.09, 0.12};
    case Activation::kLeakyRelu:
      return {0.15, 0.09, 0.10, 0.19};
    case Activation::kPRelu:
      return {3.2, 0.17, 0.13, 0.25};
    case Activation::kElu:
      return {1.8, 0.27, 0.37, 1.34};
    case Activation::kCelu:
      return {2.0, 0.58, 0.95, 4.3};
    case Activation::kSelu:
      return {1.8, 0.32, 0.46, 1.5};
    case Activation::kGelu:
      return {0.62, 0.30, 0.46, 3.4};
    case Activation::kGeluTanh:
      return {0.47, 0.34, 0.51, 3.7};
    case Activation::kSwish:
      return {0.28, 0.20, 0.43, 1.55};
    case Activation::kHardSwish:
      return {0.31, 0.09, 0.09, 0.47};
    case Activation::kHardSigmoid:
      return {0.14, 0.10, 0.09, 0.45};
    case Activation::kSigmoid:
      return {0.27, 0.25, 0.41, 1.56};
    case Activation::kTanh:
      return {0.26, 0.25, 0.40, 1.33};
    case Activation::kScaledTanh:  // in ONNX two multiplications around Tanh
      return {0.40, 0.30, 0.50, 1.5};
    case Activation::kSoftplus:
    case Activation::kParametricSoftplus:
      return {10.9, 0.58, 1.2, 4.2};
    case Activation::kSoftsign:
      return {0.21, 0.12, 0.12, 0.23};
    case Activation::kThresholdedRelu:
      return {0.11, 0.08, 0.08, 0.13};
    case Activation::kShrink:
      return {5.6, 0.09, 0.12, 0.29};
    case Activation::kMish:
      return {11.3, 0.33, 0.51, 2.0};
    case Activation::kClip:
      return {0.10, 0.09, 0.09, 0.16};
    case Activation::kLinear:  // in ONNX a multiplication and an addition
      return {0.15, 0.09, 0.09, 0.16};
  }
  return kMove;
}

// Normalisations alone.
constexpr Cost kLayerNorm = {0.46, 0.12, 0.15, 0.35};
constexpr Cost kRmsNorm = {0.22, 0.12, 0.14, 0.33};
constexpr Cost kInstanceNorm = {0.31, 0.12, 0.13, 0.24};
constexpr Cost kGroupNorm = {1.18, 0.17, 0.18, 0.28};
constexpr Cost kMeanVariance = {0.55, 0.11, 0.13, 0.25};

// The other steps of a chain: on the left a node of its own, on the right what they add to the pass.
constexpr Cost kAdd = {0.12, 0.04, 0.04, 0.09};
// DequantizeLinear by the bits of what it reads, and where the scale changes from element to element, which ONNX Runtime
// computes one by one.
constexpr Cost kDequantize8 = {0.11, 0.0, 0.0, 0.38};
constexpr Cost kDequantize8AlongRow = {1.4, 0.05, 0.06, 0.42};
constexpr Cost kDequantizeWide = {0.12, 0.08, 0.08, 0.3};
constexpr Cost kDequantizeWideAlongRow = {1.4, 0.08, 0.1, 0.3};
constexpr Cost kDequantizePacked = {0.9, 1.1, 1.1, 1.5};
constexpr Cost kDequantizePackedAlongRow = {1.5, 1.1, 1.1, 1.5};
constexpr Cost kDequantizeFloat8 = {1.4, 0.34, 0.34, 0.6};
constexpr Cost kDequantizeFloat8AlongRow = {1.9, 0.34, 0.34, 0.6};
constexpr Cost kDequantizeToHalf = {1.6, 0.08, 0.12, 0.9};  // on top
constexpr Cost kQuantize = {0.11, 0.09, 0.18, 1.06};
// What is quantised at both ends passes through blocks of float32, but for the activations of apply-inl.h.
constexpr Cost kThroughBlocks = {0.0, 0.11, 0.15, 0.15};
// Float16 kernels of ONNX Runtime are float32 ones between conversions.
constexpr Cost kHalf = {0.2, 0.05, 0.05, 0.5};

// A call without its elements, above an empty session, which has the call of one node in it. A further node of ONNX
// Runtime's costs another call and the allocation of what stands between the two.
constexpr double kOrtNormalization = 270;
constexpr double kOrtOtherNode = 50;
constexpr double kOrtFurtherNode = 400;
constexpr double kOwnNode = 500;

// Handing work to another thread of the session's pool and waiting for it: 0.5 to 3.8 us while the pool's threads spin,
// as they do between the nodes of one run. The rest is for those that have to wake up.
constexpr double kHandOffNanoseconds = 5000;

Cost NormalizationCost(const Plan& plan) {
  const Normalization& n = plan.normalization;
  if (!n.use_mean) return kRmsNorm;
  if (n.num_groups > 0) return kGroupNorm;
  if (n.epsilon_on == EpsilonOn::kStddev) return kMeanVariance;
  return plan.affine_align == AffineAlign::kChannel ? kInstanceNorm : kLayerNorm;
}

// Whether scale or zero point change from element to element of a row.
bool IsAlongRow(const Quantization& q, int64_t rank) {
  if (q.scale.constant != nullptr && q.scale.constant->ElementCount() == 1) return false;
  return q.block_size > 0 || q.axis == -1 || q.axis == rank - 1;
}

Cost DequantizationCost(DataType stored, bool along_row) {
  if (IsFloat8(stored)) return along_row ? kDequantizeFloat8AlongRow : kDequantizeFloat8;
  if (BitsOf(stored) < 8) return along_row ? kDequantizePackedAlongRow : kDequantizePacked;
  if (BitsOf(stored) > 8) return along_row ? kDequantizeWideAlongRow : kDequantizeWide;
  return along_row ? kDequantize8AlongRow : kDequantize8;
}

bool GoesThroughBlocks(const Plan& plan) {
  if (plan.kind != PlanKind::kElementwise || !plan.x.quantization.present()) return false;
  switch (plan.activation.kind) {
    case Activation::kIdentity:
    case Activation::kRelu:
    case Activation::kGelu:
    case Activation::kSwish:
      return false;
    default:
      return plan.y_quantization.present();
  }
}

bool OnlyDequantizes(const Plan& plan) {
  return plan.kind == PlanKind::kElementwise && plan.x.quantization.present() && !plan.y_quantization.present() &&
         plan.activation.kind == Activation::kIdentity;
}

// Calls add(cost, is_node) for everything that the plan does.
template <class Add>
void ForEachStep(const Plan& plan, Add&& add) {
  const auto dequantization = [&](const Operand& input) {
    if (!input.quantization.present()) return;
    add(DequantizationCost(input.type, IsAlongRow(input.quantization, input.shape.rank)), true);
  };
  dequantization(plan.x);
  dequantization(plan.residual);
  if (GoesThroughBlocks(plan)) add(kThroughBlocks, false);
  if (OnlyDequantizes(plan) && plan.y_type == DataType::kFloat16) add(kDequantizeToHalf, false);
  if (plan.residual.present()) add(kAdd, true);
  if (plan.residual_bias.tensor.present()) add(kAdd, true);
  if (plan.kind == PlanKind::kNormalization) add(NormalizationCost(plan), true);
  if (plan.activation.kind != Activation::kIdentity) add(CostOf(plan.activation.kind), true);
  if (plan.y_quantization.present()) add(kQuantize, true);
  if (plan.x.type == DataType::kFloat16) add(kHalf, false);
}

}  // namespace

double EstimateNanoseconds(const Plan& plan, Isa isa, int64_t elements) {
  double total = 0;
  ForEachStep(plan, [&](const Cost& cost, bool) { total += cost.Of(isa); });
  // An activation of a chain saves reading and writing; the conversions and the addition have no such part in them.
  if (plan.kind == PlanKind::kNormalization) {
    if (plan.activation.kind != Activation::kIdentity) total -= kMove.Of(isa);
  } else if (plan.activation.kind == Activation::kIdentity) {
    total += kMove.Of(isa);
  }
  return kOwnNode + static_cast<double>(elements) * total;
}

double EstimateOrtNanoseconds(const Plan& plan, int64_t elements) {
  double total = 0;
  double nodes = 0;
  ForEachStep(plan, [&](const Cost& cost, bool is_node) {
    total += cost.ort;
    nodes += is_node ? 1 : 0;
  });
  const double first = plan.kind == PlanKind::kNormalization ? kOrtNormalization : kOrtOtherNode;
  return first + std::max(nodes - 1, 0.0) * kOrtFurtherNode + static_cast<double>(elements) * total;
}

int WorthwhileThreads(double nanoseconds, int available) {
  const double most = nanoseconds / kHandOffNanoseconds;
  return std::max(1, std::min(available, most > 64 ? 64 : static_cast<int>(most)));
}

}  // namespace normfuse::cpu

namespace normfuse {

namespace {

int64_t TypicalElements(const Plan& plan) {
  const PartialShape d = KnownShapeOfD(plan);
  int64_t elements = d.rank < 0 ? kTypicalDimension * kTypicalDimension : 1;
  for (int i = 0; i < d.rank; ++i) elements *= d.dims[i] < 0 ? kTypicalDimension : d.dims[i];
  return elements;
}

}  // namespace

double ExpectedGain(const Plan& plan, cpu::Isa isa) {
  const int64_t elements = TypicalElements(plan);
  return cpu::EstimateOrtNanoseconds(plan, elements) - cpu::EstimateNanoseconds(plan, isa, elements);
}

}  // namespace normfuse
