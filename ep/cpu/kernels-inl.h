// The kernels themselves: included once per instruction set by kernels_<isa>.cc, which defines NORMFUSE_ISA. Everything
// here has internal linkage or lives in the namespace of the instruction set; no standard-library code.

#include <cstddef>
#include <cstdint>

#include "cpu/activations-inl.h"
#include "cpu/byte_sums-inl.h"
#include "cpu/kernels.h"
#include "cpu/simd/simd.h"

namespace normfuse::NORMFUSE_ISA {
namespace {

using cpu::ApplyArgs;
using cpu::KernelTable;
using cpu::Normalizer;
using cpu::Vec;

// ---- Reading a block element by element or one value for all ----

// Room for one value spread over a vector.
struct Spread {
  alignas(64) float values[kLanes];
};

// A Vec that every vector load may read from: one value is spread over `spread` first.
class Source {
 public:
  Source(Vec vec, Spread* spread) : data_(vec.data), mask_(0 - static_cast<size_t>(vec.step)) {
    if (vec.step != 0) return;
    Store(spread->values, Set(*vec.data));
    data_ = spread->values;
  }
  NORMFUSE_INLINE V At(size_t i) const { return Load(data_ + (i & mask_)); }
  NORMFUSE_INLINE V PartialAt(size_t i, size_t n) const { return LoadPartial(data_ + (i & mask_), n); }

