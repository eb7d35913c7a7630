// Which shape the operands of a plan give together.
#include <algorithm>
#include <utility>

#include "plan/plan.h"

namespace normfuse {
namespace {

// What is known of a dimension in which tensors of sizes `a` and `b` meet; -1 = not known. False if they do not fit.
bool BroadcastDim(int64_t a, int64_t b, int64_t* size) {
  if (a == 1 || b == 1) {
    *size = a == 1 ? b : a;
    return true;
  }
  *size = std::max(a, b);
  return a == b || a < 0 || b < 0;
}

// Widens `shape` by `other`, both as far as they are known. False if they do not fit.
bool Broadcast(const PartialShape& other, PartialShape* shape) {
  if (other.rank < 0 || shape->rank < 0) {
    shape->rank = -1;
    return true;
  }
  PartialShape result;
  result.rank = std::max(shape->rank, other.rank);
  for (int i = 1; i <= result.rank; ++i) {
    const int64_t a = i <= shape->rank ? shape->dims[shape->rank - i] : 1;
    const int64_t b = i <= other.rank ? other.dims[other.rank - i] : 1;
    if (!BroadcastDim(a, b, &result.dims[result.rank - i])) return false;
  }
  *shape = result;
  return true;
}

PartialShape Known(const TensorRef& ref, const PartialShape& shape) {
  if (ref.constant == nullptr) return shape;
  PartialShape known;
  known.rank = static_cast<int>(ref.constant->dims.size());
  if (known.rank <= kMaxRank) std::copy(ref.constant->dims.begin(), ref.constant->dims.end(), known.dims);
  return known;
}

// A parameter along dimension 1. One that does not fit is refused where it is bound.
void WidenChannels(const PartialShape& parameter, PartialShape* d) {
  int64_t size = 0;
  if (parameter.rank == 1 && d->rank >= 2 && BroadcastDim(d->dims[1], parameter.dims[0], &size)) d->dims[1] = size;
}

}  // namespace

bool PartialShape::IsKnown() const {
  return rank >= 0 && rank <= kMaxRank && std::all_of(dims, dims + rank, [](int64_t dim) { return dim >= 0; });
}

std::string PartialShape::Text() const {
  std::string text = "[";
  for (int i = 0; i < std::min(rank, kMaxRank); ++i) {
    text += (i > 0 ? ", " : "") + (dims[i] < 0 ? "?" : std::to_string(dims[i]));
  }
  return text + "]";
}

OperandShapes KnownShapes(const Plan& plan) {
  const auto of = [](const Operand& operand) { return Known(operand.tensor, operand.shape); };
  return {of(plan.x),     of(plan.residual), of(plan.residual_bias),
          of(plan.scale), of(plan.bias),     Known(plan.activation.slope, plan.activation.slope_shape)};
}

Result ShapeOfD(const Plan& plan, const OperandShapes& shapes, PartialShape* d) {
  const auto error = [&](const std::string& text) {
    return Result::Error(ErrorCode::kInvalidArgument, plan.name + ": " + text);
  };
  struct Part {
    const char* name;
    bool present;
    const PartialShape& shape;
  };
  const bool elementwise = plan.kind == PlanKind::kElementwise;
  const bool trailing = elementwise && plan.affine_align == AffineAlign::kTrailing;
  const Part parts[] = {{"X", true, shapes.x},
                        {"residual", plan.residual.present(), shapes.residual},
                        {"residual_bias", plan.residual_bias.present(), shapes.residual_bias},
                        {"scale", trailing && plan.scale.present(), shapes.scale},
                        {"bias", trailing && plan.bias.present(), shapes.bias},
                        {"slope", elementwise && plan.activation.slope.present(), shapes.slope}};
  *d = PartialShape{0, {}};
  for (const Part& part : parts) {
    if (!part.present) continue;
    if (part.shape.rank > kMaxRank) {
      return error(std::string(part.name) + " has " + std::to_string(part.shape.rank) +
                   " dimensions; at most 8 are supported");
    }
    if (!Broadcast(part.shape, d)) {
      return error(std::string(part.name) + " of shape " + part.shape.Text() + " does not broadcast with shape " +
                   d->Text());
    }
  }
  if (elementwise && plan.affine_align == AffineAlign::kChannel) {
    if (plan.scale.present()) WidenChannels(shapes.scale, d);
    if (plan.bias.present()) WidenChannels(shapes.bias, d);
  }
  return {};
}

PartialShape KnownShapeOfD(const Plan& plan) {
  PartialShape d;
  return ShapeOfD(plan, KnownShapes(plan), &d).ok() ? d : PartialShape{};
}

}  // namespace normfuse
