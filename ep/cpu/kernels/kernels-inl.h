// The kernels themselves: included once per instruction set by kernels_<isa>.cc, which defines NORMFUSE_ISA. Everything
// here has internal linkage or lives in the namespace of the instruction set; no standard-library code.

#include <cstddef>
#include <cstdint>

#include "cpu/kernels/both_passes-inl.h"
#include "cpu/kernels/byte_table-inl.h"
#include "cpu/kernels/combinations-inl.h"
#include "cpu/kernels/element_steps-inl.h"
#include "cpu/kernels/kernel_list.h"
#include "cpu/kernels/pipeline-inl.h"
#include "cpu/kernels/row_pipeline-inl.h"
#include "cpu/kernels/row_sums-inl.h"
#include "cpu/kernels/second_pass-inl.h"
#include "cpu/kernels/softmax-inl.h"

namespace normfuse::NORMFUSE_ISA {
namespace {

using cpu::KernelTable;

template <class T>
void LoadValues(const void* x, size_t n, float* out) {
  const T* in = static_cast<const T*>(x);
  ForEachVector(n, [=](size_t i, auto vector) { vector.Store(out + i, vector.Load(in + i)); });
}

template <class T>
void Dequantize(const void* x, size_t n, Vec scale, Vec zero, float* out, bool stream) {
  Spread spread[2];
  const Source scales(scale, &spread[0]);
  const Source zeros(zero, &spread[1]);
  const T* in = static_cast<const T*>(x);
  const auto value = [=](size_t i, auto vector) {
    return (vector.Load(in + i) - vector.At(zeros, i)) * vector.At(scales, i);
  };
  if constexpr (kStreams) {
    if (stream) {
      return ForEachVector(n, [=](size_t i, auto vector) { vector.StoreNonTemporal(out + i, value(i, vector)); });
    }
  }
  ForEachVector(n, [=](size_t i, auto vector) { vector.Store(out + i, value(i, vector)); });
}

template <class T>
void StoreValues(const float* x, size_t n, void* out) {
  T* to = static_cast<T*>(out);
  ForEachVector(n, [=](size_t i, auto vector) { vector.Store(to + i, vector.Load(x + i)); });
}

// ---- In place on float32 ----

template <class Operation>
NORMFUSE_INLINE void Map(float* x, size_t n, Vec a, Vec b, Operation operation) {
  Spread spread[2];
  const Source first(a, &spread[0]);
  const Source second(b, &spread[1]);
  ForEachVector(n, [=](size_t i, auto vector) {
    vector.Store(x + i, operation(vector.Load(x + i), vector.At(first, i), vector.At(second, i)));
  });
}

template <class Combination>
void Combine(float* x, size_t n, Vec other) {
  Map(x, n, other, other, [](V v, V o, V) { return Combination()(v, o); });
}

void Mask(float* x, size_t n, const uint8_t* bytes, bool shown, float fill) {
  const V by = Set(shown ? 1.0f : 0.0f);
  const V other = Set(fill);
  ForEachVector(n, [=](size_t i, auto vector) {
    vector.Store(x + i, Select(Eq(vector.Load(bytes + i), by), vector.Load(x + i), other));
  });
}

// NaN becomes the lowest value: Max and Min give their second operand where one is NaN.
NORMFUSE_INLINE V QuantizeVector(V v, V scale, V zero, V low, V high) {
  return Min(Max(RoundEven(v / scale) + zero, low), high);
}

bool IsOneQuantizer(Vec scale, Vec zero) {
  return kHasFma && scale.step == 0 && zero.step == 0 && cpu::Quantizer::Fits(*scale.data);
}

void Quantize(float* x, size_t n, Vec scale, Vec zero, float low, float high) {
  if (IsOneQuantizer(scale, zero)) {
    const OneQuantization quantize(cpu::QuantizerOf(*scale.data, *zero.data, low, high));
    const V shift = Set(*zero.data);
    return ForEachVector(
        n, [=](size_t i, auto vector) { vector.Store(x + i, quantize.Rounded(vector.Load(x + i)) + shift); });
  }
  const V lowest = Set(low);
  const V highest = Set(high);
  Map(x, n, scale, zero, [=](V v, V s, V z) { return QuantizeVector(v, s, z, lowest, highest); });
}

// Stores value(i, vector) for each vector of y.
template <class Value>
NORMFUSE_INLINE void StoreEach(const cpu::FakeQuantizeArgs& args, Value value) {
  float* y = args.y;
  if constexpr (kStreams) {
    if (args.stream) {
      return ForEachVector(args.n, [=](size_t i, auto vector) { vector.StoreNonTemporal(y + i, value(i, vector)); });
    }
  }
  ForEachVector(args.n, [=](size_t i, auto vector) { vector.Store(y + i, value(i, vector)); });
}

void FakeQuantize(const cpu::FakeQuantizeArgs& args) {
  const float* x = args.x;
  if (IsOneQuantizer(args.scale, args.zero)) {
    const OneQuantization quantize(cpu::QuantizerOf(*args.scale.data, *args.zero.data, args.low, args.high));
    return StoreEach(args, [=](size_t i, auto vector) { return quantize.FakeQuantized(vector.Load(x + i)); });
  }
  Spread spread[2];
  const Source scales(args.scale, &spread[0]);
  const Source zeros(args.zero, &spread[1]);
  const V low = Set(args.low);
  const V high = Set(args.high);
  StoreEach(args, [=](size_t i, auto vector) {
    const V scale = vector.At(scales, i);
    const V zero = vector.At(zeros, i);
    return (QuantizeVector(vector.Load(x + i), scale, zero, low, high) - zero) * scale;
  });
}

void Divide(float* x, size_t n, Vec scale, Vec zero) {
  Map(x, n, scale, zero, [](V v, V s, V z) { return v / s + z; });
}

// ---- Dynamic quantisation ----

// Min and Max give their second operand where one is NaN.
void WidenRange(const float* x, size_t n, float* low, float* high) {
  V lows[4] = {Set(*low), Set(*low), Set(*low), Set(*low)};
  V highs[4] = {Set(*high), Set(*high), Set(*high), Set(*high)};
  size_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    NORMFUSE_UNROLL
    for (size_t k = 0; k < 4; ++k) {
      const V v = Load(x + i + k * kLanes);
      lows[k] = Min(v, lows[k]);
      highs[k] = Max(v, highs[k]);
    }
  }
  float least = ReduceMin(Min(Min(lows[0], lows[1]), Min(lows[2], lows[3])));
  float most = ReduceMax(Max(Max(highs[0], highs[1]), Max(highs[2], highs[3])));
  for (; i < n; ++i) {
    least = x[i] < least ? x[i] : least;
    most = x[i] > most ? x[i] : most;
  }
  *low = least;
  *high = most;
}

void QuantizeToBytes(const float* x, size_t n, float scale, float zero, uint8_t* y) {
  const V scales = Set(scale);
  const V zeros = Set(zero);
  const V lowest = Set(0.0f);
  const V highest = Set(255.0f);
  ForEachVector(n, [=](size_t i, auto vector) {
    vector.Store(y + i, QuantizeVector(vector.Load(x + i), scales, zeros, lowest, highest));
  });
}

// ---- Columns ----

void ColumnSum(const float* x, size_t n, const float* shift, float* sum) {
  ForEachVector(n, [=](size_t i, auto vector) {
    vector.Store(sum + i, vector.Load(sum + i) + (vector.Load(x + i) - vector.Load(shift + i)));
  });
}

void ColumnMoments(const float* x, size_t n, const float* shift, float* sum, float* square) {
  ForEachVector(n, [=](size_t i, auto vector) {
    const V off = vector.Load(x + i) - vector.Load(shift + i);
    vector.Store(sum + i, vector.Load(sum + i) + off);
    vector.Store(square + i, Fma(off, off, vector.Load(square + i)));
  });
}

void ColumnNormalize(float* x, size_t n, const float* mean, const float* below, const float* inv) {
  ForEachVector(n, [=](size_t i, auto vector) {
    const V off = (vector.Load(x + i) - vector.Load(mean + i)) - vector.Load(below + i);
    vector.Store(x + i, off * vector.Load(inv + i));
  });
}

// ---- The table ----

void StreamLine(void* to, const void* from) {
  constexpr size_t kFloats = 64 / sizeof(float);
  for (size_t i = 0; i < kFloats; i += kLanes) {
    Put<kStreams>(static_cast<float*>(to) + i, Load(static_cast<const float*>(from) + i));
  }
}

// Non-temporal stores are not ordered with the ones that tell other threads of the result.
void Fence() {
#ifdef __SSE2__
  _mm_sfence();
#endif
}

// How the elements of a type are stored.
template <DataType>
struct StorageOf;
#define NORMFUSE_STORAGE(type, storage) \
  template <>                           \
  struct StorageOf<DataType::k##type> { \
    using Type = storage;               \
  };
