// What Python does not see of a call: outputs that are left out, memory, threads, sequences, shapes that change. The edges of
// the operators' values are in tests/operators/test_edges.py and test_accuracy.py.
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <new>
#include <string>

#include "chain_harness.h"
#include "test_cases.h"
#include "worse.h"

namespace {
std::atomic<long> allocations{0};
}  // namespace

// Counts what the whole program allocates. Not inlined, or compilers see malloc meet delete.
__attribute__((noinline)) void* operator new(size_t size) {
  ++allocations;
  void* memory = std::malloc(size);
  if (memory == nullptr) std::abort();
  return memory;
}
__attribute__((noinline)) void operator delete(void* memory) noexcept { std::free(memory); }
__attribute__((noinline)) void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace normfuse::test {
namespace {

Case Normalize(std::vector<int64_t> dims, const std::vector<double>& values, std::vector<int64_t> axes) {
  Case c;
  c.parts.name = "edge";
  c.parts.x.type = DataType::kFloat32;
  c.parts.x.tensor = c.Add(MakeFloats(std::move(dims), values), false);
  c.parts.normalization.axes = std::move(axes);
  c.parts.y_type = DataType::kFloat32;
  c.output_types = {DataType::kFloat32};
  return c;
}

// Runs `c` and hands over the result; the output is empty when the run failed.
Result Run(const Case& c, ArrayContext* context) {
  std::unique_ptr<Executable> executable;
  const Result compiled = CompileForCpu(c.chain(), &executable);
  if (!compiled.ok()) return compiled;
  c.FillContext(context);
  return executable->Run(*context);
}

std::vector<double> Y(const Case& c, int threads = 1) {
  ArrayContext context(threads);
  const Result result = Run(c, &context);
  EXPECT(result.ok(), result.message());
  std::vector<double> values;
  for (int64_t i = 0; result.ok() && i < context.output(0).Count(); ++i) values.push_back(context.output(0).At(i));
  return values;
}

std::vector<double> Normals(size_t count, double mean, uint32_t seed = 3) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal(mean, 1.0);
  std::vector<double> values(count);
  for (double& value : values) value = static_cast<float>(normal(random));
  return values;
}

// A sum on the way, and the mean, of which nobody reads Y.
TEST(YMayBeLeftOut) {
  OnEveryIsa([](const std::string& isa) {
    for (const Method method : {Method::kStandard, Method::kSoftmax}) {
      for (const int64_t n : {40, 9000, 70000}) {
        for (const int64_t axis : {0, 1}) {
          const auto dims = axis == 1 ? std::vector<int64_t>{2, n} : std::vector<int64_t>{n, 2};
          std::vector<double> values = Normals(static_cast<size_t>(2 * n), 1);
          if (n == 40) values[0] = 1e30;  // of a row that would be normalised in double
          Case c = Normalize(dims, values, {axis});
          c.parts.residual.type = DataType::kFloat32;
          c.parts.residual.tensor = c.Add(MakeFloats(dims, Normals(static_cast<size_t>(2 * n), 2)), false);
          c.parts.normalization.method = method;
          c.parts.sum_type = DataType::kFloat32;
          c.parts.sum_output = 0;
          if (method == Method::kStandard) {
            c.parts.normalization.mean_output = 1;
            c.output_types.push_back(DataType::kFloat32);
          }
          Chain chain = c.chain();
          chain.store.output = kNoOutput;
          c.steps = chain;
          for (const int threads : {1, 3}) {
            RunAndCompare(c, threads, isa + " n " + std::to_string(n) + " axis " + std::to_string(axis));
          }
        }
      }
    }
  });
}

TEST(ZeroKeepsItsSignWithoutANormalisation) {
  OnEveryIsa([](const std::string& isa) {
    std::vector<double> values(37, -0.0);
    Case c = Normalize({37}, values, {0});
    c.parts.normalizes = false;
    for (double y : Y(c)) {
      EXPECT(y == 0 && std::signbit(y), isa);
      if (!std::signbit(y)) break;
    }
  });
}

TEST(UnknownInstructionSetIsAnError) {
  ForceIsa("mmx");
  const char* name = nullptr;
  const Result result = SelectedIsa(&name);
  EXPECT(!result.ok() && result.message().find("baseline") != std::string::npos, result.message());
  std::unique_ptr<Executable> executable;
  EXPECT(!CompileForCpu(Normalize({4}, Normals(4, 0), {0}).chain(), &executable).ok(), "compile");
  ForceIsa("");
}

// After the first call nothing is allocated, whatever has to be converted.
TEST(RunDoesNotAllocate) {
  const char* const forms[][2] = {
      {"Normalize axes=1", ""},
      {"Normalize axes=1; Mul G", "G=float16[70]"},
      {"Normalize axes=0; Mul G", "G=float16[70]"},
      {"Add R scale=S zero_point=Z axis=1; Normalize axes=1", "R=int8[6,70] S=[70] Z=int8[70]"},
      {"Normalize axes=1; Quantize scale=s axis=0", "s=[6]"},
      {"Identity", ""}};
  for (const auto& [steps, tensors] : forms) {
    const Case c = FromSteps(steps, std::string("X=[6,70] ") + tensors);
    std::unique_ptr<Executable> executable;
    const Result compiled = CompileForCpu(c.chain(), &executable);
    EXPECT(compiled.ok(), compiled.message());
    if (!compiled.ok()) continue;
    ArrayContext context;
    c.FillContext(&context);
    EXPECT(executable->Run(context).ok(), "first run");
    const long before = allocations;
    for (int i = 0; i < 10; ++i) EXPECT(executable->Run(context).ok(), "later run");
    EXPECT(allocations == before, std::string(steps) + ": " + std::to_string(allocations - before));
  }
}

// Work too small for it stays on the caller's thread; larger work is the same on any number of threads.
TEST(ThreadsAreUsedWhereTheyPay) {
  Case small = Normalize({1, 768}, Normals(768, 0), {1});
  ArrayContext quiet(4);
  EXPECT(Run(small, &quiet).ok(), "small");
  EXPECT(quiet.parallel_calls() == 0, "a small tensor was handed to other threads");
  const std::vector<double> values = Normals(size_t{512} * 1024, 2);
  for (const std::vector<int64_t>& axes : {std::vector<int64_t>{1}, {0}, {0, 1}}) {
    Case c = Normalize({512, 1024}, values, axes);
    ArrayContext context(4);
    EXPECT(Run(c, &context).ok(), "large");
    EXPECT(context.parallel_calls() > 0, "a large tensor was kept to one thread");
    const std::vector<double> one = Y(c, 1);
    const std::vector<double> three = Y(c, 3);
    double worst = 0;
    for (size_t i = 0; i < one.size(); ++i) worst = Worse(worst, std::fabs(one[i] - three[i]));
    EXPECT(worst <= 1e-6, std::to_string(worst));
  }
}

// Where no thread ever takes a part, a call is not divided any longer, but threads are asked again now and then.
TEST(WithoutOtherThreadsTheCallerGoesOnAlone) {
  for (const std::vector<int64_t>& axes : {std::vector<int64_t>{1}, {0}}) {
    Case c = Normalize({160, 1024}, Normals(size_t{160} * 1024, 2), axes);
    std::unique_ptr<Executable> executable;
    EXPECT(CompileForCpu(c.chain(), &executable).ok(), "compile");
    ArrayContext context(4);
    c.FillContext(&context);
    const auto calls_asking = [&](int calls) {
      const int before = context.parallel_calls();
      for (int i = 0; i < calls; ++i) EXPECT(executable->Run(context).ok(), "run");
      return context.parallel_calls() - before;
    };
    context.LeaveToCaller(true);
    EXPECT(calls_asking(64) == 64, "the first calls");
    EXPECT(calls_asking(4095) == 0, "without help");
    EXPECT(calls_asking(64 + 4095) == 64, "asked again");
    context.LeaveToCaller(false);
    EXPECT(calls_asking(10) == 10, "asked again, and helped");
    context.LeaveToCaller(true);
    EXPECT(calls_asking(20) == 20, "those who helped once may do so again");
  }
}

// The second chain reads what the first one gives, which is no output of the node.
TEST(ASequenceIsItsChainsInTurn) {
  Case first = Normalize({512, 1024}, Normals(size_t{512} * 1024, 2), {1});
  Case second = Normalize({512, 1024}, Y(first), {0});
  ChainSequence sequence{{first.chain(), second.chain()}, 1};
  sequence.chains[0].store.output = 1;
  sequence.chains[1].x.tensor.input = kFromOutput + 1;
  std::unique_ptr<Executable> executable;
  EXPECT(CompileForCpu(sequence, &executable).ok(), "compile");
  ArrayContext context(3);
  first.FillContext(&context);
  EXPECT(executable->Run(context).ok(), "run");
  const std::vector<double> want = Y(second);
  bool same = true;
  for (size_t i = 0; i < want.size(); ++i) same &= context.output(0).At(static_cast<int64_t>(i)) == want[i];
  EXPECT(same && context.parallel_calls() == 2, std::to_string(context.parallel_calls()));
}

// A single tile of columns is not handed to anybody.
TEST(OneTileStaysOnTheCaller) {
  Case c = Normalize({20'000, 32}, Normals(size_t{20'000} * 32, 2), {0});
  std::unique_ptr<Executable> executable;
  EXPECT(CompileForCpu(c.chain(), &executable).ok(), "compile");
  for (const int threads : {1, 4}) {
    ArrayContext context(threads);
    c.FillContext(&context);
    EXPECT(executable->Run(context).ok(), "run");
    EXPECT(context.parallel_calls() == 0, std::to_string(threads) + " threads");
  }
}

