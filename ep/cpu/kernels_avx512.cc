#define NORMFUSE_ISA avx512
#include "cpu/kernels-inl.h"
