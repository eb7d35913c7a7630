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

bool OnlyZeroStrides(const DimList& dims, FormId form) {
  for (int i = 0; i < dims.count; ++i) {
    if (dims.dims[i].stride[form] != 0) return false;
  }
  return true;
}

float ScalarOf(const ConstantTensor& constant) {
  return static_cast<float>(ReadElement(constant.type, constant.data, 0));
}

class CpuExecutable final : public Executable {
 public:
  CpuExecutable(Plan plan, Isa isa) : plan_(std::move(plan)), isa_(isa), kernels_(&KernelsFor(isa)) {}

  Result Init();
  Result Run(ExecutionContext& context) const override;

 private:
  Result InitQuantization(const Quantization& quantization, DataType type, FormId scale_form, const char* scale_name,
                          const char* zero_name);
  Result ReadTensors(ExecutionContext& context, Call* call, CallShapes* shapes) const;
  void SortParams();
  Result ReadParams(ExecutionContext& context, BufferPool::Lease* lease, Call* call, CallShapes* shapes) const;
  Result Bind(const CallShapes& shapes, Geometry* own, const Geometry** geometry) const;
  Result AllocateOutputs(ExecutionContext& context, Call* call) const;
  bool HasOneScale(const Call& call) const;
  void ChoosePath(Call* call) const;
  bool QuantizesByKernel(const Call& call) const;
  bool ChooseApply(const Dim& run, Call* call) const;
  bool PassesCaches(const Call& call) const;
  bool Streams(const Call& call, const Dim& run) const;
  bool CanCut(const Call& call, const Dim& run) const;
  void ChooseStep(const Dim& run, Call* call) const;
  Result Execute(const Call& call) const;

