// HRESULTs in words.
#pragma once

#include <string>

#include "abi/com_abi.h"
#include "chain/result.h"

namespace normfuse::directml {

// Ok, or an error that names the call, the code and its meaning. A removed or reset device gives kDeviceReset.
Result CheckHresult(const char* call, abi::HRESULT result);

// What gave an object: a function of a library, which a user names by an option.
struct Creation {
  const char* call;
  const std::string& library;
  const char* option;
};

// The same for a call that creates an object: an error, too, where it succeeds without one, as the libraries do that others are
// linked with and that stand in a package beside them.
Result CheckCreated(const Creation& creation, abi::HRESULT result, bool created);

// Whether the code says that the device is gone for good.
bool MeansDeviceLost(abi::HRESULT result);

}  // namespace normfuse::directml

// Leaves the enclosing function with an error when a COM call failed.
#define NORMFUSE_RETURN_IF_FAILED(call_name, expression) \
  NORMFUSE_RETURN_IF_ERROR(::normfuse::directml::CheckHresult(call_name, (expression)))
