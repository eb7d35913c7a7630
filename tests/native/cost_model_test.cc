// What the cost model takes ONNX Runtime's nodes for; its figures are measured (ep/spec/prices.toml), and not tested.
#include "cpu/cost_model.h"

#include "chain_harness.h"
#include "test_cases.h"

namespace normfuse::test {
namespace {

// X of int32 with a scale that is an input -> Relu.
Chain ScaledIntegers(bool by_cast) {
  Chain chain;
  chain.x.tensor.input = 0;
  chain.x.type = DataType::kInt32;
  chain.x.quantization.scale.input = 1;
  chain.x.by_cast = by_cast;
  chain.behind.push_back(Activate({Activation::kRelu, {}}));
  chain.store.type = DataType::kFloat32;
  return chain;
}

TEST(CastAndMulAreNotADequantizeLinear) {
  constexpr int64_t kElements = 1000;
  const auto cost = [](bool by_cast) { return cpu::EstimateOrtNanoseconds(ScaledIntegers(by_cast), kElements); };
  const double more = kElements * (kScaleIntegersPrice.ort - kDequantizeWidePrice.ort);
  const double difference = cost(true) - cost(false) - kOrtFurtherNodeNanoseconds - more;
  EXPECT(-1e-6 < difference && difference < 1e-6, std::to_string(difference));
}

TEST(ScalesOfTheirOwnAreOneNodeMore) {
  Chain chain = ScaledIntegers(true);
  const double before = cpu::EstimateOrtNanoseconds(chain, 0);
  chain.store.dynamic.emplace();
  EXPECT(cpu::EstimateOrtNanoseconds(chain, 0) == before + kOrtFurtherNodeNanoseconds, "ORT");
  for (const cpu::Isa isa : {cpu::Isa::kBaseline, cpu::Isa::kAvx2}) {
    Chain plain = ScaledIntegers(true);
    EXPECT(cpu::EstimateNanoseconds(chain, isa, 1000) > cpu::EstimateNanoseconds(plain, isa, 1000), "ours");
  }
}

}  // namespace
}  // namespace normfuse::test

NORMFUSE_TEST_MAIN
