// The operators of domain ai.normfuse as ORT custom ops, for sessions that use register_custom_ops_library.
#pragma once

#include "abi/ort_abi.h"
#include "chain/result.h"

namespace normfuse::custom_ops {

// Adds the domain to the session's options. A second call for the same options does nothing.
Result Register(ort::SessionOptions* options);

}  // namespace normfuse::custom_ops
