#include "plan/output_facts.h"

#include <algorithm>

namespace normfuse {
namespace {

// The shape of X + residual: both are broadcast, from the last dimension.
TensorFacts SumShape(const OperatorNode& node, const Plan& plan) {
  TensorFacts x = node.inputs[0];
  if (!plan.residual.present()) return x;
  TensorFacts residual = node.inputs[static_cast<size_t>(FusedNormalizationInput::kResidual)];
  TensorFacts sum;
  if (x.rank < 0 || residual.rank < 0 || residual.rank > kMaxRank) return sum;
  if (x.rank < residual.rank) std::swap(x, residual);
  sum.rank = x.rank;
  const int missing = x.rank - residual.rank;
  for (int i = 0; i < x.rank; ++i) {
    const int64_t a = x.dims[i];
    const int64_t b = i < missing ? 1 : residual.dims[i - missing];
    sum.dims[i] = a == 1 || (a < 0 && b > 1) ? b : a;
  }
  return sum;
}

// Mean and inverse deviation have the sum's shape with every normalised dimension 1, or [N, num_groups, 1, ...].
TensorFacts StatisticsShape(const Plan& plan, TensorFacts shape) {
  const int64_t groups = plan.normalization.num_groups;
  for (int i = 1; groups > 0 && i < shape.rank; ++i) shape.dims[i] = i == 1 ? groups : 1;
  for (int64_t axis : plan.normalization.axes) {
    const int64_t index = axis < 0 ? axis + shape.rank : axis;
    if (index >= 0 && index < shape.rank) shape.dims[index] = 1;
  }
  return shape;
}

TensorFacts Typed(TensorFacts shape, DataType type) {
  shape.present = true;
  shape.type = type;
  shape.constant = nullptr;
  return shape;
}

}  // namespace

std::vector<TensorFacts> OutputFacts(const OperatorNode& node, const Plan& plan) {
  const TensorFacts shape = SumShape(node, plan);
  if (node.kind != OperatorKind::kFusedNormalization) return {Typed(shape, plan.y_type)};
  const TensorFacts statistics = Typed(StatisticsShape(plan, shape), plan.stats_type);
  return {Typed(shape, plan.y_type), Typed(shape, plan.sum_type), statistics, statistics};
}

}  // namespace normfuse
