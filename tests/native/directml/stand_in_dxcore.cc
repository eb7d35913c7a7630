// Stands in for libdxcore.so where there is none: one adapter, of no particular make, for whatever LUID is asked.
#include <cstring>

#include "abi/dxcore_abi.h"
#include "com_object.h"

namespace {

using namespace normfuse;
using namespace normfuse::abi;

constexpr char kDescription[] = "normfuse validation adapter";

class Adapter final : public test::ComObject<IDXCoreAdapter, IDXCoreAdapter::kIid> {
 public:
  bool IsValid() override { return true; }
  bool IsAttributeSupported(const GUID&) override { return true; }
  bool IsPropertySupported(DXCoreAdapterProperty) override { return true; }
  HRESULT GetProperty(DXCoreAdapterProperty property, size_t bytes, void* data) override {
    std::memset(data, 0, bytes);
    if (property == DXCoreAdapterProperty::DriverDescription) {
      std::memcpy(data, kDescription, bytes < sizeof(kDescription) ? bytes : sizeof(kDescription));
    }
    return kOk;
  }
  HRESULT GetPropertySize(DXCoreAdapterProperty property, size_t* bytes) override {
    *bytes = property == DXCoreAdapterProperty::DriverDescription ? sizeof(kDescription) : 16;
    return kOk;
  }
};

class Factory final : public test::ComObject<IDXCoreAdapterFactory, IDXCoreAdapterFactory::kIid> {
 public:
  HRESULT CreateAdapterList(uint32_t, const GUID*, const GUID&, void**) override { return kNotImplemented; }
  HRESULT GetAdapterByLuid(const LUID&, const GUID& iid, void** adapter) override {
    return test::HandOut(new Adapter, iid, adapter);
  }
};

}  // namespace

NORMFUSE_TEST_EXPORT HRESULT DXCoreCreateAdapterFactory(const GUID& iid, void** factory) {
  return test::HandOut(new Factory, iid, factory);
}
