// Random chains with data, the same for the same seed.
#pragma once

#include <cstdint>
#include <string>

#include "chain_harness.h"

namespace normfuse::test {

struct GeneratorLimits {
  int64_t max_elements = 20000;
  bool for_directml = false;  // only what DirectML has: its types, and pairs
  bool four_bit = true;
};

// Of even seeds the usual steps around a normalisation or none, of odd ones any steps before and behind, or with some chance only
// such as float32 does exactly up to a requantisation.
Case RandomChain(uint64_t seed, const GeneratorLimits& limits = {});

std::string Describe(const Case& c, uint64_t seed);

}  // namespace normfuse::test
