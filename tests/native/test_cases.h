// The smallest test framework that does the job: TEST(name) { ... EXPECT(...) }, and a main that runs every test, or
// those whose name contains the first argument.
#pragma once

#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "check.h"

namespace normfuse::test {

struct NamedTest {
  const char* name;
  void (*run)();
};

inline std::vector<NamedTest>& Tests() {
  static std::vector<NamedTest> tests;
  return tests;
}

struct Register {
  Register(const char* name, void (*run)()) { Tests().push_back({name, run}); }
};

inline int RunAll(int argc, char** argv) {
  int run = 0;
  for (const NamedTest& test : Tests()) {
    if (argc > 1 && std::strstr(test.name, argv[1]) == nullptr) continue;
    const int before = Failures();
    test.run();
    ++run;
    std::printf("%s %s\n", Failures() == before ? "ok    " : "FAILED", test.name);
  }
  std::printf("%d tests, %d failures\n", run, Failures());
  return Failures() == 0 && run > 0 ? 0 : 1;
}

}  // namespace normfuse::test

#define TEST(name)                                                        \
  static void name();                                                     \
  static const ::normfuse::test::Register name##_registered(#name, name); \
  static void name()

#define EXPECT(condition, what) \
  ((condition) ? (void)0 : ::normfuse::test::Fail(__FILE__, __LINE__, "%s: %s", #condition, std::string(what).c_str()))

#define NORMFUSE_TEST_MAIN \
  int main(int argc, char** argv) { return ::normfuse::test::RunAll(argc, argv); }
