#include "directml/execution/compiled_program.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "directml/device/hresult.h"
#include "directml/execution/operator_desc.h"

namespace normfuse::directml {
namespace {

using namespace abi;

constexpr int64_t kLeast = std::numeric_limits<int32_t>::min(), kMost = std::numeric_limits<int32_t>::max();

// A constant that DirectML takes in when the program is initialised.
bool BelongsToProgram(const GraphInput& input) { return input.node_input < 0 && input.weight == nullptr; }

// The GPU reads whatever lies where an index points to.
template <typename T>
Result CheckIndices(const GraphInput& input, const void* from) {
  const auto* values = static_cast<const T*>(from);
  for (uint64_t i = 0; i < input.elements; ++i) {
    if (values[i] >= input.indices->least && values[i] <= input.indices->most) continue;
    return Result::Error(ErrorCode::kInvalidArgument, "DirectML path: input '" + input.name + "' has the value " +
                                                          std::to_string(values[i]) + ", but as indices its values " +
                                                          "must be from " + std::to_string(input.indices->least) +
                                                          " to " + std::to_string(input.indices->most) + ".");
  }
  return {};
}

// A tensor of the node as it lies on the GPU, and back: int64 has 32 bits there. What is larger and only moved is the nearest
// integer there, and its value an error where such an integer comes back.
Result CopyIn(const GraphInput& input, const void* from, void* to, Result* if_selected) {
  if (input.indices) {
    NORMFUSE_RETURN_IF_ERROR(input.type == DataType::kInt64 ? CheckIndices<int64_t>(input, from)
                                                            : CheckIndices<int32_t>(input, from));
  }
  if (input.type != DataType::kInt64) {
    std::memcpy(to, from, BytesFor(input.stored, input.elements));
    return {};
  }
  const auto* values = static_cast<const int64_t*>(from);
  auto* narrow = static_cast<int32_t*>(to);
  for (uint64_t i = 0; i < input.elements; ++i) {
    narrow[i] = static_cast<int32_t>(std::clamp<int64_t>(values[i], kLeast, kMost));
    if (narrow[i] == values[i] || (input.only_moved && !if_selected->ok())) continue;
    *if_selected = Result::Error(ErrorCode::kInvalidArgument,
                                 "DirectML path: input '" + input.name + "' has the value " +
                                     std::to_string(values[i]) + ", but integers have 32 bits there; use backend=cpu.");
    if (!input.only_moved) return *if_selected;
  }
  return {};
}

Result CopyOut(const GraphOutput& output, const void* from, void* to, const Result& if_selected) {
  if (output.type != DataType::kInt64) {
    std::memcpy(to, from, BytesFor(output.stored, output.elements));
    return {};
  }
  const auto* values = static_cast<const int32_t*>(from);
  for (uint64_t i = 0; i < output.elements; ++i) {
    if (!if_selected.ok() && (values[i] == kLeast || values[i] == kMost)) return if_selected;
    static_cast<int64_t*>(to)[i] = values[i];
  }
  return {};
}

// What lies in the lane, neighbours as one range.
std::vector<Gpu::Range> InLane(const std::vector<uint64_t>& offsets, uint64_t end,
                               const std::vector<const Buffer*>& buffers) {
  std::vector<Gpu::Range> ranges;
  for (size_t i = 0; i < offsets.size(); ++i) {
    const uint64_t next = i + 1 < offsets.size() ? offsets[i + 1] : end, bytes = next - offsets[i];
    if (buffers[i] != nullptr || bytes == 0) continue;
    if (!ranges.empty() && ranges.back().offset + ranges.back().bytes == offsets[i]) {
      ranges.back().bytes += bytes;
    } else {
      ranges.push_back({offsets[i], bytes});
    }
  }
  return ranges;
}

// The edges of a program. The structures point at one another, so the object stays where it is.
struct GraphEdges {
  explicit GraphEdges(const DmlProgram& program) {
    for (uint32_t node = 0; node < program.operators.size(); ++node) {
      const Operator& op = program.operators[node];
      uint32_t slot = 0;
      for (const auto& input : op.inputs) {
        const uint32_t to = slot++;
        if (!input) continue;
        if (input->from_graph_input) {
          inputs.push_back({input->index, node, to, nullptr});
        } else {
          intermediates.push_back({input->index, 0, node, to, nullptr});
        }
      }
    }
    for (uint32_t i = 0; i < program.outputs.size(); ++i)
      outputs.push_back({program.outputs[i].from_node, 0, i, nullptr});
    for (const auto& edge : inputs) input_edges.push_back({DML_GRAPH_EDGE_TYPE_INPUT, &edge});
    for (const auto& edge : outputs) output_edges.push_back({DML_GRAPH_EDGE_TYPE_OUTPUT, &edge});
    for (const auto& edge : intermediates) intermediate_edges.push_back({DML_GRAPH_EDGE_TYPE_INTERMEDIATE, &edge});
  }
  GraphEdges(const GraphEdges&) = delete;

