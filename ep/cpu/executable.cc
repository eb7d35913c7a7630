// CompileForCpu: a plan with its parameters converted, and the set-up of each call.
#include <limits>
#include <utility>

#include "cpu/call.h"
#include "cpu/cost_model.h"
#include "cpu/elements.h"
#include "cpu/geometry_cache.h"
#include "cpu/statistics.h"
#include "plan/execution.h"

namespace normfuse::cpu {
namespace {

bool Is32Bit(DataType type) { return type == DataType::kInt32 || type == DataType::kUint32; }

float ScalarOf(const ConstantTensor& constant) {
  return static_cast<float>(ReadElement(constant.type, constant.data, 0));
}

class CpuExecutable final : public Executable {
 public:
  CpuExecutable(Plan plan, Isa isa) : plan_(std::move(plan)), isa_(isa), kernels_(&KernelsFor(isa)) {}

  Result Init();
  Result Run(ExecutionContext& context) const override;
  Result Describe(const PathQuery& query, std::string* text) const;

 private:
  Result InitQuantization(const Quantization& quantization, DataType type, FormId scale_form, const char* scale_name,
                          const char* zero_name);
  void ReadSpec();
  Result ReadTensors(ExecutionContext& context, Call* call, CallShapes* shapes) const;
  void SortParams();
  Result ReadParams(ExecutionContext& context, BufferPool::Lease* lease, Call* call, CallShapes* shapes) const;
  Result Bind(const CallShapes& shapes, Geometry* own, const Geometry** geometry) const;
  Result AllocateOutputs(ExecutionContext& context, Call* call) const;

