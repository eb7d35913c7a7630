// What the islands of a graph would be on DirectML of some level, without any device: lines of the EP option claim_report.
#pragma once

#include <set>
#include <string>

#include "plugin/find/graph_view.h"
#include "plugin/host/options.h"

namespace normfuse::plugin {

// Appends a line for each island at options.explain_directml, and one for each operator that joins none. Lines in `written`
// are left out, and new ones added to it.
Result AppendIslandReport(const EpOptions& options, const std::string& graph_name, GraphView& graph,
                          std::set<std::string>* written);

}  // namespace normfuse::plugin
