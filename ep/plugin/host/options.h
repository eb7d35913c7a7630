// Options of the execution provider, as they arrive in the session's configuration.
#pragma once

#include <string>

#include "abi/ort_host.h"
#include "plugin/host/backend.h"

namespace normfuse::plugin {

inline constexpr const char* kEpName = "NormFuseExecutionProvider";

struct EpOptions {
  BackendOptions backend;
  bool claim_all = false;          // claim=all: whatever is supported, not only what is estimated to be faster
  std::string claim_report;        // file that GetCapability adds its decisions to, one JSON object a line
  int explain_directml = 0;        // a DML_FEATURE_LEVEL: claim_report shows what each found becomes at that level
  bool tuning = true;              // tuning=0: what `normfuse optimize --tune` stored in the model is ignored
  bool compile = true;             // compile=0: only nodes with a registered kernel, so that the model can be saved
  bool generates_context = false;  // the session's ep.context_enable
  bool device_memory = false;      // device_memory=1: inputs and outputs of nodes may stay on the GPU
  bool int8_stays = false;         // the session's session.qdqisint8allowed: see int8_products.h
  bool survives_float16 = false;   // the session is without an optimizer of ORT that ends the process: see DecideClaim
};

// Reads "ep.normfuseexecutionprovider.<option>", "ep.context_enable", "session.qdqisint8allowed" and the optimizers that
// are switched off. An unknown option or value is an error that lists what there is.
Result ReadOptions(const ort::SessionOptions* session, EpOptions* options);

// Sets one option of the backend (backend, directml_library, adapter_index ...); *known is false for any other name.
Result SetBackendOption(std::string_view name, const std::string& value, BackendOptions* options, bool* known);

}  // namespace normfuse::plugin