  Plan plan_;
  Isa isa_;
  const KernelTable* kernels_;
  ParamSource sources_[kFormCount];
  float sum_scale_ = 1.0f;
  float sum_zero_ = 0.0f;
  Param params_[kFormCount];  // the constant ones
  CallShapes shapes_;
  int inputs_[kFormCount];  // forms whose parameters are inputs
  int input_count_ = 0;
  mutable BufferPool pool_;
  mutable Helpers helpers_;
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

Result CpuExecutable::Init() {
  const Quantization& sum = plan_.sum_quantization;
  if (sum.present()) sum_scale_ = ScalarOf(*sum.scale.constant);
  if (sum.zero_point.present()) sum_zero_ = ScalarOf(*sum.zero_point.constant);
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
  call->x = x.data;
  call->x_type = x.type;
  shapes->x = {x.dims, static_cast<int>(x.rank)};
  if (!plan_.residual.present()) return {};
  TensorView residual;
  NORMFUSE_RETURN_IF_ERROR(
      GetTensor(context, plan_.name, "residual", plan_.residual.tensor, plan_.residual.type, &residual));
  call->residual = residual.data;
  call->residual_type = residual.type;
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

// Whether a run along `dim` is contiguous in `form`.
bool Contiguous(const Dim& dim, FormId form) { return dim.stride[form] == 1 || dim.size == 1; }

// Whether the stored values of a group, or without a normalisation those of a run, share scale and zero point.
bool CpuExecutable::HasOneScale(const Call& call) const {
  const DimList& reduced = call.geometry->reduced;
  if (plan_.kind == PlanKind::kNormalization) {
    return OnlyZeroStrides(reduced, kFormXScale) && OnlyZeroStrides(reduced, kFormXZero);
  }
  const Dim& run = reduced.dims[reduced.count - 1];
  return run.stride[kFormXScale] == 0 && run.stride[kFormXZero] == 0;
}

// Which kernels read and write tensors where they lie.
void CpuExecutable::ChoosePath(Call* call) const {
  const Geometry& g = *call->geometry;
  call->sum_dims = &g.reduced_d;
  if (QuantizesByKernel(*call)) {
    call->block_apply =
        kernels_->fused_apply(DataType::kFloat32, plan_.y_type, plan_.activation.kind, SumKind::kSingle);
  }
  if (g.columns || call->requantizes) return;
  const bool has_bias = call->params[kFormResidualBias].present();
  const bool plain = call->residual == nullptr && !has_bias && call->sum == nullptr;
  const Param& zero = call->params[kFormXZero];
  call->raw = plain && plan_.x.quantization.present() && zero.wide == nullptr && HasOneScale(*call) &&
              OnlyZeroStrides(g.reduced, kFormXBlock) && OnlyZeroStrides(g.kept, kFormXBlock);
  const Dim& run_d = g.reduced_d.dims[g.reduced_d.count - 1];
  const Dim& run = g.reduced.dims[g.reduced.count - 1];
  const bool pair = call->residual != nullptr && call->residual_type == call->x_type && IsFloat(call->x_type) &&
                    Contiguous(run_d, kFormResidual) && (!has_bias || Contiguous(run_d, kFormResidualBias)) &&
                    (call->sum == nullptr || plan_.sum_type == call->x_type) && plan_.kind == PlanKind::kNormalization;
  const bool single = plain && (call->raw || !plan_.x.quantization.present());
  const bool has_affine = call->params[kFormScale].present() || call->params[kFormBias].present();
  call->only_dequantizes = plan_.kind == PlanKind::kElementwise && plain && !call->raw &&
                           plan_.x.quantization.present() && plan_.activation.kind == Activation::kIdentity &&
                           !has_affine && plan_.y_type == DataType::kFloat32;
  // What passes through blocks is float32 before it is stored.
  call->stream = plan_.y_type == DataType::kFloat32 && Streams(*call, run);
  if ((!pair && !single) || !Contiguous(run_d, kFormX)) return;
  if (pair) call->sum_kind = has_bias ? SumKind::kBiasedPair : SumKind::kPair;
  call->row_sums = kernels_->row_sums(call->x_type, call->sum_kind);
  if (call->row_sums == nullptr && plan_.kind == PlanKind::kNormalization) return;
  if (pair) call->row_x2 = call->residual;
  if (ChooseApply(run, call)) ChooseStep(run, call);
}

// Whether Y is a float, or quantised as the kernels do it: with one scale, by its reciprocal, which scale and bias are
// multiplied with. Nothing may overflow on the way, and NaN, of which they make a negative number, must become the lowest
// value.
bool CpuExecutable::QuantizesByKernel(const Call& call) const {
  if (call.params[kFormYScale].shape.ElementCount() > 1 || call.params[kFormYZero].shape.ElementCount() > 1) {
    return false;
  }
  if (!call.params[kFormYScale].present()) return true;
  const float scale = *call.params[kFormYScale].data;
  return scale > 1e-9f && scale < 1e9f;
}

// The kernel of the second pass, and whether it was found.
bool CpuExecutable::ChooseApply(const Dim& run, Call* call) const {
  if (!QuantizesByKernel(*call)) return false;
  // A sum that went past the caches is added again, which gives the same: its operands are still near.
  const bool stream = Streams(*call, run);
  const bool from_sum = call->sum != nullptr && plan_.sum_type == DataType::kFloat32 && !stream;
  if (!from_sum && !Contiguous(run, kFormX)) return false;
  const SumKind kind = from_sum ? SumKind::kSingle : call->sum_kind;
  if (kind != SumKind::kSingle && !Contiguous(run, kFormResidual)) return false;
  if (kind == SumKind::kBiasedPair && !Contiguous(run, kFormResidualBias)) return false;
  call->apply_kind = kind;
  call->apply_x = from_sum ? call->sum : call->x;
  call->apply_x2 = kind != SumKind::kSingle ? call->residual : nullptr;
  call->apply_type = from_sum ? plan_.sum_type : call->x_type;
  call->apply_form = from_sum ? kFormY : kFormX;
  call->apply = kernels_->fused_apply(call->apply_type, plan_.y_type, plan_.activation.kind, kind);
  if (call->apply == nullptr) return false;
  call->cut = !stream && CanCut(*call, run);
  call->stream = stream || call->cut;
  if (call->sum == nullptr) {
    call->whole_rows = kernels_->whole_rows(call->x_type, plan_.y_type, plan_.activation.kind, kind);
  }
  if (kernels_->keeps && BitsOf(call->x_type) == 16 && IsFloat(call->x_type)) {
    call->apply_kept = kernels_->fused_apply(DataType::kFloat32, plan_.y_type, plan_.activation.kind, SumKind::kSingle);
  }
  return true;
}

bool CpuExecutable::PassesCaches(const Call& call) const {
  if (plan_.y_type != DataType::kFloat32 && plan_.y_type != DataType::kFloat16) return false;
  const int64_t bytes = call.geometry->element_count * (BitsOf(plan_.y_type) + BitsOf(call.x_type)) / 8;
  return kernels_->stream_line != nullptr && bytes >= kStreamBytes;
}

bool CpuExecutable::Streams(const Call& call, const Dim& run) const {
  return PassesCaches(call) && run.size * BitsOf(plan_.y_type) / 8 % kCacheLine == 0 && BeginsLine(call.y) &&
         BeginsLine(call.sum);
}

// Whether rows that do not begin with a line of the cache are worth three calls each: see RowWriter.
bool CpuExecutable::CanCut(const Call& call, const Dim& run) const {
  constexpr int64_t kShortestCut = 1024;  // bytes
  const int64_t bytes = BitsOf(plan_.y_type) / 8;
  return PassesCaches(call) && call.sum == nullptr && run.size * bytes >= kShortestCut &&
         reinterpret_cast<uintptr_t>(call.y) % static_cast<uintptr_t>(bytes) == 0;
}

// Both passes at once for groups that do not stay in the level-1 cache between them.
void CpuExecutable::ChooseStep(const Dim& run, Call* call) const {
  constexpr int64_t kLongRun = 4096;
  const Geometry& g = *call->geometry;
  const bool plain = call->x_type == DataType::kFloat32 && plan_.y_type == DataType::kFloat32 &&
                     call->sum_kind == SumKind::kSingle && plan_.kind == PlanKind::kNormalization;
  const bool one_run = g.reduced.count == 1 && g.reduced_d.count == 1;
  // Shorter runs are not worth the call.
  constexpr int64_t kShortestRun = 96;
  if (!plain || call->y == nullptr || run.size < (one_run ? kLongRun : kShortestRun)) return;
  call->step = kernels_->step(plan_.activation.kind);
  if (call->step != nullptr) call->sum_dims = &g.reduced;
  // That stores whole lines or none.
  if (call->step != nullptr && call->cut) call->cut = call->stream = false;
}

Result CpuExecutable::Execute(const Call& call) const {
  return call.geometry->columns ? RunColumns(call) : RunRows(call);
}

Result CpuExecutable::Run(ExecutionContext& context) const {
  Call call;
  call.plan = &plan_;
  call.kernels = kernels_;
  call.context = &context;
  call.helpers = &helpers_;
  CallShapes shapes = shapes_;
  for (int form = 0; form < kFormCount; ++form) call.params[form] = params_[form];
  NORMFUSE_RETURN_IF_ERROR(ReadTensors(context, &call, &shapes));

  call.requantizes = plan_.sum_quantization.present();
  call.sum_scale = sum_scale_;
  call.sum_zero = sum_zero_;
  BufferPool::Lease lease(&pool_);
  NORMFUSE_RETURN_IF_ERROR(ReadParams(context, &lease, &call, &shapes));
  Geometry own;
  NORMFUSE_RETURN_IF_ERROR(Bind(shapes, &own, &call.geometry));
  NORMFUSE_RETURN_IF_ERROR(AllocateOutputs(context, &call));
  if (call.geometry->element_count == 0) {
    StoreEmptyStatistics(call);
    return {};
  }
  const bool packed = BitsOf(plan_.y_type) < 8 && call.y != nullptr;
  // Bits beyond the last element are 0.
  if (packed) {
    const size_t bytes = BytesFor(plan_.y_type, static_cast<size_t>(call.geometry->element_count));
    static_cast<unsigned char*>(call.y)[bytes - 1] = 0;
  }
  // Groups may begin in the middle of a byte, which two threads must not share.
  const bool one_thread = packed && plan_.kind == PlanKind::kNormalization;
  call.threads = one_thread ? 1
                            : WorthwhileThreads(EstimateNanoseconds(plan_, isa_, call.geometry->element_count),
                                                context.ThreadCount());
  ChoosePath(&call);
  return Execute(call);
}

}  // namespace
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
