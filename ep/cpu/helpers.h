// Whether other threads take a part of a call when they are asked to.
#pragma once

#include <atomic>
#include <cstdint>

#include "plan/execution.h"

namespace normfuse::cpu {

// ONNX Runtime does not tell how many threads a session has. With a single one, or while the others are busy or asleep,
// the caller does all parts of a call one after the other, each of which costs 0.1 us more than to go on with the one
// before. One of these belongs to each node, whose calls may run at the same time.
class Helpers {
 public:
  // Whether to do without: nobody has helped in the last calls. Now and then others are asked again.
  bool Absent();

  // ExecutionContext::ParallelFor, which takes note of who did it.
  Result ParallelFor(ExecutionContext& context, void (*task)(void* user, size_t index), size_t count, void* user);

 private:
  static constexpr uint32_t kEnough = 8;  // calls without help
  static constexpr uint32_t kAskAgain = kEnough + 64;
  std::atomic<uint32_t> alone_ = 0;
};

}  // namespace normfuse::cpu
