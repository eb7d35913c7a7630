#include "directml/directml.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <limits>
#include <list>
#include <mutex>
#include <utility>
#include <vector>

#include "directml/device/device_memory.h"
#include "directml/device/gpu.h"
#include "directml/execution/compiled_program.h"
#include "directml/execution/program_call.h"
#include "directml/islands/island.h"
#include "directml/islands/known_tensors.h"
#include "directml/lowering/chain_lowering.h"

namespace normfuse {

using directml::CallInputs;
using directml::CompiledProgram;
using directml::Content;
using directml::DeviceContent;
using directml::DmlProgram;
using directml::Gpu;
using directml::InputShape;
using directml::ProgramCall;

struct DirectMlDevice::State {
  std::mutex mutex;
  std::shared_ptr<Gpu> gpu;
  // Of the last attempt to open it.
  Result failure;
  std::chrono::steady_clock::time_point failed_at;
};

DirectMlDevice::DirectMlDevice(DirectMlOptions options)
    : options_(std::move(options)), state_(std::make_unique<State>()) {}

DirectMlDevice::~DirectMlDevice() = default;

Result DirectMlDevice::Create(const DirectMlOptions& options, std::shared_ptr<DirectMlDevice>* device) {
  auto made = std::make_shared<DirectMlDevice>(options);
  std::shared_ptr<Gpu> gpu;
  NORMFUSE_RETURN_IF_ERROR(made->Acquire(&gpu));
  made->capabilities_ = gpu->capabilities();
  made->description_ = gpu->name() + ", DirectML feature level " + directml::LevelName(gpu->capabilities().level);
  *device = std::move(made);
  return {};
}

Result DirectMlDevice::Acquire(std::shared_ptr<Gpu>* gpu) {
  constexpr std::chrono::seconds kPause{1};
  const std::lock_guard lock(state_->mutex);
  const auto now = std::chrono::steady_clock::now();
  if (!state_->gpu) {
    const bool pauses = !state_->failure.ok() && now - state_->failed_at < kPause;
    if (!pauses) {
      state_->failure = Gpu::Open(options_, &state_->gpu);
      state_->failed_at = now;
    }
    NORMFUSE_RETURN_IF_ERROR(state_->failure);
  }
  *gpu = state_->gpu;
  return {};
}

void DirectMlDevice::Drop(const Gpu* gpu) {
  const std::lock_guard lock(state_->mutex);
  if (state_->gpu.get() == gpu) state_->gpu.reset();
}

std::optional<Declined> CheckForDirectMl(const Chain& chain, const DirectMlDevice& device) {
  return directml::CheckLowering(chain, device.capabilities());
}

namespace {

bool SameShapes(const std::vector<InputShape>& a, const std::vector<InputShape>& b) {
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i].type != b[i].type || a[i].dims != b[i].dims || a[i].content != b[i].content) return false;
  }
  return true;
}

// An error of Direct3D or DirectML; others are those of the host.
bool IsOfGpu(const Result& result) {
  return result.code() == ErrorCode::kEpFail || result.code() == ErrorCode::kDeviceReset;
}

// What runs on a GPU once the shapes of its inputs are known.
struct Source {
  std::string name;
  std::vector<bool> reads;          // by input of the node
  std::vector<bool> reads_content;  // likewise: of small integers that decide shapes
  std::function<std::optional<Declined>(const std::vector<InputShape>&, const directml::Capabilities&, DmlProgram*)>
      lower;
  std::function<Result(std::unique_ptr<Executable>*)> compile_for_cpu;  // empty where there is no CPU path
  Tensors tensors = Tensors::kOnCpu;
};

// Compiled programs by the shapes of the inputs, the ones used last in front.
class DirectMlExecutable final : public Executable {
 public:
  DirectMlExecutable(Source source, std::shared_ptr<DirectMlDevice> device, GpuWorkListener listener)
      : source_(std::move(source)), device_(std::move(device)), listener_(std::move(listener)) {}

  Result Run(ExecutionContext& context) const override {
    CallInputs inputs;
    NORMFUSE_RETURN_IF_ERROR(Read(context, &inputs));
    GpuWork work;
    bool ran = false;
    const Result result = RunOnGpu(inputs, context, &work, &ran);
    if (result.ok() && ran && listener_) listener_(source_.name, work);
    if (result.ok() ? ran : !IsOfGpu(result)) return result;
    if (!source_.compile_for_cpu) return result.ok() ? NoCpuPath(inputs.shapes) : WithoutResult(result);
    if (!result.ok()) {
      const bool again = CountFailure(inputs.shapes);
      context.Warn(source_.name + " runs on the CPU path" +
                   (again ? ": " : ", as will all further calls with these shapes: ") + result.message());
    }
    const Executable* on_cpu = nullptr;
    NORMFUSE_RETURN_IF_ERROR(CpuPath(&on_cpu));
    return on_cpu->Run(context);
  }

