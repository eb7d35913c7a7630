// Exponentials, logarithms and the tails of GELU over the vector layer. Included after cpu/simd/simd.h, once per
// instruction set; the constants come from derive_coefficients.py. Errors are given in units in the last place (ulp).
#pragma once

#include "cpu/coefficients.h"
#include "cpu/simd/simd.h"

namespace normfuse::NORMFUSE_ISA {

// The range of exponents in which Exp2 keeps its promises: at the lower end the power is 0, at the upper infinity.
// Where 2^n is put together from bits, n = -127 gives 0 and n = 128 infinity; the scaling instruction goes further.
constexpr float kExp2Low = kHasScale ? -151.0f : -127.0f;
constexpr float kExp2High = kHasScale ? 151.0f : 128.0f;

// x cut to the values whose exponents are kExp2Low and kExp2High, NaN to any of them. Where the range is symmetric,
// in one instruction.
template <class Vector>
NORMFUSE_INLINE Vector CutExponent(Vector x, Vector least, Vector most) {
  if constexpr (kExp2Low == -kExp2High) {
    return ClampMagnitude(x, most);
  } else {
    return Max(least, Min(most, x));
  }
}

// c[0] + c[1] x + ... by Horner's rule.
template <size_t kCount>
NORMFUSE_INLINE V Polynomial(const float (&c)[kCount], V x) {
  V sum = Set(c[kCount - 1]);
  for (size_t k = kCount - 1; k-- > 0;) sum = Fma(sum, x, Set(c[k]));
  return sum;
}

// Low part of the product: a * b - product, exactly.
NORMFUSE_INLINE V ProductError(V a, V b, V product) { return ExactFma(a, b, Neg(product)); }

// The exponent z = x * (high + low) split into an integer and the rest, |rest| <= 1/2: z itself would lose as many bits
// of the power as its integer part has. The power wanted is 2^(z - kDown).
struct SplitExponent {
  V biased;  // the integer - kDown + 127 in the low bits of the float's significand
  V integer;
  V rest;
};
constexpr float kRoundingBias = 12582912.0f + 127.0f;  // 1.5 * 2^23 + 127: adding it rounds to an integer

template <int kDown = 0>
NORMFUSE_INLINE SplitExponent Split(V x, V high, V low) {
  constexpr float kBias = kRoundingBias - static_cast<float>(kDown);
  SplitExponent s;
  s.biased = Fma(x, high, Set(kBias));
  s.integer = s.biased - Set(kBias);
  s.rest = Fma(x, low, ExactFma(x, high, Neg(s.integer)));
  return s;
}

// p * 2^(integer - kDown), for exponents from kExp2Low to kExp2High.
template <int kDown = 0>
NORMFUSE_INLINE V Power(V p, const SplitExponent& s) {
  if constexpr (kHasScale) {
    return ScaleByPowerOfTwo(p, kDown == 0 ? s.integer : s.integer - Set(static_cast<float>(kDown)));
  } else {
    return p * BitCastToFloat(ShiftLeft<23>(BitCastToInt(s.biased)));
  }
}

// 2^(x * (high + low) - kDown) for exponents from kExp2Low to kExp2High; at most 1 ulp off where the result is normal,
// with (high + low) taken as exact. Denormal results may be 0 and those above 2^127.5 infinity.
template <int kDown = 0>
NORMFUSE_INLINE V Exp2(V x, V high, V low) {
  const SplitExponent s = Split<kDown>(x, high, low);
  return Power<kDown>(Polynomial(kExp2, s.rest), s);
}

// kExp2Table * 2^-kDown.
template <int kDown>
struct LoweredExp2Table {
  float entries[32];
  constexpr LoweredExp2Table() : entries{} {
    for (int i = 0; i < 32; ++i) {
      entries[i] = kExp2Table[i];
      for (int k = 0; k < kDown; ++k) entries[i] *= 0.5f;
    }
  }
};
template <int kDown>
inline constexpr LoweredExp2Table<kDown> kLoweredExp2Table;

// Whether exponentials go by a table of 32nds for the fraction and the scaling instruction for the whole part.
constexpr bool kHasExp2Table = kTableLanes == 16 && kHasScale;

// p = 2^(i/32) from the table times 1 + rest * slope, and the power of two.
template <int kDown, class Vector>
NORMFUSE_INLINE Vector ExpOfThirtySeconds(Vector shifted, Vector rounded, Vector rest, Vector slope) {
  const Vector power = Lookup32(kLoweredExp2Table<kDown>.entries, BitCastToInt(shifted));
  return ScaleByPowerOfTwo(Fma(power * rest, slope, power), rounded);
}
constexpr float kThirtySecondShift = 12582912.0f / 32.0f;

// The same as Exp2 at most 2 ulp off, where that is faster.
template <int kDown = 0>
NORMFUSE_INLINE V FastExp2(V x, V high, V low) {
  if constexpr (kHasExp2Table) {
    const V shifted = Fma(x, high, Set(kThirtySecondShift));
    const V rounded = shifted - Set(kThirtySecondShift);
    const V rest = Fma(x, low, Fma(x, high, Neg(rounded)));
    const V slope = Fma(Set(kExp2ThirtySecond[2]), rest, Set(kExp2ThirtySecond[1]));
    return ExpOfThirtySeconds<kDown>(shifted, rounded, rest, slope);
  } else {
    return Exp2<kDown>(x, high, low);
  }
}

// exp(-x), likewise where |x| < 20. log(2) is so close to a float, 1.9e-9, that the rest needs no low part.
NORMFUSE_INLINE V FastExpOfNegative(V x) {
  if constexpr (kHasExp2Table) {
    constexpr double kLog2 = 0.6931471805599453;
    const V shifted = Fma(x, Set(-kLog2E), Set(kThirtySecondShift));
    const V rounded = shifted - Set(kThirtySecondShift);
    const V negative_rest = Fma(rounded, Set(static_cast<float>(kLog2)), x);
    const V slope = Fma(Set(static_cast<float>(kExp2ThirtySecond[2] / (kLog2 * kLog2))), negative_rest,
                        Set(static_cast<float>(-kExp2ThirtySecond[1] / kLog2)));
    return ExpOfThirtySeconds<0>(shifted, rounded, negative_rest, slope);
  } else {
    return Exp2(x, Set(-kLog2E), Set(-kLog2ELow));
  }
}

// x = integer * log(2) + rest, |rest| <= log(2) / 2.
NORMFUSE_INLINE SplitExponent SplitNatural(V x) {
  SplitExponent s;
  s.biased = Fma(x, Set(kLog2E), Set(kRoundingBias));
  s.integer = s.biased - Set(kRoundingBias);
  s.rest = NegFma(s.integer, Set(kLn2Low), NegFma(s.integer, Set(kLn2), x));
  return s;
}

// exp(rest) - 1 for |rest| <= log(2) / 2, without cancellation at 0.
NORMFUSE_INLINE V Expm1OfRest(V rest) { return Fma(rest * rest, Polynomial(kExpm1, rest), rest); }

// exp(x) - 1 for -80 <= x <= 80, without cancellation at 0.
NORMFUSE_INLINE V Expm1(V x) {
  const SplitExponent s = SplitNatural(x);
  const V power = Power(Set(1.0f), s);
  return Fma(power, Expm1OfRest(s.rest), power - Set(1.0f));
}

// log(1 + e) / e for 0 <= e <= 1: the logarithm keeps its relative accuracy however small e is.
NORMFUSE_INLINE V Log1pRatio(V e) { return Polynomial(kLog1p, e); }

// c[1][i] + c[2][i] r + ... by Horner's rule in r^2, of pairs: half as many steps wait for the one before.
template <size_t kCount>
NORMFUSE_INLINE V TablePairs(const float (&c)[kCount][kTableLanes], I i, V r) {
  constexpr size_t kLast = (kCount - 1) / 2 * 2;
  const V square = r * r;
  V sum = Fma(Lookup(c[kLast], i), r, Lookup(c[kLast - 1], i));
  if constexpr (kLast < kCount - 1) sum = Fma(Lookup(c[kCount - 1], i), square, sum);
  for (size_t k = kLast; (k -= 2) > 0;) sum = Fma(sum, square, Fma(Lookup(c[k], i), r, Lookup(c[k - 1], i)));
  return sum;
}

// c[0][i] + c[1][i] r + ..., one column of the table for each lane.
template <size_t kCount>
NORMFUSE_INLINE V TablePolynomial(const float (&c)[kCount][kTableLanes], I i, V r) {
  V sum = Lookup(c[kCount - 1], i);
  if constexpr (kLanes == 8) {
    sum = TablePairs(c, i, r);
  } else {
    for (size_t k = kCount - 1; k-- > 1;) sum = Fma(sum, r, Lookup(c[k], i));
  }
  return ExactFma(sum, r, Lookup(c[0], i));  // two roundings here would cost a further ulp
}

// A number a >= 0 as the nearest multiple of 1 / kPerUnit, whose count is in the low bits of `index`, and the rest.
struct Column {
  I index;
  V rest;
};
template <size_t kPerUnit>
NORMFUSE_INLINE Column NearestColumn(V a) {
  constexpr float kShift = 12582912.0f / kPerUnit;  // 1.5 * 2^23: adding it leaves no place for less than 1 / kPerUnit
  const V shifted = a + Set(kShift);
  return {BitCastToInt(shifted), a - (shifted - Set(kShift))};
}

// Tables of functions near 0 have kTableLanes columns around the multiples of 4 / kTableLanes. They are used up to
// kNearEnd: the outer half of the last of 8 wide columns would lose too many bits where a tail falls steeply.
constexpr size_t kNearPerUnit = kTableLanes / 4;
constexpr float kNearEnd = kTableLanes == 16 ? 3.875f : 3.5f;

// The one of two tables that has a column for each of the lanes that Lookup reads.
template <size_t kCount16, size_t kCount8>
constexpr const auto& ForTableLanes(const float (&of16)[kCount16][16], const float (&of8)[kCount8][8]) {
  if constexpr (kTableLanes == 16) {
    return of16;
  } else {
    return of8;
  }
}

template <size_t kCount>
NORMFUSE_INLINE V NearPolynomial(const float (&c)[kCount][kTableLanes], V a) {
  const Column column = NearestColumn<kNearPerUnit>(a);
  return TablePolynomial(c, column.index, column.rest);
}

template <typename Tables>
NORMFUSE_INLINE V SmoothTail(V a) {
  const V square = a * a;
  const V c = Set(-kHalfLog2E);
  SplitExponent s;
  s.biased = Fma(square, c, Set(kRoundingBias));
  s.integer = s.biased - Set(kRoundingBias);
  s.rest = Fma(ProductError(a, a, square), c, ExactFma(square, c, Neg(s.integer)));
  const Column column = NearestColumn<1>(Min(Set(7.499f), a - Set(0.5f)));
  return Power(Polynomial(kExp2, s.rest), s) * TablePolynomial(Tables::kSmooth, column.index, column.rest);
}

// Which of two ways a function goes on: a short one where all lanes are near 0, which is nearly always so for what comes
// out of a normalisation, or a longer one that is right everywhere. Where both alternate, a wrongly predicted branch costs
// more than the longer way, so that for a while it is taken without asking when more than one vector in eight needs it.
class NearOrFar {
 public:
  NORMFUSE_INLINE bool Near(V magnitude) const {
    if (score_ >= kWithoutAsking) {
      if (++score_ == kAskAgain) score_ = kWithoutAsking - kFarVector;
      return false;
    }
    if (All(Le(magnitude, Set(kNearEnd)))) {
      score_ -= score_ > 0 ? 1 : 0;
      return true;
    }
    score_ += kFarVector;
    return false;
  }

