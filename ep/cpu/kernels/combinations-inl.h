// What a step with an operand makes of d and it, one functor a row of ep/spec/operators.toml, named by its `kernel`.
// Included once per instruction set, after cpu/kernels/simd/simd.h.
#pragma once

#include "cpu/kernels/simd/simd.h"

namespace normfuse::NORMFUSE_ISA {

struct Sum {
  NORMFUSE_INLINE V operator()(V d, V operand) const { return d + operand; }
};

struct Product {
  NORMFUSE_INLINE V operator()(V d, V operand) const { return d * operand; }
};

struct Quotient {
  NORMFUSE_INLINE V operator()(V d, V operand) const { return d / operand; }
};

}  // namespace normfuse::NORMFUSE_ISA
