// What a test can tell and ask the fake Direct3D 12 and DirectML. The fake library exports FakeControl and FakeCounter.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <map>
#include <mutex>
#include <string>

#include "abi/com_abi.h"

namespace normfuse::test {

// Counters: "devices", "operators", "graphs", "initialisations", "dispatches", "submissions", "waits", "barriers",
// "bytes_up", "bytes_down", "buffers", "lists" (command lists and their allocators), "recordings", "live_objects",
// "descriptor_heaps", "calls" (that can fail), "violations".
// Settings: "feature_level", "unsupported_types", "adapters", "unified_memory" (1: yes, 2: coherent), "remove_device" (an
// HRESULT), "dispatches_until_removal", "hold_until_submissions" (the queue stands still until that many were counted),
// "fail_call" (the number of the call, as "calls" counts, that fails with "fail_code").
class FakeState {
 public:
  static FakeState& Get();  // not inline: each copy of the library has its own

  void Count(const std::string& name, int64_t by = 1) {
    {
      const std::lock_guard lock(mutex_);
      counters_[name] += by;
    }
    counted_.notify_all();
  }
  int64_t Counter(const std::string& name) {
    const std::lock_guard lock(mutex_);
    return counters_[name];
  }
  void Set(const std::string& name, int64_t value) {
    const std::lock_guard lock(mutex_);
    settings_[name] = value;
  }
  int64_t Setting(const std::string& name, int64_t otherwise) {
    const std::lock_guard lock(mutex_);
    const auto found = settings_.find(name);
    return found == settings_.end() ? otherwise : found->second;
  }

  // The next call of this name fails with the given code, once.
  void FailNext(const std::string& call, abi::HRESULT result) {
    const std::lock_guard lock(mutex_);
    failures_[call] = result;
  }
  // kOk, or the failure that was asked for.
  abi::HRESULT Enter(const std::string& call) {
    const std::lock_guard lock(mutex_);
    if (++counters_["calls"] == settings_["fail_call"]) return static_cast<abi::HRESULT>(settings_["fail_code"]);
    const auto found = failures_.find(call);
    if (found == failures_.end()) return abi::kOk;
    const abi::HRESULT result = found->second;
    failures_.erase(found);
    return result;
  }

  // Something that a real device would answer by corruption or removal. Counted, and printed.
  void Violation(const std::string& what) {
    Count("violations");
    std::fprintf(stderr, "fake DirectML: violation: %s\n", what.c_str());
  }
  // Waits until the counter has reached the value. A violation after five seconds.
  void WaitFor(const std::string& counter, int64_t value) {
    std::unique_lock lock(mutex_);
    const bool reached = counted_.wait_for(lock, std::chrono::seconds(5), [&] { return counters_[counter] >= value; });
    lock.unlock();
    if (!reached) Violation(counter + " did not reach " + std::to_string(value));
  }

 private:
  std::mutex mutex_;
  std::condition_variable counted_;
  std::map<std::string, int64_t> counters_;
  std::map<std::string, int64_t> settings_;
  std::map<std::string, abi::HRESULT> failures_;
};

}  // namespace normfuse::test

#define NORMFUSE_FAKE_ENTER(call) \
  if (const auto injected = ::normfuse::test::FakeState::Get().Enter(call); injected != 0) return injected

// Signatures of the exported functions. FakeControl("fail:CreateOperator", code) makes the next such call fail.
using FakeControlFunction = void (*)(const char* name, int64_t value);
using FakeCounterFunction = int64_t (*)(const char* name);
