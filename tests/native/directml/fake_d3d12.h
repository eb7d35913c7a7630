// A Direct3D 12 in memory: buffers are vectors, a queue is a thread that runs what was recorded. It counts objects and
// calls, and notices what a real device would punish: resources, lists or descriptors released or written over while the
// queue still uses them, lists recorded while closed or submitted twice at once, copies out of range.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "abi/d3d12_abi.h"
#include "com_object.h"
#include "fake_control.h"

namespace normfuse::test {

// Counts itself among the live objects.
template <typename Interface, const abi::GUID&... Iids>
class FakeObject : public ComObject<Interface, Iids...> {
 public:
  FakeObject() { FakeState::Get().Count("live_objects"); }
  ~FakeObject() override { FakeState::Get().Count("live_objects", -1); }
};

template <typename Interface, const abi::GUID&... Iids>
class FakeChild : public FakeObject<Interface, Iids...> {
 public:
  abi::HRESULT GetDevice(const abi::GUID&, void**) override { return abi::kNotImplemented; }
};

class FakeResource final : public FakeChild<abi::ID3D12Resource, abi::ID3D12Resource::kIid> {
 public:
  FakeResource(const abi::D3D12_HEAP_PROPERTIES& heap, const abi::D3D12_RESOURCE_DESC& desc);
  ~FakeResource() override;

  abi::HRESULT Map(uint32_t, const abi::D3D12_RANGE*, void** data) override;
  void Unmap(uint32_t, const abi::D3D12_RANGE*) override {}
  NORMFUSE_COM_STRUCT_METHOD_IMPL(abi::D3D12_RESOURCE_DESC, GetDesc, desc_)
  uint64_t GetGPUVirtualAddress() override { return reinterpret_cast<uint64_t>(bytes.data()); }

  // Whether `resource` has not been released. What the queue finds released is a violation.
  static bool IsAlive(const abi::ID3D12Resource* resource, const char* use);

  abi::D3D12_HEAP_TYPE heap() const { return heap_.Type; }

  std::vector<uint8_t> bytes;

 private:
  abi::D3D12_HEAP_PROPERTIES heap_;
  abi::D3D12_RESOURCE_DESC desc_;
};

class FakeDescriptorHeap final : public FakeChild<abi::ID3D12DescriptorHeap, abi::ID3D12DescriptorHeap::kIid> {
 public:
  explicit FakeDescriptorHeap(const abi::D3D12_DESCRIPTOR_HEAP_DESC& desc)
      : desc_(desc), writers_(std::make_shared<std::vector<uint64_t>>(desc.NumDescriptors)) {}
  NORMFUSE_COM_STRUCT_METHOD_IMPL(abi::D3D12_DESCRIPTOR_HEAP_DESC, GetDesc, desc_)
  NORMFUSE_COM_STRUCT_METHOD_IMPL(abi::D3D12_CPU_DESCRIPTOR_HANDLE, GetCPUDescriptorHandleForHeapStart,
                                  (abi::D3D12_CPU_DESCRIPTOR_HANDLE{kCpuStart}))
  NORMFUSE_COM_STRUCT_METHOD_IMPL(abi::D3D12_GPU_DESCRIPTOR_HANDLE, GetGPUDescriptorHandleForHeapStart,
                                  (abi::D3D12_GPU_DESCRIPTOR_HANDLE{kGpuStart}))

  // Writes descriptors, as binding does. Returns what tells, when the queue reads them, whether they are still the same;
  // nothing where the handles do not fit the heap.
  std::function<bool()> Write(abi::D3D12_CPU_DESCRIPTOR_HANDLE cpu, abi::D3D12_GPU_DESCRIPTOR_HANDLE gpu,
                              uint32_t count);

  static constexpr uint32_t kStep = 32;

 private:
  static constexpr size_t kCpuStart = 0x1000;
  static constexpr uint64_t kGpuStart = 0x2000;

  abi::D3D12_DESCRIPTOR_HEAP_DESC desc_;
  std::shared_ptr<std::vector<uint64_t>> writers_;  // of each descriptor; gone with the heap
};

class FakeFence final : public FakeChild<abi::ID3D12Fence, abi::ID3D12Fence::kIid> {
 public:
  uint64_t GetCompletedValue() override;
  abi::HRESULT SetEventOnCompletion(uint64_t value, void* event) override;
  abi::HRESULT Signal(uint64_t value) override;

