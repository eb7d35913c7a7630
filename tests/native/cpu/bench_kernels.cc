// Time of whole chains on the CPU path beside a copy of the same bytes: bench_kernels [filter] [seconds per job].
// "kernel" as the filter measures every row of ep/cpu/kernels/kernel_list.h instead. NORMFUSE_ISA chooses the instruction set. Each round runs the job and the copy in turn; the medians' ratio is what
// counts, times alone move with the machine.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <functional>

#include "chain_harness.h"
#include "cpu/kernels/kernel_list.h"

namespace normfuse::test {
namespace {

using Clock = std::chrono::steady_clock;

// A load whose address ends in the same 12 bits as that of an earlier store waits for it: the same for every job.
constexpr size_t kAlignment = 4096;

unsigned char* Aligned(std::vector<unsigned char>* memory) {
  return memory->data() + (kAlignment - reinterpret_cast<size_t>(memory->data()) % kAlignment) % kAlignment;
}

// A context whose outputs are allocated once and never cleared.
class BenchContext final : public ExecutionContext {
 public:
  explicit BenchContext(const Case& c) {
    for (const auto& tensor : c.tensors) {
      inputs_.push_back(tensor.get());
      const size_t bytes = tensor->bytes.size();
      memory_.emplace_back(bytes + kAlignment);
      std::memcpy(Aligned(&memory_.back()), tensor->data(), bytes);
    }
    outputs_.resize(c.output_types.size());
    types_ = c.output_types;
  }
  Result Input(int index, TensorView* view) override {
    const Tensor& tensor = *inputs_[static_cast<size_t>(index)];
    *view = {Aligned(&memory_[static_cast<size_t>(index)]), tensor.type, tensor.dims.data(), tensor.dims.size()};
    return {};
  }
  Result Output(int index, DataType /*type*/, const int64_t* dims, size_t rank, void** data) override {
    size_t count = 1;
    for (size_t i = 0; i < rank; ++i) count *= static_cast<size_t>(dims[i]);
    auto& memory = outputs_[static_cast<size_t>(index)];
    const size_t bytes = BytesFor(types_[static_cast<size_t>(index)], count);
    if (memory.size() < bytes + kAlignment) memory.resize(bytes + kAlignment);
    *data = Aligned(&memory);
    return {};
  }
  Result ParallelFor(void (*task)(void* user, size_t index), size_t count, void* user) override {
    for (size_t i = 0; i < count; ++i) task(user, i);
    return {};
  }
  int ThreadCount() const override { return 1; }
  size_t bytes() const {
    size_t total = 0;
    for (const Tensor* tensor : inputs_) total += tensor->bytes.size();
    for (const auto& memory : outputs_) total += memory.size() - kAlignment;
    return total;
  }

