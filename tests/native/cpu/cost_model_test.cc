// What the cost model takes ONNX Runtime's nodes for; its figures are measured (ep/spec/prices.toml), and not tested.
#include "cpu/plan/cost_model.h"

#include "chain_harness.h"
#include "plugin/claim/expected_gain.h"
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
  const auto cost = [](bool by_cast) { return plugin::EstimateOrtNanoseconds(ScaledIntegers(by_cast), kElements); };
  const double more = kElements * (kScaleIntegersPrice.ort - kDequantizeWidePrice.ort);
  const double difference = cost(true) - cost(false) - kOrtFurtherNodeNanoseconds - more;
  EXPECT(-1e-6 < difference && difference < 1e-6, std::to_string(difference));
}

TEST(ScalesOfTheirOwnAreOneNodeMore) {
  Chain chain = ScaledIntegers(true);
  const double before = plugin::EstimateOrtNanoseconds(chain, 0);
  chain.store.dynamic.emplace();
  EXPECT(plugin::EstimateOrtNanoseconds(chain, 0) == before + kOrtFurtherNodeNanoseconds, "ORT");
  for (const cpu::Isa isa : {cpu::Isa::kBaseline, cpu::Isa::kAvx2}) {
    Chain plain = ScaledIntegers(true);
    EXPECT(cpu::EstimateNanoseconds(chain, isa, 1000) > cpu::EstimateNanoseconds(plain, isa, 1000), "ours");
  }
}

// Of bytes alone, for the two activations that have such a kernel there.
TEST(OrtHasTablesOfBytes) {
  for (const Activation activation : {Activation::kSigmoid, Activation::kRelu}) {
    Chain chain;
    chain.x.tensor.input = 0;
    chain.x.type = chain.store.type = DataType::kUint8;
    auto one = std::make_shared<ConstantTensor>();
    one->type = DataType::kFloat32;
    chain.x.quantization.scale.constant = chain.store.quantization.scale.constant = one;
    chain.behind.push_back(Activate({activation, {}}));
    const bool by_table =
        plugin::EstimateOrtNanoseconds(chain, 1000) == kOrtOtherNodeNanoseconds + 1000 * kByteTablePrice.ort;
    EXPECT(cpu::IsOfBytes(chain) && by_table == (activation == Activation::kSigmoid), "ORT");
  }
}

// A MeanVarianceNormalization of `groups` x `size`, over the latter.
Chain MeanVariance(int64_t groups, int64_t size) {
  Chain chain;
  chain.x.tensor.input = 0;
  chain.x.type = chain.store.type = DataType::kFloat32;
  chain.x.shape = {2, {groups, size}};
  chain.normalization.emplace();
  chain.normalization->axes = {1};
  chain.normalization->epsilon_on = EpsilonOn::kStddev;
  return chain;
}

TEST(ManyShortGroupsAreLeftToOrt) {
  for (const cpu::Isa isa : {cpu::Isa::kBaseline, cpu::Isa::kAvx2, cpu::Isa::kAvx512}) {
    EXPECT(plugin::ExpectedGain(MeanVariance(16384, 4), isa) < 0, "short");
    EXPECT(plugin::ExpectedGain(MeanVariance(16, 4096), isa) > 0, "long");
    Chain groups_of_channels = MeanVariance(16384, 4);
    groups_of_channels.normalization->epsilon_on = EpsilonOn::kVariance;
    groups_of_channels.normalization->axes.clear();
    groups_of_channels.normalization->num_groups = 1;
    EXPECT(plugin::ExpectedGain(groups_of_channels, isa) > 0, "GroupNormalization");
    Chain with_clip = MeanVariance(1024, 16);
    const double without = plugin::ExpectedGain(with_clip, isa);
    with_clip.behind = {Activate({Activation::kRelu, {}}), Activate({Activation::kRelu, {}})};
    EXPECT(plugin::ExpectedGain(with_clip, isa) < without, "rows through blocks");
  }
}

}  // namespace
}  // namespace normfuse::test

NORMFUSE_TEST_MAIN
