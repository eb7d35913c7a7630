// The parts of a softmax: the largest value, and the exponentials with their sum. Included once per instruction set.
//
// The order of summation: vectors of a block side by side, four of them (the last of which may lack some) added to each
// other first; what rounding loses of the running sums is kept beside them. Blocks are added in double. So sums are right
// to about one unit in the last place however long the row is and however little most of its values count.
#pragma once

#include "cpu/inputs-inl.h"
#include "cpu/math-inl.h"

namespace normfuse::NORMFUSE_ISA {
namespace {

// The larger one of `most` and the largest of n values; NaN counts or does not.
float RowMax(const float* x, size_t n, float most) {
  V largest[2] = {Set(most), Set(most)};
  size_t i = 0;
  for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
    largest[0] = Max(largest[0], Load(x + i));
    largest[1] = Max(largest[1], Load(x + i + kLanes));
  }
  float result = ReduceMax(Max(largest[0], largest[1]));
  for (; i < n; ++i) result = x[i] > result ? x[i] : result;
  return result;
}

// What is left of the last vector becomes -infinity, of which the exponential is 0.
template <class T>
NORMFUSE_INLINE float ReadRow(const cpu::ReadRowsArgs& a, int row) {
  constexpr bool kIsInteger = sizeof(T) == 1;
  Spread spread[2];
  const Source factors({a.factor.data + a.factor_stride * row, a.factor.step}, &spread[0]);
  const Source addends({a.addend.data + a.addend_stride * row, a.addend.step}, &spread[1]);
  const T* x = RowOf<T>(a.x, a.x_stride, row);
  float* d = a.d + a.d_stride * row;
  const V scale = Set(a.scale);
  const V zero = Set(a.zero);
  const auto dequantized = [&](V v) {
    if constexpr (kIsInteger) return (v - zero) * scale;
    return v;
  };
  V largest = Set(a.most[row]);
  size_t i = 0;
  for (; i + kLanes <= a.n; i += kLanes) {
    const V v = dequantized(LoadAsFloat(x + i)) * factors.At(i) + addends.At(i);
    Store(d + i, v);
    largest = Max(largest, v);
  }
  const size_t rest = a.n - i;
  if (rest != 0) {
    const V v = dequantized(LoadAsFloatPartial(x + i, rest)) * factors.PartialAt(i, rest) + addends.PartialAt(i, rest);
    const V filled = Select(GtI(SetI(static_cast<int32_t>(rest)), Iota()), v, Set(-__builtin_inff()));
    Store(d + i, filled);
    largest = Max(largest, filled);
  }
  return ReduceMax(largest);
}

template <class T>
void ReadRows(const cpu::ReadRowsArgs& a) {
  for (int row = 0; row < a.rows; ++row) a.most[row] = ReadRow<T>(a, row);
}

// A sum, and what rounding has lost of it.
struct LongSum {
  V sum;
  V lost;
  NORMFUSE_INLINE void Add(V term) {
    const V total = sum + term;
    const V added = total - sum;
    lost = lost + ((sum - (total - added)) + (term - added));
    sum = total;
  }
  NORMFUSE_INLINE double Total() const {
    float parts[2 * kLanes];
    Store(parts, sum);
    Store(parts + kLanes, lost);
    Doubles totals{};
    for (size_t i = 0; i < 2 * kLanes; i += 4) {
      Floats four;
      __builtin_memcpy(&four, parts + i, sizeof(four));
      Doubles wide;
      Widen(four, &wide);
      totals += wide;
    }
    return (totals[0] + totals[1]) + (totals[2] + totals[3]);
  }
};

template <bool kKeep>
NORMFUSE_INLINE double ExpAndSum(float* x, size_t n, const ExpBelow& exp) {
  LongSum sum{Set(0.0f), Set(0.0f)};
  const auto at = [&](size_t i) {
    const V e = exp(Load(x + i));
    if constexpr (kKeep) Store(x + i, e);
    return e;
  };
  // The last vector, with 0 for what it lacks.
  const auto last = [&](size_t i) {
    float rest[kLanes] = {};
    StorePartial(rest, exp(LoadPartial(x + i, n - i)), n - i);
    const V e = Load(rest);
    if constexpr (kKeep) StorePartial(x + i, e, n - i);
    return e;
  };
  size_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    const V first = at(i) + at(i + kLanes);
    const V second = at(i + 2 * kLanes) + at(i + 3 * kLanes);
    sum.Add(first + second);
  }
  if (i + 3 * kLanes < n) {
    const V first = at(i) + at(i + kLanes);
    const V second = at(i + 2 * kLanes) + last(i + 3 * kLanes);
    sum.Add(first + second);
    return sum.Total();
  }
  for (; i + kLanes <= n; i += kLanes) sum.Add(at(i));
  if (i < n) sum.Add(last(i));
  return sum.Total();
}

double RowExp(float* x, size_t n, float shift, float down, bool keep) {
  const ExpBelow exp(Set(shift), Set(down));
  return keep ? ExpAndSum<true>(x, n, exp) : ExpAndSum<false>(x, n, exp);
}

// Of rows that ReadRows read, up to the end of the last vector.
void ExpRows(const cpu::ExpRowsArgs& a) {
  const size_t n = (a.n + kLanes - 1) / kLanes * kLanes;
  for (int row = 0; row < a.rows; ++row) {
    a.sums[row] = RowExp(a.d + a.d_stride * row, n, a.shift[row], a.down[row], a.keep);
  }
}

// Columns: one maximum, shift and sum per element.

void ColumnMax(const float* x, size_t n, float* most) {
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) Store(most + i, Max(Load(most + i), Load(x + i)));
  const size_t rest = n - i;
  if (rest != 0) StorePartial(most + i, Max(LoadPartial(most + i, rest), LoadPartial(x + i, rest)), rest);
}

void ColumnExp(float* x, size_t n, const float* shift, const float* down, float* sum, float* lost) {
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const V e = ExpBelow(Load(shift + i), Load(down + i))(Load(x + i));
    LongSum total{Load(sum + i), Load(lost + i)};
    total.Add(e);
    Store(x + i, e);
    Store(sum + i, total.sum);
    Store(lost + i, total.lost);
  }
  const size_t rest = n - i;
  if (rest == 0) return;
  const V e = ExpBelow(LoadPartial(shift + i, rest), LoadPartial(down + i, rest))(LoadPartial(x + i, rest));
  LongSum total{LoadPartial(sum + i, rest), LoadPartial(lost + i, rest)};
  total.Add(e);
  StorePartial(x + i, e, rest);
  StorePartial(sum + i, total.sum, rest);
  StorePartial(lost + i, total.lost, rest);
}

}  // namespace
}  // namespace normfuse::NORMFUSE_ISA
