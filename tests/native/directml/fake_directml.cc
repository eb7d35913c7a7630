// A DirectML that computes on the CPU: the test double behind which the whole execution path runs for real. One shared
// library stands for DirectML, Direct3D 12 and DXCore; it checks what DirectML documents (edges, binding counts, one
// initialisation, descriptors) and answers a fault as DirectML does, by removing the device.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "abi/directml_abi.h"
#include "abi/dxcore_abi.h"
#include "com_object.h"
#include "fake_d3d12.h"
#include "fake_judge.h"
#include "fake_operators.h"

namespace normfuse::test {

FakeState& FakeState::Get() {
  static FakeState state;
  return state;
}

namespace {

using namespace abi;

uint32_t Level() {
  const char* environment = std::getenv("NORMFUSE_FAKE_DIRECTML_LEVEL");
  const int64_t otherwise = environment ? std::strtol(environment, nullptr, 0) : int64_t{DML_FEATURE_LEVEL_6_4};
  return static_cast<uint32_t>(FakeState::Get().Setting("feature_level", otherwise));
}

class FakeOperator final : public FakeChild<IDMLOperator, IDMLOperator::kIid> {
 public:
  FakeKernel kernel;
};

struct Edge {
  bool connected = false;
  bool from_graph = false;
  uint32_t index = 0;
};

struct Node {
  FakeKernel kernel;
  std::vector<Edge> edges;
  uint64_t temporary_offset = 0;
};

struct GraphInput {
  bool used = false;
  bool owned = false;
  uint64_t bytes = 0;
  uint64_t persistent_offset = 0;
};

// What a table holds when a dispatch is recorded.
struct Bound {
  std::vector<DML_BUFFER_BINDING> inputs;  // a null buffer: none
  std::vector<DML_BUFFER_BINDING> outputs;
  DML_BUFFER_BINDING temporary{};
  DML_BUFFER_BINDING persistent{};
};

uint8_t* Memory(const DML_BUFFER_BINDING& binding) {
  if (!FakeResource::IsAlive(binding.Buffer, "dispatch")) return nullptr;
  auto* resource = static_cast<FakeResource*>(binding.Buffer);
  if (binding.Offset % 16 != 0 || binding.Offset + binding.SizeInBytes > resource->bytes.size()) {
    FakeState::Get().Violation("binding out of range or misaligned");
    return nullptr;
  }
  return resource->bytes.data() + binding.Offset;
}

class FakeCompiled final : public FakeChild<IDMLCompiledOperator, IDMLCompiledOperator::kIid> {
 public:
  NORMFUSE_COM_STRUCT_METHOD_IMPL(DML_BINDING_PROPERTIES, GetBindingProperties, Properties())

  DML_BINDING_PROPERTIES Properties() const {
    return {static_cast<UINT>(inputs.size() + output_nodes.size() + 2), temporary_bytes, persistent_bytes};
  }

  // Empty when the bindings are what this operator asks for.
  std::string Check(const Bound& bound) const {
    if (!initialised) return "dispatched before it was initialised";
    if (bound.inputs.size() != inputs.size()) return "input count";
    if (bound.outputs.size() != output_nodes.size()) return "output count";
    for (size_t i = 0; i < inputs.size(); ++i) {
      const bool wanted = inputs[i].used && !inputs[i].owned;
      if (wanted != (bound.inputs[i].Buffer != nullptr))
        return "input that is owned or unused is bound, or one is missing";
      if (wanted && bound.inputs[i].SizeInBytes < inputs[i].bytes) return "input size";
    }
    for (size_t i = 0; i < output_nodes.size(); ++i) {
      if (bound.outputs[i].SizeInBytes < nodes[output_nodes[i]].kernel.output.bytes) return "output size";
    }
    if (bound.temporary.SizeInBytes < temporary_bytes) return "temporary resource";
    if (bound.persistent.SizeInBytes != persistent_bytes) return "persistent resource";
    return "";
  }

