// Which instruction set the kernels use: what the processor and the operating system have, or what NORMFUSE_ISA forces.
#pragma once

#include "chain/result.h"

namespace normfuse::cpu {

enum class Isa { kBaseline, kAvx2, kAvx512, kNeon };

inline constexpr int kIsaCount = 4;

const char* NameOf(Isa isa);

// True if this library holds kernels for `isa` and this machine can run them.
bool IsAvailable(Isa isa);

// The best available instruction set, or the one that NORMFUSE_ISA names; an error lists the available ones.
Result SelectIsa(Isa* isa);

}  // namespace normfuse::cpu
