// The OrtEp: claims chains at session creation and compiles each into an executable node.
#pragma once

#include "abi/ort_abi.h"
#include "plugin/options.h"

namespace normfuse::plugin {

ort::Ep* CreateExecutionProvider(EpOptions options, const ort::Logger* logger);
void ReleaseExecutionProvider(ort::Ep* ep);

}  // namespace normfuse::plugin
