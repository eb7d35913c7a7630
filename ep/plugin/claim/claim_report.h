// Writes what GetCapability decided, one JSON object a line: the EP option claim_report.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "plugin/find/found_chain.h"
#include "plugin/host/options.h"

namespace normfuse::plugin {

// Whether there can be a file options.claim_report, if one is asked for; makes it. Called when a session is created: what
// GetCapability fails with is only logged by ORT.
Result CheckClaimReport(const EpOptions& options);

// Appends one line for each site to options.claim_report. `graph_name` tells subgraphs apart. With explain_directml, a
// chain's line also holds the DirectML operators that it becomes, or why it stays on the CPU path. Lines in `written` are
// left out, and new ones added to it: ORT asks for the same graph more than once while it creates a session.
Result AppendClaimReport(const EpOptions& options, const Backend& backend, const std::string& graph_name,
                         const GraphView& graph, const std::vector<Site>& sites, std::set<std::string>* written);

}  // namespace normfuse::plugin
