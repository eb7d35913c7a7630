#include "fake_judge.h"

#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <sstream>
#include <string>

#include "fake_control.h"
#include "stand_in_device.h"

#if defined(__linux__)
#include <dlfcn.h>
#endif

namespace normfuse::test {
namespace {

using namespace abi;

#if defined(__linux__)
IDMLDevice* OpenJudge(const std::string& files) {
  void* library = nullptr;
  std::stringstream list(files);
  for (std::string file; std::getline(list, file, ':');) {
    library = dlopen(file.c_str(), RTLD_NOW | RTLD_GLOBAL);
    if (library == nullptr) std::fprintf(stderr, "fake DirectML: %s\n", dlerror());
  }
  if (library == nullptr) return nullptr;
  const auto create = reinterpret_cast<DMLCreateDevice1Function>(dlsym(library, "DMLCreateDevice1"));
  void* device = nullptr;
  if (create == nullptr || create(new StandInDevice(true), DML_CREATE_DEVICE_FLAG_NONE, DML_FEATURE_LEVEL_2_1,
                                  IDMLDevice::kIid, &device) != kOk) {
    return nullptr;
  }
  return static_cast<IDMLDevice*>(device);
}
#else
IDMLDevice* OpenJudge(const std::string&) { return nullptr; }
#endif

}  // namespace

bool MicrosoftAccepts(const DML_OPERATOR_DESC& desc) {
  const char* files = std::getenv("NORMFUSE_ASK_DIRECTML");
  if (files == nullptr) return true;
  static std::mutex mutex;
  static std::map<std::string, IDMLDevice*> judges;
  const std::lock_guard lock(mutex);
  const auto [judge, is_new] = judges.try_emplace(files, nullptr);
  if (is_new) judge->second = OpenJudge(files);
  if (judge->second == nullptr) {
    FakeState::Get().Violation(std::string("no library to ask: ") + files);
    return false;
  }
  void* op = nullptr;
  const HRESULT result = judge->second->CreateOperator(&desc, IDMLOperator::kIid, &op);
  if (result != kOk) return false;
  static_cast<IDMLOperator*>(op)->Release();
  FakeState::Get().Count("accepted_by_microsoft");
  return true;
}

}  // namespace normfuse::test
