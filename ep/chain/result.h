// The outcome of an operation inside the library. It becomes an OrtStatus once, at the ABI (abi/ort_host.h).
#pragma once

#include <memory>
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

// Empty where all went well: every call of a node returns many of these.
class [[nodiscard]] Result {
 public:
  Result() = default;
  static Result Error(ErrorCode code, std::string message) {
    Result result;
    result.failure_ = std::make_shared<const Failure>(Failure{code, std::move(message)});
    return result;
  }

  bool ok() const { return failure_ == nullptr; }
  ErrorCode code() const { return ok() ? ErrorCode::kOk : failure_->code; }
  const std::string& message() const {
    static const std::string nothing;
    return ok() ? nothing : failure_->message;
  }

 private:
  struct Failure {
    ErrorCode code;
    std::string message;
  };

  std::shared_ptr<const Failure> failure_;
};

}  // namespace normfuse

// Leaves the enclosing function with the error, if there is one.
#define NORMFUSE_RETURN_IF_ERROR(expression)             \
  do {                                                   \
    ::normfuse::Result normfuse_result_ = (expression);  \
    if (!normfuse_result_.ok()) return normfuse_result_; \
  } while (false)