 private:
  static constexpr int kFarVector = 8;
  static constexpr int kWithoutAsking = 4 * kFarVector;
  static constexpr int kAskAgain = kWithoutAsking + 64;
  mutable int score_ = 0;
};

// x * (1 - tail(x)) for the distribution functions of GELU, whose tail is symmetric: tail(-x) = 1 - tail(x). Written as
// max(x, 0) - |x| tail(|x|), which cancels nowhere. Tables has the tail
//   kRoot     its square root, on intervals from -8 to 0, 0 at -8; used where a table has 16 entries, and with vectors of 8
//   kNear     around 0, see NearPolynomial; this and the next are used elsewhere
//   kSmooth   times 2^(kHalfLog2E a^2), around 1/2, 3/2 ... 15/2
//   kDip      times -|x|, around multiples of 1/4 from -7.75 to 0
//
// In all, x * 0 must be NaN where x is -infinity, and only there.
template <typename Tables, typename Vector>
NORMFUSE_INLINE Vector TimesDistributionByRoot(Vector x) {
  const Vector a = NegativeMagnitude(x, Set(8.0f));
  constexpr float kShift = 12582912.0f / 2;
  const I index = BitCastToInt(AddDown(a, Set(kShift)));
  const V root = TablePolynomial(Tables::kRoot, index, RestOfHalves(a));
  return Fma(a * root, root, PositivePart(x));
}

// x * (1 - tail(x)) * factor, off by at most factor * (6e-8 + |x| / 2^23): less work than the accuracy of small results
// takes. For tables of 32 entries.
template <typename Tables>
class ScaledTimesDistribution {
 public:
  NORMFUSE_INLINE explicit ScaledTimesDistribution(float factor) : factor_(Set(factor)) {
    NORMFUSE_UNROLL
    for (size_t k = 0; k < kCount; ++k) {
      Store(dip_[k], Load(Tables::kDip[k]) * factor_);
      Store(dip_[k] + kLanes, Load(Tables::kDip[k] + kLanes) * factor_);
    }
  }
  template <typename Vector>
  NORMFUSE_INLINE Vector operator()(Vector x) const {
    constexpr float kShift = 12582912.0f / 4;
    const Vector a = NegativeMagnitude(x, Set(7.75f));
    const Vector shifted = a + Set(kShift);
    const Vector rest = a - (shifted - Set(kShift));
    Vector sum = Lookup32(dip_[kCount - 1], BitCastToInt(shifted));
    for (size_t k = kCount - 1; k-- > 0;) sum = Fma(sum, rest, Lookup32(dip_[k], BitCastToInt(shifted)));
    return Fma(PositivePart(x), factor_, sum);
  }

