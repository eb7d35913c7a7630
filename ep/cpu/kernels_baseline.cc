#define NORMFUSE_ISA baseline
#include "cpu/kernels-inl.h"
