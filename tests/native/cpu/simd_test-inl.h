// The self-test of the vector layer: every operation of cpu/kernels/simd/simd.h against plain scalar code, lane by lane. Included
// by isa_functions.cc, once per instruction set.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <type_traits>

#include "check.h"
#include "cpu/kernels/simd/simd.h"
#include "guarded_page.h"
#include "scalar_conversions.h"

namespace normfuse::NORMFUSE_ISA {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Pairs, halves and signs that tell the operations apart.
constexpr float kValues[] = {0.0f,       -0.0f,       1.0f,       -1.0f,  0.5f,   -0.5f,   1.5f,    -1.5f,
                             2.5f,       -2.5f,       3.75f,      -7.25f, 100.0f, -100.0f, 1e-3f,   -1e-3f,
                             8388607.5f, -8388607.5f, 8388608.0f, 1e9f,   -1e9f,  1e-40f,  -1e-40f, 3.4e38f,
                             -3.4e38f,   1e20f,       -1e-20f,    kInf,   -kInf,  kNan,    127.5f,  -128.5f};
constexpr size_t kValueCount = sizeof(kValues) / sizeof(kValues[0]);

bool SameFloat(float a, float b) { return (std::isnan(a) && std::isnan(b)) || a == b; }

uint32_t Bits(float f) {
  uint32_t bits;
  std::memcpy(&bits, &f, sizeof(bits));
  return bits;
}

// One operation on all pairs of values; lanes hold different pairs, so that a swapped lane shows.
template <typename VectorOperation, typename ScalarOperation>
void TestPairs(const char* name, VectorOperation vector, ScalarOperation scalar) {
  for (size_t first = 0; first < kValueCount * kValueCount; first += kLanes) {
    float a[kLanes], b[kLanes], out[kLanes];
    for (size_t i = 0; i < kLanes; ++i) {
      a[i] = kValues[(first + i) / kValueCount % kValueCount];
      b[i] = kValues[(first + i) % kValueCount];
    }
    Store(out, vector(Load(a), Load(b)));
    for (size_t i = 0; i < kLanes; ++i) {
      CHECK(SameFloat(out[i], scalar(a[i], b[i])), "%s(%g, %g) = %g", name, static_cast<double>(a[i]),
            static_cast<double>(b[i]), static_cast<double>(out[i]));
    }
  }
}

void StoreBits(I v, int32_t* out) { std::memcpy(out, &v, sizeof(v)); }

V FromMask(M m) { return Select(m, Set(1.0f), Set(0.0f)); }

// A vector operation of a and b, and what it gives of floats.
#define NORMFUSE_COMPARE(vector, scalar)                                          \
  TestPairs(                                                                      \
      #vector, []([[maybe_unused]] V a, [[maybe_unused]] V b) { return vector; }, \
      []([[maybe_unused]] float a, [[maybe_unused]] float b) -> float { return scalar; })

void TestFloatOperations() {
  NORMFUSE_COMPARE(a + b, a + b);
  NORMFUSE_COMPARE(a - b, a - b);
  NORMFUSE_COMPARE(a * b, a * b);
  NORMFUSE_COMPARE(a / b, a / b);
  NORMFUSE_COMPARE(Min(a, b), a < b ? a : b);
  NORMFUSE_COMPARE(Max(a, b), a > b ? a : b);
  NORMFUSE_COMPARE(CopySign(Abs(a), b), std::copysign(std::fabs(a), b));
  NORMFUSE_COMPARE(Abs(a), std::fabs(a));
  NORMFUSE_COMPARE(Neg(a), -a);
  NORMFUSE_COMPARE(RoundEven(a), std::nearbyint(a));
  NORMFUSE_COMPARE(FromMask(Lt(a, b)), a < b);
  NORMFUSE_COMPARE(FromMask(Gt(a, b)), a > b);
  NORMFUSE_COMPARE(FromMask(Eq(a, b)), a == b);
  NORMFUSE_COMPARE(FromMask(IsNan(a)), std::isnan(a));
  NORMFUSE_COMPARE(FromMask(Lt(a, b) & Gt(a, Set(0.0f))), a < b && a > 0);
  NORMFUSE_COMPARE(Select(Lt(a, b), a, b), a < b ? a : b);
  NORMFUSE_COMPARE(ExactFma(a, b, Set(-0.75f)),
                   static_cast<float>(static_cast<double>(a) * static_cast<double>(b) - 0.75));
  NORMFUSE_COMPARE(Fma(a, b, Set(0.0f)) + Set(0.0f), a * b + 0.0f);
  NORMFUSE_COMPARE(NegFma(a, b, Set(0.0f)) + Set(0.0f), 0.0f - a * b);
}

void TestScale() {
  for (int n = -252; n <= 252; ++n) {
    for (float a : {1.0f, -1.25f, 1.99999988f, 0x1p-100f, 0x1p100f, 0.0f, kInf, kNan}) {
      float out[kLanes];
      Store(out, ScaleByPowerOfTwo(Set(a), Set(static_cast<float>(n))));
      for (float got : out) {
        CHECK(SameFloat(got, std::ldexp(a, n)), "%g * 2^%d = %g", static_cast<double>(a), n, static_cast<double>(got));
      }
    }
  }
}

void TestMasksAndReductions() {
  for (size_t lane = 0; lane < kLanes; ++lane) {
    float one[kLanes] = {};
    one[lane] = 3.0f;
    const M m = Gt(Load(one), Set(0.0f));
    CHECK(Any(m) && !Any(m & Lt(Load(one), Set(0.0f))), "lane %d", static_cast<int>(lane));
    CHECK(ReduceSum(Load(one)) == 3.0f && ReduceMax(Load(one)) == 3.0f, "lane %d", static_cast<int>(lane));
    CHECK(ReduceMin(Neg(Load(one))) == -3.0f, "lane %d", static_cast<int>(lane));
  }
  const float lanes = static_cast<float>(kLanes);
  CHECK(ReduceSum(ToFloat(Iota())) == lanes * (lanes - 1) / 2, "sum of lane numbers");
  const Floats each = SumsOfEach(ToFloat(Iota()), Set(2.0f), Set(-0.5f), Set(0.0f));
  CHECK(each[0] == lanes * (lanes - 1) / 2 && each[1] == 2 * lanes, "%g, %g", static_cast<double>(each[0]),
        static_cast<double>(each[1]));
  CHECK(each[2] == -lanes / 2 && each[3] == 0.0f, "%g, %g", static_cast<double>(each[2]), static_cast<double>(each[3]));
  Doubles roots = {4.0, 2.0, 0.0, -1.0};
  TakeRoots(&roots);
  CHECK(roots[0] == 2.0 && roots[1] == std::sqrt(2.0) && roots[2] == 0.0 && std::isnan(roots[3]), "%g, %g, %g, %g",
        roots[0], roots[1], roots[2], roots[3]);
}

#if NORMFUSE_ISA_NUMBER == 1
// What only this instruction set has.
void CheckAgainst(const char* name, V (*got)(V), float (*wanted)(float)) {
  for (float x : {0.0f, -0.0f, 0.25f, -0.25f, 0.5f, -0.75f, 1.0f, -1.0f, 7.9f, -7.9f, 8.0f, -8.0f, 3e38f, -3e38f, kInf,
                  -kInf, kNan}) {
    float out[kLanes];
    Store(out, got(Set(x)));
    for (float o : out) {
      CHECK(SameFloat(o, wanted(x)), "%s(%g) = %g", name, static_cast<double>(x), static_cast<double>(o));
    }
  }
}

void TestMagnitudes() {
  CheckAgainst(
      "ClampMagnitude", [](V x) { return ClampMagnitude(x, Set(8.0f)); },
      [](float x) { return std::isnan(x) ? 8.0f : std::copysign(std::fmin(std::fabs(x), 8.0f), x); });
  CheckAgainst(
      "NegativeMagnitude", [](V x) { return NegativeMagnitude(x, Set(8.0f)); },
      [](float x) { return std::isnan(x) ? -8.0f : -std::fmin(std::fabs(x), 8.0f); });
  CheckAgainst(
      "PositivePart", [](V x) { return PositivePart(x); },
      [](float x) { return x == -kInf ? kNan
                           : x < 0    ? 0.0f
                                      : x; });
  CheckAgainst(
      "AddDown", [](V x) { return AddDown(NegativeMagnitude(x, Set(8.0f)), Set(0x1.8p22f)); },
      [](float x) {
        const float a = std::isnan(x) ? -8.0f : -std::fmin(std::fabs(x), 8.0f);
        return 0x1.8p22f + std::floor(a * 2) / 2;
      });
  CheckAgainst(
      "RestOfHalves", [](V x) { return RestOfHalves(NegativeMagnitude(x, Set(8.0f))); },
      [](float x) {
        const float a = std::isnan(x) ? -8.0f : -std::fmin(std::fabs(x), 8.0f);
        const float rest = a - std::floor(a * 2) / 2;
        return rest == 0 ? 0.0f : rest;
      });
}

template <typename T>
void TestStoreFour() {
  constexpr float kValues[] = {0.0f, 0.5f,  1.5f,  2.5f,   -0.5f, -1.5f, 126.5f, 127.5f, -128.5f, 254.5f,
                               1e9f, -1e9f, 3e38f, -3e38f, kInf,  -kInf, kNan,   40.25f, -41.75f};
  constexpr int kCount = static_cast<int>(sizeof(kValues) / sizeof(kValues[0]));
  constexpr int kLowest = std::numeric_limits<T>::min(), kHighest = std::numeric_limits<T>::max();
  float in[4 * kLanes];
  for (int i = 0; i < static_cast<int>(4 * kLanes); ++i) in[i] = kValues[i * 7 % kCount];
  for (int zero : {0, 3, -7, kLowest, kHighest}) {
    T out[4 * kLanes];
    const I zeros = SetI(static_cast<int32_t>((static_cast<uint32_t>(zero) & 0xffff) * 0x10001));
    StoreFour(out, Load(in), Load(in + kLanes), Load(in + 2 * kLanes), Load(in + 3 * kLanes), zeros);
    for (size_t i = 0; i < 4 * kLanes; ++i) {
      const double moved = std::nearbyint(static_cast<double>(in[i])) + zero;
      const double wanted = std::isnan(in[i]) ? kLowest : std::fmin(std::fmax(moved, kLowest), kHighest);
      CHECK(out[i] == wanted, "%g + %d = %d", static_cast<double>(in[i]), zero, static_cast<int>(out[i]));
    }
  }
}
#endif

template <class Index>
void TestLookup(Index first) {
  float table[16], out[kLanes];
  for (size_t i = 0; i < 16; ++i) table[i] = static_cast<float>(i) + 0.5f;
  for (int32_t shift = -40; shift < 100; ++shift) {
    Store(out, Lookup(table, first + SetI(shift)));
    for (size_t i = 0; i < kLanes; ++i) {
      const size_t index = (static_cast<size_t>(shift + 64) + i) % 16;
      CHECK(out[i] == table[index], "Lookup(%d) = %g", shift, static_cast<double>(out[i]));
    }
  }
}

void TestIntegers() {
  const int32_t values[] = {0, 1, -1, 7, -7, 65535, -65536, INT32_MAX, INT32_MIN, 123456789};
  for (int32_t a : values) {
    for (int32_t b : values) {
      const uint32_t ua = static_cast<uint32_t>(a), ub = static_cast<uint32_t>(b);
      const auto check = [&](const char* name, I got, uint32_t wanted) {
        int32_t out[kLanes];
        StoreBits(got, out);
        for (int32_t o : out) CHECK(static_cast<uint32_t>(o) == wanted, "%s(%d, %d) = %d", name, a, b, o);
      };
      const I x = SetI(a), y = SetI(b);
      check("+", x + y, ua + ub);
      check("^", x ^ y, ua ^ ub);
      check("ShiftLeft", ShiftLeft<5>(x), ua << 5);
      check("GtI", ToInt(FromMask(GtI(x, y))), a > b);
      check("BitCast", BitCastToInt(BitCastToFloat(x)), ua);
      float out[kLanes];
      Store(out, ToFloatUnsigned(x));
      for (float o : out) CHECK(o == static_cast<float>(ua), "ToFloatUnsigned(%u) = %g", ua, static_cast<double>(o));
      Store(out, ToFloat(x));
      for (float o : out) CHECK(o == static_cast<float>(a), "ToFloat(%d) = %g", a, static_cast<double>(o));
    }
  }
  for (float f : kValues) {
    if (!(std::fabs(f) < 2147483648.0f)) continue;
    int32_t out[kLanes];
    StoreBits(ToInt(Set(f)), out);
    for (int32_t o : out) {
      CHECK(o == static_cast<int32_t>(std::nearbyint(f)), "ToInt(%g) = %d", static_cast<double>(f), o);
    }
  }
  if constexpr (kHasTables) TestLookup(Iota());
}

// All 16-bit patterns to float, and for each float16 or bfloat16 the floats around it and around the ties beside it.
template <typename Storage>
void TestSixteenBitFloats(const char* name) {
  const auto narrow = [](float f) {
    return std::is_same_v<Storage, Half> ? test::NarrowToHalf(f) : test::NarrowToBfloat16(f);
  };
  for (uint32_t first = 0; first < 0x10000; first += kLanes) {
    Storage in[kLanes], out[kLanes];
    float wide[kLanes];
    for (uint32_t i = 0; i < kLanes; ++i) in[i].bits = static_cast<uint16_t>(first + i);
    Store(wide, LoadAs(in));
    for (size_t i = 0; i < kLanes; ++i) {
      const double exact =
          std::is_same_v<Storage, Half> ? test::HalfValue(in[i].bits) : test::Bfloat16Value(in[i].bits);
      const bool same = std::isnan(exact) ? std::isnan(wide[i]) : static_cast<double>(wide[i]) == exact;
      CHECK(same && std::signbit(wide[i]) == ((in[i].bits & 0x8000) != 0), "%s 0x%04x to %g", name, in[i].bits,
            static_cast<double>(wide[i]));
    }
    const int shift = std::is_same_v<Storage, Half> ? 13 : 16;
    // 0, the tie above, and the float before and after each; denormal float16 have their ties elsewhere, covered by the
    // sweep below.
    for (int32_t offset : {0, 1, -1, (1 << (shift - 1)) - 1, 1 << (shift - 1), (1 << (shift - 1)) + 1}) {
      float moved[kLanes];
      for (size_t i = 0; i < kLanes; ++i) {
        const uint32_t bits = Bits(wide[i]) + static_cast<uint32_t>(offset);
        std::memcpy(&moved[i], &bits, sizeof(bits));
      }
      StoreAs(out, Load(moved));
      for (size_t i = 0; i < kLanes; ++i) {
        CHECK(out[i].bits == narrow(moved[i]), "%.9g (0x%08x) to %s 0x%04x instead of 0x%04x",
              static_cast<double>(moved[i]), Bits(moved[i]), name, out[i].bits, narrow(moved[i]));
      }
    }
  }
  for (uint64_t bits = 0; bits <= 0xFFFFFFFFull; bits += 4099 * kLanes) {
    float in[kLanes];
    Storage out[kLanes];
    for (size_t i = 0; i < kLanes; ++i) {
      const uint32_t pattern = static_cast<uint32_t>(bits + i * 4099);
      std::memcpy(&in[i], &pattern, sizeof(pattern));
    }
    StoreAs(out, Load(in));
    for (size_t i = 0; i < kLanes; ++i) {
      CHECK(out[i].bits == narrow(in[i]), "%.9g (0x%08x) to %s 0x%04x instead of 0x%04x", static_cast<double>(in[i]),
            Bits(in[i]), name, out[i].bits, narrow(in[i]));
    }
  }
}

// Whole vectors of every value of the type (8 and 16 bits) or of a sample, both as integers and as floats.
template <typename T>
void TestIntegerLoads(const char* name) {
  const uint64_t count = sizeof(T) <= 2 ? 1ull << (8 * sizeof(T)) : 1ull << 16;
  for (uint64_t first = 0; first < count; first += kLanes) {
    T in[kLanes];
    for (size_t i = 0; i < kLanes; ++i) {
      in[i] = static_cast<T>(sizeof(T) <= 2 ? first + i : (first + i) * 65537 * 65521);
    }
    int32_t integers[kLanes];
    float floats[kLanes];
    StoreBits(LoadAs(in), integers);
    Store(floats, LoadAsFloat(in));
    for (size_t i = 0; i < kLanes; ++i) {
      CHECK(integers[i] == static_cast<int32_t>(in[i]), "%s lane %d", name, static_cast<int>(i));
      CHECK(floats[i] == static_cast<float>(in[i]), "%s lane %d as float", name, static_cast<int>(i));
    }
  }
}

template <typename T>
void TestIntegerStores(const char* name) {
  const double low = static_cast<double>(std::numeric_limits<T>::min());
  const double high = static_cast<double>(std::numeric_limits<T>::max());
  const auto wanted = [&](double value) {
    if (!(value >= low)) return std::numeric_limits<T>::min();  // NaN too
    return value >= high ? std::numeric_limits<T>::max() : static_cast<T>(std::nearbyint(value));
  };
  const auto check = [&](const float* in) {
    T out[kLanes];
    StoreAs(out, Load(in));
    for (size_t i = 0; i < kLanes; ++i) {
      CHECK(out[i] == wanted(static_cast<double>(in[i])), "%.9g to %s %lld", static_cast<double>(in[i]), name,
            static_cast<long long>(out[i]));
    }
  };
  // Halves through the whole of a 16-bit range and beyond, then the special values, then ties at the ends.
  for (int first = -280000; first < 280000; first += static_cast<int>(kLanes)) {
    float in[kLanes];
    for (size_t i = 0; i < kLanes; ++i) in[i] = static_cast<float>(first + static_cast<int>(i)) * 0.25f;
    check(in);
  }
  for (float value : kValues) {
    float in[kLanes];
    for (size_t i = 0; i < kLanes; ++i) in[i] = i % 2 == 0 ? value : -value;
    check(in);
  }
  for (double end : {low, high}) {
    float around[3] = {static_cast<float>(end), 0, 0};
    around[1] = std::nextafter(around[0], kInf);
    around[2] = std::nextafter(around[0], -kInf);
    for (float value : around) {
      float in[kLanes];
      for (float& lane : in) lane = value;
      check(in);
    }
  }
  if constexpr (sizeof(T) == 1) {
    for (int32_t value : {INT32_MIN, INT32_MAX, -70000, 70000, -129, 128, 255, 256, -1, 0}) {
      T out[kLanes];
      StoreAs(out, SetI(value));
      for (T o : out) CHECK(o == wanted(value), "int32 %d to %s %lld", value, name, static_cast<long long>(o));
    }
  }
}

// A tail of `n` elements of `from`, read as what there is of them.
template <typename T>
void TestPartialLoad(const char* name, const T* from, size_t n) {
  float loaded[kLanes], whole[kLanes];
  Store(loaded, LoadAsFloatPartial(from, n));
  Store(whole, LoadAsFloat(from));
  for (size_t i = 0; i < kLanes; ++i) {
    CHECK(loaded[i] == (i < n ? whole[i] : 0.0f), "%s: %d elements, lane %d", name, static_cast<int>(n),
          static_cast<int>(i));
  }
}

// Bytes that hold small numbers of any type.
template <typename T, size_t kCount>
void FillBytes(T (&memory)[kCount]) {
  unsigned char* bytes = reinterpret_cast<unsigned char*>(memory);
  for (size_t i = 0; i < sizeof(memory); ++i) bytes[i] = static_cast<unsigned char>(i * 37 + 11) & 0x3F;
}

constexpr size_t kMargin = 16;

// Every tail length at every misalignment: the right elements.
template <typename T>
void TestPartialLoads(const char* name) {
  T memory[kMargin + 2 * kLanes + kMargin];
  FillBytes(memory);
  for (size_t offset = 0; offset < kLanes; ++offset) {
    for (size_t n = 0; n <= kLanes; ++n) TestPartialLoad(name, memory + kMargin + offset, n);
  }
}

// The same, and of stores not a byte more.
template <typename T>
void TestPartial(const char* name) {
  TestPartialLoads<T>(name);
  T memory[kMargin + 2 * kLanes + kMargin], out[kMargin + 2 * kLanes + kMargin];
  FillBytes(memory);
  for (size_t offset = 0; offset < kLanes; ++offset) {
    for (size_t n = 0; n <= kLanes; ++n) {
      const T* from = memory + kMargin + offset;
      T* to = out + kMargin + offset;
      const auto check = [&](const T* wanted, const char* what) {
        CHECK(std::memcmp(to, wanted, n * sizeof(T)) == 0, "%s: stored %d %s", name, static_cast<int>(n), what);
        const unsigned char* written = reinterpret_cast<const unsigned char*>(out);
        for (size_t i = 0; i < sizeof(out); ++i) {
          const bool inside = i >= (kMargin + offset) * sizeof(T) && i < (kMargin + offset + n) * sizeof(T);
          CHECK(inside || written[i] == 0xA5, "%s: storing %d %s wrote beyond them", name, static_cast<int>(n), what);
        }
      };
      std::memset(out, 0xA5, sizeof(out));
      StoreAsPartial(to, LoadAsFloat(from), n);
      T converted[kLanes];
      StoreAs(converted, LoadAsFloat(from));
      check(converted, "elements");
      if constexpr (std::is_integral_v<T> && sizeof(T) == 1) {
        std::memset(out, 0xA5, sizeof(out));
        StoreAsPartial(to, LoadAsPartial(from, n), n);
        check(from, "integers");
      }
    }
  }
}

// Tails that end where memory ends: reading or writing one element more would stop the program.
template <typename T>
void TestEndOfMemory() {
  for (size_t n = 0; n <= kLanes; ++n) {
    T* p = reinterpret_cast<T*>(test::EndOfMemory()) - n;
    const V v = LoadAsFloatPartial(p, n);
    if constexpr (sizeof(T) < sizeof(float) || !std::is_integral_v<T>) StoreAsPartial(p, v, n);
    if constexpr (std::is_integral_v<T> && sizeof(T) == 1) StoreAsPartial(p, LoadAsPartial(p, n), n);
  }
}

template <class Vector>
void TestStreamStore() {
  alignas(64) float out[kLanes];
  float in[kLanes];
  for (size_t i = 0; i < kLanes; ++i) in[i] = static_cast<float>(i) - 1.5f;
  StreamStore(out, Vector(Load(in)));
  CHECK(std::memcmp(in, out, sizeof(in)) == 0, "StreamStore");
  alignas(64) Half halves[2][kLanes];
  StreamStore(halves[0], Vector(Load(in)));
  StoreAs(halves[1], Load(in));
  CHECK(std::memcmp(halves[0], halves[1], sizeof(halves[0])) == 0, "StreamStore of Half");
}

// All that is read and stored of a type; integers of 32 bits are only read.
template <typename T>
void TestElements(const char* name) {
  constexpr bool kStored = sizeof(T) < sizeof(float) || !std::is_integral_v<T>;
  if constexpr (std::is_integral_v<T>) TestIntegerLoads<T>(name);
  if constexpr (std::is_integral_v<T> && kStored) TestIntegerStores<T>(name);
  if constexpr (kStored) {
    TestPartial<T>(name);
  } else {
    TestPartialLoads<T>(name);
  }
  TestEndOfMemory<T>();
}

void TestSimd() {
  TestFloatOperations();
  TestScale();
  TestMasksAndReductions();
#if NORMFUSE_ISA_NUMBER == 1
  TestMagnitudes();
  TestStoreFour<int8_t>();
  TestStoreFour<uint8_t>();
#endif
  TestIntegers();
  TestSixteenBitFloats<Half>("float16");
  TestSixteenBitFloats<Bfloat16>("bfloat16");
  TestElements<float>("float");
  TestElements<Half>("float16");
  TestElements<Bfloat16>("bfloat16");
  TestElements<int8_t>("int8");
  TestElements<uint8_t>("uint8");
  TestElements<int16_t>("int16");
  TestElements<uint16_t>("uint16");
  TestElements<int32_t>("int32");
  TestElements<uint32_t>("uint32");
  if constexpr (kStreams) TestStreamStore<V>();
}

}  // namespace
}  // namespace normfuse::NORMFUSE_ISA
