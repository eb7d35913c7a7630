#include "plugin/host/device_tensors.h"

#include <cstdlib>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "directml/device/device_memory.h"

namespace normfuse::plugin {
namespace {

using directml::Content;
using directml::DeviceContent;
namespace device_memory = directml::device_memory;

constexpr uint32_t kFirstVersion = 28;
constexpr const char* kVariable = "NORMFUSE_DEVICE_MEMORY";
// Of no maker of GPUs: no other provider takes the memory for its own.
constexpr uint32_t kVendor = 0x4E46;

bool IsAskedFor() {
  const char* value = std::getenv(kVariable);
  return value != nullptr && std::string_view(value) == "1";
}

const ort::MemoryInfo* CreateDeviceMemoryInfo() {
  if (!IsAskedFor() || ort::GetHost().version < kFirstVersion) return nullptr;
  ort::MemoryInfo* info = nullptr;
  const Result created = ort::FromStatus(ort::GetApi().CreateMemoryInfo_V2("NormFuse", ort::MemoryDeviceType::kGpu,
                                                                           kVendor, 0, ort::DeviceMemoryType::kDefault,
                                                                           0, ort::AllocatorType::kDevice, &info));
  return created.ok() ? info : nullptr;
}

bool IsOnCpu(const ort::MemoryDevice* device) {
  return ort::GetHost().ep_api.MemoryDevice_GetDeviceType(device) == ort::MemoryDeviceType::kCpu;
}

bool IsOurs(const ort::MemoryDevice* device) {
  return !IsOnCpu(device) && ort::GetHost().ep_api.MemoryDevice_GetVendorId(device) == kVendor;
}

bool CanCopy(const ort::DataTransferImpl*, const ort::MemoryDevice* from, const ort::MemoryDevice* to) {
  return (IsOurs(from) && (IsOurs(to) || IsOnCpu(to))) || (IsOurs(to) && IsOnCpu(from));
}

// What goes to the CPU is added to `readings`.
Result Copy(const ort::Value* from, ort::Value* to, std::vector<DeviceContent::Reading>* readings) {
  const ort::Api& api = ort::GetApi();
  size_t bytes = 0;
  const void* source = nullptr;
  void* target = nullptr;
  NORMFUSE_RETURN_IF_ORT_ERROR(api.GetTensorSizeInBytes(from, &bytes));
  NORMFUSE_RETURN_IF_ORT_ERROR(api.GetTensorData(from, &source));
  NORMFUSE_RETURN_IF_ORT_ERROR(api.GetTensorMutableData(to, &target));
  if (bytes == 0) return {};
  Content content;
  if (device_memory::Contains(source)) {
    NORMFUSE_RETURN_IF_ERROR(device_memory::Get(source, bytes, &content));
    if (!device_memory::Contains(target)) {
      readings->push_back({std::move(content), bytes, target});
      return {};
    }
  } else {
    const auto* begin = static_cast<const unsigned char*>(source);
    content = std::make_shared<DeviceContent>(std::vector<unsigned char>(begin, begin + bytes));
  }
  device_memory::Put(target, std::move(content));
  return {};
}

ort::Status* CopyTensors(ort::DataTransferImpl*, const ort::Value** from, ort::Value** to, ort::SyncStream**,
                         size_t count) {
  return ort::Guarded([&]() -> Result {
    std::vector<DeviceContent::Reading> readings;
    for (size_t i = 0; i < count; ++i) NORMFUSE_RETURN_IF_ERROR(Copy(from[i], to[i], &readings));
    return DeviceContent::Read(readings);
  });
}

void* Alloc(ort::Allocator*, size_t bytes) {
  try {
    return device_memory::Reserve(bytes);
  } catch (...) {
    return nullptr;
  }
}

void Free(ort::Allocator*, void* memory) {
  try {
    if (memory != nullptr) device_memory::Release(memory);
  } catch (...) {  // what it held stays until the process ends
  }
}

const ort::MemoryInfo* Info(const ort::Allocator*) { return DeviceMemoryInfo(); }

}  // namespace

const ort::MemoryInfo* DeviceMemoryInfo() {
  // Decided with the first factory, and kept: ONNX Runtime has it in devices, allocators and tensors.
  static const ort::MemoryInfo* const info = CreateDeviceMemoryInfo();
  return info;
}

Result CheckDeviceMemory(const EpOptions& options) {
  const std::string option = "NormFuseExecutionProvider: option device_memory=1 needs ";
  if (options.backend.choice != BackendValue::kDirectml) {
    return Result::Error(ErrorCode::kInvalidArgument, option + "backend=directml");
  }
  if (!options.compile) return Result::Error(ErrorCode::kInvalidArgument, option + "compile=1");
  if (ort::GetHost().version < kFirstVersion) {
    return Result::Error(ErrorCode::kInvalidArgument, option + "ONNX Runtime 1." + std::to_string(kFirstVersion) +
                                                          " or newer, but this is ONNX Runtime " +
                                                          ort::GetHost().version_string);
  }
  if (DeviceMemoryInfo() != nullptr) return {};
  return Result::Error(ErrorCode::kInvalidArgument,
                       option + "the environment variable " + kVariable + "=1 when the library is registered");
}

const ort::MemoryDevice* DefaultMemoryDevice(bool on_gpu) {
  static const ort::MemoryInfo* const cpu = [] {
    ort::MemoryInfo* info = nullptr;
    (void)ort::FromStatus(
        ort::GetApi().CreateCpuMemoryInfo(ort::AllocatorType::kDevice, ort::MemType::kDefault, &info));
    return info;
  }();
  return ort::GetHost().ep_api.MemoryInfo_GetMemoryDevice(on_gpu ? DeviceMemoryInfo() : cpu);
}

ort::Allocator* DeviceAllocator() {
  static ort::Allocator allocator = {ort::GetHost().version, Alloc, Free, Info, {}};
  return &allocator;
}

ort::DataTransferImpl* DeviceDataTransfer() {
  static ort::DataTransferImpl transfer = {ort::GetHost().version, [](ort::DataTransferImpl*) {}, CanCopy, CopyTensors};
  return DeviceMemoryInfo() == nullptr ? nullptr : &transfer;
}

}  // namespace normfuse::plugin
