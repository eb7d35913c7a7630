// The standard operators that are a normalisation (ep/spec/normalizations.toml), and how each fills a chain.
#pragma once

#include <optional>

#include "plugin/find/chain_builder.h"

namespace normfuse::plugin {

// The row of the table for a node, or null.
const NormalizationSpec* FindNormalization(const GraphNode& node);

// Fills normalisation, scale, bias and X (through a residual Add if `with_residual`); *y becomes the main output.
std::optional<Declined> ReadNormalization(const NormalizationSpec& spec, ChainBuilder& builder, bool with_residual,
                                          int* y);

}  // namespace normfuse::plugin
