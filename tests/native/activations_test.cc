// Accuracy and speed of every activation on every instruction set that the machine has.
//
//   activations_test                all activations: every float16 value, a sweep through float32, random parameters,
//                                   the values at the edges
//   activations_test --full NAME    all 2^32 float32 values of one activation with its default parameters
//   activations_test --bench        nanoseconds and core clock cycles per element
//
// The reference is float64, its own error far below float32's; the error is counted in units in the last place (ulp) of
// the float32 result and may be 4, that of erf-GELU 5.5.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <limits>
#include <numbers>
#include <random>
#include <string>
#include <vector>

#include "check.h"
#include "isa_functions.h"
#include "plan/plan.h"
#include "spec/tables.h"

namespace normfuse::test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kTolerance = 4.0;
constexpr double kGeluTolerance = 5.5;
constexpr size_t kChunk = 4096;

using Params = const float*;

double Expm1Scaled(double scale, double x) { return scale * std::expm1(x); }

double Log1pExp(double y) { return std::max(y, 0.0) + std::log1p(std::exp(-std::fabs(y))); }

double Swish(double x, double alpha) {
  const double y = alpha * x;
  return y < 0 ? x * std::exp(y) / (1 + std::exp(y)) : x / (1 + std::exp(-y));
}

double GeluTanh(double x) {
  const double u = std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x);
  return u < 0 ? x * std::exp(2 * u) / (1 + std::exp(2 * u)) : x / (1 + std::exp(-2 * u));
}

double Mish(double x) {
  const double e = std::exp(-std::fabs(x));
  return x < 0 ? x * (e * (e + 2) / (e * (e + 2) + 2)) : x * ((1 + 2 * e) / (1 + 2 * e + 2 * e * e));
}

double Celu(double x, double alpha) {
  if (alpha == 0) return std::max(x, 0.0);
  return x > 0 ? x : Expm1Scaled(alpha, x / alpha);
}

double HardSigmoid(double x, Params p) {
  return std::max(0.0, std::min(1.0, static_cast<double>(p[0]) * x + static_cast<double>(p[1])));
}

// A row of the table: the exact value, and below which x (of the sign given) the unit is that of max(|value|, 2^-24).
struct Reference {
  const char* name;
  double (*value)(double x, double slope, Params p);
  double (*tail)(double x, Params p) = nullptr;  // the tail begins where this is below -4
};

double Itself(double x, Params) { return x; }

