// Clamps that are left out and pairs that become one (ep/cpu/plan/pairs.h): where they are. That chains
// have the same bits without them, tests/operators/test_pairs.py says.
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "chain_harness.h"
#include "check.h"
#include "cpu/plan/code_table.h"
#include "cpu/plan/pairs.h"

namespace normfuse::test {
namespace {

constexpr ActivationCall kSigmoid{Activation::kSigmoid, {}};
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

// Of each pair and each Sigmoid of the chain: x if it clamps, - if not.
std::string ClampsOf(const Chain& chain, cpu::Isa isa) {
  const cpu::KernelTable& kernels = cpu::KernelsFor(isa);
  cpu::CompiledChain compiled;
  const Result read = cpu::ReadChain(chain, isa, &compiled);
  CHECK(read.ok(), "%s", read.message().c_str());
  for (cpu::Stage& stage : compiled.spec.behind) stage.quantizer.by_product = true;
  cpu::DropRedundantClamps(chain, kernels, &compiled);
  std::string clamps;
  for (const cpu::Stage& stage : compiled.spec.behind) {
    const bool counts = stage.quantizes || stage.activation == Activation::kSigmoid;
    if (counts) clamps += stage.unclamped ? '-' : 'x';
  }
  return clamps;
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
    const std::string clamps = ClampsOf(chain, isa);
    CHECK(clamps == expected, "%s: %s clamps %s, not %s", cpu::NameOf(isa), what, clamps.c_str(), expected.c_str());
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
  }
  return test::ExitCode();
}