 private:
  const float* data_;
  size_t mask_;
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
  Spread spread[2];
  const Source first(a, &spread[0]);
  const Source second(b, &spread[1]);
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

// ---- What rows are read from ----

template <class T>
struct Single {
  using Element = T;
  Single(const void* x, const void*, void*) : x_(static_cast<const T*>(x)) {}
  NORMFUSE_INLINE V At(size_t i) const { return LoadAsFloat(x_ + i); }
  NORMFUSE_INLINE V PartialAt(size_t i, size_t n) const { return LoadAsFloatPartial(x_ + i, n); }
  const T* x_;
};

template <class T>
struct Pair {
  using Element = T;
  Pair(const void* x, const void* x2, void*) : x_(static_cast<const T*>(x)), x2_(static_cast<const T*>(x2)) {}
  NORMFUSE_INLINE V At(size_t i) const { return LoadAsFloat(x_ + i) + LoadAsFloat(x2_ + i); }
  NORMFUSE_INLINE V PartialAt(size_t i, size_t n) const {
    return LoadAsFloatPartial(x_ + i, n) + LoadAsFloatPartial(x2_ + i, n);
  }
  const T* x_;
  const T* x2_;
};

// Writes the sum as it passes.
template <class T>
struct StoringPair {
  using Element = T;
  StoringPair(const void* x, const void* x2, void* sum) : pair_(x, x2, nullptr), sum_(static_cast<T*>(sum)) {}
  NORMFUSE_INLINE V At(size_t i) const {
    const V v = pair_.At(i);
    StoreAs(sum_ + i, v);
    return v;
  }
  NORMFUSE_INLINE V PartialAt(size_t i, size_t n) const {
    const V v = pair_.PartialAt(i, n);
    StoreAsPartial(sum_ + i, v, n);
    return v;
  }
  Pair<T> pair_;
  T* sum_;
};

// ---- Sums of differences from a shift and of their squares ----

// Sums of at most this many elements are made in float32: 16 per lane and accumulator keep the error near one rounding.
// More would not do: at a large offset the differences are multiples of a power of two, m * 2^-k, whose squares are 0 or
// 1 modulo 4, so that a sum too large for its last two bits is rounded down nearly always.
constexpr size_t kSumBlock = 16 * 4 * kLanes;

template <class Input>
NORMFUSE_INLINE void SumsOfBlock(const Input& x, size_t begin, size_t end, V shift, double* sums) {
  const V zero = Set(0.0f);
  const V one = Set(1.0f);
  V first[4] = {zero, zero, zero, zero};
  V second[4] = {zero, zero, zero, zero};
  size_t i = begin;
  for (; i + 4 * kLanes <= end; i += 4 * kLanes) {
    for (size_t k = 0; k < 4; ++k) {
      const V off = x.At(i + k * kLanes) - shift;
      // Every other sum by Fma, which is as exact: processors have as many units for that as for additions.
      first[k] = kHasFma && k % 2 == 1 ? Fma(off, one, first[k]) : first[k] + off;
      second[k] = Fma(off, off, second[k]);
    }
  }
  for (; i + kLanes <= end; i += kLanes) {
    const V off = x.At(i) - shift;
    first[0] = first[0] + off;
    second[0] = Fma(off, off, second[0]);
  }
  if (i < end) {
    // Lanes beyond the end hold -shift: take them out.
    const V inside = Set(static_cast<float>(end - i));
    const V off = Select(Lt(ToFloat(Iota()), inside), x.PartialAt(i, end - i) - shift, zero);
    first[1] = first[1] + off;
    second[1] = Fma(off, off, second[1]);
  }
  sums[0] += static_cast<double>(ReduceSum((first[0] + first[1]) + (first[2] + first[3])));
  sums[1] += static_cast<double>(ReduceSum((second[0] + second[1]) + (second[2] + second[3])));
}

template <class Input>
NORMFUSE_INLINE void SumsOfRow(const Input& x, size_t n, V shift, double* sums) {
  for (size_t begin = 0; begin < n; begin += kSumBlock) {
    SumsOfBlock(x, begin, n - begin < kSumBlock ? n : begin + kSumBlock, shift, sums);
  }
}

// A value near the mean: within one standard deviation of it for nearly every row, and exact for a constant one.
template <class Input>
NORMFUSE_INLINE float ShiftOf(const Input& x, size_t n) {
  if (n >= 4 * kLanes) {
    constexpr float kShare = 1.0f / static_cast<float>(4 * kLanes);
    return ReduceSum((x.At(0) + x.At(kLanes)) + (x.At(2 * kLanes) + x.At(3 * kLanes))) * kShare;
  }
  const float start = ReduceSum(x.PartialAt(0, 1));
  double sums[2] = {0, 0};
  SumsOfBlock(x, 0, n, Set(start), sums);
  return start + static_cast<float>(sums[0]) / static_cast<float>(n);
}

template <class Input>
void RowSums(const cpu::RowSumsArgs& a) {
  using T = typename Input::Element;
  const T* x = static_cast<const T*>(a.x);
  const T* x2 = static_cast<const T*>(a.x2);
  T* sum = static_cast<T*>(a.sum);
  for (int row = 0; row < a.rows; ++row) {
    const Input input(x, x2, sum);
    const float shift = a.find_shift ? ShiftOf(input, a.n) : a.shift;
    double sums[2] = {0, 0};
    SumsOfRow(input, a.n, Set(shift), sums);
    a.sums[row].shift = static_cast<double>(shift);
    a.sums[row].first = sums[0];
    a.sums[row].second = sums[1];
    x += a.x_stride;
    x2 += a.x2_stride;
    sum += a.sum_stride;
  }
}

template <class T>
void RowSumsOfPair(const cpu::RowSumsArgs& a) {
  if (a.sum != nullptr) {
    RowSums<StoringPair<T>>(a);
  } else {
    RowSums<Pair<T>>(a);
  }
}

// 8-bit values: the shift is the type's lowest value, whatever is asked for.
template <class T>
void RowSumsOfBytes(const cpu::RowSumsArgs& a) {
  const uint8_t* x = static_cast<const uint8_t*>(a.x);
  constexpr bool kSigned = static_cast<T>(-1) < 0;
  for (int row = 0; row < a.rows; ++row) {
    const ByteSums sums = SumBytes(x + a.x_stride * row, a.n, kSigned ? 0x80 : 0);
    a.sums[row].shift = kSigned ? -128.0 : 0.0;
    a.sums[row].first = static_cast<double>(sums.first);
    a.sums[row].second = static_cast<double>(sums.second);
  }
}

// ---- Normalise, scale, bias, activation ----

// What is stored: the value itself, or for the integer types its quantised form (StoreAs saturates).
template <class Out>
struct Finish {
  Finish(float, float) {}
  NORMFUSE_INLINE V operator()(V v) const { return v; }
};

// v / scale, rounded as a division rounds it: the product with the reciprocal, and what it left over once more. The
// quotient is cut to a range beyond every type's own first, so that infinity leaves infinity over, not NaN.
struct Quantization {
  Quantization(float y_scale, float y_zero) : scale(Set(y_scale)), inverse(Set(1.0f / y_scale)), zero(Set(y_zero)) {}
  NORMFUSE_INLINE V operator()(V v) const {
    if constexpr (kHasFma) {
      const V quotient = Min(Max(v * inverse, Set(-1e5f)), Set(1e5f));
      return RoundEven(Fma(NegFma(quotient, scale, v), inverse, quotient)) + zero;
    } else {
      return RoundEven(v / scale) + zero;
    }
  }
  V scale;
  V inverse;
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

template <class Act>
struct Activated {
  Activated(const ApplyArgs& a, int, Spread*) : act(a.params) {}
  NORMFUSE_INLINE V operator()(V v, size_t) const { return act(v); }
  NORMFUSE_INLINE V Partial(V v, size_t, size_t) const { return act(v); }
  Act act;
};

template <TakesSlope Act>
struct Activated<Act> {
  Activated(const ApplyArgs& a, int row, Spread* spread)
      : act(a.params), slope({a.slope.data + row * a.slope_stride, a.slope.step}, spread) {}
  NORMFUSE_INLINE V operator()(V v, size_t i) const { return act(v, slope.At(i)); }
  NORMFUSE_INLINE V Partial(V v, size_t i, size_t n) const { return act(v, slope.PartialAt(i, n)); }
  Act act;
  Source slope;
};

// One scale and one bias for a row: they join the normalisation's own factor and offset.
struct ScalarAffine {
  ScalarAffine(const Normalizer& n, float scale, float bias)
      : mean(Set(n.mean)), factor(Set(n.inv * scale)), offset(Set(n.offset * scale + bias)) {}
  NORMFUSE_INLINE V operator()(V x) const { return Fma(x - mean, factor, offset); }
  V mean;
  V factor;
  V offset;
};

// A scale and a bias for each element.
struct VectorAffine {
  explicit VectorAffine(const Normalizer& n) : mean(Set(n.mean)), inv(Set(n.inv)), offset(Set(n.offset)) {}
  NORMFUSE_INLINE V operator()(V x, V scale, V bias) const { return Fma(Fma(x - mean, inv, offset), scale, bias); }
  V mean;
  V inv;
  V offset;
};

template <class T>
NORMFUSE_INLINE const T* RowOf(const void* base, int64_t stride, int row) {
  return static_cast<const T*>(base) + stride * row;
}

template <class Input, class Out, class Act>
void ApplyScalar(const ApplyArgs& a) {
  using T = typename Input::Element;
  Spread spread[3];
  const Finish<Out> finish(a.y_scale, a.y_zero);
  for (int row = 0; row < a.rows; ++row) {
    const Activated<Act> act(a, row, &spread[2]);
    const Input x(RowOf<T>(a.x, a.x_stride, row), RowOf<T>(a.x2, a.x2_stride, row), nullptr);
    Out* y = static_cast<Out*>(a.y) + a.y_stride * row;
    const ScalarAffine affine(a.normalizers[row], a.scale.data[a.scale_stride * row], a.bias.data[a.bias_stride * row]);
    size_t i = 0;
    for (; i + 2 * kLanes <= a.n; i += 2 * kLanes) {
      const V v = finish(act(affine(x.At(i)), i));
      const V w = finish(act(affine(x.At(i + kLanes)), i + kLanes));
      StoreAs(y + i, v);
      StoreAs(y + i + kLanes, w);
    }
    if (i + kLanes <= a.n) {
      StoreAs(y + i, finish(act(affine(x.At(i)), i)));
      i += kLanes;
    }
    const size_t rest = a.n - i;
    if (rest != 0) StoreAsPartial(y + i, finish(act.Partial(affine(x.PartialAt(i, rest)), i, rest)), rest);
  }
}

template <class Input, class Out, class Act>
void ApplyVector(const ApplyArgs& a) {
  using T = typename Input::Element;
  Spread spread[3];
  const Finish<Out> finish(a.y_scale, a.y_zero);
  for (int row = 0; row < a.rows; ++row) {
    const Activated<Act> act(a, row, &spread[2]);
    const Source scale({a.scale.data + a.scale_stride * row, a.scale.step}, &spread[0]);
    const Source bias({a.bias.data + a.bias_stride * row, a.bias.step}, &spread[1]);
    const Input x(RowOf<T>(a.x, a.x_stride, row), RowOf<T>(a.x2, a.x2_stride, row), nullptr);
    Out* y = static_cast<Out*>(a.y) + a.y_stride * row;
    const VectorAffine affine(a.normalizers[row]);
    size_t i = 0;
    for (; i + kLanes <= a.n; i += kLanes) StoreAs(y + i, finish(act(affine(x.At(i), scale.At(i), bias.At(i)), i)));
    const size_t rest = a.n - i;
    if (rest == 0) continue;
    const V v = affine(x.PartialAt(i, rest), scale.PartialAt(i, rest), bias.PartialAt(i, rest));
    StoreAsPartial(y + i, finish(act.Partial(v, i, rest)), rest);
  }
}

// An even number of rows, two side by side to share the loads of scale and bias.
template <class Input, class Out, class Act>
void ApplyTwoRows(const ApplyArgs& a) {
  using T = typename Input::Element;
  Spread spread[3];
  const Activated<Act> act(a, 0, &spread[2]);
  const Finish<Out> finish(a.y_scale, a.y_zero);
  const Source scale(a.scale, &spread[0]);
  const Source bias(a.bias, &spread[1]);
  const size_t rest = a.n % kLanes;
  for (int row = 0; row < a.rows; row += 2) {
    const Input x(RowOf<T>(a.x, a.x_stride, row), RowOf<T>(a.x2, a.x2_stride, row), nullptr);
    const Input z(RowOf<T>(a.x, a.x_stride, row + 1), RowOf<T>(a.x2, a.x2_stride, row + 1), nullptr);
    Out* y = static_cast<Out*>(a.y) + a.y_stride * row;
    const VectorAffine first(a.normalizers[row]);
    const VectorAffine second(a.normalizers[row + 1]);
    size_t i = 0;
    for (; i + kLanes <= a.n; i += kLanes) {
      const V s = scale.At(i);
      const V b = bias.At(i);
      StoreAs(y + i, finish(act(first(x.At(i), s, b), i)));
      StoreAs(y + a.y_stride + i, finish(act(second(z.At(i), s, b), i)));
    }
    if (rest == 0) continue;
    const V s = scale.PartialAt(i, rest);
    const V b = bias.PartialAt(i, rest);
    StoreAsPartial(y + i, finish(act.Partial(first(x.PartialAt(i, rest), s, b), i, rest)), rest);
    StoreAsPartial(y + a.y_stride + i, finish(act.Partial(second(z.PartialAt(i, rest), s, b), i, rest)), rest);
  }
}

template <class Input, class Out, class Act>
void Apply(const ApplyArgs& a) {
  if (a.scale.step == 0 && a.bias.step == 0) return ApplyScalar<Input, Out, Act>(a);
  const bool shared = a.scale_stride == 0 && a.bias_stride == 0 && a.slope_stride == 0;
  const int pairs = shared ? a.rows & ~1 : 0;
  if (pairs != 0) {
    ApplyArgs even = a;
    even.rows = pairs;
    ApplyTwoRows<Input, Out, Act>(even);
  }
  if (pairs == a.rows) return;
  using T = typename Input::Element;
  ApplyArgs last = a;
  last.x = RowOf<T>(a.x, a.x_stride, pairs);
  last.x2 = RowOf<T>(a.x2, a.x2_stride, pairs);
  last.y = static_cast<Out*>(a.y) + a.y_stride * pairs;
  last.normalizers = a.normalizers + pairs;
  last.rows = a.rows - pairs;
  ApplyVector<Input, Out, Act>(last);
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

void Stream(const void* from, size_t bytes, void* to) {
  const float* x = static_cast<const float*>(from);
  float* y = static_cast<float*>(to);
  for (size_t i = 0; i < bytes / sizeof(float); i += kLanes) StreamStore(y + i, Load(x + i));
#ifdef __SSE2__
  // Such stores are not ordered with the ones that tell other threads of the result.
  _mm_sfence();
#endif
}

// X and Y as they lie, for the types that occur most and the activations that follow a normalisation most.
template <class Input, class Out>
cpu::ApplyFn CommonApply(Activation activation) {
  switch (activation) {
    case Activation::kIdentity:
      return Apply<Input, Out, Identity>;
    case Activation::kRelu:
      return Apply<Input, Out, Relu>;
    case Activation::kGelu:
      return Apply<Input, Out, Gelu>;
    case Activation::kSwish:
      return Apply<Input, Out, Swish>;
    default:
      return nullptr;
  }
}

#define NORMFUSE_APPLY(name, kernel) Apply<Single<float>, float, kernel>,
constexpr cpu::ApplyFn kFloatApply[] = {NORMFUSE_FOR_EACH_ACTIVATION(NORMFUSE_APPLY)};
#undef NORMFUSE_APPLY

constexpr int TypePair(DataType x, DataType y) { return static_cast<int>(x) * cpu::kTypeSlots + static_cast<int>(y); }

cpu::ApplyFn FusedApplyOfPair(DataType x, DataType y, Activation activation) {
  switch (TypePair(x, y)) {
    case TypePair(DataType::kFloat32, DataType::kFloat32):
      return CommonApply<Pair<float>, float>(activation);
    case TypePair(DataType::kFloat16, DataType::kFloat16):
      return CommonApply<Pair<Half>, Half>(activation);
    default:
      return nullptr;
  }
}

cpu::ApplyFn FusedApply(DataType x, DataType y, Activation activation, bool pair) {
  if (pair) return FusedApplyOfPair(x, y, activation);
  switch (TypePair(x, y)) {
    case TypePair(DataType::kFloat32, DataType::kFloat32):
      return kFloatApply[static_cast<int>(activation)];
    case TypePair(DataType::kFloat16, DataType::kFloat16):
      return CommonApply<Single<Half>, Half>(activation);
    case TypePair(DataType::kBfloat16, DataType::kBfloat16):
      return CommonApply<Single<Bfloat16>, Bfloat16>(activation);
    case TypePair(DataType::kFloat32, DataType::kInt8):
      return CommonApply<Single<float>, int8_t>(activation);
    case TypePair(DataType::kFloat32, DataType::kUint8):
      return CommonApply<Single<float>, uint8_t>(activation);
    case TypePair(DataType::kInt8, DataType::kInt8):
      return CommonApply<Single<int8_t>, int8_t>(activation);
    case TypePair(DataType::kUint8, DataType::kUint8):
      return CommonApply<Single<uint8_t>, uint8_t>(activation);
    case TypePair(DataType::kInt8, DataType::kFloat32):
      return CommonApply<Single<int8_t>, float>(activation);
    case TypePair(DataType::kUint8, DataType::kFloat32):
      return CommonApply<Single<uint8_t>, float>(activation);
    default:
      return nullptr;
  }
}

cpu::RowSumsFn RowSumsFor(DataType x, bool pair) {
  switch (x) {
    case DataType::kFloat32:
      return pair ? RowSumsOfPair<float> : RowSums<Single<float>>;
    case DataType::kFloat16:
      return pair ? RowSumsOfPair<Half> : RowSums<Single<Half>>;
    case DataType::kBfloat16:
      return pair ? nullptr : RowSums<Single<Bfloat16>>;
    case DataType::kInt8:
      return pair ? nullptr : RowSumsOfBytes<int8_t>;
    case DataType::kUint8:
      return pair ? nullptr : RowSumsOfBytes<uint8_t>;
    case DataType::kInt16:
      return pair ? nullptr : RowSums<Single<int16_t>>;
    case DataType::kUint16:
      return pair ? nullptr : RowSums<Single<uint16_t>>;
    default:
      return nullptr;
  }
}

template <class T>
constexpr void AddType(KernelTable* table, DataType type, bool storable) {
  table->load[static_cast<int>(type)] = LoadBlock<T>;
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
  table.row_sums = RowSumsFor;
  table.fused_apply = FusedApply;
  table.stream = Stream;
  return table;
}

constexpr KernelTable kTable = MakeTable();

}  // namespace

const KernelTable& Kernels() { return kTable; }

}  // namespace normfuse::NORMFUSE_ISA
