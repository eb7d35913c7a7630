// What happens at the edges that tests/operators/test_edges.py does not reach: offsets, long rows, huge and tiny values,
// masks, factors beyond float32, memory and threads.
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <new>
#include <string>

#include "chain_harness.h"
#include "test_cases.h"
#include "worse.h"

namespace {
std::atomic<long> allocations{0};
}  // namespace

// Counts what the whole program allocates. Not inlined, or compilers see malloc meet delete.
__attribute__((noinline)) void* operator new(size_t size) {
  ++allocations;
  void* memory = std::malloc(size);
  if (memory == nullptr) std::abort();
  return memory;
}
__attribute__((noinline)) void operator delete(void* memory) noexcept { std::free(memory); }
__attribute__((noinline)) void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace normfuse::test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
const double kNan = std::nan("");

Case Normalize(std::vector<int64_t> dims, const std::vector<double>& values, std::vector<int64_t> axes) {
  Case c;
  c.parts.name = "edge";
  c.parts.x.type = DataType::kFloat32;
  c.parts.x.tensor = c.Add(MakeFloats(std::move(dims), values), false);
  c.parts.normalization.axes = std::move(axes);
  c.parts.y_type = DataType::kFloat32;
  c.output_types = {DataType::kFloat32};
  return c;
}

// Runs `c` and hands over the result; the output is empty when the run failed.
Result Run(const Case& c, ArrayContext* context) {
  std::unique_ptr<Executable> executable;
  const Result compiled = CompileForCpu(c.chain(), &executable);
  if (!compiled.ok()) return compiled;
  c.FillContext(context);
  return executable->Run(*context);
}

std::vector<double> Y(const Case& c, int threads = 1) {
  ArrayContext context(threads);
  const Result result = Run(c, &context);
  EXPECT(result.ok(), result.message());
  std::vector<double> values;
  for (int64_t i = 0; result.ok() && i < context.output(0).Count(); ++i) values.push_back(context.output(0).At(i));
  return values;
}

std::vector<double> Normals(size_t count, double mean, uint32_t seed = 3) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal(mean, 1.0);
  std::vector<double> values(count);
  for (double& value : values) value = static_cast<float>(normal(random));
  return values;
}

// 4 units in the last place of max(|scale * n|, |bias|, 1). An onset: the first values, near which is summed first, lie far from
// the others, and of three rows or columns in the middle one.
TEST(LargeOffsetsKeepFullAccuracy) {
  OnEveryIsa([](const std::string& isa) {
    for (const double mean : {0.0, 1.0, -100.0, 1e4, 1e6}) {
      for (const int64_t n : {2, 7, 31, 64, 768, 5000, 100000}) {
        for (const bool along_rows : {true, false}) {
          for (const bool onset : {false, true}) {
            std::vector<double> values = Normals(static_cast<size_t>(3 * n), mean, 7);
            for (int64_t i = 0; onset && i < std::min<int64_t>(n / 2, 64); ++i) {
              values[static_cast<size_t>(along_rows ? n + i : 3 * i + 1)] -= mean;
            }
            Case c = along_rows ? Normalize({3, n}, values, {1}) : Normalize({n, 3}, values, {0});
            const std::vector<double> y = Y(c);
            const Expected expected = Compute(c);
            double worst = 0;
            for (size_t i = 0; i < y.size(); ++i) {
              const double unit =
                  std::ldexp(1.0, std::max(0, std::ilogb(std::max(1.0, std::fabs(expected.a[i])))) - 23);
              worst = Worse(worst, std::fabs(y[i] - expected.a[i]) / unit);
            }
            EXPECT(worst <= 4, isa + " mean " + std::to_string(mean) + " n " + std::to_string(n) +
                                   (along_rows ? " rows" : " columns") + (onset ? " onset" : "") + ": " +
                                   std::to_string(worst) + " units");
          }
        }
      }
    }
  });
}

