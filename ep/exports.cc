// The functions that the library exports, and nothing else.
#include "custom_ops/custom_ops.h"
#include "plugin/host/content_hash.h"
#include "plugin/host/factory.h"

#include "abi/ort_host.h"

#ifdef _WIN32
#define NORMFUSE_EXPORT extern "C" __declspec(dllexport)
#else
#define NORMFUSE_EXPORT extern "C" __attribute__((visibility("default")))
#endif

#ifdef _WIN32
#define WIN32_LEAN_AND_MEAN
#define NOMINMAX
#include <windows.h>
#elif defined(__APPLE__)
#include <dlfcn.h>
#endif

using normfuse::ErrorCode;
using normfuse::Result;
namespace ort = normfuse::ort;

namespace {

// Sessions may outlive the registration of the library, and with it ORT's hold on the file: the code stays loaded until
// the process ends. (The linker says so of the library on other systems.)
void StayLoaded() {
#ifdef _WIN32
  HMODULE self = nullptr;
  (void)GetModuleHandleExW(GET_MODULE_HANDLE_EX_FLAG_PIN | GET_MODULE_HANDLE_EX_FLAG_FROM_ADDRESS,
                           reinterpret_cast<LPCWSTR>(&StayLoaded), &self);
#elif defined(__APPLE__)
  Dl_info self;
  if (dladdr(reinterpret_cast<const void*>(&StayLoaded), &self) != 0)
    (void)dlopen(self.dli_fname, RTLD_NOW | RTLD_NODELETE);
#endif
}

}  // namespace

// Called by RegisterExecutionProviderLibrary.
NORMFUSE_EXPORT ort::Status* CreateEpFactories(const char* /*registration_name*/, const ort::ApiBase* base,
                                               const ort::Logger* /*default_logger*/, ort::EpFactory** factories,
                                               size_t max_factories, size_t* num_factories) {
  *num_factories = 0;
  StayLoaded();
  if (ort::Status* too_old = ort::Negotiate(base)) return too_old;
  return ort::Guarded([&]() -> Result {
    if (max_factories < 1) return Result::Error(ErrorCode::kInvalidArgument, "normfuse: no room for an EP factory");
    factories[0] = normfuse::plugin::CreateFactory();
    *num_factories = 1;
    return {};
  });
}

NORMFUSE_EXPORT ort::Status* ReleaseEpFactory(ort::EpFactory* factory) {
  normfuse::plugin::ReleaseFactory(factory);
  return nullptr;
}

// Called by RegisterCustomOpsLibrary.
NORMFUSE_EXPORT ort::Status* RegisterCustomOps(ort::SessionOptions* options, const ort::ApiBase* base) {
  StayLoaded();
  if (ort::Status* too_old = ort::Negotiate(base)) return too_old;
  return ort::Guarded([&] { return normfuse::custom_ops::Register(options); });
}

// Called by normfuse's Python package: the hash of a file's content that is 16 bytes long.
NORMFUSE_EXPORT void NormfuseHashContent(const uint8_t* data, size_t size, uint64_t key, uint64_t* digest) {
  const normfuse::plugin::Digest found = normfuse::plugin::HashContent(data, size, key);
  digest[0] = found[0];
  digest[1] = found[1];
}
