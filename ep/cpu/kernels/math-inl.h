// Exponentials, logarithms and the tails of GELU over the vector layer. Included after cpu/kernels/simd/simd.h, once per
// instruction set; the constants come from derive_coefficients.py. Errors are given in units in the last place (ulp).
#pragma once

#include "cpu/kernels/coefficients.h"
#include "cpu/kernels/simd/simd.h"

namespace normfuse::NORMFUSE_ISA {

// The range of exponents in which Exp2 keeps its promises: at the lower end the power is 0, at the upper infinity.
// Where 2^n is put together from bits, n = -127 gives 0 and n = 128 infinity. The scaling instruction goes further, and on
// Intel's processors takes as long as a hundred others where it gives a denormal or 0, unless n is less than -512.
constexpr float kExp2Low = kHasScale ? -1000.0f : -127.0f;
constexpr float kExp2High = kHasScale ? 1000.0f : 128.0f;

// x clamped to the values whose exponents are kExp2Low and kExp2High, NaN to any of them. Where the range is symmetric,
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

// The same, but all terms behind c[0] by Horner's rule in x^2, of pairs: half as many steps wait for the one before. c[0]
// is added last, so that only one rounding counts where x is small.
template <size_t kCount>
NORMFUSE_INLINE V PairedPolynomial(const float (&c)[kCount], V x, V square) {
  constexpr size_t kTop = (kCount - 2) / 2 * 2 + 1;
  V sum = Set(c[kTop]);
  if constexpr (kTop + 1 < kCount) sum = Fma(Set(c[kTop + 1]), x, sum);
  for (size_t k = kTop; k > 1; k -= 2) sum = Fma(sum, square, Fma(Set(c[k - 1]), x, Set(c[k - 2])));
  return Fma(sum, x, Set(c[0]));
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
constexpr bool kHasExp2Table = kHasTables && kHasScale;

// p = 2^(i/32) from the table times 1 + rest * slope, and the power of two.
template <int kDown, class Vector>
NORMFUSE_INLINE Vector ExpOfThirtySeconds(Vector shifted, Vector rounded, Vector rest, Vector slope) {
  const Vector power = Lookup32(kLoweredExp2Table<kDown>.entries, BitCastToInt(shifted));
  return ScaleByPowerOfTwo(Fma(power * rest, slope, power), rounded);
}
constexpr float kThirtySecondShift = 12582912.0f / 32.0f;

// The bits of 2^(i/8 - kDown), less i << 20: adding (8 n + i) << 20 gives those of 2^(n + i/8 - kDown).
template <int kDown>
struct EighthBits {
  int32_t entries[8];
  constexpr EighthBits() : entries{} {
    for (int i = 0; i < 8; ++i) {
      entries[i] = __builtin_bit_cast(int32_t, kExp2Table[4 * i]) - (i << 20) - (kDown << 23);
    }
  }
};
template <int kDown>
alignas(32) inline constexpr EighthBits<kDown> kEighthBits;

// An exponent split into eighths and the rest, |rest| <= 1/16. The power of the eighths is 0 where they are -127 and
// infinite where they are 128.
struct Eighths {
  V power;
  V rest;
};
constexpr float kEighthShift = 12582912.0f / 8.0f;

// Of what adding kEighthShift has rounded.
template <int kDown>
NORMFUSE_INLINE V PowerOfEighths(V shifted) {
  const I index = BitCastToInt(shifted);
  return BitCastToFloat(Lookup8(kEighthBits<kDown>.entries, index) + ShiftLeft<20>(index));
}

template <int kDown = 0>
NORMFUSE_INLINE Eighths SplitEighths(V x, V high) {
  const V shifted = Fma(x, high, Set(kEighthShift));
  return {PowerOfEighths<kDown>(shifted), ExactFma(x, high, Set(kEighthShift) - shifted)};
}

// (2^rest - 1) / rest
NORMFUSE_INLINE V EighthSlope(V rest) {
  return Fma(Fma(Set(kExp2Eighth[3]), rest, Set(kExp2Eighth[2])), rest, Set(kExp2Eighth[1]));
}

// term + 2^(x * (high + low) - kDown), the power at most 2 ulp off.
template <int kDown = 0>
NORMFUSE_INLINE V PlusFastExp2(V term, V x, V high, V low) {
  if constexpr (kHasExp2Table) {
    const V shifted = Fma(x, high, Set(kThirtySecondShift));
    const V rounded = shifted - Set(kThirtySecondShift);
    const V rest = Fma(x, low, Fma(x, high, Neg(rounded)));
    const V slope = Fma(Set(kExp2ThirtySecond[2]), rest, Set(kExp2ThirtySecond[1]));
    return term + ExpOfThirtySeconds<kDown>(shifted, rounded, rest, slope);
  } else if constexpr (kHasLookup8) {
    const Eighths e = SplitEighths<kDown>(x, high);
    const V rest = Fma(x, low, e.rest);
    // The factor by itself, as the power may be infinite.
    return Fma(e.power, Fma(rest, EighthSlope(rest), Set(1.0f)), term);
  } else {
    return term + Exp2<kDown>(x, high, low);
  }
}

// exp(x - shift) * 2^-down for values up to `shift` or, where that is 0, up to 2^9 and (down + 33) * log(2), at most 2 ulp off
// and NaN of NaN; what is below 2^-126 may be 0, and is at -infinity. The exponent is never rounded to a float, which would
// lose as many bits of the power as its integer part has.
class ExpBelow {
 public:
  NORMFUSE_INLINE ExpBelow(V shift, V down)
      : shift_(shift), down_(down), least_((Set(kExp2Low) + down) * Set(0.6931471805599453f)) {}
  NORMFUSE_INLINE V operator()(V x) const {
    const V y = Max(least_, x - shift_);
    if constexpr (kHasExp2Table) {
      return ByThirtySeconds(y);
    } else if constexpr (kHasLookup8) {
      return ByEighths(y);
    } else {
      return ByPolynomial(y);
    }
  }

 private:
  // What the low part of log2(e) adds to the rest is too little to change the slope.
  template <class Vector>
  NORMFUSE_INLINE Vector ByThirtySeconds(Vector y) const {
    const Vector shifted = Fma(y, Set(kLog2E), Set(kThirtySecondShift));
    const Vector rounded = shifted - Set(kThirtySecondShift);
    const Vector rest = Fma(y, Set(kLog2E), Neg(rounded));
    const Vector slope = Fma(Set(kExp2ThirtySecond[2]), rest, Set(kExp2ThirtySecond[1]));
    return ExpOfThirtySeconds<0>(shifted, rounded - down_, Fma(y, Set(kLog2ELow), rest), slope);
  }

  template <class Vector>
  NORMFUSE_INLINE Vector ByEighths(Vector y) const {
    const Vector bias = Set(kEighthShift) - down_;
    const Vector shifted = Fma(y, Set(kLog2E), bias);
    const Vector rest = ExactFma(y, Set(kLog2E), bias - shifted);
    // The factor by itself: its product with a small power may be denormal, that is 0 (FlushDenormals), where the result is not.
    return Fma(Fma(y, Set(kLog2ELow), rest), EighthSlope(rest), Set(1.0f)) * PowerOfEighths<0>(shifted);
  }

  NORMFUSE_INLINE V ByPolynomial(V y) const {
    const V bias = Set(kRoundingBias) - down_;
    SplitExponent s;
    s.biased = Fma(y, Set(kLog2E), bias);
    s.integer = s.biased - bias;
    s.rest = Fma(y, Set(kLog2ELow), ExactFma(y, Set(kLog2E), Neg(s.integer)));
    return Polynomial(kExp2, s.rest) * BitCastToFloat(ShiftLeft<23>(BitCastToInt(s.biased)));
  }

  V shift_;
  V down_;
  V least_;
};

// Whether the exponential of -x has a shorter way than that of any multiple of x.
constexpr bool kHasExpOfNegative = kHasExp2Table || kHasLookup8;

// term + exp(-x), likewise where |x| < 20. log(2) is so close to a float, 1.9e-9, that the rest needs no low part.
NORMFUSE_INLINE V PlusExpOfNegative(V term, V x) {
  constexpr double kLog2 = 0.6931471805599453;
  if constexpr (kHasExp2Table) {
    const V shifted = Fma(x, Set(-kLog2E), Set(kThirtySecondShift));
    const V rounded = shifted - Set(kThirtySecondShift);
    const V negative_rest = Fma(rounded, Set(static_cast<float>(kLog2)), x);
    const V slope = Fma(Set(static_cast<float>(kExp2ThirtySecond[2] / (kLog2 * kLog2))), negative_rest,
                        Set(static_cast<float>(-kExp2ThirtySecond[1] / kLog2)));
    return term + ExpOfThirtySeconds<0>(shifted, rounded, negative_rest, slope);
  } else if constexpr (kHasLookup8) {
    constexpr float kSlope[3] = {static_cast<float>(-kExp2Eighth[1] / kLog2),
                                 static_cast<float>(kExp2Eighth[2] / (kLog2 * kLog2)),
                                 static_cast<float>(-kExp2Eighth[3] / (kLog2 * kLog2 * kLog2))};
    const V shifted = Fma(x, Set(-kLog2E), Set(kEighthShift));
    const V negative_rest = Fma(shifted - Set(kEighthShift), Set(static_cast<float>(kLog2)), x);
    const V factor = Fma(Polynomial(kSlope, negative_rest), negative_rest, Set(1.0f));
    return Fma(PowerOfEighths<0>(shifted), factor, term);
  } else {
    return term + Exp2(x, Set(-kLog2E), Set(-kLog2ELow));
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

// Up to here an argument less the nearest multiple of pi keeps all its bits.
constexpr float kSineRange = 200000.0f;

// `sines`, with those of larger arguments by the C library, which infinities give NaN.
static __attribute__((noinline)) V WithLargeSines(V x, V sines) {
  float arguments[kLanes];
  float results[kLanes];
  Store(arguments, x);
  Store(results, sines);
  for (size_t i = 0; i < kLanes; ++i) {
    const bool is_large = arguments[i] > kSineRange || arguments[i] < -kSineRange;
    if (is_large) results[i] = static_cast<float>(__builtin_sin(static_cast<double>(arguments[i])));
  }
  return Load(results);
}

// x = n * pi + r, |r| < 1.6: the sine of r, its sign turned where n is odd.
NORMFUSE_INLINE V Sine(V x) {
  constexpr float kShift = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  const V shifted = Fma(x, Set(kInversePi), Set(kShift));
  const V n = shifted - Set(kShift);
  const V first = ExactFma(n, Set(-kPi), x);  // exact: its bits reach from 2 to the last of x or of pi
  const V middle = n * Set(-kPiMiddle);
  const V low = Fma(n, Set(-kPiLow), ProductError(n, Set(-kPiMiddle), middle));
  const V r = (first + middle) + low;
  const V square = r * r;
  const V curve = Polynomial(kSine, square);
  // With what the square's rounding lost, which counts twice where the sine is squared.
  const V sine = Fma(r, Fma(square, curve, ProductError(r, r, square) * curve), r);
  const V turned = BitCastToFloat(BitCastToInt(sine) ^ ShiftLeft<31>(BitCastToInt(shifted)));
  if (Any(Gt(Abs(x), Set(kSineRange)))) return WithLargeSines(x, turned);
  return turned;
}

// c[0][i] + c[1][i] r + ..., one column of the table for each lane.
template <size_t kCount>
NORMFUSE_INLINE V TablePolynomial(const float (&c)[kCount][16], I i, V r) {
  V sum = Lookup(c[kCount - 1], i);
  for (size_t k = kCount - 1; k-- > 1;) sum = Fma(sum, r, Lookup(c[k], i));
  return ExactFma(sum, r, Lookup(c[0], i));  // two roundings here would cost a further ulp
}

// x * (1 - tail(x)) for the distribution functions of GELU, whose tail is symmetric: tail(-x) = 1 - tail(x). Written as
// max(x, 0) - |x| tail(|x|), which cancels nowhere. With tables of 16 columns, of which Tables has
//   kRoot     the tail's square root, on intervals from -8 to 0, 0 at -8
//   kDip      the tail times -|x|, around multiples of 1/4 from -7.75 to 0
//
// In all ways, x * 0 must be NaN where x is -infinity, and only there.
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

// 2^(-c a^2), c = log2(e) / 2, square = a^2 rounded. With kAccurate = false the square's rounding counts as well.
template <bool kAccurate>
NORMFUSE_INLINE V Gaussian(V a, V square) {
  const V c = Set(-kHalfLog2E);
  const auto corrected = [&](V rest) { return kAccurate ? Fma(ProductError(a, a, square), c, rest) : rest; };
  if constexpr (kHasLookup8) {
    const Eighths e = SplitEighths(square, c);
    const V rest = corrected(e.rest);
    return Fma(e.power * rest, EighthSlope(rest), e.power);
  } else {
    SplitExponent s;
    s.biased = Fma(square, c, Set(kRoundingBias));
    s.integer = s.biased - Set(kRoundingBias);
    s.rest = corrected(ExactFma(square, c, Neg(s.integer)));
    return Power(Polynomial(kExp2, s.rest), s);
  }
}

// How far the distribution function of erf-GELU is to be followed where there are no tables: alone, and behind a normalisation
// at most 5 + x^2 / 2 ulp off (what the argument is off by counts several times as much).
struct GeluAlone {
  static constexpr bool kAccurate = true;
  static constexpr auto& kAbove = kGeluAbove;
  static constexpr auto& kBelow = kGeluBelow;
};
struct GeluOfRows {
  static constexpr bool kAccurate = false;
  static constexpr auto& kAbove = kGeluRowsAbove;
  static constexpr auto& kBelow = kGeluRowsBelow;
};

// The tail is a Gaussian times a ratio of polynomials whose coefficients are all positive.
template <class Form>
NORMFUSE_INLINE V TimesNormalDistribution(V x) {
  const V a = Min(Set(13.27f), Abs(x));  // from here on the tail is 0: the power of two is 2^-127
  const V square = a * a;
  const V power = Gaussian<Form::kAccurate>(a, square);
  const V ratio = PairedPolynomial(Form::kAbove, a, square) / PairedPolynomial(Form::kBelow, a, square);
  const V negative = Neg(a);
  const V positive = x - Min(x, Set(0.0f));  // NaN where x is -infinity, as Max(0, x) is not
  // Both are as fast by themselves: one rounds less, the other waits less.
  if constexpr (Form::kAccurate) return Fma(negative, power * ratio, positive);
  return Fma(negative * power, ratio, positive);
}

// x * Phi(x) * factor, which is positive, off by at most factor * (5e-6 + |x| / 2^22): without an exponential, as Phi(x) =
// 1/2 + x * ratio(x^2) up to where that is 1, and 0 from where it is less. For 8 bits behind a normalisation, in steps that are
// so much larger.
class GeluOfBytes {
 public:
  static constexpr float kFinestStep = 0x1p-7f;  // the error is less than 2^-10 of it
  NORMFUSE_INLINE explicit GeluOfBytes(float factor) : half_(Set(0.5f * factor)) {
    NORMFUSE_UNROLL
    for (size_t k = 0; k < 4; ++k) above_[k] = Set(kGeluBytesAbove[k] * factor);
  }
  NORMFUSE_INLINE V operator()(V x) const {
    const V clamped = Max(Set(kGeluBytesZero), Min(Set(kGeluBytesOne), x));
    const V square = clamped * clamped;
    const V fourth = square * square;
    const auto cubic = [&](V c3, V c2, V c1, V c0) { return Fma(Fma(c3, square, c2), fourth, Fma(c1, square, c0)); };
    constexpr auto& kBelow = kGeluBytesBelow;
    const V above = cubic(above_[3], above_[2], above_[1], above_[0]);
    const V ratio = above / cubic(Set(kBelow[3]), Set(kBelow[2]), Set(kBelow[1]), Set(kBelow[0]));
    return x * Max(Set(0.0f), Fma(clamped, ratio, half_));
  }

 private:
  // The factor times all that the distribution is made of.
  V half_;
  V above_[4];
};

// That of tanh-GELU is 1 / (1 + exp(-2 u)), u = sqrt(2 / pi) (x + 0.044715 x^3): x over it, as in Swish.
NORMFUSE_INLINE V TimesTanhDistribution(V x) {
  // Exponents of 2 from 128, which gives infinity, to -126.
  const V y = Max(Set(-10.06f), Min(Set(10.0f), x));
  const V square = y * y;
  const V cubic = Set(-kGeluTanhCubic), linear = Set(-kGeluTanhLinear);
  // y times (slope + low) is the exponent, which must not lose what it has before the point.
  const V slope = Fma(square, cubic, linear);
  const V low = Fma(ProductError(y, y, square), cubic, ExactFma(square, cubic, linear - slope));
  const V lowest = Fma(square, Set(-kGeluTanhCubicLow), Set(-kGeluTanhLinearLow));
  return x / PlusFastExp2(Set(1.0f), y, slope, low + lowest);
}

}  // namespace normfuse::NORMFUSE_ISA
