// An ID3D12Device that exists only to be asked what it supports, as IDMLDevice::CreateOperator does: no queue, no
// resources. With it Microsoft's own DirectML checks operator descriptions on machines without Direct3D 12.
#pragma once

#include <cstring>

#include "abi/d3d12_abi.h"
#include "com_object.h"

namespace normfuse::test {

class StandInDevice final : public ComObject<abi::ID3D12Device, abi::ID3D12Device::kIid> {
 public:
  // small_types: whether shaders load 8-bit formats and compute in 16 bits, on which DirectML's data types depend.
  explicit StandInDevice(bool small_types) : small_types_(small_types) {}

  abi::HRESULT CheckFeatureSupport(int32_t feature, void* data, uint32_t bytes) override {
    switch (feature) {
      case 0:  // D3D12_FEATURE_D3D12_OPTIONS {..., resource binding tier, ..., typed loads of all formats, ...}
        if (bytes != 60) return abi::kInvalidArgument;
        std::memset(data, 0, bytes);
        static_cast<int32_t*>(data)[4] = 3;
        static_cast<int32_t*>(data)[6] = small_types_ ? 1 : 0;
        return abi::kOk;
      case 2:  // D3D12_FEATURE_FEATURE_LEVELS {count, levels, highest}
        if (bytes != 24) return abi::kInvalidArgument;
        std::memcpy(static_cast<char*>(data) + 16, &kFeatureLevel, sizeof(kFeatureLevel));
        return abi::kOk;
      case 7:  // D3D12_FEATURE_SHADER_MODEL
        if (bytes != 4) return abi::kInvalidArgument;
        std::memcpy(data, &kShaderModel, sizeof(kShaderModel));
        return abi::kOk;
      case 23:  // D3D12_FEATURE_D3D12_OPTIONS4 {msaa alignment, shared resources, native 16-bit operations}
        if (bytes != 12) return abi::kInvalidArgument;
        std::memset(data, 0, bytes);
        static_cast<int32_t*>(data)[2] = small_types_ ? 1 : 0;
        return abi::kOk;
      default:  // other options: none
        std::memset(data, 0, bytes);
        return abi::kOk;
    }
  }
  abi::HRESULT GetDeviceRemovedReason() override { return abi::kOk; }
  NORMFUSE_COM_STRUCT_METHOD_IMPL(abi::LUID, GetAdapterLuid, (abi::LUID{1, 0}))

  abi::HRESULT CreateCommandQueue(const abi::D3D12_COMMAND_QUEUE_DESC*, const abi::GUID&, void**) override {
    return abi::kNotImplemented;
  }
  abi::HRESULT CreateCommandAllocator(abi::D3D12_COMMAND_LIST_TYPE, const abi::GUID&, void**) override {
    return abi::kNotImplemented;
  }
  abi::HRESULT CreateCommandList(uint32_t, abi::D3D12_COMMAND_LIST_TYPE, abi::ID3D12CommandAllocator*, void*,
                                 const abi::GUID&, void**) override {
    return abi::kNotImplemented;
  }
  abi::HRESULT CreateDescriptorHeap(const abi::D3D12_DESCRIPTOR_HEAP_DESC*, const abi::GUID&, void**) override {
    return abi::kNotImplemented;
  }
  uint32_t GetDescriptorHandleIncrementSize(int32_t) override { return 32; }
  abi::HRESULT CreateCommittedResource(const abi::D3D12_HEAP_PROPERTIES*, uint32_t, const abi::D3D12_RESOURCE_DESC*,
                                       abi::D3D12_RESOURCE_STATES, const void*, const abi::GUID&, void**) override {
    return abi::kNotImplemented;
  }
  abi::HRESULT CreateFence(uint64_t, uint32_t, const abi::GUID&, void**) override { return abi::kNotImplemented; }

 private:
  static constexpr uint32_t kFeatureLevel = 0xc000;
  static constexpr uint32_t kShaderModel = 0x62;

  bool small_types_;
};

}  // namespace normfuse::test