  void Run(const Bound& bound) const {
    uint8_t* temporary = temporary_bytes > 0 ? Memory(bound.temporary) : nullptr;
    uint8_t* persistent = persistent_bytes > 0 ? Memory(bound.persistent) : nullptr;
    for (const Node& node : nodes) {
      std::vector<const uint8_t*> read;
      for (const Edge& edge : node.edges) {
        if (!edge.connected) {
          read.push_back(nullptr);
        } else if (!edge.from_graph) {
          read.push_back(temporary + nodes[edge.index].temporary_offset);
        } else if (inputs[edge.index].owned) {
          read.push_back(persistent + inputs[edge.index].persistent_offset);
        } else {
          read.push_back(Memory(bound.inputs[edge.index]));
          if (read.back() == nullptr) return;
        }
      }
      node.kernel.run(read, temporary + node.temporary_offset);
    }
    for (size_t i = 0; i < output_nodes.size(); ++i) {
      uint8_t* out = Memory(bound.outputs[i]);
      const Node& node = nodes[output_nodes[i]];
      if (out != nullptr) std::memcpy(out, temporary + node.temporary_offset, node.kernel.output.bytes);
    }
  }

  std::vector<Node> nodes;
  std::vector<GraphInput> inputs;
  std::vector<uint32_t> output_nodes;
  uint64_t temporary_bytes = 0;
  uint64_t persistent_bytes = 0;
  std::atomic<bool> initialised{false};
};

class FakeInitializer final : public FakeChild<IDMLOperatorInitializer, IDMLOperatorInitializer::kIid> {
 public:
  explicit FakeInitializer(FakeCompiled* compiled) : compiled_(compiled) {}
  NORMFUSE_COM_STRUCT_METHOD_IMPL(DML_BINDING_PROPERTIES, GetBindingProperties, (DML_BINDING_PROPERTIES{4, 64, 0}))
  HRESULT Reset(uint32_t, IDMLCompiledOperator* const*) override { return kNotImplemented; }

  std::string Check(const Bound& bound) const {
    if (compiled_->initialised) return "initialised twice";
    const bool any_owned = compiled_->persistent_bytes > 0;
    if (any_owned && bound.inputs.size() != compiled_->inputs.size()) return "initialiser's input count";
    for (size_t i = 0; any_owned && i < bound.inputs.size(); ++i) {
      if (compiled_->inputs[i].owned != (bound.inputs[i].Buffer != nullptr)) return "initialiser's inputs";
    }
    if (bound.outputs.size() != 1) return "initialiser's output count";
    if (bound.outputs[0].SizeInBytes != compiled_->persistent_bytes) return "initialiser's persistent buffer";
    if (bound.temporary.SizeInBytes < 64) return "initialiser's temporary resource";
    return "";
  }

  void Run(const Bound& bound) const {
    FakeState::Get().Count("initialisations");
    uint8_t* persistent = compiled_->persistent_bytes > 0 ? Memory(bound.outputs[0]) : nullptr;
    for (size_t i = 0; persistent != nullptr && i < bound.inputs.size(); ++i) {
      const GraphInput& input = compiled_->inputs[i];
      if (!input.owned) continue;
      const uint8_t* from = Memory(bound.inputs[i]);
      if (from != nullptr) std::memcpy(persistent + input.persistent_offset, from, input.bytes);
    }
  }

  void Recorded() { compiled_->initialised = true; }

 private:
  FakeCompiled* compiled_;
};

class FakeTable final : public FakeChild<IDMLBindingTable, IDMLBindingTable::kIid> {
 public:
  explicit FakeTable(const DML_BINDING_TABLE_DESC& desc) : desc_(desc) {}
  void BindInputs(uint32_t count, const DML_BINDING_DESC* bindings) override {
    bound_.inputs = Buffers(count, bindings);
  }
  void BindOutputs(uint32_t count, const DML_BINDING_DESC* bindings) override {
    bound_.outputs = Buffers(count, bindings);
  }
  void BindTemporaryResource(const DML_BINDING_DESC* binding) override { bound_.temporary = Buffers(1, binding)[0]; }
  void BindPersistentResource(const DML_BINDING_DESC* binding) override { bound_.persistent = Buffers(1, binding)[0]; }
  HRESULT Reset(const DML_BINDING_TABLE_DESC* desc) override {
    NORMFUSE_FAKE_ENTER("IDMLBindingTable::Reset");
    desc_ = *desc;
    bound_ = {};
    return kOk;
  }

