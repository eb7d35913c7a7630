// The OrtEpFactory that CreateEpFactories hands out.
#pragma once

#include "abi/ort_abi.h"

namespace normfuse::plugin {

ort::EpFactory* CreateFactory();
void ReleaseFactory(ort::EpFactory* factory);

}  // namespace normfuse::plugin
