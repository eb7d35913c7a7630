// Steps of the pipeline over rows: some rows are normalised and written while the next ones are summed, so that reading,
// arithmetic and writing overlap. Included once per instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/apply-inl.h"
#include "cpu/row_sums-inl.h"

namespace normfuse::NORMFUSE_ISA {
namespace {

using cpu::RowSumsArgs;

// With 32 registers two rows side by side share the loads of scale and bias.
constexpr int kStepRows = kLanes == 16 ? 2 : 1;

// Two accumulators per row and sum, of 16 elements per lane at most: see kSumBlock.
constexpr size_t kStepBlock = 16 * 2 * kLanes;

// The sums of one row.
template <bool kUsesMean>
struct StepSums {
  NORMFUSE_INLINE void Add(V x, V shift, size_t k) {
    const V off = kUsesMean ? x - shift : x;
    // Every other sum by Fma: see SumsOfBlock.
    if constexpr (kUsesMean) first[k] = kHasFma && k == 1 ? Fma(off, Set(1.0f), first[k]) : first[k] + off;
    second[k] = Fma(off, off, second[k]);
  }
  NORMFUSE_INLINE void AddPartial(V x, V shift, size_t n) {
    const M inside = Lt(ToFloat(Iota()), Set(static_cast<float>(n)));
    const V off = Select(inside, kUsesMean ? x - shift : x, Set(0.0f));
    if constexpr (kUsesMean) first[1] = first[1] + off;
    second[1] = Fma(off, off, second[1]);
  }
  NORMFUSE_INLINE void AddTo(double* sums) const {
    if constexpr (kUsesMean) sums[0] += static_cast<double>(ReduceSum(first[0] + first[1]));
    sums[1] += static_cast<double>(ReduceSum(second[0] + second[1]));
  }
  V first[2] = {Set(0.0f), Set(0.0f)};
  V second[2] = {Set(0.0f), Set(0.0f)};
};

// One scale and one bias per row.
struct StepScalar {
  StepScalar(const ApplyArgs& a, int row)
      : affine(a.normalizers[row], a.scale.data[a.scale_stride * row], a.bias.data[a.bias_stride * row]) {}
  static constexpr bool kLoads = false;
  NORMFUSE_INLINE V operator()(V x, V, V) const { return affine(x); }
  ScalarAffine affine;
};

// A scale and a bias for each element.
struct StepVector {
  StepVector(const ApplyArgs& a, int row) : affine(a.normalizers[row]) {}
  static constexpr bool kLoads = true;
  NORMFUSE_INLINE V operator()(V x, V scale, V bias) const { return affine(x, scale, bias); }
  VectorAffine affine;
};

// A scale for each element, no mean, no bias.
struct StepRms {
  StepRms(const ApplyArgs& a, int row) : inv(Set(a.normalizers[row].inv)) {}
  static constexpr bool kLoads = true;
  NORMFUSE_INLINE V operator()(V x, V scale, V) const { return x * inv * scale; }
  V inv;
};

template <class Out>
NORMFUSE_INLINE void Put(Out* y, V v, bool stream) {
  if constexpr (sizeof(Out) == sizeof(float)) {
    if (stream) return StreamStore(y, v);
  }
  StoreAs(y, v);
}

// The loop over a row, or over kRows of them side by side.
template <int kRows, class Input, class Next, class Out, class Act, class Affine, bool kUsesMean>
class Step {
 public:
  // Nothing may point into a Step: its members then live in registers.
  NORMFUSE_INLINE Step(const ApplyArgs& a, const RowSumsArgs& b, Spread* spread)
      : act_(a.params),
        finish_(a.y_scale, a.y_zero),
        scales_(a.scale, &spread[0]),
        biases_(a.bias, &spread[1]),
        x_{InputOf<Input>(a, 0), InputOf<Input>(a, kRows - 1)},
        next_{InputOf<Next>(b, 0), InputOf<Next>(b, kRows - 1)},
        affine_{Affine(a, 0), Affine(a, kRows - 1)},
        y_{static_cast<Out*>(a.y), static_cast<Out*>(a.y) + a.y_stride * (kRows - 1)},
        stream_(a.stream) {
    for (int row = 0; row < kRows; ++row) start_[row] = b.find_shift ? ShiftOf(next_[row], a.n) : b.shift;
  }

  NORMFUSE_INLINE void Run(size_t n, cpu::Sums* sums) {
    double totals[2][2] = {};
    for (size_t begin = 0; begin < n; begin += kStepBlock) {
      Block(begin, n - begin < kStepBlock ? n : begin + kStepBlock, totals);
    }
    for (int row = 0; row < kRows; ++row) {
      sums[row] = {static_cast<double>(start_[row]), totals[row][0], totals[row][1]};
    }
  }