  const Bound& bound() const { return bound_; }
  const DML_BINDING_TABLE_DESC& desc() const { return desc_; }

 private:
  static std::vector<DML_BUFFER_BINDING> Buffers(uint32_t count, const DML_BINDING_DESC* bindings) {
    std::vector<DML_BUFFER_BINDING> buffers;
    for (uint32_t i = 0; i < count; ++i) {
      if (bindings[i].Type == DML_BINDING_TYPE_BUFFER) {
        buffers.push_back(*static_cast<const DML_BUFFER_BINDING*>(bindings[i].Desc));
      } else if (bindings[i].Type == DML_BINDING_TYPE_BUFFER_ARRAY) {
        const auto& array = *static_cast<const DML_BUFFER_ARRAY_BINDING*>(bindings[i].Desc);
        buffers.insert(buffers.end(), array.Bindings, array.Bindings + array.BindingCount);
      } else {
        buffers.push_back({});
      }
    }
    return buffers;
  }

  DML_BINDING_TABLE_DESC desc_;
  Bound bound_;
};

class FakeDirectMl;

class FakeRecorder final : public FakeChild<IDMLCommandRecorder, IDMLCommandRecorder::kIid> {
 public:
  explicit FakeRecorder(FakeDirectMl* device) : device_(device) {}
  void RecordDispatch(ID3D12CommandList* list, IDMLDispatchable* dispatchable, IDMLBindingTable* table) override;

 private:
  FakeDirectMl* device_;
};

class FakeDirectMl final : public FakeObject<IDMLDevice1, IDMLDevice1::kIid, IDMLDevice::kIid> {
 public:
  explicit FakeDirectMl(ID3D12Device* d3d12) : d3d12_(static_cast<FakeDevice*>(d3d12)) { d3d12_->AddRef(); }
  ~FakeDirectMl() override { d3d12_->Release(); }

  HRESULT CheckFeatureSupport(DML_FEATURE feature, uint32_t, const void* query, uint32_t, void* data) override {
    NORMFUSE_FAKE_ENTER("CheckFeatureSupport");
    if (feature == DML_FEATURE_TENSOR_DATA_TYPE_SUPPORT) {
      const uint32_t type = *static_cast<const uint32_t*>(query);
      if (type > DML_TENSOR_DATA_TYPE_INT8 && Level() < DML_FEATURE_LEVEL_6_3) return kInvalidArgument;
      const int64_t without = FakeState::Get().Setting("unsupported_types", 0);
      *static_cast<BOOL*>(data) = (without >> type & 1) == 0;
      return kOk;
    }
    const auto& levels = *static_cast<const DML_FEATURE_QUERY_FEATURE_LEVELS*>(query);
    auto best = DML_FEATURE_LEVEL_1_0;
    for (UINT i = 0; i < levels.RequestedFeatureLevelCount; ++i) {
      if (levels.RequestedFeatureLevels[i] <= Level()) best = std::max(best, levels.RequestedFeatureLevels[i]);
    }
    static_cast<DML_FEATURE_DATA_FEATURE_LEVELS*>(data)->MaxSupportedFeatureLevel = best;
    return kOk;
  }

  HRESULT CreateOperator(const DML_OPERATOR_DESC* desc, const GUID& iid, void** op) override {
    NORMFUSE_FAKE_ENTER("CreateOperator");
    auto* made = new FakeOperator;
    std::string problem = ReadOperator(*desc, Level(), &made->kernel);
    if (problem.empty() && !MicrosoftAccepts(*desc)) problem = "by Microsoft's library";
    if (!problem.empty()) {
      std::fprintf(stderr, "fake DirectML: operator %u refused: %s\n", static_cast<unsigned>(desc->Type),
                   problem.c_str());
      made->Release();
      return kInvalidArgument;
    }
    FakeState::Get().Count("operators");
    return HandOut(made, iid, op);
  }

  HRESULT CompileOperator(IDMLOperator*, DML_EXECUTION_FLAGS, const GUID&, void**) override { return kNotImplemented; }

