#define NORMFUSE_ISA baseline
#include "cpu/kernels/kernels-inl.h"
