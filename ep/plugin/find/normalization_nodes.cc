#include "plugin/find/normalization_nodes.h"

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
  return builder.graph().IsUsed(value) ? builder.AddOutput(value) : kNoOutput;
}

void ReadEpsilon(const GraphNode& node, const NormalizationSpec& spec, Normalization* normalization) {
  normalization->epsilon = spec.epsilon;
  normalization->epsilon_on = spec.epsilon_on;
  if (spec.epsilon_is_attribute) node.attributes->GetFloat("epsilon", &normalization->epsilon);
}

void ReadAxes(const GraphNode& node, const NormalizationSpec& spec, Normalization* normalization) {
  switch (spec.axes) {
    case NormalizationSpec::Axes::kFrom:
      normalization->from_first_axis = true;
      normalization->first_axis = spec.first_axis;
      if (*spec.axes_attribute != '\0') node.attributes->GetInt(spec.axes_attribute, &normalization->first_axis);
      return;
    case NormalizationSpec::Axes::kSingle: {
      int64_t axis = spec.first_axis;
      node.attributes->GetInt(spec.axes_attribute, &axis);
      normalization->axes.assign(1, axis);
      return;
    }
    case NormalizationSpec::Axes::kList:
      if (node.attributes->GetInts(spec.axes_attribute, &normalization->axes)) return;
      normalization->axes.assign(spec.axis_list, spec.axis_list + spec.axis_count);
      return;
    case NormalizationSpec::Axes::kGroups:
      node.attributes->GetInt(spec.axes_attribute, &normalization->num_groups);
  }
}

// Scale and bias meet d as `align` says.
void ReadInput(ChainBuilder& builder, NormalizationTensor input, int value, Align align) {
  const auto add_before = [&](const char* name) {
    if (value != kNone) builder.before().push_back(Add(builder.ReadOperand(value, name)));
  };
  switch (input) {
    case NormalizationTensor::kResidual:
      return add_before("residual");
    case NormalizationTensor::kResidualBias:
      return add_before("residual_bias");
    case NormalizationTensor::kScale:
      return builder.ReadStep(StepKind::kMul, value, "scale", align);
    case NormalizationTensor::kBias:
      return builder.ReadStep(StepKind::kAdd, value, "bias", align);
    default:
      return;  // X is read before, and no standard operator has any other
  }
}

void ReadOutput(ChainBuilder& builder, FusedNormalizationOutput output, int value, int* y) {
  if (output == FusedNormalizationOutput::kY) {
    *y = value;
    return;
  }
  const int exported = Export(builder, value);
  if (exported == kNoOutput) return;
  const DataType type = builder.graph().Facts(value).type;
  if (output == FusedNormalizationOutput::kSum) {
    builder.before().push_back(Emit(type, exported));
    return;
  }
  Normalization& norm = *builder.chain().normalization;
  (output == FusedNormalizationOutput::kMean ? norm.mean_output : norm.inv_std_dev_output) = exported;
  norm.stats_type = type;
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
  Normalization& norm = builder.chain().normalization.emplace();
  ReadEpsilon(ports.node, spec, &norm);
  ReadAxes(ports.node, spec, &norm);
  norm.method = spec.method;
  norm.use_mean = spec.use_mean;
  const auto* end = spec.inputs + spec.input_count;
  const bool has_residual = std::find(spec.inputs, end, NormalizationTensor::kResidual) != end;
  for (int i = 0; i < spec.input_count; ++i) {
    const int value = ports.in(static_cast<size_t>(i));
    if (spec.inputs[i] == NormalizationTensor::kX) {
      builder.ReadX(value, with_residual && !has_residual, with_residual && norm.is_softmax());
    } else {
      ReadInput(builder, spec.inputs[i], value, spec.affine_align);
    }
  }
  for (int i = 0; i < spec.output_count; ++i) {
    ReadOutput(builder, spec.outputs[i], ports.out(static_cast<size_t>(i)), y);
  }
  if (norm.method == Method::kSoftmax) norm.zero_for_nan = builder.TakeNanToZero(y);
  return std::nullopt;
}

}  // namespace normfuse::plugin
