#include "cpu/cost_model.h"

#include <algorithm>

#include "cpu/kernel_list.h"

namespace normfuse::cpu {
namespace {

// The column of a price (ep/spec/prices.toml) that holds for an instruction set; nothing has been measured for NEON.
double PriceOn(const Price& price, Isa isa) {
  if (isa == Isa::kAvx512) return price.avx512;
  return isa == Isa::kBaseline ? price.baseline : price.avx2;
}

const Price& PriceOf(Activation activation) { return kActivations[static_cast<int>(activation)].price; }

Price NormalizationPrice(const Plan& plan) {
  const Normalization& n = plan.normalization;
  if (!n.use_mean) return kRmsNormPrice;
  if (n.num_groups > 0) return kGroupNormPrice;
  if (n.epsilon_on == EpsilonOn::kStddev) return kMeanVariancePrice;
  return plan.affine_align == AffineAlign::kChannel ? kInstanceNormPrice : kLayerNormPrice;
}

// Whether scale or zero point change from element to element of a row.
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

bool GoesThroughBlocks(const Plan& plan) {
  if (plan.kind != PlanKind::kElementwise || !plan.x.quantization.present()) return false;
#define NORMFUSE_HAS_NO_KERNEL(kernel) &&plan.activation.kind != Activation::k##kernel
  return plan.y_quantization.present() NORMFUSE_FOLLOWING_ACTIVATIONS(NORMFUSE_HAS_NO_KERNEL);
#undef NORMFUSE_HAS_NO_KERNEL
}

bool OnlyDequantizes(const Plan& plan) {
  return plan.kind == PlanKind::kElementwise && plan.x.quantization.present() && !plan.y_quantization.present() &&
         plan.activation.kind == Activation::kIdentity;
}

// Calls add(price, is_node) for everything that the plan does.
template <class Add>
void ForEachStep(const Plan& plan, Add&& add) {
  const auto dequantization = [&](const Operand& input) {
    if (!input.quantization.present()) return;
    add(DequantizationPrice(input.type, IsAlongRow(input.quantization, input.shape.rank)), true);
  };
  dequantization(plan.x);
  dequantization(plan.residual);
  if (GoesThroughBlocks(plan)) add(kThroughBlocksPrice, false);
  if (OnlyDequantizes(plan) && plan.y_type == DataType::kFloat16) add(kDequantizeToHalfPrice, false);
  if (plan.residual.present()) add(kAddPrice, true);
  if (plan.residual_bias.tensor.present()) add(kAddPrice, true);
  if (plan.kind == PlanKind::kNormalization) add(NormalizationPrice(plan), true);
  if (plan.activation.kind != Activation::kIdentity) add(PriceOf(plan.activation.kind), true);
  if (plan.y_quantization.present()) add(kQuantizePrice, true);
  if (plan.x.type == DataType::kFloat16) add(kHalfPrice, false);
}

}  // namespace

double EstimateNanoseconds(const Plan& plan, Isa isa, int64_t elements) {
  double total = 0;
  ForEachStep(plan, [&](const Price& price, bool) { total += PriceOn(price, isa); });
  // An activation of a chain saves reading and writing; the conversions and the addition have no such part in them.
  if (plan.kind == PlanKind::kNormalization) {
    if (plan.activation.kind != Activation::kIdentity) total -= PriceOn(PriceOf(Activation::kIdentity), isa);
  } else if (plan.activation.kind == Activation::kIdentity) {
    total += PriceOn(PriceOf(Activation::kIdentity), isa);
  }
  return kOwnNodeNanoseconds + static_cast<double>(elements) * total;
}

double EstimateOrtNanoseconds(const Plan& plan, int64_t elements) {
  double total = 0;
  double nodes = 0;
  ForEachStep(plan, [&](const Price& price, bool is_node) {
    total += price.ort;
    nodes += is_node ? 1 : 0;
  });
  const double first = plan.kind == PlanKind::kNormalization ? kOrtNormalizationNanoseconds : kOrtOtherNodeNanoseconds;
  return first + std::max(nodes - 1, 0.0) * kOrtFurtherNodeNanoseconds + static_cast<double>(elements) * total;
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
