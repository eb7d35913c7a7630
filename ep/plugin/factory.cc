#include "plugin/factory.h"

#include <memory>

#include "plan/execution.h"
#include "plugin/execution_provider.h"

namespace normfuse::plugin {
namespace {

const char* GetName(const ort::EpFactory*) { return kEpName; }
const char* GetVendor(const ort::EpFactory*) { return "normfuse"; }
uint32_t GetVendorId(const ort::EpFactory*) { return 0; }
const char* GetVersion(const ort::EpFactory*) { return NORMFUSE_VERSION; }

Result ListDevices(ort::EpFactory* factory, const ort::HardwareDevice* const* devices, size_t count,
                   ort::EpDevice** ep_devices, size_t max_ep_devices, size_t* ep_device_count) {
  const ort::Api& api = ort::GetApi();
  *ep_device_count = 0;
  const char* isa = nullptr;
  NORMFUSE_RETURN_IF_ERROR(SelectedIsa(&isa));
  for (size_t i = 0; i < count && *ep_device_count < max_ep_devices; ++i) {
    if (api.HardwareDevice_Type(devices[i]) != ort::HardwareDeviceType::kCpu) continue;
    ort::KeyValuePairs* metadata = nullptr;
    api.CreateKeyValuePairs(&metadata);
    api.AddKeyValuePair(metadata, "instruction_set", isa);
    const Result created = ort::FromStatus(
        ort::GetHost().ep_api.CreateEpDevice(factory, devices[i], metadata, nullptr, &ep_devices[*ep_device_count]));
    api.ReleaseKeyValuePairs(metadata);  // ORT has copied it
    NORMFUSE_RETURN_IF_ERROR(created);
    ++*ep_device_count;
  }
  return {};
}

ort::Status* GetSupportedDevices(ort::EpFactory* factory, const ort::HardwareDevice* const* devices, size_t count,
                                 ort::EpDevice** ep_devices, size_t max_ep_devices, size_t* ep_device_count) {
  return ort::Guarded(
      [&] { return ListDevices(factory, devices, count, ep_devices, max_ep_devices, ep_device_count); });
}

ort::Status* CreateEp(ort::EpFactory*, const ort::HardwareDevice* const*, const ort::KeyValuePairs* const*, size_t,
                      const ort::SessionOptions* session, const ort::Logger* logger, ort::Ep** ep) {
  *ep = nullptr;
  return ort::Guarded([&]() -> Result {
    EpOptions options;
    NORMFUSE_RETURN_IF_ERROR(ReadOptions(session, &options));
    const char* isa = nullptr;
    NORMFUSE_RETURN_IF_ERROR(SelectedIsa(&isa));
    *ep = CreateExecutionProvider(std::move(options), logger);
    return {};
  });
}

void ReleaseEp(ort::EpFactory*, ort::Ep* ep) { ReleaseExecutionProvider(ep); }

// Tensors stay in CPU memory: there is nothing to transfer.
ort::Status* CreateDataTransfer(ort::EpFactory*, ort::DataTransferImpl** out) {
  *out = nullptr;
  return nullptr;
}

}  // namespace

ort::EpFactory* CreateFactory() {
  auto* factory = new ort::EpFactory{};
  factory->ort_version_supported = ort::GetHost().version;
  factory->GetName = GetName;
  factory->GetVendor = GetVendor;
  factory->GetSupportedDevices = GetSupportedDevices;
  factory->CreateEp = CreateEp;
  factory->ReleaseEp = ReleaseEp;
  factory->GetVendorId = GetVendorId;
  factory->GetVersion = GetVersion;
  factory->CreateDataTransfer = CreateDataTransfer;
  return factory;
}

void ReleaseFactory(ort::EpFactory* factory) { delete factory; }

}  // namespace normfuse::plugin
