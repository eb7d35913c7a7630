#include "cpu/kernels/simd/isa.h"

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>

#include "chain/execution.h"

#if defined(__x86_64__) || defined(_M_X64)
#define NORMFUSE_X86_64 1
#include <cpuid.h>
#endif

namespace normfuse::cpu {
namespace {

// The fastest instruction set first.
constexpr Isa kOrder[] = {Isa::kNeon, Isa::kAvx512, Isa::kAvx2, Isa::kBaseline};
constexpr const char* kNames[kIsaCount] = {"baseline", "avx2", "avx512", "neon"};  // by Isa

#ifdef NORMFUSE_X86_64

struct X86Features {
  bool avx2 = false;
  bool avx512 = false;
};

// Which register files the operating system saves: bits of XCR0.
uint64_t SavedStates() {
  uint32_t low = 0;
  uint32_t high = 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (static_cast<uint64_t>(high) << 32) | low;
}

X86Features DetectX86() {
  constexpr uint32_t kFma = 1u << 12, kOsXsave = 1u << 27, kAvx = 1u << 28, kF16c = 1u << 29;           // leaf 1, ecx
  constexpr uint32_t kAvx2 = 1u << 5, kAvx512F = 1u << 16, kAvx512Dq = 1u << 17, kAvx512Bw = 1u << 30;  // leaf 7, ebx
  constexpr uint32_t kAvx512Vl = 1u << 31;
  constexpr uint64_t kYmmState = 0x6, kZmmState = 0xe6;

  X86Features features;
  uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx)) return features;
  constexpr uint32_t kNeeded1 = kFma | kOsXsave | kAvx | kF16c;
  if ((ecx & kNeeded1) != kNeeded1) return features;
  if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) return features;
  const uint64_t states = SavedStates();
  features.avx2 = (ebx & kAvx2) != 0 && (states & kYmmState) == kYmmState;
  constexpr uint32_t kNeeded7 = kAvx512F | kAvx512Dq | kAvx512Bw | kAvx512Vl;
  features.avx512 = features.avx2 && (ebx & kNeeded7) == kNeeded7 && (states & kZmmState) == kZmmState;
#ifdef NORMFUSE_WITHOUT_AVX512  // see NORMFUSE_KERNELS in CMakeLists.txt
  features.avx512 = false;
#endif
#ifdef NORMFUSE_WITHOUT_AVX2
  features.avx2 = false;
#endif
  return features;
}

#endif

}  // namespace

Result SelectIsa(Isa* isa) {
  const char* wanted = std::getenv("NORMFUSE_ISA");
  std::string available;
  for (Isa candidate : kOrder) {
    if (!IsAvailable(candidate)) continue;
    if (wanted == nullptr || *wanted == '\0' || std::strcmp(wanted, NameOf(candidate)) == 0) {
      *isa = candidate;
      return {};
    }
    available += (available.empty() ? "" : ", ") + std::string(NameOf(candidate));
  }
  return Result::Error(ErrorCode::kInvalidArgument, "The environment variable NORMFUSE_ISA is '" + std::string(wanted) +
                                                        "'; this machine has: " + available +
                                                        ". Set it to one of these, or unset it.");
}

const char* NameOf(Isa isa) { return kNames[static_cast<int>(isa)]; }

bool IsAvailable(Isa isa) {
#ifdef NORMFUSE_X86_64
  static const X86Features features = DetectX86();
  switch (isa) {
    case Isa::kAvx512:
      return features.avx512;
    case Isa::kAvx2:
      return features.avx2;
    default:
      return isa == Isa::kBaseline;
  }
#elif defined(__aarch64__) || defined(_M_ARM64)
  return isa == Isa::kNeon || isa == Isa::kBaseline;
#else
  return isa == Isa::kBaseline;
#endif
}

}  // namespace normfuse::cpu

namespace normfuse {

Result SelectedIsa(const char** name) {
  cpu::Isa isa = cpu::Isa::kBaseline;
  NORMFUSE_RETURN_IF_ERROR(cpu::SelectIsa(&isa));
  *name = cpu::NameOf(isa);
  return {};
}

}  // namespace normfuse
