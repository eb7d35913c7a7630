#include <cstdio>

#include "cpu/kernels/simd/isa.h"
#include "isa_functions.h"

namespace normfuse {

#if defined(__x86_64__)
namespace avx512 {
extern const test::IsaFunctions kIsaFunctions;
}
namespace avx2 {
extern const test::IsaFunctions kIsaFunctions;
}
#elif defined(__aarch64__)
namespace neon {
extern const test::IsaFunctions kIsaFunctions;
}
#endif
namespace baseline {
extern const test::IsaFunctions kIsaFunctions;
}

namespace test {

size_t AvailableIsas(IsaFunctions* list) {
  size_t count = 0;
  const auto add = [&](const IsaFunctions& functions, cpu::Isa isa) {
    if (cpu::IsAvailable(isa)) {
      list[count++] = functions;
    } else {
      std::printf("SKIPPED: this processor lacks %s\n", functions.isa);
    }
  };
#if defined(__x86_64__)
#ifndef NORMFUSE_WITHOUT_AVX512
  add(avx512::kIsaFunctions, cpu::Isa::kAvx512);
#endif
#ifndef NORMFUSE_WITHOUT_AVX2
  add(avx2::kIsaFunctions, cpu::Isa::kAvx2);
#endif
#elif defined(__aarch64__)
  add(neon::kIsaFunctions, cpu::Isa::kNeon);
#endif
  add(baseline::kIsaFunctions, cpu::Isa::kBaseline);
  return count;
}

}  // namespace test
}  // namespace normfuse
