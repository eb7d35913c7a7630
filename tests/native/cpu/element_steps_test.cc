// Steps in registers (ep/cpu/kernels/element_steps-inl.h), bit by bit: activations against the kernels that do nothing else.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "check.h"
#include "cpu/kernels/kernel_list.h"
#include "cpu/kernels/kernels.h"
#include "cpu/kernels/simd/isa.h"

namespace normfuse::test {
namespace {

struct Case {
  Activation activation;
  const char* name;
};
constexpr Case kCases[] = {
#define NORMFUSE_CASE(kernel) {Activation::k##kernel, #kernel},
    NORMFUSE_STEP_ACTIVATIONS(NORMFUSE_CASE)
#undef NORMFUSE_CASE
};

// Any bits, and usual numbers.
std::vector<float> Inputs(size_t n) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  std::vector<float> x = {0.0f, -0.0f, kInf, -kInf, std::numeric_limits<float>::quiet_NaN(), 1e-40f, -1e-40f};
  std::mt19937 random(7);
  std::normal_distribution<float> usual(0.0f, 4.0f);
  while (x.size() < n) {
    x.push_back(std::bit_cast<float>(static_cast<uint32_t>(random())));
    x.push_back(usual(random));
  }
  x.resize(n);
  return x;
}

std::vector<float> AsStep(const cpu::KernelTable& kernels, const cpu::ElementStep& step, const std::vector<float>& x) {
  std::vector<float> y(x.size());
  cpu::ElementStepsArgs args{};
  args.x = {x.data(), DataType::kFloat32, cpu::kNoPattern, 1.0f, 0.0f};
  args.y = y.data();
  args.y_type = DataType::kFloat32;
  args.n = x.size();
  args.steps = &step;
  args.count = 1;
  kernels.element_steps(args);
  return y;
}

cpu::ElementStep StepOf(Activation activation, const float* params) {
  cpu::ElementStep step{};
  step.kind = StepKind::kActivate;
  step.activation = activation;
  step.params = params;
  return step;
}

std::vector<float> Alone(const cpu::KernelTable& kernels, Activation activation, const float* params,
                         const std::vector<float>& x) {
  constexpr float kFactor = 1.0f;
  const cpu::Normalizer nothing;
  std::vector<float> y(x.size());
  cpu::ApplyArgs args;
  args.x = x.data();
  args.y = y.data();
  args.n = x.size();
  args.normalizers = &nothing;
  args.scale = {&kFactor, 0};
  args.bias = {&cpu::kNoBias, 0};
  args.params = params;
  kernels.apply[static_cast<int>(activation)](args);
  return y;
}

cpu::ElementStep PairOf(const cpu::Quantizer& quantizer) {
  cpu::ElementStep step{};
  step.kind = StepKind::kFakeQuantize;
  step.quantizer = &quantizer;
  return step;
}

void TestActivations(cpu::Isa isa) {
  const cpu::KernelTable& kernels = cpu::KernelsFor(isa);
  const float params[kMaxActivationParams] = {-1.5f, 3.25f};
  // Whole groups of vectors, single ones, and a part of one.
  for (const size_t n : {1, 5, 16, 63, 64, 200, 1023}) {
    const std::vector<float> x = Inputs(n);
    for (const Case& one : kCases) {
      const std::vector<float> y = AsStep(kernels, StepOf(one.activation, params), x);
      const std::vector<float> expected = Alone(kernels, one.activation, params, x);
      for (size_t i = 0; i < n; ++i) {
        const bool same = std::bit_cast<uint32_t>(y[i]) == std::bit_cast<uint32_t>(expected[i]);
        CHECK(same || (y[i] != y[i] && expected[i] != expected[i]), "%s %s of %a is %a, not %a", cpu::NameOf(isa),
              one.name, x[i], y[i], expected[i]);
      }
    }
  }
}

// Without the clamp the same comes of what it leaves as it is, and something else of the rest.
void TestUnclamped(const cpu::KernelTable& kernels, cpu::ElementStep step, float least, float most, const char* what) {
  std::mt19937 random(3);
  std::uniform_real_distribution<float> within(least, most);
  for (const size_t n : {1, 5, 16, 63, 64, 200, 1023}) {
    std::vector<float> x(n);
    for (float& each : x) each = within(random);
    x.front() = least;
    x.back() = most;
    step.unclamped = false;
    const std::vector<float> expected = AsStep(kernels, step, x);
    step.unclamped = true;
    const std::vector<float> y = AsStep(kernels, step, x);
    for (size_t i = 0; i < n; ++i) {
      CHECK(std::bit_cast<uint32_t>(y[i]) == std::bit_cast<uint32_t>(expected[i]), "%s of %a is %a, not %a", what, x[i],
            y[i], expected[i]);
    }
  }
}

void TestWithoutClamps(cpu::Isa isa) {
  const cpu::KernelTable& kernels = cpu::KernelsFor(isa);
  TestUnclamped(kernels, StepOf(Activation::kSigmoid, nullptr), -104.0f, 43.0f, cpu::NameOf(isa));
  cpu::Quantizer quantizer = cpu::QuantizerOf(0.0123f, 100.0f, 0.0f, 255.0f);
  quantizer.by_product = kernels.rounds_by_product(quantizer, 0.0f, 255.0f);
  CHECK(quantizer.by_product, "%s", cpu::NameOf(isa));
  cpu::ElementStep pair = PairOf(quantizer);
  TestUnclamped(kernels, pair, quantizer.least, quantizer.most, cpu::NameOf(isa));
  const std::vector<float> beyond = {2 * quantizer.least, 2 * quantizer.most};
  CHECK((AsStep(kernels, pair, beyond) == std::vector<float>{-100 * 0.0123f, 155 * 0.0123f}), "clamped");
  pair.unclamped = true;
  CHECK((AsStep(kernels, pair, beyond) == std::vector<float>{-200 * 0.0123f, 310 * 0.0123f}), "unclamped");
}

// Products with a reciprocal in two parts serve for nearly every scale; neither the reciprocal alone is near enough, nor one with a
// second part that is larger than a unit in its last place. (Every tie of some scales: tests/operators/test_pairs.py.)
void TestTheCheck(cpu::Isa isa) {
  const cpu::KernelTable& kernels = cpu::KernelsFor(isa);
  std::mt19937 random(6);
  std::uniform_real_distribution<float> scales(1e-5f, 1e-3f);
  int taken = 0;
  int refused = 0;
  for (int i = 0; i < 20; ++i) {
    cpu::Quantizer quantizer = cpu::QuantizerOf(scales(random), 0.0f, 0.0f, 65535.0f);
    taken += kernels.rounds_by_product(quantizer, 0.0f, 65535.0f);
    quantizer.rest = 0.0f;
    refused += !kernels.rounds_by_product(quantizer, 0.0f, 65535.0f);
    quantizer.rest = quantizer.inverse * 0x1p-22f;
    CHECK(!kernels.rounds_by_product(quantizer, 0.0f, 65535.0f), "%s: %a", cpu::NameOf(isa), quantizer.scale);
  }
  CHECK(taken >= 18 && refused >= 15, "%s: %d and %d of 20", cpu::NameOf(isa), taken, refused);
}

}  // namespace
}  // namespace normfuse::test

int main() {
  using namespace normfuse;
  for (int i = 0; i < cpu::kIsaCount; ++i) {
    const auto isa = static_cast<cpu::Isa>(i);
    if (!cpu::IsAvailable(isa) || cpu::KernelsFor(isa).element_steps == nullptr) continue;
    test::TestActivations(isa);
    test::TestWithoutClamps(isa);
    test::TestTheCheck(isa);
  }
  return test::ExitCode();
}
