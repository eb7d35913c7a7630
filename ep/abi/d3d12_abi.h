// The part of Direct3D 12 that the DirectML path uses: buffers, one compute queue, command lists and fences. Numbers in
// the comments are vtable slots. Only buffers are created, so the resource description says nothing about textures.
#pragma once

#include "abi/com_abi.h"

namespace normfuse::abi {

enum D3D_FEATURE_LEVEL : uint32_t {
  D3D_FEATURE_LEVEL_1_0_CORE = 0x1000,
  D3D_FEATURE_LEVEL_11_0 = 0xb000,
};

enum D3D12_COMMAND_LIST_TYPE : int32_t {
  D3D12_COMMAND_LIST_TYPE_DIRECT = 0,
  D3D12_COMMAND_LIST_TYPE_COMPUTE = 2,
};

enum D3D12_HEAP_TYPE : int32_t {
  D3D12_HEAP_TYPE_DEFAULT = 1,
  D3D12_HEAP_TYPE_UPLOAD = 2,
  D3D12_HEAP_TYPE_READBACK = 3,
  D3D12_HEAP_TYPE_CUSTOM = 4,
};

enum D3D12_CPU_PAGE_PROPERTY : int32_t {
  D3D12_CPU_PAGE_PROPERTY_UNKNOWN = 0,
  D3D12_CPU_PAGE_PROPERTY_WRITE_COMBINE = 2,
  D3D12_CPU_PAGE_PROPERTY_WRITE_BACK = 3,
};

enum D3D12_MEMORY_POOL : int32_t {
  D3D12_MEMORY_POOL_UNKNOWN = 0,
  D3D12_MEMORY_POOL_L0 = 1,
};

enum D3D12_RESOURCE_STATES : uint32_t {
  D3D12_RESOURCE_STATE_COMMON = 0,
  D3D12_RESOURCE_STATE_UNORDERED_ACCESS = 0x8,
  D3D12_RESOURCE_STATE_COPY_DEST = 0x400,
  D3D12_RESOURCE_STATE_COPY_SOURCE = 0x800,
  D3D12_RESOURCE_STATE_GENERIC_READ = 0xAC3,
};

inline constexpr uint32_t D3D12_RESOURCE_FLAG_ALLOW_UNORDERED_ACCESS = 0x4;
inline constexpr int32_t D3D12_RESOURCE_DIMENSION_BUFFER = 1;
inline constexpr int32_t D3D12_TEXTURE_LAYOUT_ROW_MAJOR = 1;
inline constexpr int32_t D3D12_DESCRIPTOR_HEAP_TYPE_CBV_SRV_UAV = 0;
inline constexpr uint32_t D3D12_DESCRIPTOR_HEAP_FLAG_SHADER_VISIBLE = 1;
inline constexpr int32_t D3D12_FEATURE_ARCHITECTURE = 1;
inline constexpr int32_t D3D12_RESOURCE_BARRIER_TYPE_TRANSITION = 0;
inline constexpr int32_t D3D12_RESOURCE_BARRIER_TYPE_UAV = 2;
inline constexpr uint32_t D3D12_RESOURCE_BARRIER_ALL_SUBRESOURCES = 0xFFFFFFFF;

struct D3D12_COMMAND_QUEUE_DESC {
  D3D12_COMMAND_LIST_TYPE Type;
  int32_t Priority;
  uint32_t Flags;
  uint32_t NodeMask;
};
static_assert(sizeof(D3D12_COMMAND_QUEUE_DESC) == 16);

struct D3D12_DESCRIPTOR_HEAP_DESC {
  int32_t Type;
  uint32_t NumDescriptors;
  uint32_t Flags;
  uint32_t NodeMask;
};
static_assert(sizeof(D3D12_DESCRIPTOR_HEAP_DESC) == 16);

struct D3D12_HEAP_PROPERTIES {
  D3D12_HEAP_TYPE Type;
  D3D12_CPU_PAGE_PROPERTY CPUPageProperty;
  D3D12_MEMORY_POOL MemoryPoolPreference;
  uint32_t CreationNodeMask;
  uint32_t VisibleNodeMask;
};
static_assert(sizeof(D3D12_HEAP_PROPERTIES) == 20);

struct D3D12_FEATURE_DATA_ARCHITECTURE {
  UINT NodeIndex;
  BOOL TileBasedRenderer;
  BOOL UMA;
  BOOL CacheCoherentUMA;
};
static_assert(sizeof(D3D12_FEATURE_DATA_ARCHITECTURE) == 16);

struct D3D12_RESOURCE_DESC {
  int32_t Dimension;
  uint64_t Alignment;
  uint64_t Width;
  uint32_t Height;
  uint16_t DepthOrArraySize;
  uint16_t MipLevels;
  int32_t Format;
  uint32_t SampleCount;
  uint32_t SampleQuality;
  int32_t Layout;
  uint32_t Flags;
};
static_assert(sizeof(D3D12_RESOURCE_DESC) == 56 && offsetof(D3D12_RESOURCE_DESC, Width) == 16 &&
              offsetof(D3D12_RESOURCE_DESC, Format) == 32 && offsetof(D3D12_RESOURCE_DESC, Flags) == 48);

struct D3D12_RANGE {
  SIZE_T Begin;
  SIZE_T End;
};
static_assert(sizeof(D3D12_RANGE) == 16);

struct D3D12_CPU_DESCRIPTOR_HANDLE {
  SIZE_T ptr;
};
struct D3D12_GPU_DESCRIPTOR_HANDLE {
  uint64_t ptr;
};

struct ID3D12Resource;

struct D3D12_RESOURCE_BARRIER {
  int32_t Type;
  uint32_t Flags;
  ID3D12Resource* Resource;  // of a transition or of an unordered-access barrier (null: all resources)
  uint32_t Subresource;
  D3D12_RESOURCE_STATES StateBefore;
  D3D12_RESOURCE_STATES StateAfter;
};
static_assert(sizeof(D3D12_RESOURCE_BARRIER) == 32 && offsetof(D3D12_RESOURCE_BARRIER, Resource) == 8 &&
              offsetof(D3D12_RESOURCE_BARRIER, StateAfter) == 24);

struct ID3D12Object : IUnknown {
  // GetPrivateData, SetPrivateData, SetPrivateDataInterface
  NORMFUSE_COM_UNUSED_SLOTS_3(3, 4, 5)
  virtual HRESULT SetName(const void*) {  // 6
    return kOk;
  }
};

struct ID3D12DeviceChild : ID3D12Object {
  virtual HRESULT GetDevice(const GUID& iid, void** device) = 0;  // 7
};

struct ID3D12DescriptorHeap : ID3D12DeviceChild {
  static constexpr GUID kIid = {0x8efb471d, 0x616c, 0x4f49, {0x90, 0xf7, 0x12, 0x7b, 0xb7, 0x63, 0xfa, 0x51}};
  NORMFUSE_COM_STRUCT_METHOD(D3D12_DESCRIPTOR_HEAP_DESC, GetDesc)                              // 8
  NORMFUSE_COM_STRUCT_METHOD(D3D12_CPU_DESCRIPTOR_HANDLE, GetCPUDescriptorHandleForHeapStart)  // 9
  NORMFUSE_COM_STRUCT_METHOD(D3D12_GPU_DESCRIPTOR_HANDLE, GetGPUDescriptorHandleForHeapStart)  // 10
};

struct ID3D12Resource : ID3D12DeviceChild {
  static constexpr GUID kIid = {0x696442be, 0xa72e, 0x4059, {0xbc, 0x79, 0x5b, 0x5c, 0x98, 0x04, 0x0f, 0xad}};
  virtual HRESULT Map(uint32_t subresource, const D3D12_RANGE* read_range, void** data) = 0;  // 8
  virtual void Unmap(uint32_t subresource, const D3D12_RANGE* written_range) = 0;             // 9
  NORMFUSE_COM_STRUCT_METHOD(D3D12_RESOURCE_DESC, GetDesc)                                    // 10
  virtual uint64_t GetGPUVirtualAddress() = 0;                                                // 11
};

struct ID3D12Fence : ID3D12DeviceChild {
  static constexpr GUID kIid = {0x0a753dcf, 0xc4d8, 0x4b91, {0xad, 0xf6, 0xbe, 0x5a, 0x60, 0xd9, 0x5a, 0x76}};
  virtual uint64_t GetCompletedValue() = 0;                               // 8
  virtual HRESULT SetEventOnCompletion(uint64_t value, void* event) = 0;  // 9; a null event waits in the call
  virtual HRESULT Signal(uint64_t value) = 0;                             // 10
};

struct ID3D12CommandAllocator : ID3D12DeviceChild {
  static constexpr GUID kIid = {0x6102dee4, 0xaf59, 0x4b09, {0xb9, 0x99, 0xb4, 0x4d, 0x73, 0xf0, 0x9b, 0x24}};
  virtual HRESULT Reset() = 0;  // 8
};

struct ID3D12CommandList : ID3D12DeviceChild {
  virtual D3D12_COMMAND_LIST_TYPE GetType() = 0;  // 8
};

struct ID3D12GraphicsCommandList : ID3D12CommandList {
  static constexpr GUID kIid = {0x5b160d0f, 0xac1b, 0x4185, {0x8b, 0xa8, 0xb3, 0xae, 0x42, 0xa5, 0xa4, 0x55}};
  virtual HRESULT Close() = 0;                                                        // 9
  virtual HRESULT Reset(ID3D12CommandAllocator* allocator, void* initial_state) = 0;  // 10
  // ClearState, DrawInstanced, DrawIndexedInstanced
  NORMFUSE_COM_UNUSED_SLOTS_3(11, 12, 13)
  NORMFUSE_COM_UNUSED_SLOT(14)                                                             // Dispatch
  virtual void CopyBufferRegion(ID3D12Resource* destination, uint64_t destination_offset,  // 15
                                ID3D12Resource* source, uint64_t source_offset, uint64_t bytes) = 0;
  // CopyTextureRegion, CopyResource, CopyTiles, ResolveSubresource, IASetPrimitiveTopology
  NORMFUSE_COM_UNUSED_SLOTS_5(16, 17, 18, 19, 20)
  // RSSetViewports, RSSetScissorRects, OMSetBlendFactor, OMSetStencilRef, SetPipelineState
  NORMFUSE_COM_UNUSED_SLOTS_5(21, 22, 23, 24, 25)
  virtual void ResourceBarrier(uint32_t count, const D3D12_RESOURCE_BARRIER* barriers) = 0;  // 26
  NORMFUSE_COM_UNUSED_SLOT(27)                                                               // ExecuteBundle
  virtual void SetDescriptorHeaps(uint32_t count, ID3D12DescriptorHeap* const* heaps) = 0;   // 28
};

struct ID3D12CommandQueue : ID3D12DeviceChild {
  static constexpr GUID kIid = {0x0ec870a6, 0x5d7e, 0x4c22, {0x8c, 0xfc, 0x5b, 0xaa, 0xe0, 0x76, 0x16, 0xed}};
  NORMFUSE_COM_UNUSED_SLOT(8)                                                             // UpdateTileMappings
  NORMFUSE_COM_UNUSED_SLOT(9)                                                             // CopyTileMappings
  virtual void ExecuteCommandLists(uint32_t count, ID3D12CommandList* const* lists) = 0;  // 10
  // SetMarker, BeginEvent, EndEvent
  NORMFUSE_COM_UNUSED_SLOTS_3(11, 12, 13)
  virtual HRESULT Signal(ID3D12Fence* fence, uint64_t value) = 0;  // 14
};

struct ID3D12Device : ID3D12Object {
  static constexpr GUID kIid = {0x189819f1, 0x1db6, 0x4b57, {0xbe, 0x54, 0x18, 0x21, 0x33, 0x9b, 0x85, 0xf7}};
  NORMFUSE_COM_UNUSED_SLOT(7)                                                                // GetNodeCount
  virtual HRESULT CreateCommandQueue(const D3D12_COMMAND_QUEUE_DESC* desc, const GUID& iid,  // 8
                                     void** queue) = 0;
  virtual HRESULT CreateCommandAllocator(D3D12_COMMAND_LIST_TYPE type, const GUID& iid,  // 9
                                         void** allocator) = 0;
  NORMFUSE_COM_UNUSED_SLOT(10)                                                         // CreateGraphicsPipelineState
  NORMFUSE_COM_UNUSED_SLOT(11)                                                         // CreateComputePipelineState
  virtual HRESULT CreateCommandList(uint32_t node_mask, D3D12_COMMAND_LIST_TYPE type,  // 12
                                    ID3D12CommandAllocator* allocator, void* initial_state, const GUID& iid,
                                    void** list) = 0;
  virtual HRESULT CheckFeatureSupport(int32_t feature, void* data, uint32_t bytes) = 0;          // 13
  virtual HRESULT CreateDescriptorHeap(const D3D12_DESCRIPTOR_HEAP_DESC* desc, const GUID& iid,  // 14
                                       void** heap) = 0;
  virtual uint32_t GetDescriptorHandleIncrementSize(int32_t heap_type) = 0;  // 15
  // CreateRootSignature, CreateConstantBufferView, CreateShaderResourceView, CreateUnorderedAccessView, CreateRenderTargetView
  NORMFUSE_COM_UNUSED_SLOTS_5(16, 17, 18, 19, 20)
  // CreateDepthStencilView, CreateSampler, CopyDescriptors, CopyDescriptorsSimple, GetResourceAllocationInfo
  NORMFUSE_COM_UNUSED_SLOTS_5(21, 22, 23, 24, 25)
  NORMFUSE_COM_UNUSED_SLOT(26)  // GetCustomHeapProperties
  virtual HRESULT CreateCommittedResource(const D3D12_HEAP_PROPERTIES* heap, uint32_t heap_flags,  // 27
                                          const D3D12_RESOURCE_DESC* desc, D3D12_RESOURCE_STATES initial_state,
                                          const void* clear_value, const GUID& iid, void** resource) = 0;
  // CreateHeap, CreatePlacedResource, CreateReservedResource, CreateSharedHandle, OpenSharedHandle
  NORMFUSE_COM_UNUSED_SLOTS_5(28, 29, 30, 31, 32)
  // OpenSharedHandleByName, MakeResident, Evict
  NORMFUSE_COM_UNUSED_SLOTS_3(33, 34, 35)
  virtual HRESULT CreateFence(uint64_t initial_value, uint32_t flags, const GUID& iid, void** fence) = 0;  // 36
  virtual HRESULT GetDeviceRemovedReason() = 0;                                                            // 37
  // GetCopyableFootprints, CreateQueryHeap, SetStablePowerState, CreateCommandSignature, GetResourceTiling
  NORMFUSE_COM_UNUSED_SLOTS_5(38, 39, 40, 41, 42)
  NORMFUSE_COM_STRUCT_METHOD(LUID, GetAdapterLuid)  // 43
};

// Exported by d3d12.dll and libd3d12.so. A null adapter is the system's default.
using D3D12CreateDeviceFunction = HRESULT (*)(IUnknown* adapter, D3D_FEATURE_LEVEL minimum, const GUID& iid,
                                              void** device);

}  // namespace normfuse::abi
