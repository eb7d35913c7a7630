#include "directml/device/descriptors.h"

#include <algorithm>
#include <bit>

#include "directml/device/hresult.h"

namespace normfuse::directml {

using namespace abi;

ID3D12DescriptorHeap* DescriptorPool::Range::heap() const { return heap_->descriptors.get(); }

D3D12_CPU_DESCRIPTOR_HANDLE DescriptorPool::Range::cpu() const {
  const uint32_t step = pool_->device_->GetDescriptorHandleIncrementSize(D3D12_DESCRIPTOR_HEAP_TYPE_CBV_SRV_UAV);
  return {heap()->GetCPUDescriptorHandleForHeapStart().ptr + SIZE_T{first_} * step};
}

D3D12_GPU_DESCRIPTOR_HANDLE DescriptorPool::Range::gpu() const {
  const uint32_t step = pool_->device_->GetDescriptorHandleIncrementSize(D3D12_DESCRIPTOR_HEAP_TYPE_CBV_SRV_UAV);
  return {heap()->GetGPUDescriptorHandleForHeapStart().ptr + uint64_t{first_} * step};
}

Result DescriptorPool::Acquire(uint32_t count, Range* range, GpuWork* work) {
  const std::lock_guard lock(mutex_);
  for (const auto& heap : heaps_) {
    if (TakeFrom(heap.get(), count, range)) return {};
  }
  NORMFUSE_RETURN_IF_ERROR(AddHeap(count, work));
  TakeFrom(heaps_.back().get(), count, range);
  return {};
}

bool DescriptorPool::TakeFrom(Heap* heap, uint32_t count, Range* range) {
  for (auto free = heap->free.begin(); free != heap->free.end(); ++free) {
    if (free->count < count) continue;
    range->pool_ = this;
    range->heap_ = heap;
    range->first_ = free->first;
    range->count_ = count;
    free->first += count;
    free->count -= count;
    if (free->count == 0) heap->free.erase(free);
    return true;
  }
  return false;
}

Result DescriptorPool::AddHeap(uint32_t count, GpuWork* work) {
  const uint32_t size = std::bit_ceil(std::max(count, kHeapSize));
  const D3D12_DESCRIPTOR_HEAP_DESC desc = {D3D12_DESCRIPTOR_HEAP_TYPE_CBV_SRV_UAV, size,
                                           D3D12_DESCRIPTOR_HEAP_FLAG_SHADER_VISIBLE, 0};
  auto heap = std::make_unique<Heap>();
  NORMFUSE_RETURN_IF_FAILED(
      "ID3D12Device::CreateDescriptorHeap",
      device_->CreateDescriptorHeap(&desc, ID3D12DescriptorHeap::kIid, heap->descriptors.Receive()));
  ++work->created;
  heap->free.push_back({0, size});
  heaps_.push_back(std::move(heap));
  return {};
}

void DescriptorPool::Return(Heap* heap, uint32_t first, uint32_t count) {
  const std::lock_guard lock(mutex_);
  auto next = std::find_if(heap->free.begin(), heap->free.end(), [&](const Free& each) { return each.first > first; });
  next = heap->free.insert(next, {first, count});
  if (next + 1 != heap->free.end() && next->first + next->count == (next + 1)->first) {
    next->count += (next + 1)->count;
    heap->free.erase(next + 1);
  }
  if (next != heap->free.begin() && (next - 1)->first + (next - 1)->count == next->first) {
    (next - 1)->count += next->count;
    heap->free.erase(next);
  }
}

}  // namespace normfuse::directml
