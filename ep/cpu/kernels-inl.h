// The kernels themselves: included once per instruction set by kernels_<isa>.cc, which defines NORMFUSE_ISA. Everything
// here has internal linkage or lives in the namespace of the instruction set; no standard-library code.

#include <cstddef>
#include <cstdint>

#include "cpu/apply-inl.h"
#include "cpu/kernels.h"
#include "cpu/row_sums-inl.h"
#include "cpu/steps-inl.h"
#include "cpu/whole_rows-inl.h"

namespace normfuse::NORMFUSE_ISA {
namespace {

using cpu::KernelTable;

template <class T>
void LoadBlock(const void* x, size_t n, float* out) {
  const T* in = static_cast<const T*>(x);
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) Store(out + i, LoadAsFloat(in + i));
  if (i < n) StorePartial(out + i, LoadAsFloatPartial(in + i, n - i), n - i);
}

template <class T, bool kStream>
NORMFUSE_INLINE void DequantizeTo(const void* x, size_t n, Vec scale, Vec zero, float* out) {
  Spread spread[2];
  const Source scales(scale, &spread[0]);
  const Source zeros(zero, &spread[1]);
  const T* in = static_cast<const T*>(x);
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) Put<kStream>(out + i, (LoadAsFloat(in + i) - zeros.At(i)) * scales.At(i));
  if (i == n) return;
  const size_t rest = n - i;
  StorePartial(out + i, (LoadAsFloatPartial(in + i, rest) - zeros.PartialAt(i, rest)) * scales.PartialAt(i, rest),
               rest);
}

template <class T>
void Dequantize(const void* x, size_t n, Vec scale, Vec zero, float* out, bool stream) {
  if (stream) return DequantizeTo<T, true>(x, n, scale, zero, out);
  DequantizeTo<T, false>(x, n, scale, zero, out);
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

void ColumnNormalize(float* x, size_t n, const float* mean, const float* below, const float* inv) {
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    Store(x + i, ((Load(x + i) - Load(mean + i)) - Load(below + i)) * Load(inv + i));
  }
  const size_t rest = n - i;
  if (rest == 0) return;
  const V off = (LoadPartial(x + i, rest) - LoadPartial(mean + i, rest)) - LoadPartial(below + i, rest);
  StorePartial(x + i, off * LoadPartial(inv + i, rest), rest);
}

// ---- The table ----

void StreamLine(void* to, const void* from) {
  constexpr size_t kFloats = 64 / sizeof(float);
  for (size_t i = 0; i < kFloats; i += kLanes) {
    StreamStore(static_cast<float*>(to) + i, Load(static_cast<const float*>(from) + i));
  }
}

// Stores past the caches are not ordered with the ones that tell other threads of the result.
void Fence() {
#ifdef __SSE2__
  _mm_sfence();
#endif
}

