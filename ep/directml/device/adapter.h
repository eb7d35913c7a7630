// Adapter choice by DXCore.
#pragma once

#include <string>

#include "abi/dxcore_abi.h"
#include "directml/device/com_ptr.h"
#include "directml/directml.h"

namespace normfuse::directml {

// The adapter that the options ask for, and its name. An adapter that does not exist gives an error that lists those
// that do. Not for Adapter::kDefault.
Result ChooseAdapter(abi::IDXCoreAdapterFactory* factory, const DirectMlOptions& options,
                     ComPtr<abi::IDXCoreAdapter>* adapter, std::string* name);

}  // namespace normfuse::directml
