// The DirectML path, as the rest of the library sees it: open a device, ask what it can run, compile chains for it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "chain/chain.h"
#include "chain/execution.h"
#include "chain/reason.h"
#include "chain/sequence.h"
#include "directml/device/gpu_work.h"
#include "directml/lowering/rules.h"

namespace normfuse {

namespace directml {
class Gpu;
struct Island;
}  // namespace directml

struct DirectMlOptions {
  // Which GPU. kDefault leaves it to Direct3D and needs no adapter list; the others go through DXCore.
  enum class Adapter { kDefault, kIndex, kLuid, kHighPerformance, kMinimumPower };
  Adapter adapter = Adapter::kDefault;
  uint32_t index = 0;  // kIndex: position in DXCore's list of adapters that can compute
  uint64_t luid = 0;   // kLuid: high part in the upper 32 bits

  // Names for the loader's search path, or absolute paths. Empty: DirectML.dll, d3d12.dll and dxcore.dll, on Linux
  // libdirectml.so, libd3d12.so and libdxcore.so.
  std::string directml_library;
  std::string d3d12_library;
  std::string dxcore_library;
};

// A GPU opened for DirectML. May be shared by any number of sessions and threads. After the GPU was lost, the next call
// opens it anew.
class DirectMlDevice {
 public:
  static Result Create(const DirectMlOptions& options, std::shared_ptr<DirectMlDevice>* device);

  explicit DirectMlDevice(DirectMlOptions options);
  ~DirectMlDevice();

  // Feature level and element types.
  const directml::Capabilities& capabilities() const { return capabilities_; }
  // "NVIDIA ..., DirectML feature level 6_2"; "default adapter, ..." where none was chosen.
  const std::string& description() const { return description_; }

  // The open GPU, opened again if it was lost. For a second after that failed it fails at once. For CompileForDirectMl's
  // executables.
  Result Acquire(std::shared_ptr<directml::Gpu>* gpu);
  // Drops a GPU that was found lost.
  void Drop(const directml::Gpu* gpu);

 private:
  struct State;

  DirectMlOptions options_;
  directml::Capabilities capabilities_;
  std::string description_;
  std::unique_ptr<State> state_;
};

// Why the device cannot run the chain, as far as can be said before all shapes are known; nothing when it can.
std::optional<Declined> CheckForDirectMl(const Chain& chain, const DirectMlDevice& device);

// Makes chains ready for the device. Operators are compiled at the first Run with each new set of shapes and kept, for a
// bounded number of sets. Shapes that DirectML cannot run (a dimension of 0, say) run on the CPU path. So does a call that
// the GPU fails, with a warning; after two failures in a row all calls with these shapes.
Result CompileForDirectMl(const Chain& chain, std::shared_ptr<DirectMlDevice> device,
                          std::unique_ptr<Executable>* executable, GpuWorkListener listener = {});
// Each chain is one that CheckForDirectMl let pass.
Result CompileForDirectMl(ChainSequence sequence, std::shared_ptr<DirectMlDevice> device,
                          std::unique_ptr<Executable>* executable, GpuWorkListener listener = {});

// Whether tensors that ONNX Runtime has given addresses of device_memory.h stay on the GPU.
enum class Tensors { kOnCpu, kMayStayOnGpu };

// An island. Where its shapes at run time are none that DirectML can express, a call of one made of chains runs on the CPU
// path; of any other it fails with an error that says what is in the way.
Result CompileForDirectMl(directml::Island island, std::shared_ptr<DirectMlDevice> device, Tensors tensors,
                          std::unique_ptr<Executable>* executable, GpuWorkListener listener = {});

}  // namespace normfuse