 private:
  static constexpr size_t kMaxPrograms = 16;
  static constexpr int kMaxFailures = 2;

  struct Entry {
    std::vector<InputShape> shapes;
    std::shared_ptr<const CompiledProgram> program;  // null: not compiled
    bool impossible = false;                         // DirectML cannot express these shapes
    std::string obstacle;                            // and why
    int failures = 0;                                // since a call succeeded
  };
  using Entries = std::list<Entry>;

  Result Read(ExecutionContext& context, CallInputs* inputs) const {
    inputs->shapes.resize(source_.reads.size());
    inputs->data.resize(source_.reads.size());
    inputs->addresses.resize(source_.reads.size());
    inputs->contents.resize(source_.reads.size());
    for (size_t i = 0; i < source_.reads.size(); ++i) {
      if (!source_.reads[i]) continue;
      TensorView view;
      NORMFUSE_RETURN_IF_ERROR(context.Input(static_cast<int>(i), &view));
      inputs->shapes[i] = {view.type, {view.dims, view.dims + view.rank}};
      inputs->data[i] = inputs->addresses[i] = view.data;
      const bool reads_content = i < source_.reads_content.size() && source_.reads_content[i];
      NORMFUSE_RETURN_IF_ERROR(FindContent(view, reads_content, &inputs->data[i], &inputs->contents[i]));
      if (!reads_content) continue;
      const auto known = directml::Known(view.type, inputs->shapes[i].dims, inputs->data[i]);
      if (known) inputs->shapes[i].content = known->values;
    }
    return {};
  }

  // Of an address that stands for memory of a GPU: what it holds, on the CPU where that is asked for.
  Result FindContent(const TensorView& view, bool on_cpu, const void** data, Content* content) const {
    if (source_.tensors == Tensors::kOnCpu || !directml::device_memory::Contains(view.data)) return {};
    *data = nullptr;
    const int64_t elements = directml::Product({view.dims, view.dims + view.rank});
    if (elements == 0) return {};
    const uint64_t bytes = BytesFor(view.type, static_cast<size_t>(elements));
    NORMFUSE_RETURN_IF_ERROR(directml::device_memory::Get(view.data, bytes, content));
    if (on_cpu && (*content)->on_cpu() == nullptr) {
      std::vector<unsigned char> read;
      NORMFUSE_RETURN_IF_ERROR(directml::ReadToCpu(*content, &read));
      *content = std::make_shared<DeviceContent>(std::move(read));
    }
    *data = (*content)->on_cpu();
    return {};
  }

  // *ran is false where the CPU path has to.
  Result RunOnGpu(const CallInputs& inputs, ExecutionContext& context, GpuWork* work, bool* ran) const {
    std::shared_ptr<Gpu> gpu;
    std::shared_ptr<const CompiledProgram> compiled;
    Result result = Find(inputs.shapes, &gpu, &compiled, work);
    if (result.ok() && compiled) {
      result = ProgramCall(*compiled, source_.tensors == Tensors::kMayStayOnGpu).Run(inputs, context, work);
      *ran = true;
    }
    if (result.code() == ErrorCode::kDeviceReset && gpu) device_->Drop(gpu.get());
    if (result.ok() && *ran) ForgetFailures(inputs.shapes);
    return result;
  }

  // The program for these shapes, compiled now if need be; none where they run on the CPU path.
  Result Find(const std::vector<InputShape>& shapes, std::shared_ptr<Gpu>* gpu,
              std::shared_ptr<const CompiledProgram>* compiled, GpuWork* work) const {
    const std::lock_guard lock(mutex_);
    Entry& entry = EntryFor(shapes);
    if (entry.impossible || entry.failures >= kMaxFailures) return {};
    NORMFUSE_RETURN_IF_ERROR(device_->Acquire(gpu));
    // One of a GPU that was lost is of no use.
    if (!entry.program || entry.program->gpu() != *gpu) NORMFUSE_RETURN_IF_ERROR(Compile(*gpu, &entry, work));
    *compiled = entry.program;
    return {};
  }

  Result Compile(const std::shared_ptr<Gpu>& gpu, Entry* entry, GpuWork* work) const {
    entry->program.reset();
    DmlProgram program;
    const auto declined = source_.lower(entry->shapes, gpu->capabilities(), &program);
    entry->impossible = declined.has_value();
    if (declined) entry->obstacle = declined->message;
    if (entry->impossible) return {};
    std::unique_ptr<CompiledProgram> made;
    NORMFUSE_RETURN_IF_ERROR(CompiledProgram::Compile(std::move(program), gpu, &weights_, &made, work));
    entry->program = std::move(made);
    return {};
  }

  Entries::iterator Known(const std::vector<InputShape>& shapes) const {
    return std::find_if(programs_.begin(), programs_.end(),
                        [&](const Entry& entry) { return SameShapes(entry.shapes, shapes); });
  }

