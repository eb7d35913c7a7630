// Which chains are worth claiming.
#pragma once

#include <optional>

#include "plugin/blocked_layout.h"
#include "plugin/found_chain.h"
#include "plugin/options.h"

namespace normfuse::plugin {

// Why the chain is left to ONNX Runtime, if it is. `on_cpu`: the CPU path would run it.
std::optional<Declined> CheckClaim(GraphView& graph, const FoundChain& found, const EpOptions& options,
                                   const BlockedLayout& blocked, bool has_registered_kernel, bool on_cpu);

// Whether ORT would need too long to compile what was decided: its time for each fused group grows with the square of
// the graph's nodes and more (ORT 1.31.1: nothing measurable for 13 groups among 315 nodes, 73 ms a group among 2,103).
bool CompilesTooMuch(const GraphView& graph, const std::vector<Site>& sites, const std::vector<bool>& has_kernel,
                     const EpOptions& options);

// Declines every chain that has no registered kernel, because of that.
void DeclineCompilation(std::vector<Site>* sites, const std::vector<bool>& has_kernel);

}  // namespace normfuse::plugin
