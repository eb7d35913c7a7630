// Accuracy of every activation on every instruction set that the machine has.
//
//   activations_test                all activations: every float16 value, a sweep through float32, random parameters
//                                   (the values at the edges: tests/operators/test_edges.py)
//   activations_test --dense        the same with four and two times as many float32 values
//   activations_test --full NAME    all 2^32 float32 values of one activation with its default parameters
//
// The reference is the table's formula in float64, its own error far below float32's; the error is counted in units in the last place (ulp) of
// the float32 result and may be 4, that of erf-GELU 5.5.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "chain/chain.h"
#include "check.h"
#include "isa_functions.h"
#include "scalar_conversions.h"
#include "spec/formulas.h"
#include "worse.h"

namespace normfuse::test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kTolerance = 4.0;
constexpr double kGeluTolerance = 5.5;
constexpr size_t kChunk = 4096;

using Params = const float*;

// Where x times this is below -4, the unit is that of max(|value|, 2^-24): these go to zero as a product of two small
// things.
double TailFactor(const std::string& name, Params params) {
  if (name == "Swish") return static_cast<double>(params[0]);
  return name == "Gelu" || name == "GeluTanh" || name == "Mish" ? 1 : 0;
}

// One unit in the last place of the float32 nearest to |value|.
double Ulp(double value) {
  const double magnitude = std::max(std::fabs(value), 0x1p-126);
  return std::ldexp(1.0, std::min(std::ilogb(magnitude), 127) - 23);
}

double FromBits(uint32_t bits, float* f) {
  std::memcpy(f, &bits, sizeof(bits));
  return static_cast<double>(*f);
}

// The error of `got` in ulp; infinite where it is a NaN or an infinity that it must not be.
double Error(double exact, float got, bool tail) {
  if (std::isnan(exact)) return std::isnan(got) ? 0 : kInfinity;
  if (std::isnan(got)) return kInfinity;
  // Infinity counts as 2^128, where float32's next value would be.
  const double bounded = std::clamp(exact, -0x1p128, 0x1p128);
  const double value = std::clamp(static_cast<double>(got), -0x1p128, 0x1p128);
  const double unit = Ulp(tail ? std::max(std::fabs(bounded), 0x1p-24) : bounded);
  return std::fabs(value - bounded) / unit;
}

double Tolerance(const std::string& name) { return name == "Gelu" ? kGeluTolerance : kTolerance; }

struct Worst {
  double error = 0;
  float x = 0;
  float got = 0;
  double exact = 0;
  std::string params;
};

// Runs one activation on all instruction sets and keeps the worst error of each.
class Comparison {
 public:
  Comparison(const IsaFunctions* isas, size_t isa_count, size_t activation)
      : isas_(isas),
        isa_count_(isa_count),
        activation_(activation),
        name_(isas[0].activations[activation].name),
        worst_(isa_count) {}

  // n <= kChunk finite or infinite values, and a slope for each.
  void Add(const float* x, const float* slope, size_t n, Params params) {
    float in[kChunk], slopes[kChunk], out[kChunk];
    double exact[kChunk];
    for (size_t i = 0; i < kChunk; ++i) {
      in[i] = x[std::min(i, n - 1)];
      slopes[i] = slope[std::min(i, n - 1)];
    }
    for (size_t i = 0; i < n; ++i) {
      exact[i] = FormulaOf(static_cast<normfuse::Activation>(activation_), static_cast<double>(x[i]),
                           static_cast<double>(slope[i]), params);
    }
    const double tail = TailFactor(name_, params);
    for (size_t k = 0; k < isa_count_; ++k) {
      isas_[k].activations[activation_].run(params, in, slopes, out, kChunk);
      for (size_t i = 0; i < n; ++i) {
        const double error = Error(exact[i], out[i], tail * static_cast<double>(x[i]) < -4);
        if (!(error <= worst_[k].error)) worst_[k] = {error, x[i], out[i], exact[i], Text(params)};
      }
    }
  }

  const Worst& Of(size_t isa) const { return worst_[isa]; }

 private:
  static std::string Text(Params params) {
    char text[64];
    std::snprintf(text, sizeof(text), "%.9g, %.9g", static_cast<double>(params[0]), static_cast<double>(params[1]));
    return text;
  }