TEST(LongRowsKeepFullAccuracy) {
  OnEveryIsa([](const std::string& isa) {
    constexpr size_t kCount = 10'000'000;
    std::vector<double> values = Normals(kCount, 1e4, 11);
    std::fill_n(values.begin(), 64, 0.0);  // an onset: summed again
    Case c = Normalize({static_cast<int64_t>(kCount)}, values, {0});
    for (const int threads : {1, 2}) {
      const std::vector<double> y = Y(c, threads);
      double mean = 0;
      double square = 0;
      const Tensor& x = c.Of(c.parts.x.tensor);
      for (size_t i = 0; i < kCount; ++i) mean += x.At(static_cast<int64_t>(i)) / kCount;
      for (size_t i = 0; i < kCount; ++i) square += std::pow(x.At(static_cast<int64_t>(i)) - mean, 2) / kCount;
      double worst = 0;
      for (size_t i = 0; i < kCount; ++i) {
        const double want = (x.At(static_cast<int64_t>(i)) - mean) / std::sqrt(square + 1e-5f);
        worst = Worse(worst, std::fabs(y[i] - want) / std::max(1.0, std::fabs(want)));
      }
      EXPECT(worst <= 4 * 0x1p-23, isa + " threads " + std::to_string(threads) + ": " + std::to_string(worst * 0x1p23));
    }
  });
}

TEST(HugeAndTinyValues) {
  OnEveryIsa([](const std::string& isa) {
    for (const double size : {1e-38, 1e-30, 1e-22, 1e20, 1e30, 1e36, 1e38}) {
      for (const int64_t axis : {0, 1}) {
        for (const double mean : {0.0, 1e6, -1.0}) {  // in deviations; negative: not subtracted
          if (std::fabs(mean) * size > 3e37) continue;
          std::vector<double> values = Normals(600, mean);
          for (double& value : values) value = static_cast<float>(value * size);
          Case c = axis == 1 ? Normalize({2, 300}, values, {1}) : Normalize({300, 2}, values, {0});
          c.parts.normalization.epsilon = 0.0f;
          c.parts.normalization.use_mean = mean >= 0;
          const std::vector<double> y = Y(c);
          const Expected expected = Compute(c);
          double worst = 0;
          for (size_t i = 0; i < y.size(); ++i) worst = Worse(worst, std::fabs(y[i] - expected.a[i]));
          EXPECT(worst < 1e-5, isa + " size " + std::to_string(std::log10(size)) + " axis " + std::to_string(axis) +
                                   " mean " + std::to_string(mean) + ": " + std::to_string(worst));
        }
      }
    }
  });
}

// Six rows of n values, one of which has a large one, of which a mask of shape `mask` hides every third.
struct MaskedScores {
  int64_t n;
  std::vector<int64_t> mask;
  float fill;
};

Case MaskedSoftmax(const MaskedScores& scores, Method method, int64_t axis) {
  std::vector<double> values = Normals(static_cast<size_t>(6 * scores.n), 0);
  values[static_cast<size_t>(2 * scores.n + 1)] = 100;
  Case c = Normalize({6, scores.n}, values, {axis});
  c.parts.normalization.method = method;
  c.parts.normalization.zero_for_nan = method == Method::kSoftmax && scores.n != 5;
  Tensor mask = MakeTensor(DataType::kBool, scores.mask);
  for (int64_t i = 0; i < mask.Count(); i += 3) mask.Set(i, 1);
  Operand hidden;
  hidden.type = DataType::kBool;
  hidden.name = "mask";
  hidden.tensor = c.Add(std::move(mask), false);
  c.parts.before = {Mask(hidden, /*shows=*/false, scores.fill)};
  return c;
}

void CheckMaskedSoftmaxes(const MaskedScores& scores, const std::string& isa) {
  const std::string label = isa + " n " + std::to_string(scores.n) + " mask of " + std::to_string(scores.mask.size()) +
                            " fill " + std::to_string(scores.fill);
  for (const int64_t axis : {0, 1}) {
    const std::string along = label + " axis " + std::to_string(axis);
    RunAndCompare(MaskedSoftmax(scores, Method::kSoftmax, axis), 1, along);
    RunAndCompare(MaskedSoftmax(scores, Method::kLogSoftmax, axis), 1, along + " logarithm");
  }
}

// What is hidden has no part in a softmax, wherever rows share the mask, and beside values of any size. Groups of which
// everything is hidden have no result.
TEST(MasksHideFromASoftmax) {
  OnEveryIsa([](const std::string& isa) {
    for (const int64_t n : {5, 300, 1500}) {
      for (const float fill : {-kInfinity, -1e4f, -2.0f}) {
        CheckMaskedSoftmaxes({n, /*mask=*/{6, n}, fill}, isa);
        CheckMaskedSoftmaxes({n, /*mask=*/{n}, fill}, isa);
        CheckMaskedSoftmaxes({n, /*mask=*/{6, 1}, fill}, isa);
      }
    }
  });
}

