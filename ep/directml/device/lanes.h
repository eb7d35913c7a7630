// Buffers for calls in flight.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "directml/device/buffer.h"
#include "directml/device/gpu_work.h"

namespace normfuse::directml {

// What one call in flight reads from and writes to. Calls of all programs use the same lane, one after the other, so a
// model with many nodes takes the memory of its largest one.
struct Lane {
  uint32_t slot = 0;
  uint64_t generation = 0;  // another one when a buffer was replaced: what was recorded over the old ones is void
  Buffer upload, readback;  // nothing on unified memory, where inputs and outputs are mapped
  Buffer input, output, temporary;

  uint64_t bytes() const { return upload.bytes + readback.bytes + input.bytes + output.bytes + temporary.bytes; }
};

struct LaneSizes {
  uint64_t input = 0;
  uint64_t output = 0;
  uint64_t temporary = 0;
};

// Thread-safe. There are as many lanes as calls were in flight at once.
class LanePool {
 public:
  // Gives its lane back.
  class Lease {
   public:
    Lease() = default;
    Lease(const Lease&) = delete;
    ~Lease() {
      if (lane_ != nullptr) pool_->Return(lane_);
    }
    const Lane& operator*() const { return *lane_; }
    const Lane* operator->() const { return lane_; }

   private:
    friend class LanePool;
    LanePool* pool_ = nullptr;
    Lane* lane_ = nullptr;
  };

  LanePool(ComPtr<abi::ID3D12Device> device, MemoryArchitecture memory) : device_(std::move(device)), memory_(memory) {}

  // A lane with at least these sizes. Buffers that had to be created count in `work`.
  Result Acquire(const LaneSizes& sizes, Lease* lease, GpuWork* work);

 private:
  // Idle lanes beyond this give their buffers up, except the first, which is the next one to be used.
  static constexpr uint64_t kMaxIdleBytes = uint64_t{256} << 20U;

  struct Slot {
    std::unique_ptr<Lane> lane;
    bool busy = false;
  };

  Lane* Take();
  void Return(Lane* lane);
  Result Grow(Lane* lane, const LaneSizes& sizes, GpuWork* work);
  Result GrowBuffer(Buffer* buffer, BufferKind kind, uint64_t bytes, Lane* lane, GpuWork* work);

  ComPtr<abi::ID3D12Device> device_;
  MemoryArchitecture memory_;
  std::mutex mutex_;
  std::vector<Slot> slots_;
};

}  // namespace normfuse::directml
