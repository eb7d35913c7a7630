#include "plugin/find/chain_parts.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "chain/parts.h"
#include "cpu/plan/cost_model.h"
#include "plugin/host/options.h"

namespace normfuse::plugin {
namespace {

bool IsFree(const GraphNode& node) { return node.provider.empty() || node.provider == kEpName; }

// The node's axis from the front; nothing: there is none of that rank.
std::optional<int64_t> AxisOf(const GraphNode& node, int64_t by_default, int rank) {
  int64_t axis = by_default;
  if (!node.attributes->GetInt("axis", &axis) && by_default < 0) return std::nullopt;
  if (axis < 0) axis += rank;
  return axis >= 0 && axis < rank ? std::optional(axis) : std::nullopt;
}

// What it saves not to make the whole tensor, less what it costs to come to each part: these take turns where something lies in
// front of the axis.
double GainNanoseconds(const TensorFacts& whole, int64_t axis, size_t parts) {
  double turns = 1;
  double elements = 1;
  for (int i = 0; i < whole.rank; ++i) {
    const auto dim = static_cast<double>(whole.dims[i] < 0 ? kTypicalDimension : whole.dims[i]);
    elements *= dim;
    if (i < axis) turns *= dim;
  }
  const double price = kOrtPartNanoseconds - kOwnPartNanoseconds;
  return kOrtFurtherNodeNanoseconds + elements * kConcatPrice.ort + turns * static_cast<double>(parts) * price;
}

void TakeConcat(GraphView& graph, bool takes_all, FoundChain* found) {
  const auto place = static_cast<size_t>(found->chain.x.tensor.input);
  const int value = found->inputs[place];
  const GraphNode* concat = graph.ProducerOf(value);
  if (concat == nullptr || !concat->Is("", "Concat") || !IsFree(*concat) || graph.OnlyReader(value) == kNone) return;
  const TensorFacts& x = graph.Facts(value);
  const std::optional<int64_t> axis = AxisOf(*concat, -1, x.rank);
  const bool fits = axis && std::all_of(concat->inputs.begin(), concat->inputs.end(), [&](int part) {
                      if (part == kNone) return false;
                      const TensorFacts& facts = graph.Facts(part);
                      return facts.constant == nullptr && facts.type == x.type && facts.rank == x.rank;
                    });
  if (!fits || (!takes_all && GainNanoseconds(x, *axis, concat->inputs.size()) <= 0)) return;
  found->x_parts = concat->inputs;
  found->axis = *axis;
  found->inputs[place] = found->x_parts.front();
  found->inputs.insert(found->inputs.end(), found->x_parts.begin() + 1, found->x_parts.end());
  found->nodes.insert(found->nodes.begin(), graph.value(value).producer);
  found->description = "Concat -> " + found->description;
}

// The sizes that a Split names; none where it leaves them to the number of its outputs.
std::vector<int64_t> SizesOf(GraphView& graph, const GraphNode& split) {
  std::vector<int64_t> sizes;
  const int input = graph.Input(split, 1);
  if (input == kNone) {
    split.attributes->GetInts("split", &sizes);
    return sizes;
  }
  const ConstantTensor* constant = graph.Facts(input).constant.get();
  if (constant == nullptr || constant->type != DataType::kInt64) return sizes;
  sizes.resize(static_cast<size_t>(constant->ElementCount()));
  std::memcpy(sizes.data(), constant->data, sizes.size() * sizeof(int64_t));
  return sizes;
}

void TakeSplit(GraphView& graph, bool takes_all, FoundChain* found) {
  const auto place = static_cast<size_t>(found->chain.store.output);
  const int value = found->outputs[place];
  const int index = graph.OnlyReader(value);
  if (index == kNone) return;
  const GraphNode& split = graph.node(index);
  if (!split.Is("", "Split") || !IsFree(split)) return;
  const TensorFacts& y = graph.Facts(value);
  const std::optional<int64_t> axis = AxisOf(split, 0, y.rank);
  if (!axis || (!found->x_parts.empty() && *axis != found->axis)) return;
  std::vector<int64_t> sizes = SizesOf(graph, split);
  const bool fits =
      !sizes.empty() && sizes.size() == split.outputs.size() &&
      std::all_of(sizes.begin(), sizes.end(), [](int64_t size) { return size >= 0; }) &&
      std::all_of(split.outputs.begin(), split.outputs.end(), [&](int part) { return graph.IsUsed(part); });
  if (!fits || (!takes_all && GainNanoseconds(y, *axis, sizes.size()) <= 0)) return;
  found->y_parts = split.outputs;
  found->sizes = std::move(sizes);
  found->axis = *axis;
  found->outputs[place] = found->y_parts.front();
  found->outputs.insert(found->outputs.end(), found->y_parts.begin() + 1, found->y_parts.end());
  found->nodes.push_back(index);
  found->description += " -> Split";
}

}  // namespace

void TakeParts(GraphView& graph, bool takes_all, FoundChain* found) {
  const Chain& chain = found->chain;
  const bool is_constant = chain.x.tensor.input == TensorRef::kAbsent;
  if (is_constant || chain.store.output == kNoOutput || !DependsOnElementsAlone(chain)) return;
  TakeConcat(graph, takes_all, found);
  TakeSplit(graph, takes_all, found);
}

}  // namespace normfuse::plugin
