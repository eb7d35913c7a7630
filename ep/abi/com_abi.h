// The part of COM that DirectML, D3D12 and DXCore rest on: GUID, HRESULT, IUnknown, and how methods that return a
// structure are called. Interfaces are C++ classes without a destructor, so that the vtable holds exactly the methods
// in the order of their declaration; both the Microsoft and the Itanium C++ ABI then lay it out alike.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace normfuse::abi {

using HRESULT = int32_t;
using BOOL = int32_t;
using UINT = uint32_t;
using UINT64 = uint64_t;
using SIZE_T = size_t;
using FLOAT = float;

struct GUID {
  uint32_t data1;
  uint16_t data2;
  uint16_t data3;
  uint8_t data4[8];

  bool operator==(const GUID& other) const { return std::memcmp(this, &other, sizeof(GUID)) == 0; }
};
static_assert(sizeof(GUID) == 16);

struct LUID {
  uint32_t low_part;
  int32_t high_part;
};
static_assert(sizeof(LUID) == 8);

constexpr HRESULT Hresult(uint32_t code) { return static_cast<HRESULT>(code); }

inline constexpr HRESULT kOk = 0;
inline constexpr HRESULT kNotImplemented = Hresult(0x80004001);
inline constexpr HRESULT kNoInterface = Hresult(0x80004002);
inline constexpr HRESULT kFail = Hresult(0x80004005);
inline constexpr HRESULT kOutOfMemory = Hresult(0x8007000E);
inline constexpr HRESULT kInvalidArgument = Hresult(0x80070057);
inline constexpr HRESULT kDxgiInvalidCall = Hresult(0x887A0001);
inline constexpr HRESULT kDxgiNotFound = Hresult(0x887A0002);
inline constexpr HRESULT kDxgiUnsupported = Hresult(0x887A0004);
inline constexpr HRESULT kDxgiDeviceRemoved = Hresult(0x887A0005);
inline constexpr HRESULT kDxgiDeviceHung = Hresult(0x887A0006);
inline constexpr HRESULT kDxgiDeviceReset = Hresult(0x887A0007);
inline constexpr HRESULT kDxgiDriverInternalError = Hresult(0x887A0020);
inline constexpr HRESULT kDxgiSdkComponentMissing = Hresult(0x887A002D);

constexpr bool Succeeded(HRESULT result) { return result >= 0; }

// A method that returns a structure. On Windows x64 the caller passes a pointer to the result after `this`, whatever the
// structure's size; on Linux the System V rules of an ordinary C++ method apply (registers up to 16 bytes). Declares the
// virtual method <Name>Abi and a wrapper <Name> that is the same everywhere.
#if defined(_WIN32)
#define NORMFUSE_COM_STRUCT_METHOD(Type, Name) \
  virtual Type* Name##Abi(Type* result) = 0;   \
  Type Name() {                                \
    Type value{};                              \
    Name##Abi(&value);                         \
    return value;                              \
  }
// Implements such a method in a class of our own: NORMFUSE_COM_STRUCT_METHOD_IMPL(LUID, GetAdapterLuid, luid_)
#define NORMFUSE_COM_STRUCT_METHOD_IMPL(Type, Name, value) \
  Type* Name##Abi(Type* result) override {                 \
    *result = (value);                                     \
    return result;                                         \
  }
#else
#define NORMFUSE_COM_STRUCT_METHOD(Type, Name) \
  virtual Type Name##Abi() = 0;                \
  Type Name() { return Name##Abi(); }
#define NORMFUSE_COM_STRUCT_METHOD_IMPL(Type, Name, value) \
  Type Name##Abi() override { return (value); }
#endif

// Vtable slots that we never call. The numbers are the slots'.
#define NORMFUSE_COM_UNUSED_SLOT(number) \
  virtual HRESULT UnusedSlot##number() { return kNotImplemented; }
#define NORMFUSE_COM_UNUSED_SLOTS_3(a, b, c) \
  NORMFUSE_COM_UNUSED_SLOT(a) NORMFUSE_COM_UNUSED_SLOT(b) NORMFUSE_COM_UNUSED_SLOT(c)
#define NORMFUSE_COM_UNUSED_SLOTS_5(a, b, c, d, e) \
  NORMFUSE_COM_UNUSED_SLOTS_3(a, b, c) NORMFUSE_COM_UNUSED_SLOT(d) NORMFUSE_COM_UNUSED_SLOT(e)

struct IUnknown {
  virtual HRESULT QueryInterface(const GUID& iid, void** object) = 0;
  virtual uint32_t AddRef() = 0;
  virtual uint32_t Release() = 0;

 protected:
  ~IUnknown() = default;
};

inline constexpr GUID kIidUnknown = {0x00000000, 0x0000, 0x0000, {0xC0, 0, 0, 0, 0, 0, 0, 0x46}};

}  // namespace normfuse::abi
