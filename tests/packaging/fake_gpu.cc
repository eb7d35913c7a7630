// A library that stands between ONNX Runtime and the library under test and adds a GPU to the devices that ONNX Runtime
// lists, as the first one: what a session gets on Windows with a graphics card, on any machine. The library under test
// is named by the environment variable NORMFUSE_BEHIND_FAKE_GPU. Where it does not offer GPUs by itself, which is
// everywhere but on Windows, this one offers the GPU with the same metadata.
#ifdef _WIN32
#include <windows.h>
#define EXPORT extern "C" __declspec(dllexport)
#else
#include <dlfcn.h>
#define EXPORT extern "C" __attribute__((visibility("default")))
#endif

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "abi/ort_abi.h"

namespace normfuse::ort {
namespace {

// The adapter that the tests' DXCore knows.
constexpr const char* kLuid = "7";

const ApiBase* host = nullptr;
HardwareDevice* gpu = nullptr;
decltype(EpFactory::GetSupportedDevices) real_devices = nullptr;

template <typename Function>
Function* Slot(const void* table, size_t index) {
  return reinterpret_cast<Function*>(static_cast<void* const*>(table)[index]);
}

const void* MainTable() { return host->GetApi(kOldestSupported); }
const void* EpTable() { return Slot<const void*()>(MainTable(), 317)(); }

KeyValuePairs* Pairs(const char* key, const char* value) {
  KeyValuePairs* pairs = nullptr;
  Slot<void(KeyValuePairs**)>(MainTable(), 295)(&pairs);
  Slot<void(KeyValuePairs*, const char*, const char*)>(MainTable(), 296)(pairs, key, value);
  return pairs;
}

void ReleasePairs(KeyValuePairs* pairs) { Slot<void(KeyValuePairs*)>(MainTable(), 300)(pairs); }

// Slot 16 of OrtEpApi: CreateHardwareDevice.
Status* CreateGpu() {
  if (gpu != nullptr) return nullptr;
  KeyValuePairs* metadata = Pairs("LUID", kLuid);
  Status* status =
      Slot<Status*(HardwareDeviceType, uint32_t, uint32_t, const char*, const KeyValuePairs*, HardwareDevice**)>(
          EpTable(), 16)(HardwareDeviceType::kGpu, 0x10de, 1, "fake", metadata, &gpu);
  ReleasePairs(metadata);
  return status;
}

bool IsOfGpu(const EpDevice* device) {
  return Slot<const HardwareDevice*(const EpDevice*)>(MainTable(), 316)(device) == gpu;
}

Status* GetSupportedDevices(EpFactory* factory, const HardwareDevice* const* devices, size_t count,
                            EpDevice** ep_devices, size_t max, size_t* ep_count) {
  if (Status* status = CreateGpu()) return status;
  std::vector<const HardwareDevice*> all = {gpu};
  all.insert(all.end(), devices, devices + count);
  if (Status* status = real_devices(factory, all.data(), all.size(), ep_devices, max, ep_count)) return status;
  EpDevice** end = ep_devices + *ep_count;
  if (*ep_count == max || std::any_of(ep_devices, end, IsOfGpu)) return nullptr;
  KeyValuePairs* metadata = Pairs("backend", "directml");
  Status* status =
      Slot<Status*(EpFactory*, const HardwareDevice*, const KeyValuePairs*, const KeyValuePairs*, EpDevice**)>(
          EpTable(), 0)(factory, gpu, metadata, nullptr, end);
  ReleasePairs(metadata);
  if (status != nullptr) return status;
  ++*ep_count;
  std::rotate(ep_devices, end, end + 1);
  return nullptr;
}

template <typename Function>
Function* Real(const char* name) {
  const char* path = std::getenv("NORMFUSE_BEHIND_FAKE_GPU");
#ifdef _WIN32
  static HMODULE library = LoadLibraryA(path);
  auto* function = library ? reinterpret_cast<void*>(GetProcAddress(library, name)) : nullptr;
#else
  static void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  void* function = library ? dlsym(library, name) : nullptr;
#endif
  if (!function) {
    std::fprintf(stderr, "fake_gpu: no %s in %s\n", name, path);
    std::abort();
  }
  return reinterpret_cast<Function*>(function);
}

}  // namespace

EXPORT Status* CreateEpFactories(const char* name, const ApiBase* base, const Logger* logger, EpFactory** factories,
                                 size_t max, size_t* count) {
  host = base;
  if (Status* status =
          Real<decltype(CreateEpFactories)>("CreateEpFactories")(name, base, logger, factories, max, count)) {
    return status;
  }
  real_devices = factories[0]->GetSupportedDevices;
  factories[0]->GetSupportedDevices = GetSupportedDevices;
  return nullptr;
}

EXPORT Status* ReleaseEpFactory(EpFactory* factory) {
  return Real<decltype(ReleaseEpFactory)>("ReleaseEpFactory")(factory);
}

EXPORT Status* RegisterCustomOps(SessionOptions* options, const ApiBase* base) {
  return Real<decltype(RegisterCustomOps)>("RegisterCustomOps")(options, base);
}

}  // namespace normfuse::ort
