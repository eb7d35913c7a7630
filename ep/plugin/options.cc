#include "plugin/options.h"

#include <algorithm>
#include <iterator>
#include <string_view>

namespace normfuse::plugin {
namespace {

constexpr std::string_view kPrefix = "ep.normfuseexecutionprovider.";
constexpr std::string_view kDirectMlOptions[] = {"directml_library", "d3d12_library", "dxcore_library",
                                                 "adapter_index",    "adapter_luid",  "adapter_preference"};

Result BadValue(std::string_view option, const std::string& value, const char* allowed) {
  return Result::Error(ErrorCode::kInvalidArgument, "NormFuseExecutionProvider: option " + std::string(option) + "='" +
                                                        value + "' is not known; use " + allowed);
}

Result SetOption(std::string_view name, const std::string& value, EpOptions* options) {
  if (name == "backend") return ParseBackend(value, &options->backend);
  if (name == "claim") {
    if (value != "all" && value != "profitable") return BadValue(name, value, "'profitable' or 'all'");
    options->claim_all = value == "all";
    return {};
  }
  if (name == "compile") {
    if (value != "0" && value != "1") return BadValue(name, value, "'0' or '1'");
    options->compile = value == "1";
    return {};
  }
  if (name == "claim_report") {
    options->claim_report = value;
    return {};
  }
  if (std::find(std::begin(kDirectMlOptions), std::end(kDirectMlOptions), name) != std::end(kDirectMlOptions)) {
    options->directml.emplace(name, value);
    return {};
  }
  return Result::Error(ErrorCode::kInvalidArgument,
                       "NormFuseExecutionProvider: unknown option '" + std::string(name) +
                           "'; there are backend, claim, claim_report, compile, directml_library, d3d12_library, "
                           "dxcore_library, adapter_index, adapter_luid and adapter_preference");
}

}  // namespace

Result ParseBackend(const std::string& value, BackendChoice* backend) {
  if (value == "auto") {
    *backend = BackendChoice::kAuto;
  } else if (value == "cpu") {
    *backend = BackendChoice::kCpu;
  } else if (value == "directml") {
    *backend = BackendChoice::kDirectMl;
  } else {
    return BadValue("backend", value, "'auto', 'cpu' or 'directml'");
  }
  return {};
}

Result ReadOptions(const ort::SessionOptions* session, EpOptions* options) {
  const ort::Api& api = ort::GetApi();
  ort::KeyValuePairs* entries = nullptr;
  NORMFUSE_RETURN_IF_ORT_ERROR(api.GetSessionOptionsConfigEntries(session, &entries));
  const char* const* keys = nullptr;
  const char* const* values = nullptr;
  size_t count = 0;
  api.GetKeyValuePairs(entries, &keys, &values, &count);
  Result result;
  for (size_t i = 0; i < count && result.ok(); ++i) {
    const std::string_view key = keys[i];
    if (key == "ep.context_enable") options->generates_context = values[i] == std::string_view("1");
    if (key.substr(0, kPrefix.size()) == kPrefix) result = SetOption(key.substr(kPrefix.size()), values[i], options);
  }
  api.ReleaseKeyValuePairs(entries);
  return result;
}

}  // namespace normfuse::plugin
