// The parts of a softmax: the largest value, and the exponentials with their sum. Included once per instruction set.
//
// The order of summation: vectors of a block side by side, four of them (the last of which may lack some) added to each
// other first; what rounding loses of the running sums is kept beside them. Blocks are added in double. So sums are right
// to about one unit in the last place however long the row is and however little most of its values count.
#pragma once

#include "cpu/kernels/inputs-inl.h"
#include "cpu/kernels/math-inl.h"

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

// d of one row, where it lies. What the last vector lacks is -infinity, of which the exponential is 0.
template <class T>
class RowOfD {
 public:
  NORMFUSE_INLINE RowOfD(const cpu::ReadRowsArgs& a, int row, Spread (&spread)[2])
      : x_(RowOf<T>(a.x, a.x_stride, row)),
        scale_(Set(a.scale)),
        zero_(Set(a.zero)),
        factors_({a.factor.data + a.factor_stride * row, a.factor.step}, &spread[0]),
        addends_({a.addend.data + a.addend_stride * row, a.addend.step}, &spread[1]) {}
  NORMFUSE_INLINE V At(size_t i) const { return Dequantized(LoadAsFloat(x_ + i)) * factors_.At(i) + addends_.At(i); }
  NORMFUSE_INLINE V LastAt(size_t i, size_t n) const {
    const V v = Dequantized(LoadAsFloatPartial(x_ + i, n)) * factors_.PartialAt(i, n) + addends_.PartialAt(i, n);
    return Select(GtI(SetI(static_cast<int32_t>(n)), Iota()), v, Set(-__builtin_inff()));
  }

 private:
  NORMFUSE_INLINE V Dequantized(V v) const {
    if constexpr (sizeof(T) == 1) return (v - zero_) * scale_;
    return v;
  }
  const T* x_;
  V scale_;
  V zero_;
  Source factors_;
  Source addends_;
};

