#include "plugin/claim/claim_report.h"

#include "cpu/plan/path.h"
#include "directml/lowering/chain_lowering.h"
#include "plugin/claim/json_lines.h"

namespace normfuse::plugin {
namespace {

// By DecidedBy.
constexpr std::string_view kDeciders[] = {"by the cost model", "by tuning", "by the option claim"};

std::string NodeNames(const GraphView& graph, const FoundChain& found) {
  std::string names;
  for (int node : found.nodes) names += (names.empty() ? "" : ", ") + Quoted(graph.node(node).name);
  return names;
}

// What the chain becomes at a feature level, without any device.
std::string Explanation(const Chain& chain, int level) {
  directml::Capabilities capabilities;
  capabilities.level = static_cast<directml::FeatureLevel>(level);
  directml::DmlProgram program;
  if (std::optional<Declined> declined = directml::CheckLowering(chain, capabilities, &program)) {
    return "{" + RefusalFields(*declined) + "}";
  }
  return directml::ToJson(program);
}

std::string BackendFields(const EpOptions& options, const Backend& backend, const Site& site) {
  const Chain& chain = site.found->chain;
  const std::optional<Declined> stays_on_cpu = site.off_gpu ? site.off_gpu : backend.CheckForDirectMl(chain);
  const bool directml = backend.directml() != nullptr && !stays_on_cpu;
  std::string fields = std::string(", \"backend\": ") + (directml ? "\"directml\"" : "\"cpu\"");
  std::string path;
  if (!directml && cpu::DescribePath(chain, {}, &path).ok()) fields += ", \"path\": " + Quoted(path);
  if (stays_on_cpu) fields += ", \"backend_reason\": {" + RefusalFields(*stays_on_cpu) + "}";
  if (options.explain_directml != 0) fields += ", \"directml\": " + Explanation(chain, options.explain_directml);
  return fields;
}

std::string Line(const EpOptions& options, const Backend& backend, const std::string& graph_name,
                 const GraphView& graph, const Site& site) {
  const GraphNode& anchor = graph.node(site.anchor);
  std::string line = "{\"graph\": " + Quoted(graph_name) + ", \"node\": " + Quoted(anchor.name) +
                     ", \"op_type\": " + Quoted(anchor.op_type) +
                     ", \"claimed\": " + (site.declined ? "false" : "true") + ", \"nodes\": [" +
                     (site.found ? NodeNames(graph, *site.found) : "") +
                     "], \"description\": " + Quoted(site.found ? site.found->description : anchor.op_type);
  if (site.declined) line += ", " + RefusalFields(*site.declined);
  if (!site.group.empty()) {
    line +=
        ", \"group\": " + Quoted(site.group) + ", \"decided\": " + Quoted(kDeciders[static_cast<int>(site.decided_by)]);
  }
  if (site.found) line += BackendFields(options, backend, site);
  return line + "}\n";
}

}  // namespace

Result CheckClaimReport(const EpOptions& options) { return CheckJsonLines("claim_report", options.claim_report); }

Result AppendClaimReport(const EpOptions& options, const Backend& backend, const std::string& graph_name,
                         const GraphView& graph, const std::vector<Site>& sites, std::set<std::string>* written) {
  std::string lines;
  for (const Site& site : sites) {
    const auto [line, is_new] = written->insert(Line(options, backend, graph_name, graph, site));
    if (is_new) lines += *line;
  }
  return AppendJsonLines("claim_report", options.claim_report, lines);
}

}  // namespace normfuse::plugin
