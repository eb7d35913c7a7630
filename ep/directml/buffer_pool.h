// Committed buffers that are used again instead of being created for each call.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "abi/d3d12_abi.h"
#include "chain/result.h"
#include "directml/com_ptr.h"
#include "directml/gpu_work.h"

namespace normfuse::directml {

// A buffer of one heap type. In state COMMON between submissions.
struct Buffer {
  ComPtr<abi::ID3D12Resource> resource;
  abi::D3D12_HEAP_TYPE heap = abi::D3D12_HEAP_TYPE_DEFAULT;
  uint64_t bytes = 0;
};

Result CreateBuffer(abi::ID3D12Device* device, abi::D3D12_HEAP_TYPE heap, uint64_t bytes, Buffer* buffer);

// Thread-safe. Sizes are rounded up to powers of two; what lies idle beyond kMaxIdleBytes is released.
class BufferPool {
 public:
  // Returns its buffer to the pool.
  class Lease {
   public:
    Lease() = default;
    Lease(BufferPool* pool, Buffer buffer) : pool_(pool), buffer_(std::move(buffer)) {}
    Lease(Lease&& other) noexcept : pool_(std::exchange(other.pool_, nullptr)), buffer_(std::move(other.buffer_)) {}
    Lease& operator=(Lease&& other) noexcept {
      std::swap(pool_, other.pool_);
      std::swap(buffer_, other.buffer_);
      return *this;
    }
    ~Lease();

    abi::ID3D12Resource* get() const { return buffer_.resource.get(); }

   private:
    BufferPool* pool_ = nullptr;
    Buffer buffer_;
  };

  explicit BufferPool(ComPtr<abi::ID3D12Device> device) : device_(std::move(device)) {}

  // A buffer of at least `bytes`, with any content. Nothing (a null resource) for 0 bytes. A new one counts in `work`.
  Result Acquire(abi::D3D12_HEAP_TYPE heap, uint64_t bytes, Lease* lease, GpuWork* work);

 private:
  static constexpr uint64_t kMaxIdleBytes = uint64_t{256} << 20U;
  static constexpr uint64_t kSmallestBuffer = uint64_t{64} << 10U;

  void Return(Buffer buffer);

  ComPtr<abi::ID3D12Device> device_;
  std::mutex mutex_;
  std::vector<Buffer> idle_;
  uint64_t idle_bytes_ = 0;
};

}  // namespace normfuse::directml
