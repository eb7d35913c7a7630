// One open GPU: its Direct3D and DirectML devices, one compute queue, one command list, one descriptor heap.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "abi/directml_abi.h"
#include "directml/buffer_pool.h"
#include "directml/com_ptr.h"
#include "directml/directml.h"

namespace normfuse::directml {

class Gpu {
 public:
  static Result Open(const DirectMlOptions& options, std::shared_ptr<Gpu>* gpu);

  const Capabilities& capabilities() const { return capabilities_; }
  const std::string& name() const { return name_; }
  abi::IDMLDevice1* directml() const { return directml_.get(); }
  abi::ID3D12Device* d3d12() const { return d3d12_.get(); }
  BufferPool& pool() { return *pool_; }

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

  // Records commands with `record`, submits them and waits. One caller at a time; others wait for their turn. Everything
  // that the commands use must stay alive until this returns, and nothing needs to longer. Adds what it did to `work`.
  Result Submit(const std::function<Result()>& record, GpuWork* work);

  // For use inside `record`. A copy to a buffer that a dispatch reads next, the dispatch with its bindings, a copy from a
  // buffer that it wrote; each with the barrier that it needs.
  void RecordUpload(abi::ID3D12Resource* to, abi::ID3D12Resource* upload, uint64_t bytes);
  Result RecordDispatch(abi::IDMLDispatchable* dispatchable, const Bindings& bindings);
  void RecordReadback(abi::ID3D12Resource* readback, abi::ID3D12Resource* from, uint64_t bytes);

 private:
  Result OpenDevices(const DirectMlOptions& options);
  Result OpenD3d12(const DirectMlOptions& options);
  Result OpenDirectMl(const DirectMlOptions& options);
  Result ReadCapabilities();
  Result CreateQueue();
  Result EnsureDescriptors(uint32_t count);
  void RecordBarrier(const abi::D3D12_RESOURCE_BARRIER& barrier);
  Result Wait();
  // An error when the GPU is gone, and which of the two devices says so.
  Result CheckLost();

  std::string name_;
  Capabilities capabilities_;
  // In the order of creation; released the other way round.
  ComPtr<abi::ID3D12Device> d3d12_;
  ComPtr<abi::IDMLDevice1> directml_;
  std::unique_ptr<BufferPool> pool_;
  ComPtr<abi::ID3D12CommandQueue> queue_;
  ComPtr<abi::ID3D12CommandAllocator> allocator_;
  ComPtr<abi::ID3D12GraphicsCommandList> list_;
  ComPtr<abi::ID3D12Fence> fence_;
  ComPtr<abi::IDMLCommandRecorder> recorder_;
  ComPtr<abi::ID3D12DescriptorHeap> descriptors_;
  ComPtr<abi::IDMLBindingTable> table_;
  uint32_t descriptor_count_ = 0;
  uint64_t fence_value_ = 0;
  GpuWork* work_ = nullptr;  // of the caller whose turn it is
  std::mutex submission_;
};

}  // namespace normfuse::directml