TEST(SoftmaxesOfNothingFinite) {
  OnEveryIsa([](const std::string& isa) {
    for (const int64_t n : {5, 300, 9000}) {
      for (const int64_t axis : {0, 1}) {
        for (const bool zero_for_nan : {false, true}) {
          std::vector<double> values = Normals(static_cast<size_t>(4 * n), 0);
          for (int64_t i = 0; i < n; ++i) values[static_cast<size_t>(axis == 1 ? n + i : 4 * i + 1)] = -kInfinity;
          Case c = Normalize(axis == 1 ? std::vector<int64_t>{4, n} : std::vector<int64_t>{n, 4}, values, {axis});
          c.parts.normalization.method = Method::kSoftmax;
          c.parts.normalization.zero_for_nan = zero_for_nan;
          RunAndCompare(c, 1, isa + " n " + std::to_string(n) + " axis " + std::to_string(axis));
        }
      }
    }
  });
}

// A sum on the way, and the mean, of which nobody reads Y.
TEST(YMayBeLeftOut) {
  OnEveryIsa([](const std::string& isa) {
    for (const Method method : {Method::kStandard, Method::kSoftmax}) {
      for (const int64_t n : {40, 9000, 70000}) {
        for (const int64_t axis : {0, 1}) {
          const auto dims = axis == 1 ? std::vector<int64_t>{2, n} : std::vector<int64_t>{n, 2};
          std::vector<double> values = Normals(static_cast<size_t>(2 * n), 1);
          if (n == 40) values[0] = 1e30;  // of a row that would be normalised in double
          Case c = Normalize(dims, values, {axis});
          c.parts.residual.type = DataType::kFloat32;
          c.parts.residual.tensor = c.Add(MakeFloats(dims, Normals(static_cast<size_t>(2 * n), 2)), false);
          c.parts.normalization.method = method;
          c.parts.sum_type = DataType::kFloat32;
          c.parts.sum_output = 0;
          if (method == Method::kStandard) {
            c.parts.normalization.mean_output = 1;
            c.output_types.push_back(DataType::kFloat32);
          }
          Chain chain = c.chain();
          chain.store.output = kNoOutput;
          c.steps = chain;
          for (const int threads : {1, 3}) {
            RunAndCompare(c, threads, isa + " n " + std::to_string(n) + " axis " + std::to_string(axis));
          }
        }
      }
    }
  });
}

TEST(ZeroKeepsItsSignWithoutANormalisation) {
  OnEveryIsa([](const std::string& isa) {
    std::vector<double> values(37, -0.0);
    Case c = Normalize({37}, values, {0});
    c.parts.normalizes = false;
    for (double y : Y(c)) {
      EXPECT(y == 0 && std::signbit(y), isa);
      if (!std::signbit(y)) break;
    }
  });
}

// An activation of [3, 1029] with a gate of these dimensions: the bits of the activation alone, times the gate.
void CompareGate(const std::string& isa, Activation kind, const std::vector<int64_t>& dims) {
  constexpr int64_t kColumns = 1029;
  const ActivationSpec& spec = kActivations[static_cast<int>(kind)];
  Case c = Normalize({3, kColumns}, Normals(3 * kColumns, 0), {});
  c.parts.normalizes = false;
  c.parts.activation.kind = kind;
  std::copy_n(spec.defaults, kMaxActivationParams, c.parts.activation.params);
  const std::vector<double> alone = Y(c);
  const int64_t count = MakeTensor(DataType::kFloat32, dims).Count();
  const std::vector<double> gate = Normals(count, 1);
  Operand operand;
  operand.name = "operand";
  operand.type = DataType::kFloat32;
  operand.tensor = c.Add(MakeFloats(dims, gate), false);
  c.parts.behind.push_back(Mul(operand));
  const std::vector<double> gated = Y(c);
  const bool by_row = dims.size() == 2 && dims[1] == 1;
  for (size_t i = 0; i < gated.size(); ++i) {
    const size_t at = by_row ? i / static_cast<size_t>(kColumns) : i % static_cast<size_t>(count);
    const float want = static_cast<float>(alone[i]) * static_cast<float>(gate[at]);
    EXPECT(static_cast<float>(gated[i]) == want, isa + " " + spec.name + " element " + std::to_string(i) + " is " +
                                                     std::to_string(gated[i]) + " instead of " + std::to_string(want));
  }
}

