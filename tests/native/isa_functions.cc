// Compiled once per instruction set (NORMFUSE_ISA), see isa_functions.h.
#include "isa_functions.h"

#include "cpu/activations-inl.h"
#include "simd_test-inl.h"

namespace normfuse::NORMFUSE_ISA {
namespace {

template <typename Functor>
void Run(const float* params, const float* x, const float*, float* y, size_t n) {
  const Functor f(params);
  for (size_t i = 0; i < n; i += kLanes) Store(y + i, f(Load(x + i)));
}

template <>
void Run<PRelu>(const float* params, const float* x, const float* slope, float* y, size_t n) {
  const PRelu f(params);
  for (size_t i = 0; i < n; i += kLanes) Store(y + i, f(Load(x + i), Load(slope + i)));
}

// GELU times factor, as it follows a normalisation.
template <typename Tables>
void RunScaled(float factor, const float* x, float* y, size_t n) {
  if constexpr (kHasExp2Table) {
    const ScaledTimesDistribution<Tables> f(factor);
    for (size_t i = 0; i < n; i += kLanes) Store(y + i, f(Load(x + i)));
  } else {
    for (size_t i = 0; i < n; i += kLanes) Store(y + i, TimesNormalDistribution<false>(Load(x + i)) * Set(factor));
  }
}

constexpr test::Activation kActivations[] = {
    {"Identity", Run<Identity>},
    {"Relu", Run<Relu>},
    {"LeakyRelu", Run<LeakyRelu>},
    {"PRelu", Run<PRelu>},
    {"Elu", Run<Elu>},
    {"Celu", Run<Celu>},
    {"Selu", Run<Selu>},
    {"Gelu", Run<Gelu>},
    {"GeluTanh", Run<GeluTanh>},
    {"Swish", Run<Swish>},
    {"HardSwish", Run<HardSwish>},
    {"HardSigmoid", Run<HardSigmoid>},
    {"Sigmoid", Run<Sigmoid>},
    {"Tanh", Run<Tanh>},
    {"ScaledTanh", Run<ScaledTanh>},
    {"Softplus", Run<Softplus>},
    {"ParametricSoftplus", Run<ParametricSoftplus>},
    {"Softsign", Run<Softsign>},
    {"ThresholdedRelu", Run<ThresholdedRelu>},
    {"Shrink", Run<Shrink>},
    {"Mish", Run<Mish>},
    {"Clip", Run<Clip>},
    {"Linear", Run<Linear>},
};

#define NORMFUSE_TEXT_(x) #x
#define NORMFUSE_TEXT(x) NORMFUSE_TEXT_(x)

}  // namespace

extern const test::IsaFunctions kIsaFunctions;
const test::IsaFunctions kIsaFunctions = {
    NORMFUSE_TEXT(NORMFUSE_ISA), kActivations, sizeof(kActivations) / sizeof(kActivations[0]), kLanes, TestSimd,
    RunScaled<GeluTables>};

}  // namespace normfuse::NORMFUSE_ISA
