// CompileForCpu: a chain with its parameters converted, and the set-up of each call.
#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "chain/execution.h"
#include "cpu/call_cache.h"
#include "cpu/cost_model.h"
#include "cpu/dynamic_quantization.h"
#include "cpu/elements.h"
#include "cpu/joined_affine.h"
#include "cpu/statistics.h"

namespace normfuse::cpu {
namespace {

bool Is32Bit(DataType type) { return type == DataType::kInt32 || type == DataType::kUint32; }

float ScalarOf(const ConstantTensor& constant) {
  return static_cast<float>(ReadElement(constant.type, constant.data, 0));
}

struct ConstantParam {
  FormId form;
  Param param;
};

class CpuExecutable final : public Executable {
 public:
  CpuExecutable(Chain chain, Isa isa)
      : chain_(std::move(chain)), usual_(UsualFormOf(chain_)), isa_(isa), kernels_(&KernelsFor(isa)) {}
  // Owned: what is read from the chain points into it.
  CpuExecutable(const CpuExecutable&) = delete;
  CpuExecutable& operator=(const CpuExecutable&) = delete;

  Result Init();
  Result FillTable();
  Result Run(ExecutionContext& context) const override;
  Result Describe(const PathQuery& query, std::string* text) const;

 private:
  Result InitQuantization(const Quantization& quantization, DataType type, FormId scale_form, const std::string& name);
  void ReadSpec();
  FormId NextForm(int count);
  Result ReadOperand(const Operand& operand, FormId usual, bool of_d, StageOperand* stage);
  Result ReadSteps(const std::vector<Step>& steps, bool usual, bool behind, std::vector<Stage>* stages);
  Result ReadX();
  Stage StageOf(const Step& step);
  Result ReadTensor(ExecutionContext& context, const OperandForms& operand, BoundTensor* tensor,
                    CallShapes* shapes) const;
  Result ReadTensors(ExecutionContext& context, Call* call, CallShapes* shapes) const;
  void SortParams();
  Result ReadParams(ExecutionContext& context, BufferPool::Lease* lease, Call* call, CallShapes* shapes) const;
  Result Bind(const CallShapes& changing, Geometry* geometry) const;
  Result RunNew(const CallShapes& shapes, Call* call, BufferPool::Lease* lease) const;
  Result RunBound(const BoundShapes* bound, Call* call, BufferPool::Lease* lease) const;
  void MakePlan(const BoundShapes* bound, Call* call) const;
  void JoinParameters(BufferPool::Lease* lease, Call* call) const;
  void SetConstants(Call* call) const;
  Result AllocateOutputs(ExecutionContext& context, Call* call) const;
  Result AllocateDynamic(ExecutionContext& context, BufferPool::Lease* lease, Call* call, void** bytes) const;
  Result FinishDynamic(ExecutionContext& context, const Call& call, void* bytes) const;
  static BoundTensor* TensorOf(FormId form, Call* call);

  Chain chain_;
  UsualForm usual_;
  Isa isa_;
  const KernelTable* kernels_;
  ParamSource sources_[kFormCount];
  ChainSpec spec_;
  std::vector<OperandForms> operands_;  // X first
  std::vector<size_t> tensors_;         // those of operands_ that are read where they lie
  int next_form_ = kFormFurther;
  std::vector<const Step*> emitting_;  // by index into Call::emitted
  std::vector<ConstantParam> constants_;
  bool joins_ = false;      // the first stage behind has further products and sums
  uint32_t uniform_ = 0;    // CallShapes::uniform
  int inputs_[kFormCount];  // forms whose parameters are inputs
  int input_count_ = 0;
  mutable BufferPool pool_;
  mutable WorkSharing work_sharing_;
  ForcedPath forced_;
  mutable CallCache calls_;
  uint8_t table_[256];
};

// Runs the chain on the 256 values of a byte.
class AllBytes final : public ExecutionContext {
 public:
  AllBytes(DataType type, uint8_t* y) : type_(type), y_(y) {
    for (int i = 0; i < 256; ++i) x_[i] = static_cast<uint8_t>(i);
  }
  Result Input(int /*index*/, TensorView* view) override {
    *view = {x_, type_, &kCount, 1};
    return {};
  }
  Result Output(int /*index*/, DataType /*type*/, const int64_t* /*dims*/, size_t /*rank*/, void** data) override {
    *data = y_;
    return {};
  }
  Result ParallelFor(void (*task)(void* user, size_t index), size_t count, void* user) override {
    for (size_t i = 0; i < count; ++i) task(user, i);
    return {};
  }
  int ThreadCount() const override { return 1; }