// Whether it is done by the activation's kernel or behind it.
TEST(AGateIsAProduct) {
  OnEveryIsa([](const std::string& isa) {
    for (int kind = 0; kind < kActivationCount; ++kind) {
      if (kActivations[kind].has_slope) continue;
      for (const std::vector<int64_t>& dims : {std::vector<int64_t>{3, 1029}, {1029}, {3, 1}, {}}) {
        CompareGate(isa, static_cast<Activation>(kind), dims);
      }
    }
  });
}

// With a negative y_scale as well, and behind a normalisation.
TEST(NanBecomesTheLowestValue) {
  OnEveryIsa([](const std::string& isa) {
    for (const double y_scale : {0.5, -0.5, 1e-42, -1e-42}) {
      for (const bool normalizes : {false, true}) {
        for (const int64_t axis : {0, 1}) {
          for (const bool affine : {false, true}) {
            for (const DataType type : {DataType::kInt8, DataType::kUint8, DataType::kInt16}) {
              std::vector<double> values = Normals(40 * 40, 0);
              values[43] = kNan;
              Case c = Normalize({40, 40}, values, {axis});
              c.parts.normalizes = normalizes;
              if (type == DataType::kUint8) c.parts.activation.kind = Activation::kGelu;
              if (affine) {
                c.parts.scale.type = DataType::kFloat32;
                c.parts.scale.tensor = c.Add(MakeFloats({40}, Normals(40, 1)), true);
              }
              c.parts.y_type = type;
              c.output_types = {type};
              c.parts.y_quantization.scale = c.Add(MakeFloats({}, {y_scale}), true);
              RunAndCompare(c, 1, isa + " y_scale " + std::to_string(y_scale) + " axis " + std::to_string(axis));
            }
          }
        }
      }
    }
  });
}

// The product of two factors may leave the range of float32 where what it is multiplied with brings it back.
TEST(FactorsMayBeBeyondFloat) {
  OnEveryIsa([](const std::string& isa) {
    struct Sizes {
      double x;
      double scale;
      float epsilon;
    };
    for (const Sizes& sizes : {Sizes{0, 2e36, 1e-5f}, Sizes{1, 2e36, 1e-5f}, Sizes{1e-30, 1e30, 0.0f},
                               Sizes{1e25, 1e-25, 0.0f}, Sizes{1e-40, 1, 0.0f}, Sizes{1e35, 1e-30, 1e-5f}}) {
      for (const bool uniform : {true, false}) {
        for (const bool use_mean : {true, false}) {
          for (const int64_t axis : {0, 1}) {
            for (const DataType type : {DataType::kFloat32, DataType::kInt8}) {
              std::vector<double> values = Normals(6 * 6, 0);
              for (size_t i = 0; i < values.size(); ++i)
                values[i] = static_cast<float>((i % 6) * 0.0 + values[i] * sizes.x);
              Case c = Normalize({6, 6}, values, {axis});
              c.parts.normalization.use_mean = use_mean;
              c.parts.normalization.epsilon = sizes.epsilon;
              std::vector<double> scale(6, sizes.scale);
              if (!uniform) scale[3] *= 0.5;
              c.parts.scale.type = c.parts.bias.type = DataType::kFloat32;
              c.parts.scale.tensor = c.Add(MakeFloats({6}, scale), true);
              c.parts.bias.tensor = c.Add(MakeFloats({6}, std::vector<double>(6, 0.25)), true);
              c.parts.y_type = type;
              c.output_types = {type};
              if (type == DataType::kInt8) c.parts.y_quantization.scale = c.Add(MakeFloats({}, {0.125}), true);
              RunAndCompare(c, 1,
                            isa + " x " + std::to_string(std::log10(sizes.x)) + " scale " +
                                std::to_string(std::log10(sizes.scale)) + " axis " + std::to_string(axis) + " " +
                                NameOf(type));
            }
          }
        }
      }
    }
  });
}

