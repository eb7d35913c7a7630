#include "abi/ort_execution.h"

#include <algorithm>
#include <span>
#include <thread>

namespace normfuse::ort {

Result ViewOf(const Value* value, TensorView* view) {
  *view = TensorView{};
  if (value == nullptr) return {};  // an optional input that was left out
  const Api& api = GetApi();
  int type = 0;
  NORMFUSE_RETURN_IF_ORT_ERROR(api.GetTensorElementTypeAndShapeDataReference(value, &type, &view->dims, &view->rank));
  view->type = static_cast<DataType>(type);
  NORMFUSE_RETURN_IF_ORT_ERROR(api.GetTensorData(value, &view->data));
  return {};
}

namespace {

Result WrongOutput(int index, const std::string& what) {
  return Result::Error(ErrorCode::kInvalidArgument, "normfuse: output " + std::to_string(index) + what);
}

Result WrongType(int index, DataType allocated, DataType given) {
  return WrongOutput(index, std::string(" has element type ") + NameOf(allocated) +
                                " in the model, where this node gives " + NameOf(given));
}

// The claim has compared types and shapes; what is written into must be that even if it was told something else.
Result CheckAllocated(int index, const Value* value, DataType type, std::span<const int64_t> dims) {
  int allocated = 0;
  const int64_t* allocated_dims = nullptr;
  size_t rank = 0;
  NORMFUSE_RETURN_IF_ORT_ERROR(
      GetApi().GetTensorElementTypeAndShapeDataReference(value, &allocated, &allocated_dims, &rank));
  if (static_cast<DataType>(allocated) != type) return WrongType(index, static_cast<DataType>(allocated), type);
  if (std::equal(dims.begin(), dims.end(), allocated_dims, allocated_dims + rank)) return {};
  return WrongOutput(index, " was not allocated with the shape that this node gives");
}

}  // namespace

Result KernelExecution::Input(int index, TensorView* view) {
  const Value* value = nullptr;
  NORMFUSE_RETURN_IF_ORT_ERROR(GetApi().KernelContext_GetInput(context_, static_cast<size_t>(index), &value));
  return ViewOf(value, view);
}

Result KernelExecution::Output(int index, DataType type, const int64_t* dims, size_t rank, void** data) {
  Value* value = nullptr;
  *data = nullptr;
  NORMFUSE_RETURN_IF_ORT_ERROR(
      GetApi().KernelContext_GetOutput(context_, static_cast<size_t>(index), dims, rank, &value));
  if (value == nullptr) return {};  // an optional output that nobody reads
  NORMFUSE_RETURN_IF_ERROR(CheckAllocated(index, value, type, {dims, rank}));
  NORMFUSE_RETURN_IF_ORT_ERROR(GetApi().GetTensorMutableData(value, data));
  return {};
}

Result KernelExecution::ParallelFor(void (*task)(void* user, size_t index), size_t count, void* user) {
  return FromStatus(GetApi().KernelContext_ParallelFor(context_, task, count, /*batches=*/0, user));
}

int KernelExecution::ThreadCount() const {
  // ORT does not tell the size of the session's pool: with fewer threads than this, ParallelFor runs several indices
  // on one thread, which costs next to nothing.
  static const int count = [] {
    const unsigned hardware = std::thread::hardware_concurrency();
    return hardware == 0 ? 1 : static_cast<int>(hardware);
  }();
  return count;
}

void KernelExecution::Warn(const std::string& message) {
#ifdef _WIN32
  const PathChar* file = L"ort_execution.cc";
#else
  const PathChar* file = "ort_execution.cc";
#endif
  const Logger* logger = nullptr;
  Result result = FromStatus(GetApi().KernelContext_GetLogger(context_, &logger));
  // As an error, because normfuse.InferenceSession shows no warnings. A logger that fails must not fail the call.
  if (result.ok()) {
    result = FromStatus(
        GetApi().Logger_LogMessage(logger, LoggingLevel::kError, message.c_str(), file, __LINE__, "normfuse"));
  }
}

}  // namespace normfuse::ort