// More shapes than are remembered, and the same X with another residual.
TEST(ShapesMayChangeFromCallToCall) {
  std::vector<Case> cases;
  for (const char* shapes :
       {"X=[3,5,96] R=[96]", "X=[3,5,96] R=[5,1]", "X=[96] R=[3,5,96]", "X=[7,96] R=[96]", "X=[96] R=[96]",
        "X=[2,3,96] R=[3,96]", "X=[0,96] R=[96]", "X=[1,96] R=[]", "X=[2,1,40] R=[9,1]"}) {
    RunAndCompare(cases.emplace_back(FromSteps("Add R; Normalize axes=-1", shapes)), 1, shapes);
  }
  std::unique_ptr<Executable> executable;
  EXPECT(CompileForCpu(cases[0].chain(), &executable).ok(), "compile");
  for (int round = 0; round < 2; ++round) {
    for (Case& c : cases) {
      ArrayContext context;
      c.FillContext(&context);
      EXPECT(executable->Run(context).ok(), "run");
      const long before = allocations;
      EXPECT(executable->Run(context).ok(), "same shapes again");
      EXPECT(allocations == before, std::to_string(allocations - before) + " allocations");
      const std::vector<double> want = Y(c);
      EXPECT(context.output(0).Count() == static_cast<int64_t>(want.size()), "shape");
      for (size_t i = 0; i < want.size(); ++i) {
        EXPECT(context.output(0).At(static_cast<int64_t>(i)) == want[i], std::to_string(i));
      }
    }
  }
}

}  // namespace
}  // namespace normfuse::test

NORMFUSE_TEST_MAIN
