// The OrtEp: claims chains at session creation and compiles each into an executable node.
#pragma once

#include "abi/ort_abi.h"
#include "plugin/options.h"

namespace normfuse::plugin {

ort::Ep* CreateExecutionProvider(EpOptions options, const ort::Logger* logger);
// The options that the execution provider was created with.
const EpOptions& OptionsOf(const ort::Ep* ep);
void ReleaseExecutionProvider(ort::Ep* ep);

}  // namespace normfuse::plugin