  Plan plan_;
  Isa isa_;
  const KernelTable* kernels_;
  ParamSource sources_[kFormCount];
  ChainSpec spec_;
  BoundTensor x_;  // but for their data
  BoundTensor residual_;
  Param params_[kFormCount];  // the constant ones
  CallShapes shapes_;
  int inputs_[kFormCount];  // forms whose parameters are inputs
  int input_count_ = 0;
  mutable BufferPool pool_;
  mutable WorkSharing work_sharing_;
  ForcedPath forced_;
  mutable GeometryCache geometries_;
};

Result CpuExecutable::InitQuantization(const Quantization& q, DataType type, FormId scale_form, const char* scale_name,
                                       const char* zero_name) {
  Operand scale;
  scale.tensor = q.scale;
  NORMFUSE_RETURN_IF_ERROR(sources_[scale_form].Init(scale, scale_name, false));
  Operand zero;
  zero.tensor = q.zero_point;
  zero.type = type;
  return sources_[scale_form + 1].Init(zero, zero_name, Is32Bit(type));
}

void CpuExecutable::ReadSpec() {
  const Normalization& norm = plan_.normalization;
  const Quantization& sum = plan_.sum_quantization;
  spec_.normalizes = plan_.kind == PlanKind::kNormalization;
  spec_.use_mean = norm.use_mean;
  spec_.normalize_variance = norm.normalize_variance;
  spec_.epsilon_on = norm.epsilon_on;
  spec_.epsilon = norm.epsilon;
  spec_.activation = plan_.activation.kind;
  spec_.activation_params = plan_.activation.params;
  spec_.y_type = plan_.y_type;
  spec_.y_quantized = plan_.y_quantization.present();
  spec_.y_saturate = plan_.y_saturate;
  spec_.y_block_size = plan_.y_quantization.block_size;
  spec_.sum_type = plan_.sum_type;
  spec_.stats_type = plan_.stats_type;
  spec_.requantizes = sum.present();
  if (sum.present()) spec_.sum_scale = ScalarOf(*sum.scale.constant);
  if (sum.zero_point.present()) spec_.sum_zero = ScalarOf(*sum.zero_point.constant);
  spec_.nanoseconds = EstimateNanoseconds(plan_, isa_, 0);
  spec_.nanoseconds_per_element = EstimateNanoseconds(plan_, isa_, 1) - spec_.nanoseconds;
  const Quantization& x = plan_.x.quantization;
  const Quantization& residual = plan_.residual.quantization;
  x_ = {nullptr, plan_.x.type, kFormX, kFormXScale, x.present(), x.block_size, 0};
  residual_ = {nullptr, plan_.residual.type, kFormResidual, kFormResidualScale, residual.present(), residual.block_size,
               1};
}

Result CpuExecutable::Init() {
  NORMFUSE_RETURN_IF_ERROR(ForcedPathOfEnvironment(&forced_));
  ReadSpec();
  NORMFUSE_RETURN_IF_ERROR(sources_[kFormResidualBias].Init(plan_.residual_bias, "residual_bias", false));
  NORMFUSE_RETURN_IF_ERROR(sources_[kFormScale].Init(plan_.scale, "scale", false));
  NORMFUSE_RETURN_IF_ERROR(sources_[kFormBias].Init(plan_.bias, "bias", false));
  Operand slope;
  slope.tensor = plan_.activation.slope;
  slope.type = plan_.activation.slope_type;
  NORMFUSE_RETURN_IF_ERROR(sources_[kFormSlope].Init(slope, "slope", false));
  NORMFUSE_RETURN_IF_ERROR(
      InitQuantization(plan_.x.quantization, plan_.x.type, kFormXScale, "x_scale", "x_zero_point"));
  NORMFUSE_RETURN_IF_ERROR(InitQuantization(plan_.residual.quantization, plan_.residual.type, kFormResidualScale,
                                            "residual_scale", "residual_zero_point"));
  NORMFUSE_RETURN_IF_ERROR(
      InitQuantization(plan_.y_quantization, plan_.y_type, kFormYScale, "y_scale", "y_zero_point"));
  SortParams();
  return {};
}

Result CpuExecutable::ReadTensors(ExecutionContext& context, Call* call, CallShapes* shapes) const {
  TensorView x;
  NORMFUSE_RETURN_IF_ERROR(GetTensor(context, plan_.name, "X", plan_.x.tensor, plan_.x.type, &x));
  call->x = x_;
  call->x.data = x.data;
  call->x.type = x.type;
  shapes->x = {x.dims, static_cast<int>(x.rank)};
  if (!plan_.residual.present()) return {};
  TensorView residual;
  NORMFUSE_RETURN_IF_ERROR(
      GetTensor(context, plan_.name, "residual", plan_.residual.tensor, plan_.residual.type, &residual));
  call->residual = residual_;
  call->residual.data = residual.data;
  call->residual.type = residual.type;
  shapes->residual = {residual.dims, static_cast<int>(residual.rank)};
  return {};
}

// Where a form's shape stands.
Shape* ShapeOf(int form, CallShapes* s) {
  switch (form) {
    case kFormResidualBias:
      return &s->residual_bias;
    case kFormScale:
      return &s->scale;
    case kFormBias:
      return &s->bias;
    case kFormSlope:
      return &s->slope;
    case kFormXScale:
      return &s->x_scale;
    case kFormXZero:
      return &s->x_zero;
    case kFormResidualScale:
      return &s->residual_scale;
    case kFormResidualZero:
      return &s->residual_zero;
    case kFormYScale:
      return &s->y_scale;
    default:
      return &s->y_zero;
  }
}

// Constant parameters once and for all; the others are listed.
void CpuExecutable::SortParams() {
  for (int form = 0; form < kFormCount; ++form) {
    const ParamSource& source = sources_[form];
    if (!source.present()) continue;
    if (!source.constant()) {
      inputs_[input_count_++] = form;
      continue;
    }
    params_[form] = source.Constant();
    *ShapeOf(form, &shapes_) = params_[form].shape;
    if (source.uniform()) shapes_.uniform |= 1u << form;
  }
}

// Reads the parameters that are inputs; those that need converting use memory that `lease` then holds.
Result CpuExecutable::ReadParams(ExecutionContext& context, BufferPool::Lease* lease, Call* call,
                                 CallShapes* shapes) const {
  TensorView views[kFormCount];
  size_t doubles[kFormCount];
  size_t needed = 0;
  for (int i = 0; i < input_count_; ++i) {
    NORMFUSE_RETURN_IF_ERROR(sources_[inputs_[i]].Prepare(context, plan_.name, &views[i], &doubles[i]));
    needed += doubles[i];
  }
  if (needed != 0) lease->Take(needed);
  double* memory = lease->data();
  for (int i = 0; i < input_count_; ++i) {
    const int form = inputs_[i];
    NORMFUSE_RETURN_IF_ERROR(sources_[form].Read(context, plan_.name, views[i], memory, &call->params[form]));
    *ShapeOf(form, shapes) = call->params[form].shape;
    memory += doubles[i];
  }
  return {};
}

// The geometry of an earlier call, or one that is made in `own`.
Result CpuExecutable::Bind(const CallShapes& shapes, Geometry* own, const Geometry** geometry) const {
  const bool constant = input_count_ == 0;
  *geometry = constant ? geometries_.Find(shapes) : nullptr;
  if (*geometry != nullptr) return {};
  NORMFUSE_RETURN_IF_ERROR(BindGeometry(plan_, shapes, own));
  if (constant) geometries_.Add(shapes, *own);
  *geometry = own;
  return {};
}

Result CpuExecutable::AllocateOutputs(ExecutionContext& context, Call* call) const {
  const Geometry& g = *call->geometry;
  const auto rank = static_cast<size_t>(g.rank);
  if (plan_.y_output != Plan::kNoOutput) {
    NORMFUSE_RETURN_IF_ERROR(context.Output(plan_.y_output, plan_.y_type, g.shape, rank, &call->y));
  }
  if (plan_.sum_output != Plan::kNoOutput) {
    NORMFUSE_RETURN_IF_ERROR(context.Output(plan_.sum_output, plan_.sum_type, g.shape, rank, &call->sum));
  }
  if (plan_.mean_output != Plan::kNoOutput) {
    NORMFUSE_RETURN_IF_ERROR(context.Output(plan_.mean_output, plan_.stats_type, g.stat_shape, rank, &call->mean));
  }
  if (plan_.inv_std_dev_output != Plan::kNoOutput) {
    NORMFUSE_RETURN_IF_ERROR(
        context.Output(plan_.inv_std_dev_output, plan_.stats_type, g.stat_shape, rank, &call->inv_std_dev));
  }
  return {};
}

// Kept dimensions without a single value: their mean is NaN.
void StoreEmptyStatistics(const Call& call) {
  Statistics nothing;
  nothing.mean = nothing.inv_std_dev = std::numeric_limits<float>::quiet_NaN();
  int64_t count = 1;
  for (int i = 0; i < call.geometry->rank; ++i) count *= call.geometry->stat_shape[i];
  for (int64_t i = 0; i < count; ++i) StoreStatistics(call, i, nothing);
}

Result CpuExecutable::Run(ExecutionContext& context) const {
  Call call;
  call.spec = &spec_;
  call.kernels = kernels_;
  call.context = &context;
  call.work_sharing = &work_sharing_;
  CallShapes shapes = shapes_;
  for (int form = 0; form < kFormCount; ++form) call.params[form] = params_[form];
  NORMFUSE_RETURN_IF_ERROR(ReadTensors(context, &call, &shapes));

  BufferPool::Lease lease(&pool_);
  NORMFUSE_RETURN_IF_ERROR(ReadParams(context, &lease, &call, &shapes));
  Geometry own;
  NORMFUSE_RETURN_IF_ERROR(Bind(shapes, &own, &call.geometry));
  NORMFUSE_RETURN_IF_ERROR(AllocateOutputs(context, &call));
  if (call.geometry->element_count == 0) {
    StoreEmptyStatistics(call);
    return {};
  }
  // Bits beyond the last element are 0.
  if (BitsOf(plan_.y_type) < 8 && call.y != nullptr) {
    const size_t bytes = BytesFor(plan_.y_type, static_cast<size_t>(call.geometry->element_count));
    static_cast<unsigned char*>(call.y)[bytes - 1] = 0;
  }
  call.path = Choose(call, context.ThreadCount(), forced_);
  Resolve(&call);
  return RunWalk(call);
}

// With addresses that nothing is read from.
Result CpuExecutable::Describe(const PathQuery& query, std::string* text) const {
  if (input_count_ != 0) {
    return Result::Error(ErrorCode::kInvalidArgument, plan_.name + ": the path depends on the shapes of parameters");
  }
  const auto dims_of = [](const std::vector<int64_t>& given, const PartialShape& known) {
    std::vector<int64_t> dims = given;
    for (int i = 0; given.empty() && i < known.rank; ++i) {
      dims.push_back(known.dims[i] < 0 ? kTypicalDimension : known.dims[i]);
    }
    return dims;
  };
  const std::vector<int64_t> x = dims_of(query.x, plan_.x.shape);
  const bool like_x = query.residual.empty() && plan_.residual.shape.rank < 0;
  const std::vector<int64_t> residual = like_x ? x : dims_of(query.residual, plan_.residual.shape);
  Call call;
  call.spec = &spec_;
  call.kernels = kernels_;
  for (int form = 0; form < kFormCount; ++form) call.params[form] = params_[form];
  CallShapes shapes = shapes_;
  shapes.x = {x.data(), static_cast<int>(x.size())};
  call.x = x_;
  alignas(kCacheLine) static unsigned char line[2 * kCacheLine];
  unsigned char* const somewhere = line + query.y_offset % kCacheLine;
  call.x.data = somewhere;
  if (plan_.residual.present()) {
    shapes.residual = {residual.data(), static_cast<int>(residual.size())};
    call.residual = residual_;
    call.residual.data = somewhere;
  }
  if (plan_.y_output != Plan::kNoOutput) call.y = somewhere;
  if (plan_.sum_output != Plan::kNoOutput) call.sum = somewhere;
  Geometry geometry;
  NORMFUSE_RETURN_IF_ERROR(BindGeometry(plan_, shapes, &geometry));
  call.geometry = &geometry;
  *text = Text(Choose(call, query.threads, forced_));
  return {};
}

}  // namespace

Result DescribePath(const Plan& plan, const PathQuery& query, std::string* text) {
  Isa isa = Isa::kBaseline;
  NORMFUSE_RETURN_IF_ERROR(SelectIsa(&isa));
  NORMFUSE_RETURN_IF_ERROR(Validate(plan));
  CpuExecutable executable(plan, isa);
  NORMFUSE_RETURN_IF_ERROR(executable.Init());
  return executable.Describe(query, text);
}

}  // namespace normfuse::cpu

namespace normfuse {

Result CompileForCpu(const Plan& plan, std::unique_ptr<Executable>* executable) {
  cpu::Isa isa = cpu::Isa::kBaseline;
  NORMFUSE_RETURN_IF_ERROR(cpu::SelectIsa(&isa));
  NORMFUSE_RETURN_IF_ERROR(Validate(plan));
  auto result = std::make_unique<cpu::CpuExecutable>(plan, isa);
  NORMFUSE_RETURN_IF_ERROR(result->Init());
  *executable = std::move(result);
  return {};
}

}  // namespace normfuse
