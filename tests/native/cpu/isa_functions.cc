// Compiled once per instruction set (NORMFUSE_ISA), see isa_functions.h.
#include "isa_functions.h"

#include <type_traits>

#include "cpu/kernels/activations-inl.h"
#include "simd_test-inl.h"
#include "spec/activation_list.h"

namespace normfuse::NORMFUSE_ISA {
namespace {

template <typename Functor>
void Run(const float* params, const float* x, const float* slope, float* y, size_t n) {
  const Functor f(params);
  for (size_t i = 0; i < n; i += kLanes) {
    if constexpr (std::is_invocable_v<Functor, V, V>) {
      Store(y + i, f(Load(x + i), Load(slope + i)));
    } else {
      Store(y + i, f(Load(x + i)));
    }
  }
}

// GELU times factor, as it follows a normalisation where 8 bits are stored.
void RunScaled(float factor, const float* x, float* y, size_t n) {
  const std::conditional_t<kHasTables, ScaledTimesDistribution<GeluTables>, GeluOfBytes> f(factor);
  for (size_t i = 0; i < n; i += kLanes) Store(y + i, f(Load(x + i)));
}

// The same where floats are stored.
void RunOfRows(const float* x, float* y, size_t n) {
  for (size_t i = 0; i < n; i += kLanes) Store(y + i, TimesNormalDistribution<GeluOfRows>(Load(x + i)));
}

#define NORMFUSE_RUN(name, kernel) {#name, Run<kernel>},
constexpr test::Activation kFunctions[] = {NORMFUSE_FOR_EACH_ACTIVATION(NORMFUSE_RUN)};
#undef NORMFUSE_RUN

#define NORMFUSE_TEXT_(x) #x
#define NORMFUSE_TEXT(x) NORMFUSE_TEXT_(x)

}  // namespace

extern const test::IsaFunctions kIsaFunctions;
const test::IsaFunctions kIsaFunctions = {NORMFUSE_TEXT(NORMFUSE_ISA),
                                          kFunctions,
                                          sizeof(kFunctions) / sizeof(kFunctions[0]),
                                          kLanes,
                                          TestSimd,
                                          RunScaled,
                                          RunOfRows};

}  // namespace normfuse::NORMFUSE_ISA
