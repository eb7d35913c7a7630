#include "directml/device/buffer.h"

#include <atomic>

#include "directml/device/hresult.h"

namespace normfuse::directml {

using namespace abi;

namespace {

// Custom heaps are what upload and readback heaps are on a GPU with unified memory, but operators may write to them.
D3D12_HEAP_PROPERTIES HeapOf(BufferKind kind, MemoryArchitecture memory) {
  D3D12_HEAP_PROPERTIES heap = {D3D12_HEAP_TYPE_DEFAULT, D3D12_CPU_PAGE_PROPERTY_UNKNOWN, D3D12_MEMORY_POOL_UNKNOWN, 1,
                                1};
  switch (kind) {
    case BufferKind::kGpu:
      break;
    case BufferKind::kUpload:
      heap.Type = D3D12_HEAP_TYPE_UPLOAD;
      break;
    case BufferKind::kReadback:
      heap.Type = D3D12_HEAP_TYPE_READBACK;
      break;
    case BufferKind::kInput:
    case BufferKind::kOutput:
      heap.Type = D3D12_HEAP_TYPE_CUSTOM;
      heap.MemoryPoolPreference = D3D12_MEMORY_POOL_L0;
      heap.CPUPageProperty = kind == BufferKind::kInput && memory == MemoryArchitecture::kUnified
                                 ? D3D12_CPU_PAGE_PROPERTY_WRITE_COMBINE
                                 : D3D12_CPU_PAGE_PROPERTY_WRITE_BACK;
      break;
  }
  return heap;
}

// Upload and readback heaps have one state each for good.
D3D12_RESOURCE_STATES StateOf(BufferKind kind) {
  if (kind == BufferKind::kUpload) return D3D12_RESOURCE_STATE_GENERIC_READ;
  return kind == BufferKind::kReadback ? D3D12_RESOURCE_STATE_COPY_DEST : D3D12_RESOURCE_STATE_COMMON;
}

}  // namespace

Result CreateBuffer(ID3D12Device* device, BufferKind kind, MemoryArchitecture memory, uint64_t bytes, Buffer* buffer) {
  const D3D12_HEAP_PROPERTIES heap = HeapOf(kind, memory);
  const bool copied = kind == BufferKind::kUpload || kind == BufferKind::kReadback;
  const D3D12_RESOURCE_DESC desc = {D3D12_RESOURCE_DIMENSION_BUFFER,
                                    0,
                                    bytes,
                                    1,
                                    1,
                                    1,
                                    0,
                                    1,
                                    0,
                                    D3D12_TEXTURE_LAYOUT_ROW_MAJOR,
                                    copied ? 0 : D3D12_RESOURCE_FLAG_ALLOW_UNORDERED_ACCESS};
  static std::atomic<uint64_t> last_id{0};
  buffer->bytes = 0;
  NORMFUSE_RETURN_IF_FAILED("ID3D12Device::CreateCommittedResource",
                            device->CreateCommittedResource(&heap, 0, &desc, StateOf(kind), nullptr,
                                                            ID3D12Resource::kIid, buffer->resource.Receive()));
  buffer->bytes = bytes;
  buffer->id = ++last_id;
  return {};
}

MemoryArchitecture ReadMemoryArchitecture(ID3D12Device* device) {
  D3D12_FEATURE_DATA_ARCHITECTURE data = {};
  if (!Succeeded(device->CheckFeatureSupport(D3D12_FEATURE_ARCHITECTURE, &data, sizeof(data))) || !data.UMA) {
    return MemoryArchitecture::kDiscrete;
  }
  return data.CacheCoherentUMA ? MemoryArchitecture::kUnifiedCoherent : MemoryArchitecture::kUnified;
}

Mapping::~Mapping() {
  if (data_ == nullptr) return;
  const D3D12_RANGE nothing = {0, 0};
  resource_->Unmap(0, writes_ ? nullptr : &nothing);
}

Result Mapping::Write(const Buffer& buffer) {
  const D3D12_RANGE nothing = {0, 0};
  resource_ = buffer.resource.get();
  writes_ = true;
  return CheckHresult("ID3D12Resource::Map", resource_->Map(0, &nothing, &data_));
}

Result Mapping::Read(const Buffer& buffer, uint64_t bytes) {
  const D3D12_RANGE range = {0, bytes};
  resource_ = buffer.resource.get();
  writes_ = false;
  return CheckHresult("ID3D12Resource::Map", resource_->Map(0, &range, &data_));
}

}  // namespace normfuse::directml