  HRESULT CompileGraph(const DML_GRAPH_DESC* graph, DML_EXECUTION_FLAGS, const GUID& iid, void** compiled) override {
    NORMFUSE_FAKE_ENTER("CompileGraph");
    auto* made = new FakeCompiled;
    const std::string problem = ReadGraph(*graph, made);
    if (!problem.empty()) {
      FakeState::Get().Violation("graph: " + problem);
      made->Release();
      return kInvalidArgument;
    }
    FakeState::Get().Count("graphs");
    return HandOut(made, iid, compiled);
  }

  HRESULT CreateOperatorInitializer(uint32_t count, IDMLCompiledOperator* const* operators, const GUID& iid,
                                    void** initializer) override {
    NORMFUSE_FAKE_ENTER("CreateOperatorInitializer");
    if (count != 1) return kInvalidArgument;
    return HandOut(new FakeInitializer(static_cast<FakeCompiled*>(operators[0])), iid, initializer);
  }

  HRESULT CreateCommandRecorder(const GUID& iid, void** recorder) override {
    NORMFUSE_FAKE_ENTER("CreateCommandRecorder");
    return HandOut(new FakeRecorder(this), iid, recorder);
  }

  HRESULT CreateBindingTable(const DML_BINDING_TABLE_DESC* desc, const GUID& iid, void** table) override {
    NORMFUSE_FAKE_ENTER("CreateBindingTable");
    return HandOut(new FakeTable(*desc), iid, table);
  }

  HRESULT GetDeviceRemovedReason() override { return removed_; }
  HRESULT GetParentDevice(const GUID&, void**) override { return kNotImplemented; }

  // DirectML answers wrong use while recording by removing itself.
  void Remove(HRESULT reason) { removed_ = reason; }
  FakeDevice* d3d12() const { return d3d12_; }

 private:
  static std::string ReadGraph(const DML_GRAPH_DESC& graph, FakeCompiled* made) {
    made->inputs.resize(graph.InputCount);
    for (UINT i = 0; i < graph.NodeCount; ++i) {
      const auto& node = *static_cast<const DML_OPERATOR_GRAPH_NODE_DESC*>(graph.Nodes[i].Desc);
      const FakeKernel& kernel = static_cast<FakeOperator*>(node.Operator)->kernel;
      made->nodes.push_back({kernel, std::vector<Edge>(kernel.inputs.size()), made->temporary_bytes});
      made->temporary_bytes += (kernel.output.bytes + 255) / 256 * 256;
    }
    for (UINT i = 0; i < graph.InputEdgeCount; ++i) {
      const auto& edge = *static_cast<const DML_INPUT_GRAPH_EDGE_DESC*>(graph.InputEdges[i].Desc);
      const FakeTensor& tensor = made->nodes[edge.ToNodeIndex].kernel.inputs[edge.ToNodeInputIndex];
      GraphInput& input = made->inputs[edge.GraphInputIndex];
      if (input.used && (input.owned != tensor.owned || input.bytes != tensor.bytes))
        return "readers of an input differ";
      input.used = true;
      input.owned = tensor.owned;
      input.bytes = tensor.bytes;
      const std::string problem =
          Connect(made, edge.ToNodeIndex, edge.ToNodeInputIndex, {true, true, edge.GraphInputIndex});
      if (!problem.empty()) return problem;
    }
    for (UINT i = 0; i < graph.IntermediateEdgeCount; ++i) {
      const auto& edge = *static_cast<const DML_INTERMEDIATE_GRAPH_EDGE_DESC*>(graph.IntermediateEdges[i].Desc);
      if (edge.FromNodeIndex >= edge.ToNodeIndex) return "operators out of order";
      const FakeTensor& to = made->nodes[edge.ToNodeIndex].kernel.inputs[edge.ToNodeInputIndex];
      if (to.owned) return "an intermediate tensor cannot be owned by DirectML";
      if (to.bytes != made->nodes[edge.FromNodeIndex].kernel.output.bytes) return "sizes at the ends of an edge differ";
      const std::string problem =
          Connect(made, edge.ToNodeIndex, edge.ToNodeInputIndex, {true, false, edge.FromNodeIndex});
      if (!problem.empty()) return problem;
    }
    made->output_nodes.resize(graph.OutputCount, 0xFFFFFFFF);
    for (UINT i = 0; i < graph.OutputEdgeCount; ++i) {
      const auto& edge = *static_cast<const DML_OUTPUT_GRAPH_EDGE_DESC*>(graph.OutputEdges[i].Desc);
      made->output_nodes[edge.GraphOutputIndex] = edge.FromNodeIndex;
    }
    return CheckComplete(made);
  }

