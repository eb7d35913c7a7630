// Ranges of shader-visible descriptors. A heap is slow to create, so few large ones are shared.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "abi/d3d12_abi.h"
#include "chain/result.h"
#include "directml/device/com_ptr.h"
#include "directml/device/gpu_work.h"

namespace normfuse::directml {

// Thread-safe.
class DescriptorPool {
  struct Heap;

 public:
  // Descriptors that are this one's as long as it lives.
  class Range {
   public:
    Range() = default;
    Range(Range&& other) noexcept { *this = std::move(other); }
    Range& operator=(Range&& other) noexcept {
      std::swap(pool_, other.pool_);
      std::swap(heap_, other.heap_);
      std::swap(first_, other.first_);
      std::swap(count_, other.count_);
      return *this;
    }
    ~Range() {
      if (pool_ != nullptr) pool_->Return(heap_, first_, count_);
    }

    abi::ID3D12DescriptorHeap* heap() const;
    abi::D3D12_CPU_DESCRIPTOR_HANDLE cpu() const;
    abi::D3D12_GPU_DESCRIPTOR_HANDLE gpu() const;
    uint32_t count() const { return count_; }

   private:
    friend class DescriptorPool;
    DescriptorPool* pool_ = nullptr;
    Heap* heap_ = nullptr;
    uint32_t first_ = 0;
    uint32_t count_ = 0;
  };

  explicit DescriptorPool(ComPtr<abi::ID3D12Device> device) : device_(std::move(device)) {}

  // A heap that had to be created counts in `work`.
  Result Acquire(uint32_t count, Range* range, GpuWork* work);

 private:
  static constexpr uint32_t kHeapSize = 4096;

  struct Free {
    uint32_t first = 0;
    uint32_t count = 0;
  };
  struct Heap {
    ComPtr<abi::ID3D12DescriptorHeap> descriptors;
    std::vector<Free> free;  // by position, neighbours joined
  };

  bool TakeFrom(Heap* heap, uint32_t count, Range* range);
  Result AddHeap(uint32_t count, GpuWork* work);
  void Return(Heap* heap, uint32_t first, uint32_t count);

  ComPtr<abi::ID3D12Device> device_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Heap>> heaps_;
};

}  // namespace normfuse::directml
