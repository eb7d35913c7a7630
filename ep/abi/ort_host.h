// The ONNX Runtime that loaded us: version negotiation, typed function tables, and the one place where a Result or a
// C++ exception becomes an OrtStatus.
#pragma once

#include <exception>
#include <new>
#include <string>

#include "abi/ort_abi.h"
#include "chain/result.h"

namespace normfuse::ort {

struct Host {
  uint32_t version = 0;  // min(kNewestKnown, N of ONNX Runtime 1.N): what every struct is stamped with
  std::string version_string;
  Api api;
  EpApi ep_api;
};

// Fills the process-wide Host from what ORT handed to an exported function. A host older than 1.24 gives a status that
// names both versions. Safe to call many times and from several threads.
Status* Negotiate(const ApiBase* base);

// Valid after a successful Negotiate.
const Host& GetHost();
inline const Api& GetApi() { return GetHost().api; }

Status* ToStatus(const Result& result);

// Releases the status and returns its message as an error; ok for null.
Result FromStatus(Status* status);

// Runs body (which returns a Result) so that nothing but an OrtStatus leaves it.
template <typename Body>
Status* Guarded(Body&& body) noexcept {
  try {
    return ToStatus(body());
  } catch (const std::bad_alloc&) {
    return GetApi().CreateStatus(static_cast<int>(ErrorCode::kFail), "normfuse: out of memory");
  } catch (const std::exception& error) {
    return GetApi().CreateStatus(static_cast<int>(ErrorCode::kFail), error.what());
  } catch (...) {
    return GetApi().CreateStatus(static_cast<int>(ErrorCode::kFail), "normfuse: unknown exception");
  }
}

}  // namespace normfuse::ort

// Leaves the enclosing function (returning Result) when an ORT call fails.
#define NORMFUSE_RETURN_IF_ORT_ERROR(expression) NORMFUSE_RETURN_IF_ERROR(::normfuse::ort::FromStatus(expression))
