// What a backend (ep/cpu, ep/directml) gets to run a chain with, and what it gives.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "chain/chain.h"
#include "chain/data_type.h"
#include "chain/result.h"
#include "chain/sequence.h"

namespace normfuse {

// A tensor in CPU memory. data is null for an optional input that was left out (and may be for zero elements).
// Inputs are aligned to their element only; outputs to 64 bytes.
struct TensorView {
  const void* data = nullptr;
  DataType type = DataType::kUndefined;
  const int64_t* dims = nullptr;
  size_t rank = 0;
};

// One call of a node: its inputs, its outputs and the session's threads. Implemented over OrtKernelContext by the
// plugin and the custom op, and over plain arrays by the native tests.
class ExecutionContext {
 public:
  virtual Result Input(int index, TensorView* view) = 0;
  // Allocates output `index`, into which the caller writes `type`; an error when the graph holds another type there.
  // `data` is null when nobody reads it.
  virtual Result Output(int index, DataType type, const int64_t* dims, size_t rank, void** data) = 0;
  // Calls task(user, i) for every i in [0, count), on the session's threads; returns when all have.
  virtual Result ParallelFor(void (*task)(void* user, size_t index), size_t count, void* user) = 0;
  // How many threads ParallelFor may use, the caller included; at least 1.
  virtual int ThreadCount() const = 0;
  // Tells the user of something that went wrong without being this call's error.
  virtual void Warn(const std::string&) {}

 protected:
  ~ExecutionContext() = default;
};

// A chain made ready by a backend. Run is called from several threads at the same time.
class Executable {
 public:
  virtual ~Executable() = default;
  virtual Result Run(ExecutionContext& context) const = 0;
};

// The CPU path (ep/cpu). Converts constant scales, biases and quantisation parameters once.
Result CompileForCpu(const Chain& chain, std::unique_ptr<Executable>* executable);
Result CompileForCpu(const ChainSequence& sequence, std::unique_ptr<Executable>* executable);

// Name of the instruction set in use: "avx512", "avx2", "baseline" or "neon". NORMFUSE_ISA forces a lower one; an
// unknown or unsupported value is an error of CompileForCpu and of library start, never a silent choice.
Result SelectedIsa(const char** name);

}  // namespace normfuse
