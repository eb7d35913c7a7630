// The vector layer on every instruction set that the machine has; the test itself is simd_test-inl.h.
#include <cstdio>

#include "check.h"
#include "isa_functions.h"

int main() {
  using namespace normfuse::test;
  IsaFunctions isas[kMostIsas];
  const size_t count = AvailableIsas(isas);
  for (size_t k = 0; k < count; ++k) {
    const int before = Failures();
    isas[k].test_simd();
    std::printf("%s: %d failures\n", isas[k].isa, Failures() - before);
  }
  return ExitCode();
}