 private:
  std::mutex mutex_;
  std::condition_variable reached_;
  uint64_t value_ = 0;
};

class FakeCommandAllocator final : public FakeChild<abi::ID3D12CommandAllocator, abi::ID3D12CommandAllocator::kIid> {
 public:
  ~FakeCommandAllocator() override;
  abi::HRESULT Reset() override;
  // Submissions that the queue has not finished.
  std::shared_ptr<std::atomic<int>> in_flight = std::make_shared<std::atomic<int>>(0);
};

class FakeCommandList final : public FakeChild<abi::ID3D12GraphicsCommandList, abi::ID3D12GraphicsCommandList::kIid> {
 public:
  explicit FakeCommandList(abi::ID3D12CommandAllocator* allocator)
      : allocator_(static_cast<FakeCommandAllocator*>(allocator)) {}
  abi::D3D12_COMMAND_LIST_TYPE GetType() override { return abi::D3D12_COMMAND_LIST_TYPE_COMPUTE; }
  abi::HRESULT Close() override;
  abi::HRESULT Reset(abi::ID3D12CommandAllocator* allocator, void*) override;
  void CopyBufferRegion(abi::ID3D12Resource* destination, uint64_t destination_offset, abi::ID3D12Resource* source,
                        uint64_t source_offset, uint64_t bytes) override;
  void ResourceBarrier(uint32_t count, const abi::D3D12_RESOURCE_BARRIER* barriers) override;
  void SetDescriptorHeaps(uint32_t count, abi::ID3D12DescriptorHeap* const* heaps) override;

  // For RecordDispatch: appends work to the list.
  void Append(std::function<void()> command);
  abi::ID3D12DescriptorHeap* heap() const { return heap_; }
  std::vector<std::function<void()>> commands() const { return commands_; }
  FakeCommandAllocator* allocator() const { return allocator_; }
  bool open() const { return open_; }

 private:
  FakeCommandAllocator* allocator_;
  std::vector<std::function<void()>> commands_;
  abi::ID3D12DescriptorHeap* heap_ = nullptr;
  bool open_ = true;
};

class FakeQueue final : public FakeChild<abi::ID3D12CommandQueue, abi::ID3D12CommandQueue::kIid> {
 public:
  FakeQueue();
  ~FakeQueue() override;
  void ExecuteCommandLists(uint32_t count, abi::ID3D12CommandList* const* lists) override;
  abi::HRESULT Signal(abi::ID3D12Fence* fence, uint64_t value) override;

 private:
  void Work();
  void Push(std::function<void()> job);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> jobs_;
  bool stop_ = false;
  bool busy_ = false;
  std::thread worker_;
};

class FakeDevice final : public FakeObject<abi::ID3D12Device, abi::ID3D12Device::kIid> {
 public:
  abi::HRESULT CreateCommandQueue(const abi::D3D12_COMMAND_QUEUE_DESC*, const abi::GUID& iid, void** queue) override;
  abi::HRESULT CreateCommandAllocator(abi::D3D12_COMMAND_LIST_TYPE, const abi::GUID& iid, void** allocator) override;
  abi::HRESULT CreateCommandList(uint32_t, abi::D3D12_COMMAND_LIST_TYPE, abi::ID3D12CommandAllocator* allocator, void*,
                                 const abi::GUID& iid, void** list) override;
  abi::HRESULT CheckFeatureSupport(int32_t feature, void* data, uint32_t bytes) override;
  abi::HRESULT CreateDescriptorHeap(const abi::D3D12_DESCRIPTOR_HEAP_DESC* desc, const abi::GUID& iid,
                                    void** heap) override;
  uint32_t GetDescriptorHandleIncrementSize(int32_t) override { return FakeDescriptorHeap::kStep; }
  abi::HRESULT CreateCommittedResource(const abi::D3D12_HEAP_PROPERTIES* heap, uint32_t,
                                       const abi::D3D12_RESOURCE_DESC* desc, abi::D3D12_RESOURCE_STATES state,
                                       const void*, const abi::GUID& iid, void** resource) override;
  abi::HRESULT CreateFence(uint64_t, uint32_t, const abi::GUID& iid, void** fence) override;
  abi::HRESULT GetDeviceRemovedReason() override;
  NORMFUSE_COM_STRUCT_METHOD_IMPL(abi::LUID, GetAdapterLuid, (abi::LUID{7, 0}))

  // The device is lost from now on.
  void Remove(abi::HRESULT reason) { removed_ = reason; }

 private:
  std::atomic<abi::HRESULT> removed_{abi::kOk};
};

}  // namespace normfuse::test