constexpr Reference kReferences[] = {
    {"Identity", [](double x, double, Params) { return x; }},
    {"Relu", [](double x, double, Params) { return x > 0 ? x : 0; }},
    {"LeakyRelu", [](double x, double, Params p) { return x < 0 ? static_cast<double>(p[0]) * x : x; }},
    {"PRelu", [](double x, double slope, Params) { return x < 0 ? slope * x : x; }},
    {"Elu", [](double x, double, Params p) { return x < 0 ? Expm1Scaled(static_cast<double>(p[0]), x) : x; }},
    {"Celu", [](double x, double, Params p) { return Celu(x, static_cast<double>(p[0])); }},
    {"Selu",
     [](double x, double, Params p) {
       const double gamma = static_cast<double>(p[1]);
       return x > 0 ? gamma * x : Expm1Scaled(gamma * static_cast<double>(p[0]), x);
     }},
    {"Gelu", [](double x, double, Params) { return 0.5 * x * std::erfc(-x / std::sqrt(2.0)); }, Itself},
    {"GeluTanh", [](double x, double, Params) { return GeluTanh(x); }, Itself},
    {"Swish", [](double x, double, Params p) { return Swish(x, static_cast<double>(p[0])); },
     [](double x, Params p) { return static_cast<double>(p[0]) * x; }},
    {"HardSwish", [](double x, double, Params p) { return x * HardSigmoid(x, p); }},
    {"HardSigmoid", [](double x, double, Params p) { return HardSigmoid(x, p); }},
    {"Sigmoid",
     [](double x, double, Params) { return x < 0 ? std::exp(x) / (1 + std::exp(x)) : 1 / (1 + std::exp(-x)); }},
    {"Tanh", [](double x, double, Params) { return std::tanh(x); }},
    {"ScaledTanh",
     [](double x, double, Params p) { return static_cast<double>(p[0]) * std::tanh(static_cast<double>(p[1]) * x); }},
    {"Softplus",
     [](double x, double, Params p) {
       const double beta = static_cast<double>(p[0]);
       return Log1pExp(beta * x) / beta;
     }},
    {"ParametricSoftplus",
     [](double x, double, Params p) { return static_cast<double>(p[0]) * Log1pExp(static_cast<double>(p[1]) * x); }},
    {"Softsign", [](double x, double, Params) { return x / (1 + std::fabs(x)); }},
    {"ThresholdedRelu", [](double x, double, Params p) { return x > static_cast<double>(p[0]) ? x : 0; }},
    {"Shrink",
     [](double x, double, Params p) {
       const double bias = static_cast<double>(p[0]), lambd = static_cast<double>(p[1]);
       return x < -lambd ? x + bias : x > lambd ? x - bias : 0;
     }},
    {"Mish", [](double x, double, Params) { return Mish(x); }, Itself},
    {"Clip", [](double x, double,
                Params p) { return std::min(std::max(x, static_cast<double>(p[0])), static_cast<double>(p[1])); }},
    {"Linear", [](double x, double, Params p) { return static_cast<double>(p[0]) * x + static_cast<double>(p[1]); }},
};

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
      : isas_(isas), isa_count_(isa_count), activation_(activation), worst_(isa_count) {
    for (const Reference& reference : kReferences) {
      if (std::strcmp(reference.name, isas[0].activations[activation].name) == 0) reference_ = &reference;
    }
    CHECK(reference_ != nullptr, "%s has no reference", isas[0].activations[activation].name);
  }

  // n <= kChunk finite or infinite values, and a slope for each.
  void Add(const float* x, const float* slope, size_t n, Params params) {
    if (reference_ == nullptr) return;
    float in[kChunk], slopes[kChunk], out[kChunk];
    double exact[kChunk];
    for (size_t i = 0; i < kChunk; ++i) {
      in[i] = x[std::min(i, n - 1)];
      slopes[i] = slope[std::min(i, n - 1)];
    }
    for (size_t i = 0; i < n; ++i) {
      exact[i] = reference_->value(static_cast<double>(x[i]), static_cast<double>(slope[i]), params);
    }
    for (size_t k = 0; k < isa_count_; ++k) {
      isas_[k].activations[activation_].run(params, in, slopes, out, kChunk);
      for (size_t i = 0; i < n; ++i) Compare(k, x[i], exact[i], out[i], params);
    }
  }

  const Worst& Of(size_t isa) const { return worst_[isa]; }

 private:
  void Compare(size_t isa, float x, double exact, float got, Params params) {
    const bool tail = reference_->tail != nullptr && reference_->tail(static_cast<double>(x), params) < -4;
    const double error = Error(exact, got, tail);
    if (error <= worst_[isa].error) return;
    char text[64];
    std::snprintf(text, sizeof(text), "%.9g, %.9g", static_cast<double>(params[0]), static_cast<double>(params[1]));
    worst_[isa] = {error, x, got, exact, text};
  }

  const IsaFunctions* isas_;
  size_t isa_count_;
  size_t activation_;
  const Reference* reference_ = nullptr;
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

float HalfToFloat(uint32_t h) {
  const int exponent = static_cast<int>(h >> 10 & 31);
  const double significand = h & 1023;
  double value = exponent == 0 ? std::ldexp(significand, -24) : std::ldexp(significand + 1024, exponent - 25);
  if (exponent == 31) value = (h & 1023) != 0 ? std::nan("") : kInfinity;
  return static_cast<float>((h & 0x8000) != 0 ? -value : value);
}

void AllHalves(Comparison& comparison, Params params) {
  float x[kChunk], slope[kChunk];
  for (uint32_t first = 0; first < 0x10000; first += kChunk) {
    for (uint32_t i = 0; i < kChunk; ++i) {
      x[i] = HalfToFloat(first + i);
      slope[i] = static_cast<float>(i % 1021) / 256.0f - 2.0f;
      // What NaN gives is tested by itself.
      if (std::isnan(x[i])) x[i] = 0;
    }
    comparison.Add(x, slope, kChunk, params);
  }
}

// Parameters as they might be drawn: round ones, ordinary ones, and a wide range of magnitudes with both signs.
void DrawParams(std::mt19937& random, const std::string& name, float* params) {
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
  // log(2) / 0 where the steepness is 0, at every x: nothing to count ulp of.
  if (name == "Softplus" && params[0] == 0) params[0] = 1;
}

