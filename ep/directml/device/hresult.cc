#include "directml/device/hresult.h"

#include <cstdio>

namespace normfuse::directml {
namespace {

using namespace abi;

const char* Meaning(HRESULT result) {
  switch (result) {
    case kNotImplemented:
      return "E_NOTIMPL, not implemented";
    case kNoInterface:
      return "E_NOINTERFACE, the library is too old";
    case kFail:
      return "E_FAIL, unspecified failure";
    case kOutOfMemory:
      return "E_OUTOFMEMORY, out of memory";
    case kInvalidArgument:
      return "E_INVALIDARG, an argument is not accepted";
    case kDxgiInvalidCall:
      return "DXGI_ERROR_INVALID_CALL, an invalid call";
    case kDxgiNotFound:
      return "DXGI_ERROR_NOT_FOUND, no such adapter";
    case kDxgiUnsupported:
      return "DXGI_ERROR_UNSUPPORTED, not supported by this library or GPU; a newer driver or DirectML may help";
    case kDxgiDeviceRemoved:
      return "DXGI_ERROR_DEVICE_REMOVED, the GPU was removed, reset, or its driver updated";
    case kDxgiDeviceHung:
      return "DXGI_ERROR_DEVICE_HUNG, the GPU stopped responding";
    case kDxgiDeviceReset:
      return "DXGI_ERROR_DEVICE_RESET, the GPU was reset";
    case kDxgiDriverInternalError:
      return "DXGI_ERROR_DRIVER_INTERNAL_ERROR, the driver failed";
    case kDxgiSdkComponentMissing:
      return "DXGI_ERROR_SDK_COMPONENT_MISSING, a component of the SDK is missing";
    default:
      return "an error without a name here";
  }
}

}  // namespace

bool MeansDeviceLost(HRESULT result) {
  return result == kDxgiDeviceRemoved || result == kDxgiDeviceHung || result == kDxgiDeviceReset ||
         result == kDxgiDriverInternalError;
}

Result CheckHresult(const char* call, HRESULT result) {
  if (Succeeded(result)) return {};
  char code[16];
  std::snprintf(code, sizeof(code), "0x%08X", static_cast<unsigned>(result));
  const ErrorCode kind = MeansDeviceLost(result) ? ErrorCode::kDeviceReset : ErrorCode::kEpFail;
  return Result::Error(kind,
                       std::string("DirectML path: ") + call + " failed with " + code + " (" + Meaning(result) + ")");
}

Result CheckCreated(const Creation& creation, HRESULT result, bool created) {
  if (!Succeeded(result)) return CheckHresult(creation.call, result);
  if (created) return {};
  return Result::Error(ErrorCode::kEpFail, std::string("DirectML path: ") + creation.call + " of " + creation.library +
                                               " says that it succeeded, but gives no object: that is no library to "
                                               "run with, but one to link with. Name another one by the option " +
                                               creation.option +
                                               ", take its folder out of LD_LIBRARY_PATH, or use backend=cpu.");
}

}  // namespace normfuse::directml
