// Chains drawn at random over everything that chain.h describes, on every instruction set, against the formula in double.
#include <cstdlib>

#include "chain_generator.h"
#include "chain_harness.h"
#include "test_cases.h"

namespace normfuse::test {
namespace {

// NORMFUSE_RANDOM_CASES=n runs more, NORMFUSE_RANDOM_SEED=s one.
TEST(RandomChainsOnEveryInstructionSet) {
  const char* cases = std::getenv("NORMFUSE_RANDOM_CASES");
  const char* seed_text = std::getenv("NORMFUSE_RANDOM_SEED");
  const uint64_t count = seed_text != nullptr ? 1 : cases != nullptr ? std::strtoull(cases, nullptr, 10) : 500;
  const uint64_t first = seed_text != nullptr ? std::strtoull(seed_text, nullptr, 10) : 1;
  for (const std::string& isa : AvailableIsas()) {
    ForceIsa(isa);
    uint64_t left_out = 0;
    for (uint64_t seed = first; seed < first + count; ++seed) {
      const Case c = RandomChain(seed);
      if (Overflows(c)) {
        ++left_out;
        continue;
      }
      RunAndCompare(c, seed % 4 == 0 ? 2 : 1, isa + " " + Describe(c, seed));
    }
    EXPECT(left_out * 10 <= count + 9, isa + ": too many chains overflow: " + std::to_string(left_out));
  }
}

}  // namespace
}  // namespace normfuse::test

NORMFUSE_TEST_MAIN
