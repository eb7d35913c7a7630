#include "directml/execution/weights.h"

#include <cstring>

#include "directml/lowering/quantization.h"

namespace normfuse::directml {
namespace {

// All `input.bytes`, of which the last ones may belong to no element.
void Write(const GraphInput& input, char* to) {
  const ConstantTensor& tensor = *input.weight;
  const uint64_t bytes = BytesFor(input.type, input.elements);
  std::memset(to + bytes, 0, input.bytes - bytes);
  if (input.type == tensor.type) {
    std::memcpy(to, tensor.data, bytes);
  } else {
    std::memcpy(to, FloatsOf(tensor).data(), bytes);
  }
}

}  // namespace

Result Weights::Upload(const DmlProgram& program, const std::shared_ptr<Gpu>& gpu, std::vector<Place>* places,
                       GpuWork* work) {
  if (gpu_ != gpu) {
    places_.clear();
    gpu_ = gpu;
  }
  NORMFUSE_RETURN_IF_ERROR(UploadNew(program, work));
  for (const GraphInput& input : program.inputs) {
    places->push_back(input.weight ? places_.at({input.weight, input.type}) : Place{});
  }
  return {};
}

// One buffer holds all that one program adds.
Result Weights::UploadNew(const DmlProgram& program, GpuWork* work) {
  std::vector<std::pair<const GraphInput*, uint64_t>> added;
  uint64_t bytes = 0;
  for (const GraphInput& input : program.inputs) {
    if (!input.weight || places_.count({input.weight, input.type}) != 0) continue;
    added.emplace_back(&input, bytes);
    bytes += AlignedForTensors(input.bytes);
  }
  if (added.empty()) return {};
  const bool unified = gpu_->memory() != MemoryArchitecture::kDiscrete;
  const auto create = [&](BufferKind kind, Buffer* buffer) {
    ++work->created;
    return CreateBuffer(gpu_->d3d12(), kind, gpu_->memory(), bytes, buffer);
  };
  Buffer weights, upload;
  NORMFUSE_RETURN_IF_ERROR(create(unified ? BufferKind::kInput : BufferKind::kGpu, &weights));
  if (!unified) NORMFUSE_RETURN_IF_ERROR(create(BufferKind::kUpload, &upload));
  {
    Mapping mapping;
    NORMFUSE_RETURN_IF_ERROR(mapping.Write(unified ? weights : upload));
    for (const auto& [input, offset] : added) Write(*input, mapping.data() + offset);
  }
  if (!unified) {
    Commands commands;
    const auto record = [&]() -> Result {
      gpu_->RecordUpload(weights.resource.get(), upload.resource.get(), {{0, bytes}});
      return {};
    };
    NORMFUSE_RETURN_IF_ERROR(gpu_->Record(record, &commands, work));
    NORMFUSE_RETURN_IF_ERROR(gpu_->Run(commands, work));
  }
  for (const auto& [input, offset] : added) places_[{input->weight, input->type}] = {weights.resource, offset};
  return {};
}

}  // namespace normfuse::directml
