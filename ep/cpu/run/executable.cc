// CompileForCpu: a chain with its parameters converted, and the set-up of each call.
#include <algorithm>
#include <cstring>
#include <limits>
#include <mutex>
#include <utility>
#include <vector>

#include "chain/execution.h"
#include "cpu/plan/cost_model.h"
#include "cpu/plan/dynamic_quantization.h"
#include "cpu/plan/joined_affine.h"
#include "cpu/plan/pairs.h"
#include "cpu/run/call_cache.h"
#include "cpu/run/statistics.h"

namespace normfuse::cpu {
namespace {

struct ConstantParam {
  FormId form;
  Param param;
};

class CpuExecutable final : public Executable {
 public:
  CpuExecutable(Chain chain, Isa isa) : chain_(std::move(chain)), isa_(isa), kernels_(&KernelsFor(isa)) {}
  Result Init();
  // What takes too long for a chain of which only the path is asked.
  void Finish();
  Result Run(ExecutionContext& context) const override;
  Result Describe(const PathQuery& query, std::string* text) const;

 private:
  Result ReadTensors(Call* call, CallShapes* shapes) const;
  void SortParams();
  Result ReadParams(BufferPool::Lease* lease, Call* call, CallShapes* shapes) const;
  Result Bind(const CallShapes& changing, Geometry* geometry) const;
  Result RunNew(const CallShapes& shapes, Call* call, BufferPool::Lease* lease) const;
  Result RunBound(const BoundShapes* bound, Call* call, BufferPool::Lease* lease) const;
  void MakePlan(const BoundShapes* bound, Call* call) const;
  void JoinParameters(BufferPool::Lease* lease, Call* call) const;
  void SetConstants(Call* call) const;
  Result FillTable(Call* call) const;
  Result AllocateOutputs(Call* call) const;
  Result AllocateDynamic(BufferPool::Lease* lease, Call* call, void** bytes) const;
  Result FinishDynamic(const Call& call, void* bytes) const;