// X and Y as they lie, for the types that occur most and the activations that follow a normalisation most.
template <class Input, class Out>
cpu::ApplyFn CommonApply(Activation activation) {
#define NORMFUSE_COMMON_APPLY(kernel) \
  if (activation == Activation::k##kernel) return Apply<Input, Out, kernel>;
  NORMFUSE_FOR_EACH_FOLLOWING(NORMFUSE_COMMON_APPLY)
#undef NORMFUSE_COMMON_APPLY
  return nullptr;
}

#define NORMFUSE_APPLY(name, kernel) Apply<Single<float>, float, kernel>,
constexpr cpu::ApplyFn kFloatApply[] = {NORMFUSE_FOR_EACH_ACTIVATION(NORMFUSE_APPLY)};
#undef NORMFUSE_APPLY

constexpr int TypePair(DataType x, DataType y) { return static_cast<int>(x) * cpu::kTypeSlots + static_cast<int>(y); }

cpu::ApplyFn FusedApplyOfSum(DataType x, DataType y, Activation activation) {
  switch (TypePair(x, y)) {
    case TypePair(DataType::kFloat32, DataType::kFloat32):
      return CommonApply<Pair<float>, float>(activation);
    case TypePair(DataType::kFloat16, DataType::kFloat16):
      return CommonApply<Pair<Half>, Half>(activation);
    default:
      return nullptr;
  }
}

cpu::ApplyFn FusedApplyOfBiasedSum(DataType x, DataType y) {
  switch (TypePair(x, y)) {
    case TypePair(DataType::kFloat32, DataType::kFloat32):
      return Apply<BiasedPair<float>, float, Identity>;
    case TypePair(DataType::kFloat16, DataType::kFloat16):
      return Apply<BiasedPair<Half>, Half, Identity>;
    default:
      return nullptr;
  }
}

cpu::ApplyFn FusedApply(DataType x, DataType y, Activation activation, cpu::SumKind kind) {
  if (kind == cpu::SumKind::kPair) return FusedApplyOfSum(x, y, activation);
  if (kind == cpu::SumKind::kBiasedPair) {
    return activation == Activation::kIdentity ? FusedApplyOfBiasedSum(x, y) : nullptr;
  }
  switch (TypePair(x, y)) {
    case TypePair(DataType::kFloat32, DataType::kFloat32):
      return kFloatApply[static_cast<int>(activation)];
    case TypePair(DataType::kFloat16, DataType::kFloat16):
      return CommonApply<Single<Half>, Half>(activation);
    case TypePair(DataType::kBfloat16, DataType::kBfloat16):
      return CommonApply<Single<Bfloat16>, Bfloat16>(activation);
    case TypePair(DataType::kFloat32, DataType::kFloat16):
      return CommonApply<Single<float>, Half>(activation);
    case TypePair(DataType::kFloat32, DataType::kBfloat16):
      return CommonApply<Single<float>, Bfloat16>(activation);
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

cpu::RowSumsFn RowSumsFor(DataType x, cpu::SumKind kind) {
  const bool pair = kind == cpu::SumKind::kPair;
  if (kind != cpu::SumKind::kSingle) {
    if (x == DataType::kFloat32) return pair ? RowSumsOfSum<Pair<float>> : RowSumsOfSum<BiasedPair<float>>;
    if (x == DataType::kFloat16) return pair ? RowSumsOfSum<Pair<Half>> : RowSumsOfSum<BiasedPair<Half>>;
    return nullptr;
  }
  switch (x) {
    case DataType::kFloat32:
      return RowSums<Single<float>>;
    case DataType::kFloat16:
      return RowSums<Single<Half>>;
    case DataType::kBfloat16:
      return RowSums<Single<Bfloat16>>;
    case DataType::kInt8:
      return RowSumsOfBytes<int8_t>;
    case DataType::kUint8:
      return RowSumsOfBytes<uint8_t>;
    case DataType::kInt16:
      return RowSums<Single<int16_t>>;
    case DataType::kUint16:
      return RowSums<Single<uint16_t>>;
    default:
      return nullptr;
  }
}

// For float32 and the activations that follow a normalisation most; not on the baseline, which gains nothing by it.
template <bool kAny>
cpu::StepFn StepFor(Activation activation) {
  if constexpr (kAny) {
#define NORMFUSE_STEP(kernel) \
  if (activation == Activation::k##kernel) return Step<kernel>;
    NORMFUSE_FOR_EACH_FOLLOWING(NORMFUSE_STEP)
#undef NORMFUSE_STEP
  }
  return nullptr;
}

// For float32 and what has so little arithmetic that the time between rows counts.
template <bool kAny>
cpu::WholeRowsFn WholeRowsFor(DataType x, DataType y, Activation activation, cpu::SumKind kind) {
  if constexpr (kAny) {
    const bool floats = x == DataType::kFloat32 && y == DataType::kFloat32;
    if (!floats || activation != Activation::kIdentity) return nullptr;
    if (kind == cpu::SumKind::kSingle) return RunWholeRows<Single<float>, float, Identity>;
    if (kind == cpu::SumKind::kPair) return RunWholeRows<Pair<float>, float, Identity>;
  }
  return nullptr;
}

template <class T>
constexpr void AddType(KernelTable* table, DataType type, bool storable) {
  table->load[static_cast<int>(type)] = LoadBlock<T>;
  table->dequantize[static_cast<int>(type)] = Dequantize<T>;
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
  table.add = Add;
  table.quantize = Quantize;
  table.divide = Divide;
  for (int i = 0; i < kActivationCount; ++i) table.apply[i] = kFloatApply[i];
  table.column_sum = ColumnSum;
  table.column_moments = ColumnMoments;
  table.column_normalize = ColumnNormalize;
  table.row_sums = RowSumsFor;
  table.find_shift = FindShift;
  table.keeps = kHasFma;
  table.fused_apply = FusedApply;
  table.step = StepFor<kHasFma>;
  table.whole_rows = WholeRowsFor<kHasFma>;
  if (kStreams) table.stream_line = StreamLine;
  table.fence = Fence;
  return table;
}

constexpr KernelTable kTable = MakeTable();

}  // namespace

// NOLINTNEXTLINE(misc-definitions-in-headers): one for each instruction set, in its namespace
const KernelTable& Kernels() { return kTable; }

}  // namespace normfuse::NORMFUSE_ISA
