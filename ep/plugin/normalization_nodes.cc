#include "plugin/normalization_nodes.h"

#include <algorithm>

namespace normfuse::plugin {
namespace {

using Outcome = std::optional<Declined>;

struct Ports {
  GraphView& graph;
  const GraphNode& node;

  explicit Ports(ChainBuilder& builder) : graph(builder.graph()), node(builder.anchor()) {}
  int in(size_t position) const { return graph.Input(node, position); }
  int out(size_t position) const { return graph.Output(node, position); }
};

// stash_type says in which type the statistics are computed; ours are float32.
Outcome CheckStashType(const GraphNode& node) {
  int64_t stash_type = 1;
  node.attributes->GetInt("stash_type", &stash_type);
  if (stash_type == 1) return std::nullopt;
  return Decline(Reason::kAttributeValue, {{"attribute", "stash_type"},
                                           {"node", node.name},
                                           {"value", std::to_string(stash_type)},
                                           {"supported", "1 (float32)"}});
}

// Output `position` of the node becomes an output of the chain if anything reads it.
int Export(ChainBuilder& builder, int value) {
  return builder.graph().IsUsed(value) ? builder.AddOutput(value) : Plan::kNoOutput;
}

void ReadEpsilon(const GraphNode& node, const NormalizationSpec& spec, Normalization* normalization) {
  normalization->epsilon = spec.epsilon;
  normalization->epsilon_on = static_cast<EpsilonOn>(spec.epsilon_on);
  if (spec.epsilon_is_attribute) node.attributes->GetFloat("epsilon", &normalization->epsilon);
}

void ReadAxes(const GraphNode& node, const NormalizationSpec& spec, Normalization* normalization) {
  switch (spec.axes) {
    case NormalizationSpec::Axes::kFrom:
      normalization->from_first_axis = true;
      normalization->first_axis = spec.first_axis;
      if (*spec.axes_attribute != '\0') node.attributes->GetInt(spec.axes_attribute, &normalization->first_axis);
      return;
    case NormalizationSpec::Axes::kList:
      if (node.attributes->GetInts(spec.axes_attribute, &normalization->axes)) return;
      normalization->axes.assign(spec.axis_list, spec.axis_list + spec.axis_count);
      return;
    case NormalizationSpec::Axes::kGroups:
      node.attributes->GetInt(spec.axes_attribute, &normalization->num_groups);
  }
}

void ReadInput(ChainBuilder& builder, FusedNormalizationInput input, int value, bool with_residual) {
  Plan& plan = builder.plan();
  switch (input) {
    case FusedNormalizationInput::kX:
      return builder.ReadX(value, with_residual);
    case FusedNormalizationInput::kResidual:
      plan.residual = builder.ReadOperand(value);
      return;
    case FusedNormalizationInput::kResidualBias:
      plan.residual_bias = builder.ReadOperand(value);
      return;
    case FusedNormalizationInput::kScale:
      plan.scale = builder.ReadOperand(value);
      return;
    case FusedNormalizationInput::kBias:
      plan.bias = builder.ReadOperand(value);
      return;
    default:
      return;  // no standard operator has any other
  }
}

void ReadOutput(ChainBuilder& builder, FusedNormalizationOutput output, int value, int* y) {
  if (output == FusedNormalizationOutput::kY) {
    *y = value;
    return;
  }
  Plan& plan = builder.plan();
  const int exported = Export(builder, value);
  if (exported == Plan::kNoOutput) return;
  const DataType type = builder.graph().Facts(value).type;
  if (output == FusedNormalizationOutput::kSum) {
    plan.sum_output = exported;
    plan.sum_type = type;
    return;
  }
  (output == FusedNormalizationOutput::kMean ? plan.mean_output : plan.inv_std_dev_output) = exported;
  plan.stats_type = type;
}

}  // namespace

const NormalizationSpec* FindNormalization(const GraphNode& node) {
  for (const NormalizationSpec& row : kNormalizations) {
    const bool in_versions = node.since_version >= row.since && node.since_version <= row.until;
    if (in_versions && node.Is(row.domain, row.op_type)) return &row;
  }
  return nullptr;
}

std::optional<Declined> ReadNormalization(const NormalizationSpec& spec, ChainBuilder& builder, bool with_residual,
                                          int* y) {
  const Ports ports(builder);
  if (Outcome declined = CheckStashType(ports.node)) return declined;
  Plan& plan = builder.plan();
  ReadEpsilon(ports.node, spec, &plan.normalization);
  ReadAxes(ports.node, spec, &plan.normalization);
  plan.normalization.use_mean = spec.use_mean;
  plan.affine_align = static_cast<AffineAlign>(spec.affine_align);
  const auto* end = spec.inputs + spec.input_count;
  const bool has_residual = std::find(spec.inputs, end, FusedNormalizationInput::kResidual) != end;
  for (int i = 0; i < spec.input_count; ++i) {
    ReadInput(builder, spec.inputs[i], ports.in(static_cast<size_t>(i)), with_residual && !has_residual);
  }
  for (int i = 0; i < spec.output_count; ++i) {
    ReadOutput(builder, spec.outputs[i], ports.out(static_cast<size_t>(i)), y);
  }
  return std::nullopt;
}

}  // namespace normfuse::plugin
