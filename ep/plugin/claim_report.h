// Writes what GetCapability decided, one JSON object a line: the EP option claim_report.
#pragma once

#include <string>
#include <vector>

#include "plugin/chain.h"

namespace normfuse::plugin {

// Appends one line for each site. `graph_name` tells subgraphs apart.
Result AppendClaimReport(const std::string& path, const std::string& graph_name, const GraphView& graph,
                         const std::vector<Site>& sites);

}  // namespace normfuse::plugin
