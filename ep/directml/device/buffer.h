// Committed buffers, and who may touch them.
#pragma once

#include <cstdint>

#include "abi/d3d12_abi.h"
#include "chain/result.h"
#include "directml/device/com_ptr.h"

namespace normfuse::directml {

// How the GPU and the CPU share memory.
enum class MemoryArchitecture {
  kDiscrete,         // memory of its own: everything is copied
  kUnified,          // the same memory, past the CPU's caches
  kUnifiedCoherent,  // the same memory, through the CPU's caches
};

enum class BufferKind {
  kGpu,       // only the GPU
  kUpload,    // the CPU writes, the GPU copies from it
  kReadback,  // the GPU copies to it, the CPU reads
  kInput,     // unified memory only: the CPU writes, operators read
  kOutput,    // unified memory only: operators write, the CPU reads
};

// In state COMMON between submissions, which operators and copies may use as it is.
struct Buffer {
  ComPtr<abi::ID3D12Resource> resource;
  uint64_t bytes = 0;
  uint64_t id = 0;  // no other buffer ever has it, as it may have the address
};

// Tensors in a buffer start at multiples of this; DirectML asks for 16.
inline constexpr uint64_t kTensorAlignment = 256;

inline uint64_t AlignedForTensors(uint64_t bytes) {
  return (bytes + kTensorAlignment - 1) / kTensorAlignment * kTensorAlignment;
}

Result CreateBuffer(abi::ID3D12Device* device, BufferKind kind, MemoryArchitecture memory, uint64_t bytes,
                    Buffer* buffer);

// What Direct3D says of the GPU's memory; discrete where it says nothing.
MemoryArchitecture ReadMemoryArchitecture(abi::ID3D12Device* device);

// A buffer's bytes where the CPU reads or writes them, until this ends.
class Mapping {
 public:
  Mapping() = default;
  Mapping(const Mapping&) = delete;
  ~Mapping();

  // To write all of it; what was in it is not read.
  Result Write(const Buffer& buffer);
  // To read the first `bytes`.
  Result Read(const Buffer& buffer, uint64_t bytes);

  char* data() const { return static_cast<char*>(data_); }

 private:
  abi::ID3D12Resource* resource_ = nullptr;
  bool writes_ = false;
  void* data_ = nullptr;
};

}  // namespace normfuse::directml
