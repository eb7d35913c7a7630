#include "plugin/host/factory.h"

#include <atomic>
#include <memory>

#include "chain/execution.h"
#include "plugin/claim/claim_report.h"
#include "plugin/host/device_tensors.h"
#include "plugin/host/execution_provider.h"

namespace normfuse::plugin {
namespace {

// ORT lets go of a factory when its library is unregistered, and a session that still lives gives its provider back
// after that: whoever is last deletes the factory.
struct Factory : ort::EpFactory {
  std::atomic<int> users{1};
};

void Release(ort::EpFactory* factory) {
  auto* released = static_cast<Factory*>(factory);
  if (--released->users == 0) delete released;
}

const char* GetName(const ort::EpFactory*) { return kEpName; }
const char* GetVendor(const ort::EpFactory*) { return "normfuse"; }
uint32_t GetVendorId(const ort::EpFactory*) { return 0; }
const char* GetVersion(const ort::EpFactory*) { return NORMFUSE_VERSION; }

// DirectML runs on Windows, where ORT lists the GPUs. (On Linux it takes backend=directml on the CPU device.)
#ifdef _WIN32
constexpr bool kOffersGpus = true;
#else
constexpr bool kOffersGpus = false;
#endif

bool Offers(const ort::HardwareDevice* device) {
  const ort::HardwareDeviceType type = ort::GetApi().HardwareDevice_Type(device);
  return type == ort::HardwareDeviceType::kCpu || (kOffersGpus && type == ort::HardwareDeviceType::kGpu);
}

Result OfferDevice(ort::EpFactory* factory, const ort::HardwareDevice* device, ort::EpDevice** ep_device) {
  const ort::Api& api = ort::GetApi();
  const char* isa = nullptr;
  NORMFUSE_RETURN_IF_ERROR(SelectedIsa(&isa));
  ort::KeyValuePairs* metadata = nullptr;
  api.CreateKeyValuePairs(&metadata);
  const bool gpu = api.HardwareDevice_Type(device) == ort::HardwareDeviceType::kGpu;
  api.AddKeyValuePair(metadata, "backend", gpu ? "directml" : "cpu");
  api.AddKeyValuePair(metadata, "instruction_set", isa);
  const Result created =
      ort::FromStatus(ort::GetHost().ep_api.CreateEpDevice(factory, device, metadata, nullptr, ep_device));
  api.ReleaseKeyValuePairs(metadata);  // ORT has copied it
  NORMFUSE_RETURN_IF_ERROR(created);
  // The same for all devices: ORT gives a session no others.
  if (DeviceMemoryInfo() == nullptr) return {};
  return ort::FromStatus(ort::GetHost().ep_api.EpDevice_AddAllocatorInfo(*ep_device, DeviceMemoryInfo()));
}

Result ListDevices(ort::EpFactory* factory, const ort::HardwareDevice* const* devices, size_t count,
                   ort::EpDevice** ep_devices, size_t max_ep_devices, size_t* ep_device_count) {
  *ep_device_count = 0;
  for (size_t i = 0; i < count && *ep_device_count < max_ep_devices; ++i) {
    if (!Offers(devices[i])) continue;
    NORMFUSE_RETURN_IF_ERROR(OfferDevice(factory, devices[i], &ep_devices[*ep_device_count]));
    ++*ep_device_count;
  }
  return {};
}

ort::Status* GetSupportedDevices(ort::EpFactory* factory, const ort::HardwareDevice* const* devices, size_t count,
                                 ort::EpDevice** ep_devices, size_t max_ep_devices, size_t* ep_device_count) {
  return ort::Guarded(
      [&] { return ListDevices(factory, devices, count, ep_devices, max_ep_devices, ep_device_count); });
}

// The first GPU among the devices that the session was given, if there is one.
const ort::HardwareDevice* FindGpu(const ort::HardwareDevice* const* devices, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    if (ort::GetApi().HardwareDevice_Type(devices[i]) == ort::HardwareDeviceType::kGpu) return devices[i];
  }
  return nullptr;
}

// ORT names a GPU by its LUID; an adapter option of the user's wins.
Result ChooseAdapter(const ort::HardwareDevice* gpu, BackendOptions* options) {
  if (options->directml.adapter != DirectMlOptions::Adapter::kDefault) return {};
  const char* luid = ort::GetApi().GetKeyValue(ort::GetApi().HardwareDevice_Metadata(gpu), "LUID");
  if (luid == nullptr) return {};
  bool known = false;
  return SetBackendOption("adapter_luid", luid, options, &known);
}

Result MakeEp(const ort::HardwareDevice* const* devices, size_t count, const ort::SessionOptions* session,
              const ort::Logger* logger, ort::Ep** ep) {
  EpOptions options;
  NORMFUSE_RETURN_IF_ERROR(ReadOptions(session, &options));
  NORMFUSE_RETURN_IF_ERROR(CheckClaimReport(options));
  if (options.device_memory) NORMFUSE_RETURN_IF_ERROR(CheckDeviceMemory(options));
  // The device chooses the adapter, never the backend.
  const ort::HardwareDevice* gpu = FindGpu(devices, count);
  if (gpu != nullptr && options.backend.choice == BackendValue::kDirectml) {
    NORMFUSE_RETURN_IF_ERROR(ChooseAdapter(gpu, &options.backend));
  }
  std::unique_ptr<Backend> backend;
  NORMFUSE_RETURN_IF_ERROR(Backend::Create(options.backend, &backend));
  GivenInitializers given;
  NORMFUSE_RETURN_IF_ERROR(GivenInitializers::Of(session, &given));
  *ep = CreateExecutionProvider(std::move(options), std::move(backend), std::move(given), logger);
  return {};
}

ort::Status* CreateEp(ort::EpFactory* factory, const ort::HardwareDevice* const* devices,
                      const ort::KeyValuePairs* const*, size_t count, const ort::SessionOptions* session,
                      const ort::Logger* logger, ort::Ep** ep) {
  *ep = nullptr;
  return ort::Guarded([&]() -> Result {
    NORMFUSE_RETURN_IF_ERROR(MakeEp(devices, count, session, logger, ep));
    ++static_cast<Factory*>(factory)->users;
    return {};
  });
}

void ReleaseEp(ort::EpFactory* factory, ort::Ep* ep) {
  ReleaseExecutionProvider(ep);
  Release(factory);
}

ort::Status* CreateAllocator(ort::EpFactory*, const ort::MemoryInfo*, const ort::KeyValuePairs*, ort::Allocator** out) {
  *out = DeviceAllocator();
  return nullptr;
}

// It is one for all, and tensors may outlive those who asked for it.
void ReleaseAllocator(ort::EpFactory*, ort::Allocator*) {}

// None where tensors are in the CPU's memory alone.
ort::Status* CreateDataTransfer(ort::EpFactory*, ort::DataTransferImpl** out) {
  *out = DeviceDataTransfer();
  return nullptr;
}

}  // namespace

ort::EpFactory* CreateFactory() {
  auto* factory = new Factory{};
  factory->ort_version_supported = ort::GetHost().version;
  factory->GetName = GetName;
  factory->GetVendor = GetVendor;
  factory->GetSupportedDevices = GetSupportedDevices;
  factory->CreateEp = CreateEp;
  factory->ReleaseEp = ReleaseEp;
  factory->GetVendorId = GetVendorId;
  factory->GetVersion = GetVersion;
  factory->CreateDataTransfer = CreateDataTransfer;
  if (DeviceMemoryInfo() == nullptr) return factory;
  factory->CreateAllocator = CreateAllocator;
  factory->ReleaseAllocator = ReleaseAllocator;
  return factory;
}

void ReleaseFactory(ort::EpFactory* factory) { Release(factory); }

}  // namespace normfuse::plugin
