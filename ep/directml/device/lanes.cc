#include "directml/device/lanes.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace normfuse::directml {
namespace {

constexpr uint64_t kSmallestBuffer = uint64_t{64} << 10U;

}  // namespace

Result LanePool::Acquire(const LaneSizes& sizes, Lease* lease, GpuWork* work) {
  lease->pool_ = this;
  lease->lane_ = Take();
  return Grow(lease->lane_, sizes, work);
}

// The first idle one, so that a caller alone always gets the same.
Lane* LanePool::Take() {
  const std::lock_guard lock(mutex_);
  auto slot = std::find_if(slots_.begin(), slots_.end(), [](const Slot& each) { return !each.busy; });
  if (slot == slots_.end()) {
    slots_.push_back({std::make_unique<Lane>(), false});
    slot = slots_.end() - 1;
    slot->lane->slot = static_cast<uint32_t>(slots_.size() - 1);
  }
  slot->busy = true;
  return slot->lane.get();
}

void LanePool::Return(Lane* lane) {
  const std::lock_guard lock(mutex_);
  slots_[lane->slot].busy = false;
  uint64_t idle = 0;
  for (Slot& slot : slots_) {
    if (slot.busy) continue;
    idle += slot.lane->bytes();
    if (idle <= kMaxIdleBytes || slot.lane->slot == 0) continue;
    idle -= slot.lane->bytes();
    Lane empty;
    empty.slot = slot.lane->slot;
    empty.generation = slot.lane->generation + 1;
    *slot.lane = std::move(empty);
  }
}

Result LanePool::Grow(Lane* lane, const LaneSizes& sizes, GpuWork* work) {
  const bool unified = memory_ != MemoryArchitecture::kDiscrete;
  if (!unified) {
    NORMFUSE_RETURN_IF_ERROR(GrowBuffer(&lane->upload, BufferKind::kUpload, sizes.input, lane, work));
    NORMFUSE_RETURN_IF_ERROR(GrowBuffer(&lane->readback, BufferKind::kReadback, sizes.output, lane, work));
  }
  NORMFUSE_RETURN_IF_ERROR(
      GrowBuffer(&lane->input, unified ? BufferKind::kInput : BufferKind::kGpu, sizes.input, lane, work));
  NORMFUSE_RETURN_IF_ERROR(
      GrowBuffer(&lane->output, unified ? BufferKind::kOutput : BufferKind::kGpu, sizes.output, lane, work));
  return GrowBuffer(&lane->temporary, BufferKind::kGpu, sizes.temporary, lane, work);
}

Result LanePool::GrowBuffer(Buffer* buffer, BufferKind kind, uint64_t bytes, Lane* lane, GpuWork* work) {
  if (bytes <= buffer->bytes) return {};
  ++lane->generation;
  *buffer = {};  // first, so that both need not fit
  NORMFUSE_RETURN_IF_ERROR(
      CreateBuffer(device_.get(), kind, memory_, std::bit_ceil(std::max(bytes, kSmallestBuffer)), buffer));
  ++work->created;
  return {};
}

}  // namespace normfuse::directml
