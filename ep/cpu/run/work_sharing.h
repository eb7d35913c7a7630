// Sharing the work of a call between the threads of a session, if it has more than one.
#pragma once

#include <atomic>
#include <cstdint>

#include "chain/execution.h"

namespace normfuse::cpu {

// ONNX Runtime does not tell how many threads a session has. With a single one the caller does all parts of a call one
// after the other, each of which costs 0.1 us more than to go on with the one before. One of these belongs to each node,
// whose calls may run at the same time.
class WorkSharing {
 public:
  // How many parts to make of a call that is worth `threads`: `most`, or 1 while no other thread has ever taken a part. Now and
  // then they are asked again, so many times that threads that sleep have the time to wake up.
  int64_t PartsFor(int threads, int64_t most) { return threads == 1 || HasNoThreads() ? 1 : most; }

  // Calls run(part) for each part, a single one at once, others on the session's threads, and takes note of who did it.
  template <class Run>
  Result ForEachPart(ExecutionContext& context, int64_t parts, const Run& run) {
    if (parts == 1) {
      run(0);
      return {};
    }
    const auto task = [](void* user, size_t part) { (*static_cast<const Run*>(user))(static_cast<int64_t>(part)); };
    return ParallelFor(context, task, static_cast<size_t>(parts), const_cast<Run*>(&run));
  }

 private:
  bool HasNoThreads();
  Result ParallelFor(ExecutionContext& context, void (*task)(void* user, size_t index), size_t count, void* user);

  // Calls. A thread that sleeps has been seen to need 0.1 ms; the work of a call that is shared takes 0.01 ms and more.
  static constexpr uint32_t kEnough = 64;
  static constexpr uint32_t kAskAgain = kEnough + 4096;
  std::atomic<bool> present_ = false;  // another thread has taken a part
  std::atomic<uint32_t> alone_ = 0;    // calls since others were first asked, or last again
};

// Where a part of `count` things begins, and the one before it ends.
inline int64_t BeginOfPart(int64_t part, int64_t parts, int64_t count) { return count * part / parts; }

}  // namespace normfuse::cpu
