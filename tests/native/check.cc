#include "check.h"

#include <atomic>
#include <cstdarg>
#include <cstdio>

namespace normfuse::test {
namespace {

std::atomic<int> failures{0};

}  // namespace

void Fail(const char* file, int line, const char* format, ...) {
  constexpr int kReported = 50;
  const int count = ++failures;
  if (count > kReported) return;
  std::fprintf(stderr, "%s:%d: ", file, line);
  va_list arguments;
  va_start(arguments, format);
  std::vfprintf(stderr, format, arguments);
  va_end(arguments);
  std::fprintf(stderr, "\n");
  if (count == kReported) std::fprintf(stderr, "(further failures are only counted)\n");
}

int Failures() { return failures; }

int ExitCode() {
  if (failures != 0) std::fprintf(stderr, "%d checks failed\n", Failures());
  return failures == 0 ? 0 : 1;
}

}  // namespace normfuse::test
