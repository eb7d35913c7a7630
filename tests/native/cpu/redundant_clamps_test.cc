// Cuts that are left out (ep/cpu/plan/redundant_clamps.h) and pairs that become one (joined_pairs.h): where they are, and that
// chains have the same bits without them, for every integer of the first pair.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "chain_harness.h"
#include "check.h"
#include "cpu/plan/code_table.h"
#include "cpu/plan/redundant_clamps.h"
#include "cpu/run/elements.h"

namespace normfuse::test {
namespace {

constexpr DataType kTypes[] = {DataType::kInt8, DataType::kUint8, DataType::kInt16, DataType::kUint16};
constexpr ActivationCall kSigmoid{Activation::kSigmoid, {}};
constexpr ActivationCall kHardSigmoid{Activation::kHardSigmoid, {1.0f / 6, 0.5f}};
constexpr ActivationCall kClip{Activation::kClip, {-1.25f, 2.5f}};
constexpr ActivationCall kRelu{Activation::kRelu, {}};

TensorRef One(DataType type, double number) {
  Tensor one = MakeTensor(type, {});
  one.Set(0, number);
  auto tensor = std::make_shared<ConstantTensor>();
  tensor->type = type;
  tensor->storage = one.bytes;
  tensor->data = tensor->storage.data();
  return {TensorRef::kAbsent, tensor};
}

Quantization Scaled(DataType type, double scale, double zero) {
  Quantization quantization;
  quantization.scale = One(DataType::kFloat32, scale);
  quantization.zero_point = One(type, zero);
  return quantization;
}

Step Pair(DataType type, double scale, double zero) { return FakeQuantise(Scaled(type, scale, zero), type); }
Step Keeping(Step pair) {
  pair.keeps = true;
  return pair;
}

Operand Number(double number) {
  Operand operand;
  operand.tensor = One(DataType::kFloat32, number);
  operand.type = DataType::kFloat32;
  operand.shape = {0, {}};
  return operand;
}
Operand Kept() {
  Operand operand;
  operand.is_kept = true;
  return operand;
}
// Another tensor.
Operand Other() {
  Operand operand;
  operand.tensor.input = 1;
  operand.type = DataType::kFloat32;
  operand.shape = {1, {-1}};
  return operand;
}

Chain ChainOf(std::vector<Step> steps) {
  Chain chain;
  chain.x.tensor.input = 0;
  chain.x.type = chain.store.type = DataType::kFloat32;
  chain.x.shape = {1, {-1}};
  chain.behind = std::move(steps);
  return chain;
}
Chain ChainOfIntegers(DataType type, double scale, double zero, std::vector<Step> steps) {
  Chain chain = ChainOf(std::move(steps));
  chain.x.type = type;
  chain.x.quantization = Scaled(type, scale, zero);
  return chain;
}

// ---- Which ones are left out ----

// Of each pair and each Sigmoid of the chain: x if it cuts, - if not.
std::string CutsOf(const Chain& chain, cpu::Isa isa) {
  const cpu::KernelTable& kernels = cpu::KernelsFor(isa);
  cpu::CompiledChain compiled;
  const Result read = cpu::ReadChain(chain, isa, &compiled);
  CHECK(read.ok(), "%s", read.message().c_str());
  for (cpu::Stage& stage : compiled.spec.behind) stage.quantizer.by_product = true;
  cpu::DropRedundantClamps(chain, kernels, &compiled);
  std::string cuts;
  for (const cpu::Stage& stage : compiled.spec.behind) {
    const bool counts = stage.quantizes || stage.activation == Activation::kSigmoid;
    if (counts) cuts += stage.uncut ? '-' : 'x';
  }
  return cuts;
}

// x * Sigmoid(x) between pairs of uint16: the gate's and the product's are as given.
Chain SiluOf(const Step& gate, const Step& product) {
  constexpr DataType kType = DataType::kUint16;
  return ChainOf(
      {Keeping(Pair(kType, 16.0 / 65535, 30000)), Activate(kSigmoid), gate, Combine(StepKind::kMul, Kept()), product});
}

void TestWhichAreLeftOut(cpu::Isa isa) {
  constexpr DataType kWord = DataType::kUint16;
  const Step gate = Pair(kWord, 1.0 / 65535, 0);
  const Step product = Pair(kWord, 9.2 / 65535, 2500);
  const auto check = [isa](const Chain& chain, const std::string& expected, const char* what) {
    const std::string cuts = CutsOf(chain, isa);
    CHECK(cuts == expected, "%s: %s cuts %s, not %s", cpu::NameOf(isa), what, cuts.c_str(), expected.c_str());
  };
  check(SiluOf(gate, product), "x---", "SiLU");
  check(SiluOf(Pair(kWord, 0.9 / 65535, 0), product), "x-x-", "a gate of less than 1");
  check(SiluOf(gate, Pair(kWord, 8.0 / 65535, 2500)), "x--x", "a product of less");
  check(SiluOf(gate, Pair(kWord, 9.2 / 65535, 1000)), "x--x", "a product of less below 0");
  // One more than each integer: the highest alone goes beyond.
  const Step ones = Pair(kWord, 1, 0);
  const Step add_one = Add(Number(1));
  check(ChainOf({ones, add_one, ones}), "xx", "one integer beyond");
  check(ChainOf({ones, Add(Number(-1)), ones}), "xx", "the lowest integer beyond");
  check(ChainOf({ones, add_one, Pair(kWord, 1, 5)}), "xx", "some integers beyond");
  check(ChainOf({Pair(DataType::kUint8, 1, 0), add_one, ones}), "x-", "bytes and one");
  const Step seven_bits = Activate({Activation::kClip, {0.0f, 127.0f}});
  const Step bytes = Pair(DataType::kUint8, 1, 0);
  check(ChainOf({bytes, seven_bits, add_one, bytes}), "x-", "seven bits and one");
  check(ChainOf({bytes, add_one, bytes}), "xx", "eight bits and one");
  // X.
  check(ChainOfIntegers(kWord, 1, 0, {Add(Number(0)), ones, Activate(kRelu), ones}), "--", "integers");
  check(ChainOfIntegers(kWord, 1e-3, 32768, {Activate(kSigmoid), gate, Add(Other())}), "--", "small integers");
  const Step shrink = Combine(StepKind::kMul, Number(1.0 / 65535));
  const auto shrunk = [&](double scale) {
    return ChainOfIntegers(kWord, 1, 0,
                           {Keeping(ones), shrink, gate, Combine(StepKind::kMul, Kept()), Pair(kWord, scale, 0)});
  };
  check(shrunk(1), "---", "kept integers");
  check(shrunk(0.9), "--x", "kept integers in a smaller range");
  check(ChainOf({add_one, ones, add_one}), "x", "float32");
  // AVX-512 scales with any power of two.
  const Chain large = ChainOfIntegers(kWord, 1, 0, {Activate(kSigmoid), gate, Add(Other())});
  if (isa == cpu::Isa::kAvx2) check(large, "x-", "large integers");
  // Other tensors.
  check(ChainOf({bytes, Add(Other()), bytes}), "xx", "a tensor");
  check(ChainOf({bytes, Add(Other()), Pair(kWord, 1e-3, 32768), Activate(kSigmoid), gate}), "xx--", "behind a tensor");
  const Step narrow = Pair(DataType::kUint8, 1e-3, 0);
  const Chain apart = ChainOf({Keeping(bytes), Add(Other()), narrow, Combine(StepKind::kMul, Kept()), ones});
  check(apart, "xxx", "a kept value of other integers");
}

// ---- Which pairs may become one: the steps between them are tried on every integer ----

bool KeepsIntegers(const Chain& chain) {
  const std::optional<Chain> between = cpu::BetweenPairs(chain, 0, static_cast<int>(chain.behind.size()) - 1);
  if (!between) return false;
  std::unique_ptr<Executable> executable;
  const Result compiled = CompileForCpu(*between, &executable);
  CHECK(compiled.ok(), "%s", compiled.message().c_str());
  cpu::CodeTable table{DataType::kUint16, DataType::kUint16, std::nullopt, {}};
  return compiled.ok() && cpu::Tabulate(*executable, &table).ok() && cpu::IsIdentity(table);
}

void TestWhichAreJoined() {
  const auto pair = [](float scale, double zero) { return Pair(DataType::kUint16, scale, zero); };
  constexpr float kScale = 0.00123f;
  const Step first = pair(kScale, 100);
  const Step sixth = Combine(StepKind::kDiv, Number(6));
  CHECK(KeepsIntegers(ChainOf({first, sixth, pair(kScale / 6, 100)})), "a sixth");
  CHECK(!KeepsIntegers(ChainOf({first, sixth, pair(kScale / 6, 101)})), "another zero point");
  CHECK(!KeepsIntegers(ChainOf({first, sixth, pair(kScale / 6 * 1.0001f, 100)})), "nearly a sixth");
  CHECK(!KeepsIntegers(ChainOf({first, Activate(kRelu), sixth, pair(kScale / 6, 100)})), "half");
  CHECK(!KeepsIntegers(ChainOf({first, first})), "nothing between");
  Operand x = Other();
  x.tensor.input = 0;
  CHECK(!KeepsIntegers(ChainOf({first, Add(x), first})), "X");
}

// ---- Bits ----

std::vector<uint32_t> BitsOfY(const Chain& chain, const Tensor& x, const Tensor& other, const char* path) {
  ForcePath(path);
  std::unique_ptr<Executable> executable;
  const Result compiled = CompileForCpu(chain, &executable);
  ForcePath("");
  CHECK(compiled.ok(), "%s", compiled.message().c_str());
  ArrayContext context;
  context.AddInput(&x);
  context.AddInput(&other);
  context.SetOutputTypes({DataType::kFloat32});
  const Result run = executable->Run(context);
  CHECK(run.ok(), "%s", run.message().c_str());
  std::vector<uint32_t> bits(static_cast<size_t>(context.output(0).Count()));
  std::copy_n(context.output(0).data(), bits.size() * sizeof(uint32_t), reinterpret_cast<unsigned char*>(bits.data()));
  return bits;
}

struct Random {
  std::mt19937 bits{11};
  double Uniform(double low, double high) { return std::uniform_real_distribution<double>(low, high)(bits); }
  template <class T>
  T Of(std::initializer_list<T> some) {
    return some.begin()[bits() % some.size()];
  }
};

// A pair of a type, for values from `low` to `high` or fewer: a calibration may have seen less.
Step Calibrated(DataType type, double low, double high, Random* random) {
  float least = 0;
  float most = 0;
  cpu::IntegerRange(type, &least, &most);
  const double seen = random->Of({1.0, 1.0, 1.1, 0.999, 0.8, 0.3});
  const double scale = seen * (high - low) / (static_cast<double>(most) - static_cast<double>(least));
  const double zero = std::round(static_cast<double>(least) - seen * low / scale);
  return Pair(type, scale, std::clamp(zero, static_cast<double>(least), static_cast<double>(most)));
}

Chain RandomChain(DataType type, Random* random) {
  const double widest = random->Of({4.0, 8.0, 30.0, 300.0});
  Step first = Calibrated(type, -widest, widest * random->Uniform(0.5, 1.0), random);
  std::vector<Step> steps = {Keeping(first)};
  const ActivationCall gate = random->Of({kSigmoid, kHardSigmoid, kClip, kRelu});
  if (random->Of({true, false})) {
    steps.push_back(Add(Number(random->Uniform(-1, 1))));
    steps.push_back(Calibrated(type, -widest - 1, widest + 1, random));
  }
  steps.push_back(Activate(gate));
  const bool is_narrow = gate.kind == Activation::kSigmoid || gate.kind == Activation::kHardSigmoid;
  const double most = is_narrow ? 1 : gate.kind == Activation::kClip ? 2.5 : widest;
  steps.push_back(Calibrated(type, gate.kind == Activation::kClip ? -1.25 : 0, most, random));
  steps.push_back(Combine(StepKind::kMul, Kept()));
  steps.push_back(Calibrated(type, is_narrow ? -0.4 : -most * widest, most * widest, random));
  if (random->Of({true, false})) {
    steps.push_back(Combine(StepKind::kDiv, Number(random->Uniform(2, 7))));
    steps.push_back(Calibrated(type, is_narrow ? -0.1 : -most * widest, most * widest / 3, random));
  }
  // With another tensor, so that no table is looked up.
  steps.push_back(Add(Other()));
  return ChainOf(std::move(steps));
}

// What each integer stands for, and what is none: beyond, between, not finite.
Tensor FloatsFor(const Step& pair) {
  const double scale = static_cast<double>(cpu::OneNumberOf(pair.quantization.scale, 1));
  const double zero = static_cast<double>(cpu::OneNumberOf(pair.quantization.zero_point, 0));
  float low = 0;
  float high = 0;
  cpu::IntegerRange(pair.type, &low, &high);
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  std::vector<double> x = {0.0, -0.0, kInfinity, -kInfinity, std::nan(""), 3e38, -3e38, 1e-40};
  for (float code = low - 3; code <= high + 3; ++code) x.push_back((static_cast<double>(code) - zero) * scale);
  const auto count = static_cast<int64_t>(x.size());
  return MakeFloats({count}, x);
}

Tensor AllIntegers(DataType type) {
  float low = 0;
  float high = 0;
  cpu::IntegerRange(type, &low, &high);
  Tensor x = MakeTensor(type, {static_cast<int64_t>(high - low) + 1});
  for (int64_t i = 0; i < x.Count(); ++i) x.Set(i, static_cast<double>(low) + static_cast<double>(i));
  return x;
}

// `other`: the elements of the other tensor, which are zeros: as many as x has, or one, which no kernel reads with its steps.
void Compare(const Chain& chain, const Tensor& x, const std::string& what, int64_t other = 0) {
  const Tensor zeros = MakeTensor(DataType::kFloat32, other == 0 ? x.dims : std::vector<int64_t>{other});
  const std::vector<uint32_t> y = BitsOfY(chain, x, zeros, "");
  const std::vector<uint32_t> expected = BitsOfY(chain, x, zeros, "blocks");
  size_t first = 0;
  while (first < y.size() && y[first] == expected[first]) ++first;
  CHECK(first == y.size(), "%s: of %g comes %a, not %a", what.c_str(), x.At(static_cast<int64_t>(first)),
        static_cast<double>(std::bit_cast<float>(y[first])),
        static_cast<double>(std::bit_cast<float>(expected[first])));
}

// As x with the first pair in front, and from its integers.
void TestBits(const std::string& isa, DataType type, int chains) {
  Random random;
  const Step ends[] = {Pair(type, 0.00123, 100), Pair(type, 0.00123f / 6, 100)};
  const Chain joined = ChainOf({ends[0], Combine(StepKind::kDiv, Number(6)), ends[1], Add(Other())});
  for (const int64_t other : {0, 1}) Compare(joined, FloatsFor(ends[0]), isa + " joined pairs", other);
  for (int i = 0; i < chains; ++i) {
    Chain chain = RandomChain(type, &random);
    const std::string what = isa + " " + NameOf(type) + " chain " + std::to_string(i);
    const Step first = chain.behind.front();
    Compare(chain, FloatsFor(first), what);
    chain.x.type = type;
    chain.x.quantization = first.quantization;
    Compare(chain, AllIntegers(type), what + " of integers");
    // Numbers that leave float32: infinite ones, and their differences.
    chain.x.quantization = Scaled(type, 2e37, 3);
    Compare(chain, AllIntegers(type), what + " of large integers");
  }
}

}  // namespace
}  // namespace normfuse::test

int main() {
  using namespace normfuse;
  test::TestWhichAreJoined();
  for (int i = 0; i < cpu::kIsaCount; ++i) {
    const auto isa = static_cast<cpu::Isa>(i);
    const bool has_steps = cpu::IsAvailable(isa) && cpu::KernelsFor(isa).element_steps != nullptr;
    if (!has_steps) continue;
    test::TestWhichAreLeftOut(isa);
    test::ForceIsa(cpu::NameOf(isa));
    for (const DataType type : test::kTypes) test::TestBits(cpu::NameOf(isa), type, BitsOf(type) == 8 ? 200 : 40);
  }
  return test::ExitCode();
}
