#include "ort.h"

#include <stdexcept>

#ifdef _WIN32
#include <windows.h>
#else
#include <dlfcn.h>
#endif

namespace host {
namespace {

// Positions in the function table; tests/packaging/ort_abi.toml has the measured ones. 7 to 9, 68 and 95 are from API 1.
enum Slot : size_t {
  kGetErrorMessage = 2,
  kCreateEnv = 3,
  kCreateSessionFromArray = 8,
  kRun = 9,
  kCreateSessionOptions = 10,
  kCreateTensorWithData = 49,
  kGetTensorMutableData = 51,
  kCreateCpuMemoryInfo = 69,
  kReleaseEnv = 92,
  kReleaseStatus = 93,
  kReleaseMemoryInfo = 94,
  kReleaseSession = 95,
  kReleaseValue = 96,
  kReleaseSessionOptions = 100,
  kAddSessionConfigEntry = 130,
  kRegisterCustomOpsLibrary = 228,
  kRegisterExecutionProviderLibrary = 301,
  kGetEpDevices = 303,
  kAppendExecutionProvider = 304,
  kGetKeyValue = 297,
  kEpDeviceName = 312,
  kEpDeviceMetadata = 314,
  kGetAssignment = 407,
  kSubgraphEpName = 408,
};
constexpr uint32_t kOldestApi = 24;
constexpr int kWarning = 2;

struct ApiBase {
  void* const* (*GetApi)(uint32_t version);
  const char* (*GetVersionString)();
};

ApiBase* LoadApiBase(const std::filesystem::path& library) {
#ifdef _WIN32
  HMODULE module = LoadLibraryExW(library.c_str(), nullptr, LOAD_WITH_ALTERED_SEARCH_PATH);
  if (!module) throw std::runtime_error("LoadLibraryEx failed: " + std::to_string(GetLastError()));
  void* entry = reinterpret_cast<void*>(GetProcAddress(module, "OrtGetApiBase"));
#else
  void* module = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!module) throw std::runtime_error(dlerror());
  void* entry = dlsym(module, "OrtGetApiBase");
#endif
  if (!entry) throw std::runtime_error("the library has no OrtGetApiBase");
  return reinterpret_cast<ApiBase* (*)()>(entry)();
}

}  // namespace

Runtime::Runtime(const std::filesystem::path& library) {
  const ApiBase* base = LoadApiBase(library);
  version_ = base->GetVersionString;
  table_ = base->GetApi(kOldestApi);
  if (!table_) throw std::runtime_error("this onnxruntime is older than 1.24");
  Call(kCreateEnv, kWarning, "host", &environment_);
}

Runtime::~Runtime() { Release(kReleaseEnv, environment_); }

std::string Runtime::version() const { return version_(); }

void Runtime::RegisterPlugin(const std::filesystem::path& library) {
  Call(kRegisterExecutionProviderLibrary, environment_, "normfuse", library.c_str());
}

void Runtime::Check(void* status) const {
  if (!status) return;
  const std::string message = Text(kGetErrorMessage, status);
  Release(kReleaseStatus, status);
  throw std::runtime_error(message);
}

Options::Options(Runtime& runtime) : runtime_(runtime) {
  runtime_.Call(kCreateSessionOptions, &options_);
  runtime_.Call(kAddSessionConfigEntry, options_, "session.record_ep_graph_assignment_info", "1");
}

Options::~Options() { runtime_.Release(kReleaseSessionOptions, options_); }

const void* Options::FindDevice(const std::string& backend) const {
  const void* const* devices = nullptr;
  size_t count = 0;
  runtime_.Call(kGetEpDevices, runtime_.environment(), &devices, &count);
  for (size_t i = 0; i < count; ++i) {
    if (std::string(kEpName) != runtime_.Text(kEpDeviceName, devices[i])) continue;
    const char* value = runtime_.Text(kGetKeyValue, runtime_.Get(kEpDeviceMetadata, devices[i]), "backend");
    if (value != nullptr && value == backend) return devices[i];
  }
  throw std::runtime_error("the execution provider has no device for backend=" + backend);
}

void Options::Use(const std::string& route, const std::filesystem::path& library, const EpOptions& ep_options) {
  if (route == "custom") {
    runtime_.Call(kRegisterCustomOpsLibrary, options_, library.c_str());
    return;
  }
  std::vector<const char*> keys, values;
  for (const auto& [key, value] : ep_options) {
    keys.push_back(key.c_str());
    values.push_back(value.c_str());
  }
  const auto backend = ep_options.find("backend");
  const void* device = FindDevice(backend == ep_options.end() ? "cpu" : backend->second);
  runtime_.Call(kAppendExecutionProvider, options_, runtime_.environment(), static_cast<const void* const*>(&device),
                size_t{1}, static_cast<const char* const*>(keys.data()), static_cast<const char* const*>(values.data()),
                keys.size());
}

Value::Value(Runtime& runtime, int type, const std::vector<int64_t>& dims, const std::vector<char>& data)
    : runtime_(&runtime) {
  void* memory = nullptr;
  runtime.Call(kCreateCpuMemoryInfo, 0, 0, &memory);
  runtime.Call(kCreateTensorWithData, memory, const_cast<char*>(data.data()), data.size(), dims.data(), dims.size(),
               type, &value_);
  runtime.Release(kReleaseMemoryInfo, memory);
}

Value::~Value() {
  if (value_) runtime_->Release(kReleaseValue, value_);
}

const void* Value::data() const {
  void* data = nullptr;
  runtime_->Call(kGetTensorMutableData, value_, &data);
  return data;
}

Session::Session(Runtime& runtime, const Options& options, const std::vector<char>& model) : runtime_(runtime) {
  runtime_.Call(kCreateSessionFromArray, runtime_.environment(), static_cast<const void*>(model.data()), model.size(),
                options.get(), &session_);
}

Session::~Session() { runtime_.Release(kReleaseSession, session_); }

void Session::RequireNodesOn(const std::string& ep_name) const {
  const void* const* subgraphs = nullptr;
  size_t count = 0;
  runtime_.Call(kGetAssignment, session_, &subgraphs, &count);
  for (size_t i = 0; i < count; ++i) {
    const char* name = nullptr;
    runtime_.Call(kSubgraphEpName, subgraphs[i], &name);
    if (name == ep_name) return;
  }
  throw std::runtime_error("no node was assigned to " + ep_name);
}

std::vector<Value> Session::Run(const std::vector<const char*>& input_names, const std::vector<Value>& inputs,
                                const std::vector<const char*>& output_names) {
  std::vector<void*> raw_inputs, raw_outputs(output_names.size());
  for (const Value& value : inputs) raw_inputs.push_back(value.get());
  runtime_.Call(kRun, session_, static_cast<void*>(nullptr), input_names.data(), raw_inputs.data(), inputs.size(),
                output_names.data(), output_names.size(), raw_outputs.data());
  std::vector<Value> outputs;
  outputs.reserve(raw_outputs.size());
  for (void* value : raw_outputs) outputs.emplace_back(runtime_, value);
  return outputs;
}

}  // namespace host