 private:
  static constexpr int64_t kCount = 256;
  DataType type_;
  uint8_t x_[kCount];
  uint8_t* y_;
};

Result CpuExecutable::InitQuantization(const Quantization& q, DataType type, FormId scale_form,
                                       const std::string& name) {
  Operand scale;
  scale.tensor = q.scale;
  scale.name = name + "_scale";
  NORMFUSE_RETURN_IF_ERROR(sources_[scale_form].Init(scale, false));
  Operand zero;
  zero.tensor = q.zero_point;
  zero.type = type;
  zero.name = name + "_zero_point";
  return sources_[scale_form + 1].Init(zero, Is32Bit(type));
}

FormId CpuExecutable::NextForm(int count) {
  const auto form = static_cast<FormId>(next_form_);
  next_form_ += count;
  return form;
}

// Whether an operand is constant, small or float32 already; others may be as large as X. One along channels or groups is
// small, and its own quantisation runs along it, not along d.
bool IsParameter(const Operand& operand) {
  return operand.type != DataType::kBool && (operand.constant() || operand.align != Align::kTrailing ||
                                             (operand.type == DataType::kFloat32 && !operand.quantization.present()));
}

// `usual`: the operand's form where the chain is of UsualForm, else kFormFurther.
Result CpuExecutable::ReadOperand(const Operand& operand, FormId usual, bool of_d, StageOperand* stage) {
  if (!operand.present()) return {};
  const bool is_residual = usual == kFormResidual;
  stage->is_parameter = usual == kFormFurther ? IsParameter(operand) : !is_residual;
  stage->form = usual == kFormFurther ? NextForm(1) : usual;
  OperandForms forms{&operand, stage->form, kFormCount, of_d};
  if (stage->is_parameter) {
    operands_.push_back(forms);
    return sources_[stage->form].Init(operand, false);
  }
  if (operand.quantization.present()) forms.scale_form = is_residual ? kFormResidualScale : NextForm(3);
  tensors_.push_back(operands_.size());
  operands_.push_back(forms);
  if (!forms.has_quantization()) return {};
  return InitQuantization(operand.quantization, operand.type, forms.scale_form, operand.name);
}

Result CpuExecutable::ReadX() {
  OperandForms forms{&chain_.x, kFormX, kFormCount, true};
  if (chain_.x.quantization.present()) forms.scale_form = kFormXScale;
  tensors_.push_back(0);
  operands_.push_back(forms);
  if (!forms.has_quantization()) return {};
  return InitQuantization(chain_.x.quantization, chain_.x.type, kFormXScale, "x");
}

Stage CpuExecutable::StageOf(const Step& step) {
  Stage stage;
  stage.kind = step.kind;
  stage.activation = step.activation.kind;
  stage.params = step.activation.params;
  stage.type = step.type;
  stage.mask = step.mask;
  stage.quantizes = step.quantization.present();
  if (stage.quantizes) {
    stage.quantization_scale = ScalarOf(*step.quantization.scale.constant);
    if (step.quantization.zero_point.present())
      stage.quantization_zero = ScalarOf(*step.quantization.zero_point.constant);
  }
  if (step.output != kNoOutput) {
    stage.emitted = static_cast<int>(emitting_.size());
    emitting_.push_back(&step);
  }
  return stage;
}

// Whether the activation's kernel can do the product behind it, too. One that an Add follows is done with that.
bool CanGate(const KernelTable& kernels, const Stage& stage, const std::vector<Step>& steps, size_t i) {
  return steps[i].kind == StepKind::kMul && stage.kind == StepKind::kActivate && !stage.gated &&
         kernels.gated[static_cast<int>(stage.activation)] != nullptr &&
         (i + 1 == steps.size() || steps[i + 1].kind != StepKind::kAdd);
}

bool IsAffine(StepKind kind) { return kind == StepKind::kAdd || kind == StepKind::kMul; }

// Whether a kernel for scale, bias and activation can do the step as well as what `stage` has already.
bool Joins(const Stage& stage, StepKind kind) {
  if (stage.kind != StepKind::kActivate || stage.activation != Activation::kIdentity) return false;
  if (!stage.further.empty()) return kind == StepKind::kActivate;
  if (kind == StepKind::kMul) return !stage.scale.present() && !stage.bias.present();
  return kind == StepKind::kAdd ? !stage.bias.present() : kind == StepKind::kActivate;
}

// Whether the step joins scale and bias of the first stage behind a normalisation, whose values need not be more accurate
// than the normalisation is.
bool JoinsAffine(const Chain& chain, const std::vector<Stage>& behind, const Step& step) {
  const Stage& stage = behind.back();
  const auto is_parameter = [](const StageOperand& operand) { return !operand.present() || operand.is_parameter; };
  return chain.normalizes() && !chain.has_softmax() && behind.size() == 1 && stage.emitted < 0 &&
         stage.activation == Activation::kIdentity && is_parameter(stage.scale) && is_parameter(stage.bias) &&
         IsAffine(step.kind) && IsParameter(step.operand);
}

// Behind the normalisation, scale, bias and activation become one stage wherever they follow each other.
Result CpuExecutable::ReadSteps(const std::vector<Step>& steps, bool usual, bool behind, std::vector<Stage>* stages) {
  static const ActivationCall kNothing;
  Stage apply;
  apply.params = kNothing.params;
  if (behind) stages->push_back(apply);
  int added = 0;
  for (size_t i = 0; i < steps.size(); ++i) {
    const Step& step = steps[i];
    const Stage stage = StageOf(step);
    if (behind && !chain_.normalizes() && CanGate(*kernels_, stages->back(), steps, i)) {
      stages->back().gated = true;
      NORMFUSE_RETURN_IF_ERROR(ReadOperand(step.operand, kFormFurther, false, &stages->back().slope));
      continue;
    }
    if (behind && !Joins(stages->back(), step.kind) && JoinsAffine(chain_, *stages, step)) {
      StageOperand operand;
      NORMFUSE_RETURN_IF_ERROR(ReadOperand(step.operand, kFormFurther, false, &operand));
      stages->back().further.push_back({step.kind, operand.form});
      continue;
    }
    if (!behind || !(IsAffine(step.kind) || step.kind == StepKind::kActivate)) {
      stages->push_back(stage);
    } else if (!Joins(stages->back(), step.kind)) {
      stages->push_back(apply);
    }
    Stage& last = stages->back();
    if (step.kind == StepKind::kActivate) {
      last.activation = stage.activation;
      last.params = stage.params;
      NORMFUSE_RETURN_IF_ERROR(ReadOperand(step.operand, usual ? kFormSlope : kFormFurther, !behind, &last.slope));
    } else if (IsAffine(step.kind) && behind) {
      const bool is_scale = step.kind == StepKind::kMul;
      const FormId form = !usual ? kFormFurther : is_scale ? kFormScale : kFormBias;
      NORMFUSE_RETURN_IF_ERROR(ReadOperand(step.operand, form, false, is_scale ? &last.scale : &last.bias));
    } else if (step.kind == StepKind::kMask) {
      NORMFUSE_RETURN_IF_ERROR(ReadOperand(step.operand, kFormFurther, true, &last.operand));
    } else if (IsCombination(step.kind)) {
      const FormId form = !usual ? kFormFurther : added++ == 0 ? kFormResidual : kFormResidualBias;
      NORMFUSE_RETURN_IF_ERROR(ReadOperand(step.operand, form, !behind, &last.operand));
    }
  }
  if (behind && stages->back().kind != StepKind::kActivate) stages->push_back(apply);
  return {};
}

void CpuExecutable::ReadSpec() {
  const Normalization norm = chain_.normalization.value_or(Normalization{});
  spec_.normalizes = chain_.normalizes();
  spec_.method = norm.method;
  spec_.zero_for_nan = norm.zero_for_nan;
  spec_.use_mean = norm.use_mean;
  spec_.normalize_variance = norm.normalize_variance;
  spec_.epsilon_on = norm.epsilon_on;
  spec_.epsilon = norm.epsilon;
  spec_.usual_before = usual_.before;
  const Stage& first = spec_.behind.front();
  joins_ = !first.further.empty();
  spec_.usual_behind = usual_.behind || (joins_ && spec_.behind.size() == 1 && !first.slope.present());
  spec_.activation = spec_.behind.back().activation;
  spec_.activation_params = spec_.behind.back().params;
  spec_.y_dynamic = chain_.store.dynamic.has_value();
  spec_.y_type = spec_.y_dynamic ? DataType::kFloat32 : chain_.store.type;
  spec_.y_quantized = chain_.store.quantization.present();
  spec_.y_saturate = chain_.store.saturate;
  spec_.y_block_size = chain_.store.quantization.block_size;
  if (usual_.sum != nullptr) spec_.sum_type = usual_.sum->type;
  spec_.stats_type = norm.stats_type;
  for (const Stage& stage : spec_.before) spec_.requantizes |= stage.quantizes;
  for (const Stage& stage : spec_.behind) spec_.emits_behind |= stage.emitted >= 0;
  spec_.nanoseconds = EstimateNanoseconds(chain_, isa_, 0);
  spec_.nanoseconds_per_element = EstimateNanoseconds(chain_, isa_, 1) - spec_.nanoseconds;
}

Result CpuExecutable::Init() {
  NORMFUSE_RETURN_IF_ERROR(ForcedPathOfEnvironment(&forced_));
  NORMFUSE_RETURN_IF_ERROR(ReadX());
  NORMFUSE_RETURN_IF_ERROR(ReadSteps(chain_.before, usual_.before, /*behind=*/false, &spec_.before));
  NORMFUSE_RETURN_IF_ERROR(ReadSteps(chain_.behind, usual_.behind, /*behind=*/true, &spec_.behind));
  NORMFUSE_RETURN_IF_ERROR(InitQuantization(chain_.store.quantization, chain_.store.type, kFormYScale, "y"));
  ReadSpec();
  SortParams();
  return IsOfBytes(chain_) ? FillTable() : Result();
}

Result CpuExecutable::FillTable() {
  AllBytes context(chain_.x.type, table_);
  NORMFUSE_RETURN_IF_ERROR(Run(context));
  spec_.table = table_;
  return {};
}

BoundTensor* CpuExecutable::TensorOf(FormId form, Call* call) {
  if (form >= kFormFurther) return &call->further[form - kFormFurther];
  return form == kFormResidual ? &call->residual : &call->x;
}

Result CpuExecutable::ReadTensor(ExecutionContext& context, const OperandForms& forms, BoundTensor* tensor,
                                 CallShapes* shapes) const {
  const Operand& operand = *forms.operand;
  TensorView view;
  NORMFUSE_RETURN_IF_ERROR(GetTensor(context, chain_.name, operand.name, operand.tensor, operand.type, &view));
  // A bool is a byte of 0 or 1.
  const DataType type = view.type == DataType::kBool ? DataType::kUint8 : view.type;
  *tensor = {view.data, type, forms.form, forms.scale_form, operand.quantization.block_size};
  shapes->of[forms.form] = {view.dims, static_cast<int>(view.rank)};
  return {};
}

Result CpuExecutable::ReadTensors(ExecutionContext& context, Call* call, CallShapes* shapes) const {
  for (const size_t i : tensors_) {
    NORMFUSE_RETURN_IF_ERROR(ReadTensor(context, operands_[i], TensorOf(operands_[i].form, call), shapes));
  }
  return {};
}

// Converts constant parameters; those that are inputs are listed, and converted in each call.
void CpuExecutable::SortParams() {
  std::vector<FormId> changing;
  changing.reserve(kFormCount);
  for (const size_t i : tensors_) changing.push_back(operands_[i].form);
  for (int form = 0; form < kFormCount; ++form) {
    const ParamSource& source = sources_[form];
    if (!source.present()) continue;
    if (!source.constant()) {
      inputs_[input_count_++] = form;
      changing.push_back(static_cast<FormId>(form));
      continue;
    }
    constants_.push_back({static_cast<FormId>(form), source.Constant()});
    if (source.uniform()) uniform_ |= 1u << form;
  }
  calls_.KeyedBy(std::move(changing));
}

void CpuExecutable::SetConstants(Call* call) const {
  for (const ConstantParam& constant : constants_) call->params[constant.form] = constant.param;
}

// Reads the parameters that are inputs; those that need converting use memory that `lease` then holds.
Result CpuExecutable::ReadParams(ExecutionContext& context, BufferPool::Lease* lease, Call* call,
                                 CallShapes* shapes) const {
  if (input_count_ == 0) return {};
  TensorView views[kFormCount];
  size_t doubles[kFormCount];
  size_t needed = 0;
  for (int i = 0; i < input_count_; ++i) {
    NORMFUSE_RETURN_IF_ERROR(sources_[inputs_[i]].Prepare(context, chain_.name, &views[i], &doubles[i]));
    needed += doubles[i];
  }
  if (needed != 0) lease->Take(needed);
  double* memory = lease->data();
  for (int i = 0; i < input_count_; ++i) {
    const int form = inputs_[i];
    NORMFUSE_RETURN_IF_ERROR(sources_[form].Read(context, chain_.name, views[i], memory, &call->params[form]));
    shapes->of[form] = call->params[form].shape;
    memory += doubles[i];
  }
  return {};
}

Result CpuExecutable::Bind(const CallShapes& changing, Geometry* geometry) const {
  CallShapes shapes;
  std::fill_n(shapes.of, kFormCount, Shape{nullptr, -1});
  for (const FormId form : calls_.forms()) shapes.of[form] = changing.of[form];
  for (const ConstantParam& constant : constants_) shapes.of[constant.form] = constant.param.shape;
  shapes.uniform = uniform_;
  NORMFUSE_RETURN_IF_ERROR(BindGeometry(chain_, operands_, shapes, geometry));
  if (joins_) LayOutJoined(spec_.behind.front(), geometry);
  return {};
}

// Shapes that were not met before, or that there was no room for.
Result CpuExecutable::RunNew(const CallShapes& shapes, Call* call, BufferPool::Lease* lease) const {
  Geometry geometry;
  NORMFUSE_RETURN_IF_ERROR(Bind(shapes, &geometry));
  call->geometry = &geometry;
  return RunBound(calls_.Add(shapes, geometry), call, lease);
}

// The plan of an earlier call, or a new one.
void CpuExecutable::MakePlan(const BoundShapes* bound, Call* call) const {
  const uint64_t key = PlanKey(*call);
  const Plan* known = bound == nullptr ? nullptr : bound->FindPlan(key);
  if (known != nullptr) {
    static_cast<Plan&>(*call) = *known;
    return;
  }
  call->path = Choose(*call, call->context->ThreadCount(), forced_);
  Resolve(call);
  if (bound != nullptr) bound->AddPlan(key, *call);
}

Result CpuExecutable::AllocateOutputs(ExecutionContext& context, Call* call) const {
  const Geometry& g = *call->geometry;
  const auto rank = static_cast<size_t>(g.rank);
  const auto allocate = [&](int output, DataType type, const int64_t* dims, void** data) -> Result {
    return output == kNoOutput ? Result() : context.Output(output, type, dims, rank, data);
  };
  if (!spec_.y_dynamic) {
    NORMFUSE_RETURN_IF_ERROR(allocate(chain_.store.output, chain_.store.type, g.shape, &call->y));
  }
  for (size_t i = 0; i < emitting_.size(); ++i) {
    const Step& step = *emitting_[i];
    NORMFUSE_RETURN_IF_ERROR(allocate(step.output, step.type, g.shape, &call->emitted[i]));
  }
  call->emits_before = std::any_of(spec_.before.begin(), spec_.before.end(), [call](const Stage& stage) {
    return stage.emitted >= 0 && call->emitted[stage.emitted] != nullptr;
  });
  if (usual_.before && call->emits_before) call->sum = call->emitted[0];
  if (!chain_.normalization) return {};
  const Normalization& norm = *chain_.normalization;
  NORMFUSE_RETURN_IF_ERROR(allocate(norm.mean_output, norm.stats_type, g.stat_shape, &call->mean));
  return allocate(norm.inv_std_dev_output, norm.stats_type, g.stat_shape, &call->inv_std_dev);
}

// Y as bytes, or null; Call::y, which is float32: an output, or else memory that `lease` then holds.
Result CpuExecutable::AllocateDynamic(ExecutionContext& context, BufferPool::Lease* lease, Call* call,
                                      void** bytes) const {
  const Geometry& g = *call->geometry;
  const auto rank = static_cast<size_t>(g.rank);
  const int output = chain_.store.dynamic->value_output;
  if (output != kNoOutput) {
    NORMFUSE_RETURN_IF_ERROR(context.Output(output, DataType::kFloat32, g.shape, rank, &call->y));
  }
  if (call->y == nullptr && g.element_count > 0) {
    constexpr size_t kDoublesInLine = kCacheLine / sizeof(double);
    lease->Take(static_cast<size_t>(g.element_count + 1) / 2 + kDoublesInLine);
    auto address = reinterpret_cast<uintptr_t>(lease->data());
    address = (address + kCacheLine - 1) / kCacheLine * kCacheLine;
    call->y = reinterpret_cast<void*>(address);
  }
  return context.Output(chain_.store.output, chain_.store.type, g.shape, rank, bytes);
}

Result CpuExecutable::FinishDynamic(ExecutionContext& context, const Call& call, void* bytes) const {
  const DynamicQuantization& dynamic = *chain_.store.dynamic;
  ByteQuantization made;
  if (call.geometry->element_count > 0) {
    NORMFUSE_RETURN_IF_ERROR(QuantizeDynamically(call, static_cast<uint8_t*>(bytes), &made));
  }
  const auto give = [&](int output, DataType type, const void* value) -> Result {
    void* data = nullptr;
    if (output == kNoOutput) return {};
    constexpr int64_t kNoDimensions = 0;
    NORMFUSE_RETURN_IF_ERROR(context.Output(output, type, &kNoDimensions, 0, &data));
    if (data != nullptr) std::memcpy(data, value, static_cast<size_t>(BitsOf(type)) / 8);
    return {};
  };
  NORMFUSE_RETURN_IF_ERROR(give(dynamic.scale_output, DataType::kFloat32, &made.scale));
  return give(dynamic.zero_point_output, DataType::kUint8, &made.zero);
}

// Groups without elements, whose mean is NaN.
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
  SetConstants(&call);
  CallShapes shapes;
  NORMFUSE_RETURN_IF_ERROR(ReadTensors(context, &call, &shapes));