 private:
  NORMFUSE_INLINE void Block(size_t begin, size_t end, double (*totals)[2]) {
    StepSums<kUsesMean> sums[kRows];
    const V shift[2] = {Set(start_[0]), Set(start_[kRows - 1])};
    size_t i = begin;
    for (; i + 2 * kLanes <= end; i += 2 * kLanes) {
      Vector(i, 0, shift, sums);
      Vector(i + kLanes, 1, shift, sums);
    }
    if (i + kLanes <= end) {
      Vector(i, 0, shift, sums);
      i += kLanes;
    }
    if (i < end) Partial(i, end - i, shift, sums);
    for (int row = 0; row < kRows; ++row) sums[row].AddTo(totals[row]);
  }

  NORMFUSE_INLINE void Vector(size_t i, size_t k, const V* shift, StepSums<kUsesMean>* sums) const {
    const V scale = Affine::kLoads ? scales_.At(i) : Set(1.0f);
    const V bias = Affine::kLoads && kUsesMean ? biases_.At(i) : Set(0.0f);
    for (int row = 0; row < kRows; ++row) {
      if (stream_) next_[row].Prefetch(i);
      sums[row].Add(next_[row].At(i), shift[row], k);
      Put(y_[row] + i, finish_(act_(affine_[row](x_[row].At(i), scale, bias))), stream_);
    }
  }

  NORMFUSE_INLINE void Partial(size_t i, size_t n, const V* shift, StepSums<kUsesMean>* sums) const {
    const V scale = Affine::kLoads ? scales_.PartialAt(i, n) : Set(1.0f);
    const V bias = Affine::kLoads && kUsesMean ? biases_.PartialAt(i, n) : Set(0.0f);
    for (int row = 0; row < kRows; ++row) {
      sums[row].AddPartial(next_[row].PartialAt(i, n), shift[row], n);
      StoreAsPartial(y_[row] + i, finish_(act_(affine_[row](x_[row].PartialAt(i, n), scale, bias))), n);
    }
  }

  Act act_;
  Finish<Out> finish_;
  Source scales_;
  Source biases_;
  Input x_[2];
  Next next_[2];
  Affine affine_[2];
  Out* y_[2];
  bool stream_;
  float start_[2];
};

template <class Input, class Next, class Out, class Act>
void RunStep(const ApplyArgs& a, const RowSumsArgs& b) {
  Spread spread[2];
  if (a.scale.step != 0 || a.bias.step != 0) {
    Step<kStepRows, Input, Next, Out, Act, StepVector, true>(a, b, spread).Run(a.n, b.sums);
  } else {
    Step<1, Input, Next, Out, Act, StepScalar, true>(a, b, spread).Run(a.n, b.sums);
  }
}

// Neither a mean nor a bias.
template <class Input, class Next, class Out>
void RunRmsStep(const ApplyArgs& a, const RowSumsArgs& b) {
  Spread spread[2];
  Step<kStepRows, Input, Next, Out, Identity, StepRms, false>(a, b, spread).Run(a.n, b.sums);
}

template <class Input, class Next, class Out>
cpu::StepFn PlainStep(const cpu::StepRequest& r) {
  if (r.activation != Activation::kIdentity) return nullptr;
  return r.rms ? RunRmsStep<Input, Next, Out> : RunStep<Input, Next, Out, Identity>;
}

// The activations that follow a normalisation most.
cpu::StepFn FloatStep(const cpu::StepRequest& r) {
  switch (r.activation) {
    case Activation::kRelu:
      return RunStep<Single<float>, Single<float>, float, Relu>;
    case Activation::kGelu:
      return RunStep<Single<float>, Single<float>, float, Gelu>;
    case Activation::kSwish:
      return RunStep<Single<float>, Single<float>, float, Swish>;
    default:
      return PlainStep<Single<float>, Single<float>, float>(r);
  }
}

// A sum is normalised as it is, or as it was written.
template <class Sum, class Out>
cpu::StepFn SumStep(const cpu::StepRequest& r) {
  if (!r.stores_sum) return PlainStep<Sum, Sum, Out>(r);
  if constexpr (sizeof(Out) == sizeof(float)) {
    if (r.from_sum) return PlainStep<Single<Out>, Storing<Sum>, Out>(r);
  }
  return PlainStep<Sum, Storing<Sum>, Out>(r);
}

}  // namespace
}  // namespace normfuse::NORMFUSE_ISA
