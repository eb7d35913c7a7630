// Reference counting and QueryInterface for the COM objects of the tests.
#pragma once

#include <atomic>

#include "abi/com_abi.h"

// A function that a stand-in library exports.
#if defined(_WIN32)
#define NORMFUSE_TEST_EXPORT extern "C" __declspec(dllexport)
#else
#define NORMFUSE_TEST_EXPORT extern "C" __attribute__((visibility("default")))
#endif

namespace normfuse::test {

// An object that answers to IUnknown and to the listed identities. Interface is the most derived interface.
template <typename Interface, const abi::GUID&... Iids>
class ComObject : public Interface {
 public:
  virtual ~ComObject() = default;

  abi::HRESULT QueryInterface(const abi::GUID& iid, void** object) override {
    const bool known = iid == abi::kIidUnknown || ((iid == Iids) || ...);
    *object = known ? static_cast<Interface*>(this) : nullptr;
    if (known) AddRef();
    return known ? abi::kOk : abi::kNoInterface;
  }
  uint32_t AddRef() override { return ++references_; }
  uint32_t Release() override {
    const uint32_t left = --references_;
    if (left == 0) delete this;
    return left;
  }

 private:
  std::atomic<uint32_t> references_{1};
};

// Hands a new object out under `iid`; the reference moves to the caller.
template <typename Object>
abi::HRESULT HandOut(Object* made, const abi::GUID& iid, void** object) {
  const abi::HRESULT result = made->QueryInterface(iid, object);
  made->Release();
  return result;
}

}  // namespace normfuse::test
