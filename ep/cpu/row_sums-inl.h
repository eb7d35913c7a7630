// Sums over rows, of differences from a shift and of their squares, and the normalizers that follow from them. Included
// once per instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/byte_sums-inl.h"
#include "cpu/inputs-inl.h"
#include "cpu/normalizers-inl.h"

namespace normfuse::NORMFUSE_ISA {
namespace {

template <class T>
concept Integer = requires(T v) { v % v; };

// Rows that are summed side by side, which share the last additions: as many as there are registers for.
constexpr int kSumRows = kLanes == 16 ? 4 : 2;

// Accumulators per row and sum: enough of them to hide what an addition takes, few enough to stay in registers.
template <int kRows>
constexpr int kSets = 4 / kRows;

// Accumulators add at most this many elements, 16 per lane, which keeps the error near one rounding. More would not do: at
// a large offset the differences are multiples of a power of two, m * 2^-k, whose squares are 0 or 1 modulo 4, so that a
// sum too large for its last two bits is rounded down nearly always.
template <int kRows>
constexpr size_t kSumBlock = 16 * kSets<kRows> * kLanes;

// Elements that are added in float32, at most 64 per lane.
template <int kRows>
constexpr size_t kFloatBlock = kRows == 4 ? 64 * kLanes : kSumBlock<kRows>;

// Sums of one row, two or four, first the sums of differences, then those of squares.
template <int kRows, int kCount>
struct VectorSums {
  NORMFUSE_INLINE VectorSums() {
    NORMFUSE_UNROLL
    for (int row = 0; row < kRows; ++row) {
      NORMFUSE_UNROLL
      for (int set = 0; set < kCount; ++set) first[row][set] = second[row][set] = Set(0.0f);
    }
  }
  NORMFUSE_INLINE void Add(int row, int set, V off) {
    // Every other sum by Fma, which is as exact: processors have as many units for that as for additions.
    V& sum = first[row][set];
    sum = kHasFma && (row + set) % 2 == 1 ? Fma(off, Set(1.0f), sum) : sum + off;
    second[row][set] = Fma(off, off, second[row][set]);
  }
  NORMFUSE_INLINE VectorSums<kRows, 1> OfSets() const {
    VectorSums<kRows, 1> sums;
    NORMFUSE_UNROLL
    for (int row = 0; row < kRows; ++row) {
      sums.first[row][0] = Sum(first[row]);
      sums.second[row][0] = Sum(second[row]);
    }
    return sums;
  }
  NORMFUSE_INLINE void Add(const VectorSums& other) {
    NORMFUSE_UNROLL
    for (int row = 0; row < kRows; ++row) {
      NORMFUSE_UNROLL
      for (int set = 0; set < kCount; ++set) {
        first[row][set] = first[row][set] + other.first[row][set];
        second[row][set] = second[row][set] + other.second[row][set];
      }
    }
  }
  static NORMFUSE_INLINE V Sum(const V (&v)[kCount]) {
    if constexpr (kCount == 1) return v[0];
    if constexpr (kCount == 2) return v[0] + v[1];
    if constexpr (kCount == 4) return (v[0] + v[1]) + (v[2] + v[3]);
  }
  V first[kRows][kCount];
  V second[kRows][kCount];
};

// The sums of one row in two elements, of two rows in four, of four rows in twice four.
template <int kRows>
struct LaneSums {
  NORMFUSE_INLINE void Add(const VectorSums<kRows, 1>& v) {
    Doubles each[kParts];
    if constexpr (kRows == 1) {
      each[0] = Doubles{static_cast<double>(ReduceSum(v.first[0][0])), static_cast<double>(ReduceSum(v.second[0][0]))};
    } else if constexpr (kRows == 2) {
      Widen(SumsOfEach(v.first[0][0], v.first[1][0], v.second[0][0], v.second[1][0]), &each[0]);
    } else {
      Widen(SumsOfEach(v.first[0][0], v.first[1][0], v.first[2][0], v.first[3][0]), &each[0]);
      Widen(SumsOfEach(v.second[0][0], v.second[1][0], v.second[2][0], v.second[3][0]), &each[1]);
    }
    NORMFUSE_UNROLL
    for (int i = 0; i < kParts; ++i) parts[i] += each[i];
  }
  NORMFUSE_INLINE void Get(FourSums* sums) const {
    sums->first = parts[0];
    sums->second = parts[kParts - 1];
    if constexpr (kRows < 4) sums->second = __builtin_shufflevector(parts[0], parts[0], kRows, 2 * kRows - 1, 0, 1);
  }
  static constexpr int kParts = kRows == 4 ? 2 : 1;
  Doubles parts[kParts] = {};
};

// Keeps these out of registers while a block is summed: compilers would rather move one of its accumulators to memory.
template <int kRows>
NORMFUSE_INLINE void HideInMemory(LaneSums<kRows>* lanes) {
  asm volatile("" : "+m"(*lanes));
}

// With kAhead, x is fetched `ahead` elements before it is needed.
template <bool kAhead, class Input, int kRows>
NORMFUSE_INLINE VectorSums<kRows, 1> SumsOfBlock(const Input (&x)[kRows], size_t begin, size_t end,
                                                 const V (&shift)[kRows], size_t ahead) {
  constexpr size_t kStep = kSets<kRows> * kLanes;
  VectorSums<kRows, kSets<kRows>> block;
  size_t i = begin;
  for (; i + kStep <= end; i += kStep) {
    NORMFUSE_UNROLL
    for (int set = 0; set < kSets<kRows>; ++set) {
      NORMFUSE_UNROLL
      for (int row = 0; row < kRows; ++row) {
        if constexpr (kAhead) x[row].Plain().Prefetch(i + static_cast<size_t>(set) * kLanes, ahead);
        block.Add(row, set, x[row].At(i + static_cast<size_t>(set) * kLanes) - shift[row]);
      }
    }
  }
  for (; kStep > kLanes && i + kLanes <= end; i += kLanes) {
    NORMFUSE_UNROLL
    for (int row = 0; row < kRows; ++row) block.Add(row, 0, x[row].At(i) - shift[row]);
  }
  if (i < end) {
    // Lanes beyond the end hold -shift: take them out.
    const M inside = Lt(ToFloat(Iota()), Set(static_cast<float>(end - i)));
    NORMFUSE_UNROLL
    for (int row = 0; row < kRows; ++row) {
      block.Add(row, kSets<kRows> - 1, Select(inside, x[row].PartialAt(i, end - i) - shift[row], Set(0.0f)));
    }
  }
  return block.OfSets();
}

template <bool kAhead, class Input, int kRows>
NORMFUSE_INLINE void SumsOfRows(const Input (&x)[kRows], size_t n, const Floats& shifts, size_t ahead, FourSums* sums) {
  V shift[kRows];
  NORMFUSE_UNROLL
  for (int k = 0; k < kRows; ++k) shift[k] = Set(shifts[k]);
  LaneSums<kRows> lanes;
  for (size_t from = 0; from < n; from += kFloatBlock<kRows>) {
    const size_t to = n - from < kFloatBlock<kRows> ? n : from + kFloatBlock<kRows>;
    if constexpr (kFloatBlock<kRows> == kSumBlock<kRows>) {
      if constexpr (kRows == 2 && kLanes == 16) HideInMemory(&lanes);
      lanes.Add(SumsOfBlock<kAhead>(x, from, to, shift, ahead));
    } else {
      VectorSums<kRows, 1> blocks;
      for (size_t begin = from; begin < to; begin += kSumBlock<kRows>) {
        const size_t end = to - begin < kSumBlock<kRows> ? to : begin + kSumBlock<kRows>;
        HideInMemory(&lanes);
        blocks.Add(SumsOfBlock<kAhead>(x, begin, end, shift, ahead));
      }
      lanes.Add(blocks);
    }
  }
  Widen(shifts, &sums->shift);
  lanes.Get(sums);
}

template <class Input>
NORMFUSE_INLINE V FirstVectors(const Input& x) {
  return (x.At(0) + x.At(kLanes)) + (x.At(2 * kLanes) + x.At(3 * kLanes));
}

// The mean of a short row, but for rounding.
template <class Input>
NORMFUSE_INLINE float ShiftOfShort(const Input& x, size_t n) {
  const float start = ReduceSum(x.PartialAt(0, 1));
  FourSums sums{};
  const Input row[1] = {x};
  SumsOfRows<false>(row, n, Floats{start}, 0, &sums);
  return start + static_cast<float>(sums.first[0]) / static_cast<float>(n);
}

// As many as shifts are made of.
constexpr size_t kShiftElements = 4 * kLanes;

// Values near the means: within one standard deviation of it for nearly every row, and exact for a constant one.
template <class Input, int kRows>
NORMFUSE_INLINE void FindShiftsOfLong(const Input (&x)[kRows], Floats* shifts) {
  constexpr float kShare = 1.0f / static_cast<float>(kShiftElements);
  if constexpr (kRows == 1) {
    (*shifts)[0] = ReduceSum(FirstVectors(x[0].Plain())) * kShare;
  } else {
    *shifts = SumsOfEach(FirstVectors(x[0].Plain()), FirstVectors(x[1].Plain()), FirstVectors(x[kRows - 2].Plain()),
                         FirstVectors(x[kRows - 1].Plain())) *
              kShare;
  }
}

template <class Input, int kRows>
NORMFUSE_INLINE void FindShifts(const Input (&x)[kRows], size_t n, Floats* shifts) {
  if (n >= kShiftElements) return FindShiftsOfLong(x, shifts);
  for (int k = 0; k < kRows; ++k) (*shifts)[k] = ShiftOfShort(x[k].Plain(), n);
}

// Sums and normalizers of kRows rows from `row` on.
template <int kRows, bool kScaled>
NORMFUSE_INLINE bool FinishRows(const cpu::RowSumsArgs& a, int row, const FourSums& sums) {
  NORMFUSE_UNROLL
  for (int k = 0; k < kRows; ++k) a.sums[row + k] = {sums.shift[k], sums.first[k], sums.second[k]};
  if (a.usual == nullptr) return true;
  Doubles scale = {1.0, 1.0, 1.0, 1.0};
  if (kScaled && a.x_scale != nullptr) {
    NORMFUSE_UNROLL
    for (int k = 0; k < kRows; ++k) scale[k] = static_cast<double>(a.x_scale[(row + k) * a.x_scale_stride]);
  }
  return MakeNormalizers<kRows, kScaled>(*a.usual, sums, scale, a.normalizers + row);
}

template <bool kAhead, class Input, int kRows>
NORMFUSE_INLINE bool SumRows(const cpu::RowSumsArgs& a, int row) {
  Input x[kRows];
  Floats start = {a.shift, a.shift, a.shift, a.shift};
  NORMFUSE_UNROLL
  for (int k = 0; k < kRows; ++k) x[k] = InputOf<Input>(a, row + k);
  if (a.find_shift) FindShifts(x, a.n, &start);
  FourSums sums{};
  SumsOfRows<kAhead>(x, a.n, start, a.ahead, &sums);
  return FinishRows<kRows, Integer<typename Input::Element>>(a, row, sums);
}

template <class Input>
NORMFUSE_INLINE bool SumOneByOne(const cpu::RowSumsArgs& a, int row) {
  bool good = true;
  for (; row < a.rows; ++row) good &= SumRows<false, Input, 1>(a, row);
  return good;
}

template <class Input>
bool RowSums(const cpu::RowSumsArgs& a) {
  int row = 0;
  bool good = true;
  // The baseline has too few registers for two rows.
  if constexpr (!kHasFma) return SumOneByOne<Input>(a, row);
  if constexpr (sizeof(typename Input::Element) == sizeof(float)) {
    for (; row + kSumRows <= a.rows; row += kSumRows) good &= SumRows<false, Input, kSumRows>(a, row);
    if constexpr (kSumRows == 4) {
      for (; row + 2 <= a.rows; row += 2) good &= SumRows<false, Input, 2>(a, row);
    }
  } else if constexpr (!Integer<typename Input::Element>) {
    if (a.kept != nullptr) {
      for (; row + 2 <= a.rows; row += 2) good &= SumRows<true, Keeping<Input>, 2>(a, row);
      return SumOneByOne<Keeping<Input>>(a, row) && good;
    }
  }
  return SumOneByOne<Input>(a, row) && good;
}

template <class Sum>
bool RowSumsOfSum(const cpu::RowSumsArgs& a) {
  using T = typename Sum::Element;
  if (a.sum == nullptr) return RowSums<Sum>(a);
  if (kCanStream<T> && a.stream) return RowSums<Storing<Sum, kCanStream<T>>>(a);
  return RowSums<Storing<Sum, false>>(a);
}

// 8-bit values: the shift is the type's lowest value, whatever is asked for.
template <class T, int kRows>
NORMFUSE_INLINE bool SumRowsOfBytes(const cpu::RowSumsArgs& a, int row) {
  constexpr bool kSigned = static_cast<T>(-1) < 0;
  constexpr double kShift = kSigned ? -128.0 : 0.0;
  double first[4] = {};
  double second[4] = {};
  NORMFUSE_UNROLL
  for (int k = 0; k < kRows; ++k) {
    const ByteSums bytes = SumBytes(RowOf<uint8_t>(a.x, a.x_stride, row + k), a.n, kSigned ? 0x80 : 0);
    first[k] = static_cast<double>(bytes.first);
    second[k] = static_cast<double>(bytes.second);
  }
  const FourSums sums{{kShift, kShift, kShift, kShift},
                      {first[0], first[1], first[2], first[3]},
                      {second[0], second[1], second[2], second[3]}};
  return FinishRows<kRows, true>(a, row, sums);
}

template <class T>
bool RowSumsOfBytes(const cpu::RowSumsArgs& a) {
  int row = 0;
  bool good = true;
  for (; row + 4 <= a.rows; row += 4) good &= SumRowsOfBytes<T, 4>(a, row);
  for (; row < a.rows; ++row) good &= SumRowsOfBytes<T, 1>(a, row);
  return good;
}

}  // namespace
}  // namespace normfuse::NORMFUSE_ISA
