#define NORMFUSE_ISA neon
#include "cpu/kernels-inl.h"
