#include "plugin/concat_input.h"

#include <algorithm>

#include "chain/concatenation.h"
#include "cpu/cost_model.h"
#include "plugin/options.h"

namespace normfuse::plugin {
namespace {

// The Concat that makes X and X alone reads; null: there is none.
const GraphNode* ConcatOf(GraphView& graph, int x, int64_t* axis) {
  const GraphNode* node = graph.ProducerOf(x);
  if (node == nullptr || !node->Is("", "Concat") || !(node->provider.empty() || node->provider == kEpName)) {
    return nullptr;
  }
  const GraphValue& value = graph.value(x);
  const bool is_read_once = value.consumers.size() == 1 && value.consumers.front() != kNone && !value.is_output;
  return is_read_once && node->attributes->GetInt("axis", axis) ? node : nullptr;
}

bool IsPart(const TensorFacts& part, const TensorFacts& x) {
  return part.constant == nullptr && part.type == x.type && part.rank == x.rank;
}

// What it saves not to make X, less what it costs to come to each part, which take turns where something lies in front of the axis.
double GainNanoseconds(const GraphNode& concat, int64_t axis, const TensorFacts& x) {
  double turns = 1;
  double elements = 1;
  for (int i = 0; i < x.rank; ++i) {
    const auto dim = static_cast<double>(x.dims[i] < 0 ? cpu::kTypicalDimension : x.dims[i]);
    elements *= dim;
    if (i < axis) turns *= dim;
  }
  const double parts = turns * static_cast<double>(concat.inputs.size());
  return kOrtFurtherNodeNanoseconds + elements * kConcatPrice.ort + parts * (kOrtPartNanoseconds - kOwnPartNanoseconds);
}

}  // namespace

bool TakeConcat(GraphView& graph, bool takes_all, FoundChain* found) {
  if (!DependsOnElementsAlone(found->chain)) return false;
  const auto place = static_cast<size_t>(found->chain.x.tensor.input);
  const int value = found->inputs[place];
  int64_t axis = 0;
  const GraphNode* concat = ConcatOf(graph, value, &axis);
  if (concat == nullptr) return false;
  const TensorFacts& x = graph.Facts(value);
  if (axis < 0) axis += x.rank;
  const bool fits = axis >= 0 && axis < x.rank &&
                    std::all_of(
                        concat->inputs.begin(), concat->inputs.end(),
                        [&](int part) { return part != kNone && IsPart(graph.Facts(part), x); });
  if (!fits || (!takes_all && GainNanoseconds(*concat, axis, x) <= 0)) return false;
  found->parts = concat->inputs;
  found->axis = axis;
  found->inputs[place] = found->parts.front();
  found->inputs.insert(found->inputs.end(), found->parts.begin() + 1, found->parts.end());
  found->nodes.insert(found->nodes.begin(), graph.value(value).producer);
  found->description = "Concat -> " + found->description;
  return true;
}

}  // namespace normfuse::plugin
