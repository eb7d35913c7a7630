// The few lines of test support that the native tests share: a check that reports and counts, and the exit code.
#pragma once

namespace normfuse::test {

// Reports the first failures only: a broken kernel would print millions.
[[gnu::format(printf, 3, 4)]] void Fail(const char* file, int line, const char* format, ...);

int Failures();

// 0, or 1 after printing how many checks failed.
int ExitCode();

}  // namespace normfuse::test

// CHECK(condition, "printf format", arguments...)
#define CHECK(condition, ...) \
  ((condition) ? (void)0 : ::normfuse::test::Fail(__FILE__, __LINE__, "CHECK(" #condition "): " __VA_ARGS__))