void TestAccuracy(const IsaFunctions* isas, size_t isa_count) {
  std::printf("%-20s", "largest error, ulp");
  for (size_t k = 0; k < isa_count; ++k) std::printf("%12s", isas[k].isa);
  std::printf("\n");
  std::mt19937 random(20261121);
  for (size_t a = 0; a < isas[0].count; ++a) {
    const std::string name = isas[0].activations[a].name;
    const auto* row = std::find_if(std::begin(kActivations), std::end(kActivations),
                                   [&](const auto& candidate) { return name == candidate.name; });
    CHECK(row != std::end(kActivations), "%s is no activation of the table", name.c_str());
    if (row == std::end(kActivations)) continue;
    Comparison comparison(isas, isa_count, a);
    float params[2] = {row->defaults[0], row->defaults[1]};
    AllHalves(comparison, params);
    Sweep(comparison, params, 1, 1021);
    for (int draw = 0; row->param_count > 0 && draw < 120; ++draw) {
      DrawParams(random, name, params);
      Sweep(comparison, params, static_cast<uint32_t>(random() % 65521), 65521);
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

// Every row of the table has its functor here, so that a new row is not forgotten.
void TestTableIsComplete(const IsaFunctions& isa) {
  for (const auto& row : kActivations) {
    const bool found = std::any_of(isa.activations, isa.activations + isa.count, [&](const Activation& activation) {
      return std::strcmp(activation.name, row.name) == 0;
    });
    CHECK(found, "activation %s of the table is not tested: add it to isa_functions.cc and to kReferences", row.name);
  }
}

// f(NaN), f(-inf), f(inf) with default parameters, as the header of activations-inl.h says.
void TestEdges(const IsaFunctions& isa) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInf = std::numeric_limits<float>::infinity();
  struct Edge {
    const char* name;
    float at_nan, at_minus_infinity, at_infinity;
  };
  const float selu = -1.67326319217681884765625f * 1.05070102214813232421875f;
  const Edge edges[] = {
      {"Identity", kNan, -kInf, kInf},
      {"Relu", kNan, 0, kInf},
      {"LeakyRelu", kNan, -kInf, kInf},
      {"PRelu", kNan, -kInf, kInf},
      {"Elu", kNan, -1, kInf},
      {"Celu", kNan, -1, kInf},
      {"Selu", kNan, selu, kInf},
      {"Gelu", kNan, kNan, kInf},
      {"GeluTanh", kNan, kNan, kInf},
      {"Swish", kNan, kNan, kInf},
      {"HardSwish", kNan, kNan, kInf},
      {"HardSigmoid", kNan, 0, 1},
      {"Sigmoid", kNan, 0, 1},
      {"Tanh", kNan, -1, 1},
      {"ScaledTanh", kNan, -1, 1},
      {"Softplus", kNan, 0, kInf},
      {"ParametricSoftplus", kNan, 0, kInf},
      {"Softsign", kNan, kNan, kNan},
      {"ThresholdedRelu", 0, 0, kInf},
      {"Shrink", 0, -kInf, kInf},
      {"Mish", kNan, kNan, kInf},
      {"Clip", kNan, -kInf, kInf},
      {"Linear", kNan, -kInf, kInf},
  };
  for (size_t a = 0; a < isa.count; ++a) {
    const Activation& activation = isa.activations[a];
    const auto* row = std::find_if(std::begin(kActivations), std::end(kActivations), [&](const auto& candidate) {
      return std::strcmp(candidate.name, activation.name) == 0;
    });
    const auto* edge = std::find_if(std::begin(edges), std::end(edges),
                                    [&](const Edge& e) { return std::strcmp(e.name, activation.name) == 0; });
    CHECK(edge != std::end(edges), "%s: no edge values given", activation.name);
    if (edge == std::end(edges) || row == std::end(kActivations)) continue;
    const float inputs[3] = {kNan, -kInf, kInf};
    const float wanted[3] = {edge->at_nan, edge->at_minus_infinity, edge->at_infinity};
    for (int k = 0; k < 3; ++k) {
      float x[16], slope[16], y[16];
      std::fill(x, x + 16, inputs[k]);
      std::fill(slope, slope + 16, 0.25f);
      activation.run(row->defaults, x, slope, y, 16);
      for (float got : y) {
        const bool same = std::isnan(wanted[k]) ? std::isnan(got) : got == wanted[k];
        CHECK(same, "%s on %s: f(%g) = %.9g instead of %.9g", activation.name, isa.isa, static_cast<double>(inputs[k]),
              static_cast<double>(got), static_cast<double>(wanted[k]));
      }
    }
  }
}

// What ScaledTimesDistribution and TimesNormalDistribution<false> promise of the error, at a factor that rounds nothing.
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
      worst = std::max(worst, error / (6e-8 + 0x1p-23 * std::fabs(from)));
      CHECK(from > -14 || y[i] == 0, "scaled Gelu on %s: f(%g) = %g", isa.isa, from, static_cast<double>(y[i]));
    }
  }
  std::printf("scaled Gelu on %s: %.2f of the error that is allowed\n", isa.isa, worst);
  CHECK(worst <= 1, "scaled Gelu on %s: %.2f times the error that is allowed", isa.isa, worst);
}

