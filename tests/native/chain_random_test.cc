// Chains drawn at random over everything that chain.h describes, on every instruction set, against the formula in double.
#include <cstdlib>

#include "chain_generator.h"
#include "chain_harness.h"
#include "test_cases.h"

namespace normfuse::test {
namespace {

void RunRandom(const std::string& isa, uint64_t first, uint64_t count) {
  ForceIsa(isa);
  for (uint64_t seed = first; seed < first + count; ++seed) {
    const Case c = RandomChain(seed);
    if (Overflows(c)) continue;
    RunAndCompare(c, seed % 4 == 0 ? 2 : 1, isa + " " + Describe(c, seed));
  }
}

void RunRandomSteps(const std::string& isa, uint64_t first, uint64_t count) {
  ForceIsa(isa);
  for (uint64_t seed = first; seed < first + count; ++seed) {
    const Case c = RandomSteps(seed);
    if (Overflows(c)) continue;
    RunAndCompare(c, seed % 4 == 0 ? 2 : 1, isa + " " + DescribeSteps(c, seed));
  }
}

// NORMFUSE_RANDOM_CASES=n runs more, NORMFUSE_RANDOM_SEED=s one.
void OnEveryInstructionSet(void (*run)(const std::string& isa, uint64_t first, uint64_t count)) {
  const char* cases = std::getenv("NORMFUSE_RANDOM_CASES");
  const char* seed = std::getenv("NORMFUSE_RANDOM_SEED");
  const uint64_t count = seed != nullptr ? 1 : cases != nullptr ? std::strtoull(cases, nullptr, 10) : 250;
  for (const std::string& isa : AvailableIsas()) {
    run(isa, seed != nullptr ? std::strtoull(seed, nullptr, 10) : 1, count);
  }
}

TEST(RandomChainsOnEveryInstructionSet) { OnEveryInstructionSet(RunRandom); }
TEST(RandomStepsOnEveryInstructionSet) { OnEveryInstructionSet(RunRandomSteps); }

}  // namespace
}  // namespace normfuse::test

NORMFUSE_TEST_MAIN
