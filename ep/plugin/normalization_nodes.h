// The standard operators that are a normalisation, and how each fills a plan.
#pragma once

#include <optional>
#include <span>
#include <string_view>

#include "plugin/chain_builder.h"

namespace normfuse::plugin {

struct NormalizationNode {
  std::string_view domain;
  std::string_view op_type;
  int since;
  // Fills normalisation, scale, bias and X (through a residual Add if `with_residual`); *y becomes the main output.
  std::optional<Declined> (*read)(ChainBuilder& builder, bool with_residual, int* y);
};

std::span<const NormalizationNode> Normalizations();

// The row for a node, or null.
const NormalizationNode* FindNormalization(const GraphNode& node);

}  // namespace normfuse::plugin
