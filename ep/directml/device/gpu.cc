#include "directml/device/gpu.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "directml/device/adapter.h"
#include "directml/device/hresult.h"
#include "directml/device/shared_library.h"

namespace normfuse::directml {
namespace {

using namespace abi;

#if defined(_WIN32)
constexpr const char* kDirectMlLibrary = "DirectML.dll";
constexpr const char* kD3d12Library = "d3d12.dll";
constexpr const char* kDxcoreLibrary = "dxcore.dll";
#else
constexpr const char* kDirectMlLibrary = "libdirectml.so";
constexpr const char* kD3d12Library = "libd3d12.so";
constexpr const char* kDxcoreLibrary = "libdxcore.so";
#endif

// Loads a library and finds the function in it. `option` is how the user can name another library.
template <typename Function>
Result LoadFunction(const std::string& chosen, const char* usual, const char* symbol, const char* option,
                    Function* function) {
  SharedLibrary library;
  const Result loaded = SharedLibrary::Load(chosen.empty() ? usual : chosen, &library);
  if (!loaded.ok()) {
    return Result::Error(loaded.code(), "DirectML path: " + loaded.message() + ". Set the option " + option +
                                            " to the library's absolute path, or use backend=cpu.");
  }
  *function = library.Symbol<Function>(symbol);
  if (*function != nullptr) return {};
  return Result::Error(ErrorCode::kEpFail, "DirectML path: " + library.name() + " does not export " + symbol +
                                               "; it is not the library that the option " + option + " asks for.");
}

D3D12_RESOURCE_BARRIER Transition(ID3D12Resource* resource, D3D12_RESOURCE_STATES before, D3D12_RESOURCE_STATES after) {
  return {D3D12_RESOURCE_BARRIER_TYPE_TRANSITION, 0, resource, D3D12_RESOURCE_BARRIER_ALL_SUBRESOURCES, before, after};
}

}  // namespace

Result Gpu::Open(const DirectMlOptions& options, std::shared_ptr<Gpu>* gpu) {
  auto made = std::make_shared<Gpu>();
  NORMFUSE_RETURN_IF_ERROR(made->OpenDevices(options));
  *gpu = std::move(made);
  return {};
}

Result Gpu::OpenDevices(const DirectMlOptions& options) {
  NORMFUSE_RETURN_IF_ERROR(OpenD3d12(options));
  NORMFUSE_RETURN_IF_ERROR(OpenDirectMl(options));
  NORMFUSE_RETURN_IF_ERROR(ReadCapabilities());
  NORMFUSE_RETURN_IF_ERROR(CreateQueue());
  memory_ = ReadMemoryArchitecture(d3d12_.get());
  lanes_ = std::make_unique<LanePool>(d3d12_, memory_);
  tensors_ = std::make_unique<TensorBuffers>(d3d12_, memory_);
  descriptors_ = std::make_unique<DescriptorPool>(d3d12_);
  // The first descriptor heap is created now, while the user waits anyway.
  DescriptorPool::Range first;
  GpuWork work;
  return descriptors_->Acquire(1, &first, &work);
}

Result Gpu::OpenD3d12(const DirectMlOptions& options) {
  D3D12CreateDeviceFunction create = nullptr;
  NORMFUSE_RETURN_IF_ERROR(
      LoadFunction(options.d3d12_library, kD3d12Library, "D3D12CreateDevice", "d3d12_library", &create));
  ComPtr<IDXCoreAdapter> adapter;
  name_ = "default adapter";
  // DirectML on Linux needs DXCore by itself: a library that is named is loaded first in any case.
  if (options.adapter != DirectMlOptions::Adapter::kDefault || !options.dxcore_library.empty()) {
    DXCoreCreateAdapterFactoryFunction create_factory = nullptr;
    NORMFUSE_RETURN_IF_ERROR(LoadFunction(options.dxcore_library, kDxcoreLibrary, "DXCoreCreateAdapterFactory",
                                          "dxcore_library", &create_factory));
    if (options.adapter != DirectMlOptions::Adapter::kDefault) {
      ComPtr<IDXCoreAdapterFactory> factory;
      const std::string library = options.dxcore_library.empty() ? kDxcoreLibrary : options.dxcore_library;
      const HRESULT result = create_factory(IDXCoreAdapterFactory::kIid, factory.Receive());
      NORMFUSE_RETURN_IF_ERROR(
          CheckCreated({"DXCoreCreateAdapterFactory", library, "dxcore_library"}, result, static_cast<bool>(factory)));
      NORMFUSE_RETURN_IF_ERROR(ChooseAdapter(factory.get(), options, &adapter, &name_));
    }
  }
  HRESULT result = create(adapter.get(), D3D_FEATURE_LEVEL_11_0, ID3D12Device::kIid, d3d12_.Receive());
  // Compute-only adapters have no graphics level.
  if (!Succeeded(result) && adapter) {
    result = create(adapter.get(), D3D_FEATURE_LEVEL_1_0_CORE, ID3D12Device::kIid, d3d12_.Receive());
  }
  const std::string library = options.d3d12_library.empty() ? kD3d12Library : options.d3d12_library;
  return CheckCreated({"D3D12CreateDevice", library, "d3d12_library"}, result, static_cast<bool>(d3d12_));
}

Result Gpu::OpenDirectMl(const DirectMlOptions& options) {
  DMLCreateDevice1Function create = nullptr;
  NORMFUSE_RETURN_IF_ERROR(
      LoadFunction(options.directml_library, kDirectMlLibrary, "DMLCreateDevice1", "directml_library", &create));
  const HRESULT result =
      create(d3d12_.get(), DML_CREATE_DEVICE_FLAG_NONE, kMinimumLevel, IDMLDevice1::kIid, directml_.Receive());
  if (result == kDxgiUnsupported) {
    return Result::Error(ErrorCode::kEpFail, "DirectML path: this DirectML does not reach feature level " +
                                                 LevelName(kMinimumLevel) +
                                                 "; install a newer DirectML redistributable, or use backend=cpu.");
  }
  const std::string library = options.directml_library.empty() ? kDirectMlLibrary : options.directml_library;
  return CheckCreated({"DMLCreateDevice1", library, "directml_library"}, result, static_cast<bool>(directml_));
}

Result Gpu::ReadCapabilities() {
  const DML_FEATURE_QUERY_FEATURE_LEVELS query = {static_cast<UINT>(std::size(kLevels)), kLevels};
  DML_FEATURE_DATA_FEATURE_LEVELS data = {kMinimumLevel};
  NORMFUSE_RETURN_IF_FAILED(
      "IDMLDevice::CheckFeatureSupport",
      directml_->CheckFeatureSupport(DML_FEATURE_FEATURE_LEVELS, sizeof(query), &query, sizeof(data), &data));
  capabilities_.level = data.MaxSupportedFeatureLevel;
  capabilities_.types = 0;
  for (uint32_t type = DML_TENSOR_DATA_TYPE_FLOAT32; type <= DML_TENSOR_DATA_TYPE_INT4; ++type) {
    BOOL supported = 0;
    // A library that does not know the type refuses the question.
    const HRESULT result = directml_->CheckFeatureSupport(DML_FEATURE_TENSOR_DATA_TYPE_SUPPORT, sizeof(type), &type,
                                                          sizeof(supported), &supported);
    if (result == kOutOfMemory || MeansDeviceLost(result)) {
      return CheckHresult("IDMLDevice::CheckFeatureSupport", result);
    }
    if (Succeeded(result) && supported) capabilities_.types |= 1u << type;
  }
  return {};
}

Result Gpu::CreateQueue() {
  const D3D12_COMMAND_QUEUE_DESC desc = {D3D12_COMMAND_LIST_TYPE_COMPUTE, 0, 0, 0};
  NORMFUSE_RETURN_IF_FAILED("ID3D12Device::CreateCommandQueue",
                            d3d12_->CreateCommandQueue(&desc, ID3D12CommandQueue::kIid, queue_.Receive()));
  NORMFUSE_RETURN_IF_FAILED("ID3D12Device::CreateFence",
                            d3d12_->CreateFence(0, 0, ID3D12Fence::kIid, fence_.Receive()));
  return CheckHresult("IDMLDevice::CreateCommandRecorder",
                      directml_->CreateCommandRecorder(IDMLCommandRecorder::kIid, recorder_.Receive()));
}

Result Gpu::CreateList(Commands* commands, GpuWork* work) {
  NORMFUSE_RETURN_IF_FAILED(
      "ID3D12Device::CreateCommandAllocator",
      d3d12_->CreateCommandAllocator(D3D12_COMMAND_LIST_TYPE_COMPUTE, ID3D12CommandAllocator::kIid,
                                     commands->allocator.Receive()));
  NORMFUSE_RETURN_IF_FAILED(
      "ID3D12Device::CreateCommandList",
      d3d12_->CreateCommandList(0, D3D12_COMMAND_LIST_TYPE_COMPUTE, commands->allocator.get(), nullptr,
                                ID3D12GraphicsCommandList::kIid, commands->list.Receive()));
  work->created += 2;
  return {};
}

Result Gpu::Record(const std::function<Result()>& record, Commands* commands, GpuWork* work) {
  *commands = {};
  NORMFUSE_RETURN_IF_ERROR(CreateList(commands, work));
  const std::lock_guard lock(recording_);
  commands_ = commands;
  work_ = work;
  NORMFUSE_RETURN_IF_ERROR(record());
  NORMFUSE_RETURN_IF_ERROR(CheckLost());  // wrong bindings remove the device while they are recorded
  ++work->recorded;
  return CheckHresult("ID3D12GraphicsCommandList::Close", commands->list->Close());
}

Result Gpu::Run(const Commands& commands, GpuWork* work) {
  uint64_t fence_value = 0;
  NORMFUSE_RETURN_IF_ERROR(Submit(commands, work, &fence_value));
  return Wait(fence_value, work);
}

Result Gpu::Submit(const Commands& commands, GpuWork* work, uint64_t* fence_value) {
  const std::lock_guard lock(submission_);
  NORMFUSE_RETURN_IF_ERROR(CheckLost());
  ID3D12CommandList* const lists[] = {commands.list.get()};
  queue_->ExecuteCommandLists(1, lists);
  ++work->submissions;
  *work += commands.each;
  *fence_value = ++fence_value_;
  const Result signalled = CheckHresult("ID3D12CommandQueue::Signal", queue_->Signal(fence_.get(), fence_value_));
  // A queue that does not signal is of no further use.
  return signalled.ok() ? Result() : Result::Error(ErrorCode::kDeviceReset, signalled.message());
}

Result Gpu::Wait(uint64_t fence_value, GpuWork* work) {
  ++work->waits;
  // Without an event the call itself waits. Where it cannot, look again: nothing that the queue uses may be released.
  while (!Succeeded(fence_->SetEventOnCompletion(fence_value, nullptr))) {
    if (fence_->GetCompletedValue() >= fence_value) break;
    NORMFUSE_RETURN_IF_ERROR(CheckLost());
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return CheckLost();
}

Result Gpu::CheckLost() {
  NORMFUSE_RETURN_IF_FAILED("the GPU (ID3D12Device::GetDeviceRemovedReason)", d3d12_->GetDeviceRemovedReason());
  const HRESULT reason = directml_->GetDeviceRemovedReason();
  if (Succeeded(reason)) return {};
  // Whatever the reason, this DirectML device is of no further use.
  return Result::Error(ErrorCode::kDeviceReset,
                       CheckHresult("the DirectML device (IDMLDevice::GetDeviceRemovedReason)", reason).message());
}

Result Gpu::ResetTable(const DML_BINDING_TABLE_DESC& desc) {
  if (table_) return CheckHresult("IDMLBindingTable::Reset", table_->Reset(&desc));
  NORMFUSE_RETURN_IF_FAILED("IDMLDevice::CreateBindingTable",
                            directml_->CreateBindingTable(&desc, IDMLBindingTable::kIid, table_.Receive()));
  ++work_->created;
  return {};
}

Result Gpu::RecordDispatch(IDMLDispatchable* dispatchable, const Bindings& bindings) {
  const DML_BINDING_PROPERTIES properties = dispatchable->GetBindingProperties();
  DescriptorPool::Range& range = commands_->descriptors;
  NORMFUSE_RETURN_IF_ERROR(descriptors_->Acquire(std::max(properties.RequiredDescriptorCount, 1U), &range, work_));
  ID3D12DescriptorHeap* const heaps[] = {range.heap()};
  commands_->list->SetDescriptorHeaps(1, heaps);
  NORMFUSE_RETURN_IF_ERROR(ResetTable({dispatchable, range.cpu(), range.gpu(), properties.RequiredDescriptorCount}));
  table_->BindInputs(bindings.input_count, bindings.inputs);
  table_->BindOutputs(bindings.output_count, bindings.outputs);
  if (bindings.temporary_bytes > 0) {
    const DML_BUFFER_BINDING buffer = {bindings.temporary, 0, bindings.temporary_bytes};
    const DML_BINDING_DESC binding = {DML_BINDING_TYPE_BUFFER, &buffer};
    table_->BindTemporaryResource(&binding);
  }
  if (bindings.persistent_bytes > 0) {
    const DML_BUFFER_BINDING buffer = {bindings.persistent, 0, bindings.persistent_bytes};
    const DML_BINDING_DESC binding = {DML_BINDING_TYPE_BUFFER, &buffer};
    table_->BindPersistentResource(&binding);
  }
  recorder_->RecordDispatch(commands_->list.get(), dispatchable, table_.get());
  ++commands_->each.dispatches;
  D3D12_RESOURCE_BARRIER barrier = {};
  barrier.Type = D3D12_RESOURCE_BARRIER_TYPE_UAV;
  RecordBarrier(barrier);
  return {};
}

void Gpu::RecordUpload(ID3D12Resource* to, ID3D12Resource* upload, const std::vector<Range>& ranges) {
  for (const Range& range : ranges) {
    commands_->list->CopyBufferRegion(to, range.offset, upload, range.offset, range.bytes);
    commands_->each.bytes_up += range.bytes;
  }
  RecordBarrier(Transition(to, D3D12_RESOURCE_STATE_COPY_DEST, D3D12_RESOURCE_STATE_UNORDERED_ACCESS));
}

void Gpu::RecordReadback(ID3D12Resource* readback, ID3D12Resource* from, const std::vector<Range>& ranges) {
  RecordBarrier(Transition(from, D3D12_RESOURCE_STATE_UNORDERED_ACCESS, D3D12_RESOURCE_STATE_COPY_SOURCE));
  for (const Range& range : ranges) {
    commands_->list->CopyBufferRegion(readback, range.offset, from, range.offset, range.bytes);
    commands_->each.bytes_down += range.bytes;
  }
}

Result Gpu::Upload(const void* from, uint64_t bytes, const Buffer& to, GpuWork* work) {
  LanePool::Lease lane;
  NORMFUSE_RETURN_IF_ERROR(lanes_->Acquire({bytes, 0, 0}, &lane, work));
  const Buffer& upload = memory_ == MemoryArchitecture::kDiscrete ? lane->upload : lane->input;
  {
    Mapping mapping;
    NORMFUSE_RETURN_IF_ERROR(mapping.Write(upload));
    std::memcpy(mapping.data(), from, bytes);
  }
  // Here and below, buffers get the states that a copy needs, and lose them when it is done.
  Commands commands;
  const auto record = [&]() -> Result {
    commands_->list->CopyBufferRegion(to.resource.get(), 0, upload.resource.get(), 0, bytes);
    commands_->each.bytes_up += bytes;
    return {};
  };
  NORMFUSE_RETURN_IF_ERROR(Record(record, &commands, work));
  return Run(commands, work);
}

Result Gpu::Download(const std::vector<Reading>& readings, GpuWork* work) {
  uint64_t all = 0;
  for (const Reading& reading : readings) all += AlignedForTensors(reading.bytes);
  LanePool::Lease lane;
  NORMFUSE_RETURN_IF_ERROR(lanes_->Acquire({0, all, 0}, &lane, work));
  const Buffer& readback = memory_ == MemoryArchitecture::kDiscrete ? lane->readback : lane->output;
  Commands commands;
  const auto record = [&]() -> Result {
    uint64_t at = 0;
    for (const Reading& reading : readings) {
      commands_->list->CopyBufferRegion(readback.resource.get(), at, reading.from->resource.get(), 0, reading.bytes);
      commands_->each.bytes_down += reading.bytes;
      at += AlignedForTensors(reading.bytes);
    }
    return {};
  };
  NORMFUSE_RETURN_IF_ERROR(Record(record, &commands, work));
  NORMFUSE_RETURN_IF_ERROR(Run(commands, work));
  Mapping mapping;
  NORMFUSE_RETURN_IF_ERROR(mapping.Read(readback, all));
  uint64_t at = 0;
  for (const Reading& reading : readings) {
    std::memcpy(reading.to, mapping.data() + at, reading.bytes);
    at += AlignedForTensors(reading.bytes);
  }
  return {};
}

void Gpu::RecordBarrier(const D3D12_RESOURCE_BARRIER& barrier) {
  commands_->list->ResourceBarrier(1, &barrier);
  ++commands_->each.barriers;
}

}  // namespace normfuse::directml