// The same of stored integers: equal ones of any number, whose mean is one of them, and scales of any size.
TEST(StoredIntegersTakeAnyScale) {
  OnEveryIsa([](const std::string& isa) {
    for (const DataType type : {DataType::kInt8, DataType::kUint8, DataType::kInt16}) {
      for (const int64_t width : {3, 7, 49, 100}) {
        for (const double x_scale : {1e-38, 1e-33, 1.0, 1e34}) {
          for (const double scale : {1.0, 2e36, 1e-30}) {
            for (const bool constant : {true, false}) {
              for (const bool normalizes : {true, false}) {
                const bool by_row = width != 7;  // of five, a scale and a zero point for each
                Case c;
                c.parts.name = "integers";
                c.parts.normalizes = normalizes;
                c.parts.x.type = type;
                Tensor x = MakeTensor(type, {5, width});
                for (int64_t i = 0; i < x.Count(); ++i) x.Set(i, constant ? 100 : static_cast<double>(i * 37 % 120));
                c.parts.x.tensor = c.Add(std::move(x), false);
                std::vector<double> scales;
                Tensor zero = MakeTensor(type, by_row ? std::vector<int64_t>{5} : std::vector<int64_t>{});
                for (int64_t i = 0; i < zero.Count(); ++i) {
                  scales.push_back(x_scale * static_cast<double>(i + 1));
                  zero.Set(i, 100 - 7 * static_cast<double>(i));
                }
                c.parts.x.quantization.scale = c.Add(MakeFloats(zero.dims, scales), true);
                c.parts.x.quantization.zero_point = c.Add(std::move(zero), true);
                c.parts.x.quantization.axis = 0;
                c.parts.normalization.axes = {1};
                c.parts.scale.type = c.parts.bias.type = DataType::kFloat32;
                c.parts.scale.tensor = c.Add(MakeFloats({1}, {scale}), true);
                c.parts.bias.tensor = c.Add(MakeFloats({1}, {0.25}), true);
                c.parts.y_type = DataType::kFloat32;
                c.output_types = {DataType::kFloat32};
                if (normalizes && width > 7) {  // the statistics of each row, too
                  c.parts.normalization.mean_output = 1;
                  c.parts.normalization.inv_std_dev_output = 2;
                  c.output_types.resize(3, DataType::kFloat32);
                }
                RunAndCompare(c, 1,
                              isa + " " + NameOf(type) + " x_scale " + std::to_string(std::log10(x_scale)) + " scale " +
                                  std::to_string(std::log10(scale)) + " width " + std::to_string(width));
              }
            }
          }
        }
      }
    }
  });
}

// A factor that float32 does not hold once the reciprocal of y_scale has joined it: infinity, and times 0 NaN.
TEST(FactorsMayBeBeyondFloatWithTheReciprocalOfYScale) {
  OnEveryIsa([](const std::string& isa) {
    for (const size_t axis : {0, 1}) {
      std::vector<double> values(80);
      for (size_t i = 0; i < values.size(); ++i) {
        const size_t at = (axis == 1 ? i : i / 2) % 4;
        values[i] = at == 0 ? 1e-32 : at == 2 ? -1e-32 : 0;
      }
      for (const int64_t count : {1, 40}) {
        Case c = Normalize(axis == 1 ? std::vector<int64_t>{2, 40} : std::vector<int64_t>{40, 2}, values,
                           {static_cast<int64_t>(axis)});
        c.parts.normalization.epsilon = 0.0f;
        c.parts.scale.type = DataType::kFloat32;
        const std::vector<int64_t> shape = axis == 1 ? std::vector<int64_t>{count} : std::vector<int64_t>{count, 1};
        std::vector<double> scale(static_cast<size_t>(count), 1.0);
        scale[0] = 2.0;
        c.parts.scale.tensor = c.Add(MakeFloats(shape, scale), true);
        c.parts.y_type = DataType::kInt8;
        c.output_types = {DataType::kInt8};
        c.parts.y_quantization.scale = c.Add(MakeFloats({}, {2e-9}), true);
        const std::vector<double> y = Y(c);
        for (size_t i = 0; i < y.size(); ++i) {
          const double want = values[i] == 0 ? 0 : values[i] > 0 ? 127 : -128;
          EXPECT(y[i] == want, isa + " axis " + std::to_string(axis) + " scale of " + std::to_string(count) + ": " +
                                   std::to_string(y[i]) + " of " + std::to_string(values[i]));
        }
      }
    }
  });
}

