// The OrtEp: claims chains at session creation and compiles each into an executable node.
#pragma once

#include <memory>

#include "abi/ort_abi.h"
#include "plugin/host/given_initializers.h"
#include "plugin/host/options.h"

namespace normfuse::plugin {

ort::Ep* CreateExecutionProvider(EpOptions options, std::unique_ptr<Backend> backend, GivenInitializers given,
                                 const ort::Logger* logger);
// What runs the nodes of the execution provider.
const Backend& BackendOf(const ort::Ep* ep);
void ReleaseExecutionProvider(ort::Ep* ep);

}  // namespace normfuse::plugin