template <class T>
NORMFUSE_INLINE float ReadRow(const cpu::ReadRowsArgs& a, int row) {
  Spread spread[2];
  const RowOfD<T> d(a, row, spread);
  float* to = a.d + a.d_stride * row;
  V largest = Set(a.most[row]);
  size_t i = 0;
  for (; i + kLanes <= a.n; i += kLanes) {
    const V v = d.At(i);
    Store(to + i, v);
    largest = Max(largest, v);
  }
  if (i < a.n) {
    const V v = d.LastAt(i, a.n - i);
    Store(to + i, v);
    largest = Max(largest, v);
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

// The quotients of a row whose sum is known, into Y.
template <bool kStream>
struct Quotients {
  NORMFUSE_INLINE void At(size_t i) const { Put<kStream>(y + i, Load(e + i) * inverse); }
  NORMFUSE_INLINE void LastAt(size_t i, size_t n) const { StorePartial(y + i, Load(e + i) * inverse, n); }
  NORMFUSE_INLINE void All(size_t n) const {
    size_t i = 0;
    for (; i + kLanes <= n; i += kLanes) At(i);
    if (i < n) LastAt(i, n - i);
  }
  const float* e;
  float* y;
  V inverse;
};
struct NoQuotients {
  NORMFUSE_INLINE void At(size_t) const {}
  NORMFUSE_INLINE void LastAt(size_t, size_t) const {}
};

// Reads a row and writes its exponentials to `e`, as they are where its largest value is a usual one, while the quotients of
// another row are stored.
template <class T, class Other>
class UsualRow {
 public:
  NORMFUSE_INLINE UsualRow(const RowOfD<T>& d, float* e, const Other& other, float most)
      : d_(d), e_(e), other_(other), largest_(Set(most)) {}

  // Its sum, in the order of ExpAndSum.
  NORMFUSE_INLINE double Sum(size_t n) {
    LongSum sum{Set(0.0f), Set(0.0f)};
    size_t i = 0;
    for (; i + 4 * kLanes <= n; i += 4 * kLanes) sum.Add(SumOfFour(i));
    const size_t rest = n - i;
    if (rest > 3 * kLanes) {
      const V first = At<1>(i) + At<1>(i + kLanes);
      const V second = At<1>(i + 2 * kLanes) + LastAt(i + 3 * kLanes, rest - 3 * kLanes);
      sum.Add(first + second);
      return sum.Total();
    }
    for (; i + kLanes <= n; i += kLanes) sum.Add(At<1>(i));
    if (i < n) sum.Add(LastAt(i, n - i));
    return sum.Total();
  }
  NORMFUSE_INLINE float Largest() const { return ReduceMax(largest_); }

 private:
  // As many vectors in turns as there are registers for.
  NORMFUSE_INLINE V SumOfFour(size_t i) {
    if constexpr (kLanes == 16) return At<4>(i);
    const V first = At<2>(i);
    return first + At<2>(i + 2 * kLanes);
  }
  template <size_t kVectors>
  NORMFUSE_INLINE V At(size_t i) {
    V v[kVectors];
    NORMFUSE_UNROLL
    for (size_t k = 0; k < kVectors; ++k) v[k] = d_.At(i + k * kLanes);
    NORMFUSE_UNROLL
    for (size_t k = 0; k < kVectors; ++k) other_.At(i + k * kLanes);
    return Put(i, v);
  }
  NORMFUSE_INLINE V LastAt(size_t i, size_t n) {
    V v[1] = {d_.LastAt(i, n)};
    other_.LastAt(i, n);
    return Put(i, v);
  }
  template <size_t kVectors>
  NORMFUSE_INLINE V Put(size_t i, V (&v)[kVectors]) {
    const ExpBelow exp(Set(0.0f), Set(cpu::kUsualDown));
    NORMFUSE_UNROLL
    for (size_t k = 0; k < kVectors; ++k) largest_ = Max(largest_, v[k]);
    NORMFUSE_UNROLL
    for (size_t k = 0; k < kVectors; ++k) v[k] = exp(v[k]);
    NORMFUSE_UNROLL
    for (size_t k = 0; k < kVectors; ++k) Store(e_ + i + k * kLanes, v[k]);
    if constexpr (kVectors == 4) return (v[0] + v[1]) + (v[2] + v[3]);
    if constexpr (kVectors == 2) return v[0] + v[1];
    return v[0];
  }
  RowOfD<T> d_;
  float* e_;
  Other other_;
  V largest_;
};

template <class T, class Other>
NORMFUSE_INLINE double SumOfUsualRow(const cpu::ReadRowsArgs& a, int row, float* e, const Other& other, float* most) {
  Spread spread[2];
  UsualRow<T, Other> of(RowOfD<T>(a, row, spread), e, other, *most);
  const double sum = of.Sum(a.n);
  *most = of.Largest();
  return sum;
}

NORMFUSE_INLINE bool IsUsual(float most, double sum) {
  return most >= cpu::kUsualLeast && most <= cpu::kUsualMost && sum > 0;
}

template <class T>
void UsualRows(const cpu::ReadRowsArgs& a, double* sums) {
  for (int row = 0; row < a.rows; ++row) {
    sums[row] = SumOfUsualRow<T>(a, row, a.d + a.d_stride * row, NoQuotients(), a.most + row);
  }
}

template <bool kStream>
NORMFUSE_INLINE int SoftmaxRowsTo(const cpu::ReadRowsArgs& a, float* y, int64_t y_stride) {
  Quotients<kStream> before{};
  for (int row = 0; row < a.rows; ++row) {
    float* e = a.d + (row & 1) * a.d_stride;
    float most = -__builtin_inff();
    const double sum = row == 0 ? SumOfUsualRow<float>(a, row, e, NoQuotients(), &most)
                                : SumOfUsualRow<float>(a, row, e, before, &most);
    if (!IsUsual(most, sum)) return row;
    before = {e, y + y_stride * row, Set(static_cast<float>(1.0 / sum))};
  }
  before.All(a.n);
  return a.rows;
}

int SoftmaxRows(const cpu::ReadRowsArgs& a, float* y, int64_t y_stride, bool stream) {
  if (stream && kStreams) return SoftmaxRowsTo<kStreams>(a, y, y_stride);
  return SoftmaxRowsTo<false>(a, y, y_stride);
}

// Columns: one maximum, shift and sum per element.

void ColumnMax(const float* x, size_t n, float* most) {
  ForEachVector(n,
                [=](size_t i, auto vector) { vector.Store(most + i, Max(vector.Load(most + i), vector.Load(x + i))); });
}

void ColumnExp(const float* x, size_t n, const cpu::ColumnSums& c, float* exponentials) {
  ForEachVector(n, [=](size_t i, auto vector) {
    const V e = ExpBelow(vector.Load(c.shift + i), vector.Load(c.down + i))(vector.Load(x + i));
    LongSum total{vector.Load(c.sum + i), vector.Load(c.lost + i)};
    total.Add(e);
    vector.Store(exponentials + i, e);
    vector.Store(c.sum + i, total.sum);
    vector.Store(c.lost + i, total.lost);
  });
}

}  // namespace
}  // namespace normfuse::NORMFUSE_ISA
