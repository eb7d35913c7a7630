// Sums over rows: of differences from a shift and of their squares. Included once per instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/byte_sums-inl.h"
#include "cpu/inputs-inl.h"

namespace normfuse::NORMFUSE_ISA {
namespace {

// Rows that are summed side by side, which share the last additions: as many as there are registers for.
constexpr int kSumRows = kLanes == 16 ? 4 : 2;

// Accumulators per row and sum.
template <int kRows>
constexpr int kSets = kRows == 1 ? 4 : 2;

// Sums of at most this many elements are made in float32: 16 per lane and accumulator keep the error near one rounding.
// More would not do: at a large offset the differences are multiples of a power of two, m * 2^-k, whose squares are 0 or
// 1 modulo 4, so that a sum too large for its last two bits is rounded down nearly always.
template <int kRows>
constexpr size_t kSumBlock = 16 * kSets<kRows> * kLanes;

// Sums of one row, two or four, first the sums of differences, then those of squares.
template <int kRows>
struct BlockSums {
  NORMFUSE_INLINE void Add(int row, int set, V off) {
    // Every other sum by Fma, which is as exact: processors have as many units for that as for additions.
    V& sum = first[row][set];
    sum = kHasFma && set % 2 == 1 ? Fma(off, Set(1.0f), sum) : sum + off;
    second[row][set] = Fma(off, off, second[row][set]);
  }
  NORMFUSE_INLINE void AddTo(double* sums) const {
    if constexpr (kRows == 1) {
      const V firsts = (first[0][0] + first[0][1]) + (first[0][2] + first[0][3]);
      const V seconds = (second[0][0] + second[0][1]) + (second[0][2] + second[0][3]);
      sums[0] += static_cast<double>(ReduceSum(firsts));
      sums[1] += static_cast<double>(ReduceSum(seconds));
    } else if constexpr (kRows == 2) {
      AddSums(first[0][0] + first[0][1], first[1][0] + first[1][1], second[0][0] + second[0][1],
              second[1][0] + second[1][1], sums);
    } else {
      AddSums(first[0][0] + first[0][1], first[1][0] + first[1][1], first[2][0] + first[2][1],
              first[3][0] + first[3][1], sums);
      AddSums(second[0][0] + second[0][1], second[1][0] + second[1][1], second[2][0] + second[2][1],
              second[3][0] + second[3][1], sums + 4);
    }
  }
  NORMFUSE_INLINE BlockSums() {
    NORMFUSE_UNROLL
    for (int row = 0; row < kRows; ++row) {
      NORMFUSE_UNROLL
      for (int set = 0; set < kSets<kRows>; ++set) first[row][set] = second[row][set] = Set(0.0f);
    }
  }
  V first[kRows][kSets<kRows>];
  V second[kRows][kSets<kRows>];
};

// With kAhead, x is fetched `ahead` elements before it is needed.
template <bool kAhead, class Input, int kRows>
NORMFUSE_INLINE void SumsOfBlock(const Input (&x)[kRows], size_t begin, size_t end, const V (&shift)[kRows],
                                 size_t ahead, double* sums) {
  constexpr size_t kStep = kSets<kRows> * kLanes;
  BlockSums<kRows> block;
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
  for (; i + kLanes <= end; i += kLanes) {
    NORMFUSE_UNROLL
    for (int row = 0; row < kRows; ++row) block.Add(row, 0, x[row].At(i) - shift[row]);
  }
  if (i < end) {
    // Lanes beyond the end hold -shift: take them out.
    const M inside = Lt(ToFloat(Iota()), Set(static_cast<float>(end - i)));
    NORMFUSE_UNROLL
    for (int row = 0; row < kRows; ++row) {
      block.Add(row, 1, Select(inside, x[row].PartialAt(i, end - i) - shift[row], Set(0.0f)));
    }
  }
  block.AddTo(sums);
}

template <bool kAhead, class Input, int kRows>
NORMFUSE_INLINE void SumsOfRows(const Input (&x)[kRows], size_t n, const V (&shift)[kRows], size_t ahead,
                                double* sums) {
  for (size_t begin = 0; begin < n; begin += kSumBlock<kRows>) {
    const size_t end = n - begin < kSumBlock<kRows> ? n : begin + kSumBlock<kRows>;
    SumsOfBlock<kAhead>(x, begin, end, shift, ahead, sums);
  }
}

template <class Input>
NORMFUSE_INLINE V FirstVectors(const Input& x) {
  return (x.At(0) + x.At(kLanes)) + (x.At(2 * kLanes) + x.At(3 * kLanes));
}

// The mean of a short row, but for rounding.
template <class Input>
NORMFUSE_INLINE float ShiftOfShort(const Input& x, size_t n) {
  const float start = ReduceSum(x.PartialAt(0, 1));
  double sums[2] = {0, 0};
  const Input row[1] = {x};
  const V shift[1] = {Set(start)};
  SumsOfBlock<false>(row, 0, n, shift, 0, sums);
  return start + static_cast<float>(sums[0]) / static_cast<float>(n);
}

// Values near the means: within one standard deviation of it for nearly every row, and exact for a constant one.
template <class Input, int kRows>
NORMFUSE_INLINE void FindShifts(const Input (&x)[kRows], size_t n, float* shifts) {
  constexpr float kShare = 1.0f / static_cast<float>(4 * kLanes);
  if (n < 4 * kLanes) {
    for (int k = 0; k < kRows; ++k) shifts[k] = ShiftOfShort(x[k].Plain(), n);
  } else if constexpr (kRows == 1) {
    shifts[0] = ReduceSum(FirstVectors(x[0].Plain())) * kShare;
  } else {
    float sums[4];
    SumEach(FirstVectors(x[0].Plain()), FirstVectors(x[1].Plain()), FirstVectors(x[kRows - 2].Plain()),
            FirstVectors(x[kRows - 1].Plain()), sums);
    NORMFUSE_UNROLL
    for (int k = 0; k < kRows; ++k) shifts[k] = sums[k] * kShare;
  }
}

// The sums of kRows rows from `row` on.
template <bool kAhead, class Input, int kRows>
NORMFUSE_INLINE void SumRows(const cpu::RowSumsArgs& a, int row) {
  Input x[kRows];
  float start[kRows];
  V shift[kRows];
  NORMFUSE_UNROLL
  for (int k = 0; k < kRows; ++k) {
    x[k] = InputOf<Input>(a, row + k);
    start[k] = a.shift;
  }
  if (a.find_shift) FindShifts(x, a.n, start);
  NORMFUSE_UNROLL
  for (int k = 0; k < kRows; ++k) shift[k] = Set(start[k]);
  double sums[2 * kRows] = {};
  SumsOfRows<kAhead>(x, a.n, shift, a.ahead, sums);
  NORMFUSE_UNROLL
  for (int k = 0; k < kRows; ++k) a.sums[row + k] = {static_cast<double>(start[k]), sums[k], sums[kRows + k]};
}

template <class Input>
NORMFUSE_INLINE void SumOneByOne(const cpu::RowSumsArgs& a, int row) {
  for (; row < a.rows; ++row) SumRows<false, Input, 1>(a, row);
}

template <class Input>
void RowSums(const cpu::RowSumsArgs& a) {
  int row = 0;
  // The baseline has too few registers for two rows.
  if constexpr (!kHasFma) {
    SumOneByOne<Input>(a, row);
  } else if constexpr (sizeof(typename Input::Element) == sizeof(float)) {
    for (; row + kSumRows <= a.rows; row += kSumRows) SumRows<false, Input, kSumRows>(a, row);
    if constexpr (kSumRows == 4) {
      for (; row + 2 <= a.rows; row += 2) SumRows<false, Input, 2>(a, row);
    }
    SumOneByOne<Input>(a, row);
  } else if (a.kept != nullptr) {
    for (; row + 2 <= a.rows; row += 2) SumRows<true, Keeping<Input>, 2>(a, row);
    SumOneByOne<Keeping<Input>>(a, row);
  } else {
    SumOneByOne<Input>(a, row);
  }
}

template <class Sum>
void RowSumsOfSum(const cpu::RowSumsArgs& a) {
  using T = typename Sum::Element;
  if (a.sum == nullptr) {
    RowSums<Sum>(a);
  } else if (kCanStream<T> && a.stream) {
    RowSums<Storing<Sum, kCanStream<T>>>(a);
  } else {
    RowSums<Storing<Sum, false>>(a);
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

}  // namespace
}  // namespace normfuse::NORMFUSE_ISA
