// Buffers for tensors that stay on a GPU between calls.
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include "directml/device/buffer.h"
#include "directml/device/gpu_work.h"

namespace normfuse::directml {

// Thread-safe.
class TensorBuffers {
 public:
  TensorBuffers(ComPtr<abi::ID3D12Device> device, MemoryArchitecture memory)
      : device_(std::move(device)), memory_(memory) {}

  // One of at least that size. Where it had to be created it counts in `work`.
  Result Acquire(uint64_t bytes, Buffer* buffer, GpuWork* work);
  // Of what no call uses any more.
  void Return(Buffer buffer) noexcept;

 private:
  // Idle buffers beyond this are released.
  static constexpr uint64_t kMaxIdleBytes = uint64_t{256} << 20U;

  ComPtr<abi::ID3D12Device> device_;
  MemoryArchitecture memory_;
  std::mutex mutex_;
  std::vector<Buffer> idle_;
  uint64_t idle_bytes_ = 0;
};

}  // namespace normfuse::directml
