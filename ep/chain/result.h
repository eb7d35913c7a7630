// The outcome of an operation inside the library. It becomes an OrtStatus once, at the ABI (abi/ort_host.h).
#pragma once

#include <string>
#include <utility>

namespace normfuse {

enum class ErrorCode : int {
  kOk = 0,
  kFail = 1,
  kInvalidArgument = 2,
  kRuntime = 6,
  kNotImplemented = 9,
  kEpFail = 11,
  kDeviceReset = 15,
};

class [[nodiscard]] Result {
 public:
  Result() = default;
  static Result Error(ErrorCode code, std::string message) { return Result(code, std::move(message)); }

  bool ok() const { return code_ == ErrorCode::kOk; }
  ErrorCode code() const { return code_; }
  const std::string& message() const { return message_; }

 private:
  Result(ErrorCode code, std::string message) : code_(code), message_(std::move(message)) {}

  ErrorCode code_ = ErrorCode::kOk;
  std::string message_;
};

}  // namespace normfuse

// Leaves the enclosing function with the error, if there is one.
#define NORMFUSE_RETURN_IF_ERROR(expression)             \
  do {                                                   \
    ::normfuse::Result normfuse_result_ = (expression);  \
    if (!normfuse_result_.ok()) return normfuse_result_; \
  } while (false)
