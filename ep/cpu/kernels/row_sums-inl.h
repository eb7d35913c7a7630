// Sums over rows, of differences from a shift and of their squares, and the normalizers that follow from them. Included
// once per instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/kernels/byte_sums-inl.h"
#include "cpu/kernels/inputs-inl.h"
#include "cpu/kernels/normalizers-inl.h"

namespace normfuse::NORMFUSE_ISA {
namespace {

template <class T>
concept Integer = requires(T v) { v % v; };

// The order of summation, which every kernel keeps, so that the sums of a row do not depend on what is summed beside it or
// where it was cut. A row lies in blocks of kSumBlock elements from its start on. In each block accumulator s of kSets takes
// the vectors s, s + kSets, ...; of a last block, which may be shorter, the whole vectors left go to accumulator 0, and what
// is left of one to the last. Accumulators are added, then the vectors of the blocks in kFloatBlock elements, then lanes as
// SumsOfEach adds them, in float32; all of these one after the other in double. A caller may cut a row at multiples of
// kFloatBlock and have the sums go on (RowSumsArgs::resume).

// Accumulators per row and sum: enough of them to hide what an addition takes, few enough to stay in registers.
constexpr int kSets = kHasFma ? 2 : 4;

// Accumulators add at most this many elements, 16 per lane, which keeps the error near one rounding. More would not do: at
// a large offset the differences are multiples of a power of two, m * 2^-k, whose squares are 0 or 1 modulo 4, so that a
// sum too large for its last two bits is rounded down nearly always.
constexpr size_t kSumBlock = 16 * kSets * kLanes;

// Elements that are added in float32, at most 64 per lane.
constexpr size_t kFloatBlock = kLanes == 16 ? 2 * kSumBlock : kSumBlock;

// Rows that are summed side by side, which share the last additions, or blocks of one row of float32: as many as there are
// registers for. Without the latter GroupNorm [1,64,32,32] takes 1.10 times as long (AVX2); 16-bit elements take 0.9 of the
// time block by block (float16 [64,5120]).
constexpr int kSumRows = kLanes == 16 ? 4 : kHasFma ? 2 : 1;
constexpr int kSumBlocks = kHasFma ? 2 : 1;
static_assert(kFloatBlock == kSumBlock || kFloatBlock == kSumBlocks * kSumBlock);

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
  template <bool kByFma = kHasFma>
  NORMFUSE_INLINE void Add(int row, int set, V off) {
    // Every other sum by Fma, which is as exact: processors have as many units for that as for additions.
    V& sum = first[row][set];
    sum = kByFma && (row + set) % 2 == 1 ? Fma(off, Set(1.0f), sum) : sum + off;
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
  // Row `from` of `other` to row `row` of these.
  template <int kOthers>
  NORMFUSE_INLINE void AddRow(int row, const VectorSums<kOthers, kCount>& other, int from) {
    NORMFUSE_UNROLL
    for (int set = 0; set < kCount; ++set) {
      first[row][set] = first[row][set] + other.first[from][set];
      second[row][set] = second[row][set] + other.second[from][set];
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
      Widen(SumsOfEach(v.first[0][0], v.second[0][0], v.first[0][0], v.second[0][0]), &each[0]);
    } else if constexpr (kRows == 2) {
      Widen(SumsOfEach(v.first[0][0], v.first[1][0], v.second[0][0], v.second[1][0]), &each[0]);
    } else {
      Widen(SumsOfEach(v.first[0][0], v.first[1][0], v.first[2][0], v.first[3][0]), &each[0]);
      Widen(SumsOfEach(v.second[0][0], v.second[1][0], v.second[2][0], v.second[3][0]), &each[1]);
    }
    NORMFUSE_UNROLL
    for (int i = 0; i < kParts; ++i) parts[i] += each[i];
  }
  // Two blocks of one row, one after the other.
  NORMFUSE_INLINE void AddInTurn(const VectorSums<2, 1>& v) {
    Doubles each;
    Widen(SumsOfEach(v.first[0][0], v.second[0][0], v.first[1][0], v.second[1][0]), &each);
    parts[0] += each;
    parts[0] += __builtin_shufflevector(each, each, 2, 3, 0, 1);
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

// One block of each of kRows rows, or kBlocks blocks of one row that follow each other, the first from `begin` to `end`. With
// kAhead, x is fetched `ahead` elements before it is needed: all sets of 16-bit elements lie in one line.
template <bool kAhead, int kBlocks, class Input, int kRows>
NORMFUSE_INLINE VectorSums<kRows * kBlocks, 1> SumsOfBlocks(const Input (&x)[kRows], size_t begin, size_t end,
                                                            const V (&shift)[kRows], size_t ahead) {
  static_assert(kRows == 1 || kBlocks == 1);
  constexpr size_t kStep = kSets * kLanes;
  VectorSums<kRows * kBlocks, kSets> sums;
  size_t i = begin;
  for (; i + kStep <= end; i += kStep) {
    NORMFUSE_UNROLL
    for (int set = 0; set < kSets; ++set) {
      NORMFUSE_UNROLL
      for (int k = 0; k < kRows * kBlocks; ++k) {
        const int row = kBlocks == 1 ? k : 0;
        const size_t at =
            i + static_cast<size_t>(set) * kLanes + (kBlocks == 1 ? 0 : static_cast<size_t>(k) * kSumBlock);
        if (kAhead && set == 0) x[row].Plain().Prefetch(at, ahead);
        sums.Add(k, set, x[row].At(at) - shift[row]);
      }
    }
  }
  if constexpr (kBlocks == 1) {
    for (; i + kLanes <= end; i += kLanes) {
      NORMFUSE_UNROLL
      for (int row = 0; row < kRows; ++row) sums.Add(row, 0, x[row].At(i) - shift[row]);
    }
    if (i < end) {
      // Lanes beyond the end hold -shift: take them out.
      const M inside = Lt(ToFloat(Iota()), Set(static_cast<float>(end - i)));
      NORMFUSE_UNROLL
      for (int row = 0; row < kRows; ++row) {
        sums.Add(row, kSets - 1, Select(inside, x[row].PartialAt(i, end - i) - shift[row], Set(0.0f)));
      }
    }
  }
  return sums.OfSets();
}

// Adds kFloatBlock elements, or what is left of a row.
template <bool kAhead, class Input, int kRows>
NORMFUSE_INLINE void AddFloatBlock(const Input (&x)[kRows], size_t begin, size_t end, const V (&shift)[kRows],
                                   size_t ahead, LaneSums<kRows>* lanes) {
  if constexpr (kFloatBlock == kSumBlock) {
    lanes->Add(SumsOfBlocks<kAhead, 1>(x, begin, end, shift, ahead));
  } else {
    VectorSums<kRows, 1> blocks;
    for (; begin < end; begin += kSumBlock) {
      const size_t to = end - begin < kSumBlock ? end : begin + kSumBlock;
      HideInMemory(lanes);
      const VectorSums<kRows, 1> block = SumsOfBlocks<kAhead, 1>(x, begin, to, shift, ahead);
      NORMFUSE_UNROLL
      for (int row = 0; row < kRows; ++row) blocks.AddRow(row, block, row);
    }
    lanes->Add(blocks);
  }
}

// Adds two whole blocks of one row.
template <bool kAhead, class Input>
NORMFUSE_INLINE void AddTwoBlocks(const Input (&x)[1], size_t begin, const V (&shift)[1], size_t ahead,
                                  LaneSums<1>* lanes) {
  const VectorSums<2, 1> block = SumsOfBlocks<kAhead, 2>(x, begin, begin + kSumBlock, shift, ahead);
  if constexpr (kFloatBlock == kSumBlock) {
    lanes->AddInTurn(block);
  } else {
    VectorSums<1, 1> blocks;
    blocks.AddRow(0, block, 0);
    blocks.AddRow(0, block, 1);
    lanes->Add(blocks);
  }
}

// Goes on from `lanes`.
template <bool kAhead, class Input, int kRows>
NORMFUSE_INLINE void SumsOfRows(const Input (&x)[kRows], size_t n, const Floats& shifts, size_t ahead,
                                LaneSums<kRows>* lanes) {
  V shift[kRows];
  NORMFUSE_UNROLL
  for (int k = 0; k < kRows; ++k) shift[k] = Set(shifts[k]);
  size_t from = 0;
  if constexpr (kRows == 1 && kSumBlocks == 2 && sizeof(typename Input::Element) == sizeof(float)) {
    for (; from + 2 * kSumBlock <= n; from += 2 * kSumBlock) AddTwoBlocks<kAhead>(x, from, shift, ahead, lanes);
  }
  for (; from < n; from += kFloatBlock) {
    const size_t to = n - from < kFloatBlock ? n : from + kFloatBlock;
    AddFloatBlock<kAhead>(x, from, to, shift, ahead, lanes);
  }
}

template <bool kAhead, class Input, int kRows>
NORMFUSE_INLINE void SumsOfRows(const Input (&x)[kRows], size_t n, const Floats& shifts, size_t ahead, FourSums* sums) {
  LaneSums<kRows> lanes;
  SumsOfRows<kAhead>(x, n, shifts, ahead, &lanes);
  Widen(shifts, &sums->shift);
  lanes.Get(sums);
}

template <class Input>
NORMFUSE_INLINE V FirstVectors(const Input& x) {
  return (x.At(0) + x.At(kLanes)) + (x.At(2 * kLanes) + x.At(3 * kLanes));
}

// The mean of a short row, but for rounding, and exact for a constant one.
template <class Input>
NORMFUSE_INLINE float ShiftOfShort(const Input& x, size_t n) {
  const float start = ReduceSum(x.PartialAt(0, 1));
  V sum = Set(0.0f);
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) sum = sum + (x.At(i) - Set(start));
  if (i < n) {
    const M inside = Lt(ToFloat(Iota()), Set(static_cast<float>(n - i)));
    sum = sum + Select(inside, x.PartialAt(i, n - i) - Set(start), Set(0.0f));
  }
  return start + ReduceSum(sum) / static_cast<float>(n);
}

// As many as shifts are made of.
constexpr size_t kShiftElements = 4 * kLanes;

// Values near the means: within one standard deviation of it for nearly every row, and exact for a constant one.
template <class Input, int kRows>
NORMFUSE_INLINE void FindShiftsOfLong(const Input (&x)[kRows], Floats* shifts) {
  constexpr float kShare = 1.0f / static_cast<float>(kShiftElements);
  if constexpr (kRows == 1) {
    const V first = FirstVectors(x[0].Plain());
    *shifts = SumsOfEach(first, first, first, first) * kShare;
  } else {
    *shifts = SumsOfEach(FirstVectors(x[0].Plain()), FirstVectors(x[1].Plain()), FirstVectors(x[kRows - 2].Plain()),
                         FirstVectors(x[kRows - 1].Plain())) *
              kShare;
  }
}

// `x` are the first elements of a row of n, as many as that takes.
template <class Input, int kRows>
NORMFUSE_INLINE void FindShifts(const Input (&x)[kRows], size_t n, Floats* shifts) {
  if (n >= kShiftElements) return FindShiftsOfLong(x, shifts);
  for (int k = 0; k < kRows; ++k) (*shifts)[k] = ShiftOfShort(x[k].Plain(), n);
}

float FindShift(const float* d, size_t n) {
  const Single<float> row[1] = {{d, nullptr, nullptr}};
  Floats shift{};
  FindShifts(row, n, &shift);
  return shift[0];
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
  LaneSums<kRows> lanes;
  if constexpr (kRows == 1) {
    if (a.resume) lanes.parts[0] = Doubles{a.sums[row].first, a.sums[row].second};
  }
  SumsOfRows<kAhead>(x, a.n, start, a.ahead, &lanes);
  Widen(start, &sums.shift);
  lanes.Get(&sums);
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
  if constexpr (kSumRows == 1) {
    return SumOneByOne<Input>(a, row);
  } else if constexpr (sizeof(typename Input::Element) == sizeof(float)) {
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
    first[k] = static_cast<double>(bytes.first) + (a.resume ? a.sums[row + k].first : 0.0);
    second[k] = static_cast<double>(bytes.second) + (a.resume ? a.sums[row + k].second : 0.0);
  }
  const FourSums sums{{kShift, kShift, kShift, kShift},
                      {first[0], first[1], first[2], first[3]},
                      {second[0], second[1], second[2], second[3]}};
  return FinishRows<kRows, true>(a, row, sums);
}

template <class Input>
bool RowSumsOfBytes(const cpu::RowSumsArgs& a) {
  using T = typename Input::Element;
  int row = 0;
  bool good = true;
  for (; row + 4 <= a.rows; row += 4) good &= SumRowsOfBytes<T, 4>(a, row);
  for (; row < a.rows; ++row) good &= SumRowsOfBytes<T, 1>(a, row);
  return good;
}

}  // namespace
}  // namespace normfuse::NORMFUSE_ISA
