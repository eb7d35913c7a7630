#include "plugin/claim_report.h"

#include <cstdio>
#include <fstream>

namespace normfuse::plugin {
namespace {

std::string Quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char escaped[8];
      std::snprintf(escaped, sizeof(escaped), "\\u%04x", c);
      out += escaped;
    } else {
      out += c;
    }
  }
  return out + '"';
}

std::string Line(const std::string& graph_name, const GraphView& graph, const Site& site) {
  const GraphNode& anchor = graph.node(site.anchor);
  std::string line = "{\"graph\": " + Quoted(graph_name) + ", \"node\": " + Quoted(anchor.name) +
                     ", \"op_type\": " + Quoted(anchor.op_type) +
                     ", \"claimed\": " + (site.declined ? "false" : "true") + ", \"nodes\": [";
  if (site.chain) {
    for (size_t i = 0; i < site.chain->nodes.size(); ++i) {
      if (i > 0) line += ", ";
      line += Quoted(graph.node(site.chain->nodes[i]).name);
    }
  }
  line += "], \"description\": " + Quoted(site.chain ? site.chain->description : anchor.op_type);
  if (site.declined) {
    const ReasonSpec& reason = kReasons[static_cast<int>(site.declined->reason)];
    line += ", \"reason\": " + Quoted(reason.code) + ", \"message\": " + Quoted(site.declined->message) +
            ", \"advice\": " + Quoted(reason.advice);
  }
  return line + "}\n";
}

}  // namespace

Result AppendClaimReport(const std::string& path, const std::string& graph_name, const GraphView& graph,
                         const std::vector<Site>& sites) {
  std::ofstream file(path, std::ios::app);
  for (const Site& site : sites) file << Line(graph_name, graph, site);
  file.flush();
  if (file) return {};
  return Result::Error(ErrorCode::kFail, "NormFuseExecutionProvider: cannot write claim_report '" + path + "'");
}

}  // namespace normfuse::plugin
