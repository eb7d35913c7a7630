#include "plan/output_facts.h"

#include <algorithm>
#include <iterator>

namespace normfuse {
namespace {

// Mean and inverse deviation have the sum's shape with every normalised dimension 1, or [N, num_groups, 1, ...].
PartialShape StatisticsShape(const Plan& plan, PartialShape shape) {
  const int64_t groups = plan.normalization.num_groups;
  for (int i = 1; groups > 0 && i < shape.rank; ++i) shape.dims[i] = i == 1 ? groups : 1;
  for (int64_t axis : plan.normalization.axes) {
    const int64_t index = axis < 0 ? axis + shape.rank : axis;
    if (index >= 0 && index < shape.rank) shape.dims[index] = 1;
  }
  return shape;
}

TensorFacts Typed(const PartialShape& shape, DataType type) {
  TensorFacts facts;
  facts.present = true;
  facts.type = type;
  facts.rank = shape.rank;
  std::copy(std::begin(shape.dims), std::end(shape.dims), facts.dims);
  return facts;
}

}  // namespace

std::vector<TensorFacts> OutputFacts(const OperatorNode& node, const Plan& plan) {
  const PartialShape shape = KnownShapeOfD(plan);
  if (node.kind != OperatorKind::kFusedNormalization) return {Typed(shape, plan.y_type)};
  const TensorFacts statistics = Typed(StatisticsShape(plan, shape), plan.stats_type);
  return {Typed(shape, plan.y_type), Typed(shape, plan.sum_type), statistics, statistics};
}

}  // namespace normfuse
