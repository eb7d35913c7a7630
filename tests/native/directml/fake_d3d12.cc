#include "fake_d3d12.h"

#include <algorithm>
#include <cstring>

namespace normfuse::test {

using namespace abi;

namespace {

std::mutex registry_mutex;
std::set<const ID3D12Resource*>& Registry() {
  static std::set<const ID3D12Resource*> registry;
  return registry;
}

}  // namespace

// --- resources --------------------------------------------------------------------------------------------------------

FakeResource::FakeResource(const D3D12_HEAP_PROPERTIES& heap, const D3D12_RESOURCE_DESC& desc)
    : bytes(desc.Width, 0xCD), heap_(heap), desc_(desc) {
  const std::lock_guard lock(registry_mutex);
  Registry().insert(this);
}

FakeResource::~FakeResource() {
  const std::lock_guard lock(registry_mutex);
  Registry().erase(this);
}

bool FakeResource::IsAlive(const ID3D12Resource* resource, const char* use) {
  const std::lock_guard lock(registry_mutex);
  const bool alive = Registry().count(resource) != 0;
  if (!alive) FakeState::Get().Violation(std::string(use) + ": the resource was released");
  return alive;
}

HRESULT FakeResource::Map(uint32_t, const D3D12_RANGE*, void** data) {
  NORMFUSE_FAKE_ENTER("Map");
  if (heap_.Type == D3D12_HEAP_TYPE_DEFAULT) return kInvalidArgument;
  *data = bytes.data();
  return kOk;
}

// --- descriptors ------------------------------------------------------------------------------------------------------

std::function<bool()> FakeDescriptorHeap::Write(D3D12_CPU_DESCRIPTOR_HANDLE cpu, D3D12_GPU_DESCRIPTOR_HANDLE gpu,
                                                uint32_t count) {
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

// --- fence ------------------------------------------------------------------------------------------------------------

uint64_t FakeFence::GetCompletedValue() {
  const std::lock_guard lock(mutex_);
  return value_;
}

HRESULT FakeFence::SetEventOnCompletion(uint64_t value, void* event) {
  NORMFUSE_FAKE_ENTER("SetEventOnCompletion");
  FakeState::Get().Count("waits");
  if (event != nullptr) return kNotImplemented;
  std::unique_lock lock(mutex_);
  reached_.wait(lock, [&] { return value_ >= value; });
  return kOk;
}

HRESULT FakeFence::Signal(uint64_t value) {
  // Told while it is locked: who waits may end the fence as soon as it is not.
  const std::lock_guard lock(mutex_);
  value_ = value;
  reached_.notify_all();
  return kOk;
}

// --- command lists ----------------------------------------------------------------------------------------------------

FakeCommandAllocator::~FakeCommandAllocator() {
  if (*in_flight > 0) FakeState::Get().Violation("command allocator released while the queue uses it");
}

HRESULT FakeCommandAllocator::Reset() {
  NORMFUSE_FAKE_ENTER("AllocatorReset");
  if (*in_flight > 0) FakeState::Get().Violation("command allocator reset while the queue uses it");
  return kOk;
}

HRESULT FakeCommandList::Close() {
  if (!open_) FakeState::Get().Violation("command list closed twice");
  open_ = false;
  FakeState::Get().Count("recordings");
  NORMFUSE_FAKE_ENTER("Close");
  return kOk;
}

HRESULT FakeCommandList::Reset(ID3D12CommandAllocator* allocator, void*) {
  if (open_) FakeState::Get().Violation("command list reset while open");
  allocator_ = static_cast<FakeCommandAllocator*>(allocator);
  commands_.clear();
  heap_ = nullptr;
  open_ = true;
  return kOk;
}

void FakeCommandList::Append(std::function<void()> command) {
  if (!open_) FakeState::Get().Violation("command recorded into a closed list");
  commands_.push_back(std::move(command));
}

void FakeCommandList::CopyBufferRegion(ID3D12Resource* destination, uint64_t destination_offset, ID3D12Resource* source,
                                       uint64_t source_offset, uint64_t bytes) {
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

void FakeCommandList::ResourceBarrier(uint32_t count, const D3D12_RESOURCE_BARRIER* barriers) {
  for (uint32_t i = 0; i < count; ++i) {
    const bool transition = barriers[i].Type == D3D12_RESOURCE_BARRIER_TYPE_TRANSITION;
    if (transition && !FakeResource::IsAlive(barriers[i].Resource, "barrier")) return;
    if (transition && barriers[i].StateBefore == barriers[i].StateAfter) {
      FakeState::Get().Violation("barrier between equal states");
    }
  }
  Append([count] { FakeState::Get().Count("barriers", count); });
}

void FakeCommandList::SetDescriptorHeaps(uint32_t count, ID3D12DescriptorHeap* const* heaps) {
  if (count != 1) FakeState::Get().Violation("SetDescriptorHeaps with other than one heap");
  heap_ = heaps[0];
  Append([] {});
}

// --- queue ------------------------------------------------------------------------------------------------------------

FakeQueue::FakeQueue() : worker_([this] { Work(); }) {}

FakeQueue::~FakeQueue() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  worker_.join();
}

void FakeQueue::Work() {
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

void FakeQueue::Push(std::function<void()> job) {
  {
    const std::lock_guard lock(mutex_);
    jobs_.push_back(std::move(job));
  }
  changed_.notify_all();
}

void FakeQueue::ExecuteCommandLists(uint32_t count, ID3D12CommandList* const* lists) {
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

HRESULT FakeQueue::Signal(ID3D12Fence* fence, uint64_t value) {
  if (const HRESULT injected = FakeState::Get().Enter("Signal"); injected != kOk) {
    // A queue fails to signal when its device is gone: nothing runs any more by the time that the call returns.
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return jobs_.empty() && !busy_; });
    return injected;
  }
  Push([fence, value] { fence->Signal(value); });
  return kOk;
}

// --- device -----------------------------------------------------------------------------------------------------------

HRESULT FakeDevice::CreateCommandQueue(const D3D12_COMMAND_QUEUE_DESC*, const GUID& iid, void** queue) {
  NORMFUSE_FAKE_ENTER("CreateCommandQueue");
  return HandOut(new FakeQueue, iid, queue);
}

HRESULT FakeDevice::CreateCommandAllocator(D3D12_COMMAND_LIST_TYPE, const GUID& iid, void** allocator) {
  NORMFUSE_FAKE_ENTER("CreateCommandAllocator");
  FakeState::Get().Count("lists");
  return HandOut(new FakeCommandAllocator, iid, allocator);
}

HRESULT FakeDevice::CreateCommandList(uint32_t, D3D12_COMMAND_LIST_TYPE, ID3D12CommandAllocator* allocator, void*,
                                      const GUID& iid, void** list) {
  NORMFUSE_FAKE_ENTER("CreateCommandList");
  FakeState::Get().Count("lists");
  return HandOut(new FakeCommandList(allocator), iid, list);
}

HRESULT FakeDevice::CreateDescriptorHeap(const D3D12_DESCRIPTOR_HEAP_DESC* desc, const GUID& iid, void** heap) {
  NORMFUSE_FAKE_ENTER("CreateDescriptorHeap");
  FakeState::Get().Count("descriptor_heaps");
  return HandOut(new FakeDescriptorHeap(*desc), iid, heap);
}

HRESULT FakeDevice::CreateCommittedResource(const D3D12_HEAP_PROPERTIES* heap, uint32_t,
                                            const D3D12_RESOURCE_DESC* desc, D3D12_RESOURCE_STATES state, const void*,
                                            const GUID& iid, void** resource) {
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

HRESULT FakeDevice::CheckFeatureSupport(int32_t feature, void* data, uint32_t bytes) {
  NORMFUSE_FAKE_ENTER("D3D12CheckFeatureSupport");
  if (feature != D3D12_FEATURE_ARCHITECTURE || bytes != sizeof(D3D12_FEATURE_DATA_ARCHITECTURE))
    return kInvalidArgument;
  const int64_t unified = FakeState::Get().Setting("unified_memory", 0);
  auto* architecture = static_cast<D3D12_FEATURE_DATA_ARCHITECTURE*>(data);
  architecture->UMA = unified > 0;
  architecture->CacheCoherentUMA = unified > 1;
  return kOk;
}

HRESULT FakeDevice::CreateFence(uint64_t, uint32_t, const GUID& iid, void** fence) {
  NORMFUSE_FAKE_ENTER("CreateFence");
  return HandOut(new FakeFence, iid, fence);
}

HRESULT FakeDevice::GetDeviceRemovedReason() {
  const auto asked = static_cast<HRESULT>(FakeState::Get().Setting("remove_device", 0));
  if (asked != kOk) {
    FakeState::Get().Set("remove_device", 0);
    removed_ = asked;
  }
  return removed_;
}

}  // namespace normfuse::test
