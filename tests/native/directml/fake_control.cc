#include "fake_control.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "com_object.h"

namespace normfuse::test {

FakeState& FakeState::Get() {
  static FakeState state;
  return state;
}

void FakeState::Count(const std::string& name, int64_t by) {
  {
    const std::lock_guard lock(mutex_);
    counters_[name] += by;
  }
  counted_.notify_all();
}

int64_t FakeState::Counter(const std::string& name) {
  const std::lock_guard lock(mutex_);
  return counters_[name];
}

void FakeState::Set(const std::string& name, int64_t value) {
  const std::lock_guard lock(mutex_);
  settings_[name] = value;
}

int64_t FakeState::Setting(const std::string& name, int64_t otherwise) {
  const std::lock_guard lock(mutex_);
  const auto found = settings_.find(name);
  return found == settings_.end() ? otherwise : found->second;
}

void FakeState::FailNext(const std::string& call, abi::HRESULT result) {
  const std::lock_guard lock(mutex_);
  failures_[call] = result;
}

abi::HRESULT FakeState::Enter(const std::string& call) {
  const std::lock_guard lock(mutex_);
  if (++counters_["calls"] == settings_["fail_call"]) return static_cast<abi::HRESULT>(settings_["fail_code"]);
  const auto found = failures_.find(call);
  if (found == failures_.end()) return abi::kOk;
  const abi::HRESULT result = found->second;
  failures_.erase(found);
  return result;
}

void FakeState::Violation(const std::string& what) {
  Count("violations");
  std::fprintf(stderr, "fake DirectML: violation: %s\n", what.c_str());
}

void FakeState::WaitFor(const std::string& counter, int64_t value) {
  std::unique_lock lock(mutex_);
  const bool reached = counted_.wait_for(lock, std::chrono::seconds(5), [&] { return counters_[counter] >= value; });
  lock.unlock();
  if (!reached) Violation(counter + " did not reach " + std::to_string(value));
}

}  // namespace normfuse::test

NORMFUSE_TEST_EXPORT void FakeControl(const char* name, int64_t value) {
  const std::string text = name;
  auto& state = normfuse::test::FakeState::Get();
  if (text.rfind("fail:", 0) == 0) {
    state.FailNext(text.substr(5), static_cast<normfuse::abi::HRESULT>(value));
  } else {
    state.Set(text, value);
  }
}

NORMFUSE_TEST_EXPORT int64_t FakeCounter(const char* name) { return normfuse::test::FakeState::Get().Counter(name); }
