#include "cpu/call.h"

#include <algorithm>

#include "cpu/elements.h"

namespace normfuse::cpu {
namespace {

// A quantisation parameter along a run: constant, element per element, or one per block (spelled out into `expanded`).
Vec QuantizationAt(const Call& call, FormId form, FormId block_form, int which, const Offsets& at, const Dim& step,
                   int64_t n, int64_t block_size, const float* absent, float* expanded) {
  const Param& param = call.params[form];
  if (!param.present()) return {absent, 0};
  const float* data = param.data + at.at[form];
  const bool single = param.shape.ElementCount() == 1;
  if (block_size <= 0 || single) return {data, static_cast<int>(step.stride[form])};
  const int64_t stride = call.geometry->block_stride[which];
  const int64_t coordinate = at.at[block_form];
  if (step.stride[block_form] == 0) {
    return {data + coordinate / block_size * stride, static_cast<int>(step.stride[form])};
  }
  int64_t in_block = coordinate % block_size;
  const float* value = data + coordinate / block_size * stride;
  for (int64_t i = 0; i < n; ++i) {
    expanded[i] = *value;
    if (++in_block == block_size) {
      in_block = 0;
      value += stride;
    }
  }
  return {expanded, 1};
}

// 32-bit integers with a zero point: the difference must be exact before it becomes a float32.
void LoadWide(const Call& call, const void* data, DataType type, FormId scale_form, int which, const Offsets& at,
              const Dim& step, int64_t index, int64_t n, int64_t block_size, float* d) {
  const auto zero_form = static_cast<FormId>(scale_form + 1);
  const auto block_form = static_cast<FormId>(scale_form + 2);
  const Param& zero = call.params[zero_form];
  const bool blocked = block_size > 0 && zero.shape.ElementCount() != 1;
  for (int64_t i = 0; i < n; ++i) {
    int64_t zero_index = at.at[zero_form] + i * step.stride[zero_form];
    if (blocked) {
      zero_index += (at.at[block_form] + i * step.stride[block_form]) / block_size * call.geometry->block_stride[which];
    }
    d[i] = static_cast<float>(ReadElement(type, data, index + i) - zero.wide[zero_index]);
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

// One operand, dequantised, along a run; a broadcast one is read once and repeated.
void LoadOperand(const Call& call, const BoundTensor& source, const Offsets& at, const Dim& step, int64_t n,
                 Scratch* scratch, float* d) {
  const int64_t index = at.at[source.form];
  const bool repeated = step.stride[source.form] == 0;
  const int64_t count = repeated ? 1 : n;
  const auto zero_form = static_cast<FormId>(source.scale_form + 1);
  const auto block_form = static_cast<FormId>(source.scale_form + 2);
  const Param& zero = call.params[zero_form];
  const bool dequantize =
      call.params[source.scale_form].present() && !(call.path.stored_integers && source.form == kFormX);
  if (!dequantize) {
    LoadContiguous(call, source.data, source.type, index, count, d);
  } else {
    const float none = 0.0f;
    const Vec scales = QuantizationAt(call, source.scale_form, block_form, source.which, at, step, count,
                                      source.block_size, &kOne, scratch->scale);
    const Vec zeros = zero.wide != nullptr ? Vec{&none, 0}
                                           : QuantizationAt(call, zero_form, block_form, source.which, at, step, count,
                                                            source.block_size, &none, scratch->zero);
    const auto from_type = call.kernels->dequantize[static_cast<int>(source.type)];
    if (from_type != nullptr && zero.wide == nullptr) {
      from_type(ElementAt(source.data, source.type, index), static_cast<size_t>(count), scales, zeros, d,
                call.path.only_dequantizes && call.non_temporal());
    } else {
      if (zero.wide != nullptr) {
        LoadWide(call, source.data, source.type, source.scale_form, source.which, at, step, index, count,
                 source.block_size, d);
      } else {
        LoadRare(source.type, source.data, index, static_cast<size_t>(count), d);
      }
      Dequantize(call, count, scales, zeros, d);
    }
  }
  for (int64_t i = 1; repeated && i < n; ++i) d[i] = d[0];
}

void StoreFloats(const Call& call, DataType type, void* data, int64_t index, int64_t n, const float* values) {
  const StoreFn store = call.kernels->store[static_cast<int>(type)];
  if (store != nullptr) {
    store(values, static_cast<size_t>(n), ElementAt(data, type, index));
  } else {
    StoreRare(type, call.spec->y_saturate, data, index, static_cast<size_t>(n), values);
  }
}

void QuantizeBlock(const Call& call, const Offsets& at, const Dim& step, int64_t n, Scratch* scratch, float* values) {
  const DataType type = call.spec->y_type;
  const float none = 0.0f;
  const int64_t block_size = call.spec->y_block_size;
  const Vec scales = QuantizationAt(call, kFormYScale, kFormYBlock, 2, at, step, n, block_size, &kOne, scratch->scale);
  const Vec zeros = QuantizationAt(call, kFormYZero, kFormYBlock, 2, at, step, n, block_size, &none, scratch->zero);
  if (IsFloat8(type)) {
    call.kernels->divide(values, static_cast<size_t>(n), scales, zeros);
    return;
  }
  float low = 0.0f;
  float high = 0.0f;
  IntegerRange(type, &low, &high);
  call.kernels->quantize(values, static_cast<size_t>(n), scales, zeros, low, high);
}

// To integers, still as float32.
void QuantizeSum(const Call& call, int64_t n, float* d) {
  float low = 0.0f;
  float high = 0.0f;
  IntegerRange(call.spec->sum_type, &low, &high);
  call.kernels->quantize(d, static_cast<size_t>(n), Vec{&call.spec->sum_scale, 0}, Vec{&call.spec->sum_zero, 0}, low,
                         high);
}

// Of kernels that quantise: one scale for all of Y.
void SetQuantization(const Call& call, ApplyArgs* args) {
  if (call.params[kFormYScale].present()) args->y_scale = *call.params[kFormYScale].data;
  if (call.params[kFormYZero].present()) args->y_zero = *call.params[kFormYZero].data;
}

}  // namespace

void LoadBlock(const Call& call, const Offsets& at, const Dim& step, int64_t n, Scratch* scratch, float* d) {
  LoadOperand(call, call.x, at, step, n, scratch, d);
  if (call.residual.data != nullptr) {
    LoadOperand(call, call.residual, at, step, n, scratch, scratch->block);
    call.kernels->add(d, static_cast<size_t>(n), Vec{scratch->block, 1});
  }
  if (call.params[kFormResidualBias].present()) {
    call.kernels->add(d, static_cast<size_t>(n), VecAt(call, kFormResidualBias, at, step, nullptr));
  }
  if (call.spec->requantizes) {
    QuantizeSum(call, n, d);
    Dequantize(call, n, Vec{&call.spec->sum_scale, 0}, Vec{&call.spec->sum_zero, 0}, d);
  }
}

void StoreSum(const Call& call, const Offsets& at, int64_t n, Scratch* scratch, const float* d) {
  if (call.spec->requantizes) {
    // d is a multiple of the scale already, and becomes the same integer again.
    std::copy_n(d, n, scratch->block);
    QuantizeSum(call, n, scratch->block);
    d = scratch->block;
  }
  StoreFloats(call, call.spec->sum_type, call.sum, at.at[kFormY], n, d);
}

void StoreBlock(const Call& call, const Offsets& at, const Dim& step, int64_t n, const Normalizer& normalizer,
                Scratch* scratch, float* d) {
  const ChainSpec& spec = *call.spec;
  const int64_t index = at.at[kFormY];
  const bool direct = call.block_apply != nullptr;
  ApplyArgs args;
  args.x = d;
  args.x2 = nullptr;
  args.y = direct ? ElementAt(call.y, spec.y_type, index) : d;
  args.n = static_cast<size_t>(n);
  args.normalizers = &normalizer;
  args.scale = VecAt(call, kFormScale, at, step, &kOne);
  args.bias = VecAt(call, kFormBias, at, step, &kNoBias);
  args.slope = VecAt(call, kFormSlope, at, step, &kOne);
  args.params = spec.activation_params;
  args.behind_normalization = spec.normalizes;
  if (direct) {
    args.stream = spec.y_type == DataType::kFloat32 && call.path.store == Store::kNonTemporal;
    SetQuantization(call, &args);
    return call.block_apply(args);
  }
  call.kernels->apply[static_cast<int>(spec.activation)](args);
  if (spec.y_quantized) QuantizeBlock(call, at, step, n, scratch, d);
  StoreFloats(call, spec.y_type, call.y, index, n, d);
}

ApplyArgs ApplyArgsAt(const Call& call, const Offsets& at, const Dim& step, const Dim& row_step, int64_t n, int rows,
                      const Normalizer* normalizers) {
  const ChainSpec& spec = *call.spec;
  ApplyArgs args;
  args.x = ElementAt(call.apply_x, call.apply_type, at.at[call.apply_form]);
  args.x2 = call.apply_x2 == nullptr ? nullptr : ElementAt(call.apply_x2, call.apply_type, at.at[kFormResidual]);
  if (call.apply_x2 != nullptr && call.path.operands == SumKind::kBiasedPair) {
    args.x_bias = call.params[kFormResidualBias].data + at.at[kFormResidualBias];
    args.x_bias_stride = row_step.stride[kFormResidualBias];
  }
  args.y = ElementAt(call.y, spec.y_type, at.at[kFormY]);
  args.x_stride = row_step.stride[call.apply_form];
  args.x2_stride = row_step.stride[kFormResidual];
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

RowSumsArgs RowSumsArgsAt(const Call& call, const Offsets& at, const Dim& row_step, int64_t n, int rows, Sums* sums) {
  RowSumsArgs args{};
  args.x = ElementAt(call.x.data, call.x.type, at.at[kFormX]);
  args.x_stride = row_step.stride[kFormX];
  if (call.path.operands != SumKind::kSingle) {
    args.x2 = ElementAt(call.residual.data, call.x.type, at.at[kFormResidual]);
    args.x2_stride = row_step.stride[kFormResidual];
  }
  if (call.path.operands == SumKind::kBiasedPair) {
    args.x_bias = call.params[kFormResidualBias].data + at.at[kFormResidualBias];
    args.x_bias_stride = row_step.stride[kFormResidualBias];
  }
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
