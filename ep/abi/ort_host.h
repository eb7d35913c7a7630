// The ONNX Runtime that loaded us: version negotiation, typed function tables, and the one place where a Result or a
// C++ exception becomes an OrtStatus.
#pragma once

#include <exception>
#include <new>
#include <string>
#include <type_traits>

#include "abi/ort_abi.h"
#include "chain/result.h"

namespace normfuse::ort {

struct Host {
  uint32_t version = 0;  // min(kNewestKnown, N of ONNX Runtime 1.N): what every struct is stamped with
  const char* version_string = "";
  Api api;
  EpApi ep_api;
};
static_assert(std::is_trivially_destructible_v<Host>, "ORT may call release functions while the process shuts down");

// Fills the process-wide Host from what ORT handed to an exported function. A host older than 1.24 gives a status that
// names both versions. Safe to call many times and from several threads.
Status* Negotiate(const ApiBase* base);

// Filled by Negotiate, which alone writes it.
extern Host g_host;
// Valid after a successful Negotiate.
inline const Host& GetHost() { return g_host; }
inline const Api& GetApi() { return GetHost().api; }

Status* ToStatus(const Result& result);

// Releases the status and returns its message as an error.
Result ErrorOf(Status* status);
// The same; ok for null.
inline Result FromStatus(Status* status) { return status == nullptr ? Result() : ErrorOf(status); }

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
