#include "abi/ort_host.h"

#include <cstdlib>
#include <mutex>

#include "chain/utf8.h"

namespace normfuse::ort {
namespace {

// Reads "1.<minor>.<patch>"; 0 when the text is something else or the major version is not 1.
uint32_t MinorOf(const char* version) {
  if (version == nullptr || version[0] != '1' || version[1] != '.') return 0;
  return static_cast<uint32_t>(std::strtoul(version + 2, nullptr, 10));
}

Status* TooOld(const ApiBase* base, const char* version) {
  // Version 1 of the table exists in every release, and CreateStatus is its first slot.
  const void* oldest = base->GetApi(1);
  if (oldest == nullptr) return nullptr;
  auto create = reinterpret_cast<decltype(Api::CreateStatus)>(static_cast<void* const*>(oldest)[0]);
  const std::string message = std::string("normfuse ") + NORMFUSE_VERSION + " needs ONNX Runtime 1." +
                              std::to_string(kOldestSupported) + " or newer, but this is ONNX Runtime " + version +
                              ". Upgrade it: pip install --upgrade onnxruntime";
  return create(static_cast<int>(ErrorCode::kNotImplemented), message.c_str());
}

}  // namespace

constinit Host g_host;

// NOLINT below: every supported host fills these slots, which the analyser does not see.
Status* Negotiate(const ApiBase* base) {
  const char* version_string = base->GetVersionString();
  const uint32_t minor = MinorOf(version_string);
  if (minor < kOldestSupported) return TooOld(base, version_string ? version_string : "of an unknown version");

  static std::once_flag once;
  std::call_once(once, [&] {
    Host& host = g_host;
    const uint32_t version = minor < kNewestKnown ? minor : kNewestKnown;
    void* const* table = static_cast<void* const*>(base->GetApi(version));
#define NORMFUSE_LOAD(slot, since, name, result, arguments) \
  if (version >= since) target.name = reinterpret_cast<result(*) arguments>(table[slot]);
    {
      Api& target = host.api;
      NORMFUSE_ORT_API_SLOTS(NORMFUSE_LOAD)
    }
    table = static_cast<void* const*>(host.api.GetEpApi());  // NOLINT(clang-analyzer-core.CallAndMessage)
    {
      EpApi& target = host.ep_api;
      NORMFUSE_ORT_EP_API_SLOTS(NORMFUSE_LOAD)
    }
#undef NORMFUSE_LOAD
    host.version_string = version_string;
    host.version = version;
  });
  return nullptr;
}

Status* ToStatus(const Result& result) {
  if (result.ok()) return nullptr;
  const int code = static_cast<int>(result.code());
  const std::string message = ValidUtf8(result.message());
  return GetApi().CreateStatus(code, message.c_str());  // NOLINT(clang-analyzer-core.CallAndMessage)
}

Result ErrorOf(Status* status) {
  const char* message = GetApi().GetErrorMessage(status);  // NOLINT(clang-analyzer-core.CallAndMessage)
  Result result = Result::Error(ErrorCode::kFail, message);
  GetApi().ReleaseStatus(status);
  return result;
}

}  // namespace normfuse::ort
