// The kernels themselves: included once per instruction set by kernels_<isa>.cc, which defines NORMFUSE_ISA. Everything
// here has internal linkage or lives in the namespace of the instruction set; no standard-library code.

#include <cstddef>
#include <cstdint>

#include "cpu/activations-inl.h"
#include "cpu/kernels.h"
#include "cpu/simd/simd.h"

namespace normfuse::NORMFUSE_ISA {
namespace {

using cpu::ApplyArgs;
using cpu::KernelTable;
using cpu::Vec;

// ---- Reading a block element by element or one value for all ----

// A Vec as a pointer that every vector load may use: one value is spread over a vector of its own.
class Source {
 public:
  explicit Source(Vec vec) : data_(vec.data), step_(vec.step) {
    if (step_ != 0) return;
    Store(spread_, Set(*vec.data));
    data_ = spread_;
  }
  V At(size_t i) const { return Load(data_ + i * static_cast<size_t>(step_)); }
  V PartialAt(size_t i, size_t n) const { return LoadPartial(data_ + i * static_cast<size_t>(step_), n); }

 private:
  const float* data_;
  int step_;
  alignas(64) float spread_[kLanes];
};

template <class T>
void LoadBlock(const void* x, size_t n, float* out) {
  const T* in = static_cast<const T*>(x);
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) Store(out + i, LoadAsFloat(in + i));
  if (i < n) StorePartial(out + i, LoadAsFloatPartial(in + i, n - i), n - i);
}

template <class T>
void StoreBlock(const float* x, size_t n, void* out) {
  T* to = static_cast<T*>(out);
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) StoreAs(to + i, Load(x + i));
  if (i < n) StoreAsPartial(to + i, LoadPartial(x + i, n - i), n - i);
}

// ---- In place on float32 ----

template <class Operation>
NORMFUSE_INLINE void Map(float* x, size_t n, Vec a, Vec b, Operation operation) {
  const Source first(a);
  const Source second(b);
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) Store(x + i, operation(Load(x + i), first.At(i), second.At(i)));
  if (i == n) return;
  const size_t rest = n - i;
  StorePartial(x + i, operation(LoadPartial(x + i, rest), first.PartialAt(i, rest), second.PartialAt(i, rest)), rest);
}

void Dequantize(float* x, size_t n, Vec scale, Vec zero) {
  Map(x, n, scale, zero, [](V v, V s, V z) { return (v - z) * s; });
}

void Add(float* x, size_t n, Vec other) {
  Map(x, n, other, other, [](V v, V o, V) { return v + o; });
}

// NaN becomes the lowest value: Max and Min give their second operand where one is NaN.
NORMFUSE_INLINE V QuantizeVector(V v, V scale, V zero, V low, V high) {
  return Min(Max(RoundEven(v / scale) + zero, low), high);
}

void Quantize(float* x, size_t n, Vec scale, Vec zero, float low, float high) {
  const V lowest = Set(low);
  const V highest = Set(high);
  Map(x, n, scale, zero, [=](V v, V s, V z) { return QuantizeVector(v, s, z, lowest, highest); });
}

void Divide(float* x, size_t n, Vec scale, Vec zero) {
  Map(x, n, scale, zero, [](V v, V s, V z) { return v / s + z; });
}

// ---- Sums of differences from a shift and of their squares ----

// Sums of at most this many elements are made in float32: 16 per lane and accumulator keep the error near one rounding.
// More would not do: at a large offset the differences are multiples of a power of two, m * 2^-k, whose squares are 0 or
// 1 modulo 4, so that a sum too large for its last two bits is rounded down nearly always.
constexpr size_t kSumBlock = 16 * 4 * kLanes;

template <class T>
NORMFUSE_INLINE void SumsOfBlock(const T* x, size_t n, V shift, double* sums) {
  const V zero = Set(0.0f);
  V first[4] = {zero, zero, zero, zero};
  V second[4] = {zero, zero, zero, zero};
  size_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    for (size_t k = 0; k < 4; ++k) {
      const V off = LoadAsFloat(x + i + k * kLanes) - shift;
      first[k] = first[k] + off;
      second[k] = Fma(off, off, second[k]);
    }
  }
  for (size_t k = 0; i < n; ++k) {
    const size_t rest = n - i < kLanes ? n - i : kLanes;
    V off = LoadAsFloatPartial(x + i, rest) - shift;
    // Lanes beyond the end hold -shift: take them out.
    if (rest < kLanes) off = Select(Lt(ToFloat(Iota()), Set(static_cast<float>(rest))), off, zero);
    first[k] = first[k] + off;
    second[k] = Fma(off, off, second[k]);
    i += rest;
  }
  sums[0] += static_cast<double>(ReduceSum((first[0] + first[1]) + (first[2] + first[3])));
  sums[1] += static_cast<double>(ReduceSum((second[0] + second[1]) + (second[2] + second[3])));
}

