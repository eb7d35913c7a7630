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

struct Entry {
  const char* name;
  const char* steps;
  const char* tensors;
  int hidden = 0;  // elements at the end of the mask that have this value
  float mask = 0;
};

#define STORED "Dequantize scale=s zero_point=z"
#define DQ STORED "; "
#define Q "; Quantize scale=t zero_point=u"
#define QUANTIZED " s=0.05 z=int8(3) t=0.037 u=int8(5)"
#define LAYER "Normalize axes=-1; Mul g; Add b"
#define CHANNELS "; Mul g align=channel; Add b align=channel"
#define OF(size) " g=[" size "] b=[" size "]"
#define HALVES(size) " g=float16[" size "] b=float16[" size "]"
#define MVN(axes) "Normalize epsilon=1e-09 epsilon_on=stddev axes=" axes
#define GROUPS "Normalize num_groups=32" CHANNELS
#define MODULATED GROUPS "; Mul M; Add A"
#define NUMBERS " M=[1,64,1,1] A=[1,64,1,1]"
#define MASKED "Mul f; Add M; Softmax axes=-1"

constexpr Entry kEntries[] = {
    {"LayerNorm f32 [1,1,768]", LAYER, "X=[1,1,768]" OF("768")},
    {"LayerNorm f32 [1,128,768]", LAYER, "X=[1,128,768]" OF("768")},
    {"LayerNorm f32 [1,1024,768]", LAYER, "X=[1,1024,768]" OF("768")},
    {"Add->LayerNorm f32 [1,1024,768]", "Add R; " LAYER, "X=[1,1024,768] R=[1,1024,768]" OF("768")},
    {"LayerNorm f32 [8,512,768]", LAYER, "X=[8,512,768]" OF("768")},
    {"LayerNorm f32 [32,512,1024]", LAYER, "X=[32,512,1024]" OF("1024")},
    {"LayerNorm f16 [8,512,768]", LAYER, "X=float16[8,512,768]" HALVES("768")},
    {"LayerNorm f32 [1,64,4096]", LAYER, "X=[1,64,4096]" OF("4096")},
    {"LayerNorm f32 [8,512,770]", LAYER, "X=[8,512,770]" OF("770")},
    {"Softmax f32 [1536,128]", "Softmax axes=-1", "X=[1536,128]"},
    {"Softmax f32 [64,4096]", "Softmax axes=-1", "X=[64,4096]"},
    {"Softmax f32 axis 1 [1,12,384,384]", "Softmax axes=1", "X=[1,12,384,384]"},
    {"Softmax f32 axis 2 [12,384,384]", "Softmax axes=2", "X=[1,12,384,384]"},
    {"Softmax f16 [1536,128]", "Softmax axes=-1", "X=float16[1536,128]"},
    {"LogSoftmax f32 [1536,20]", "LogSoftmax axes=-1", "X=[1536,20]"},
    {"LogSoftmax f32 [128,1000]", "LogSoftmax axes=-1", "X=[128,1000]"},
    {"LogSoftmax f32 axis 1 [1,21,32,32]", "LogSoftmax axes=1", "X=[1,21,32,32]"},
    {"DQ->Softmax->Q i8 [12,384,384]", DQ "Softmax axes=-1" Q, "X=int8[12,384,384]" QUANTIZED},
    {"Mul->Add->Softmax f32 [12,128,128]", MASKED, "X=[12,128,128] f=0.125 M=[128]"},
    {"Mul->Add->Softmax f32 [12,384,384]", MASKED, "X=[12,384,384] f=0.125 M=[384]"},
    {"Mul->Add->Softmax f32 [24,34,34], hidden by -1e4", MASKED, "X=[24,34,34] f=0.125 M=[34]", 10, -1e4f},
    {"Mul->Add->Softmax f32 [24,49,49], hidden by -100", MASKED, "X=[24,49,49] f=0.125 M=[49]", 21, -100.0f},
    {"LayerNorm f16 [64,5120]", LAYER, "X=float16[64,5120]" HALVES("5120")},
    {"Add->LayerNorm f16 [64,5120]", "Add R; " LAYER, "X=float16[64,5120] R=float16[64,5120]" HALVES("5120")},
    {"RMSNorm f32 [1,128,768]", "Normalize axes=-1 use_mean=0; Mul g", "X=[1,128,768] g=[768]"},
    {"RMSNorm f32 [8,512,768]", "Normalize axes=-1 use_mean=0; Mul g", "X=[8,512,768] g=[768]"},
    {"LayerNorm->Relu f32 [8,512,768]", LAYER "; Relu", "X=[8,512,768]" OF("768")},
    {"LayerNorm->Gelu f32 [1,128,768]", LAYER "; Gelu", "X=[1,128,768]" OF("768")},
    {"LayerNorm->SiLU f32 [1,128,768]", LAYER "; Swish", "X=[1,128,768]" OF("768")},
    {"LayerNorm f16 [1,128,768]", LAYER, "X=float16[1,128,768]" HALVES("768")},
    {"DQ->LayerNorm->Q i8 [1,128,768]", DQ LAYER Q, "X=int8[1,128,768]" OF("768") QUANTIZED},
    {"DQ->LayerNorm->Gelu->Q i8 [1,128,768]", DQ LAYER "; Gelu" Q, "X=int8[1,128,768]" OF("768") QUANTIZED},
    {"LayerNorm->Gelu f32 [8,512,768]", LAYER "; Gelu", "X=[8,512,768]" OF("768")},
    {"LayerNorm->SiLU f32 [8,512,768]", LAYER "; Swish", "X=[8,512,768]" OF("768")},
    {"Add->LayerNorm f32 [1,128,384]", "Add R; " LAYER, "X=[1,128,384] R=[1,128,384]" OF("384")},
    {"Add->LayerNorm f32 [8,512,768]", "Add R; " LAYER, "X=[8,512,768] R=[8,512,768]" OF("768")},
    {"Add->LayerNorm,sum f32 [8,512,768]", "Add R; Emit; " LAYER, "X=[8,512,768] R=[8,512,768]" OF("768")},
    {"Add->LayerNorm f16 [8,512,768]", "Add R; " LAYER, "X=float16[8,512,768] R=float16[8,512,768]" HALVES("768")},
    {"MVN [8,64,128,128] 0,2,3", MVN("0,2,3"), "X=[8,64,128,128]"},
    {"MVN [8,64,128,128] 2,3", MVN("2,3"), "X=[8,64,128,128]"},
    {"MVN [8,64,128,128] 1,2,3", MVN("1,2,3"), "X=[8,64,128,128]"},
    {"MVN [8,64,128,128] 1", MVN("1"), "X=[8,64,128,128]"},
    {"MVN [8,128,128,64] 0,1,2", MVN("0,1,2"), "X=[8,128,128,64]"},
    {"InstanceNorm [8,64,128,128]", "Normalize axes=2,3" CHANNELS, "X=[8,64,128,128]" OF("64")},
    {"InstanceNorm->Relu [8,64,128,128]", "Normalize axes=2,3" CHANNELS "; Relu", "X=[8,64,128,128]" OF("64")},
    {"GroupNorm [2,320,64,64]", GROUPS, "X=[2,320,64,64]" OF("320")},
    {"GroupNorm->SiLU [2,320,64,64]", GROUPS "; Swish", "X=[2,320,64,64]" OF("320")},
    {"GroupNorm [1,128,8,8]", GROUPS, "X=[1,128,8,8]" OF("128")},
    {"GroupNorm [1,64,32,32]", GROUPS, "X=[1,64,32,32]" OF("64")},
    {"GroupNorm modulated [1,64,64,64]", MODULATED, "X=[1,64,64,64]" OF("64") NUMBERS},
    {"GroupNorm modulated->SiLU [1,64,64,64]", MODULATED "; Swish", "X=[1,64,64,64]" OF("64") NUMBERS},
    {"DQ->LayerNorm->Q i8 [8,512,768]", DQ LAYER Q, "X=int8[8,512,768]" OF("768") QUANTIZED},
    {"DQ->LayerNorm->Gelu->Q i8 [8,512,768]", DQ LAYER "; Gelu" Q, "X=int8[8,512,768]" OF("768") QUANTIZED},
    {"DequantizeLinear i8 tensor [4096,1024]", STORED, "X=int8[4096,1024]" QUANTIZED},
    {"DequantizeLinear i8 axis 0 [4096,1024]", STORED " axis=0", "X=int8[4096,1024] s=[4096] z=int8[4096]"},
    {"DequantizeLinear i8 axis 1 [4096,1024]", STORED " axis=1", "X=int8[4096,1024] s=[1024] z=int8[1024]"},
    {"Gelu f32 4M", "Gelu", "X=[4096,1024]"},
    {"HardSwish f32 4M", "HardSwish", "X=[4096,1024]"},
    {"HardSwish f32 64K", "HardSwish", "X=[64,1024]"},
    {"DQ->HardSwish->Q i8 4M", DQ "HardSwish" Q, "X=int8[4096,1024]" QUANTIZED},
    {"DQ->Gelu->Q i8 4M", DQ "Gelu" Q, "X=int8[4096,1024]" QUANTIZED},
    {"SiLU * gate f32 [64,256]", "Swish; Mul G", "X=[64,256] G=[64,256]"},
    {"SiLU * gate f32 256K", "Swish; Mul G", "X=[128,2048] G=[128,2048]"},
    {"SiLU * gate f32 4M", "Swish; Mul G", "X=[4096,1024] G=[4096,1024]"},
    {"Gelu * gate f32 256K", "Gelu; Mul G", "X=[128,2048] G=[128,2048]"},
    {"Tanh * gate f32 [64,256]", "Tanh; Mul G", "X=[64,256] G=[64,256]"},
    {"SiLU * gate f16 256K", "Swish; Mul G", "X=float16[128,2048] G=float16[128,2048]"},
    {"SiLU f32 64K", "Swish", "X=[64,1024]"},
    {"Relu f32 64", "Relu", "X=[64]"},
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

Case Make(const Entry& entry) {
  Case c = FromSteps(entry.steps, entry.tensors);
  for (int i = 1; i <= entry.hidden; ++i) c.tensors.back()->Set(c.tensors.back()->Count() - i, entry.mask);
  return c;
}

// LayerNorms of [128, 768] by each kernel, and with activations that it may not have.
void MeasureKernels(double budget) {
  for (const cpu::SecondPassKernel& kernel : cpu::kSecondPassKernels) {
    for (const char* activation : {"", "; Relu", "; Gelu", "; Swish"}) {
      const std::string x = NameOf(kernel.x);
      const bool sums = kernel.operands != cpu::SumKind::kSingle;
      const bool biased = kernel.operands == cpu::SumKind::kBiasedPair;
      const std::string steps =
          std::string(IsQuantized(kernel.x) ? DQ : "") + (sums ? "Add R; " : "") + (biased ? "Add r; " : "") + LAYER +
          activation + (IsQuantized(kernel.y) ? "; Quantize scale=t type=" : "; Store type=") + NameOf(kernel.y);
      const std::string parameters = IsFloat(kernel.x) ? " g=" + x + "[768] b=" + x + "[768]" : OF("768");
      const std::string tensors = "X=" + x + "[128,768] R=" + x + "[128,768] r=[768]" + parameters;
      Measure(("kernel " + x + "->" + NameOf(kernel.y) + " " + steps).c_str(),
              FromSteps(steps, tensors + " s=0.05 z=" + x + "(3) t=0.037"), budget);
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
    normfuse::test::Measure(entry.name, normfuse::test::Make(entry), budget);
  }
  return 0;
}
