#include "directml/buffer_pool.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "directml/hresult.h"

namespace normfuse::directml {

using namespace abi;

Result CreateBuffer(ID3D12Device* device, D3D12_HEAP_TYPE heap, uint64_t bytes, Buffer* buffer) {
  const D3D12_HEAP_PROPERTIES properties = {heap, 0, 0, 1, 1};
  const uint32_t flags = heap == D3D12_HEAP_TYPE_DEFAULT ? D3D12_RESOURCE_FLAG_ALLOW_UNORDERED_ACCESS : 0;
  const D3D12_RESOURCE_DESC desc = {D3D12_RESOURCE_DIMENSION_BUFFER, 0,    bytes, 1, 1, 1, 0, 1, 0,
                                    D3D12_TEXTURE_LAYOUT_ROW_MAJOR,  flags};
  // Upload and readback heaps have one state each for good.
  const D3D12_RESOURCE_STATES state = heap == D3D12_HEAP_TYPE_UPLOAD     ? D3D12_RESOURCE_STATE_GENERIC_READ
                                      : heap == D3D12_HEAP_TYPE_READBACK ? D3D12_RESOURCE_STATE_COPY_DEST
                                                                         : D3D12_RESOURCE_STATE_COMMON;
  NORMFUSE_RETURN_IF_FAILED("ID3D12Device::CreateCommittedResource",
                            device->CreateCommittedResource(&properties, 0, &desc, state, nullptr, ID3D12Resource::kIid,
                                                            buffer->resource.Receive()));
  buffer->heap = heap;
  buffer->bytes = bytes;
  return {};
}

BufferPool::Lease::~Lease() {
  if (pool_ != nullptr) pool_->Return(std::move(buffer_));
}

Result BufferPool::Acquire(D3D12_HEAP_TYPE heap, uint64_t bytes, Lease* lease, GpuWork* work) {
  if (bytes == 0) return {};
  const uint64_t size = std::bit_ceil(std::max(bytes, kSmallestBuffer));
  {
    const std::lock_guard lock(mutex_);
    for (size_t i = 0; i < idle_.size(); ++i) {
      if (idle_[i].heap != heap || idle_[i].bytes != size) continue;
      *lease = Lease(this, std::move(idle_[i]));
      idle_.erase(idle_.begin() + static_cast<int64_t>(i));
      idle_bytes_ -= size;
      return {};
    }
  }
  Buffer buffer;
  NORMFUSE_RETURN_IF_ERROR(CreateBuffer(device_.get(), heap, size, &buffer));
  ++work->created;
  *lease = Lease(this, std::move(buffer));
  return {};
}

void BufferPool::Return(Buffer buffer) {
  const std::lock_guard lock(mutex_);
  idle_bytes_ += buffer.bytes;
  idle_.push_back(std::move(buffer));
  // The ones that have been idle for longest come first.
  while (idle_bytes_ > kMaxIdleBytes && idle_.size() > 1) {
    idle_bytes_ -= idle_.front().bytes;
    idle_.erase(idle_.begin());
  }
}

}  // namespace normfuse::directml
