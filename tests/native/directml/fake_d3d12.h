// A Direct3D 12 in memory: buffers are vectors, a queue is a thread that runs what was recorded. It counts objects and
// calls, and notices what a real device would punish: resources, lists or descriptors released or written over while the
// queue still uses them, lists recorded while closed or submitted twice at once, copies out of range.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
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

using namespace abi;

// Counts itself among the live objects.
template <typename Interface, const GUID&... Iids>
class FakeObject : public ComObject<Interface, Iids...> {
 public:
  FakeObject() { FakeState::Get().Count("live_objects"); }
  ~FakeObject() override { FakeState::Get().Count("live_objects", -1); }
};

template <typename Interface, const GUID&... Iids>
class FakeChild : public FakeObject<Interface, Iids...> {
 public:
  HRESULT GetDevice(const GUID&, void**) override { return kNotImplemented; }
};

class FakeResource final : public FakeChild<ID3D12Resource, ID3D12Resource::kIid> {
 public:
  FakeResource(const D3D12_HEAP_PROPERTIES& heap, const D3D12_RESOURCE_DESC& desc)
      : bytes(desc.Width, 0xCD), heap_(heap), desc_(desc) {
    const std::lock_guard lock(AliveMutex());
    Alive().insert(this);
  }
  ~FakeResource() override {
    const std::lock_guard lock(AliveMutex());
    Alive().erase(this);
  }

  HRESULT Map(uint32_t, const D3D12_RANGE*, void** data) override {
    NORMFUSE_FAKE_ENTER("Map");
    if (heap_.Type == D3D12_HEAP_TYPE_DEFAULT) return kInvalidArgument;
    *data = bytes.data();
    return kOk;
  }
  void Unmap(uint32_t, const D3D12_RANGE*) override {}
  NORMFUSE_COM_STRUCT_METHOD_IMPL(D3D12_RESOURCE_DESC, GetDesc, desc_)
  uint64_t GetGPUVirtualAddress() override { return reinterpret_cast<uint64_t>(bytes.data()); }

  // Whether `resource` has not been released. What the queue finds released is a violation.
  static bool IsAlive(const ID3D12Resource* resource, const char* use) {
    const std::lock_guard lock(AliveMutex());
    const bool alive = Alive().count(resource) != 0;
    if (!alive) FakeState::Get().Violation(std::string(use) + ": the resource was released");
    return alive;
  }

  D3D12_HEAP_TYPE heap() const { return heap_.Type; }

  std::vector<uint8_t> bytes;

 private:
  static std::mutex& AliveMutex() {
    static std::mutex mutex;
    return mutex;
  }
  static std::set<const ID3D12Resource*>& Alive() {
    static std::set<const ID3D12Resource*> alive;
    return alive;
  }

  D3D12_HEAP_PROPERTIES heap_;
  D3D12_RESOURCE_DESC desc_;
};

class FakeDescriptorHeap final : public FakeChild<ID3D12DescriptorHeap, ID3D12DescriptorHeap::kIid> {
 public:
  explicit FakeDescriptorHeap(const D3D12_DESCRIPTOR_HEAP_DESC& desc)
      : desc_(desc), writers_(std::make_shared<std::vector<uint64_t>>(desc.NumDescriptors)) {}
  NORMFUSE_COM_STRUCT_METHOD_IMPL(D3D12_DESCRIPTOR_HEAP_DESC, GetDesc, desc_)
  NORMFUSE_COM_STRUCT_METHOD_IMPL(D3D12_CPU_DESCRIPTOR_HANDLE, GetCPUDescriptorHandleForHeapStart,
                                  (D3D12_CPU_DESCRIPTOR_HANDLE{kCpuStart}))
  NORMFUSE_COM_STRUCT_METHOD_IMPL(D3D12_GPU_DESCRIPTOR_HANDLE, GetGPUDescriptorHandleForHeapStart,
                                  (D3D12_GPU_DESCRIPTOR_HANDLE{kGpuStart}))