  std::vector<DML_INPUT_GRAPH_EDGE_DESC> inputs;
  std::vector<DML_OUTPUT_GRAPH_EDGE_DESC> outputs;
  std::vector<DML_INTERMEDIATE_GRAPH_EDGE_DESC> intermediates;
  std::vector<DML_GRAPH_EDGE_DESC> input_edges, output_edges, intermediate_edges;
};

}  // namespace

Result CompiledProgram::Compile(DmlProgram program, std::shared_ptr<Gpu> gpu, Weights* weights,
                                std::unique_ptr<CompiledProgram>* compiled, GpuWork* work) {
  std::unique_ptr<CompiledProgram> made(new CompiledProgram(std::move(program), std::move(gpu)));
  if (made->program_.outputs.empty()) {  // all that it gives was known when it was made
    *compiled = std::move(made);
    return {};
  }
  NORMFUSE_RETURN_IF_ERROR(made->CompileGraph(work));
  NORMFUSE_RETURN_IF_ERROR(weights->Upload(made->program_, made->gpu_, &made->weights_, work));
  made->LayOut();
  NORMFUSE_RETURN_IF_ERROR(made->Initialise(work));
  // The constants live on the GPU now.
  for (GraphInput& input : made->program_.inputs) input.value = {};
  *compiled = std::move(made);
  return {};
}

Result CompiledProgram::CompileGraph(GpuWork* work) {
  const size_t count = program_.operators.size();
  std::vector<ComPtr<IDMLOperator>> operators(count);
  std::vector<DML_OPERATOR_GRAPH_NODE_DESC> node_descs(count);
  std::vector<DML_GRAPH_NODE_DESC> nodes(count);
  for (size_t i = 0; i < count; ++i) {
    const OperatorDesc desc(program_.operators[i]);
    const std::string call = "IDMLDevice::CreateOperator(" + OperatorName(program_.operators[i].type) + ")";
    NORMFUSE_RETURN_IF_FAILED(
        call.c_str(), gpu_->directml()->CreateOperator(&desc.get(), IDMLOperator::kIid, operators[i].Receive()));
    node_descs[i] = {operators[i].get(), nullptr};
    nodes[i] = {DML_GRAPH_NODE_TYPE_OPERATOR, &node_descs[i]};
  }
  const GraphEdges edges(program_);
  const DML_GRAPH_DESC graph = {static_cast<UINT>(program_.inputs.size()),
                                static_cast<UINT>(program_.outputs.size()),
                                static_cast<UINT>(count),
                                nodes.data(),
                                static_cast<UINT>(edges.input_edges.size()),
                                edges.input_edges.data(),
                                static_cast<UINT>(edges.output_edges.size()),
                                edges.output_edges.data(),
                                static_cast<UINT>(edges.intermediate_edges.size()),
                                edges.intermediate_edges.data()};
  NORMFUSE_RETURN_IF_FAILED(
      "IDMLDevice1::CompileGraph",
      gpu_->directml()->CompileGraph(&graph, DML_EXECUTION_FLAG_NONE, IDMLCompiledOperator::kIid, compiled_.Receive()));
  work->created += count + 1;
  properties_ = compiled_->GetBindingProperties();
  return {};
}

void CompiledProgram::LayOut() {
  const auto place = [](Layout* layout, uint64_t bytes) {
    layout->offsets.push_back(layout->bytes);
    layout->bytes += AlignedForTensors(bytes);
  };
  for (const GraphInput& input : program_.inputs) {
    place(&constants_, BelongsToProgram(input) ? input.bytes : 0);
    place(&inputs_, input.node_input < 0 ? 0 : input.bytes);
  }
  for (const GraphOutput& output : program_.outputs) place(&outputs_, output.bytes);
}

// Runs the operator's initialiser, once: it takes the constants in and writes the persistent buffer.
Result CompiledProgram::Initialise(GpuWork* work) {
  IDMLCompiledOperator* const operators[] = {compiled_.get()};
  ComPtr<IDMLOperatorInitializer> initializer;
  NORMFUSE_RETURN_IF_FAILED(
      "IDMLDevice::CreateOperatorInitializer",
      gpu_->directml()->CreateOperatorInitializer(1, operators, IDMLOperatorInitializer::kIid, initializer.Receive()));
  ++work->created;
  const DML_BINDING_PROPERTIES properties = initializer->GetBindingProperties();
  const auto create = [&](uint64_t bytes, Buffer* buffer) -> Result {
    if (bytes == 0) return {};
    ++work->created;
    return CreateBuffer(gpu_->d3d12(), BufferKind::kGpu, gpu_->memory(), bytes, buffer);
  };
  Buffer upload, constants, temporary;
  NORMFUSE_RETURN_IF_ERROR(create(properties_.PersistentResourceSize, &persistent_));
  NORMFUSE_RETURN_IF_ERROR(create(properties.TemporaryResourceSize, &temporary));
  if (constants_.bytes > 0) NORMFUSE_RETURN_IF_ERROR(UploadConstants(&upload, &constants, work));

  std::vector<DML_BUFFER_BINDING> buffers(program_.inputs.size());
  for (size_t i = 0; i < program_.inputs.size(); ++i) {
    if (!BelongsToProgram(program_.inputs[i])) continue;
    buffers[i] = {constants.resource.get(), constants_.offsets[i], program_.inputs[i].bytes};
  }
  const DML_BUFFER_ARRAY_BINDING array = {static_cast<UINT>(buffers.size()), buffers.data()};
  const DML_BINDING_DESC input = {DML_BINDING_TYPE_BUFFER_ARRAY, &array};
  const DML_BUFFER_BINDING persistent = {persistent_.resource.get(), 0, persistent_.bytes};
  const bool persists = persistent_.bytes > 0;
  const DML_BINDING_DESC output = {persists ? DML_BINDING_TYPE_BUFFER : DML_BINDING_TYPE_NONE,
                                   persists ? &persistent : nullptr};
  Gpu::Bindings bindings;
  bindings.inputs = &input;
  bindings.input_count = constants_.bytes > 0 ? 1 : 0;
  bindings.outputs = &output;
  bindings.output_count = 1;
  bindings.temporary = temporary.resource.get();
  bindings.temporary_bytes = properties.TemporaryResourceSize;
  Commands commands;
  const auto record = [&] {
    if (upload.bytes > 0) gpu_->RecordUpload(constants.resource.get(), upload.resource.get(), {{0, constants_.bytes}});
    return gpu_->RecordDispatch(initializer.get(), bindings);
  };
  NORMFUSE_RETURN_IF_ERROR(gpu_->Record(record, &commands, work));
  return gpu_->Run(commands, work);
}

// Where the memory is unified the constants are written to where the initialiser reads them, and `upload` stays empty.
Result CompiledProgram::UploadConstants(Buffer* upload, Buffer* constants, GpuWork* work) const {
  const bool unified = gpu_->memory() != MemoryArchitecture::kDiscrete;
  NORMFUSE_RETURN_IF_ERROR(CreateBuffer(gpu_->d3d12(), unified ? BufferKind::kInput : BufferKind::kGpu, gpu_->memory(),
                                        constants_.bytes, constants));
  if (!unified) {
    NORMFUSE_RETURN_IF_ERROR(
        CreateBuffer(gpu_->d3d12(), BufferKind::kUpload, gpu_->memory(), constants_.bytes, upload));
  }
  work->created += unified ? 1 : 2;
  Mapping mapping;
  NORMFUSE_RETURN_IF_ERROR(mapping.Write(unified ? *constants : *upload));
  for (size_t i = 0; i < program_.inputs.size(); ++i) {
    const GraphInput& input = program_.inputs[i];
    if (!BelongsToProgram(input)) continue;
    std::memcpy(mapping.data() + constants_.offsets[i], input.value.data(), input.bytes);
  }
  return {};
}

CompiledProgram::Tensors CompiledProgram::NoTensors() const {
  const size_t inputs = program_.inputs.size(), outputs = program_.outputs.size();
  return {std::vector<const void*>(inputs), std::vector<void*>(outputs), std::vector<const Buffer*>(inputs),
          std::vector<const Buffer*>(outputs)};
}

Result CompiledProgram::Run(const Tensors& tensors, GpuWork* work) const {
  if (program_.outputs.empty()) return {};
  LanePool::Lease lane;
  const LaneSizes sizes = {inputs_.bytes, outputs_.bytes, properties_.TemporaryResourceSize};
  NORMFUSE_RETURN_IF_ERROR(gpu_->lanes().Acquire(sizes, &lane, work));
  const Commands* commands = nullptr;
  NORMFUSE_RETURN_IF_ERROR(Record(*lane, tensors, &commands, work));
  Result if_selected;
  NORMFUSE_RETURN_IF_ERROR(WriteInputs(*lane, tensors, &if_selected));
  NORMFUSE_RETURN_IF_ERROR(gpu_->Run(*commands, work));
  return ReadOutputs(*lane, tensors, if_selected);
}

CompiledProgram::Recordings& CompiledProgram::RecordingsFor(const Lane& lane) const {
  const std::lock_guard lock(mutex_);
  return recordings_[lane.slot];
}

// What was recorded over these very buffers, or is now.
Result CompiledProgram::Record(const Lane& lane, const Tensors& tensors, const Commands** commands,
                               GpuWork* work) const {
  std::vector<uint64_t> buffers;
  for (const std::vector<const Buffer*>* each : {&tensors.input_buffers, &tensors.output_buffers}) {
    for (const Buffer* buffer : *each) buffers.push_back(buffer == nullptr ? 0 : buffer->id);
  }
  Recordings& recordings = RecordingsFor(lane);
  recordings.remove_if([&](const Recording& each) { return each.generation != lane.generation; });
  const auto known = std::find_if(recordings.begin(), recordings.end(),
                                  [&](const Recording& each) { return each.buffers == buffers; });
  if (known != recordings.end()) {
    recordings.splice(recordings.begin(), recordings, known);
  } else {
    Recording made{lane.generation, std::move(buffers), {}};
    NORMFUSE_RETURN_IF_ERROR(gpu_->Record([&] { return RecordCommands(lane, tensors); }, &made.commands, work));
    recordings.push_front(std::move(made));
    if (recordings.size() > kMaxRecordings) recordings.pop_back();
  }
  *commands = &recordings.front().commands;
  return {};
}

Result CompiledProgram::RecordCommands(const Lane& lane, const Tensors& tensors) const {
  std::vector<DML_BUFFER_BINDING> input_buffers(program_.inputs.size());
  std::vector<DML_BINDING_DESC> inputs(program_.inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    const GraphInput& input = program_.inputs[i];
    if (BelongsToProgram(input)) continue;
    const Buffer* kept = tensors.input_buffers[i];
    input_buffers[i] = {lane.input.resource.get(), inputs_.offsets[i], input.bytes};
    if (input.weight) input_buffers[i] = {weights_[i].resource.get(), weights_[i].offset, input.bytes};
    if (kept != nullptr) input_buffers[i] = {kept->resource.get(), 0, input.bytes};
    inputs[i] = {DML_BINDING_TYPE_BUFFER, &input_buffers[i]};
  }
  std::vector<DML_BUFFER_BINDING> output_buffers(program_.outputs.size());
  std::vector<DML_BINDING_DESC> outputs(program_.outputs.size());
  for (size_t i = 0; i < outputs.size(); ++i) {
    const Buffer* kept = tensors.output_buffers[i];
    output_buffers[i] = {lane.output.resource.get(), outputs_.offsets[i], program_.outputs[i].bytes};
    if (kept != nullptr) output_buffers[i] = {kept->resource.get(), 0, program_.outputs[i].bytes};
    outputs[i] = {DML_BINDING_TYPE_BUFFER, &output_buffers[i]};
  }
  const Gpu::Bindings bindings = {inputs.data(),
                                  static_cast<uint32_t>(inputs.size()),
                                  outputs.data(),
                                  static_cast<uint32_t>(outputs.size()),
                                  lane.temporary.resource.get(),
                                  properties_.TemporaryResourceSize,
                                  persistent_.resource.get(),
                                  persistent_.bytes};
  const bool copies = gpu_->memory() == MemoryArchitecture::kDiscrete;
  const std::vector<Gpu::Range> up = Uploads(tensors), down = Readbacks(tensors);
  if (copies && !up.empty()) gpu_->RecordUpload(lane.input.resource.get(), lane.upload.resource.get(), up);
  NORMFUSE_RETURN_IF_ERROR(gpu_->RecordDispatch(compiled_.get(), bindings));
  if (copies && !down.empty()) gpu_->RecordReadback(lane.readback.resource.get(), lane.output.resource.get(), down);
  return {};
}

std::vector<Gpu::Range> CompiledProgram::Uploads(const Tensors& tensors) const {
  return InLane(inputs_.offsets, inputs_.bytes, tensors.input_buffers);
}

std::vector<Gpu::Range> CompiledProgram::Readbacks(const Tensors& tensors) const {
  return InLane(outputs_.offsets, outputs_.bytes, tensors.output_buffers);
}

Result CompiledProgram::WriteInputs(const Lane& lane, const Tensors& tensors, Result* if_selected) const {
  if (Uploads(tensors).empty()) return {};
  Mapping mapping;
  NORMFUSE_RETURN_IF_ERROR(mapping.Write(gpu_->memory() == MemoryArchitecture::kDiscrete ? lane.upload : lane.input));
  for (size_t i = 0; i < program_.inputs.size(); ++i) {
    const GraphInput& input = program_.inputs[i];
    if (input.node_input < 0 || tensors.input_buffers[i] != nullptr) continue;
    NORMFUSE_RETURN_IF_ERROR(CopyIn(input, tensors.inputs[i], mapping.data() + inputs_.offsets[i], if_selected));
  }
  return {};
}

Result CompiledProgram::ReadOutputs(const Lane& lane, const Tensors& tensors, const Result& if_selected) const {
  if (Readbacks(tensors).empty()) return {};
  Mapping mapping;
  NORMFUSE_RETURN_IF_ERROR(
      mapping.Read(gpu_->memory() == MemoryArchitecture::kDiscrete ? lane.readback : lane.output, outputs_.bytes));
  for (size_t i = 0; i < program_.outputs.size(); ++i) {
    const GraphOutput& output = program_.outputs[i];
    if (tensors.outputs[i] == nullptr) continue;
    NORMFUSE_RETURN_IF_ERROR(CopyOut(output, mapping.data() + outputs_.offsets[i], tensors.outputs[i], if_selected));
  }
  return {};
}

}  // namespace normfuse::directml
