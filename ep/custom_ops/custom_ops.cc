#include "custom_ops/custom_ops.h"

#include <atomic>
#include <iterator>
#include <memory>

#include "abi/ort_execution.h"
#include "custom_ops/info_readers.h"
#include "plugin/claim_policy.h"

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

Result ReadBackend(const ort::KernelInfo* info, plugin::EpOptions* options) {
  ort::KeyValuePairs* entries = nullptr;
  NORMFUSE_RETURN_IF_ORT_ERROR(GetApi().KernelInfo_GetConfigEntries(info, &entries));
  const char* const* keys = nullptr;
  const char* const* values = nullptr;
  size_t count = 0;
  GetApi().GetKeyValuePairs(entries, &keys, &values, &count);
  Result result;
  for (size_t i = 0; i < count && result.ok(); ++i) {
    if (std::string_view(keys[i]) == "normfuse.backend") result = plugin::ParseBackend(values[i], &options->backend);
  }
  GetApi().ReleaseKeyValuePairs(entries);
  return result;
}

Result CreateExecutable(const ort::KernelInfo* info, std::unique_ptr<Executable>* executable) {
  Plan plan;
  NORMFUSE_RETURN_IF_ERROR(ReadPlan(info, &plan));
  plugin::EpOptions options;
  NORMFUSE_RETURN_IF_ERROR(ReadBackend(info, &options));
  return plugin::CompileForBackend(plan, options, executable);
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

// Shape of the sum of X and the residual as far as it is known; rank -1 when it is not.
TensorFacts SumShape(const OperatorNode& node, const Plan& plan) {
  TensorFacts sum = node.inputs[0];
  if (!plan.residual.present()) return sum;
  const TensorFacts& residual = node.inputs[static_cast<size_t>(FusedNormalizationInput::kResidual)];
  if (residual.rank < 0 || residual.rank != sum.rank) {
    if (residual.rank < 0 || residual.rank > sum.rank) sum.rank = -1;
    return sum;
  }
  for (int i = 0; i < sum.rank; ++i) {
    if (sum.dims[i] == 1) sum.dims[i] = residual.dims[i];
  }
  return sum;
}

// Mean and inverse deviation have the sum's shape with every normalised dimension 1.
TensorFacts StatisticsShape(const Plan& plan, TensorFacts shape) {
  if (plan.normalization.num_groups > 0) shape.rank = -1;
  for (int64_t axis : plan.normalization.axes) {
    const int64_t index = axis < 0 ? axis + shape.rank : axis;
    if (index >= 0 && index < shape.rank) shape.dims[index] = 1;
  }
  return shape;
}

// Dimensions that are not known are given the names that X has for them, or new ones: ORT would take a dimension
// without a name as the number -1.
Result SetShape(ort::TensorTypeAndShapeInfo* info, const TensorFacts& shape,
                const std::vector<std::string>& dimension_names) {
  static std::atomic<unsigned> unnamed = 0;
  const auto rank = static_cast<size_t>(shape.rank);
  NORMFUSE_RETURN_IF_ORT_ERROR(GetApi().SetDimensions(info, shape.dims, rank));
  std::string names[kMaxRank];
  const char* pointers[kMaxRank] = {};
  for (size_t i = 0; i < rank; ++i) {
    if (shape.dims[i] < 0) {
      if (i < dimension_names.size()) names[i] = dimension_names[i];
      if (names[i].empty()) names[i] = "normfuse_unknown_" + std::to_string(unnamed++);
    }
    pointers[i] = names[i].c_str();
  }
  NORMFUSE_RETURN_IF_ORT_ERROR(GetApi().SetSymbolicDimensions(info, pointers, rank));
  return {};
}

Result SetOutput(ort::ShapeInferContext* context, size_t index, DataType type, const TensorFacts& shape,
                 const std::vector<std::string>& dimension_names) {
  const ort::Api& api = GetApi();
  ort::TensorTypeAndShapeInfo* info = nullptr;
  NORMFUSE_RETURN_IF_ORT_ERROR(api.CreateTensorTypeAndShapeInfo(&info));
  Result result = ort::FromStatus(api.SetTensorElementType(info, static_cast<int>(type)));
  if (result.ok() && shape.rank >= 0) result = SetShape(info, shape, dimension_names);
  if (result.ok()) result = ort::FromStatus(api.ShapeInferContext_SetOutputTypeShape(context, index, info));
  api.ReleaseTensorTypeAndShapeInfo(info);
  return result;
}

Result InferOutputs(const Operator& op, ort::ShapeInferContext* context) {
  const InferenceAttributes attributes(context);
  OperatorNode node;
  node.kind = op.kind;
  node.name = op.name;
  node.attributes = &attributes;
  std::vector<std::string> names;
  NORMFUSE_RETURN_IF_ERROR(ReadInferenceInputs(context, &node, &names));
  Plan plan;
  if (!node.inputs[0].present) return {};  // ORT does not know X's type yet
  if (std::optional<Declined> declined = PlanFromOperator(node, &plan)) {
    return Result::Error(ErrorCode::kInvalidArgument, declined->message);
  }
  const TensorFacts shape = SumShape(node, plan);
  NORMFUSE_RETURN_IF_ERROR(SetOutput(context, 0, plan.y_type, shape, names));
  if (op.kind != OperatorKind::kFusedNormalization) return {};
  // There is no way to ask which further outputs the node has. ORT refuses one that it does not have from 1.28 on, and
  // ends the process before; without inference the output takes its type and shape at run time.
  constexpr uint32_t kOutputsAreChecked = 28;
  if (ort::GetHost().version < kOutputsAreChecked) return {};
  const TensorFacts statistics = StatisticsShape(plan, shape);
  (void)SetOutput(context, static_cast<size_t>(FusedNormalizationOutput::kSum), plan.sum_type, shape, names);
  for (const auto output : {FusedNormalizationOutput::kMean, FusedNormalizationOutput::kInvStdDev}) {
    (void)SetOutput(context, static_cast<size_t>(output), plan.stats_type, statistics, names);
  }
  return {};
}

ort::Status* InferOutputsEntry(const ort::CustomOp* op, ort::ShapeInferContext* context) {
  return ort::Guarded([&] { return InferOutputs(From(op), context); });
}

ort::CustomOpIo FirstRequired(const ort::CustomOp*, size_t index) {
  return index == 0 ? ort::CustomOpIo::kRequired : ort::CustomOpIo::kOptional;
}

int AnyType(const ort::CustomOp*, size_t) { return static_cast<int>(DataType::kUndefined); }
int One(const ort::CustomOp*) { return 1; }

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
  op.GetOutputCharacteristic = FirstRequired;
  op.GetInputMemoryType = [](const ort::CustomOp*, size_t) { return ort::MemType::kDefault; };
  op.GetVariadicInputMinArity = One;
  op.GetVariadicInputHomogeneity = One;
  op.GetVariadicOutputMinArity = One;
  op.GetVariadicOutputHomogeneity = One;
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
        MakeOperator(OperatorKind::kFusedNormalization, "FusedNormalization", std::size(kFusedNormalizationInputs),
                     std::size(kFusedNormalizationOutputs)),
        MakeOperator(OperatorKind::kFusedActivation, "FusedActivation", std::size(kFusedActivationInputs),
                     std::size(kFusedActivationOutputs)),
        MakeOperator(OperatorKind::kFusedDequantizeLinear, "FusedDequantizeLinear",
                     std::size(kFusedDequantizeLinearInputs), std::size(kFusedDequantizeLinearOutputs)),
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