// 32-bit integers whose difference float32 holds, and which it does not hold themselves: with one zero point, one for each
// row, column or block.
TEST(DifferencesOfWideIntegersAreExact) {
  OnEveryIsa([](const std::string& isa) {
    for (const DataType type : {DataType::kInt32, DataType::kUint32}) {
      struct Form {
        std::vector<int64_t> dims;
        int64_t axis;
        int64_t block_size;
      };
      for (const Form& form : {Form{{}, 0, 0}, {{3}, 0, 0}, {{70}, 1, 0}, {{3, 7}, 1, 10}, {{1, 70}, 0, 3}}) {
        Tensor zero = MakeTensor(type, form.dims);
        for (int64_t i = 0; i < zero.Count(); ++i) zero.Set(i, 0x7f000000 + 16.0 * static_cast<double>(i));
        Tensor x = MakeTensor(type, {3, 70});
        for (int64_t i = 0; i < x.Count(); ++i) x.Set(i, 0x7f000000 + static_cast<double>(i * 37 % 101));
        Case c;
        c.parts.name = "wide integers";
        c.parts.normalizes = false;
        c.parts.x.type = type;
        c.parts.x.tensor = c.Add(std::move(x), false);
        c.parts.x.quantization.scale =
            c.Add(MakeFloats(form.dims, std::vector<double>(static_cast<size_t>(zero.Count()), 0.5)), true);
        c.parts.x.quantization.zero_point = c.Add(std::move(zero), true);
        c.parts.x.quantization.axis = form.axis;
        c.parts.x.quantization.block_size = form.block_size;
        c.parts.y_type = DataType::kFloat32;
        c.output_types = {DataType::kFloat32};
        RunAndCompare(c, 1,
                      isa + " " + NameOf(type) + " " + std::to_string(c.Of(c.parts.x.quantization.scale).Count()));
      }
    }
  });
}

// A few integers again and again along those of another tensor, whichever of the two is X.
TEST(XMayRepeat) {
  OnEveryIsa([](const std::string& isa) {
    for (const bool x_repeats : {true, false}) {
      const auto integers = [](Case* c, int64_t pixels) {
        Operand operand;
        operand.name = "integers";
        operand.type = DataType::kInt8;
        Tensor tensor = MakeTensor(DataType::kInt8, {2, 3, pixels, 8});
        for (int64_t i = 0; i < tensor.Count(); ++i) tensor.Set(i, static_cast<double>(i * 37 % 251 - 125));
        operand.tensor = c->Add(std::move(tensor), false);
        operand.quantization.scale = c->Add(MakeFloats({}, {0.125}), true);
        return operand;
      };
      Case c;
      c.parts.name = "repeats";
      c.parts.normalizes = false;
      c.parts.x = integers(&c, x_repeats ? 1 : 400);
      c.parts.behind = {Mul(integers(&c, x_repeats ? 400 : 1))};
      c.parts.y_type = DataType::kUint8;
      c.output_types = {DataType::kUint8};
      c.parts.y_quantization.scale = c.Add(MakeFloats({}, {0.5}), true);
      RunAndCompare(c, 1, isa + (x_repeats ? " X" : " operand"));
    }
  });
}

// Factors whose product is no normal float are not joined: float32 rounds step by step.
TEST(FactorsWhoseProductIsDenormalAreTakenOneByOne) {
  OnEveryIsa([](const std::string& isa) {
    const auto y_of = [](const std::vector<float>& factors) {
      Case c = Normalize({2, 70}, Normals(140, 0), {1});
      for (const float factor : factors) {
        Operand operand;
        operand.name = "factor";
        operand.type = DataType::kFloat32;
        operand.tensor = c.Add(MakeFloats({70}, std::vector<double>(70, factor)), false);
        c.parts.behind.push_back(Mul(operand));
      }
      return Y(c);
    };
    const std::vector<double> alone = y_of({});
    const std::vector<double> y = y_of({1e-25f, 1e-18f, 1e30f});
    for (size_t i = 0; i < y.size(); ++i) {
      const float want = static_cast<float>(alone[i]) * 1e-25f * 1e-18f * 1e30f;
      EXPECT(static_cast<float>(y[i]) == want, isa + " " + std::to_string(i));
    }
  });
}

TEST(UnknownInstructionSetIsAnError) {
  ForceIsa("mmx");
  const char* name = nullptr;
  const Result result = SelectedIsa(&name);
  EXPECT(!result.ok() && result.message().find("baseline") != std::string::npos, result.message());
  std::unique_ptr<Executable> executable;
  EXPECT(!CompileForCpu(Normalize({4}, Normals(4, 0), {0}).chain(), &executable).ok(), "compile");
  ForceIsa("");
}

