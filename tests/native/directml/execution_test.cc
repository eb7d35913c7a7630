// The whole DirectML path against the fake library: lowering, descriptions, graph, initialisation, bindings, upload,
// readback, caching, threads, errors. Results are compared with the chain's meaning in float64.
//   directml_execution_test FAKE_LIBRARY [CASES]  the test; CASES random chains at each feature level
//   directml_execution_test --system [CASES [SEED]]  random chains on the DirectML and GPU that the loader finds
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "directml/device/shared_library.h"
#include "directml/directml.h"
#include "directml/lowering/chain_lowering.h"
#include "fake_control.h"
#include "random_case.h"

namespace {

using namespace normfuse;
using namespace normfuse::test;
using abi::DML_FEATURE_LEVEL;

std::string fake_library;
FakeControlFunction control = nullptr;
FakeCounterFunction counter = nullptr;

DirectMlOptions Options() {
  DirectMlOptions options;
  options.directml_library = options.d3d12_library = options.dxcore_library = fake_library;
  return options;
}

std::shared_ptr<DirectMlDevice> Open(DML_FEATURE_LEVEL level) {
  control("feature_level", level);
  std::shared_ptr<DirectMlDevice> device;
  const Result result = DirectMlDevice::Create(Options(), &device);
  CHECK(result.ok(), "%s", result.message().c_str());
  return device;
}

// DirectML makes several operators of a chain, each of which rounds.
Accuracy accuracy = {8e-7, 1, 0.505};

class Context final : public ArrayContext {
 public:
  explicit Context(const Case& test) { test.FillContext(this); }
  void Warn(const std::string& message) override { warning_ = message; }
  // The last one; empty when there was none.
  const std::string& warning() const { return warning_; }