template <class T>
void Moments(const void* x, size_t n, float shift, double* sums) {
  const T* in = static_cast<const T*>(x);
  const V shifts = Set(shift);
  while (n > kSumBlock) {
    SumsOfBlock(in, kSumBlock, shifts, sums);
    in += kSumBlock;
    n -= kSumBlock;
  }
  SumsOfBlock(in, n, shifts, sums);
}

// ---- Normalise, scale, bias, activation ----

// What is stored: the value itself, or for the integer types its quantised form (StoreAs saturates).
template <class Out>
struct Finish {
  Finish(float, float) {}
  V operator()(V v) const { return v; }
};

struct Quantization {
  Quantization(float y_scale, float y_zero) : scale(Set(y_scale)), zero(Set(y_zero)) {}
  V operator()(V v) const { return RoundEven(v / scale) + zero; }
  V scale;
  V zero;
};
template <>
struct Finish<int8_t> : Quantization {
  using Quantization::Quantization;
};
template <>
struct Finish<uint8_t> : Quantization {
  using Quantization::Quantization;
};

// Activations that read a slope for each element take two arguments.
template <class Act>
concept TakesSlope = requires(const Act act, V v) { act(v, v); };

// One scale and one bias for the block: they join the normalisation's own factor and offset.
class ScalarAffine {
 public:
  explicit ScalarAffine(const ApplyArgs& a)
      : mean_(Set(a.mean)),
        factor_(Set(a.inv * *a.scale.data)),
        offset_(Set(a.offset * *a.scale.data + *a.bias.data)) {}
  V operator()(V x, size_t) const { return Fma(x - mean_, factor_, offset_); }
  V operator()(V x, size_t, size_t) const { return Fma(x - mean_, factor_, offset_); }

 private:
  V mean_;
  V factor_;
  V offset_;
};

class VectorAffine {
 public:
  explicit VectorAffine(const ApplyArgs& a)
      : mean_(Set(a.mean)), inv_(Set(a.inv)), offset_(Set(a.offset)), scale_(a.scale), bias_(a.bias) {}
  V operator()(V x, size_t i) const { return Fma(Fma(x - mean_, inv_, offset_), scale_.At(i), bias_.At(i)); }
  V operator()(V x, size_t i, size_t n) const {
    return Fma(Fma(x - mean_, inv_, offset_), scale_.PartialAt(i, n), bias_.PartialAt(i, n));
  }

 private:
  V mean_;
  V inv_;
  V offset_;
  Source scale_;
  Source bias_;
};

template <class In, class Out, class Act, class Affine>
void ApplyWith(const ApplyArgs& a) {
  const In* x = static_cast<const In*>(a.x);
  Out* y = static_cast<Out*>(a.y);
  const Affine affine(a);
  const Act act(a.params);
  const Finish<Out> finish(a.y_scale, a.y_zero);
  const size_t whole = a.n / kLanes * kLanes;
  const size_t rest = a.n - whole;
  if constexpr (TakesSlope<Act>) {
    const Source slope(a.slope);
    for (size_t i = 0; i < whole; i += kLanes) {
      StoreAs(y + i, finish(act(affine(LoadAsFloat(x + i), i), slope.At(i))));
    }
    if (rest == 0) return;
    const V v = affine(LoadAsFloatPartial(x + whole, rest), whole, rest);
    StoreAsPartial(y + whole, finish(act(v, slope.PartialAt(whole, rest))), rest);
  } else {
    for (size_t i = 0; i < whole; i += kLanes) StoreAs(y + i, finish(act(affine(LoadAsFloat(x + i), i))));
    if (rest == 0) return;
    StoreAsPartial(y + whole, finish(act(affine(LoadAsFloatPartial(x + whole, rest), whole, rest))), rest);
  }
}

template <class In, class Out, class Act>
void Apply(const ApplyArgs& a) {
  if (a.scale.step == 0 && a.bias.step == 0) {
    ApplyWith<In, Out, Act, ScalarAffine>(a);
  } else {
    ApplyWith<In, Out, Act, VectorAffine>(a);
  }
}

// ---- Columns ----

void ColumnSum(const float* x, size_t n, const float* shift, float* sum) {
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) Store(sum + i, Load(sum + i) + (Load(x + i) - Load(shift + i)));
  const size_t rest = n - i;
  if (rest == 0) return;
  const V off = LoadPartial(x + i, rest) - LoadPartial(shift + i, rest);
  StorePartial(sum + i, LoadPartial(sum + i, rest) + off, rest);
}