  const Chain chain_;  // compiled_ points into it
  Isa isa_;
  const KernelTable* kernels_;
  CompiledChain compiled_;
  const ChainSpec& spec_ = compiled_.spec;
  std::vector<ConstantParam> constants_;
  uint32_t uniform_ = 0;    // CallShapes::uniform
  int inputs_[kFormCount];  // forms whose parameters are inputs
  int input_count_ = 0;
  mutable BufferPool pool_;
  mutable WorkSharing work_sharing_;
  ForcedPath forced_;
  mutable CallCache calls_;
  mutable std::once_flag tabulated_;
  mutable Result tabulation_;
  mutable CodeTable table_;
};

Result CpuExecutable::Init() {
  NORMFUSE_RETURN_IF_ERROR(ForcedPathOfEnvironment(&forced_));
  NORMFUSE_RETURN_IF_ERROR(ReadChain(chain_, isa_, &compiled_));
  SortParams();
  return {};
}

void CpuExecutable::Finish() {
  if (kernels_->element_steps != nullptr && !forced_.blocks) SimplifyPairs(chain_, isa_, &compiled_);
}

// When it is needed for the first time, whichever thread comes first.
Result CpuExecutable::FillTable(Call* call) const {
  std::call_once(tabulated_, [this] {
    const Codes& codes = *spec_.codes;
    const Chain chain = TailOf(chain_, codes);
    const std::optional<Ending> ending = EndingOf(chain, codes.type);
    CpuExecutable tail(ending ? WithoutEnding(chain) : chain, isa_);
    tabulation_ = tail.Init();
    tail.compiled_.spec.codes.reset();
    table_ = {codes.type, ending ? ending->type : spec_.y_type, ending, {}};
    if (tabulation_.ok()) tabulation_ = Tabulate(tail, &table_);
  });
  call->table = &table_;
  return tabulation_;
}

// Those that are read where they lie.
Result CpuExecutable::ReadTensors(Call* call, CallShapes* shapes) const {
  for (const size_t i : compiled_.tensors) {
    const OperandForms& forms = compiled_.forms.operands[i];
    const Operand& operand = *forms.operand;
    TensorView view;
    NORMFUSE_RETURN_IF_ERROR(GetTensor(*call->context, chain_.name, operand.name, operand.tensor, operand.type, &view));
    // A bool is a byte of 0 or 1.
    const DataType type = view.type == DataType::kBool ? DataType::kUint8 : view.type;
    call->tensor(forms.form) = {view.data, type, forms.form, forms.scale_form, operand.quantization.block_size};
    shapes->of[forms.form] = {view.dims, static_cast<int>(view.rank)};
  }
  return {};
}

// Converts constant parameters; those that are inputs are listed, and converted in each call.
void CpuExecutable::SortParams() {
  std::vector<FormId> changing;
  changing.reserve(kFormCount);
  for (const size_t i : compiled_.tensors) changing.push_back(compiled_.forms.operands[i].form);
  for (int form = 0; form < kFormCount; ++form) {
    const ParamSource& source = compiled_.sources[form];
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
Result CpuExecutable::ReadParams(BufferPool::Lease* lease, Call* call, CallShapes* shapes) const {
  if (input_count_ == 0) return {};
  TensorView views[kFormCount];
  size_t doubles[kFormCount];
  size_t needed = 0;
  for (int i = 0; i < input_count_; ++i) {
    NORMFUSE_RETURN_IF_ERROR(
        compiled_.sources[inputs_[i]].Prepare(*call->context, chain_.name, &views[i], &doubles[i]));
    needed += doubles[i];
  }
  if (needed != 0) lease->Take(needed);
  double* memory = lease->data();
  for (int i = 0; i < input_count_; ++i) {
    const int form = inputs_[i];
    NORMFUSE_RETURN_IF_ERROR(
        compiled_.sources[form].Read(*call->context, chain_.name, views[i], memory, &call->params[form]));
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
  NORMFUSE_RETURN_IF_ERROR(BindGeometry(chain_, compiled_.forms, shapes, geometry));
  if (spec_.joins()) LayOutJoined(spec_.behind.front(), geometry);
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

Result CpuExecutable::AllocateOutputs(Call* call) const {
  const Geometry& g = *call->geometry;
  const auto rank = static_cast<size_t>(g.rank);
  const auto allocate = [&](int output, DataType type, const int64_t* dims, void** data) -> Result {
    return output == kNoOutput ? Result() : call->context->Output(output, type, dims, rank, data);
  };
  if (!spec_.y_dynamic) {
    NORMFUSE_RETURN_IF_ERROR(allocate(chain_.store.output, chain_.store.type, g.shape, &call->y));
  }
  for (size_t i = 0; i < compiled_.emitting.size(); ++i) {
    const Step& step = *compiled_.emitting[i];
    NORMFUSE_RETURN_IF_ERROR(allocate(step.output, step.type, g.shape, &call->emitted[i]));
  }
  call->emits_before = std::any_of(spec_.before.begin(), spec_.before.end(), [call](const Stage& stage) {
    return stage.emitted >= 0 && call->emitted[stage.emitted] != nullptr;
  });
  if (compiled_.usual.before && call->emits_before) call->sum = call->emitted[0];
  if (!chain_.normalization) return {};
  const Normalization& norm = *chain_.normalization;
  NORMFUSE_RETURN_IF_ERROR(allocate(norm.mean_output, norm.stats_type, g.stat_shape, &call->mean));
  return allocate(norm.inv_std_dev_output, norm.stats_type, g.stat_shape, &call->inv_std_dev);
}

// Y as bytes, or null; Call::y, which is float32: an output, or else memory that `lease` then holds.
Result CpuExecutable::AllocateDynamic(BufferPool::Lease* lease, Call* call, void** bytes) const {
  const Geometry& g = *call->geometry;
  const auto rank = static_cast<size_t>(g.rank);
  const int output = chain_.store.dynamic->value_output;
  if (output != kNoOutput) {
    NORMFUSE_RETURN_IF_ERROR(call->context->Output(output, DataType::kFloat32, g.shape, rank, &call->y));
  }
  if (call->y == nullptr && g.element_count > 0) {
    constexpr size_t kDoublesInLine = kCacheLine / sizeof(double);
    lease->Take(static_cast<size_t>(g.element_count + 1) / 2 + kDoublesInLine);
    auto address = reinterpret_cast<uintptr_t>(lease->data());
    address = (address + kCacheLine - 1) / kCacheLine * kCacheLine;
    call->y = reinterpret_cast<void*>(address);
  }
  return call->context->Output(chain_.store.output, chain_.store.type, g.shape, rank, bytes);
}

Result CpuExecutable::FinishDynamic(const Call& call, void* bytes) const {
  const DynamicQuantization& dynamic = *chain_.store.dynamic;
  ByteQuantization made;
  if (call.geometry->element_count > 0) {
    NORMFUSE_RETURN_IF_ERROR(QuantizeDynamically(call, static_cast<uint8_t*>(bytes), &made));
  }
  const auto give = [&](int output, DataType type, const void* value) -> Result {
    void* data = nullptr;
    if (output == kNoOutput) return {};
    constexpr int64_t kNoDimensions = 0;
    NORMFUSE_RETURN_IF_ERROR(call.context->Output(output, type, &kNoDimensions, 0, &data));
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
  NORMFUSE_RETURN_IF_ERROR(ReadTensors(&call, &shapes));

  BufferPool::Lease params(&pool_);
  NORMFUSE_RETURN_IF_ERROR(ReadParams(&params, &call, &shapes));
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
  NORMFUSE_RETURN_IF_ERROR(AllocateOutputs(call));
  void* bytes = nullptr;
  if (spec_.y_dynamic) NORMFUSE_RETURN_IF_ERROR(AllocateDynamic(lease, call, &bytes));
  if (call->geometry->element_count == 0) {
    StoreEmptyStatistics(*call);
    return spec_.y_dynamic ? FinishDynamic(*call, bytes) : Result();
  }
  // Bits beyond the last element are 0.
  if (BitsOf(spec_.y_type) < 8 && call->y != nullptr) {
    const size_t size = BytesFor(spec_.y_type, static_cast<size_t>(call->geometry->element_count));
    static_cast<unsigned char*>(call->y)[size - 1] = 0;
  }
  BufferPool::Lease affine(&pool_);
  if (spec_.joins()) JoinParameters(&affine, call);
  MakePlan(bound, call);
  if (call->path.by_table) NORMFUSE_RETURN_IF_ERROR(FillTable(call));
  NORMFUSE_RETURN_IF_ERROR(RunWalk(*call));
  return spec_.y_dynamic ? FinishDynamic(*call, bytes) : Result();
}

// Addresses stand in for tensors; nothing is read.
Result CpuExecutable::Describe(const PathQuery& query, std::string* text) const {
  if (input_count_ != 0) {
    return Result::Error(ErrorCode::kInvalidArgument, chain_.name + ": the path depends on the shapes of parameters");
  }
  const auto dims_of = [](const PartialShape& known) {
    std::vector<int64_t> dims(known.dims, known.dims + std::max(known.rank, 0));
    std::replace_if(dims.begin(), dims.end(), [](int64_t dim) { return dim < 0; }, kTypicalDimension);
    return dims;
  };
  alignas(kCacheLine) static unsigned char line[2 * kCacheLine];
  unsigned char* const somewhere = line + query.y_offset % kCacheLine;
  Call call;
  call.spec = &spec_;
  call.kernels = kernels_;
  SetConstants(&call);
  CallShapes shapes;
  const std::vector<int64_t> x = query.x.empty() ? dims_of(chain_.x.shape) : query.x;
  std::vector<std::vector<int64_t>> dims(compiled_.forms.operands.size(), x);
  for (const size_t i : compiled_.tensors) {
    const OperandForms& forms = compiled_.forms.operands[i];
    if (i != 0 && forms.operand->shape.rank >= 0) dims[i] = dims_of(forms.operand->shape);
    shapes.of[forms.form] = {dims[i].data(), static_cast<int>(dims[i].size())};
    call.tensor(forms.form) = {somewhere, forms.operand->type, forms.form, forms.scale_form,
                               forms.operand->quantization.block_size};
  }
  if (chain_.store.output != kNoOutput) call.y = somewhere;
  if (compiled_.usual.before && compiled_.usual.sum != nullptr) call.sum = somewhere;
  Geometry geometry;
  NORMFUSE_RETURN_IF_ERROR(Bind(shapes, &geometry));
  call.geometry = &geometry;
  BufferPool::Lease affine(&pool_);
  if (spec_.joins()) JoinParameters(&affine, &call);
  *text = Text(Choose(call, query.threads, forced_));
  return {};
}

Result Make(const Chain& chain, std::unique_ptr<CpuExecutable>* executable) {
  Isa isa = Isa::kBaseline;
  NORMFUSE_RETURN_IF_ERROR(SelectIsa(&isa));
  NORMFUSE_RETURN_IF_ERROR(Validate(chain));
  *executable = std::make_unique<CpuExecutable>(chain, isa);
  return (*executable)->Init();
}

}  // namespace

Result DescribePath(const Chain& chain, const PathQuery& query, std::string* text) {
  std::unique_ptr<CpuExecutable> executable;
  NORMFUSE_RETURN_IF_ERROR(Make(chain, &executable));
  return executable->Describe(query, text);
}

}  // namespace normfuse::cpu

namespace normfuse {

Result CompileForCpu(const Chain& chain, std::unique_ptr<Executable>* executable) {
  std::unique_ptr<cpu::CpuExecutable> made;
  NORMFUSE_RETURN_IF_ERROR(cpu::Make(chain, &made));
  made->Finish();
  *executable = std::move(made);
  return {};
}

}  // namespace normfuse
