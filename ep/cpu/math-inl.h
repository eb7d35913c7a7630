// Exponentials, logarithms and the tails of GELU over the vector layer. Included after cpu/simd/simd.h, once per
// instruction set; the constants come from derive_coefficients.py. Errors are given in units in the last place (ulp).
#pragma once

#include "cpu/coefficients.h"
#include "cpu/simd/simd.h"

namespace normfuse::NORMFUSE_ISA {

// The range of exponents in which Exp2 keeps its promises: at the lower end the power is 0, at the upper infinity.
// Where 2^n is put together from bits, n = -127 gives 0 and n = 128 infinity; the scaling instruction goes further.
constexpr float kExp2Low = kHasScale ? -151.0f : -127.0f;
constexpr float kExp2High = kHasScale ? 129.0f : 128.0f;

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
// of the power as its integer part has.
struct SplitExponent {
  V biased;  // the integer + 127 in the low bits of the float's significand
  V integer;
  V rest;
};
constexpr float kRoundingBias = 12582912.0f + 127.0f;  // 1.5 * 2^23 + 127: adding it rounds to an integer

NORMFUSE_INLINE SplitExponent Split(V x, V high, V low) {
  SplitExponent s;
  s.biased = Fma(x, high, Set(kRoundingBias));
  s.integer = s.biased - Set(kRoundingBias);
  s.rest = Fma(x, low, ExactFma(x, high, Neg(s.integer)));
  return s;
}

// p * 2^integer, for integers from kExp2Low to kExp2High.
NORMFUSE_INLINE V Power(V p, const SplitExponent& s) {
  if constexpr (kHasScale) return ScaleByPowerOfTwo(p, s.integer);
  return p * BitCastToFloat(ShiftLeft<23>(BitCastToInt(s.biased)));
}

// 2^(x * (high + low)) for products from kExp2Low to kExp2High; at most 2 ulp off where the result is normal, with
// (high + low) taken as exact. Denormal results may be 0 and those above 2^127.5 infinity.
NORMFUSE_INLINE V Exp2(V x, V high, V low) {
  const SplitExponent s = Split(x, high, low);
  return Power(Polynomial(kExp2, s.rest), s);
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

// c[0][i] + c[1][i] r + ...
template <size_t kCount>
NORMFUSE_INLINE V TablePolynomial(const float (&c)[kCount][kTableLanes], I i, V r) {
  V sum = Lookup(c[kCount - 1], i);
  for (size_t k = kCount - 1; k-- > 0;) sum = Fma(sum, r, Lookup(c[k], i));
  return sum;
}

// x * (1 - tail(x)) for the distribution functions of GELU, whose tail is symmetric: tail(-x) = 1 - tail(x). Written as
// max(x, 0) - |x| tail(|x|), which cancels nowhere. `tables` has
//   kTail    tail(a) around 0, 1/4 ... 31/4; exactly 0 at 7.75 + 31/256
//   kSmooth  tail(a) * 2^(kHalfLog2E a^2) around 1/2, 3/2 ... 15/2
template <typename Tables>
NORMFUSE_INLINE V TimesDistribution(V x) {
  const V positive = Max(Set(0.0f), x);
  if constexpr (kTableLanes == 32) {
    constexpr float kQuarters = 12582912.0f / 4.0f;  // adding it rounds to a multiple of 1/4
    const V a = Min(Set(7.75f + 31.0f / 256.0f), Abs(x));
    const V rounded = a + Set(kQuarters);
    const V tail = TablePolynomial(Tables::kTail, BitCastToInt(rounded), a - (rounded - Set(kQuarters)));
    // A positive x must not be multiplied by a tail of 0 when it is infinite, a negative one must.
    return Fma(Min(x, Neg(a)), tail, positive);
  } else {
    const V a = Min(Set(13.27f), Abs(x));  // 2^(-kHalfLog2E a^2) is 0 here, as 2^-127 is
    const V square = a * a;
    const V c = Set(-kHalfLog2E);
    const V biased = Fma(square, c, Set(kRoundingBias));
    const V integer = biased - Set(kRoundingBias);
    const V rest = Fma(ProductError(a, a, square), c, ExactFma(square, c, Neg(integer)));
    const V power = Power(Polynomial(kExp2, rest), {biased, integer, rest});
    constexpr float kOnes = 12582912.0f;
    const V shifted = Min(Set(7.499f), a - Set(0.5f));
    const V rounded = shifted + Set(kOnes);
    const V smooth = TablePolynomial(Tables::kSmooth, BitCastToInt(rounded), shifted - (rounded - Set(kOnes)));
    return Fma(Min(x, Neg(a)), power * smooth, positive);
  }
}

}  // namespace normfuse::NORMFUSE_ISA
