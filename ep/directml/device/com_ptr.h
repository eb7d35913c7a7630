// A counted reference to a COM object.
#pragma once

#include <utility>

#include "abi/com_abi.h"

namespace normfuse::directml {

template <typename T>
class ComPtr {
 public:
  ComPtr() = default;
  ComPtr(const ComPtr& other) : object_(other.object_) {
    if (object_ != nullptr) object_->AddRef();
  }
  ComPtr(ComPtr&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  ComPtr& operator=(ComPtr other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~ComPtr() {
    if (object_ != nullptr) object_->Release();
  }

  T* get() const { return object_; }
  T* operator->() const { return object_; }
  explicit operator bool() const { return object_ != nullptr; }

  // Where a creating function writes the object; what was held is released first.
  void** Receive() {
    *this = ComPtr();
    return reinterpret_cast<void**>(&object_);
  }

 private:
  T* object_ = nullptr;
};

}  // namespace normfuse::directml
