#include "plugin/islands/island_report.h"

#include <optional>
#include <vector>

#include "plugin/claim/json_lines.h"
#include "plugin/find/found_chain.h"
#include "plugin/islands/island_finder.h"

namespace normfuse::plugin {
namespace {

// Why the island is left to the CPU by default.
std::optional<Declined> LeftToCpu(const GraphView& graph, const FoundIsland& island) {
  const std::string& first = graph.node(island.nodes.front()).name;
  if (!island.computes) return Decline(Reason::kStaysOnCpu, {{"node", first}, {"detail", "it only moves data"}});
  if (!island.pays) return Decline(Reason::kNotWorthTheGpu, {{"node", first}});
  return std::nullopt;
}

std::string LineOf(const std::string& graph_name, const GraphView& graph, const FoundIsland& island) {
  std::string names;
  for (int node : island.nodes) names += (names.empty() ? "" : ", ") + Quoted(graph.node(node).name);
  std::string line = "{\"graph\": " + Quoted(graph_name) + ", \"island\": [" + names +
                     "], \"chains\": " + std::to_string(island.sites.size());
  if (const auto left = LeftToCpu(graph, island)) line += ", " + RefusalFields(*left);
  return line + "}\n";
}

std::string LineOf(const std::string& graph_name, const GraphView& graph, const LeftOperator& left) {
  const GraphNode& node = graph.node(left.node);
  const Declined declined = Decline(Reason::kStaysOnCpu, {{"node", node.name}, {"detail", left.why}});
  return "{\"graph\": " + Quoted(graph_name) + ", \"operator\": " + Quoted(node.name) +
         ", \"op_type\": " + Quoted(node.op_type) + ", " + RefusalFields(declined) + "}\n";
}

}  // namespace

Result AppendIslandReport(const EpOptions& options, const std::string& graph_name, GraphView& graph,
                          std::set<std::string>* written) {
  directml::Capabilities capabilities;
  capabilities.level = static_cast<directml::FeatureLevel>(options.explain_directml);
  std::vector<LeftOperator> left;
  std::string lines;
  const auto add = [&](std::string text) {
    const auto [line, is_new] = written->insert(std::move(text));
    if (is_new) lines += *line;
  };
  const std::vector<Site> sites = FindSitesForGpu(graph);
  for (const FoundIsland& island : FindIslands(graph, sites, capabilities, &left)) {
    add(LineOf(graph_name, graph, island));
  }
  for (const LeftOperator& each : left) add(LineOf(graph_name, graph, each));
  return AppendJsonLines("claim_report", options.claim_report, lines);
}

}  // namespace normfuse::plugin
