// Which fake quantisations may become one: the steps between them are tried on every integer.
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "check.h"
#include "cpu/plan/code_table.h"

namespace normfuse::test {
namespace {

template <class Number>
TensorRef One(DataType type, Number number) {
  auto tensor = std::make_shared<ConstantTensor>();
  tensor->type = type;
  const auto* bytes = reinterpret_cast<const unsigned char*>(&number);
  tensor->storage.assign(bytes, bytes + sizeof number);
  tensor->data = tensor->storage.data();
  return {TensorRef::kAbsent, tensor};
}

Step Pair(float scale, uint16_t zero) {
  Quantization quantization;
  quantization.scale = One(DataType::kFloat32, scale);
  quantization.zero_point = One(DataType::kUint16, zero);
  return FakeQuantise(quantization, DataType::kUint16);
}

Step DividedBy(float number) {
  Operand operand;
  operand.tensor = One(DataType::kFloat32, number);
  operand.type = DataType::kFloat32;
  operand.shape = {0, {}};
  return Combine(StepKind::kDiv, operand);
}

// Pairs on both sides of steps.
Chain ChainOf(const Step& first, std::vector<Step> between, const Step& second) {
  Chain chain;
  chain.x.tensor.input = 0;
  chain.x.type = chain.store.type = DataType::kFloat32;
  chain.x.shape = {1, {64}};
  chain.behind = {first};
  chain.behind.insert(chain.behind.end(), between.begin(), between.end());
  chain.behind.push_back(second);
  return chain;
}

bool KeepsIntegers(const Chain& chain) {
  const std::optional<Chain> between = cpu::BetweenPairs(chain, 0, static_cast<int>(chain.behind.size()) - 1);
  if (!between) return false;
  std::unique_ptr<Executable> executable;
  const Result compiled = CompileForCpu(*between, &executable);
  CHECK(compiled.ok(), "%s", compiled.message().c_str());
  cpu::CodeTable table{DataType::kUint16, DataType::kUint16, std::nullopt, {}};
  return compiled.ok() && cpu::Tabulate(*executable, &table).ok() && cpu::IsIdentity(table);
}

void Test() {
  constexpr float kScale = 0.00123f;
  const Step pair = Pair(kScale, 100);
  CHECK(KeepsIntegers(ChainOf(pair, {DividedBy(6)}, Pair(kScale / 6, 100))), "a sixth");
  CHECK(!KeepsIntegers(ChainOf(pair, {DividedBy(6)}, Pair(kScale / 6, 101))), "another zero point");
  CHECK(!KeepsIntegers(ChainOf(pair, {DividedBy(6)}, Pair(kScale / 6 * 1.0001f, 100))), "nearly a sixth");
  CHECK(!KeepsIntegers(ChainOf(pair, {Activate({Activation::kRelu, {}}), DividedBy(6)}, Pair(kScale / 6, 100))),
        "half");
  CHECK(!KeepsIntegers(ChainOf(pair, {}, pair)), "nothing between");
  Operand x;
  x.tensor.input = 0;
  x.type = DataType::kFloat32;
  x.shape = {1, {64}};
  CHECK(!KeepsIntegers(ChainOf(pair, {Add(x)}, pair)), "X");
}

}  // namespace
}  // namespace normfuse::test

int main() {
  normfuse::test::Test();
  return normfuse::test::ExitCode();
}
