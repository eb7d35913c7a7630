#include "plugin/normalization_nodes.h"

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

void ReadEpsilon(const GraphNode& node, Plan& plan, float fallback) {
  plan.normalization.epsilon = fallback;
  node.attributes->GetFloat("epsilon", &plan.normalization.epsilon);
}

void ReadLastAxes(const GraphNode& node, Plan& plan) {
  plan.normalization.from_first_axis = true;
  plan.normalization.first_axis = -1;
  node.attributes->GetInt("axis", &plan.normalization.first_axis);
}

void ExportStatistics(ChainBuilder& builder, int mean, int inv_std_dev) {
  Plan& plan = builder.plan();
  plan.mean_output = Export(builder, mean);
  plan.inv_std_dev_output = Export(builder, inv_std_dev);
  if (plan.mean_output != Plan::kNoOutput) plan.stats_type = builder.graph().Facts(mean).type;
  if (plan.inv_std_dev_output != Plan::kNoOutput) plan.stats_type = builder.graph().Facts(inv_std_dev).type;
}

Outcome ReadLayerNormalization(ChainBuilder& builder, bool with_residual, int* y) {
  const Ports ports(builder);
  if (Outcome declined = CheckStashType(ports.node)) return declined;
  Plan& plan = builder.plan();
  ReadEpsilon(ports.node, plan, 1e-5f);
  ReadLastAxes(ports.node, plan);
  builder.ReadX(ports.in(0), with_residual);
  plan.scale = builder.ReadOperand(ports.in(1));
  plan.bias = builder.ReadOperand(ports.in(2));
  ExportStatistics(builder, ports.out(1), ports.out(2));
  *y = ports.out(0);
  return std::nullopt;
}

// RMSNormalization (opset 23) and ORT's SimplifiedLayerNormalization, which has the inverse deviation as output 1.
Outcome ReadRmsNormalization(ChainBuilder& builder, bool with_residual, int* y) {
  const Ports ports(builder);
  if (Outcome declined = CheckStashType(ports.node)) return declined;
  Plan& plan = builder.plan();
  ReadEpsilon(ports.node, plan, 1e-5f);
  ReadLastAxes(ports.node, plan);
  plan.normalization.use_mean = false;
  builder.ReadX(ports.in(0), with_residual);
  plan.scale = builder.ReadOperand(ports.in(1));
  ExportStatistics(builder, kNone, ports.out(1));
  *y = ports.out(0);
  return std::nullopt;
}

// com.microsoft: normalisation over the last dimension of input + skip + bias.
void ReadSkip(ChainBuilder& builder, int bias) {
  const Ports ports(builder);
  Plan& plan = builder.plan();
  ReadEpsilon(ports.node, plan, 1e-12f);
  plan.normalization.from_first_axis = true;
  plan.normalization.first_axis = -1;
  builder.ReadX(ports.in(0), /*with_residual=*/false);
  plan.residual = builder.ReadOperand(ports.in(1));
  plan.residual_bias = builder.ReadOperand(bias);
  plan.scale = builder.ReadOperand(ports.in(2));
  ExportStatistics(builder, ports.out(1), ports.out(2));
  plan.sum_output = Export(builder, ports.out(3));
  if (plan.sum_output != Plan::kNoOutput) plan.sum_type = builder.graph().Facts(ports.out(3)).type;
}

Outcome ReadSkipLayerNormalization(ChainBuilder& builder, bool /*with_residual*/, int* y) {
  const Ports ports(builder);
  ReadSkip(builder, ports.in(4));
  builder.plan().bias = builder.ReadOperand(ports.in(3));
  *y = ports.out(0);
  return std::nullopt;
}

Outcome ReadSkipSimplifiedLayerNormalization(ChainBuilder& builder, bool /*with_residual*/, int* y) {
  const Ports ports(builder);
  ReadSkip(builder, ports.in(3));
  builder.plan().normalization.use_mean = false;
  *y = ports.out(0);
  return std::nullopt;
}

// ONNX adds 1e-9 to the standard deviation (the operator's function body).
Outcome ReadMeanVarianceNormalization(ChainBuilder& builder, bool with_residual, int* y) {
  const Ports ports(builder);
  Plan& plan = builder.plan();
  plan.normalization.epsilon = 1e-9f;
  plan.normalization.epsilon_on = EpsilonOn::kStddev;
  if (!ports.node.attributes->GetInts("axes", &plan.normalization.axes)) {
    plan.normalization.axes = {0, 2, 3};
  }
  builder.ReadX(ports.in(0), with_residual);
  *y = ports.out(0);
  return std::nullopt;
}

Outcome ReadInstanceNormalization(ChainBuilder& builder, bool with_residual, int* y) {
  const Ports ports(builder);
  Plan& plan = builder.plan();
  ReadEpsilon(ports.node, plan, 1e-5f);
  plan.normalization.from_first_axis = true;
  plan.normalization.first_axis = 2;
  plan.affine_align = AffineAlign::kChannel;
  builder.ReadX(ports.in(0), with_residual);
  plan.scale = builder.ReadOperand(ports.in(1));
  plan.bias = builder.ReadOperand(ports.in(2));
  *y = ports.out(0);
  return std::nullopt;
}

// Opset 18 has scale and bias per group, opset 21 per channel.
Outcome ReadGroupNormalization(ChainBuilder& builder, bool with_residual, int* y) {
  const Ports ports(builder);
  if (Outcome declined = CheckStashType(ports.node)) return declined;
  Plan& plan = builder.plan();
  ReadEpsilon(ports.node, plan, 1e-5f);
  ports.node.attributes->GetInt("num_groups", &plan.normalization.num_groups);
  plan.affine_align = ports.node.since_version >= 21 ? AffineAlign::kChannel : AffineAlign::kGroup;
  builder.ReadX(ports.in(0), with_residual);
  plan.scale = builder.ReadOperand(ports.in(1));
  plan.bias = builder.ReadOperand(ports.in(2));
  *y = ports.out(0);
  return std::nullopt;
}

// LayerNormalization and SimplifiedLayerNormalization of version 1 are ORT's own, in ONNX's domain.
constexpr NormalizationNode kNormalizations[] = {
    {"", "LayerNormalization", 1, ReadLayerNormalization},
    {"", "RMSNormalization", 23, ReadRmsNormalization},
    {"", "SimplifiedLayerNormalization", 1, ReadRmsNormalization},
    {"com.microsoft", "SkipLayerNormalization", 1, ReadSkipLayerNormalization},
    {"com.microsoft", "SkipSimplifiedLayerNormalization", 1, ReadSkipSimplifiedLayerNormalization},
    {"", "MeanVarianceNormalization", 9, ReadMeanVarianceNormalization},
    {"", "InstanceNormalization", 6, ReadInstanceNormalization},
    {"", "GroupNormalization", 18, ReadGroupNormalization},
};

}  // namespace

std::span<const NormalizationNode> Normalizations() { return kNormalizations; }

const NormalizationNode* FindNormalization(const GraphNode& node) {
  for (const NormalizationNode& row : kNormalizations) {
    if (node.Is(row.domain, row.op_type) && node.since_version >= row.since) return &row;
  }
  return nullptr;
}

}  // namespace normfuse::plugin
