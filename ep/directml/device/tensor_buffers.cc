#include "directml/device/tensor_buffers.h"

#include <algorithm>
#include <bit>
#include <new>
#include <utility>

namespace normfuse::directml {

Result TensorBuffers::Acquire(uint64_t bytes, Buffer* buffer, GpuWork* work) {
  // Direct3D gives no buffer less.
  const uint64_t size = std::bit_ceil(std::max(bytes, uint64_t{64} << 10U));
  {
    const std::lock_guard lock(mutex_);
    // The one that was used last.
    const auto found =
        std::find_if(idle_.rbegin(), idle_.rend(), [size](const Buffer& each) { return each.bytes == size; });
    if (found != idle_.rend()) {
      *buffer = std::move(*found);
      idle_.erase(std::next(found).base());
      idle_bytes_ -= size;
      return {};
    }
  }
  ++work->created;
  return CreateBuffer(device_.get(), BufferKind::kGpu, memory_, size, buffer);
}

void TensorBuffers::Return(Buffer buffer) noexcept {
  const std::lock_guard lock(mutex_);
  const uint64_t bytes = buffer.bytes;
  if (idle_bytes_ + bytes > kMaxIdleBytes) return;
  try {
    idle_.push_back(std::move(buffer));
    idle_bytes_ += bytes;
  } catch (const std::bad_alloc&) {  // one less to be used again
  }
}

}  // namespace normfuse::directml