// After the first call nothing is allocated, whatever has to be converted.
TEST(RunDoesNotAllocate) {
  for (int form = 0; form < 6; ++form) {
    Case c = Normalize({6, 70}, Normals(420, 0), {form == 4 ? 0 : 1});
    if (form == 1 || form == 4) {
      c.parts.scale.type = DataType::kFloat16;
      c.parts.scale.tensor = c.Add(MakeTensor(DataType::kFloat16, {70}), false);
    }
    if (form == 2) {
      c.parts.residual.type = DataType::kInt8;
      c.parts.residual.tensor = c.Add(MakeTensor(DataType::kInt8, {6, 70}), false);
      c.parts.residual.quantization.scale = c.Add(MakeFloats({70}, Normals(70, 1)), false);
      c.parts.residual.quantization.zero_point = c.Add(MakeTensor(DataType::kInt8, {70}), false);
    }
    if (form == 3) c.parts.normalizes = false;
    if (form == 5) {
      c.parts.y_type = DataType::kUint8;
      c.output_types = {DataType::kUint8};
      c.parts.y_quantization.scale = c.Add(MakeFloats({6}, Normals(6, 1)), true);
      c.parts.y_quantization.axis = 0;
    }
    std::unique_ptr<Executable> executable;
    const Result compiled = CompileForCpu(c.chain(), &executable);
    EXPECT(compiled.ok(), compiled.message());
    if (!compiled.ok()) continue;
    ArrayContext context;
    c.FillContext(&context);
    EXPECT(executable->Run(context).ok(), "first run");
    const long before = allocations;
    for (int i = 0; i < 10; ++i) EXPECT(executable->Run(context).ok(), "later run");
    EXPECT(allocations == before, "form " + std::to_string(form) + ": " + std::to_string(allocations - before));
  }
}

// Work too small for it stays on the caller's thread; larger work is the same on any number of threads.
TEST(ThreadsAreUsedWhereTheyPay) {
  Case small = Normalize({1, 768}, Normals(768, 0), {1});
  ArrayContext quiet(4);
  EXPECT(Run(small, &quiet).ok(), "small");
  EXPECT(quiet.parallel_calls() == 0, "a small tensor was handed to other threads");
  const std::vector<double> values = Normals(size_t{512} * 1024, 2);
  for (const std::vector<int64_t>& axes : {std::vector<int64_t>{1}, {0}, {0, 1}}) {
    Case c = Normalize({512, 1024}, values, axes);
    ArrayContext context(4);
    EXPECT(Run(c, &context).ok(), "large");
    EXPECT(context.parallel_calls() > 0, "a large tensor was kept to one thread");
    const std::vector<double> one = Y(c, 1);
    const std::vector<double> three = Y(c, 3);
    double worst = 0;
    for (size_t i = 0; i < one.size(); ++i) worst = Worse(worst, std::fabs(one[i] - three[i]));
    EXPECT(worst <= 1e-6, std::to_string(worst));
  }
}

// Where no thread ever takes a part, a call is not divided any longer, but threads are asked again now and then.
TEST(WithoutOtherThreadsTheCallerGoesOnAlone) {
  for (const std::vector<int64_t>& axes : {std::vector<int64_t>{1}, {0}}) {
    Case c = Normalize({160, 1024}, Normals(size_t{160} * 1024, 2), axes);
    std::unique_ptr<Executable> executable;
    EXPECT(CompileForCpu(c.chain(), &executable).ok(), "compile");
    ArrayContext context(4);
    c.FillContext(&context);
    const auto calls_asking = [&](int calls) {
      const int before = context.parallel_calls();
      for (int i = 0; i < calls; ++i) EXPECT(executable->Run(context).ok(), "run");
      return context.parallel_calls() - before;
    };
    context.LeaveToCaller(true);
    EXPECT(calls_asking(64) == 64, "the first calls");
    EXPECT(calls_asking(4095) == 0, "without help");
    EXPECT(calls_asking(64 + 4095) == 64, "asked again");
    context.LeaveToCaller(false);
    EXPECT(calls_asking(10) == 10, "asked again, and helped");
    context.LeaveToCaller(true);
    EXPECT(calls_asking(20) == 20, "those who helped once may do so again");
  }
}