 private:
  std::string warning_;
};

// The result must be right, on the GPU or, with a warning, on the CPU path. Returns the warning.
std::string CheckWarned(const Case& test, const Executable& executable, const std::string& what) {
  Context context(test);
  const Result result = executable.Run(context);
  CHECK(result.ok(), "%s: %s", what.c_str(), result.message().c_str());
  if (result.ok()) CompareOutputs(test, context, what, accuracy);
  return context.warning();
}

void CheckRun(const Case& test, const Executable& executable, const std::string& what) {
  const std::string warning = CheckWarned(test, executable, what);
  CHECK(warning.empty(), "%s: %s", what.c_str(), warning.c_str());
}

// --- numbers ----------------------------------------------------------------------------------------------------------

GeneratorLimits LimitsOf(const DirectMlDevice& device, int64_t max_elements) {
  return {max_elements, true, device.capabilities().level >= abi::DML_FEATURE_LEVEL_6_3};
}

int RunRandomChains(const std::shared_ptr<DirectMlDevice>& device, int count, unsigned seed) {
  const DML_FEATURE_LEVEL level = device->capabilities().level;
  int ran = 0;
  for (int i = 0; i < count; ++i) {
    std::string text;
    const Case test = RandomCase(uint64_t{1000} * seed + static_cast<uint64_t>(i), LimitsOf(*device, 600), &text);
    if (Overflows(test)) continue;
    const std::string what = "level " + directml::LevelName(level) + " {" + text + "}";
    directml::DmlProgram program;
    const Chain chain = test.chain();
    const auto declined = directml::Lower(chain, InputShapes(test), device->capabilities(), &program);
    const bool statistics = chain.normalizes() && chain.normalization->has_statistics();
    // Below 3_1 a chain may need more than four dimensions; nothing else is declined.
    const bool may_decline = level < abi::DML_FEATURE_LEVEL_3_1 || (statistics && level < abi::DML_FEATURE_LEVEL_6_2);
    CHECK(!declined || may_decline, "%s declined: %s", what.c_str(), declined ? declined->message.c_str() : "");
    if (declined) continue;
    std::unique_ptr<Executable> executable;
    const Result compiled = CompileForDirectMl(chain, device, &executable);
    CHECK(compiled.ok() || may_decline, "%s: %s", what.c_str(), compiled.message().c_str());
    if (!compiled.ok()) continue;
    CheckRun(test, *executable, what);
    ++ran;
  }
  return ran;
}

// --- bookkeeping ------------------------------------------------------------------------------------------------------

// LayerNormalization -> Gelu over [rows, 8] with constant scale and bias: compiled once for all row counts.
Case LayerNorm() {
  Case test;
  Parts& parts = test.parts;
  parts.name = "layer norm";
  parts.x.tensor.input = 0;
  parts.x.type = parts.y_type = DataType::kFloat32;
  parts.normalization.from_first_axis = true;
  parts.x.shape = {2, {-1, 8}};
  parts.activation.kind = Activation::kGelu;
  for (Operand* operand : {&parts.scale, &parts.bias}) {
    operand->type = DataType::kFloat32;
    operand->tensor = test.Add(MakeFloats({8}, {0.25, 0.5, 0.75, 1, 1.25, 1.5, 1.75, 2}), true);
  }
  test.output_types = {parts.y_type};
  return test;
}

Parts LayerNormParts() { return LayerNorm().parts; }

std::unique_ptr<Executable> Compiled(const std::shared_ptr<DirectMlDevice>& device,
                                     const Chain& chain = LayerNormParts().Make()) {
  std::unique_ptr<Executable> executable;
  const Result result = CompileForDirectMl(chain, device, &executable);
  CHECK(result.ok(), "compile: %s", result.message().c_str());
  return executable;
}

Case Rows(int64_t rows, Case test = LayerNorm()) {
  Tensor x = MakeTensor(DataType::kFloat32, {rows, 8});
  for (int64_t i = 0; i < rows * 8; ++i) x.Set(i, std::sin(static_cast<double>(i) * 1.7) * 3 + 1);
  test.Add(std::move(x), false);
  return test;
}

// Graphs are initialised once, and nothing of a device is left behind it.
void TestInitialisedOnceAndReleased() {
  const int64_t alive = counter("live_objects"), initialised = counter("initialisations");
  {
    const auto executable = Compiled(Open(abi::DML_FEATURE_LEVEL_6_2));
    for (int i = 0; i < 3; ++i) CheckRun(Rows(5), *executable, "run again");
  }
  CHECK(counter("initialisations") == initialised + 1, "initialised again");
  CHECK(counter("live_objects") == alive, "%lld objects leak", static_cast<long long>(counter("live_objects") - alive));
}

// Shapes that take turns are recorded once each, as long as none needs larger buffers than were seen.
void TestRecordingsAreKept() {
  const auto device = Open(abi::DML_FEATURE_LEVEL_6_2);
  const auto first = Compiled(device), second = Compiled(device);
  const auto run_all = [&] {
    for (const int64_t rows : {5, 7, 5000, 6000}) {
      CheckRun(Rows(rows), *first, "in turns");
      CheckRun(Rows(rows + 1), *second, "in turns");
    }
  };
  run_all();
  run_all();  // the buffers have grown since the first were recorded
  const int64_t recordings = counter("recordings"), lists = counter("lists"), buffers = counter("buffers");
  run_all();
  CHECK(counter("recordings") == recordings && counter("lists") == lists, "recorded again");
  CHECK(counter("buffers") == buffers, "buffers are created in steady state");
}

// Where the CPU and the GPU share memory nothing is copied, not even the constants.
void TestUnifiedMemory() {
  for (const int64_t unified : {1, 2}) {
    control("unified_memory", unified);
    const auto device = Open(abi::DML_FEATURE_LEVEL_6_2);
    const int64_t copied = counter("bytes_up") + counter("bytes_down");
    const int64_t dispatches = counter("dispatches"), barriers = counter("barriers");
    RunRandomChains(device, 50, 7);
    CHECK(counter("dispatches") > dispatches, "nothing ran");
    CHECK(counter("bytes_up") + counter("bytes_down") == copied, "copied on unified memory");
    CHECK(counter("barriers") - barriers == counter("dispatches") - dispatches, "more barriers than dispatches");
  }
  control("unified_memory", 0);
}

// Two calls at once: the queue finishes neither before both were submitted.
void TestCallsOverlap() {
  const auto device = Open(abi::DML_FEATURE_LEVEL_6_2);
  const std::unique_ptr<Executable> executables[] = {Compiled(device), Compiled(device)};
  const Case tests[2] = {Rows(5), Rows(300)};
  // One node that two threads run, and two nodes; each first with nothing recorded in the second lane.
  for (const int second : {0, 1, 0, 1}) {
    for (int i = 0; i < 2; ++i) {
      for (const Case& test : tests) CheckRun(test, *executables[i], "alone");
    }
    control("hold_until_submissions", counter("submissions") + 2);
    std::thread other([&] { CheckRun(tests[1], *executables[second], "beside another call"); });
    CheckRun(tests[0], *executables[0], "beside another call");
    other.join();
    control("hold_until_submissions", 0);
  }
}

void TestShapesAreCachedAndBounded() {
  const auto device = Open(abi::DML_FEATURE_LEVEL_6_2);
  const auto executable = Compiled(device);
  const int64_t graphs = counter("graphs");
  for (int pass = 0; pass < 3; ++pass) {
    for (int64_t rows = 1; rows <= 8; ++rows) CheckRun(Rows(rows), *executable, "cached shape");
  }
  CHECK(counter("graphs") == graphs + 8, "%lld graphs for 8 shapes",
        static_cast<long long>(counter("graphs") - graphs));
  const int64_t alive = counter("live_objects");
  for (int64_t rows = 9; rows <= 100; ++rows) CheckRun(Rows(rows), *executable, "many shapes");
  const int64_t grown = counter("live_objects") - alive;
  CHECK(grown < 150, "the cache grows without bound: %lld objects more", static_cast<long long>(grown));
}

void TestThreads() {
  const auto device = Open(abi::DML_FEATURE_LEVEL_6_2);
  const auto executable = Compiled(device);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 25; ++i) {
        const Case test = Rows(1 + (t * 7 + i) % 11);
        CheckRun(test, *executable, "beside other threads");
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Random chains, each followed by an activation of its own result: as one program and one after the other. What passes
// between them has every type.
void TestSequences(const std::shared_ptr<DirectMlDevice>& device) {
  for (uint64_t i = 0; i < 200; ++i) {
    std::string text;
    const Case test = RandomCase(5000 + i, LimitsOf(*device, 200), &text);
    if (Overflows(test)) continue;
    ChainSequence sequence{{test.chain(), Chain()}, static_cast<int>(test.output_types.size())};
    Chain& first = sequence.chains.front();
    Chain& second = sequence.chains.back();
    // Every other time the first result is an output of the node as well.
    const int last = sequence.output_count++;
    if (i / 2 % 2 == 0) first.store.output = sequence.output_count;
    second.name = "second";
    second.x.name = "X";
    second.x.tensor.input = kFromOutput + first.store.output;
    second.x.type = first.store.type;
    second.x.quantization = first.store.quantization;
    second.behind.push_back(Activate({Activation::kRelu, {}}));
    second.store = {DataType::kFloat32, {}, true, last};

    std::unique_ptr<Executable> gpu, cpu;
    Result result = CompileForDirectMl(sequence, device, &gpu);
    if (result.ok()) result = CompileForCpu(sequence, &cpu);
    CHECK(result.ok(), "%s: %s", text.c_str(), result.message().c_str());
    if (!result.ok()) continue;
    Context on_gpu(test), on_cpu(test);
    std::vector<DataType> types = test.output_types;
    types.push_back(DataType::kFloat32);
    for (Context* context : {&on_gpu, &on_cpu}) context->SetOutputTypes(types);
    result = gpu->Run(on_gpu);
    if (result.ok()) result = cpu->Run(on_cpu);
    CHECK(result.ok(), "%s: %s", text.c_str(), result.message().c_str());
    const Tensor &a = on_gpu.output(last), &b = on_cpu.output(last);
    CHECK(a.dims == b.dims, "%s", text.c_str());
    // The largest scale that the generator makes.
    const double step = !first.store.quantization.present() ? 0 : BitsOf(first.store.type) == 4 ? 1 : 1.0 / 16;
    for (int64_t k = 0; k < a.Count(); ++k) {
      const double allowed = step * 1.001 + 1e-4 * (1 + std::fabs(b.At(k)));
      const bool close =
          std::fabs(a.At(k) - b.At(k)) <= (first.store.type == DataType::kFloat16 ? 40 * allowed : allowed);
      CHECK(close && a.At(k) >= 0, "%s: element %lld is %g, on the CPU %g", text.c_str(), static_cast<long long>(k),
            a.At(k), b.At(k));
    }
  }
}

std::vector<PartialShape*> ShapesOf(Chain* chain) {
  std::vector<PartialShape*> shapes = {&chain->x.shape};
  for (std::vector<Step>* steps : {&chain->before, &chain->behind}) {
    for (Step& step : *steps) shapes.push_back(&step.operand.shape);
  }
  return shapes;
}

// Groups over a tensor of unknown rank, with a slope [2, 6, 3] of which no dimension is known to meet the channels.
void TestGroupsOfUnknownRank() {
  const auto device = Open(abi::DML_FEATURE_LEVEL_6_4);
  Parts parts = LayerNormParts();
  parts.normalization.axes.clear();
  parts.normalization.from_first_axis = false;
  parts.normalization.num_groups = 3;
  parts.scale = parts.bias = Operand();
  parts.x.shape = PartialShape();
  parts.activation.kind = Activation::kPRelu;
  auto slope = std::make_shared<ConstantTensor>();
  slope->type = DataType::kFloat32;
  slope->dims = {2, 6, 3};
  slope->storage.resize(36 * sizeof(float));
  parts.slope.type = DataType::kFloat32;
  slope->data = slope->storage.data();
  parts.slope.tensor.constant = slope;
  const auto declined = CheckForDirectMl(parts.Make(), *device);
  CHECK(!declined, "%s", declined ? declined->message.c_str() : "");
}

// Blocked scales, a residual that broadcasts X and parameters that arrive at run time must not be declined for shapes that
// were only assumed.
void TestOpenShapes() {
  const auto device = Open(abi::DML_FEATURE_LEVEL_6_4);
  for (uint64_t i = 0; i < 300; ++i) {
    Case test = RandomChain(11000 + 2 * i, LimitsOf(*device, 300));
    uint64_t seen = 0;
    for (PartialShape* shape : ShapesOf(&*test.steps)) {
      if ((i + seen++) % 2 == 0) shape->rank = -1;
      for (int d = 0; d < shape->rank; ++d) {
        if ((i + static_cast<uint64_t>(d)) % 3 != 0) shape->dims[d] = -1;
      }
    }
    const auto declined = CheckForDirectMl(test.chain(), *device);
    CHECK(!declined, "open chain {%s}: %s", Describe(test, 11000 + 2 * i).c_str(),
          declined ? declined->message.c_str() : "");
  }
}

// --- failures ---------------------------------------------------------------------------------------------------------

void TestFailuresNameTheCall() {
  const Case test = Rows(5);
  // Each fails once while the first Run compiles or runs; the next Run has the GPU again.
  for (const char* call :
       {"CreateOperator", "CompileGraph", "CreateOperatorInitializer", "CreateBindingTable", "Map", "Signal",
        "CreateCommittedResource", "Close", "CreateCommandAllocator", "CreateCommandList"}) {
    const auto device = Open(abi::DML_FEATURE_LEVEL_6_2);
    const auto executable = Compiled(device, test.chain());
    control((std::string("fail:") + call).c_str(), abi::kOutOfMemory);
    const std::string warning = CheckWarned(test, *executable, call);
    CHECK(warning.find("layer norm runs on the CPU path: ") == 0 && warning.find(call) != std::string::npos &&
              warning.find("0x8007000E") != std::string::npos && warning.find("out of memory") != std::string::npos,
          "warning for %s: %s", call, warning.c_str());
    const int64_t dispatches = counter("dispatches");
    CHECK(CheckWarned(test, *executable, call).empty(), "warned again after a failure of %s", call);
    CHECK(counter("dispatches") > dispatches, "the GPU is not asked again after a failure of %s", call);
  }
}

// Lets each call of Direct3D and DirectML fail in turn, of those that opening, compiling, running, running with larger
// buffers and recording again make.
void TestEveryCallMayFail(abi::HRESULT code) {
  const int64_t alive = counter("live_objects");
  int failed = 0, unopened = 0;
  for (bool more = true; more;) {
    const int64_t first = counter("calls");
    control("fail_code", code);
    control("fail_call", first + ++failed);
    std::shared_ptr<DirectMlDevice> device;
    const Result opened = DirectMlDevice::Create(Options(), &device);
    if (!opened.ok()) {
      ++unopened;
      CHECK(opened.message().find("DirectML path: ") == 0, "call %d: %s", failed, opened.message().c_str());
    } else {
      const auto executable = Compiled(device);
      for (const int64_t rows : {5, 5000, 5, 5000, 5, 5000}) {
        CheckWarned(Rows(rows), *executable, "call " + std::to_string(failed));
      }
    }
    more = counter("calls") >= first + failed;
  }
  control("fail_call", 0);
  CHECK(unopened > 5 && failed > unopened + 50, "%d calls failed, %d of them while opening", failed, unopened);
  CHECK(counter("live_objects") == alive, "%lld objects leak", static_cast<long long>(counter("live_objects") - alive));
}

// What fails every time is not tried every time.
void TestTheCpuPathIsKept() {
  const Case test = Rows(5);
  const auto device = Open(abi::DML_FEATURE_LEVEL_6_2);
  const auto executable = Compiled(device, test.chain());
  for (int i = 0; i < 2; ++i) {
    control("fail:CreateOperator", abi::kInvalidArgument);
    const std::string warning = CheckWarned(test, *executable, "an operator that the driver lacks");
    CHECK((warning.find("all further calls") != std::string::npos) == (i == 1), "%s", warning.c_str());
  }
  const int64_t calls = counter("calls");
  CHECK(CheckWarned(test, *executable, "on the CPU path").empty(), "warned at every call");
  CHECK(counter("calls") == calls, "DirectML is asked at every call");
  CHECK(CheckWarned(Rows(6), *executable, "other shapes").empty(), "other shapes");
  CHECK(counter("calls") > calls, "other shapes do not reach the GPU");
}

void TestFenceThatCannotWait() {
  const Case test = Rows(5);
  const auto device = Open(abi::DML_FEATURE_LEVEL_6_2);
  const auto executable = Compiled(device, test.chain());
  control("fail:SetEventOnCompletion", abi::kFail);
  CheckRun(test, *executable, "without waiting in the call");
}

void TestLostDevice() {
  const Case test = Rows(5);
  const auto device = Open(abi::DML_FEATURE_LEVEL_6_2);
  const auto executable = Compiled(device, test.chain());
  CheckRun(test, *executable, "before the loss");
  control("dispatches_until_removal", 0);
  const std::string warning = CheckWarned(test, *executable, "while the GPU is lost");
  control("dispatches_until_removal", -1);
  CHECK(warning.find("DXGI_ERROR_DEVICE_HUNG") != std::string::npos, "warning: %s", warning.c_str());
  const int64_t devices = counter("devices");
  CHECK(CheckWarned(test, *executable, "after the loss").empty(), "warned after the loss");
  CHECK(counter("devices") == devices + 1, "the GPU is not opened again");
  // Once it cannot be opened any more the CPU path goes on, without an attempt at every call.
  control("remove_device", abi::kDxgiDeviceRemoved);
  CheckWarned(test, *executable, "lost for good");
  control("fail:D3D12CreateDevice", abi::kDxgiUnsupported);
  CHECK(CheckWarned(test, *executable, "lost for good").find("D3D12CreateDevice") != std::string::npos, "no reason");
  CHECK(counter("devices") == devices + 1, "opened");
}

Result Create(const DirectMlOptions& options) {
  std::shared_ptr<DirectMlDevice> device;
  return DirectMlDevice::Create(options, &device);
}

void ExpectError(const DirectMlOptions& options, const char* part) {
  const Result result = Create(options);
  CHECK(!result.ok() && result.message().find(part) != std::string::npos, "expected '%s' in '%s'", part,
        result.message().c_str());
}

void TestLibraryNames() {
  using directml::LibraryName;
  CHECK(LibraryName("DirectML.dll") == "DirectML.dll", "a bare name is left to the loader");
  const auto here = std::filesystem::current_path();
  const auto expected = (here / "folder" / "a library").string();
  CHECK(LibraryName("folder/a library") == expected, "%s", LibraryName("folder/a library").c_str());
  CHECK(LibraryName(expected) == expected, "%s", LibraryName(expected).c_str());
  CHECK(LibraryName((here / "folder" / "a library").generic_string()) == expected, "forward slashes");
}

void TestDeviceErrors() {
  control("feature_level", abi::DML_FEATURE_LEVEL_6_2);
  DirectMlOptions missing = Options();
  missing.d3d12_library = "/nowhere/libd3d12.so";
  ExpectError(missing, "d3d12_library");
  control("feature_level", abi::DML_FEATURE_LEVEL_2_0);
  ExpectError(Options(), "does not reach feature level 2_1");
  control("feature_level", abi::DML_FEATURE_LEVEL_6_2);
  for (const char* call : {"D3D12CreateDevice", "DMLCreateDevice1", "CreateCommandQueue", "CreateDescriptorHeap"}) {
    control((std::string("fail:") + call).c_str(), abi::kFail);
    ExpectError(Options(), call);
    CHECK(Create(Options()).ok(), "second attempt after %s", call);
  }
}

void TestAdapters() {
  using Adapter = DirectMlOptions::Adapter;
  control("feature_level", abi::DML_FEATURE_LEVEL_6_2);
  const struct {
    Adapter adapter;
    uint32_t index;
    uint64_t luid;
    const char* description;
  } rows[] = {{Adapter::kDefault, 0, 0, "default adapter, DirectML feature level 6_2"},
              {Adapter::kIndex, 1, 0, "fake adapter 1"},
              {Adapter::kHighPerformance, 0, 0, "fake adapter 1"},
              {Adapter::kMinimumPower, 0, 0, "fake adapter 0"},
              {Adapter::kLuid, 0, 7, "fake adapter 7"}};
  DirectMlOptions options = Options();
  for (const auto& row : rows) {
    options.adapter = row.adapter;
    options.index = row.index;
    options.luid = row.luid;
    // The default adapter needs no DXCore.
    options.dxcore_library = row.adapter == Adapter::kDefault ? "" : fake_library;
    std::shared_ptr<DirectMlDevice> device;
    const Result result = DirectMlDevice::Create(options, &device);
    CHECK(result.ok() && device->description().find(row.description) == 0, "%s: %s%s", row.description,
          result.message().c_str(), device ? device->description().c_str() : "");
  }
  options.luid = 8;
  ExpectError(options, "GetAdapterByLuid");
  options.adapter = Adapter::kIndex;
  options.index = 5;
  ExpectError(options, "there is no adapter 5; this machine has: 0: fake adapter 0, 1: fake adapter 1");
  control("adapters", 0);
  options.adapter = Adapter::kHighPerformance;
  ExpectError(options, "this machine has: none");
  control("adapters", 2);
}

// --- what is declined -------------------------------------------------------------------------------------------------

// What no model says; the rest is in tests/directml/test_island_reasons.py.
void TestDeclines() {
  control("unsupported_types", 1 << abi::DML_TENSOR_DATA_TYPE_FLOAT16);
  const auto device = Open(abi::DML_FEATURE_LEVEL_6_4);
  control("unsupported_types", 0);
  Parts nan = LayerNormParts(), no_axes = nan, half = nan, blocks = nan;
  nan.normalization.epsilon = NAN;
  no_axes.normalization.from_first_axis = false;
  half.x.type = DataType::kFloat16;
  auto scales = std::make_shared<ConstantTensor>(*blocks.scale.tensor.constant);
  scales->data = scales->storage.data();
  scales->dims = {4, 2};
  blocks.x.type = DataType::kUint4;
  blocks.x.shape.dims[0] = 10;
  blocks.x.quantization.scale.constant = scales;
  blocks.x.quantization.axis = 1;
  blocks.x.quantization.block_size = 5;
  for (const auto& [parts, why] : {std::pair(&nan, "NaN epsilon"), std::pair(&no_axes, "no axes"),
                                   std::pair(&half, "driver does not support"), std::pair(&blocks, "do not divide")}) {
    const auto declined = CheckForDirectMl(parts->Make(), *device);
    CHECK(declined && declined->reason == Reason::kDirectmlUnsupported &&
              declined->message.find(why) != std::string::npos,
          "expected '%s', got '%s'", why, declined ? declined->message.c_str() : "no refusal");
    std::unique_ptr<Executable> executable;
    CHECK(!CompileForDirectMl(parts->Make(), device, &executable).ok(), "compiled what was declined");
  }
}

// A pair stores nothing: it runs where the GPU's driver lacks its type, or DirectML has none.
void TestPairsWithoutAType() {
  control("unsupported_types", 1 << abi::DML_TENSOR_DATA_TYPE_UINT8 | 1 << abi::DML_TENSOR_DATA_TYPE_INT8);
  const auto device = Open(abi::DML_FEATURE_LEVEL_6_2);
  control("unsupported_types", 0);
  for (const DataType type : {DataType::kUint8, DataType::kInt8, DataType::kInt4, DataType::kUint2}) {
    Case test = LayerNorm();
    Quantization quantization;
    quantization.scale = test.Add(MakeFloats({}, {0.125}), true);
    test.parts.behind.push_back(FakeQuantise(quantization, type));
    test = Rows(5, std::move(test));
    const auto executable = Compiled(device, test.chain());
    const int64_t dispatches = counter("dispatches");
    CheckRun(test, *executable, std::string("a pair of ") + NameOf(type));
    CHECK(counter("dispatches") > dispatches, "%s does not run on the GPU", NameOf(type));
  }
}

}  // namespace

// Without the fake: what a machine with a GPU runs.
int RunOnSystem(int cases, unsigned seed) {
  std::shared_ptr<DirectMlDevice> device;
  const Result opened = DirectMlDevice::Create(DirectMlOptions(), &device);
  if (!opened.ok()) {
    std::printf("%s\n", opened.message().c_str());
    return 2;
  }
  accuracy.float16_units = 1.5;  // a driver may also truncate
  const int ran = RunRandomChains(device, cases, seed);
  std::printf("%s: %d of %d random chains ran\n", device->description().c_str(), ran, cases);
  TestSequences(device);
  return ExitCode();
}

int main(int argc, char** argv) {
  if (argc < 2) {
    std::printf("usage: directml_execution_test FAKE_LIBRARY [CASES] | --system [CASES [SEED]]\n");
    return 2;
  }
  const std::string first = argv[1];
  if (first == "--system") {
    return RunOnSystem(argc > 2 ? std::atoi(argv[2]) : 100, argc > 3 ? static_cast<unsigned>(std::atoi(argv[3])) : 1);
  }
  fake_library = first;
  const int cases = argc > 2 ? std::atoi(argv[2]) : 300;
  directml::SharedLibrary library;
  const Result loaded = directml::SharedLibrary::Load(fake_library, &library);
  CHECK(loaded.ok(), "%s", loaded.message().c_str());
  if (!loaded.ok()) return ExitCode();
  control = library.Symbol<FakeControlFunction>("FakeControl");
  counter = library.Symbol<FakeCounterFunction>("FakeCounter");

  for (DML_FEATURE_LEVEL level : {abi::DML_FEATURE_LEVEL_2_1, abi::DML_FEATURE_LEVEL_3_1, abi::DML_FEATURE_LEVEL_5_0,
                                  abi::DML_FEATURE_LEVEL_5_2, abi::DML_FEATURE_LEVEL_6_2, abi::DML_FEATURE_LEVEL_6_4}) {
    const int ran = RunRandomChains(Open(level), cases, level);
    std::printf("level %s: %d of %d random chains ran\n", directml::LevelName(level).c_str(), ran, cases);
    CHECK(ran > cases / 3, "too few chains ran");
  }
  TestInitialisedOnceAndReleased();
  TestRecordingsAreKept();
  TestUnifiedMemory();
  TestCallsOverlap();
  TestShapesAreCachedAndBounded();
  TestThreads();
  TestSequences(Open(abi::DML_FEATURE_LEVEL_6_4));
  TestGroupsOfUnknownRank();
  TestOpenShapes();
  TestFailuresNameTheCall();
  TestEveryCallMayFail(abi::kOutOfMemory);
  TestEveryCallMayFail(abi::kDxgiDeviceRemoved);
  TestTheCpuPathIsKept();
  TestFenceThatCannotWait();
  TestLostDevice();
  TestDeviceErrors();
  TestLibraryNames();
  TestAdapters();
  TestDeclines();
  TestPairsWithoutAType();
  CHECK(counter("violations") == 0, "%lld violations of DirectML's rules",
        static_cast<long long>(counter("violations")));
  return ExitCode();
}
