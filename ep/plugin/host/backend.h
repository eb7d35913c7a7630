// What runs the chains of a session: the CPU path, or DirectML with the CPU path for what DirectML cannot express.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "chain/execution.h"
#include "chain/reason.h"
#include "directml/directml.h"
#include "directml/islands/island.h"
#include "spec/tables.h"

namespace normfuse::plugin {

struct BackendOptions {
  BackendValue choice = BackendValue::kAuto;
  DirectMlOptions directml;
  std::string directml_report;  // file that each call of a node on the GPU adds what it cost to, one JSON object a line
};

class Backend {
 public:
  // kAuto means the CPU path, on every device: no measurement says yet where DirectML would be faster. An error says why
  // DirectML cannot be had; there is no silent change to the CPU path. Backends of the same options share one GPU device.
  static Result Create(const BackendOptions& options, std::unique_ptr<Backend>* backend);

  // Null on the CPU path.
  const DirectMlDevice* directml() const { return device_.get(); }

  // Why DirectML leaves the chain to the CPU path; nothing when it does not, or when there is no DirectML here.
  std::optional<Declined> CheckForDirectMl(const Chain& chain) const;

  Result Compile(const Chain& chain, std::unique_ptr<Executable>* executable) const;
  // Only where there is DirectML, and chains that it can express.
  Result Compile(ChainSequence sequence, std::unique_ptr<Executable>* executable) const;
  // Only where there is DirectML.
  Result Compile(directml::Island island, Tensors tensors, std::unique_ptr<Executable>* executable) const;

 private:
  std::shared_ptr<DirectMlDevice> device_;
  GpuWorkListener listener_;
};

}  // namespace normfuse::plugin
