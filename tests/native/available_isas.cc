#include <cstdio>

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
  [[maybe_unused]] const auto add = [&](const IsaFunctions& functions, bool available) {
    if (available) {
      list[count++] = functions;
    } else {
      std::printf("SKIPPED: this processor lacks %s\n", functions.isa);
    }
  };
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  add(avx512::kIsaFunctions, avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                                 __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"));
  add(avx2::kIsaFunctions, avx2);
#elif defined(__aarch64__)
  add(neon::kIsaFunctions, true);
#endif
  add(baseline::kIsaFunctions, true);
  return count;
}

}  // namespace test
}  // namespace normfuse