NORMFUSE_STORAGE(Float32, float)
NORMFUSE_STORAGE(Float16, Half)
NORMFUSE_STORAGE(Bfloat16, Bfloat16)
NORMFUSE_STORAGE(Int8, int8_t)
NORMFUSE_STORAGE(Uint8, uint8_t)
NORMFUSE_STORAGE(Int16, int16_t)
NORMFUSE_STORAGE(Uint16, uint16_t)
#undef NORMFUSE_STORAGE
template <DataType kType>
using Stored = typename StorageOf<kType>::Type;

#define NORMFUSE_APPLY(name, kernel) Apply<Single<float>, float, kernel>,
constexpr cpu::ApplyFn kFloatApply[] = {NORMFUSE_FOR_EACH_ACTIVATION(NORMFUSE_APPLY)};
#undef NORMFUSE_APPLY

// The functions of a row of NORMFUSE_SECOND_PASS_KERNELS, by its last column.
template <class Input, class Out>
cpu::ApplyFn EveryActivation(Activation activation) {
  return kFloatApply[static_cast<int>(activation)];
}
template <class Input, class Out>
cpu::ApplyFn FollowingActivation(Activation activation) {
#define NORMFUSE_FOLLOWING(kernel) \
  if (activation == Activation::k##kernel) return Apply<Input, Out, kernel>;
  NORMFUSE_FOLLOWING_ACTIVATIONS(NORMFUSE_FOLLOWING)
#undef NORMFUSE_FOLLOWING
  return nullptr;
}
template <class Input, class Out>
cpu::ApplyFn OnlyIdentityActivation(Activation activation) {
  return activation == Activation::kIdentity ? Apply<Input, Out, Identity> : nullptr;
}

cpu::ApplyFn SecondPass(DataType x, DataType y, Activation activation, cpu::SumKind kind) {
#define NORMFUSE_ROW(operands, of_x, of_y, activations)                                                         \
  if (kind == cpu::SumKind::k##operands && x == DataType::k##of_x && y == DataType::k##of_y) {                  \
    return activations##Activation<operands<Stored<DataType::k##of_x>>, Stored<DataType::k##of_y>>(activation); \
  }
  NORMFUSE_SECOND_PASS_KERNELS(NORMFUSE_ROW)
#undef NORMFUSE_ROW
  return nullptr;
}

cpu::RowSumsFn FirstPass(DataType x, cpu::SumKind kind) {
#define NORMFUSE_ROW(operands, of_x, function) \
  if (kind == cpu::SumKind::k##operands && x == DataType::k##of_x) return function<operands<Stored<DataType::k##of_x>>>;
  NORMFUSE_FIRST_PASS_KERNELS(NORMFUSE_ROW)
#undef NORMFUSE_ROW
  return nullptr;
}

// For float32 and the activations that follow a normalisation most; not on the baseline, which gains nothing by it.
template <bool kAny>
cpu::StepFn StepFor(Activation activation) {
  if constexpr (kAny) {
#define NORMFUSE_STEP(kernel) \
  if (activation == Activation::k##kernel) return Step<kernel>;
    NORMFUSE_FOLLOWING_ACTIVATIONS(NORMFUSE_STEP)
#undef NORMFUSE_STEP
  }
  return nullptr;
}

template <bool kAny>
cpu::BothPassesFn BothPassesFor(cpu::Passes passes, DataType x, DataType y, Activation activation, cpu::SumKind kind) {
  if constexpr (kAny) {
#define NORMFUSE_ROW(of_passes, function, operands, of_x, of_y, kernel)                                     \
  if (passes == cpu::Passes::k##of_passes && kind == cpu::SumKind::k##operands && x == DataType::k##of_x && \
      y == DataType::k##of_y && activation == Activation::k##kernel) {                                      \
    return function<operands<Stored<DataType::k##of_x>>, Stored<DataType::k##of_y>, kernel>;                \
  }
    NORMFUSE_BOTH_PASSES_KERNELS(NORMFUSE_ROW)
#undef NORMFUSE_ROW
  }
  return nullptr;
}

template <class T>
constexpr void AddType(KernelTable* table, DataType type) {
  constexpr bool kIs32Bit = Integer<T> && sizeof(T) == 4;
  constexpr bool kIsDequantized = Integer<T> || sizeof(T) == 4;
  table->load[static_cast<int>(type)] = LoadValues<T>;
  if constexpr (kIsDequantized) table->dequantize[static_cast<int>(type)] = Dequantize<T>;
  if constexpr (!kIs32Bit) table->store[static_cast<int>(type)] = StoreValues<T>;
}

constexpr KernelTable MakeTable() {
  KernelTable table{};
  AddType<float>(&table, DataType::kFloat32);
  AddType<Half>(&table, DataType::kFloat16);
  AddType<Bfloat16>(&table, DataType::kBfloat16);
  AddType<int8_t>(&table, DataType::kInt8);
  AddType<uint8_t>(&table, DataType::kUint8);
  AddType<int16_t>(&table, DataType::kInt16);
  AddType<uint16_t>(&table, DataType::kUint16);
  AddType<int32_t>(&table, DataType::kInt32);
  AddType<uint32_t>(&table, DataType::kUint32);
#define NORMFUSE_COMBINATION(name, kernel) table.combine[static_cast<int>(StepKind::k##name)] = Combine<kernel>;
  NORMFUSE_FOR_EACH_COMBINATION(NORMFUSE_COMBINATION)
#undef NORMFUSE_COMBINATION
  table.mask = Mask;
  table.quantize = Quantize;
  table.fake_quantize = FakeQuantize;
  if (kHasFma) table.element_steps = ElementSteps;
  table.rounds_by_product = RoundsByProduct;
  table.divide = Divide;
  table.widen_range = WidenRange;
  table.quantize_to_bytes = QuantizeToBytes;
  for (int i = 0; i < kActivationCount; ++i) table.apply[i] = kFloatApply[i];
#define NORMFUSE_GATED(kernel) \
  table.gated[static_cast<int>(Activation::k##kernel)] = Apply<Single<float>, float, Gated<kernel>>;
  NORMFUSE_GATED_ACTIVATIONS(NORMFUSE_GATED)
#undef NORMFUSE_GATED
  table.column_sum = ColumnSum;
  table.column_moments = ColumnMoments;
  table.column_normalize = ColumnNormalize;
  table.read_rows[static_cast<int>(DataType::kFloat32)] = ReadRows<float>;
  table.read_rows[static_cast<int>(DataType::kFloat16)] = ReadRows<Half>;
  table.read_rows[static_cast<int>(DataType::kInt8)] = ReadRows<int8_t>;
  table.read_rows[static_cast<int>(DataType::kUint8)] = ReadRows<uint8_t>;
  table.usual_rows[static_cast<int>(DataType::kFloat32)] = UsualRows<float>;
  table.usual_rows[static_cast<int>(DataType::kFloat16)] = UsualRows<Half>;
  table.usual_rows[static_cast<int>(DataType::kInt8)] = UsualRows<int8_t>;
  table.usual_rows[static_cast<int>(DataType::kUint8)] = UsualRows<uint8_t>;
  table.softmax_rows = SoftmaxRows;
  table.row_max = RowMax;
  table.row_exp = RowExp;
  table.column_max = ColumnMax;
  table.column_exp = ColumnExp;
  table.first_pass = FirstPass;
  table.find_shift = FindShift;
  table.keeps = kHasFma;
  table.second_pass = SecondPass;
  table.step = StepFor<kHasFma>;
  table.both_passes = BothPassesFor<kHasFma>;
  if (kStreams) table.stream_line = StreamLine;
  table.fence = Fence;
  table.look_up = LookUpBytes;
  return table;
}

constexpr KernelTable kTable = MakeTable();

}  // namespace

// NOLINTNEXTLINE(misc-definitions-in-headers): one for each instruction set, in its namespace
const KernelTable& Kernels() { return kTable; }

}  // namespace normfuse::NORMFUSE_ISA
