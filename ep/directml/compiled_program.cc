#include "directml/compiled_program.h"

#include <algorithm>
#include <cstring>

#include "directml/hresult.h"
#include "directml/operator_desc.h"

namespace normfuse::directml {
namespace {

using namespace abi;

// Tensors start at multiples of this; DirectML asks for 16.
constexpr uint64_t kTensorAlignment = 256;

uint64_t AlignUp(uint64_t bytes) { return (bytes + kTensorAlignment - 1) / kTensorAlignment * kTensorAlignment; }

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

Result CompiledProgram::Compile(DmlProgram program, std::shared_ptr<Gpu> gpu,
                                std::unique_ptr<CompiledProgram>* compiled, GpuWork* work) {
  std::unique_ptr<CompiledProgram> made(new CompiledProgram(std::move(program), std::move(gpu)));
  NORMFUSE_RETURN_IF_ERROR(made->CompileGraph(work));
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
    layout->bytes += AlignUp(bytes);
  };
  for (const GraphInput& input : program_.inputs) {
    const bool constant = input.node_input < 0;
    place(&constants_, constant ? input.bytes : 0);
    place(&inputs_, constant ? 0 : input.bytes);
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
  if (properties_.PersistentResourceSize > 0) {
    NORMFUSE_RETURN_IF_ERROR(
        CreateBuffer(gpu_->d3d12(), D3D12_HEAP_TYPE_DEFAULT, properties_.PersistentResourceSize, &persistent_));
    ++work->created;
  }
  BufferPool::Lease upload, constants, temporary;
  BufferPool& pool = gpu_->pool();
  NORMFUSE_RETURN_IF_ERROR(pool.Acquire(D3D12_HEAP_TYPE_UPLOAD, constants_.bytes, &upload, work));
  NORMFUSE_RETURN_IF_ERROR(pool.Acquire(D3D12_HEAP_TYPE_DEFAULT, constants_.bytes, &constants, work));
  NORMFUSE_RETURN_IF_ERROR(pool.Acquire(D3D12_HEAP_TYPE_DEFAULT, properties.TemporaryResourceSize, &temporary, work));

  std::vector<DML_BUFFER_BINDING> buffers(program_.inputs.size());
  if (constants_.bytes > 0) {
    const D3D12_RANGE nothing = {0, 0};
    void* mapped = nullptr;
    NORMFUSE_RETURN_IF_FAILED("ID3D12Resource::Map", upload.get()->Map(0, &nothing, &mapped));
    for (size_t i = 0; i < program_.inputs.size(); ++i) {
      const GraphInput& input = program_.inputs[i];
      if (input.node_input >= 0) continue;
      std::memcpy(static_cast<char*>(mapped) + constants_.offsets[i], input.value.data(), input.bytes);
      buffers[i] = {constants.get(), constants_.offsets[i], input.bytes};
    }
    upload.get()->Unmap(0, nullptr);
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
  bindings.temporary = temporary.get();
  bindings.temporary_bytes = properties.TemporaryResourceSize;
  return gpu_->Submit(
      [&] {
        if (constants_.bytes > 0) gpu_->RecordUpload(constants.get(), upload.get(), constants_.bytes);
        return gpu_->RecordDispatch(initializer.get(), bindings);
      },
      work);
}

Result CompiledProgram::Run(const std::vector<const void*>& inputs, const std::vector<void*>& outputs,
                            GpuWork* work) const {
  BufferPool::Lease upload, input_buffer, output_buffer, readback, temporary;
  BufferPool& pool = gpu_->pool();
  NORMFUSE_RETURN_IF_ERROR(pool.Acquire(D3D12_HEAP_TYPE_UPLOAD, inputs_.bytes, &upload, work));
  NORMFUSE_RETURN_IF_ERROR(pool.Acquire(D3D12_HEAP_TYPE_DEFAULT, inputs_.bytes, &input_buffer, work));
  NORMFUSE_RETURN_IF_ERROR(pool.Acquire(D3D12_HEAP_TYPE_DEFAULT, outputs_.bytes, &output_buffer, work));
  NORMFUSE_RETURN_IF_ERROR(pool.Acquire(D3D12_HEAP_TYPE_READBACK, outputs_.bytes, &readback, work));
  NORMFUSE_RETURN_IF_ERROR(pool.Acquire(D3D12_HEAP_TYPE_DEFAULT, properties_.TemporaryResourceSize, &temporary, work));

  std::vector<DML_BUFFER_BINDING> input_buffers(program_.inputs.size());
  std::vector<DML_BINDING_DESC> input_bindings(program_.inputs.size());
  if (inputs_.bytes > 0) {
    const D3D12_RANGE nothing = {0, 0};
    void* mapped = nullptr;
    NORMFUSE_RETURN_IF_FAILED("ID3D12Resource::Map", upload.get()->Map(0, &nothing, &mapped));
    for (size_t i = 0; i < program_.inputs.size(); ++i) {
      const GraphInput& input = program_.inputs[i];
      if (input.node_input < 0) continue;
      std::memcpy(static_cast<char*>(mapped) + inputs_.offsets[i], inputs[i], BytesFor(input.type, input.elements));
      input_buffers[i] = {input_buffer.get(), inputs_.offsets[i], input.bytes};
      input_bindings[i] = {DML_BINDING_TYPE_BUFFER, &input_buffers[i]};
    }
    upload.get()->Unmap(0, nullptr);
  }
  std::vector<DML_BUFFER_BINDING> output_buffers(program_.outputs.size());
  std::vector<DML_BINDING_DESC> output_bindings(program_.outputs.size());
  for (size_t i = 0; i < program_.outputs.size(); ++i) {
    output_buffers[i] = {output_buffer.get(), outputs_.offsets[i], program_.outputs[i].bytes};
    output_bindings[i] = {DML_BINDING_TYPE_BUFFER, &output_buffers[i]};
  }
  const Gpu::Bindings bindings = {input_bindings.data(),
                                  static_cast<uint32_t>(input_bindings.size()),
                                  output_bindings.data(),
                                  static_cast<uint32_t>(output_bindings.size()),
                                  temporary.get(),
                                  properties_.TemporaryResourceSize,
                                  persistent_.resource.get(),
                                  persistent_.bytes};
  const auto record = [&]() -> Result {
    if (inputs_.bytes > 0) gpu_->RecordUpload(input_buffer.get(), upload.get(), inputs_.bytes);
    NORMFUSE_RETURN_IF_ERROR(gpu_->RecordDispatch(compiled_.get(), bindings));
    gpu_->RecordReadback(readback.get(), output_buffer.get(), outputs_.bytes);
    return {};
  };
  NORMFUSE_RETURN_IF_ERROR(gpu_->Submit(record, work));

  const D3D12_RANGE all = {0, outputs_.bytes};
  void* mapped = nullptr;
  NORMFUSE_RETURN_IF_FAILED("ID3D12Resource::Map", readback.get()->Map(0, &all, &mapped));
  for (size_t i = 0; i < program_.outputs.size(); ++i) {
    const GraphOutput& output = program_.outputs[i];
    if (outputs[i] == nullptr) continue;
    std::memcpy(outputs[i], static_cast<const char*>(mapped) + outputs_.offsets[i],
                BytesFor(output.type, output.elements));
  }
  const D3D12_RANGE nothing = {0, 0};
  readback.get()->Unmap(0, &nothing);
  return {};
}

}  // namespace normfuse::directml
