#include "plugin/host/options.h"

#include <algorithm>
#include <charconv>
#include <string_view>

#include "directml/device/shared_library.h"

namespace normfuse::plugin {
namespace {

constexpr std::string_view kPrefix = "ep.normfuseexecutionprovider.";

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

// "6_2" as DML_FEATURE_LEVEL_6_2.
bool ParseLevel(const std::string& text, uint64_t* level) {
  if (text.size() != 3 || text[1] != '_' || text[0] < '2' || text[0] > '9' || text[2] < '0' || text[2] > '9') {
    return false;
  }
  *level = static_cast<uint64_t>((text[0] - '0') * 0x1000 + (text[2] - '0') * 0x100);
  return true;
}

bool ParseIndex(const std::string& text, uint64_t* index) {
  uint32_t number = 0;
  if (!ParseNumber(text, 10, &number)) return false;
  *index = number;
  return true;
}

// The position of the text among the option's values.
bool ParseChoice(const OptionSpec& spec, const std::string& text, uint64_t* choice) {
  const auto* end = spec.values + spec.value_count;
  const auto* found = std::find(spec.values, end, std::string_view(text));
  *choice = static_cast<uint64_t>(found - spec.values);
  return found != end;
}

// An option of the table and its value: the text, and what it stands for where that is a number or a choice.
struct Given {
  Option option;
  const std::string& text;
  uint64_t number = 0;

  template <typename Value>
  Value As() const {
    return static_cast<Value>(number);
  }
  std::string LibraryPath() const { return directml::LibraryName(text); }
};

bool ParseValue(const OptionSpec& spec, Given* given) {
  switch (spec.kind) {
    case OptionKind::kChoice:
    case OptionKind::kFlag:
      return ParseChoice(spec, given->text, &given->number);
    case OptionKind::kIndex:
      return ParseIndex(given->text, &given->number);
    case OptionKind::kLuid:
      return ParseLuid(given->text, &given->number);
    case OptionKind::kLevel:
      return ParseLevel(given->text, &given->number);
    case OptionKind::kLibrary:
    case OptionKind::kReport:
      return true;
  }
  return false;
}

Result UnknownOption(std::string_view name) {
  std::string known;
  for (const OptionSpec& spec : kOptions) known += std::string(known.empty() ? "" : ", ") + spec.name;
  return Result::Error(ErrorCode::kInvalidArgument,
                       "NormFuseExecutionProvider: unknown option '" + std::string(name) + "'; there are " + known);
}

// Finds the option and checks its value, by the table.
Result Parse(std::string_view name, Given* given) {
  const OptionSpec* spec = std::find_if(std::begin(kOptions), std::end(kOptions),
                                        [&](const OptionSpec& candidate) { return name == candidate.name; });
  if (spec == std::end(kOptions)) return UnknownOption(name);
  given->option = static_cast<Option>(spec - kOptions);
  if (ParseValue(*spec, given)) return {};
  return Result::Error(ErrorCode::kInvalidArgument, "NormFuseExecutionProvider: option " + std::string(name) + "='" +
                                                        given->text + "' is not known; use " + spec->expected);
}

void PreferAdapter(const Given& given, DirectMlOptions* options) {
  const bool fast = given.As<AdapterPreferenceValue>() == AdapterPreferenceValue::kHighPerformance;
  options->adapter = fast ? DirectMlOptions::Adapter::kHighPerformance : DirectMlOptions::Adapter::kMinimumPower;
}

// False for an option that is not about the backend.
bool SetBackend(const Given& given, BackendOptions* options) {
  DirectMlOptions& directml = options->directml;
  switch (given.option) {
    case Option::kBackend:
      options->choice = given.As<BackendValue>();
      return true;
    case Option::kDirectmlLibrary:
      directml.directml_library = given.LibraryPath();
      return true;
    case Option::kD3d12Library:
      directml.d3d12_library = given.LibraryPath();
      return true;
    case Option::kDxcoreLibrary:
      directml.dxcore_library = given.LibraryPath();
      return true;
    case Option::kDirectmlReport:
      options->directml_report = given.text;
      return true;
    case Option::kAdapterIndex:
      directml.adapter = DirectMlOptions::Adapter::kIndex;
      directml.index = given.As<uint32_t>();
      return true;
    case Option::kAdapterLuid:
      directml.adapter = DirectMlOptions::Adapter::kLuid;
      directml.luid = given.number;
      return true;
    case Option::kAdapterPreference:
      PreferAdapter(given, &directml);
      return true;
    default:
      return false;
  }
}

Result SetOption(std::string_view name, const std::string& value, EpOptions* options) {
  Given given{Option::kBackend, value};
  NORMFUSE_RETURN_IF_ERROR(Parse(name, &given));
  if (SetBackend(given, &options->backend)) return {};
  switch (given.option) {
    case Option::kClaim:
      options->claim_all = given.As<ClaimValue>() == ClaimValue::kAll;
      break;
    case Option::kClaimReport:
      options->claim_report = given.text;
      break;
    case Option::kCompile:
      options->compile = given.number != 0;
      break;
    case Option::kTuning:
      options->tuning = given.number != 0;
      break;
    case Option::kDeviceMemory:
      options->device_memory = given.number != 0;
      break;
    case Option::kExplainDirectml:
      options->explain_directml = given.As<int>();
      break;
    default:
      break;
  }
  return {};
}

}  // namespace

Result SetBackendOption(std::string_view name, const std::string& value, BackendOptions* options, bool* known) {
  Given given{Option::kBackend, value};
  *known = std::any_of(std::begin(kOptions), std::end(kOptions),
                       [&](const OptionSpec& candidate) { return name == candidate.name; });
  if (!*known) return {};
  NORMFUSE_RETURN_IF_ERROR(Parse(name, &given));
  *known = SetBackend(given, options);
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
    if (key == "session.qdqisint8allowed") options->int8_stays = values[i] == std::string_view("1");
    if (key == "ep.context_enable") options->generates_context = values[i] == std::string_view("1");
    if (key.substr(0, kPrefix.size()) == kPrefix) result = SetOption(key.substr(kPrefix.size()), values[i], options);
  }
  api.ReleaseKeyValuePairs(entries);
  return result;
}

}  // namespace normfuse::plugin