 private:
  std::vector<const Tensor*> inputs_;
  std::vector<std::vector<unsigned char>> memory_;
  std::vector<DataType> types_;
  std::vector<std::vector<unsigned char>> outputs_;
};

Tensor Random(DataType type, std::vector<int64_t> dims) {
  static uint32_t seed = 0;
  return FewValues(type, std::move(dims), ++seed);
}

Case Plain(std::vector<int64_t> dims, DataType x, DataType y) {
  Case c;
  c.parts.name = "bench";
  c.parts.x.type = x;
  c.parts.x.tensor = c.Add(Random(x, std::move(dims)), false);
  c.parts.y_type = y;
  c.output_types = {y};
  if (IsQuantized(x)) {
    c.parts.x.quantization.scale = c.Add(MakeFloats({}, {0.05}), true);
    Tensor zero = MakeTensor(x, {});
    zero.Set(0, 3);
    c.parts.x.quantization.zero_point = c.Add(std::move(zero), true);
  }
  if (IsQuantized(y)) {
    c.parts.y_quantization.scale = c.Add(MakeFloats({}, {0.037}), true);
    Tensor zero = MakeTensor(y, {});
    zero.Set(0, 5);
    c.parts.y_quantization.zero_point = c.Add(std::move(zero), true);
  }
  return c;
}

void Affine(Case* c, DataType type, std::vector<int64_t> dims, bool bias) {
  c->parts.scale.type = type;
  c->parts.scale.tensor = c->Add(Random(type, dims), true);
  if (!bias) return;
  c->parts.bias.type = type;
  c->parts.bias.tensor = c->Add(Random(type, dims), true);
}

Case Layer(std::vector<int64_t> dims, DataType x = DataType::kFloat32, DataType y = DataType::kFloat32,
           Activation activation = Activation::kIdentity) {
  Case c = Plain(dims, x, y);
  c.parts.normalization.axes = {-1};
  Affine(&c, IsFloat(x) ? x : DataType::kFloat32, {dims.back()}, true);
  c.parts.activation.kind = activation;
  c.parts.activation.params[0] = kActivations[static_cast<int>(activation)].defaults[0];
  return c;
}

Case Rms(std::vector<int64_t> dims) {
  Case c = Plain(dims, DataType::kFloat32, DataType::kFloat32);
  c.parts.normalization.axes = {-1};
  c.parts.normalization.use_mean = false;
  Affine(&c, DataType::kFloat32, {dims.back()}, false);
  return c;
}

Case Softmax(std::vector<int64_t> dims, DataType type = DataType::kFloat32, int64_t axis = -1,
             Method method = Method::kSoftmax) {
  Case c = Plain(std::move(dims), type, type);
  c.parts.normalization.method = method;
  c.parts.normalization.axes = {axis};
  return c;
}

// Of scores times a number, plus a mask along the row, whose last `hidden` elements are `mask`.
Case MaskedSoftmax(std::vector<int64_t> dims, int64_t hidden = 0, float mask = 0.0f) {
  const int64_t width = dims.back();
  Case c = Softmax(std::move(dims));
  Operand factor;
  factor.name = "factor";
  factor.type = DataType::kFloat32;
  factor.tensor = c.Add(MakeFloats({}, {0.125}), true);
  c.parts.before.push_back(Mul(factor));
  c.parts.residual.type = DataType::kFloat32;
  Tensor addend = Random(DataType::kFloat32, {width});
  for (int64_t i = width - hidden; i < width; ++i) addend.Set(i, mask);
  c.parts.residual.tensor = c.Add(std::move(addend), false);
  return c;
}

Case AddLayer(std::vector<int64_t> dims, bool sum, DataType type = DataType::kFloat32) {
  Case c = Layer(dims, type, type);
  c.parts.residual.type = type;
  c.parts.residual.tensor = c.Add(Random(type, dims), false);
  if (sum) {
    c.parts.sum_output = 1;
    c.parts.sum_type = type;
    c.output_types.push_back(type);
  }
  return c;
}

Case Mvn(std::vector<int64_t> dims, std::vector<int64_t> axes) {
  Case c = Plain(std::move(dims), DataType::kFloat32, DataType::kFloat32);
  c.parts.normalization.axes = std::move(axes);
  c.parts.normalization.epsilon = 1e-9f;
  c.parts.normalization.epsilon_on = EpsilonOn::kStddev;
  return c;
}

Case Instance(std::vector<int64_t> dims, Activation activation) {
  Case c = Plain(dims, DataType::kFloat32, DataType::kFloat32);
  c.parts.normalization.axes = {2, 3};
  c.parts.affine_align = Align::kChannel;
  Affine(&c, DataType::kFloat32, {dims[1]}, true);
  c.parts.activation.kind = activation;
  return c;
}

Case Group(std::vector<int64_t> dims, int64_t groups, Activation activation) {
  Case c = Plain(dims, DataType::kFloat32, DataType::kFloat32);
  c.parts.normalization.num_groups = groups;
  c.parts.affine_align = Align::kChannel;
  Affine(&c, DataType::kFloat32, {dims[1]}, true);
  c.parts.activation.kind = activation;
  c.parts.activation.params[0] = 1.0f;
  return c;
}

// With a Mul and an Add of one number for each channel behind the affine.
Case ModulatedGroup(std::vector<int64_t> dims, int64_t groups, Activation activation) {
  Case c = Group(dims, groups, Activation::kIdentity);
  Operand operand;
  operand.name = "modulation";
  operand.type = DataType::kFloat32;
  operand.tensor = c.Add(Random(DataType::kFloat32, {dims[0], dims[1], 1, 1}), false);
  c.parts.behind = {Mul(operand), Add(operand)};
  if (activation != Activation::kIdentity) c.parts.behind.push_back(Activate({activation, {1.0f}}));
  return c;
}

Case Dequantize(int form) {
  Case c = Plain({4096, 1024}, DataType::kInt8, DataType::kFloat32);
  c.parts.normalizes = false;
  if (form < 0) return c;
  c.parts.x.quantization.axis = form;
  c.parts.x.quantization.scale = c.Add(Random(DataType::kFloat32, {form == 0 ? 4096 : 1024}), true);
  Tensor zero = Random(DataType::kInt8, {form == 0 ? 4096 : 1024});
  c.parts.x.quantization.zero_point = c.Add(std::move(zero), true);
  return c;
}

Case Elementwise(std::vector<int64_t> dims, Activation activation, DataType x = DataType::kFloat32,
                 DataType y = DataType::kFloat32) {
  Case c = Plain(std::move(dims), x, y);
  c.parts.normalizes = false;
  c.parts.activation.kind = activation;
  for (int i = 0; i < 2; ++i) c.parts.activation.params[i] = kActivations[static_cast<int>(activation)].defaults[i];
  return c;
}

// Times another tensor of the same shape: the gates of SwiGLU, GeGLU and LSTM cells.
Case Gate(std::vector<int64_t> dims, Activation activation, DataType type = DataType::kFloat32) {
  Case c = Elementwise(dims, activation, type, type);
  Operand operand;
  operand.name = "operand";
  operand.type = type;
  operand.tensor = c.Add(Random(type, std::move(dims)), false);
  c.parts.behind.push_back(Mul(operand));
  return c;
}

struct Entry {
  const char* name;
  std::function<Case()> make;
};

const DataType kF32 = DataType::kFloat32;
const DataType kF16 = DataType::kFloat16;
const DataType kI8 = DataType::kInt8;

const Entry kEntries[] = {
    {"LayerNorm f32 [1,1,768]", [] { return Layer({1, 1, 768}); }},
    {"LayerNorm f32 [1,128,768]", [] { return Layer({1, 128, 768}); }},
    {"LayerNorm f32 [1,1024,768]", [] { return Layer({1, 1024, 768}); }},
    {"Add->LayerNorm f32 [1,1024,768]", [] { return AddLayer({1, 1024, 768}, false); }},
    {"LayerNorm f32 [8,512,768]", [] { return Layer({8, 512, 768}); }},
    {"LayerNorm f32 [32,512,1024]", [] { return Layer({32, 512, 1024}); }},
    {"LayerNorm f16 [8,512,768]", [] { return Layer({8, 512, 768}, kF16, kF16); }},
    {"LayerNorm f32 [1,64,4096]", [] { return Layer({1, 64, 4096}); }},
    {"LayerNorm f32 [8,512,770]", [] { return Layer({8, 512, 770}); }},
    {"Softmax f32 [1536,128]", [] { return Softmax({1536, 128}); }},
    {"Softmax f32 [64,4096]", [] { return Softmax({64, 4096}); }},
    {"Softmax f32 axis 1 [1,12,384,384]", [] { return Softmax({1, 12, 384, 384}, kF32, 1); }},
    {"Softmax f32 axis 2 [12,384,384]", [] { return Softmax({1, 12, 384, 384}, kF32, 2); }},
    {"Softmax f16 [1536,128]", [] { return Softmax({1536, 128}, kF16); }},
    {"LogSoftmax f32 [1536,20]", [] { return Softmax({1536, 20}, kF32, -1, Method::kLogSoftmax); }},
    {"LogSoftmax f32 [128,1000]", [] { return Softmax({128, 1000}, kF32, -1, Method::kLogSoftmax); }},
    {"LogSoftmax f32 axis 1 [1,21,32,32]", [] { return Softmax({1, 21, 32, 32}, kF32, 1, Method::kLogSoftmax); }},
    {"DQ->Softmax->Q i8 [12,384,384]", [] { return Softmax({12, 384, 384}, kI8); }},
    {"Mul->Add->Softmax f32 [12,128,128]", [] { return MaskedSoftmax({12, 128, 128}); }},
    {"Mul->Add->Softmax f32 [12,384,384]", [] { return MaskedSoftmax({12, 384, 384}); }},
    {"Mul->Add->Softmax f32 [24,34,34], hidden by -1e4", [] { return MaskedSoftmax({24, 34, 34}, 10, -1e4f); }},
    {"Mul->Add->Softmax f32 [24,49,49], hidden by -100", [] { return MaskedSoftmax({24, 49, 49}, 21, -100.0f); }},
    {"LayerNorm f16 [64,5120]", [] { return Layer({64, 5120}, kF16, kF16); }},
    {"Add->LayerNorm f16 [64,5120]", [] { return AddLayer({64, 5120}, false, kF16); }},
    {"RMSNorm f32 [1,128,768]", [] { return Rms({1, 128, 768}); }},
    {"RMSNorm f32 [8,512,768]", [] { return Rms({8, 512, 768}); }},
    {"LayerNorm->Relu f32 [8,512,768]", [] { return Layer({8, 512, 768}, kF32, kF32, Activation::kRelu); }},
    {"LayerNorm->Gelu f32 [1,128,768]", [] { return Layer({1, 128, 768}, kF32, kF32, Activation::kGelu); }},
    {"LayerNorm->SiLU f32 [1,128,768]", [] { return Layer({1, 128, 768}, kF32, kF32, Activation::kSwish); }},
    {"LayerNorm f16 [1,128,768]", [] { return Layer({1, 128, 768}, kF16, kF16); }},
    {"DQ->LayerNorm->Q i8 [1,128,768]", [] { return Layer({1, 128, 768}, kI8, kI8); }},
    {"DQ->LayerNorm->Gelu->Q i8 [1,128,768]", [] { return Layer({1, 128, 768}, kI8, kI8, Activation::kGelu); }},
    {"LayerNorm->Gelu f32 [8,512,768]", [] { return Layer({8, 512, 768}, kF32, kF32, Activation::kGelu); }},
    {"LayerNorm->SiLU f32 [8,512,768]", [] { return Layer({8, 512, 768}, kF32, kF32, Activation::kSwish); }},
    {"Add->LayerNorm f32 [1,128,384]", [] { return AddLayer({1, 128, 384}, false); }},
    {"Add->LayerNorm f32 [8,512,768]", [] { return AddLayer({8, 512, 768}, false); }},
    {"Add->LayerNorm,sum f32 [8,512,768]", [] { return AddLayer({8, 512, 768}, true); }},
    {"Add->LayerNorm f16 [8,512,768]", [] { return AddLayer({8, 512, 768}, false, kF16); }},
    {"MVN [8,64,128,128] 0,2,3", [] { return Mvn({8, 64, 128, 128}, {0, 2, 3}); }},
    {"MVN [8,64,128,128] 2,3", [] { return Mvn({8, 64, 128, 128}, {2, 3}); }},
    {"MVN [8,64,128,128] 1,2,3", [] { return Mvn({8, 64, 128, 128}, {1, 2, 3}); }},
    {"MVN [8,64,128,128] 1", [] { return Mvn({8, 64, 128, 128}, {1}); }},
    {"MVN [8,128,128,64] 0,1,2", [] { return Mvn({8, 128, 128, 64}, {0, 1, 2}); }},
    {"InstanceNorm [8,64,128,128]", [] { return Instance({8, 64, 128, 128}, Activation::kIdentity); }},
    {"InstanceNorm->Relu [8,64,128,128]", [] { return Instance({8, 64, 128, 128}, Activation::kRelu); }},
    {"GroupNorm [2,320,64,64]", [] { return Group({2, 320, 64, 64}, 32, Activation::kIdentity); }},
    {"GroupNorm->SiLU [2,320,64,64]", [] { return Group({2, 320, 64, 64}, 32, Activation::kSwish); }},
    {"GroupNorm [1,128,8,8]", [] { return Group({1, 128, 8, 8}, 32, Activation::kIdentity); }},
    {"GroupNorm [1,64,32,32]", [] { return Group({1, 64, 32, 32}, 32, Activation::kIdentity); }},
    {"GroupNorm modulated [1,64,64,64]", [] { return ModulatedGroup({1, 64, 64, 64}, 32, Activation::kIdentity); }},
    {"GroupNorm modulated->SiLU [1,64,64,64]", [] { return ModulatedGroup({1, 64, 64, 64}, 32, Activation::kSwish); }},
    {"DQ->LayerNorm->Q i8 [8,512,768]", [] { return Layer({8, 512, 768}, kI8, kI8); }},
    {"DQ->LayerNorm->Gelu->Q i8 [8,512,768]", [] { return Layer({8, 512, 768}, kI8, kI8, Activation::kGelu); }},
    {"DequantizeLinear i8 tensor [4096,1024]", [] { return Dequantize(-1); }},
    {"DequantizeLinear i8 axis 0 [4096,1024]", [] { return Dequantize(0); }},
    {"DequantizeLinear i8 axis 1 [4096,1024]", [] { return Dequantize(1); }},
    {"Gelu f32 4M", [] { return Elementwise({4096, 1024}, Activation::kGelu); }},
    {"HardSwish f32 4M", [] { return Elementwise({4096, 1024}, Activation::kHardSwish); }},
    {"HardSwish f32 64K", [] { return Elementwise({64, 1024}, Activation::kHardSwish); }},
    {"DQ->HardSwish->Q i8 4M", [] { return Elementwise({4096, 1024}, Activation::kHardSwish, kI8, kI8); }},
    {"DQ->Gelu->Q i8 4M", [] { return Elementwise({4096, 1024}, Activation::kGelu, kI8, kI8); }},
    {"SiLU * gate f32 [64,256]", [] { return Gate({64, 256}, Activation::kSwish); }},
    {"SiLU * gate f32 256K", [] { return Gate({128, 2048}, Activation::kSwish); }},
    {"SiLU * gate f32 4M", [] { return Gate({4096, 1024}, Activation::kSwish); }},
    {"Gelu * gate f32 256K", [] { return Gate({128, 2048}, Activation::kGelu); }},
    {"Tanh * gate f32 [64,256]", [] { return Gate({64, 256}, Activation::kTanh); }},
    {"SiLU * gate f16 256K", [] { return Gate({128, 2048}, Activation::kSwish, kF16); }},
    {"SiLU f32 64K", [] { return Elementwise({64, 1024}, Activation::kSwish); }},
    {"Relu f32 64", [] { return Elementwise({64}, Activation::kRelu); }},
};

// Time of this thread alone, which other processes on the machine do not lengthen.
double ThreadSeconds() {
#ifdef CLOCK_THREAD_CPUTIME_ID
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
#else
  return std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
#endif
}

double Seconds(const std::function<void()>& work, int repeats) {
  const double start = ThreadSeconds();
  for (int i = 0; i < repeats; ++i) work();
  return (ThreadSeconds() - start) / repeats;
}

// The lower quartile: what a loaded machine disturbs least without being a lucky shot.
double Quartile(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 4];
}

void Measure(const char* name, const Case& c, double budget) {
  std::unique_ptr<Executable> executable;
  Result result = CompileForCpu(c.chain(), &executable);
  BenchContext context(c);
  if (result.ok()) result = executable->Run(context);
  if (!result.ok()) {
    std::printf("%-40s %s\n", name, result.message().c_str());
    return;
  }
  const size_t bytes = context.bytes();
  const size_t half = bytes / 2;
  std::vector<unsigned char> from(half + kAlignment, 1);
  std::vector<unsigned char> to(half + kAlignment, 2);
  const auto run = [&] { (void)executable->Run(context); };
  const auto copy = [&] {
    std::memcpy(Aligned(&to), Aligned(&from), half);
    asm volatile("" : : "r"(to.data()) : "memory");
  };
  const int repeats = std::max(1, static_cast<int>(2e-3 / std::max(Seconds(run, 3), 1e-8)));
  const int copies = std::max(1, static_cast<int>(1e-3 / std::max(Seconds(copy, 3), 1e-8)));
  std::vector<double> job_times, copy_times;
  const auto start = Clock::now();
  do {
    job_times.push_back(Seconds(run, repeats));
    copy_times.push_back(Seconds(copy, copies));
  } while (std::chrono::duration<double>(Clock::now() - start).count() < budget || job_times.size() < 9);
  const double job = Quartile(job_times);
  const double limit = Quartile(copy_times);
  std::printf("%-40s %10.2f us %7.1f GB/s  copy %7.1f GB/s  share %.2f\n", name, job * 1e6,
              static_cast<double>(bytes) / job * 1e-9, static_cast<double>(bytes) / limit * 1e-9, limit / job);
  std::fflush(stdout);
}

// LayerNorms of [128, 768] by each kernel, and with activations that it may not have.
void MeasureKernels(double budget) {
  for (const cpu::SecondPassKernel& kernel : cpu::kSecondPassKernels) {
    for (const Activation activation :
         {Activation::kIdentity, Activation::kRelu, Activation::kGelu, Activation::kSwish}) {
      Case c = Layer({128, 768}, kernel.x, kernel.y, activation);
      std::string name = std::string("kernel ") + NameOf(kernel.x) + "->" + NameOf(kernel.y) + " " +
                         kActivations[static_cast<int>(activation)].name;
      if (kernel.operands != cpu::SumKind::kSingle) {
        c.parts.residual.type = kernel.x;
        c.parts.residual.tensor = c.Add(Random(kernel.x, {128, 768}), false);
        name += " + residual";
      }
      if (kernel.operands == cpu::SumKind::kBiasedPair) {
        c.parts.residual_bias.type = kF32;
        c.parts.residual_bias.tensor = c.Add(Random(kF32, {768}), true);
        name += " + bias";
      }
      Measure(name.c_str(), c, budget);
    }
  }
}

}  // namespace
}  // namespace normfuse::test

int main(int argc, char** argv) {
  const char* isa = "";
  if (!normfuse::SelectedIsa(&isa).ok()) return 1;
  std::printf("instruction set %s\n", isa);
  const double budget = argc > 2 ? std::atof(argv[2]) : 0.5;
  if (argc > 1 && std::strcmp(argv[1], "kernel") == 0) {
    normfuse::test::MeasureKernels(budget);
    return 0;
  }
  for (const auto& entry : normfuse::test::kEntries) {
    if (argc > 1 && std::strstr(entry.name, argv[1]) == nullptr) continue;
    normfuse::test::Measure(entry.name, entry.make(), budget);
  }
  return 0;
}