  const IsaFunctions* isas_;
  size_t isa_count_;
  size_t activation_;
  std::string name_;
  std::vector<Worst> worst_;
};

// Every stride-th float32 bit pattern from `first` on, NaN left out.
void Sweep(Comparison& comparison, Params params, uint32_t first, uint32_t stride) {
  float x[kChunk], slope[kChunk];
  size_t n = 0;
  for (uint64_t bits = first; bits <= 0xFFFFFFFFull; bits += stride) {
    const double value = FromBits(static_cast<uint32_t>(bits), &x[n]);
    if (std::isnan(value)) continue;
    slope[n] = static_cast<float>(bits % 1021) / 256.0f - 2.0f;
    if (++n < kChunk) continue;
    comparison.Add(x, slope, n, params);
    n = 0;
  }
  if (n != 0) comparison.Add(x, slope, n, params);
}

void AllHalves(Comparison& comparison, Params params) {
  float x[kChunk], slope[kChunk];
  for (uint32_t first = 0; first < 0x10000; first += kChunk) {
    for (uint32_t i = 0; i < kChunk; ++i) {
      x[i] = static_cast<float>(HalfValue(static_cast<uint16_t>(first + i)));
      slope[i] = static_cast<float>(i % 1021) / 256.0f - 2.0f;
      // What NaN gives is tested by itself.
      if (std::isnan(x[i])) x[i] = 0;
    }
    comparison.Add(x, slope, kChunk, params);
  }
}

// Parameters as they might be drawn: round ones, ordinary ones, and a wide range of magnitudes with both signs.
void DrawParams(std::mt19937& random, const ActivationSpec& spec, float* params) {
  std::uniform_real_distribution<float> exponent(-60.0f, 60.0f), ordinary(-3.0f, 3.0f);
  for (int k = 0; k < 2; ++k) {
    switch (random() % 4) {
      case 0:
        params[k] = static_cast<float>(static_cast<int>(random() % 9) - 4) / 2.0f;
        break;
      case 1:
        params[k] = std::exp2(exponent(random)) * (random() % 2 != 0 ? -1.0f : 1.0f);
        break;
      default:
        params[k] = ordinary(random);
    }
  }
  for (int k = 0; k < 2; ++k) {
    if (spec.params[k].nonzero && params[k] == 0) params[k] = 1;
  }
}

void TestAccuracy(const IsaFunctions* isas, size_t isa_count, bool dense) {
  // Primes: 2,000 or 8,000 values between two powers of two with the default parameters, 60 or 120 with those drawn.
  const uint32_t stride = dense ? 1021 : 4093;
  const uint32_t stride_of_draws = dense ? 65521 : 131071;
  std::printf("%-20s", "largest error, ulp");
  for (size_t k = 0; k < isa_count; ++k) std::printf("%12s", isas[k].isa);
  std::printf("\n");
  std::mt19937 random(20261121);
  for (size_t a = 0; a < isas[0].count; ++a) {
    const std::string name = isas[0].activations[a].name;
    const ActivationSpec& row = kActivations[a];
    Comparison comparison(isas, isa_count, a);
    float params[2] = {row.defaults[0], row.defaults[1]};
    AllHalves(comparison, params);
    Sweep(comparison, params, 1, stride);
    for (int draw = 0; row.param_count > 0 && draw < 120; ++draw) {
      DrawParams(random, row, params);
      Sweep(comparison, params, static_cast<uint32_t>(random() % stride_of_draws), stride_of_draws);
    }
    std::printf("%-20s", name.c_str());
    for (size_t k = 0; k < isa_count; ++k) std::printf("%12.3f", comparison.Of(k).error);
    std::printf("\n");
    for (size_t k = 0; k < isa_count; ++k) {
      const Worst& worst = comparison.Of(k);
      CHECK(worst.error <= Tolerance(name), "%s on %s: f(%.9g) = %.9g with parameters %s, exactly %.17g: %.3f ulp",
            name.c_str(), isas[k].isa, static_cast<double>(worst.x), static_cast<double>(worst.got),
            worst.params.c_str(), worst.exact, worst.error);
    }
  }
}

