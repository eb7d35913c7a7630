#include "cpu/kernels/kernels.h"

namespace normfuse {
// Each kernels_<isa>.cc defines one of these.
namespace avx512 {
const cpu::KernelTable& Kernels();
}
namespace avx2 {
const cpu::KernelTable& Kernels();
}
namespace baseline {
const cpu::KernelTable& Kernels();
}
namespace neon {
const cpu::KernelTable& Kernels();
}
}  // namespace normfuse

namespace normfuse::cpu {

const KernelTable& KernelsFor(Isa isa) {
  switch (isa) {
#if defined(__x86_64__) || defined(_M_X64)
#ifndef NORMFUSE_WITHOUT_AVX512
    case Isa::kAvx512:
      return avx512::Kernels();
#endif
#ifndef NORMFUSE_WITHOUT_AVX2
    case Isa::kAvx2:
      return avx2::Kernels();
#endif
#elif defined(__aarch64__) || defined(_M_ARM64)
    case Isa::kNeon:
      return neon::Kernels();
#endif
    default:
      return baseline::Kernels();
  }
}

}  // namespace normfuse::cpu
