#include "cpu/run/call.h"

#include <algorithm>

#include "cpu/plan/element_steps.h"
#include "cpu/plan/joined_affine.h"
#include "cpu/run/elements.h"

namespace normfuse::cpu {
namespace {

// A quantisation parameter along a run: one value, one for each element, or one for each block (repeated into `expanded`).
Vec QuantizationAt(const Block& b, FormId form, FormId scale_form, int64_t block_size, const float* absent,
                   float* expanded) {
  const auto block_form = static_cast<FormId>(scale_form + 2);
  const Param& param = b.call.params[form];
  if (!param.present()) return {absent, 0};
  const float* data = param.data + b.at.at[form];
  const bool single = param.shape.ElementCount() == 1;
  if (block_size <= 0 || single) return {data, static_cast<int>(b.step.stride[form])};
  const int64_t stride = b.call.geometry->block_stride[scale_form];
  const int64_t coordinate = b.at.at[block_form];
  if (b.step.stride[block_form] == 0) {
    return {data + coordinate / block_size * stride, static_cast<int>(b.step.stride[form])};
  }
  int64_t in_block = coordinate % block_size;
  const float* value = data + coordinate / block_size * stride;
  for (int64_t i = 0; i < b.n; ++i) {
    expanded[i] = *value;
    if (++in_block == block_size) {
      in_block = 0;
      value += stride;
    }
  }
  return {expanded, 1};
}

// 32-bit integers with a zero point: the difference must be exact before it becomes a float32.
void LoadWide(const Block& b, const BoundTensor& source, float* d) {
  const auto zero_form = static_cast<FormId>(source.scale_form + 1);
  const auto block_form = static_cast<FormId>(source.scale_form + 2);
  const Param& zero = b.call.params[zero_form];
  const bool blocked = source.block_size > 0 && zero.shape.ElementCount() != 1;
  for (int64_t i = 0; i < b.n; ++i) {
    int64_t zero_index = b.at.at[zero_form] + i * b.step.stride[zero_form];
    if (blocked) {
      const int64_t block = (b.at.at[block_form] + i * b.step.stride[block_form]) / source.block_size;
      zero_index += block * b.call.geometry->block_stride[source.scale_form];
    }
    const double stored = ReadElement(source.type, source.data, b.at.at[source.form] + i);
    d[i] = static_cast<float>(stored - zero.wide[zero_index]);
  }
}

void LoadContiguous(const Call& call, const void* data, DataType type, int64_t index, int64_t n, float* d) {
  const LoadFn load = call.kernels->load[static_cast<int>(type)];
  if (load != nullptr) {
    load(ElementAt(data, type, index), static_cast<size_t>(n), d);
  } else {
    LoadRare(type, data, index, static_cast<size_t>(n), d);
  }
}

void Dequantize(const Call& call, int64_t n, Vec scale, Vec zero, float* d) {
  call.kernels->dequantize[static_cast<int>(DataType::kFloat32)](d, static_cast<size_t>(n), scale, zero, d, false);
}

// Rounded and clamped to what the integer type holds.
void Quantize(const Call& call, DataType type, int64_t n, Vec scale, Vec zero, float* values) {
  float low = 0.0f;
  float high = 0.0f;
  IntegerRange(type, &low, &high);
  call.kernels->quantize(values, static_cast<size_t>(n), scale, zero, low, high);
}

// One operand, dequantised, along a run.
void LoadOperand(const Block& b, const BoundTensor& source, float* d) {
  const Call& call = b.call;
  const int64_t index = b.at.at[source.form];
  const bool dequantize = source.quantized() && !(call.path.stored_integers && source.form == kFormX);
  if (!dequantize) return LoadContiguous(call, source.data, source.type, index, b.n, d);
  const float none = 0.0f;
  const FormId scale_form = source.scale_form;
  const auto zero_form = static_cast<FormId>(scale_form + 1);
  const bool is_wide = call.params[zero_form].wide != nullptr;
  const BlockRoom::Loan scale_room(&b.scratch->scale);
  const BlockRoom::Loan zero_room(&b.scratch->zero);
  const Vec scales = QuantizationAt(b, scale_form, scale_form, source.block_size, &kOne, scale_room.data());
  Vec zeros{&none, 0};
  if (!is_wide) zeros = QuantizationAt(b, zero_form, scale_form, source.block_size, &none, zero_room.data());
  const auto from_type = call.kernels->dequantize[static_cast<int>(source.type)];
  if (from_type != nullptr && !is_wide) {
    return from_type(ElementAt(source.data, source.type, index), static_cast<size_t>(b.n), scales, zeros, d,
                     call.path.only_dequantizes && call.non_temporal());
  }
  if (is_wide) {
    LoadWide(b, source, d);
  } else {
    LoadRare(source.type, source.data, index, static_cast<size_t>(b.n), d);
  }
  Dequantize(call, b.n, scales, zeros, d);
}

// The number of elements to read of an operand: 1 where it is broadcast along the run, a period where it repeats.
Block Distinct(const Block& b, FormId form) {
  const Geometry& g = *b.call.geometry;
  const int64_t alike = g.Repeats(form) ? std::min(g.period, b.n) : 1;
  return {b.call, b.at, b.step, b.step.stride[form] == 0 ? alike : b.n, b.scratch};
}

// The first of n values again and again behind them.
void Repeat(int64_t first, int64_t n, float* values) {
  for (int64_t filled = first; filled < n; filled *= 2) {
    std::copy_n(values, std::min(filled, n - filled), values + filled);
  }
}

void StoreFloats(const Call& call, DataType type, void* data, int64_t index, int64_t n, const float* values) {
  const StoreFn store = call.kernels->store[static_cast<int>(type)];
  if (store != nullptr) {
    store(values, static_cast<size_t>(n), ElementAt(data, type, index));
  } else {
    StoreRare(type, call.spec->y_saturate, data, index, static_cast<size_t>(n), values);
  }
}

void QuantizeBlock(const Block& b, float* values) {
  const ChainSpec& spec = *b.call.spec;
  const float none = 0.0f;
  const BlockRoom::Loan scale_room(&b.scratch->scale);
  const BlockRoom::Loan zero_room(&b.scratch->zero);
  const Vec scales = QuantizationAt(b, kFormYScale, kFormYScale, spec.y_block_size, &kOne, scale_room.data());
  const Vec zeros = QuantizationAt(b, kFormYZero, kFormYScale, spec.y_block_size, &none, zero_room.data());
  if (IsFloat8(spec.y_type)) {
    b.call.kernels->divide(values, static_cast<size_t>(b.n), scales, zeros);
  } else {
    Quantize(b.call, spec.y_type, b.n, scales, zeros, values);
  }
}

// Stores d in an output; where that quantises, d becomes what is stored.
void StoreOnTheWay(const Call& call, const Stage& stage, int64_t index, int64_t n, void* emitted, float* d) {
  const Vec scale{&stage.quantization_scale, 0};
  const Vec zero{&stage.quantization_zero, 0};
  if (stage.quantizes) Quantize(call, stage.type, n, scale, zero, d);
  if (emitted != nullptr) StoreFloats(call, stage.type, emitted, index, n, d);
  if (stage.quantizes) Dequantize(call, n, scale, zero, d);
}

// What all of d is quantised by, or what belongs to the block, in the rooms of the caller.
void QuantizationOf(const Block& b, const Stage& stage, Vec* scale, Vec* zero) {
  *scale = {&stage.quantization_scale, 0};
  *zero = {&stage.quantization_zero, 0};
  const FormId form = stage.quantization_form;
  if (form == kFormCount) return;
  *scale = QuantizationAt(b, form, form, stage.block_size, &kOne, b.scratch->scale.lent());
  *zero = QuantizationAt(b, static_cast<FormId>(form + 1), form, stage.block_size, zero->data, b.scratch->zero.lent());
}

// Quantised and dequantised, from x to y, which may be x.
void FakeQuantizeBlock(const Block& b, const Stage& stage, const float* x, float* y, bool stream) {
  const Call& call = b.call;
  const auto n = static_cast<size_t>(b.n);
  FakeQuantizeArgs args{.x = x,
                        .y = y,
                        .n = n,
                        .scale = {},
                        .zero = {},
                        .low = stage.least_code,
                        .high = stage.most_code,
                        .stream = stream};
  const BlockRoom::Loan scale_room(&b.scratch->scale);
  const BlockRoom::Loan zero_room(&b.scratch->zero);
  QuantizationOf(b, stage, &args.scale, &args.zero);
  const bool is_joined = stage.quantizer.factor != stage.quantizer.scale;
  if (!IsFloat8(stage.type) && !is_joined) return call.kernels->fake_quantize(args);
  if (y != x) std::copy_n(x, b.n, y);
  if (is_joined) {
    call.kernels->quantize(y, n, args.scale, args.zero, args.low, args.high);
    return Dequantize(call, b.n, {&stage.quantizer.factor, 0}, args.zero, y);
  }
  uint8_t codes[kBlock];
  call.kernels->divide(y, n, args.scale, args.zero);
  StoreRare(stage.type, stage.saturate, codes, 0, n, y);
  LoadRare(stage.type, codes, 0, n, y);
  Dequantize(call, b.n, args.scale, args.zero, y);
}

// The arguments of kernels that quantise, for one scale for all of Y.
void SetQuantization(const Call& call, ApplyArgs* args) {
  if (call.params[kFormYScale].present()) args->y_scale = *call.params[kFormYScale].data;
  if (call.params[kFormYZero].present()) args->y_zero = *call.params[kFormYZero].data;
}

}  // namespace

Vec OperandAt(const Block& b, const StageOperand& operand, const float* absent, float* room) {
  if (operand.is_kept) return {b.scratch->stage.lent(), 1};
  if (!operand.present()) return {absent, 0};
  const Block distinct = Distinct(b, operand.form);
  const bool repeats = b.call.geometry->Repeats(operand.form);
  if (!operand.is_parameter) {
    LoadOperand(distinct, b.call.tensor(operand.form), room);
  } else {
    const Vec parameter = VecAt(b.call, operand.form, b.at, b.step, absent);
    if (!repeats) return parameter;
    std::copy_n(parameter.data, distinct.n, room);
  }
  if (!repeats) return {room, b.step.stride[operand.form] == 0 ? 0 : 1};
  static_assert(kPattern % kLongestPeriod == 0);
  Repeat(distinct.n, kPattern, room);
  return {room, 1, /*repeats=*/true};
}

namespace {

// Scale and bias of a stage kActivate, with what joins them. False: that has to be done step by step.
bool AffineOf(const Block& b, const Stage& stage, const ActivateRooms& rooms, Affine* affine) {
  float* const joined[] = {rooms.scale.data(), rooms.bias.data()};
  if (stage.further.empty()) {
    *affine = {OperandAt(b, stage.scale, &kOne, joined[0]), OperandAt(b, stage.bias, &kNoBias, joined[1])};
    return true;
  }
  if (!b.call.is_joined) return JoinedAt(b, stage, joined, affine);
  *affine = {VecAt(b.call, kFormScale, b.at, b.step, &kOne), VecAt(b.call, kFormBias, b.at, b.step, &kNoBias)};
  return true;
}

// Scale, bias and what joins them step by step, from x into y.
void ApplyOneByOne(const Block& b, const Stage& stage, const ActivateRooms& rooms, const Normalizer& normalizer,
                   const float* x, float* y) {
  ApplyArgs args;
  args.x = x;
  args.y = y;
  args.n = static_cast<size_t>(b.n);
  args.normalizers = &normalizer;
  args.scale = OperandAt(b, stage.scale, &kOne, rooms.scale.data());
  args.bias = OperandAt(b, stage.bias, &kNoBias, rooms.bias.data());
  b.call.kernels->apply[static_cast<int>(Activation::kIdentity)](args);
  for (const FurtherAffine& further : stage.further) {
    const Vec operand = VecAt(b.call, further.form, b.at, b.step, nullptr);
    b.call.kernels->combine[static_cast<int>(further.kind)](y, args.n, operand);
  }
}

// The arguments of a stage kActivate of x. What its kernel cannot do is done in `room`, which may be x.
ApplyArgs StageArgs(const Block& b, const Stage& stage, const ActivateRooms& rooms, const Normalizer& normalizer,
                    const float* x, float* room) {
  static const Normalizer kNothing;
  Affine affine{{&kOne, 0}, {&kNoBias, 0}};
  const bool at_once = AffineOf(b, stage, rooms, &affine);
  if (!at_once) ApplyOneByOne(b, stage, rooms, normalizer, x, room);
  ApplyArgs args;
  args.x = at_once ? x : room;
  args.n = static_cast<size_t>(b.n);
  args.normalizers = at_once ? &normalizer : &kNothing;
  args.scale = affine.scale;
  args.bias = affine.bias;
  args.slope = OperandAt(b, stage.slope, &kOne, rooms.slope.data());
  args.params = stage.params;
  args.behind_normalization = b.call.spec->normalizes;
  return args;
}

}  // namespace

void ApplyStage(const Block& b, const Stage& stage, const Normalizer& normalizer, const float* x, float* y) {
  const ActivateRooms rooms(b.scratch);
  ApplyArgs args = StageArgs(b, stage, rooms, normalizer, x, y);
  args.y = y;
  const auto& kernels = stage.gated ? b.call.kernels->gated : b.call.kernels->apply;
  kernels[static_cast<int>(stage.activation)](args);
}

namespace {

// The other stages, in place.
void RunStage(const Block& b, const Stage& stage, const Normalizer& normalizer, Emission emission, float* d) {
  const Call& call = b.call;
  const int64_t index = b.at.at[kFormY];
  void* emitted = stage.emitted < 0 || emission == Emission::kNo ? nullptr : call.emitted[stage.emitted];
  if (stage.kind == StepKind::kActivate) return ApplyStage(b, stage, normalizer, d, d);
  if (stage.kind == StepKind::kMask) return HideBlock(b, stage, stage.mask.fill, d);
  if (stage.kind == StepKind::kFakeQuantize) {
    FakeQuantizeBlock(b, stage, d, d, /*stream=*/false);
    if (stage.keeps) std::copy_n(d, b.n, b.scratch->stage.lent());
    return;
  }
  if (IsStoring(stage.kind)) return StoreOnTheWay(call, stage, index, b.n, emitted, d);
  const BlockRoom::Loan room(&b.scratch->operand);
  call.kernels->combine[static_cast<int>(stage.kind)](d, static_cast<size_t>(b.n),
                                                      OperandAt(b, stage.operand, nullptr, room.data()));
}

// What is added to X, where it lies.
template <class Args>
void SetAddends(const Call& call, const Offsets& at, const Dim& row_step, Args* args) {
  if (call.path.operands == SumKind::kSingle) return;
  args->x2 = ElementAt(call.residual.data, call.x.type, at.at[kFormResidual]);
  args->x2_stride = row_step.stride[kFormResidual];
  if (call.path.operands == SumKind::kPair) return;
  args->x_bias = call.params[kFormResidualBias].data + at.at[kFormResidualBias];
  args->x_bias_stride = row_step.stride[kFormResidualBias];
}

}  // namespace

void LoadBlock(const Block& block, Emission emission, float* d) {
  const bool stores = emission == Emission::kYes && block.call.emits_before;
  if (block.call.reads_by_steps() && !stores && RunStepsBefore(block, d)) return;
  const Block distinct = Distinct(block, kFormX);
  LoadOperand(distinct, block.call.x, d);
  Repeat(distinct.n, block.n, d);
  const BlockRoom::Loan kept_by_stage(&block.scratch->stage);
  for (const Stage& stage : block.call.spec->before) RunStage(block, stage, Normalizer{}, emission, d);
}

void HideBlock(const Block& b, const Stage& stage, float fill, float* values) {
  const FormId form = stage.operand.form;
  const auto* bytes = static_cast<const uint8_t*>(b.call.tensor(form).data) + b.at.at[form];
  if (b.step.stride[form] != 0) {
    b.call.kernels->mask(values, static_cast<size_t>(b.n), bytes, stage.mask.shows, fill);
  } else if ((*bytes != 0) != stage.mask.shows) {
    std::fill_n(values, b.n, fill);
  }
}

const float* ReadBlock(const Block& block, Emission emission, float* room) {
  const Call& call = block.call;
  const bool contiguous = block.step.stride[kFormX] == 1 || block.n == 1;
  if (call.spec->before.empty() && call.x.type == DataType::kFloat32 && contiguous) {
    return static_cast<const float*>(call.x.data) + block.at.at[kFormX];
  }
  LoadBlock(block, emission, room);
  return room;
}

void StoreBlock(const Block& block, const Normalizer& normalizer, const float* d, float* room) {
  const Call& call = block.call;
  const ChainSpec& spec = *call.spec;
  const Normalizer nothing;
  const size_t last = spec.behind.size() - 1;
  const float* from = d;
  const bool streams = spec.y_type == DataType::kFloat32 && call.path.store == Store::kNonTemporal;
  const int64_t index = block.at.at[kFormY];
  if (call.stores_by_steps() && RunStepsBehind(block, normalizer, d, room)) return;
  const BlockRoom::Loan kept_by_stage(&block.scratch->stage);
  for (size_t i = 0; i < last; ++i) {
    const Stage& stage = spec.behind[i];
    // The first may normalise, or dequantise what was read as integers.
    if (stage.changes_nothing() && (i > 0 || !(spec.normalizes || call.path.stored_integers))) continue;
    if (spec.ends_fake_quantized && i + 1 == last && call.y != nullptr) {
      return FakeQuantizeBlock(block, stage, from, static_cast<float*>(call.y) + index, streams);
    }
    if (stage.kind == StepKind::kActivate) {
      ApplyStage(block, stage, i == 0 ? normalizer : nothing, from, room);
    } else {
      if (from != room) std::copy_n(from, block.n, room);
      RunStage(block, stage, nothing, Emission::kYes, room);
    }
    from = room;
  }
  if (call.y == nullptr) return;
  const Normalizer& remaining = last == 0 ? normalizer : nothing;
  if (call.block_apply == nullptr) {
    ApplyStage(block, spec.behind[last], remaining, from, room);
    if (spec.y_quantized) QuantizeBlock(block, room);
    return StoreFloats(call, spec.y_type, call.y, index, block.n, room);
  }
  const ActivateRooms rooms(block.scratch);
  ApplyArgs args = StageArgs(block, spec.behind[last], rooms, remaining, from, room);
  args.y = ElementAt(call.y, spec.y_type, index);
  args.stream = streams;
  SetQuantization(call, &args);
  call.block_apply(args);
}

ApplyArgs ApplyArgsAt(const Call& call, const Offsets& at, const Dim& step, const Dim& row_step, int64_t n, int rows,
                      const Normalizer* normalizers) {
  const ChainSpec& spec = *call.spec;
  ApplyArgs args;
  const FormId form = call.applies_to_sum() ? kFormY : kFormX;
  args.x = ElementAt(call.applies_to_sum() ? call.sum : call.x.data, call.apply_type(), at.at[form]);
  args.x_stride = row_step.stride[form];
  if (!call.applies_to_sum()) SetAddends(call, at, row_step, &args);
  args.y = ElementAt(call.y, spec.y_type, at.at[kFormY]);
  args.y_stride = row_step.stride[kFormY];
  args.n = static_cast<size_t>(n);
  args.rows = rows;
  args.normalizers = normalizers;
  args.scale = VecAt(call, kFormScale, at, step, &kOne);
  args.bias = VecAt(call, kFormBias, at, step, &kNoBias);
  args.slope = VecAt(call, kFormSlope, at, step, &kOne);
  args.scale_stride = row_step.stride[kFormScale];
  args.bias_stride = row_step.stride[kFormBias];
  args.slope_stride = row_step.stride[kFormSlope];
  args.params = spec.activation_params;
  args.stream = call.non_temporal();
  args.behind_normalization = spec.normalizes;
  SetQuantization(call, &args);
  return args;
}

void SetPatterns(const Block& b, const ActivateRooms& rooms, ApplyArgs* args) {
  const auto set = [&b](FormId form, const BlockRoom::Loan& room, Vec* vec) {
    if (b.call.geometry->Repeats(form)) *vec = OperandAt(b, {.form = form}, nullptr, room.data());
  };
  set(kFormScale, rooms.scale, &args->scale);
  set(kFormBias, rooms.bias, &args->bias);
  set(kFormSlope, rooms.slope, &args->slope);
}

RowSumsArgs RowSumsArgsAt(const Call& call, const Offsets& at, const Dim& row_step, int64_t n, int rows, Sums* sums) {
  RowSumsArgs args{};
  args.x = ElementAt(call.x.data, call.x.type, at.at[kFormX]);
  args.x_stride = row_step.stride[kFormX];
  SetAddends(call, at, row_step, &args);
  if (call.sum != nullptr) {
    args.sum = ElementAt(call.sum, call.x.type, at.at[kFormY]);
    args.sum_stride = row_step.stride[kFormY];
    args.stream = call.non_temporal();
  }
  args.n = static_cast<size_t>(n);
  args.rows = rows;
  args.sums = sums;
  return args;
}

}  // namespace normfuse::cpu
