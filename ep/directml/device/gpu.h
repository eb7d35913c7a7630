// One open GPU: its Direct3D and DirectML devices, one compute queue, the buffers and descriptors that calls use.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "abi/directml_abi.h"
#include "directml/device/buffer.h"
#include "directml/device/com_ptr.h"
#include "directml/device/descriptors.h"
#include "directml/device/lanes.h"
#include "directml/device/tensor_buffers.h"
#include "directml/directml.h"

namespace normfuse::directml {

// Commands that are recorded once and may be submitted any number of times, one time after the other.
struct Commands {
  ComPtr<abi::ID3D12CommandAllocator> allocator;
  ComPtr<abi::ID3D12GraphicsCommandList> list;
  DescriptorPool::Range descriptors;
  GpuWork each;  // what a submission asks of the GPU
};

class Gpu {
 public:
  static Result Open(const DirectMlOptions& options, std::shared_ptr<Gpu>* gpu);

  const Capabilities& capabilities() const { return capabilities_; }
  const std::string& name() const { return name_; }
  abi::IDMLDevice1* directml() const { return directml_.get(); }
  abi::ID3D12Device* d3d12() const { return d3d12_.get(); }
  MemoryArchitecture memory() const { return memory_; }
  LanePool& lanes() { return *lanes_; }
  TensorBuffers& tensors() { return *tensors_; }

  // What a dispatch reads and writes.
  struct Bindings {
    const abi::DML_BINDING_DESC* inputs = nullptr;
    uint32_t input_count = 0;
    const abi::DML_BINDING_DESC* outputs = nullptr;
    uint32_t output_count = 0;
    abi::ID3D12Resource* temporary = nullptr;
    uint64_t temporary_bytes = 0;
    abi::ID3D12Resource* persistent = nullptr;
    uint64_t persistent_bytes = 0;
  };

  // Has `record` record one dispatch and its copies. One caller at a time; others wait for their turn, not for the GPU.
  Result Record(const std::function<Result()>& record, Commands* commands, GpuWork* work);

  // A part of two buffers, at the same place in both.
  struct Range {
    uint64_t offset = 0;
    uint64_t bytes = 0;
  };
  // For use inside `record`. Copies to a buffer that a dispatch reads next, the dispatch with its bindings, copies from a
  // buffer that it wrote; each with the barrier that it needs.
  void RecordUpload(abi::ID3D12Resource* to, abi::ID3D12Resource* upload, const std::vector<Range>& ranges);
  Result RecordDispatch(abi::IDMLDispatchable* dispatchable, const Bindings& bindings);
  void RecordReadback(abi::ID3D12Resource* readback, abi::ID3D12Resource* from, const std::vector<Range>& ranges);

  // Submits the commands and waits until they have run; other callers may record and submit in the meantime. All that
  // they use must stay alive until this returns, and nothing needs to longer. Adds what it did to `work`.
  Result Run(const Commands& commands, GpuWork* work);

  // Copies bytes of the CPU's memory to a buffer that no call uses.
  Result Upload(const void* from, uint64_t bytes, const Buffer& to, GpuWork* work);
  // The first bytes of a buffer that no call writes any more, and where they go on the CPU.
  struct Reading {
    const Buffer* from;
    uint64_t bytes;
    void* to;
  };
  Result Download(const std::vector<Reading>& readings, GpuWork* work);

 private:
  Result OpenDevices(const DirectMlOptions& options);
  Result OpenD3d12(const DirectMlOptions& options);
  Result OpenDirectMl(const DirectMlOptions& options);
  Result ReadCapabilities();
  Result CreateQueue();
  Result CreateList(Commands* commands, GpuWork* work);
  Result ResetTable(const abi::DML_BINDING_TABLE_DESC& desc);
  void RecordBarrier(const abi::D3D12_RESOURCE_BARRIER& barrier);
  Result Submit(const Commands& commands, GpuWork* work, uint64_t* fence_value);
  Result Wait(uint64_t fence_value, GpuWork* work);
  // An error when the GPU is gone, and which of the two devices says so.
  Result CheckLost();

  std::string name_;
  Capabilities capabilities_;
  MemoryArchitecture memory_ = MemoryArchitecture::kDiscrete;
  // In the order of creation; released the other way round.
  ComPtr<abi::ID3D12Device> d3d12_;
  ComPtr<abi::IDMLDevice1> directml_;
  std::unique_ptr<LanePool> lanes_;
  std::unique_ptr<TensorBuffers> tensors_;
  std::unique_ptr<DescriptorPool> descriptors_;
  ComPtr<abi::ID3D12CommandQueue> queue_;
  ComPtr<abi::ID3D12Fence> fence_;

  std::mutex recording_;  // guards what follows
  ComPtr<abi::IDMLCommandRecorder> recorder_;
  ComPtr<abi::IDMLBindingTable> table_;
  Commands* commands_ = nullptr;  // of the caller whose turn it is
  GpuWork* work_ = nullptr;       // likewise

  std::mutex submission_;  // guards what follows, and the order in which the queue is told
  uint64_t fence_value_ = 0;
};

}  // namespace normfuse::directml