  // Writes descriptors, as binding does. Returns what tells, when the queue reads them, whether they are still the same;
  // nothing where the handles do not fit the heap.
  std::function<bool()> Write(D3D12_CPU_DESCRIPTOR_HANDLE cpu, D3D12_GPU_DESCRIPTOR_HANDLE gpu, uint32_t count) {
    const size_t first = (cpu.ptr - kCpuStart) / kStep;
    if (cpu.ptr - kCpuStart != gpu.ptr - kGpuStart || first + count > writers_->size()) return {};
    static std::atomic<uint64_t> next{0};
    const uint64_t writer = ++next;
    std::fill_n(writers_->begin() + static_cast<int64_t>(first), count, writer);
    return [heap = std::weak_ptr(writers_), first, count, writer] {
      const auto writers = heap.lock();
      if (!writers) return false;
      const auto begin = writers->begin() + static_cast<int64_t>(first);
      return std::all_of(begin, begin + count, [writer](uint64_t each) { return each == writer; });
    };
  }

  static constexpr uint32_t kStep = 32;

 private:
  static constexpr size_t kCpuStart = 0x1000;
  static constexpr uint64_t kGpuStart = 0x2000;

  D3D12_DESCRIPTOR_HEAP_DESC desc_;
  std::shared_ptr<std::vector<uint64_t>> writers_;  // of each descriptor; gone with the heap
};

class FakeFence final : public FakeChild<ID3D12Fence, ID3D12Fence::kIid> {
 public:
  uint64_t GetCompletedValue() override {
    const std::lock_guard lock(mutex_);
    return value_;
  }
  HRESULT SetEventOnCompletion(uint64_t value, void* event) override {
    NORMFUSE_FAKE_ENTER("SetEventOnCompletion");
    FakeState::Get().Count("waits");
    if (event != nullptr) return kNotImplemented;
    std::unique_lock lock(mutex_);
    reached_.wait(lock, [&] { return value_ >= value; });
    return kOk;
  }
  HRESULT Signal(uint64_t value) override {
    // Told while it is locked: who waits may end the fence as soon as it is not.
    const std::lock_guard lock(mutex_);
    value_ = value;
    reached_.notify_all();
    return kOk;
  }

 private:
  std::mutex mutex_;
  std::condition_variable reached_;
  uint64_t value_ = 0;
};

class FakeCommandAllocator final : public FakeChild<ID3D12CommandAllocator, ID3D12CommandAllocator::kIid> {
 public:
  ~FakeCommandAllocator() override {
    if (*in_flight > 0) FakeState::Get().Violation("command allocator released while the queue uses it");
  }
  HRESULT Reset() override {
    NORMFUSE_FAKE_ENTER("AllocatorReset");
    if (*in_flight > 0) FakeState::Get().Violation("command allocator reset while the queue uses it");
    return kOk;
  }
  // Submissions that the queue has not finished.
  std::shared_ptr<std::atomic<int>> in_flight = std::make_shared<std::atomic<int>>(0);
};

class FakeCommandList final : public FakeChild<ID3D12GraphicsCommandList, ID3D12GraphicsCommandList::kIid> {
 public:
  explicit FakeCommandList(ID3D12CommandAllocator* allocator)
      : allocator_(static_cast<FakeCommandAllocator*>(allocator)) {}
  D3D12_COMMAND_LIST_TYPE GetType() override { return D3D12_COMMAND_LIST_TYPE_COMPUTE; }
  HRESULT Close() override {
    if (!open_) FakeState::Get().Violation("command list closed twice");
    open_ = false;
    FakeState::Get().Count("recordings");
    NORMFUSE_FAKE_ENTER("Close");
    return kOk;
  }
  HRESULT Reset(ID3D12CommandAllocator* allocator, void*) override {
    if (open_) FakeState::Get().Violation("command list reset while open");
    allocator_ = static_cast<FakeCommandAllocator*>(allocator);
    commands_.clear();
    heap_ = nullptr;
    open_ = true;
    return kOk;
  }
  void CopyBufferRegion(ID3D12Resource* destination, uint64_t destination_offset, ID3D12Resource* source,
                        uint64_t source_offset, uint64_t bytes) override {
    Append([=] {
      if (!FakeResource::IsAlive(destination, "copy") || !FakeResource::IsAlive(source, "copy")) return;
      auto* to = static_cast<FakeResource*>(destination);
      auto* from = static_cast<FakeResource*>(source);
      if (destination_offset + bytes > to->bytes.size() || source_offset + bytes > from->bytes.size()) {
        return FakeState::Get().Violation("copy out of range");
      }
      std::memcpy(to->bytes.data() + destination_offset, from->bytes.data() + source_offset, bytes);
      if (from->heap() == D3D12_HEAP_TYPE_UPLOAD) FakeState::Get().Count("bytes_up", static_cast<int64_t>(bytes));
      if (to->heap() == D3D12_HEAP_TYPE_READBACK) FakeState::Get().Count("bytes_down", static_cast<int64_t>(bytes));
    });
  }
  void ResourceBarrier(uint32_t count, const D3D12_RESOURCE_BARRIER* barriers) override {
    for (uint32_t i = 0; i < count; ++i) {
      const bool transition = barriers[i].Type == D3D12_RESOURCE_BARRIER_TYPE_TRANSITION;
      if (transition && !FakeResource::IsAlive(barriers[i].Resource, "barrier")) return;
      if (transition && barriers[i].StateBefore == barriers[i].StateAfter) {
        FakeState::Get().Violation("barrier between equal states");
      }
    }
    Append([count] { FakeState::Get().Count("barriers", count); });
  }
  void SetDescriptorHeaps(uint32_t count, ID3D12DescriptorHeap* const* heaps) override {
    if (count != 1) FakeState::Get().Violation("SetDescriptorHeaps with other than one heap");
    heap_ = heaps[0];
    Append([] {});
  }

