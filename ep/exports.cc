// The three functions that the library exports, and nothing else.
#include "custom_ops/custom_ops.h"
#include "plugin/factory.h"

#include "abi/ort_host.h"

#ifdef _WIN32
#define NORMFUSE_EXPORT extern "C" __declspec(dllexport)
#else
#define NORMFUSE_EXPORT extern "C" __attribute__((visibility("default")))
#endif

using normfuse::ErrorCode;
using normfuse::Result;
namespace ort = normfuse::ort;

// Called by RegisterExecutionProviderLibrary.
NORMFUSE_EXPORT ort::Status* CreateEpFactories(const char* /*registration_name*/, const ort::ApiBase* base,
                                               const ort::Logger* /*default_logger*/, ort::EpFactory** factories,
                                               size_t max_factories, size_t* num_factories) {
  *num_factories = 0;
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
  if (ort::Status* too_old = ort::Negotiate(base)) return too_old;
  return ort::Guarded([&] { return normfuse::custom_ops::Register(options); });
}
