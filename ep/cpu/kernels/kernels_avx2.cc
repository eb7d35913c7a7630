#define NORMFUSE_ISA avx2
#include "cpu/kernels/kernels-inl.h"
