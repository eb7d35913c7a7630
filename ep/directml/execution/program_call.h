// One call of a compiled program: where each tensor is, before and after.
#pragma once

#include <list>
#include <memory>
#include <vector>

#include "chain/execution.h"
#include "directml/device/device_memory.h"
#include "directml/execution/compiled_program.h"
#include "directml/lowering/chain_lowering.h"

namespace normfuse::directml {

// What a call reads, by input of the node.
struct CallInputs {
  std::vector<InputShape> shapes;
  std::vector<const void*> addresses;  // as ONNX Runtime has them
  std::vector<const void*> data;       // on the CPU; null where it is not there
  std::vector<Content> contents;       // of those whose address stands for memory of a GPU
};

// A tensor in memory of a GPU, on the CPU.
Result ReadToCpu(const Content& content, std::vector<unsigned char>* bytes);

// Keeps what must live until the program has run.
class ProgramCall {
 public:
  ProgramCall(const CompiledProgram& compiled, bool tensors_may_stay)
      : compiled_(compiled), may_stay_(tensors_may_stay), tensors_(compiled.NoTensors()) {}

  Result Run(const CallInputs& inputs, ExecutionContext& context, GpuWork* work);

 private:
  // An output that gets its address when the program has run: from a buffer, or from bytes that are read back.
  struct Kept {
    void* address;
    std::shared_ptr<DeviceContent> content;
    std::vector<unsigned char> bytes;
  };

  Result TakeInputs(const CallInputs& inputs, GpuWork* work);
  Result MoveToGpu(const void* address, const Content& content, GpuWork* work);
  Result TakeOutputs(ExecutionContext& context, GpuWork* work);
  Result GiveKnown(ExecutionContext& context) const;
  bool IsDeviceMemory(const void* address) const { return may_stay_ && device_memory::Contains(address); }

  const CompiledProgram& compiled_;
  const bool may_stay_;
  CompiledProgram::Tensors tensors_;
  std::list<std::vector<unsigned char>> read_;
  std::vector<Content> moved_;
  std::list<Kept> kept_;
};

}  // namespace normfuse::directml
