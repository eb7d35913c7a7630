// Which chains are worth claiming.
#pragma once

#include <vector>

#include "plugin/claim/tuning.h"
#include "plugin/find/blocked_layout.h"
#include "plugin/find/found_chain.h"
#include "plugin/host/options.h"

namespace normfuse::plugin {

// What the decisions of a graph have in common.
struct ClaimContext {
  const EpOptions& options;
  const BlockedLayout& blocked;
  const IntegerUnits& units;
  const Tuning& tuning;
  const std::vector<Site>& sites;  // decided up to the present one
  bool on_cpu;                     // the CPU path would run the chains
};

// Decides whether the chain of a site is claimed: declined, group and decided_by.
void DecideClaim(GraphView& graph, const ClaimContext& context, bool has_registered_kernel, Site* site);

// Whether ORT would need too long to compile what was decided: its time for each fused group grows with the square of
// the graph's nodes and more (ORT 1.31.1: nothing measurable for 13 groups among 315 nodes, 73 ms a group among 2,103).
bool CompilesTooMuch(const GraphView& graph, const std::vector<Site>& sites, const std::vector<bool>& has_kernel,
                     const EpOptions& options);

// Declines every chain that has no registered kernel, because of that.
void DeclineCompilation(std::vector<Site>* sites, const std::vector<bool>& has_kernel);

}  // namespace normfuse::plugin