  static std::string Connect(FakeCompiled* made, uint32_t node, uint32_t slot, Edge edge) {
    Edge& at = made->nodes[node].edges[slot];
    if (at.connected) return "an input is connected twice";
    if (!made->nodes[node].kernel.inputs[slot].present) return "an input that is left out is connected";
    at = edge;
    return "";
  }

  static std::string CheckComplete(FakeCompiled* made) {
    for (const Node& node : made->nodes) {
      for (size_t i = 0; i < node.edges.size(); ++i) {
        if (node.kernel.inputs[i].present && !node.edges[i].connected) return "an input is not connected";
      }
    }
    for (uint32_t node : made->output_nodes) {
      if (node >= made->nodes.size()) return "an output is not connected";
    }
    for (GraphInput& input : made->inputs) {
      if (!input.used) return "an input is not used";
      if (!input.owned) continue;
      input.persistent_offset = made->persistent_bytes;
      made->persistent_bytes += (input.bytes + 255) / 256 * 256;
    }
    return "";
  }

  FakeDevice* d3d12_;
  std::atomic<HRESULT> removed_{kOk};
};

void FakeRecorder::RecordDispatch(ID3D12CommandList* list, IDMLDispatchable* dispatchable, IDMLBindingTable* table) {
  const auto* bound_table = static_cast<FakeTable*>(table);
  auto* commands = static_cast<FakeCommandList*>(list);
  auto* compiled = dynamic_cast<FakeCompiled*>(dispatchable);
  auto* initializer = dynamic_cast<FakeInitializer*>(dispatchable);
  const Bound bound = bound_table->bound();
  std::string problem = compiled ? compiled->Check(bound) : initializer->Check(bound);
  if (commands->heap() == nullptr) problem = "no descriptor heap is set";
  if (bound_table->desc().Dispatchable != dispatchable) problem = "the table was made for something else";
  if (bound_table->desc().SizeInDescriptors < dispatchable->GetBindingProperties().RequiredDescriptorCount) {
    problem = "too few descriptors";
  }
  if (commands->heap() && commands->heap()->GetDesc().NumDescriptors < bound_table->desc().SizeInDescriptors) {
    problem = "the descriptor heap is too small";
  }
  std::function<bool()> unchanged;
  if (problem.empty()) {
    auto* heap = static_cast<FakeDescriptorHeap*>(commands->heap());
    const DML_BINDING_TABLE_DESC& desc = bound_table->desc();
    unchanged = heap->Write(desc.CPUDescriptorHandle, desc.GPUDescriptorHandle, desc.SizeInDescriptors);
    if (!unchanged) problem = "descriptors are not in the heap";
  }
  if (!problem.empty()) {
    FakeState::Get().Violation("dispatch: " + problem);
    return device_->Remove(kInvalidArgument);
  }
  if (initializer) initializer->Recorded();
  FakeDevice* d3d12 = device_->d3d12();
  commands->Append([=] {
    FakeState::Get().Count("dispatches");
    if (!unchanged()) FakeState::Get().Violation("descriptors were written over or released");
    const int64_t left = FakeState::Get().Setting("dispatches_until_removal", -1);
    if (left >= 0) FakeState::Get().Set("dispatches_until_removal", left - 1);
    if (left == 0) return d3d12->Remove(kDxgiDeviceHung);
    compiled ? compiled->Run(bound) : initializer->Run(bound);
  });
}

// --- adapters ---------------------------------------------------------------------------------------------------------

class FakeAdapter final : public FakeObject<IDXCoreAdapter, IDXCoreAdapter::kIid> {
 public:
  explicit FakeAdapter(uint32_t number) : name_("fake adapter " + std::to_string(number)) {}
  bool IsValid() override { return true; }
  bool IsAttributeSupported(const GUID&) override { return true; }
  bool IsPropertySupported(DXCoreAdapterProperty) override { return true; }
  HRESULT GetProperty(DXCoreAdapterProperty, size_t bytes, void* data) override {
    std::memcpy(data, name_.c_str(), std::min(bytes, name_.size() + 1));
    return kOk;
  }
  HRESULT GetPropertySize(DXCoreAdapterProperty, size_t* bytes) override {
    *bytes = name_.size() + 1;
    return kOk;
  }

