#include "plugin/options.h"

#include <charconv>
#include <string_view>

#include "directml/shared_library.h"

namespace normfuse::plugin {
namespace {

constexpr std::string_view kPrefix = "ep.normfuseexecutionprovider.";

Result BadValue(std::string_view option, const std::string& value, const char* allowed) {
  return Result::Error(ErrorCode::kInvalidArgument, "NormFuseExecutionProvider: option " + std::string(option) + "='" +
                                                        value + "' is not known; use " + allowed);
}

template <typename Number>
bool ParseNumber(const std::string& text, int base, Number* number) {
  const char* end = text.data() + text.size();
  const auto [position, error] = std::from_chars(text.data(), end, *number, base);
  return error == std::errc() && position == end && !text.empty();
}

// 64 bits; a decimal number may be negative, as Windows has the upper half of a LUID as a signed number.
bool ParseLuid(const std::string& text, uint64_t* luid) {
  if (text.starts_with("0x") || text.starts_with("0X")) return ParseNumber(text.substr(2), 16, luid);
  int64_t number = 0;
  if (!text.starts_with("-")) return ParseNumber(text, 10, luid);
  if (!ParseNumber(text, 10, &number)) return false;
  *luid = static_cast<uint64_t>(number);
  return true;
}

Result ParseChoice(const std::string& value, BackendChoice* choice) {
  if (value == "auto") {
    *choice = BackendChoice::kAuto;
  } else if (value == "cpu") {
    *choice = BackendChoice::kCpu;
  } else if (value == "directml") {
    *choice = BackendChoice::kDirectMl;
  } else {
    return BadValue("backend", value, "'auto', 'cpu' or 'directml'");
  }
  return {};
}

Result ParsePreference(const std::string& value, DirectMlOptions* options) {
  if (value == "high_performance") {
    options->adapter = DirectMlOptions::Adapter::kHighPerformance;
  } else if (value == "minimum_power") {
    options->adapter = DirectMlOptions::Adapter::kMinimumPower;
  } else {
    return BadValue("adapter_preference", value, "'high_performance' or 'minimum_power'");
  }
  return {};
}

// "6_2" as DML_FEATURE_LEVEL_6_2.
Result ParseLevel(const std::string& value, int* level) {
  if (value.size() != 3 || value[1] != '_' || value[0] < '2' || value[0] > '9' || value[2] < '0' || value[2] > '9') {
    return BadValue("explain_directml", value, "a DirectML feature level such as '6_2'");
  }
  *level = (value[0] - '0') * 0x1000 + (value[2] - '0') * 0x100;
  return {};
}

Result ParseFlag(std::string_view name, const std::string& value, bool* flag) {
  if (value != "0" && value != "1") return BadValue(name, value, "'0' or '1'");
  *flag = value == "1";
  return {};
}

Result SetOption(std::string_view name, const std::string& value, EpOptions* options) {
  bool known = false;
  NORMFUSE_RETURN_IF_ERROR(SetBackendOption(name, value, &options->backend, &known));
  if (known) return {};
  if (name == "compile") return ParseFlag(name, value, &options->compile);
  if (name == "explain_directml") return ParseLevel(value, &options->explain_directml);
  if (name == "claim_report") {
    options->claim_report = value;
    return {};
  }
  if (name == "claim") {
    if (value != "all" && value != "profitable") return BadValue(name, value, "'profitable' or 'all'");
    options->claim_all = value == "all";
    return {};
  }
  return Result::Error(
      ErrorCode::kInvalidArgument,
      "NormFuseExecutionProvider: unknown option '" + std::string(name) +
          "'; there are backend, claim, claim_report, compile, directml_library, d3d12_library, "
          "dxcore_library, directml_report, adapter_index, adapter_luid, adapter_preference and explain_directml");
}

}  // namespace

Result SetBackendOption(std::string_view name, const std::string& value, BackendOptions* options, bool* known) {
  DirectMlOptions& directml = options->directml;
  *known = true;
  if (name == "backend") return ParseChoice(value, &options->choice);
  if (name == "adapter_preference") return ParsePreference(value, &directml);
  if (name == "directml_library") {
    directml.directml_library = directml::LibraryName(value);
  } else if (name == "d3d12_library") {
    directml.d3d12_library = directml::LibraryName(value);
  } else if (name == "dxcore_library") {
    directml.dxcore_library = directml::LibraryName(value);
  } else if (name == "directml_report") {
    options->directml_report = value;
  } else if (name == "adapter_index") {
    directml.adapter = DirectMlOptions::Adapter::kIndex;
    if (!ParseNumber(value, 10, &directml.index)) return BadValue(name, value, "a number from 0");
  } else if (name == "adapter_luid") {
    directml.adapter = DirectMlOptions::Adapter::kLuid;
    if (!ParseLuid(value, &directml.luid)) return BadValue(name, value, "the LUID, decimal or hexadecimal (0x...)");
  } else {
    *known = false;
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
    if (key == "optimization.disable_specified_optimizers") {
      const std::string_view names = values[i];
      options->survives_float16 = names.find("MatmulTransposeFusion") != std::string_view::npos ||
                                  names.find("FuseFp16InitializerToFp32NodeTransformer") != std::string_view::npos;
    }
    if (key == "ep.context_enable") options->generates_context = values[i] == std::string_view("1");
    if (key.substr(0, kPrefix.size()) == kPrefix) result = SetOption(key.substr(kPrefix.size()), values[i], options);
  }
  api.ReleaseKeyValuePairs(entries);
  return result;
}

}  // namespace normfuse::plugin
