// The part of DXCore that adapter choice uses. Numbers in the comments are vtable slots.
#pragma once

#include "abi/com_abi.h"

namespace normfuse::abi {

enum class DXCoreAdapterProperty : uint32_t { InstanceLuid = 0, DriverDescription = 2, IsHardware = 11 };

enum class DXCoreAdapterPreference : uint32_t { Hardware = 0, MinimumPower = 1, HighPerformance = 2 };

inline constexpr GUID kDxcoreD3d12CoreCompute = {
    0x248e2800, 0xa793, 0x4724, {0xab, 0xaa, 0x23, 0xa6, 0xde, 0x1b, 0xe0, 0x90}};

struct IDXCoreAdapter : IUnknown {
  static constexpr GUID kIid = {0xf0db4c7f, 0xfe5a, 0x42a2, {0xbd, 0x62, 0xf2, 0xa6, 0xcf, 0x6f, 0xc8, 0x3e}};
  virtual bool IsValid() = 0;                                                                 // 3
  virtual bool IsAttributeSupported(const GUID& attribute) = 0;                               // 4
  virtual bool IsPropertySupported(DXCoreAdapterProperty property) = 0;                       // 5
  virtual HRESULT GetProperty(DXCoreAdapterProperty property, size_t bytes, void* data) = 0;  // 6
  virtual HRESULT GetPropertySize(DXCoreAdapterProperty property, size_t* bytes) = 0;         // 7
};

struct IDXCoreAdapterList : IUnknown {
  static constexpr GUID kIid = {0x526c7776, 0x40e9, 0x459b, {0xb7, 0x11, 0xf3, 0x2a, 0xd7, 0x6d, 0xfc, 0x28}};
  virtual HRESULT GetAdapter(uint32_t index, const GUID& iid, void** adapter) = 0;       // 3
  virtual uint32_t GetAdapterCount() = 0;                                                // 4
  virtual bool IsStale() = 0;                                                            // 5
  virtual HRESULT GetFactory(const GUID& iid, void** factory) = 0;                       // 6
  virtual HRESULT Sort(uint32_t count, const DXCoreAdapterPreference* preferences) = 0;  // 7
};

struct IDXCoreAdapterFactory : IUnknown {
  static constexpr GUID kIid = {0x78ee5945, 0xc36e, 0x4b13, {0xa6, 0x69, 0x00, 0x5d, 0xd1, 0x1c, 0x0f, 0x06}};
  virtual HRESULT CreateAdapterList(uint32_t count, const GUID* attributes, const GUID& iid,  // 3
                                    void** list) = 0;
  virtual HRESULT GetAdapterByLuid(const LUID& luid, const GUID& iid, void** adapter) = 0;  // 4
};

// Exported by dxcore.dll and libdxcore.so.
using DXCoreCreateAdapterFactoryFunction = HRESULT (*)(const GUID& iid, void** factory);

}  // namespace normfuse::abi
