// The activations of ep/spec/activations.toml over the vector layer, one functor a row, named by its `kernel`. Included
// once per instruction set, after cpu/kernels/simd/simd.h.
//
// Each is made from the row's parameters, any finite floats (Clip: infinite ones too), and is at most 4 units in the
// last place (ulp) from the exact value for every float32 x, except that
//   - Gelu without tables (all instruction sets but AVX-512) is at most 5.5;
//   - Gelu, GeluTanh and Mish below x = -4, and Swish below alpha * x = -4, count units of max(|value|, 2^-24);
//   - Swish takes |alpha| above 2.3e38 as 2.3e38, and below 2^-80 is less accurate where |x| is above 2^80.
// NaN gives NaN, but 0 in ThresholdedRelu and Shrink. At infinities the formula is taken at its word: Gelu, GeluTanh,
// HardSwish, Swish and Mish multiply x by 0 at -inf and Softsign divides inf by inf, which gives NaN, as ONNX's
// engines do; all others give their limit, but Sin and SinSquared NaN.
#pragma once

#include "cpu/kernels/math-inl.h"
#include "cpu/kernels/simd/simd.h"

namespace normfuse::NORMFUSE_ISA {

constexpr float kLargest = 3.402823466e+38f;

// a / |b|, where too large for a float clamped to the largest one, but infinite for b = 0.
NORMFUSE_INLINE float BoundedRatio(float a, float b) {
  if (b == 0) return a < 0 ? -__builtin_inff() : __builtin_inff();
  const double ratio = static_cast<double>(a) / static_cast<double>(b < 0 ? -b : b);
  return ratio > kLargest ? kLargest : ratio < -kLargest ? -kLargest : static_cast<float>(ratio);
}

struct Identity {
  NORMFUSE_INLINE explicit Identity(const float*) {}
  NORMFUSE_INLINE V operator()(V x) const { return x; }
};

struct Relu {
  NORMFUSE_INLINE explicit Relu(const float*) {}
  NORMFUSE_INLINE V operator()(V x) const { return Max(Set(0.0f), x); }
};

struct LeakyRelu {
  NORMFUSE_INLINE explicit LeakyRelu(const float* params) : alpha(Set(params[0])) {}
  NORMFUSE_INLINE V operator()(V x) const { return Select(Lt(x, Set(0.0f)), alpha * x, x); }
  V alpha;
};

struct PRelu {
  NORMFUSE_INLINE explicit PRelu(const float*) {}
  NORMFUSE_INLINE V operator()(V x, V slope) const { return Select(Lt(x, Set(0.0f)), slope * x, x); }
};

struct Linear {
  NORMFUSE_INLINE explicit Linear(const float* params) : alpha(Set(params[0])), beta(Set(params[1])) {}
  NORMFUSE_INLINE V operator()(V x) const { return ExactFma(alpha, x, beta); }
  V alpha, beta;
};

struct Clip {
  NORMFUSE_INLINE explicit Clip(const float* params) : low(Set(params[0])), high(Set(params[1])) {}
  NORMFUSE_INLINE V operator()(V x) const { return Min(high, Max(low, x)); }
  V low, high;
};

struct ThresholdedRelu {
  NORMFUSE_INLINE explicit ThresholdedRelu(const float* params) : alpha(Set(params[0])) {}
  NORMFUSE_INLINE V operator()(V x) const { return Select(Gt(x, alpha), x, Set(0.0f)); }
  V alpha;
};

struct Shrink {
  NORMFUSE_INLINE explicit Shrink(const float* params)
      : bias(Set(params[0])), lambd(Set(params[1])), negative_lambd(Set(-params[1])) {}
  NORMFUSE_INLINE V operator()(V x) const {
    const V above = Select(Gt(x, lambd), x - bias, Set(0.0f));
    return Select(Lt(x, negative_lambd), x + bias, above);
  }
  V bias, lambd, negative_lambd;
};

struct HardSigmoid {
  NORMFUSE_INLINE explicit HardSigmoid(const float* params) : alpha(Set(params[0])), beta(Set(params[1])) {}
  NORMFUSE_INLINE V operator()(V x) const { return Max(Set(0.0f), Min(Set(1.0f), ExactFma(alpha, x, beta))); }
  V alpha, beta;
};

struct HardSwish {
  NORMFUSE_INLINE explicit HardSwish(const float* params) : gate(params) {}
  NORMFUSE_INLINE V operator()(V x) const { return x * gate(x); }
  HardSigmoid gate;
};

struct Softsign {
  NORMFUSE_INLINE explicit Softsign(const float*) {}
  NORMFUSE_INLINE V operator()(V x) const { return x / (Set(1.0f) + Abs(x)); }
};

// x < 0 ? scale * (exp(x) - 1) : x
NORMFUSE_INLINE V ExponentialBelowZero(V x, V scale) {
  const V y = Min(Set(0.0f), Max(Set(-30.0f), x));  // from -30 down the difference is -1
  return Select(Lt(x, Set(0.0f)), scale * Expm1(y), x);
}

struct Elu {
  NORMFUSE_INLINE explicit Elu(const float* params) : alpha(Set(params[0])) {}
  NORMFUSE_INLINE V operator()(V x) const { return ExponentialBelowZero(x, alpha); }
  V alpha;
};

struct Selu {
  NORMFUSE_INLINE explicit Selu(const float* params) : gamma(Set(params[1])) {
    // One factor below 0, but two where their product is no float: the difference may be small enough for both.
    const double both = static_cast<double>(params[0]) * static_cast<double>(params[1]);
    const bool fits = both <= kLargest && both >= -kLargest;
    first = Set(fits ? static_cast<float>(both) : params[0]);
    second = Set(fits ? 1.0f : params[1]);
  }
  NORMFUSE_INLINE V operator()(V x) const {
    const V y = Min(Set(0.0f), Max(Set(-30.0f), x));
    return Select(Gt(x, Set(0.0f)), gamma * x, Select(IsNan(x), x, Expm1(y) * first * second));
  }
  V gamma, first, second;
};

// max(0, x) + min(0, alpha * (exp(x / alpha) - 1)): x where it is positive, for either sign of alpha.
struct Celu {
  NORMFUSE_INLINE explicit Celu(const float* params) : alpha(Set(params[0])) {}
  NORMFUSE_INLINE V operator()(V x) const {
    // Below 0 the exponent x / alpha is negative for a positive alpha; for a negative one it grows, and so does the
    // part of it that rounding the quotient loses.
    const V y = Max(Set(-30.0f), Min(Set(195.0f), x / alpha));
    const V lost = ExactFma(Neg(y), alpha, x) / alpha;
    // Next to 0 the exponential is linear, and the quotient may have underflowed.
    const M curved = Lt(x, Set(0.0f)) & Gt(Abs(y), Set(0x1p-60f));
    return Select(curved, Scaled(y, Max(Set(-1.0f), Min(Set(1.0f), lost))), x);
  }
  // alpha * (exp(y + lost) - 1)
  NORMFUSE_INLINE V Scaled(V y, V lost) const {
    const SplitExponent s = SplitNatural(y);
    const V fraction = Expm1OfRest(s.rest + lost);
    const V power = Power(Set(1.0f), s);
    const V near = alpha * Fma(power, fraction, power - Set(1.0f));
    // From 2^31 on the -1 no longer counts, but the power alone may overflow where its product with alpha does not.
    const V lifted = alpha * Set(0x1p30f);
    const V far = ScaleByPowerOfTwo(lifted * (Set(1.0f) + fraction), s.integer - Set(30.0f));
    return Select(Gt(s.integer, Set(30.0f)), far, near);
  }
  V alpha;
};

// 1 / (1 + exp(-x)) with both sides of the fraction times 2^-64: down to the smallest denormal result, exp(-x) = 2^150
// does not overflow.
struct Sigmoid {
  NORMFUSE_INLINE explicit Sigmoid(const float*) {}
  NORMFUSE_INLINE V operator()(V x) const { return OfClamped(Clamped(x)); }
  // Beyond, the result is 1 to within rounding, and 0.
  static NORMFUSE_INLINE V Clamped(V x) {
    constexpr float kLn2Down = 0.6931471f;
    return Max(Set(-151.0f * kLn2Down), Min(Set(63.0f * kLn2Down), x));
  }
  static NORMFUSE_INLINE V OfClamped(V x) {
    constexpr float kOne = 0x1p-64f;
    return Set(kOne) / PlusFastExp2<64>(Set(kOne), x, Set(-kLog2E), Set(-kLog2ELow));
  }
};

// The comparison stays in the loops. As one of integers it leaves the vectors' ports alone, which arithmetic waits for.
NORMFUSE_INLINE bool IsOne(float x) {
  constexpr float kOne = 1.0f;
  return __builtin_bit_cast(int32_t, x) == __builtin_bit_cast(int32_t, kOne);
}

struct Swish {
  NORMFUSE_INLINE explicit Swish(const float* params) : is_silu(IsOne(params[0])) {
    // exp(-alpha x) = 2^(x (high + low_part)): the product is never rounded by itself.
    double exponent = -1.4426950408889634 * static_cast<double>(params[0]);
    exponent = exponent > kLargest ? kLargest : exponent < -kLargest ? -kLargest : exponent;
    const float rounded = static_cast<float>(exponent);
    high_part = Set(rounded);
    low_part = Set(static_cast<float>(exponent - static_cast<double>(rounded)));
    const float zero_at = BoundedRatio(kExp2Low, rounded), infinite_at = BoundedRatio(kExp2High, rounded);
    least = Set(rounded > 0 ? zero_at : -infinite_at);
    most = Set(rounded > 0 ? infinite_at : -zero_at);
  }
  NORMFUSE_INLINE V operator()(V x) const {
    const V y = CutExponent(x, least, most);
    if (kHasExpOfNegative && is_silu) return x / PlusExpOfNegative(Set(1.0f), y);
    return x / PlusFastExp2(Set(1.0f), y, high_part, low_part);
  }
  V high_part, low_part, least, most;
  bool is_silu;
};

struct Tanh {
  NORMFUSE_INLINE explicit Tanh(const float*) {}
  NORMFUSE_INLINE V operator()(V x) const {
    const V y = Max(Set(-10.0f), Min(Set(10.0f), x));  // beyond, the result is 1
    const V e = Expm1(y + y);
    return e / (e + Set(2.0f));
  }
};

struct Exp {
  NORMFUSE_INLINE explicit Exp(const float*) {}
  NORMFUSE_INLINE V operator()(V x) const {
    const V y = Max(Set(-104.0f), Min(Set(89.0f), x));  // beyond, the result is 0, and infinite
    const SplitExponent s = Split(y, Set(kLog2E), Set(kLog2ELow));
    return ScaleByPowerOfTwo(Polynomial(kExp2, s.rest), s.integer);
  }
};

struct Erf {
  NORMFUSE_INLINE explicit Erf(const float*) {}
  NORMFUSE_INLINE V operator()(V x) const {
    const V a = Min(Set(4.0f), Abs(x));  // from there on the result is 1
    const V near = ExactFma(x, Polynomial(kErf, x * x), x);
    const V tail = Exp2(Polynomial(kErfExponent, a), Set(1.0f), Set(0.0f));
    return Select(Lt(a, Set(kErfNear)), near, CopySign(Set(1.0f) - tail, x));
  }
};

struct Sin {
  NORMFUSE_INLINE explicit Sin(const float*) {}
  NORMFUSE_INLINE V operator()(V x) const { return Sine(x); }
};

struct SinSquared {
  NORMFUSE_INLINE explicit SinSquared(const float*) {}
  NORMFUSE_INLINE V operator()(V x) const {
    const V sine = Sine(x);
    return sine * sine;
  }
};

struct ScaledTanh {
  NORMFUSE_INLINE explicit ScaledTanh(const float* params) : alpha(Set(params[0])), beta(Set(params[1])) {}
  NORMFUSE_INLINE V operator()(V x) const {
    const V y = beta * x;
    // Where beta * x is denormal it has lost bits that alpha may bring back; there tanh(y) = y.
    const V small = Max(Set(-0x1p23f), Min(Set(0x1p23f), x));  // as it is, unless beta is 0
    const V lifted = (alpha * (beta * (small * Set(0x1p104f)))) * Set(0x1p-104f);
    return Select(Lt(Abs(y), Set(0x1p-126f)), lifted, alpha * Tanh(nullptr)(y));
  }
  V alpha, beta;
};

// log(1 + exp(y)) = max(y, 0) + log(1 + exp(-|y|)), y = x * beta.
struct Log1pExp {
  NORMFUSE_INLINE explicit Log1pExp(float beta) {
    const double exponent = -1.4426950408889634 * static_cast<double>(beta < 0 ? -beta : beta);
    const float rounded = static_cast<float>(exponent < -kLargest ? -kLargest : exponent);
    high_part = Set(rounded);
    low_part = Set(exponent < -kLargest ? 0.0f : static_cast<float>(exponent - static_cast<double>(rounded)));
    most = Set(BoundedRatio(252.0f, rounded));
  }
  // scale * log(1 + exp(-|y|)). The scale joins before the power of two, which may underflow where the product does
  // not.
  NORMFUSE_INLINE V operator()(V x, V scale) const {
    const SplitExponent s = Split(Min(most, Abs(x)), high_part, low_part);
    const V p = Polynomial(kExp2, s.rest);
    const V log1p = ScaleByPowerOfTwo(scale * (p * Log1pRatio(ScaleByPowerOfTwo(p, s.integer))), s.integer);
    return Select(Gt(Abs(x), most), Set(0.0f), log1p);
  }
  V high_part, low_part, most;
};

struct Softplus {
  NORMFUSE_INLINE explicit Softplus(const float* params)
      : log1p_exp(params[0]), steepness(Set(params[0])), inverse(Set(1.0f) / steepness) {}
  NORMFUSE_INLINE V operator()(V x) const {
    const V linear = Select(Gt(steepness * x, Set(0.0f)), x, Set(0.0f));
    return linear + log1p_exp(x, inverse);
  }
  Log1pExp log1p_exp;
  V steepness, inverse;
};

struct ParametricSoftplus {
  NORMFUSE_INLINE explicit ParametricSoftplus(const float* params)
      : log1p_exp(params[1]), alpha(Set(params[0])), beta(Set(params[1])) {}
  NORMFUSE_INLINE V operator()(V x) const {
    const V y = beta * x;
    // Where beta * x overflows, alpha * beta * x need not.
    const V lowered = (beta * Set(0x1p-64f)) * (x * Set(0x1p-64f));
    const V scaled = ((alpha * Set(0x1p64f)) * lowered) * Set(0x1p64f);
    const V linear = Select(Lt(Abs(y), Set(__builtin_inff())), alpha * y, scaled);
    const V curved = log1p_exp(x, alpha);
    return Select(Gt(y, Set(0.0f)), linear + curved, curved);
  }
  Log1pExp log1p_exp;
  V alpha, beta;
};

struct Mish {
  NORMFUSE_INLINE explicit Mish(const float*) {}
  // tanh(log(1 + e)) = w / (w + 2) with w = e (e + 2), e = exp(x); 1 from x = 20 on.
  NORMFUSE_INLINE V operator()(V x) const {
    const V y = Max(Set(kExp2Low * 0.6931471f), Min(Set(20.0f), x));
    const V e = Exp2(y, Set(kLog2E), Set(kLog2ELow));
    const V w = Fma(e, e, e + e);
    return x * (w / (w + Set(2.0f)));
  }
};

struct GeluTables {
  static constexpr auto& kDip = kGeluDip;
  static constexpr auto& kRoot = kGeluRoot;
};
struct Gelu {
  NORMFUSE_INLINE explicit Gelu(const float*) {}
  NORMFUSE_INLINE V operator()(V x) const {
    if constexpr (kHasTables) {
      return TimesDistributionByRoot<GeluTables>(x);
    } else {
      return TimesNormalDistribution<GeluAlone>(x);
    }
  }
};

struct GeluTanhTables {
  static constexpr auto& kRoot = kGeluTanhRoot;
};
struct GeluTanh {
  NORMFUSE_INLINE explicit GeluTanh(const float*) {}
  NORMFUSE_INLINE V operator()(V x) const {
    if constexpr (kHasTables) {
      return TimesDistributionByRoot<GeluTanhTables>(x);
    } else {
      return TimesTanhDistribution(x);
    }
  }
};

}  // namespace normfuse::NORMFUSE_ISA