 private:
  static constexpr size_t kCount = 5;
  V factor_;
  alignas(64) float dip_[kCount][2 * kLanes];
};

// The same with 8 columns, at most 5 ulp off: more work than near 0 by kNear, but nothing to choose.
constexpr bool kHasRootOfEight = kFastLookup && kLanes == 8;
template <typename Tables>
NORMFUSE_INLINE V TimesDistributionByEight(V x) {
  const V a = Max(Neg(Abs(x)), Set(-8.0f));
  const V below = RoundDown(a);
  const V root = TablePolynomial(Tables::kRoot, ToInt(below), a - below);
  return Fma(Min(x, a) * root, root, Max(Set(0.0f), x));
}

template <typename Tables>
NORMFUSE_INLINE V TimesDistributionByTail(V x, const NearOrFar& choice) {
  const V positive = Max(Set(0.0f), x);
  const V magnitude = Abs(x);
  if (choice.Near(magnitude)) return NegFma(magnitude, NearPolynomial(Tables::kNear, magnitude), positive);
  // The tail is 0 from here on: at 13.27 the power of two is 2^-127.
  const V a = Min(Set(13.27f), magnitude);
  return Fma(Min(x, Neg(a)), SmoothTail<Tables>(a), positive);
}

template <typename Tables>
NORMFUSE_INLINE V TimesDistribution(V x, const NearOrFar& choice) {
  if constexpr (kTableLanes == 16) {
    return TimesDistributionByRoot<Tables>(x);
  } else {
    return TimesDistributionByTail<Tables>(x, choice);
  }
}

}  // namespace normfuse::NORMFUSE_ISA
