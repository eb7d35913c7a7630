// A DmlProgram compiled for one GPU and initialised with its constants.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "directml/gpu.h"
#include "directml/program.h"
#include "directml/weights.h"

namespace normfuse::directml {

class CompiledProgram {
 public:
  // Brings to the GPU those of its weights that are not among `weights` yet. Adds what it took to `work`.
  static Result Compile(DmlProgram program, std::shared_ptr<Gpu> gpu, Weights* weights,
                        std::unique_ptr<CompiledProgram>* compiled, GpuWork* work);

  const DmlProgram& program() const { return program_; }
  const std::shared_ptr<Gpu>& gpu() const { return gpu_; }

  // Gives the GPU the inputs, runs, and takes the outputs back; what is recorded for that is recorded once. `inputs` are indexed as program().inputs (constants
  // are not looked at), `outputs` as program().outputs; a null output is not wanted. Adds what it took to
  // `work`. May run on several threads at once.
  Result Run(const std::vector<const void*>& inputs, const std::vector<void*>& outputs, GpuWork* work) const;

 private:
  CompiledProgram(DmlProgram program, std::shared_ptr<Gpu> gpu) : program_(std::move(program)), gpu_(std::move(gpu)) {}

  // Where each tensor lies in the one buffer that holds all inputs, or all outputs.
  struct Layout {
    std::vector<uint64_t> offsets;
    uint64_t bytes = 0;
  };

  // What was recorded over the buffers of one lane. Used by whoever holds the lane.
  struct Recording {
    uint64_t generation = 0;  // the lane's
    Commands commands;
  };

  Result CompileGraph(GpuWork* work);
  Result Initialise(GpuWork* work);
  void LayOut();
  Result UploadConstants(Buffer* upload, Buffer* constants, GpuWork* work) const;
  Recording& RecordingFor(const Lane& lane) const;
  Result Record(const Lane& lane, Recording* recording, GpuWork* work) const;
  Result RecordCommands(const Lane& lane) const;
  Result WriteInputs(const Lane& lane, const std::vector<const void*>& inputs) const;
  Result ReadOutputs(const Lane& lane, const std::vector<void*>& outputs) const;

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
  mutable std::map<uint32_t, Recording> recordings_;  // by the lane's slot
};

}  // namespace normfuse::directml
