#define NORMFUSE_ISA avx512
#include "cpu/kernels/kernels-inl.h"
