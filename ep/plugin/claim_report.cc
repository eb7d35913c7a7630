#include "plugin/claim_report.h"

#include <cstdio>
#include <filesystem>
#include <memory>

#include "directml/lowering.h"

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

std::string Refusal(const Declined& declined) {
  const ReasonSpec& reason = kReasons[static_cast<int>(declined.reason)];
  return "\"reason\": " + Quoted(reason.code) + ", \"message\": " + Quoted(declined.message) +
         ", \"advice\": " + Quoted(reason.advice);
}

std::string NodeNames(const GraphView& graph, const Chain& chain) {
  std::string names;
  for (int node : chain.nodes) names += (names.empty() ? "" : ", ") + Quoted(graph.node(node).name);
  return names;
}

// What the chain becomes at a feature level, without any device.
std::string Explanation(const Plan& plan, int level) {
  directml::Capabilities capabilities;
  capabilities.level = static_cast<directml::FeatureLevel>(level);
  directml::DmlProgram program;
  if (std::optional<Declined> declined = directml::CheckLowering(plan, capabilities, &program)) {
    return "{" + Refusal(*declined) + "}";
  }
  return directml::ToJson(program);
}

std::string BackendFields(const EpOptions& options, const Backend& backend, const Plan& plan) {
  const std::optional<Declined> stays_on_cpu = backend.CheckForDirectMl(plan);
  const bool directml = backend.directml() != nullptr && !stays_on_cpu;
  std::string fields = std::string(", \"backend\": ") + (directml ? "\"directml\"" : "\"cpu\"");
  if (stays_on_cpu) fields += ", \"backend_reason\": {" + Refusal(*stays_on_cpu) + "}";
  if (options.explain_directml != 0) fields += ", \"directml\": " + Explanation(plan, options.explain_directml);
  return fields;
}

std::string Line(const EpOptions& options, const Backend& backend, const std::string& graph_name,
                 const GraphView& graph, const Site& site) {
  const GraphNode& anchor = graph.node(site.anchor);
  std::string line = "{\"graph\": " + Quoted(graph_name) + ", \"node\": " + Quoted(anchor.name) +
                     ", \"op_type\": " + Quoted(anchor.op_type) +
                     ", \"claimed\": " + (site.declined ? "false" : "true") + ", \"nodes\": [" +
                     (site.chain ? NodeNames(graph, *site.chain) : "") +
                     "], \"description\": " + Quoted(site.chain ? site.chain->description : anchor.op_type);
  if (site.declined) line += ", " + Refusal(*site.declined);
  if (site.chain) line += BackendFields(options, backend, site.chain->plan);
  return line + "}\n";
}

struct Closer {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using File = std::unique_ptr<std::FILE, Closer>;

// To be appended to. Not a stream of the C++ library, which brings 0.8 MB of locales with it.
Result OpenClaimReport(const std::string& name, File* file) {
#ifdef _WIN32
  // Options are UTF-8, which Windows does not take for a file's name as it is.
  file->reset(_wfopen(std::filesystem::path(std::u8string(name.begin(), name.end())).c_str(), L"ab"));
#else
  file->reset(std::fopen(name.c_str(), "ab"));
#endif
  if (*file) return {};
  return Result::Error(ErrorCode::kFail, "NormFuseExecutionProvider: cannot write claim_report '" + name +
                                             "'; name a file in a folder that exists");
}

}  // namespace

Result CheckClaimReport(const EpOptions& options) {
  if (options.claim_report.empty()) return {};
  File file;
  return OpenClaimReport(options.claim_report, &file);
}

Result AppendClaimReport(const EpOptions& options, const Backend& backend, const std::string& graph_name,
                         const GraphView& graph, const std::vector<Site>& sites, std::set<std::string>* written) {
  File file;
  NORMFUSE_RETURN_IF_ERROR(OpenClaimReport(options.claim_report, &file));
  bool complete = true;
  for (const Site& site : sites) {
    const auto [line, is_new] = written->insert(Line(options, backend, graph_name, graph, site));
    if (is_new) complete &= std::fwrite(line->data(), 1, line->size(), file.get()) == line->size();
  }
  // What is left in the buffer is written when the file is closed.
  complete &= std::fclose(file.release()) == 0;
  if (complete) return {};
  return Result::Error(ErrorCode::kFail, "NormFuseExecutionProvider: cannot write claim_report '" +
                                             options.claim_report + "'; is there no room left?");
}

}  // namespace normfuse::plugin
