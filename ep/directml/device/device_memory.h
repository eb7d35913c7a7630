// Tensors that stay on a GPU between the calls of nodes. ONNX Runtime gets addresses for them, at which there is no
// memory; what a tensor holds is kept here by its address. That is never changed: who writes a tensor gives its address
// another content.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "chain/result.h"
#include "directml/device/gpu.h"

namespace normfuse::directml {

// Bytes on the CPU, or in a buffer of a GPU. What comes from the CPU goes up with the first call that reads it, and stays
// there from the second on.
class DeviceContent {
 public:
  explicit DeviceContent(std::vector<unsigned char> bytes) : on_cpu_(std::move(bytes)) {}
  // A buffer for as many bytes, which a program of this GPU writes.
  static Result OnGpu(const std::shared_ptr<Gpu>& gpu, uint64_t bytes, std::shared_ptr<DeviceContent>* content,
                      GpuWork* work);
  // The same bytes in a buffer.
  Result Upload(const std::shared_ptr<Gpu>& gpu, std::shared_ptr<DeviceContent>* content, GpuWork* work) const;
  DeviceContent(const DeviceContent&) = delete;
  ~DeviceContent();

  bool IsOn(const Gpu* gpu) const { return gpu_ != nullptr && gpu_.get() == gpu; }
  // Null where it is on a GPU.
  const void* on_cpu() const { return gpu_ == nullptr ? on_cpu_.data() : nullptr; }
  const Buffer& buffer() const { return buffer_; }
  uint64_t bytes() const { return gpu_ == nullptr ? on_cpu_.size() : bytes_; }

  // Whether a call has asked before.
  bool WasRead() const { return was_read_.exchange(true); }
  // The first bytes of a content, and where they go on the CPU.
  struct Reading {
    std::shared_ptr<const DeviceContent> content;
    uint64_t bytes;
    void* to;
  };
  // Of all that is on one GPU in one go.
  static Result Read(const std::vector<Reading>& readings);

 private:
  std::vector<unsigned char> on_cpu_;
  mutable std::atomic<bool> was_read_{false};
  std::shared_ptr<Gpu> gpu_;
  Buffer buffer_;
  uint64_t bytes_ = 0;
};

using Content = std::shared_ptr<const DeviceContent>;

// Of the whole process, as ONNX Runtime's tensors are; they may outlive sessions. Thread-safe.
namespace device_memory {

// Null where the system has no addresses left.
void* Reserve(uint64_t bytes);
// Ends what the addresses hold.
void Release(void* address);
// Whether the address is one of those.
bool Contains(const void* address);

void Put(void* address, Content content);
// Puts the same bytes, which are in another place now, unless the address has got others in the meantime.
void Replace(const void* address, const Content& content, Content same);
// What was put at the address. An error where nothing was, or less than that.
Result Get(const void* address, uint64_t bytes, Content* content);

}  // namespace device_memory

}  // namespace normfuse::directml
