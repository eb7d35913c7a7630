// Sums over rows: of differences from a shift and of their squares. Included once per instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/byte_sums-inl.h"
#include "cpu/inputs-inl.h"

namespace normfuse::NORMFUSE_ISA {
namespace {

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
  for (int row = 0; row < a.rows; ++row) {
    const Input input = InputOf<Input>(a, row);
    const float shift = a.find_shift ? ShiftOf(input, a.n) : a.shift;
    double sums[2] = {0, 0};
    SumsOfRow(input, a.n, Set(shift), sums);
    a.sums[row] = {static_cast<double>(shift), sums[0], sums[1]};
  }
}

template <class Sum>
void RowSumsOfSum(const cpu::RowSumsArgs& a) {
  if (a.sum != nullptr) {
    RowSums<Storing<Sum>>(a);
  } else {
    RowSums<Sum>(a);
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