 private:
  std::string name_;
};

class FakeAdapterList final : public FakeObject<IDXCoreAdapterList, IDXCoreAdapterList::kIid> {
 public:
  FakeAdapterList() {
    const auto count = static_cast<uint32_t>(FakeState::Get().Setting("adapters", 2));
    for (uint32_t i = 0; i < count; ++i) order_.push_back(i);
  }
  HRESULT GetAdapter(uint32_t index, const GUID& iid, void** adapter) override {
    if (index >= order_.size()) return kInvalidArgument;
    return HandOut(new FakeAdapter(order_[index]), iid, adapter);
  }
  uint32_t GetAdapterCount() override { return static_cast<uint32_t>(order_.size()); }
  bool IsStale() override { return false; }
  HRESULT GetFactory(const GUID&, void**) override { return kNotImplemented; }
  // The last adapter is the fast one.
  HRESULT Sort(uint32_t count, const DXCoreAdapterPreference* preferences) override {
    const bool fast = count > 0 && preferences[count - 1] == DXCoreAdapterPreference::HighPerformance;
    std::sort(order_.begin(), order_.end(), [fast](uint32_t a, uint32_t b) { return fast ? a > b : a < b; });
    return kOk;
  }

 private:
  std::vector<uint32_t> order_;
};

class FakeFactory final : public FakeObject<IDXCoreAdapterFactory, IDXCoreAdapterFactory::kIid> {
 public:
  HRESULT CreateAdapterList(uint32_t, const GUID*, const GUID& iid, void** list) override {
    return HandOut(new FakeAdapterList, iid, list);
  }
  HRESULT GetAdapterByLuid(const LUID& luid, const GUID& iid, void** adapter) override {
    if (luid.high_part != 0 || luid.low_part != 7) return kDxgiNotFound;
    return HandOut(new FakeAdapter(7), iid, adapter);
  }
};

}  // namespace
}  // namespace normfuse::test

NORMFUSE_TEST_EXPORT normfuse::abi::HRESULT D3D12CreateDevice(normfuse::abi::IUnknown*, uint32_t,
                                                              const normfuse::abi::GUID& iid, void** device) {
  NORMFUSE_FAKE_ENTER("D3D12CreateDevice");
  normfuse::test::FakeState::Get().Count("devices");
  return normfuse::test::HandOut(new normfuse::test::FakeDevice, iid, device);
}

NORMFUSE_TEST_EXPORT normfuse::abi::HRESULT DMLCreateDevice1(normfuse::abi::ID3D12Device* d3d12, uint32_t,
                                                             uint32_t minimum, const normfuse::abi::GUID& iid,
                                                             void** device) {
  NORMFUSE_FAKE_ENTER("DMLCreateDevice1");
  if (normfuse::test::Level() < minimum) return normfuse::abi::kDxgiUnsupported;
  return normfuse::test::HandOut(new normfuse::test::FakeDirectMl(d3d12), iid, device);
}

NORMFUSE_TEST_EXPORT normfuse::abi::HRESULT DXCoreCreateAdapterFactory(const normfuse::abi::GUID& iid, void** factory) {
  NORMFUSE_FAKE_ENTER("DXCoreCreateAdapterFactory");
  return normfuse::test::HandOut(new normfuse::test::FakeFactory, iid, factory);
}

NORMFUSE_TEST_EXPORT void FakeControl(const char* name, int64_t value) {
  const std::string text = name;
  auto& state = normfuse::test::FakeState::Get();
  if (text.rfind("fail:", 0) == 0) {
    state.FailNext(text.substr(5), static_cast<normfuse::abi::HRESULT>(value));
  } else {
    state.Set(text, value);
  }
}

NORMFUSE_TEST_EXPORT int64_t FakeCounter(const char* name) { return normfuse::test::FakeState::Get().Counter(name); }