// The second chain reads what the first one gives, which is no output of the node.
TEST(ASequenceIsItsChainsInTurn) {
  Case first = Normalize({512, 1024}, Normals(size_t{512} * 1024, 2), {1});
  Case second = Normalize({512, 1024}, Y(first), {0});
  ChainSequence sequence{{first.chain(), second.chain()}, 1};
  sequence.chains[0].store.output = 1;
  sequence.chains[1].x.tensor.input = kFromOutput + 1;
  std::unique_ptr<Executable> executable;
  EXPECT(CompileForCpu(sequence, &executable).ok(), "compile");
  ArrayContext context(3);
  first.FillContext(&context);
  EXPECT(executable->Run(context).ok(), "run");
  const std::vector<double> want = Y(second);
  bool same = true;
  for (size_t i = 0; i < want.size(); ++i) same &= context.output(0).At(static_cast<int64_t>(i)) == want[i];
  EXPECT(same && context.parallel_calls() == 2, std::to_string(context.parallel_calls()));
}

// A single tile of columns is not handed to anybody.
TEST(OneTileStaysOnTheCaller) {
  Case c = Normalize({20'000, 32}, Normals(size_t{20'000} * 32, 2), {0});
  std::unique_ptr<Executable> executable;
  EXPECT(CompileForCpu(c.chain(), &executable).ok(), "compile");
  for (const int threads : {1, 4}) {
    ArrayContext context(threads);
    c.FillContext(&context);
    EXPECT(executable->Run(context).ok(), "run");
    EXPECT(context.parallel_calls() == 0, std::to_string(threads) + " threads");
  }
}

// More shapes than are remembered, and the same X with another residual.
TEST(ShapesMayChangeFromCallToCall) {
  struct Shapes {
    std::vector<int64_t> x;
    std::vector<int64_t> residual;
  };
  const Shapes all[] = {{{3, 5, 96}, {96}}, {{3, 5, 96}, {5, 1}}, {{96}, {3, 5, 96}},
                        {{7, 96}, {96}},    {{96}, {96}},         {{2, 3, 96}, {3, 96}},
                        {{0, 96}, {96}},    {{1, 96}, {}},        {{2, 1, 40}, {9, 1}}};
  std::vector<Case> cases;
  for (const Shapes& shapes : all) {
    const auto values = [](const std::vector<int64_t>& dims, double mean) {
      return Normals(static_cast<size_t>(MakeTensor(DataType::kFloat32, dims).Count()), mean);
    };
    Case& c = cases.emplace_back(Normalize(shapes.x, values(shapes.x, 1), {-1}));
    c.parts.residual.type = DataType::kFloat32;
    c.parts.residual.tensor = c.Add(MakeFloats(shapes.residual, values(shapes.residual, 2)), false);
    RunAndCompare(c, 1, "against float64");
  }
  std::unique_ptr<Executable> executable;
  EXPECT(CompileForCpu(cases[0].chain(), &executable).ok(), "compile");
  for (int round = 0; round < 2; ++round) {
    for (Case& c : cases) {
      ArrayContext context;
      c.FillContext(&context);
      EXPECT(executable->Run(context).ok(), "run");
      const long before = allocations;
      EXPECT(executable->Run(context).ok(), "same shapes again");
      EXPECT(allocations == before, std::to_string(allocations - before) + " allocations");
      const std::vector<double> want = Y(c);
      EXPECT(context.output(0).Count() == static_cast<int64_t>(want.size()), "shape");
      for (size_t i = 0; i < want.size(); ++i) {
        EXPECT(context.output(0).At(static_cast<int64_t>(i)) == want[i], std::to_string(i));
      }
    }
  }
}

// One executable, several calls at a time.
TEST(RunMayBeCalledFromSeveralThreads) {
  Case c = Normalize({64, 300}, Normals(64 * 300, 1), {1});
  c.parts.scale.type = DataType::kFloat16;
  c.parts.scale.tensor = c.Add(MakeTensor(DataType::kFloat16, {300}), false);
  for (int64_t i = 0; i < 300; ++i) c.tensors.back()->Set(i, 1.5);
  std::unique_ptr<Executable> executable;
  EXPECT(CompileForCpu(c.chain(), &executable).ok(), "compile");
  const std::vector<double> want = Y(c);
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      ArrayContext context;
      c.FillContext(&context);
      for (int round = 0; round < 20; ++round) {
        if (!executable->Run(context).ok()) ++wrong;
        for (int64_t i = 0; i < 64 * 300; ++i) wrong += context.output(0).At(i) != want[static_cast<size_t>(i)];
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT(wrong == 0, std::to_string(wrong.load()));
}

}  // namespace
}  // namespace normfuse::test

NORMFUSE_TEST_MAIN
