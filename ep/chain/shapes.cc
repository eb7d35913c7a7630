// Which shape the operands of a chain give together.
#include <algorithm>
#include <utility>

#include "chain/chain.h"

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

PartialShape KnownShape(const TensorRef& parameter) {
  PartialShape known;
  if (parameter.constant == nullptr) return known;
  const std::vector<int64_t>& dims = parameter.constant->dims;
  known.rank = static_cast<int>(dims.size());
  if (known.rank <= kMaxRank) std::copy(dims.begin(), dims.end(), known.dims);
  return known;
}

PartialShape KnownShape(const Operand& operand) {
  return operand.tensor.constant == nullptr ? operand.shape : KnownShape(operand.tensor);
}

Result ShapeOfD(const Chain& chain, const OperandShape& shape_of, PartialShape* d) {
  *d = PartialShape{0, {}};
  Result result;
  const auto error = [&](const std::string& text) {
    result = Result::Error(ErrorCode::kInvalidArgument, chain.name + ": " + text);
  };
  const auto widen = [&](const Operand& operand) {
    if (!operand.present() || operand.align != Align::kTrailing || !result.ok()) return;
    const PartialShape shape = shape_of(operand);
    if (shape.rank > kMaxRank) {
      error(operand.name + " has " + std::to_string(shape.rank) + " dimensions; at most 8 are supported");
    } else if (!Broadcast(shape, d)) {
      error(operand.name + " of shape " + shape.Text() + " does not broadcast with shape " + d->Text());
    }
  };
  const auto widen_channels = [&](const Operand& operand) {
    if (operand.present() && operand.align == Align::kChannel) WidenChannels(shape_of(operand), d);
  };
  widen(chain.x);
  for (const Step& step : chain.before) widen(step.operand);
  if (!chain.normalizes()) {
    for (const Step& step : chain.behind) widen(step.operand);
  }
  if (!result.ok()) return result;
  for (const Step& step : chain.before) widen_channels(step.operand);
  if (chain.normalizes()) return {};
  for (const Step& step : chain.behind) widen_channels(step.operand);
  return {};
}

PartialShape KnownShapeOfD(const Chain& chain) {
  PartialShape d;
  return ShapeOfD(chain, [](const Operand& operand) { return KnownShape(operand); }, &d).ok() ? d : PartialShape{};
}

}  // namespace normfuse