// TimesNormalDistribution<false> gives float results as well, whose error is relative.
void TestGeluOfRows(const IsaFunctions& isa) {
  if (isa.lanes == 16) return;
  double worst = 0;
  float x[16], y[16];
  size_t n = 0;
  // From -0.25 to -8, where the tail falls.
  for (uint32_t bits = 0xBE800000u; bits <= 0xC1000000u; bits += 13) {
    FromBits(bits, &x[n]);
    if (++n < 16) continue;
    n = 0;
    isa.scaled_gelu(1.0f, x, y, 16);
    for (size_t i = 0; i < 16; ++i) {
      const double from = static_cast<double>(x[i]);
      const double error = Error(0.5 * from * std::erfc(-from / std::sqrt(2.0)), y[i], from < -4);
      worst = std::max(worst, error / (5 + from * from / 2));
    }
  }
  std::printf("Gelu of rows on %s: %.2f of the error that is allowed\n", isa.isa, worst);
  CHECK(worst <= 1, "Gelu of rows on %s: %.2f times the error that is allowed", isa.isa, worst);
}

int Full(const IsaFunctions* isas, size_t isa_count, const char* name) {
  for (size_t a = 0; a < isas[0].count; ++a) {
    if (std::strcmp(isas[0].activations[a].name, name) != 0) continue;
    const auto* row = std::find_if(std::begin(kActivations), std::end(kActivations),
                                   [&](const auto& candidate) { return std::strcmp(candidate.name, name) == 0; });
    Comparison comparison(isas, isa_count, a);
    Sweep(comparison, row->defaults, 0, 1);
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

using Clock = std::chrono::steady_clock;

double Seconds(Clock::time_point since) { return std::chrono::duration<double>(Clock::now() - since).count(); }

// Seconds of one core clock cycle, by a chain of additions of one cycle each.
double SecondsPerCycle() {
  double best = kInfinity;
  for (int round = 0; round < 20; ++round) {
    constexpr int kAdditions = 1'000'000;
    uint64_t sum = 0;
    const auto start = Clock::now();
    for (int i = 0; i < kAdditions / 8; ++i) {
#if defined(__x86_64__)
      __asm__ volatile("add $1,%0\n add $1,%0\n add $1,%0\n add $1,%0\n add $1,%0\n add $1,%0\n add $1,%0\n add $1,%0"
                       : "+r"(sum));
#else
      __asm__ volatile(
          "add %0,%0,1\n add %0,%0,1\n add %0,%0,1\n add %0,%0,1\n add %0,%0,1\n add %0,%0,1\n add %0,%0,1\n add "
          "%0,%0,1"
          : "+r"(sum));
#endif
    }
    best = std::min(best, Seconds(start) / kAdditions);
  }
  return best;
}

void Bench(const IsaFunctions* isas, size_t isa_count) {
  alignas(64) float x[kChunk], slope[kChunk], y[kChunk];
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  for (size_t i = 0; i < kChunk; ++i) {
    x[i] = normal(random);
    slope[i] = 0.25f;
  }
  std::printf("%-20s", "per element");
  for (size_t k = 0; k < isa_count; ++k) std::printf("%12s ns  cycles", isas[k].isa);
  std::printf("\n");
  for (size_t a = 0; a < isas[0].count; ++a) {
    const char* name = isas[0].activations[a].name;
    const auto* row = std::find_if(std::begin(kActivations), std::end(kActivations),
                                   [&](const auto& candidate) { return std::strcmp(candidate.name, name) == 0; });
    std::printf("%-20s", name);
    for (size_t k = 0; k < isa_count; ++k) {
      double best = kInfinity;
      for (int round = 0; round < 60; ++round) {
        const auto start = Clock::now();
        for (int repeat = 0; repeat < 8; ++repeat) isas[k].activations[a].run(row->defaults, x, slope, y, kChunk);
        best = std::min(best, Seconds(start) / (8 * kChunk));
      }
      std::printf("%15.3f%8.3f", best * 1e9, best / SecondsPerCycle());
    }
    std::printf("\n");
  }
}

}  // namespace
}  // namespace normfuse::test

int main(int argc, char** argv) {
  using namespace normfuse::test;
  IsaFunctions isas[kMostIsas];
  const size_t isa_count = AvailableIsas(isas);
  if (argc == 2 && std::strcmp(argv[1], "--bench") == 0) {
    Bench(isas, isa_count);
    return 0;
  }
  if (argc == 3 && std::strcmp(argv[1], "--full") == 0) return Full(isas, isa_count, argv[2]);
  if (argc != 1) {
    std::fprintf(stderr, "usage: %s [--bench | --full NAME]\n", argv[0]);
    return 2;
  }
  for (size_t k = 0; k < isa_count; ++k) {
    TestTableIsComplete(isas[k]);
    TestEdges(isas[k]);
    TestScaledGelu(isas[k]);
    TestGeluOfRows(isas[k]);
  }
  TestAccuracy(isas, isa_count);
  return ExitCode();
}
