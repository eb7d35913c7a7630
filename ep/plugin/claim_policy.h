// Which chains are worth claiming, and what runs them.
#pragma once

#include <memory>
#include <optional>

#include "plan/execution.h"
#include "plugin/chain.h"
#include "plugin/options.h"

namespace normfuse::plugin {

// Why the chain is left to ONNX Runtime, if it is.
std::optional<Declined> CheckClaim(GraphView& graph, const Chain& chain, const EpOptions& options,
                                   bool has_registered_kernel);

Result CompileForBackend(const Plan& plan, const EpOptions& options, std::unique_ptr<Executable>* executable);

}  // namespace normfuse::plugin
