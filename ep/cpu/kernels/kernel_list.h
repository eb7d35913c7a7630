// The kernels that read and write tensors where they lie, one row each. The tables of kernels are made of these lists, for
// every instruction set; tests and bench_kernels go through them.
#pragma once

#include "cpu/kernels/kernels.h"

// What an activation's kernels are made for.
//   Every         all activations
//   Following     those that follow a normalisation most: they have kernels for rows side by side, too
//   OnlyIdentity  none
#define NORMFUSE_FOLLOWING_ACTIVATIONS(row) row(Identity) row(Relu) row(Gelu) row(Swish)

// Those whose result is a gate, or is gated by another tensor: SwiGLU, GeGLU, the cells of an LSTM.
#define NORMFUSE_GATED_ACTIVATIONS(row) row(Gelu) row(GeluTanh) row(Swish) row(Sigmoid) row(Tanh)

// Those that are steps among quantised tensors, in registers with what is around them: what follows convolutions, and the
// gates of HardSwish and SiLU.
#define NORMFUSE_STEP_ACTIVATIONS(row) row(Clip) row(HardSigmoid) row(Relu) row(Sigmoid)

// Second pass: what is read (one tensor, the sum of two, or that and a bias), types of X and Y, activations. Whatever is
// not here passes through blocks of float32; sums of 16 bits are kept as such by the first pass. Of bfloat16, which ONNX
// Runtime has hardly any operators of on the CPU, an activation passes through them, too.
#define NORMFUSE_SECOND_PASS_KERNELS(row)                                                              \
  row(Single, Float32, Float32, Every) row(Single, Float32, Float16, Following)                        \
      row(Single, Float32, Bfloat16, OnlyIdentity) row(Single, Float32, Int8, Following)               \
          row(Single, Float32, Uint8, Following) row(Single, Float16, Float16, Following)              \
              row(Single, Bfloat16, Bfloat16, OnlyIdentity) row(Single, Int8, Int8, Following)         \
                  row(Single, Uint8, Uint8, Following) row(Single, Int8, Float32, OnlyIdentity)        \
                      row(Single, Uint8, Float32, OnlyIdentity) row(Pair, Float32, Float32, Following) \
                          row(BiasedPair, Float32, Float32, OnlyIdentity)

// First pass: what is read, the type of X, and the function.
#define NORMFUSE_FIRST_PASS_KERNELS(row)                                                                       \
  row(Single, Float32, RowSums) row(Single, Float16, RowSums) row(Single, Bfloat16, RowSums)                   \
      row(Single, Int16, RowSums) row(Single, Uint16, RowSums) row(Single, Int8, RowSumsOfBytes)               \
          row(Single, Uint8, RowSumsOfBytes) row(Pair, Float32, RowSumsOfSum) row(Pair, Float16, RowSumsOfSum) \
              row(BiasedPair, Float32, RowSumsOfSum) row(BiasedPair, Float16, RowSumsOfSum)

// Both passes of rows that have nothing unusual, without leaving the kernel: how, the function, what is read, types of X
// and Y, and the activation. Together where there is so little arithmetic that the time between rows counts, overlapping
// where they pass through memory and arithmetic takes less. Not on the baseline.
#define NORMFUSE_BOTH_PASSES_KERNELS(row)                                               \
  row(Together, BothPasses, Single, Float32, Float32, Identity)                         \
      row(Together, BothPasses, Pair, Float32, Float32, Identity)                       \
          row(Overlapping, OverlappingPasses, Single, Float32, Float32, Identity)       \
              row(Overlapping, OverlappingPasses, Single, Float32, Float32, Relu)       \
                  row(Overlapping, OverlappingPasses, Pair, Float32, Float32, Identity) \
                      row(Overlapping, OverlappingPasses, Single, Float16, Float16, Identity)

namespace normfuse::cpu {

enum class Activations { kEvery, kFollowing, kOnlyIdentity };

struct SecondPassKernel {
  SumKind operands;
  DataType x;
  DataType y;
  Activations activations;
};

inline constexpr SecondPassKernel kSecondPassKernels[] = {
#define NORMFUSE_ROW(operands, x, y, activations) \
  {SumKind::k##operands, DataType::k##x, DataType::k##y, Activations::k##activations},
    NORMFUSE_SECOND_PASS_KERNELS(NORMFUSE_ROW)
#undef NORMFUSE_ROW
};

}  // namespace normfuse::cpu