  // For RecordDispatch: appends work to the list.
  void Append(std::function<void()> command) {
    if (!open_) FakeState::Get().Violation("command recorded into a closed list");
    commands_.push_back(std::move(command));
  }
  ID3D12DescriptorHeap* heap() const { return heap_; }
  std::vector<std::function<void()>> commands() const { return commands_; }
  FakeCommandAllocator* allocator() const { return allocator_; }
  bool open() const { return open_; }

 private:
  FakeCommandAllocator* allocator_;
  std::vector<std::function<void()>> commands_;
  ID3D12DescriptorHeap* heap_ = nullptr;
  bool open_ = true;
};

class FakeQueue final : public FakeChild<ID3D12CommandQueue, ID3D12CommandQueue::kIid> {
 public:
  FakeQueue() : worker_([this] { Work(); }) {}
  ~FakeQueue() override {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    worker_.join();
  }
  void ExecuteCommandLists(uint32_t count, ID3D12CommandList* const* lists) override {
    FakeState::Get().Count("submissions");
    for (uint32_t i = 0; i < count; ++i) {
      auto* list = static_cast<FakeCommandList*>(lists[i]);
      if (list->open()) FakeState::Get().Violation("open command list submitted");
      const auto in_flight = list->allocator()->in_flight;
      if (++*in_flight > 1) FakeState::Get().Violation("command list submitted while the queue still runs it");
      Push([commands = list->commands(), in_flight] {
        if (const int64_t hold = FakeState::Get().Setting("hold_until_submissions", 0); hold > 0) {
          FakeState::Get().WaitFor("submissions", hold);
        }
        // Late enough that a caller who does not wait is found out.
        std::this_thread::sleep_for(std::chrono::microseconds(200));
        for (const auto& command : commands) command();
        --*in_flight;
      });
    }
  }
  HRESULT Signal(ID3D12Fence* fence, uint64_t value) override {
    if (const HRESULT injected = FakeState::Get().Enter("Signal"); injected != kOk) {
      // A queue fails to signal when its device is gone: nothing runs any more by the time that the call returns.
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return jobs_.empty() && !busy_; });
      return injected;
    }
    Push([fence, value] { fence->Signal(value); });
    return kOk;
  }

 private:
  void Work() {
    while (true) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return stop_ || !jobs_.empty(); });
      if (jobs_.empty()) return;
      const auto job = std::move(jobs_.front());
      jobs_.pop_front();
      busy_ = true;
      lock.unlock();
      job();
      lock.lock();
      busy_ = false;
      changed_.notify_all();
    }
  }
  void Push(std::function<void()> job) {
    {
      const std::lock_guard lock(mutex_);
      jobs_.push_back(std::move(job));
    }
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> jobs_;
  bool stop_ = false;
  bool busy_ = false;
  std::thread worker_;
};