  BufferPool::Lease params(&pool_);
  NORMFUSE_RETURN_IF_ERROR(ReadParams(context, &params, &call, &shapes));
  BufferPool::Lease values(&pool_);
  const BoundShapes* bound = calls_.Find(shapes);
  if (bound == nullptr) return RunNew(shapes, &call, &values);
  call.geometry = &bound->geometry();
  return RunBound(bound, &call, &values);
}

// Joins scales and biases for the whole call where they are few beside the elements of d.
void CpuExecutable::JoinParameters(BufferPool::Lease* lease, Call* call) const {
  constexpr int64_t kFew = 8;
  const Geometry& g = *call->geometry;
  if (g.joined_count * kFew > g.element_count) return;
  static_assert(2 * sizeof(float) == sizeof(double));
  lease->Take(static_cast<size_t>(g.joined_count));
  JoinForCall(call, spec_.behind.front(), reinterpret_cast<float*>(lease->data()));
}

Result CpuExecutable::RunBound(const BoundShapes* bound, Call* call, BufferPool::Lease* lease) const {
  ExecutionContext& context = *call->context;
  NORMFUSE_RETURN_IF_ERROR(AllocateOutputs(context, call));
  void* bytes = nullptr;
  if (spec_.y_dynamic) NORMFUSE_RETURN_IF_ERROR(AllocateDynamic(context, lease, call, &bytes));
  if (call->geometry->element_count == 0) {
    StoreEmptyStatistics(*call);
    return spec_.y_dynamic ? FinishDynamic(context, *call, bytes) : Result();
  }
  // Bits beyond the last element are 0.
  if (BitsOf(spec_.y_type) < 8 && call->y != nullptr) {
    const size_t size = BytesFor(spec_.y_type, static_cast<size_t>(call->geometry->element_count));
    static_cast<unsigned char*>(call->y)[size - 1] = 0;
  }
  BufferPool::Lease affine(&pool_);
  if (joins_) JoinParameters(&affine, call);
  MakePlan(bound, call);
  SetSources(call);
  NORMFUSE_RETURN_IF_ERROR(RunWalk(*call));
  return spec_.y_dynamic ? FinishDynamic(context, *call, bytes) : Result();
}

// Addresses stand in for tensors; nothing is read.
Result CpuExecutable::Describe(const PathQuery& query, std::string* text) const {
  if (input_count_ != 0) {
    return Result::Error(ErrorCode::kInvalidArgument, chain_.name + ": the path depends on the shapes of parameters");
  }
  const auto dims_of = [](const std::vector<int64_t>& given, const PartialShape& known) {
    std::vector<int64_t> dims = given;
    for (int i = 0; given.empty() && i < known.rank; ++i) {
      dims.push_back(known.dims[i] < 0 ? kTypicalDimension : known.dims[i]);
    }
    return dims;
  };
  alignas(kCacheLine) static unsigned char line[2 * kCacheLine];
  unsigned char* const somewhere = line + query.y_offset % kCacheLine;
  Call call;
  call.spec = &spec_;
  call.kernels = kernels_;
  SetConstants(&call);
  CallShapes shapes;
  const std::vector<int64_t> x = dims_of(query.x, chain_.x.shape);
  std::vector<std::vector<int64_t>> dims(operands_.size(), x);
  for (const size_t i : tensors_) {
    const OperandForms& forms = operands_[i];
    const bool like_x = i == 0 || (query.residual.empty() && forms.operand->shape.rank < 0);
    if (!like_x) dims[i] = dims_of(query.residual, forms.operand->shape);
    shapes.of[forms.form] = {dims[i].data(), static_cast<int>(dims[i].size())};
    *TensorOf(forms.form, &call) = {somewhere, forms.operand->type, forms.form, forms.scale_form,
                                    forms.operand->quantization.block_size};
  }
  if (chain_.store.output != kNoOutput) call.y = somewhere;
  if (usual_.before && usual_.sum != nullptr) call.sum = somewhere;
  Geometry geometry;
  NORMFUSE_RETURN_IF_ERROR(Bind(shapes, &geometry));
  call.geometry = &geometry;
  BufferPool::Lease affine(&pool_);
  if (joins_) JoinParameters(&affine, &call);
  *text = Text(Choose(call, query.threads, forced_));
  return {};
}

}  // namespace

Result DescribePath(const Chain& chain, const PathQuery& query, std::string* text) {
  Isa isa = Isa::kBaseline;
  NORMFUSE_RETURN_IF_ERROR(SelectIsa(&isa));
  NORMFUSE_RETURN_IF_ERROR(Validate(chain));
  CpuExecutable executable(chain, isa);
  NORMFUSE_RETURN_IF_ERROR(executable.Init());
  return executable.Describe(query, text);
}

}  // namespace normfuse::cpu

namespace normfuse {

Result CompileForCpu(const Chain& chain, std::unique_ptr<Executable>* executable) {
  cpu::Isa isa = cpu::Isa::kBaseline;
  NORMFUSE_RETURN_IF_ERROR(cpu::SelectIsa(&isa));
  NORMFUSE_RETURN_IF_ERROR(Validate(chain));
  auto result = std::make_unique<cpu::CpuExecutable>(chain, isa);
  NORMFUSE_RETURN_IF_ERROR(result->Init());
  *executable = std::move(result);
  return {};
}

}  // namespace normfuse