  // The entry for these shapes, moved to the front or made; the one that was not used for longest makes room.
  Entry& EntryFor(const std::vector<InputShape>& shapes) const {
    const auto known = Known(shapes);
    if (known != programs_.end()) {
      programs_.splice(programs_.begin(), programs_, known);
    } else {
      programs_.emplace_front().shapes = shapes;
      if (programs_.size() > kMaxPrograms) programs_.pop_back();
    }
    return programs_.front();
  }

  // Whether the GPU is asked again.
  bool CountFailure(const std::vector<InputShape>& shapes) const {
    const std::lock_guard lock(mutex_);
    Entry& entry = EntryFor(shapes);
    if (++entry.failures >= kMaxFailures) entry.program.reset();
    return entry.failures < kMaxFailures;
  }

  void ForgetFailures(const std::vector<InputShape>& shapes) const {
    const std::lock_guard lock(mutex_);
    const auto known = Known(shapes);
    if (known != programs_.end()) known->failures = 0;
  }

  Result NoCpuPath(const std::vector<InputShape>& shapes) const {
    const std::lock_guard lock(mutex_);
    const std::string why = EntryFor(shapes).obstacle;
    return Result::Error(ErrorCode::kNotImplemented, "DirectML path: " + why + ". The island at '" + source_.name +
                                                         "' has no CPU path; use backend=cpu for these inputs.");
  }

  // The GPU is asked again by the next call: it is opened anew where it was lost.
  Result WithoutResult(const Result& failure) const {
    return Result::Error(failure.code(), failure.message() + " The island at '" + source_.name +
                                             "' has no CPU path, so this call has no result; the next one asks the GPU "
                                             "again. Or use backend=cpu.");
  }

  Result CpuPath(const Executable** on_cpu) const {
    const std::lock_guard lock(mutex_);
    if (!cpu_) NORMFUSE_RETURN_IF_ERROR(source_.compile_for_cpu(&cpu_));
    *on_cpu = cpu_.get();
    return {};
  }

  Source source_;
  std::shared_ptr<DirectMlDevice> device_;
  GpuWorkListener listener_;
  mutable std::mutex mutex_;
  mutable directml::Weights weights_;
  mutable Entries programs_;
  mutable std::unique_ptr<Executable> cpu_;
};

}  // namespace

Result CompileForDirectMl(const Chain& chain, std::shared_ptr<DirectMlDevice> device,
                          std::unique_ptr<Executable>* executable, GpuWorkListener listener) {
  const auto declined = CheckForDirectMl(chain, *device);
  if (declined) return Result::Error(ErrorCode::kNotImplemented, chain.name + ": " + declined->message);
  ChainSequence sequence{{chain}, std::numeric_limits<int>::max()};
  return CompileForDirectMl(std::move(sequence), std::move(device), executable, std::move(listener));
}

Result CompileForDirectMl(ChainSequence sequence, std::shared_ptr<DirectMlDevice> device,
                          std::unique_ptr<Executable>* executable, GpuWorkListener listener) {
  Source source;
  source.name = sequence.chains.front().name;
  for (const Chain& chain : sequence.chains) {
    ForEachTensorRef(chain, [&](const TensorRef& ref) {
      if (ref.input == TensorRef::kAbsent || ref.input >= kFromOutput || ref.constant) return;
      const auto index = static_cast<size_t>(ref.input);
      if (source.reads.size() <= index) source.reads.resize(index + 1);
      source.reads[index] = true;
    });
  }
  const auto shared = std::make_shared<const ChainSequence>(std::move(sequence));
  source.lower = [shared](const auto& shapes, const auto& capabilities, DmlProgram* program) {
    return directml::Lower(*shared, shapes, capabilities, program);
  };
  source.compile_for_cpu = [shared](auto* made) { return CompileForCpu(*shared, made); };
  *executable = std::make_unique<DirectMlExecutable>(std::move(source), std::move(device), std::move(listener));
  return {};
}

Result CompileForDirectMl(directml::Island island, std::shared_ptr<DirectMlDevice> device, Tensors tensors,
                          std::unique_ptr<Executable>* executable, GpuWorkListener listener) {
  Source source;
  source.tensors = tensors;
  source.name = island.name;
  source.reads_content = directml::InputsReadOnCpu(island);
  source.reads.resize(source.reads_content.size());
  for (const auto& value : island.values) {
    if (value.input >= 0 && !value.constant) source.reads[static_cast<size_t>(value.input)] = true;
  }
  const auto shared = std::make_shared<const directml::Island>(std::move(island));
  source.lower = [shared](const auto& shapes, const auto& capabilities, DmlProgram* program) {
    return directml::Lower(*shared, shapes, capabilities, program);
  };
  *executable = std::make_unique<DirectMlExecutable>(std::move(source), std::move(device), std::move(listener));
  return {};
}

}  // namespace normfuse