class FakeDevice final : public FakeObject<ID3D12Device, ID3D12Device::kIid> {
 public:
  HRESULT CreateCommandQueue(const D3D12_COMMAND_QUEUE_DESC*, const GUID& iid, void** queue) override {
    NORMFUSE_FAKE_ENTER("CreateCommandQueue");
    return HandOut(new FakeQueue, iid, queue);
  }
  HRESULT CreateCommandAllocator(D3D12_COMMAND_LIST_TYPE, const GUID& iid, void** allocator) override {
    NORMFUSE_FAKE_ENTER("CreateCommandAllocator");
    FakeState::Get().Count("lists");
    return HandOut(new FakeCommandAllocator, iid, allocator);
  }
  HRESULT CreateCommandList(uint32_t, D3D12_COMMAND_LIST_TYPE, ID3D12CommandAllocator* allocator, void*,
                            const GUID& iid, void** list) override {
    NORMFUSE_FAKE_ENTER("CreateCommandList");
    FakeState::Get().Count("lists");
    return HandOut(new FakeCommandList(allocator), iid, list);
  }
  HRESULT CheckFeatureSupport(int32_t feature, void* data, uint32_t bytes) override {
    NORMFUSE_FAKE_ENTER("D3D12CheckFeatureSupport");
    if (feature != D3D12_FEATURE_ARCHITECTURE || bytes != sizeof(D3D12_FEATURE_DATA_ARCHITECTURE))
      return kInvalidArgument;
    const int64_t unified = FakeState::Get().Setting("unified_memory", 0);
    auto* architecture = static_cast<D3D12_FEATURE_DATA_ARCHITECTURE*>(data);
    architecture->UMA = unified > 0;
    architecture->CacheCoherentUMA = unified > 1;
    return kOk;
  }
  HRESULT CreateDescriptorHeap(const D3D12_DESCRIPTOR_HEAP_DESC* desc, const GUID& iid, void** heap) override {
    NORMFUSE_FAKE_ENTER("CreateDescriptorHeap");
    FakeState::Get().Count("descriptor_heaps");
    return HandOut(new FakeDescriptorHeap(*desc), iid, heap);
  }
  uint32_t GetDescriptorHandleIncrementSize(int32_t) override { return FakeDescriptorHeap::kStep; }
  HRESULT CreateCommittedResource(const D3D12_HEAP_PROPERTIES* heap, uint32_t, const D3D12_RESOURCE_DESC* desc,
                                  D3D12_RESOURCE_STATES state, const void*, const GUID& iid, void** resource) override {
    NORMFUSE_FAKE_ENTER("CreateCommittedResource");
    const D3D12_RESOURCE_STATES wanted = heap->Type == D3D12_HEAP_TYPE_UPLOAD     ? D3D12_RESOURCE_STATE_GENERIC_READ
                                         : heap->Type == D3D12_HEAP_TYPE_READBACK ? D3D12_RESOURCE_STATE_COPY_DEST
                                                                                  : D3D12_RESOURCE_STATE_COMMON;
    if (state != wanted || desc->Width == 0) return kInvalidArgument;
    const bool custom = heap->Type == D3D12_HEAP_TYPE_CUSTOM;
    if (custom != (heap->CPUPageProperty != D3D12_CPU_PAGE_PROPERTY_UNKNOWN) ||
        custom != (heap->MemoryPoolPreference == D3D12_MEMORY_POOL_L0)) {
      return kInvalidArgument;
    }
    if (custom && FakeState::Get().Setting("unified_memory", 0) == 0) {
      FakeState::Get().Violation("operators would read memory that is the CPU's");
    }
    FakeState::Get().Count("buffers");
    return HandOut(new FakeResource(*heap, *desc), iid, resource);
  }
  HRESULT CreateFence(uint64_t, uint32_t, const GUID& iid, void** fence) override {
    NORMFUSE_FAKE_ENTER("CreateFence");
    return HandOut(new FakeFence, iid, fence);
  }
  HRESULT GetDeviceRemovedReason() override {
    const auto asked = static_cast<HRESULT>(FakeState::Get().Setting("remove_device", 0));
    if (asked != kOk) {
      FakeState::Get().Set("remove_device", 0);
      removed_ = asked;
    }
    return removed_;
  }
  NORMFUSE_COM_STRUCT_METHOD_IMPL(LUID, GetAdapterLuid, (LUID{7, 0}))

  // The device is lost from now on.
  void Remove(HRESULT reason) { removed_ = reason; }

 private:
  std::atomic<HRESULT> removed_{kOk};
};

}  // namespace normfuse::test
