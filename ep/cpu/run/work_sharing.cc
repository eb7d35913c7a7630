#include "cpu/run/work_sharing.h"

#include <thread>

namespace normfuse::cpu {
namespace {

struct Watched {
  void (*task)(void* user, size_t index);
  void* user;
  std::thread::id caller = std::this_thread::get_id();
  std::atomic<bool> shared = false;
};

void RunWatched(void* user, size_t index) {
  auto& watched = *static_cast<Watched*>(user);
  if (std::this_thread::get_id() != watched.caller) watched.shared.store(true, std::memory_order_relaxed);
  watched.task(watched.user, index);
}

}  // namespace

bool WorkSharing::HasNoThreads() {
  if (present_.load(std::memory_order_relaxed) || alone_.load(std::memory_order_relaxed) < kEnough) return false;
  if (alone_.fetch_add(1, std::memory_order_relaxed) + 1 < kAskAgain) return true;
  alone_.store(0, std::memory_order_relaxed);
  return false;
}

Result WorkSharing::ParallelFor(ExecutionContext& context, void (*task)(void* user, size_t index), size_t count,
                                void* user) {
  Watched watched{task, user};
  NORMFUSE_RETURN_IF_ERROR(context.ParallelFor(RunWatched, count, &watched));
  if (watched.shared.load(std::memory_order_relaxed)) present_.store(true, std::memory_order_relaxed);
  alone_.fetch_add(1, std::memory_order_relaxed);
  return {};
}

}  // namespace normfuse::cpu
