#include "directml/directml.h"

#include <limits>
#include <list>
#include <mutex>
#include <utility>
#include <vector>

#include "directml/compiled_program.h"
#include "directml/gpu.h"
#include "directml/lowering.h"

namespace normfuse {

using directml::CompiledProgram;
using directml::DmlProgram;
using directml::Gpu;
using directml::InputShape;

struct DirectMlDevice::State {
  std::mutex mutex;
  std::shared_ptr<Gpu> gpu;
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
  const std::lock_guard lock(state_->mutex);
  if (!state_->gpu) NORMFUSE_RETURN_IF_ERROR(Gpu::Open(options_, &state_->gpu));
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
    if (a[i].type != b[i].type || a[i].dims != b[i].dims) return false;
  }
  return true;
}

// Chains on a GPU: compiled programs by the shapes of the inputs, the ones used last in front.
class DirectMlExecutable final : public Executable {
 public:
  DirectMlExecutable(ChainSequence sequence, std::shared_ptr<DirectMlDevice> device, GpuWorkListener listener)
      : sequence_(std::move(sequence)), device_(std::move(device)), listener_(std::move(listener)) {
    for (const Chain& chain : sequence_.chains) {
      ForEachTensorRef(chain, [this](const TensorRef& ref) {
        if (ref.input == TensorRef::kAbsent || ref.input >= kFromOutput || ref.constant) return;
        const auto index = static_cast<size_t>(ref.input);
        if (reads_.size() <= index) reads_.resize(index + 1);
        reads_[index] = true;
      });
    }
  }

  Result Run(ExecutionContext& context) const override {
    std::vector<InputShape> shapes(reads_.size());
    std::vector<const void*> data(reads_.size());
    for (size_t i = 0; i < reads_.size(); ++i) {
      if (!reads_[i]) continue;
      TensorView view;
      NORMFUSE_RETURN_IF_ERROR(context.Input(static_cast<int>(i), &view));
      shapes[i] = {view.type, {view.dims, view.dims + view.rank}};
      data[i] = view.data;
    }
    std::shared_ptr<const CompiledProgram> compiled;
    const Executable* on_cpu = nullptr;
    GpuWork work;
    NORMFUSE_RETURN_IF_ERROR(Find(shapes, &compiled, &on_cpu, &work));
    if (on_cpu != nullptr) return on_cpu->Run(context);
    const Result result = RunOnGpu(*compiled, data, context, &work);
    if (result.code() == ErrorCode::kDeviceReset) device_->Drop(compiled->gpu().get());
    if (result.ok() && listener_) listener_(sequence_.chains.front().name, work);
    return result;
  }

 private:
  static constexpr size_t kMaxPrograms = 16;

  struct Entry {
    std::vector<InputShape> shapes;
    std::shared_ptr<const CompiledProgram> program;  // null: these shapes run on the CPU path
  };

  // The program for these shapes, compiled now if need be; or the CPU path where DirectML cannot run them.
  Result Find(const std::vector<InputShape>& shapes, std::shared_ptr<const CompiledProgram>* compiled,
              const Executable** on_cpu, GpuWork* work) const {
    std::shared_ptr<Gpu> gpu;
    NORMFUSE_RETURN_IF_ERROR(device_->Acquire(&gpu));
    const std::lock_guard lock(mutex_);
    for (auto it = programs_.begin(); it != programs_.end(); ++it) {
      if (!SameShapes(it->shapes, shapes)) continue;
      if (it->program && it->program->gpu() != gpu) {  // of a GPU that was lost
        programs_.erase(it);
        break;
      }
      programs_.splice(programs_.begin(), programs_, it);
      return Use(programs_.front(), compiled, on_cpu);
    }
    Entry entry{shapes, nullptr};
    DmlProgram program;
    if (!directml::Lower(sequence_, shapes, gpu->capabilities(), &program)) {
      std::unique_ptr<CompiledProgram> made;
      const Result result = CompiledProgram::Compile(std::move(program), gpu, &made, work);
      if (result.code() == ErrorCode::kDeviceReset) device_->Drop(gpu.get());
      NORMFUSE_RETURN_IF_ERROR(result);
      entry.program = std::move(made);
    } else if (!cpu_) {
      NORMFUSE_RETURN_IF_ERROR(CompileForCpu(sequence_, &cpu_));
    }
    programs_.push_front(std::move(entry));
    if (programs_.size() > kMaxPrograms) programs_.pop_back();
    return Use(programs_.front(), compiled, on_cpu);
  }

  Result Use(const Entry& entry, std::shared_ptr<const CompiledProgram>* compiled, const Executable** on_cpu) const {
    *compiled = entry.program;
    if (!entry.program) *on_cpu = cpu_.get();
    return {};
  }

  static Result RunOnGpu(const CompiledProgram& compiled, const std::vector<const void*>& data,
                         ExecutionContext& context, GpuWork* work) {
    const DmlProgram& program = compiled.program();
    std::vector<const void*> inputs(program.inputs.size());
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (program.inputs[i].node_input >= 0) inputs[i] = data[static_cast<size_t>(program.inputs[i].node_input)];
    }
    std::vector<void*> outputs(program.outputs.size());
    for (size_t i = 0; i < outputs.size(); ++i) {
      const auto& output = program.outputs[i];
      NORMFUSE_RETURN_IF_ERROR(
          context.Output(output.node_output, output.type, output.dims.data(), output.dims.size(), &outputs[i]));
    }
    return compiled.Run(inputs, outputs, work);
  }

  ChainSequence sequence_;
  std::shared_ptr<DirectMlDevice> device_;
  GpuWorkListener listener_;
  std::vector<bool> reads_;
  mutable std::mutex mutex_;
  mutable std::list<Entry> programs_;
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
  *executable = std::make_unique<DirectMlExecutable>(std::move(sequence), std::move(device), std::move(listener));
  return {};
}

}  // namespace normfuse
