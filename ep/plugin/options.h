// Options of the execution provider, as they arrive in the session's configuration.
#pragma once

#include <map>
#include <string>

#include "abi/ort_host.h"

namespace normfuse::plugin {

inline constexpr const char* kEpName = "NormFuseExecutionProvider";

enum class BackendChoice { kAuto, kCpu, kDirectMl };

Result ParseBackend(const std::string& value, BackendChoice* backend);

struct EpOptions {
  BackendChoice backend = BackendChoice::kAuto;
  bool claim_all = false;          // claim=all: whatever is supported, not only what is estimated to be faster
  std::string claim_report;        // file that GetCapability adds its decisions to, one JSON object a line
  bool compile = true;             // compile=0: only nodes with a registered kernel, so that the model can be saved
  bool generates_context = false;  // the session's ep.context_enable
  std::map<std::string, std::string> directml;  // options that only the DirectML backend reads
};

// Reads "ep.normfuseexecutionprovider.<option>" and "ep.context_enable". An unknown option or value is an error that
// lists what there is.
Result ReadOptions(const ort::SessionOptions* session, EpOptions* options);

}  // namespace normfuse::plugin
