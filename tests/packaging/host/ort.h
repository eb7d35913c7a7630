// The few calls of ONNX Runtime's C API that a host needs, as small owning classes. Errors are exceptions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace host {

inline constexpr const char* kEpName = "NormFuseExecutionProvider";
inline constexpr int kFloat = 1, kInt8 = 3;

// A loaded ONNX Runtime with one environment.
class Runtime {
 public:
  explicit Runtime(const std::filesystem::path& library);
  ~Runtime();
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  std::string version() const;
  void RegisterPlugin(const std::filesystem::path& library);
  void* environment() const { return environment_; }

  // Calls slot `index`, whose function takes `arguments` and returns a status; a failure becomes an exception.
  template <typename... Arguments>
  void Call(size_t index, Arguments... arguments) const {
    Check(reinterpret_cast<void* (*)(Arguments...)>(table_[index])(arguments...));
  }
  // Calls slot `index`, a release function.
  void Release(size_t index, void* object) const { reinterpret_cast<void (*)(void*)>(table_[index])(object); }
  // Calls slot `index`, a getter that cannot fail: of a string, or of an object.
  template <typename... Arguments>
  const char* Text(size_t index, Arguments... arguments) const {
    return reinterpret_cast<const char* (*)(Arguments...)>(table_[index])(arguments...);
  }
  const void* Get(size_t index, const void* object) const {
    return reinterpret_cast<const void* (*)(const void*)>(table_[index])(object);
  }

 private:
  void Check(void* status) const;

  const char* (*version_)() = nullptr;
  void* const* table_ = nullptr;
  void* environment_ = nullptr;
};

// Option of the execution provider -> value, in UTF-8.
using EpOptions = std::map<std::string, std::string>;

class Options {
 public:
  explicit Options(Runtime& runtime);
  ~Options();
  Options(const Options&) = delete;
  Options& operator=(const Options&) = delete;

  // "plugin": the execution provider, with its options; "custom": the custom operators of `library`.
  void Use(const std::string& route, const std::filesystem::path& library, const EpOptions& ep_options);
  void* get() const { return options_; }

 private:
  // The execution provider's device whose metadata names this backend: a machine with a GPU has one for each.
  const void* FindDevice(const std::string& backend) const;

  Runtime& runtime_;
  void* options_ = nullptr;
};

class Value {
 public:
  // Of the caller's data, which must outlive the value.
  Value(Runtime& runtime, int type, const std::vector<int64_t>& dims, const std::vector<char>& data);
  Value(Runtime& runtime, void* owned) : runtime_(&runtime), value_(owned) {}
  ~Value();
  Value(Value&& other) noexcept : runtime_(other.runtime_), value_(other.value_) { other.value_ = nullptr; }
  Value& operator=(Value&&) = delete;

  void* get() const { return value_; }
  const void* data() const;

 private:
  Runtime* runtime_;
  void* value_ = nullptr;
};

class Session {
 public:
  Session(Runtime& runtime, const Options& options, const std::vector<char>& model);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // Throws when the session's assignment record has no node on this execution provider.
  void RequireNodesOn(const std::string& ep_name) const;
  std::vector<Value> Run(const std::vector<const char*>& input_names, const std::vector<Value>& inputs,
                         const std::vector<const char*>& output_names);

 private:
  Runtime& runtime_;
  void* session_ = nullptr;
};

}  // namespace host
