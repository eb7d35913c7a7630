// The EP's options for DirectML, as text, into DirectMlOptions.
#include <cerrno>
#include <cstdlib>

#include "directml/directml.h"

namespace normfuse {
namespace {

Result BadValue(const std::string& name, const std::string& value, const char* expected) {
  return Result::Error(ErrorCode::kInvalidArgument, "option " + name + "='" + value + "' is not " + expected);
}

// The whole of `text` as a number; base 0 takes decimal and 0x.
bool ParseNumber(const std::string& text, int base, uint64_t* number) {
  char* end = nullptr;
  errno = 0;
  const bool negative = !text.empty() && text[0] == '-';
  *number = negative ? static_cast<uint64_t>(std::strtoll(text.c_str(), &end, base))
                     : std::strtoull(text.c_str(), &end, base);
  return !text.empty() && errno == 0 && *end == '\0';
}

Result ReadAdapter(const std::string& name, const std::string& value, DirectMlOptions* options) {
  using Adapter = DirectMlOptions::Adapter;
  if (options->adapter != Adapter::kDefault) {
    return Result::Error(ErrorCode::kInvalidArgument,
                         "give only one of the options adapter_index, adapter_luid and adapter_preference");
  }
  uint64_t number = 0;
  if (name == "adapter_index") {
    if (!ParseNumber(value, 10, &number) || value[0] == '-' || number > UINT32_MAX) {
      return BadValue(name, value, "a number from 0 on");
    }
    options->adapter = Adapter::kIndex;
    options->index = static_cast<uint32_t>(number);
  } else if (name == "adapter_luid") {
    if (!ParseNumber(value, 0, &number)) return BadValue(name, value, "a LUID, decimal or hexadecimal (0x...)");
    options->adapter = Adapter::kLuid;
    options->luid = number;
  } else if (value == "high_performance") {
    options->adapter = Adapter::kHighPerformance;
  } else if (value == "minimum_power") {
    options->adapter = Adapter::kMinimumPower;
  } else {
    return BadValue(name, value, "high_performance or minimum_power");
  }
  return {};
}

}  // namespace

Result ParseDirectMlOptions(const std::map<std::string, std::string>& values, DirectMlOptions* options) {
  *options = {};
  for (const auto& [name, value] : values) {
    if (value.empty()) continue;
    if (name == "directml_library") {
      options->directml_library = value;
    } else if (name == "d3d12_library") {
      options->d3d12_library = value;
    } else if (name == "dxcore_library") {
      options->dxcore_library = value;
    } else if (name == "adapter_index" || name == "adapter_luid" || name == "adapter_preference") {
      NORMFUSE_RETURN_IF_ERROR(ReadAdapter(name, value, options));
    } else {
      return Result::Error(ErrorCode::kInvalidArgument, "there is no DirectML option '" + name + "'");
    }
  }
  return {};
}

}  // namespace normfuse