// What is promised of the error where 8 bits are stored, at a factor that rounds nothing: with tables less.
void TestScaledGelu(const IsaFunctions& isa) {
  constexpr float kFactor = 32.0f;
  double worst = 0;
  float x[16], y[16];
  size_t n = 0;
  for (uint64_t bits = 0; bits <= 0xFFFFFFFFull; bits += 1021) {
    if (std::isnan(FromBits(static_cast<uint32_t>(bits), &x[n])) || std::fabs(x[n]) > 1e36f) continue;
    if (++n < 16) continue;
    n = 0;
    isa.scaled_gelu(kFactor, x, y, 16);
    for (size_t i = 0; i < 16; ++i) {
      const double from = static_cast<double>(x[i]);
      const double error = std::fabs(static_cast<double>(y[i]) / static_cast<double>(kFactor) -
                                     0.5 * from * std::erfc(-from / std::sqrt(2.0)));
      const bool tables = std::string(isa.isa) == "avx512";
      worst = Worse(worst, error / (tables ? 6e-8 + 0x1p-23 * std::fabs(from) : 5e-6 + 0x1p-22 * std::fabs(from)));
      CHECK(from > -14 || y[i] == 0, "scaled Gelu on %s: f(%g) = %g", isa.isa, from, static_cast<double>(y[i]));
    }
  }
  std::printf("scaled Gelu on %s: %.2f of the error that is allowed\n", isa.isa, worst);
  CHECK(worst <= 1, "scaled Gelu on %s: %.2f times the error that is allowed", isa.isa, worst);
}

// Where floats are stored the error is relative.
void TestGeluOfRows(const IsaFunctions& isa) {
  double worst = 0;
  float x[16], y[16];
  size_t n = 0;
  // Up to 8, and densely from -0.25 to -8, where the tail falls.
  for (uint64_t bits = 0; bits <= 0xC1000000u; bits += bits < 0xBE800000u ? 1021 : 13) {
    FromBits(static_cast<uint32_t>(bits), &x[n]);
    if (!(std::fabs(x[n]) <= 8)) continue;
    if (++n < 16) continue;
    n = 0;
    isa.gelu_of_rows(x, y, 16);
    for (size_t i = 0; i < 16; ++i) {
      const double from = static_cast<double>(x[i]);
      const double error = Error(0.5 * from * std::erfc(-from / std::sqrt(2.0)), y[i], from < -4);
      worst = Worse(worst, error / (5 + from * from / 2));
    }
  }
  std::printf("Gelu of rows on %s: %.2f of the error that is allowed\n", isa.isa, worst);
  CHECK(worst <= 1, "Gelu of rows on %s: %.2f times the error that is allowed", isa.isa, worst);
}

int Full(const IsaFunctions* isas, size_t isa_count, const char* name) {
  for (size_t a = 0; a < isas[0].count; ++a) {
    if (std::strcmp(isas[0].activations[a].name, name) != 0) continue;
    Comparison comparison(isas, isa_count, a);
    Sweep(comparison, kActivations[a].defaults, 0, 1);
    for (size_t k = 0; k < isa_count; ++k) {
      const Worst& worst = comparison.Of(k);
      std::printf("%s on %s: %.3f ulp at %.9g\n", name, isas[k].isa, worst.error, static_cast<double>(worst.x));
      CHECK(worst.error <= Tolerance(name), "%s on %s: f(%.9g) = %.9g, exactly %.17g", name, isas[k].isa,
            static_cast<double>(worst.x), static_cast<double>(worst.got), worst.exact);
    }
    return ExitCode();
  }
  std::fprintf(stderr, "no activation is called %s\n", name);
  return 2;
}

}  // namespace
}  // namespace normfuse::test

int main(int argc, char** argv) {
  using namespace normfuse::test;
  IsaFunctions isas[kMostIsas];
  const size_t isa_count = AvailableIsas(isas);
  if (argc == 3 && std::strcmp(argv[1], "--full") == 0) return Full(isas, isa_count, argv[2]);
  const bool dense = argc == 2 && std::strcmp(argv[1], "--dense") == 0;
  if (argc != 1 && !dense) {
    std::fprintf(stderr, "usage: %s [--dense | --full NAME]\n", argv[0]);
    return 2;
  }
  for (size_t k = 0; k < isa_count; ++k) {
    TestScaledGelu(isas[k]);
    TestGeluOfRows(isas[k]);
  }
  TestAccuracy(isas, isa_count, dense);
  return ExitCode();
}
