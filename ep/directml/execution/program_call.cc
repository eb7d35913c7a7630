#include "directml/execution/program_call.h"

#include <cstring>
#include <utility>

namespace normfuse::directml {

Result ReadToCpu(const Content& content, std::vector<unsigned char>* bytes) {
  bytes->resize(content->bytes());
  const Result read = DeviceContent::Read({{content, bytes->size(), bytes->data()}});
  if (read.ok()) return {};
  return Result::Error(ErrorCode::kInvalidArgument,
                       "DirectML path: an input cannot be read from the GPU that it is on: " + read.message() +
                           ". Make its value again.");
}

Result ProgramCall::Run(const CallInputs& inputs, ExecutionContext& context, GpuWork* work) {
  NORMFUSE_RETURN_IF_ERROR(TakeInputs(inputs, work));
  NORMFUSE_RETURN_IF_ERROR(TakeOutputs(context, work));
  NORMFUSE_RETURN_IF_ERROR(GiveKnown(context));
  NORMFUSE_RETURN_IF_ERROR(compiled_.Run(tensors_, work));
  for (Kept& each : kept_) {
    if (each.content == nullptr) each.content = std::make_shared<DeviceContent>(std::move(each.bytes));
    device_memory::Put(each.address, std::move(each.content));
  }
  return {};
}

Result ProgramCall::TakeInputs(const CallInputs& inputs, GpuWork* work) {
  const auto& program = compiled_.program();
  for (size_t i = 0; i < program.inputs.size(); ++i) {
    if (program.inputs[i].node_input < 0) continue;
    const auto at = static_cast<size_t>(program.inputs[i].node_input);
    const Content& content = inputs.contents[at];
    tensors_.inputs[i] = inputs.data[at];
    if (content == nullptr) continue;
    const bool may_stay = CompiledProgram::MayStay(program.inputs[i]);
    if (may_stay && content->IsOn(compiled_.gpu().get())) {
      tensors_.input_buffers[i] = &content->buffer();
    } else if (content->on_cpu() == nullptr) {
      NORMFUSE_RETURN_IF_ERROR(ReadToCpu(content, &read_.emplace_back()));
      tensors_.inputs[i] = read_.back().data();
    } else if (may_stay && content->WasRead()) {
      NORMFUSE_RETURN_IF_ERROR(MoveToGpu(inputs.addresses[at], content, work));
      tensors_.input_buffers[i] = &moved_.back()->buffer();
    }
  }
  return {};
}

Result ProgramCall::MoveToGpu(const void* address, const Content& content, GpuWork* work) {
  std::shared_ptr<DeviceContent> moved;
  NORMFUSE_RETURN_IF_ERROR(content->Upload(compiled_.gpu(), &moved, work));
  device_memory::Replace(address, content, moved);
  moved_.push_back(std::move(moved));
  return {};
}

Result ProgramCall::TakeOutputs(ExecutionContext& context, GpuWork* work) {
  const auto& program = compiled_.program();
  for (size_t i = 0; i < program.outputs.size(); ++i) {
    const auto& output = program.outputs[i];
    void* to = nullptr;
    NORMFUSE_RETURN_IF_ERROR(
        context.Output(output.node_output, output.type, output.dims.data(), output.dims.size(), &to));
    if (!IsDeviceMemory(to)) {
      tensors_.outputs[i] = to;
      continue;
    }
    Kept& kept = kept_.emplace_back(Kept{to, nullptr, {}});
    const uint64_t bytes = BytesFor(output.type, output.elements);
    if (CompiledProgram::MayStay(output)) {
      NORMFUSE_RETURN_IF_ERROR(DeviceContent::OnGpu(compiled_.gpu(), bytes, &kept.content, work));
      tensors_.output_buffers[i] = &kept.content->buffer();
    } else {
      kept.bytes.resize(bytes);
      tensors_.outputs[i] = kept.bytes.data();
    }
  }
  return {};
}

Result ProgramCall::GiveKnown(ExecutionContext& context) const {
  for (const auto& output : compiled_.program().known_outputs) {
    void* to = nullptr;
    const ConstantTensor& value = output.value;
    NORMFUSE_RETURN_IF_ERROR(context.Output(output.node_output, value.type, value.dims.data(), value.dims.size(), &to));
    if (to == nullptr || value.storage.empty()) continue;
    if (IsDeviceMemory(to)) {
      device_memory::Put(to, std::make_shared<DeviceContent>(value.storage));
    } else {
      std::memcpy(to, value.storage.data(), value.storage.size());
    }
  }
  return {};
}

}  // namespace normfuse::directml