void ColumnMoments(const float* x, size_t n, const float* shift, float* sum, float* square) {
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const V off = Load(x + i) - Load(shift + i);
    Store(sum + i, Load(sum + i) + off);
    Store(square + i, Fma(off, off, Load(square + i)));
  }
  const size_t rest = n - i;
  if (rest == 0) return;
  const V off = LoadPartial(x + i, rest) - LoadPartial(shift + i, rest);
  StorePartial(sum + i, LoadPartial(sum + i, rest) + off, rest);
  StorePartial(square + i, Fma(off, off, LoadPartial(square + i, rest)), rest);
}

void ColumnNormalize(float* x, size_t n, const float* mean, const float* inv, const float* offset) {
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) Store(x + i, Fma(Load(x + i) - Load(mean + i), Load(inv + i), Load(offset + i)));
  const size_t rest = n - i;
  if (rest == 0) return;
  const V off = LoadPartial(x + i, rest) - LoadPartial(mean + i, rest);
  StorePartial(x + i, Fma(off, LoadPartial(inv + i, rest), LoadPartial(offset + i, rest)), rest);
}

// ---- The table ----

// X and Y as they lie, for the types that occur most and the activations that follow a normalisation most.
template <class In, class Out>
cpu::ApplyFn CommonApply(Activation activation) {
  switch (activation) {
    case Activation::kIdentity:
      return Apply<In, Out, Identity>;
    case Activation::kRelu:
      return Apply<In, Out, Relu>;
    case Activation::kGelu:
      return Apply<In, Out, Gelu>;
    case Activation::kSwish:
      return Apply<In, Out, Swish>;
    default:
      return nullptr;
  }
}

#define NORMFUSE_APPLY(name, kernel) Apply<float, float, kernel>,
constexpr cpu::ApplyFn kFloatApply[] = {NORMFUSE_FOR_EACH_ACTIVATION(NORMFUSE_APPLY)};
#undef NORMFUSE_APPLY

cpu::ApplyFn FusedApply(DataType x, DataType y, Activation activation) {
  constexpr auto pair = [](DataType a, DataType b) {
    return static_cast<int>(a) * cpu::kTypeSlots + static_cast<int>(b);
  };
  switch (pair(x, y)) {
    case pair(DataType::kFloat32, DataType::kFloat32):
      return kFloatApply[static_cast<int>(activation)];
    case pair(DataType::kFloat16, DataType::kFloat16):
      return CommonApply<Half, Half>(activation);
    case pair(DataType::kBfloat16, DataType::kBfloat16):
      return CommonApply<Bfloat16, Bfloat16>(activation);
    case pair(DataType::kFloat32, DataType::kInt8):
      return CommonApply<float, int8_t>(activation);
    case pair(DataType::kFloat32, DataType::kUint8):
      return CommonApply<float, uint8_t>(activation);
    case pair(DataType::kInt8, DataType::kInt8):
      return CommonApply<int8_t, int8_t>(activation);
    case pair(DataType::kUint8, DataType::kUint8):
      return CommonApply<uint8_t, uint8_t>(activation);
    case pair(DataType::kInt8, DataType::kFloat32):
      return CommonApply<int8_t, float>(activation);
    case pair(DataType::kUint8, DataType::kFloat32):
      return CommonApply<uint8_t, float>(activation);
    default:
      return nullptr;
  }
}

template <class T>
constexpr void AddType(KernelTable* table, DataType type, bool storable) {
  table->load[static_cast<int>(type)] = LoadBlock<T>;
  table->moments[static_cast<int>(type)] = Moments<T>;
  if (storable) table->store[static_cast<int>(type)] = StoreBlock<T>;
}

constexpr KernelTable MakeTable() {
  KernelTable table{};
  AddType<float>(&table, DataType::kFloat32, true);
  AddType<Half>(&table, DataType::kFloat16, true);
  AddType<Bfloat16>(&table, DataType::kBfloat16, true);
  AddType<int8_t>(&table, DataType::kInt8, true);
  AddType<uint8_t>(&table, DataType::kUint8, true);
  AddType<int16_t>(&table, DataType::kInt16, true);
  AddType<uint16_t>(&table, DataType::kUint16, true);
  AddType<int32_t>(&table, DataType::kInt32, false);
  AddType<uint32_t>(&table, DataType::kUint32, false);
  table.dequantize = Dequantize;
  table.add = Add;
  table.quantize = Quantize;
  table.divide = Divide;
  for (int i = 0; i < kActivationCount; ++i) table.apply[i] = kFloatApply[i];
  table.column_sum = ColumnSum;
  table.column_moments = ColumnMoments;
  table.column_normalize = ColumnNormalize;
  table.fused_apply = FusedApply;
  return table;
}

constexpr KernelTable kTable = MakeTable();

}  // namespace

const KernelTable& Kernels() { return kTable; }

}  // namespace normfuse::NORMFUSE_ISA
