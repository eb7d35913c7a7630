// What isa_functions.cc compiles once per instruction set for the tests: every activation of the table as a function over arrays, in its order, and
// the self-test of the vector layer.
#pragma once

#include <cstddef>

namespace normfuse::test {

struct Activation {
  const char* name;
  // y[i] = f(x[i]) for n elements, a multiple of 16; slope is read by PRelu only.
  void (*run)(const float* params, const float* x, const float* slope, float* y, size_t n);
};

struct IsaFunctions {
  const char* isa;
  const Activation* activations;
  size_t count;
  size_t lanes;
  void (*test_simd)();  // reports failures through check.h
  // GELU as it follows a normalisation: times factor, where 8 bits are stored, and where floats are.
  void (*scaled_gelu)(float factor, const float* x, float* y, size_t n);
  void (*gelu_of_rows)(const float* x, float* y, size_t n);
};

// The instruction sets that this program holds and this processor has, best first; prints those it lacks.
size_t AvailableIsas(IsaFunctions* list);
constexpr size_t kMostIsas = 4;

}  // namespace normfuse::test
