// A DmlProgram compiled for one GPU and initialised with its constants.
#pragma once

#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "directml/device/gpu.h"
#include "directml/execution/weights.h"
#include "directml/lowering/program.h"

namespace normfuse::directml {

class CompiledProgram {
 public:
  // Brings to the GPU those of its weights that are not among `weights` yet. Adds what it took to `work`.
  static Result Compile(DmlProgram program, std::shared_ptr<Gpu> gpu, Weights* weights,
                        std::unique_ptr<CompiledProgram>* compiled, GpuWork* work);

  const DmlProgram& program() const { return program_; }
  const std::shared_ptr<Gpu>& gpu() const { return gpu_; }

  // The tensors of a call, by position in program().inputs (constants are not looked at) and program().outputs: in the CPU's
  // memory, or where there is a buffer in that. An output that is in neither is not wanted.
  struct Tensors {
    std::vector<const void*> inputs;
    std::vector<void*> outputs;
    std::vector<const Buffer*> input_buffers, output_buffers;
  };

  // Gives the GPU the inputs, runs, and takes the outputs back; what is recorded for that is recorded once. Adds what it
  // took to `work`. May run on several threads at once.
  Result Run(const Tensors& tensors, GpuWork* work) const;

  // A call with these tensors, none of them anywhere yet.
  Tensors NoTensors() const;
  // Whether a tensor may lie in a buffer as the CPU has it: it has the same bytes there, and needs no check.
  static bool MayStay(const GraphInput& input) { return input.type != DataType::kInt64 && !input.indices; }
  static bool MayStay(const GraphOutput& output) { return output.type != DataType::kInt64; }

 private:
  CompiledProgram(DmlProgram program, std::shared_ptr<Gpu> gpu) : program_(std::move(program)), gpu_(std::move(gpu)) {}

  // Where each tensor lies in the one buffer that holds all inputs, or all outputs.
  struct Layout {
    std::vector<uint64_t> offsets;
    uint64_t bytes = 0;
  };

  // What was recorded over the buffers of one lane, and those of tensors. Used by whoever holds the lane.
  struct Recording {
    uint64_t generation = 0;        // the lane's
    std::vector<uint64_t> buffers;  // of inputs and outputs, by id; 0 for those in the lane
    Commands commands;
  };
  // Of one lane, the one used last in front. Tensors that go around, as states do, are in two or three buffers.
  using Recordings = std::list<Recording>;
  static constexpr size_t kMaxRecordings = 4;

  Result CompileGraph(GpuWork* work);
  Result Initialise(GpuWork* work);
  void LayOut();
  Result UploadConstants(Buffer* upload, Buffer* constants, GpuWork* work) const;
  Recordings& RecordingsFor(const Lane& lane) const;
  Result Record(const Lane& lane, const Tensors& tensors, const Commands** commands, GpuWork* work) const;
  Result RecordCommands(const Lane& lane, const Tensors& tensors) const;
  std::vector<Gpu::Range> Uploads(const Tensors& tensors) const;
  std::vector<Gpu::Range> Readbacks(const Tensors& tensors) const;
  // An error goes to `if_selected` that is one of the call where an integer of more than 32 bits comes back.
  Result WriteInputs(const Lane& lane, const Tensors& tensors, Result* if_selected) const;
  Result ReadOutputs(const Lane& lane, const Tensors& tensors, const Result& if_selected) const;

  DmlProgram program_;
  std::shared_ptr<Gpu> gpu_;
  ComPtr<abi::IDMLCompiledOperator> compiled_;
  abi::DML_BINDING_PROPERTIES properties_{};
  Buffer persistent_;
  std::vector<Weights::Place> weights_;  // by input
  Layout constants_;
  Layout inputs_;
  Layout outputs_;
  mutable std::mutex mutex_;
  mutable std::map<uint32_t, Recordings> recordings_;  // by the lane's slot
};

}  // namespace normfuse::directml
