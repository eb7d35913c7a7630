#define NORMFUSE_ISA neon
#include "cpu/kernels/kernels-inl.h"
