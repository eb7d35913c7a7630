// What a test can tell and ask the fake Direct3D 12 and DirectML. The fake library exports FakeControl and FakeCounter.
#pragma once

#include <condition_variable>
#include <cstdint>
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
  static FakeState& Get();

  void Count(const std::string& name, int64_t by = 1);
  int64_t Counter(const std::string& name);
  void Set(const std::string& name, int64_t value);
  int64_t Setting(const std::string& name, int64_t otherwise);

  // The next call of this name fails with the given code, once.
  void FailNext(const std::string& call, abi::HRESULT result);
  // kOk, or the failure that was asked for.
  abi::HRESULT Enter(const std::string& call);

  // Something that a real device would answer by corruption or removal. Counted, and printed.
  void Violation(const std::string& what);
  // Waits until the counter has reached the value. A violation after five seconds.
  void WaitFor(const std::string& counter, int64_t value);

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
