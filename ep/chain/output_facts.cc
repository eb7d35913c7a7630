#include "chain/output_facts.h"

#include <algorithm>
#include <iterator>

namespace normfuse {
namespace {

// Mean and inverse deviation have the shape of d with every normalised dimension 1, or [N, num_groups, 1, ...].
PartialShape StatisticsShape(const Normalization& normalization, PartialShape shape) {
  const int64_t groups = normalization.num_groups;
  for (int i = 1; groups > 0 && i < shape.rank; ++i) shape.dims[i] = i == 1 ? groups : 1;
  for (int64_t axis : normalization.axes) {
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

std::vector<TensorFacts> OutputFacts(const Chain& chain) {
  std::vector<TensorFacts> facts;
  const auto tell = [&](int output, const PartialShape& shape, DataType type) {
    if (output == kNoOutput) return;
    const auto at = static_cast<size_t>(output);
    if (facts.size() <= at) facts.resize(at + 1);
    facts[at] = Typed(shape, type);
  };
  const PartialShape shape = KnownShapeOfD(chain);
  tell(chain.store.output, shape, chain.store.type);
  if (chain.store.dynamic) {
    tell(chain.store.dynamic->scale_output, PartialShape{0, {}}, DataType::kFloat32);
    tell(chain.store.dynamic->zero_point_output, PartialShape{0, {}}, chain.store.type);
    tell(chain.store.dynamic->value_output, shape, DataType::kFloat32);
  }
  ForEachStep(chain, [&](const Step& step) { tell(step.output, shape, step.type); });
  if (!chain.normalization) return facts;
  const Normalization& normalization = *chain.normalization;
  const PartialShape statistics = StatisticsShape(normalization, shape);
  tell(normalization.mean_output, statistics, normalization.stats_type);
  tell(normalization.inv_std_dev_output, statistics, normalization.stats_type);
  return facts;
}

}  // namespace normfuse
