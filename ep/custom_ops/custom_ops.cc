#include "custom_ops/custom_ops.h"

#include <iterator>
#include <memory>

#include "abi/ort_execution.h"
#include "custom_ops/shape_inference.h"
#include "plugin/host/kernel_chain.h"
#include "plugin/host/options.h"

namespace normfuse::custom_ops {
namespace {

using ort::GetApi;

// Marks session options that have the domain already; ORT refuses a second registration.
constexpr const char* kMarker = "normfuse.custom_ops_registered";

struct Operator : ort::CustomOp {
  OperatorKind kind;
  const char* name;
  size_t input_count;
  size_t output_count;
};

const Operator& From(const ort::CustomOp* op) { return *static_cast<const Operator*>(op); }

// The session config entries normfuse.backend, normfuse.directml_library ...: the EP's options for the same.
Result ReadBackendOptions(const ort::KernelInfo* info, plugin::BackendOptions* options) {
  constexpr std::string_view kPrefix = "normfuse.";
  ort::KeyValuePairs* entries = nullptr;
  NORMFUSE_RETURN_IF_ORT_ERROR(GetApi().KernelInfo_GetConfigEntries(info, &entries));
  const char* const* keys = nullptr;
  const char* const* values = nullptr;
  size_t count = 0;
  GetApi().GetKeyValuePairs(entries, &keys, &values, &count);
  Result result;
  for (size_t i = 0; i < count && result.ok(); ++i) {
    const std::string_view key = keys[i];
    bool known = false;
    if (key.substr(0, kPrefix.size()) == kPrefix) {
      result = plugin::SetBackendOption(key.substr(kPrefix.size()), values[i], options, &known);
    }
  }
  GetApi().ReleaseKeyValuePairs(entries);
  return result;
}

Result CreateExecutable(const ort::KernelInfo* info, std::unique_ptr<Executable>* executable) {
  Chain chain;
  NORMFUSE_RETURN_IF_ERROR(plugin::ReadChain(info, &chain));
  plugin::BackendOptions options;
  NORMFUSE_RETURN_IF_ERROR(ReadBackendOptions(info, &options));
  std::unique_ptr<plugin::Backend> backend;
  NORMFUSE_RETURN_IF_ERROR(plugin::Backend::Create(options, &backend));
  return backend->Compile(chain, executable);
}

ort::Status* CreateKernel(const ort::CustomOp*, const void*, const ort::KernelInfo* info, void** kernel) {
  *kernel = nullptr;
  return ort::Guarded([&]() -> Result {
    std::unique_ptr<Executable> executable;
    NORMFUSE_RETURN_IF_ERROR(CreateExecutable(info, &executable));
    *kernel = executable.release();
    return {};
  });
}

ort::Status* Compute(void* kernel, ort::KernelContext* context) {
  return ort::Guarded([&] {
    ort::KernelExecution execution(context);
    return static_cast<Executable*>(kernel)->Run(execution);
  });
}

void DestroyKernel(void* kernel) { delete static_cast<Executable*>(kernel); }

ort::Status* InferOutputsEntry(const ort::CustomOp* op, ort::ShapeInferContext* context) {
  return ort::Guarded([&] { return InferOutputs(From(op).kind, From(op).name, context); });
}

ort::CustomOpIo FirstRequired(const ort::CustomOp*, size_t index) {
  return index == 0 ? ort::CustomOpIo::kRequired : ort::CustomOpIo::kOptional;
}

// The outputs behind Y are one variadic parameter of any types: of optional outputs ORT would guess the type (that of the
// last input), and refuse a model that says otherwise.
constexpr size_t kYAndFurtherOutputs = 2;

// X, and what a program may name.
constexpr size_t kInputs = 1 + kMostTensors;

int AnyType(const ort::CustomOp*, size_t) { return static_cast<int>(DataType::kUndefined); }
int One(const ort::CustomOp*) { return 1; }

// Unknown attributes of such a node are not seen: KernelInfo has no list of them, so that only the provider refuses them.
Operator MakeOperator(OperatorKind kind, const char* name, size_t inputs, size_t outputs) {
  Operator op{};
  op.version = ort::GetHost().version;
  op.GetName = [](const ort::CustomOp* self) { return From(self).name; };
  op.GetExecutionProviderType = [](const ort::CustomOp*) -> const char* { return nullptr; };  // the CPU provider
  op.GetInputType = AnyType;
  op.GetInputTypeCount = [](const ort::CustomOp* self) { return From(self).input_count; };
  op.GetOutputType = AnyType;
  op.GetOutputTypeCount = [](const ort::CustomOp* self) { return From(self).output_count; };
  op.KernelDestroy = DestroyKernel;
  op.GetInputCharacteristic = FirstRequired;
  op.GetOutputCharacteristic = [](const ort::CustomOp*, size_t index) {
    return index == 0 ? ort::CustomOpIo::kRequired : ort::CustomOpIo::kVariadic;
  };
  op.GetInputMemoryType = [](const ort::CustomOp*, size_t) { return ort::MemType::kDefault; };
  op.GetVariadicInputMinArity = One;
  op.GetVariadicInputHomogeneity = One;
  op.GetVariadicOutputMinArity = [](const ort::CustomOp*) { return 0; };
  op.GetVariadicOutputHomogeneity = [](const ort::CustomOp*) { return 0; };
  op.CreateKernelV2 = CreateKernel;
  op.KernelComputeV2 = Compute;
  op.InferOutputShapeFn = InferOutputsEntry;
  op.GetStartVersion = One;
  op.GetEndVersion = [](const ort::CustomOp*) { return kOperatorSetVersion; };
  op.kind = kind;
  op.name = name;
  op.input_count = inputs;
  op.output_count = outputs;
  return op;
}

// The domain outlives every session: made once, never released (a session may end while the process shuts down).
Result SharedDomain(ort::CustomOpDomain** domain) {
  static ort::CustomOpDomain* shared = nullptr;
  static const Result created = []() -> Result {
    static const Operator operators[] = {
        MakeOperator(OperatorKind::kFusedNormalization, "FusedNormalization", kInputs, kYAndFurtherOutputs),
        MakeOperator(OperatorKind::kFusedActivation, "FusedActivation", kInputs, std::size(kFusedActivationOutputs)),
        MakeOperator(OperatorKind::kFusedDequantizeLinear, "FusedDequantizeLinear", kInputs,
                     std::size(kFusedDequantizeLinearOutputs)),
    };
    NORMFUSE_RETURN_IF_ORT_ERROR(GetApi().CreateCustomOpDomain(kOperatorDomain, &shared));
    for (const Operator& op : operators) NORMFUSE_RETURN_IF_ORT_ERROR(GetApi().CustomOpDomain_Add(shared, &op));
    return {};
  }();
  *domain = shared;
  return created;
}

}  // namespace

Result Register(ort::SessionOptions* options) {
  int registered = 0;
  NORMFUSE_RETURN_IF_ORT_ERROR(GetApi().HasSessionConfigEntry(options, kMarker, &registered));
  if (registered != 0) return {};
  const char* isa = nullptr;
  NORMFUSE_RETURN_IF_ERROR(SelectedIsa(&isa));
  ort::CustomOpDomain* domain = nullptr;
  NORMFUSE_RETURN_IF_ERROR(SharedDomain(&domain));
  NORMFUSE_RETURN_IF_ORT_ERROR(GetApi().AddCustomOpDomain(options, domain));
  NORMFUSE_RETURN_IF_ORT_ERROR(GetApi().AddSessionConfigEntry(options, kMarker, "1"));
  return {};
}

}  // namespace normfuse::custom_ops
