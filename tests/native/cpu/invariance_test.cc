// Paths through the CPU kernels, and batch invariance: on one instruction set the bits of a row do not depend on the rows around it, on its place among them,
// on the number of threads, or on where X and Y lie in memory. A server's answer is then the same whatever it batches.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "chain_harness.h"
#include "cpu/kernels/kernel_list.h"
#include "cpu/plan/path.h"
#include "cpu/run/elements.h"
#include "test_cases.h"

namespace normfuse::test {
namespace {

using Bytes = std::vector<unsigned char>;

// What every third group is.
struct Unusual {
  bool by_channel = false;    // of all: s, b and f are one for each index of the group's first dimension
  bool far = false;           // far from the others
  bool flat = false;          // of one value
  bool onset = false;         // begins far from where it goes on
  bool infinite = false;      // holds an infinity
  bool beyond_float = false;  // the product of S with the scale is no float
  double size = 1;            // times that
  double scale = 1;           // of all: scales, times that
  double x_scale = 0.05;      // of all: of quantised X
};

// What is computed of rows, of which type. Of the tensors X, R and P have an element for each of X, P integers; S and B one for
// each group; s, b and f are like a group's last dimension, r too. `@`: over which axes.
struct Recipe {
  std::string steps;
  DataType x = DataType::kFloat32;
  Unusual some = {};

  bool Has(const char* words) const { return steps.find(words) != std::string::npos; }
};

constexpr DataType kF32 = DataType::kFloat32, kF16 = DataType::kFloat16, kBf16 = DataType::kBfloat16,
                   kI8 = DataType::kInt8, kU8 = DataType::kUint8, kI16 = DataType::kInt16;

#define DQ "Dequantize scale=d zero_point=e; "
#define LN "Normalize @; Mul s; Add b"
#define MODULATED "; Mul S; Add B; Mul f"
#define Q(type) "; Quantize scale=q type=" type

const Recipe kRecipes[] = {
    {LN},
    {"Normalize @"},
    {LN "; Relu"},
    {LN "; Gelu"},
    {LN "; Swish", kF32, {.size = 1e30}},
    {"Normalize @ use_mean=0; Mul s; Add b"},
    {"Add R; " LN},
    {"Add R; Emit; " LN},
    {"Add R; " LN "; Gelu"},
    {"Add R; " LN Q("int8")},
    {LN "; Gelu" Q("uint8")},
    {LN, kF16},
    {LN "; Gelu", kF16},
    {"Add R; " LN, kF16},
    {LN, kBf16, {.size = 1e30}},
    {DQ LN Q("int8"), kI8},
    {DQ LN "; Gelu" Q("uint8"), kU8},
    {DQ LN, kI16},
    {"Softmax @"},
    {"LogSoftmax @", kF16},
    {"Add R; Softmax @"},
    {"Add R; Emit; Softmax @"},
    {DQ "Softmax @" Q("uint8"), kU8},
    {LN "; Swish", kF32, {.by_channel = true}},
    {LN MODULATED, kF32, {.onset = true}},
    {LN MODULATED "; Swish", kF32, {.by_channel = true}},
    {"Normalize @" MODULATED "; Gelu", kF32, {.size = 1e30}},
    {"Add R; " LN MODULATED Q("int8"), kF32, {.by_channel = true}},
    {LN MODULATED "; Relu", kF32, {.by_channel = true, .beyond_float = true}},
    {LN MODULATED, kF16},
    {"Softmax @", kF32, {.far = true}},
    {"Softmax @" Q("uint8"), kF32, {.far = true}},
    {"Softmax @", kF16},
    {DQ "Softmax @", kI8, {.far = true}},
    {"Add R; Add r; " LN},
    {"Add R; Add r; Emit; " LN, kF16},
    {"Add R; Emit; " LN, kF16},
    {DQ "Normalize @ use_mean=0; Mul s; Add b", kI16},
    {"Normalize @; Gelu", kF32, {.onset = true}},
    {"Normalize @ use_mean=0; Mul s"},
    {LN, kF32, {.flat = true}},
    {"Add R; Emit; " LN, kF32, {.flat = true}},
    {LN, kF16, {.flat = true}},
    // Summed again, in float32 or in double.
    {"Normalize @", kF32, {.onset = true}},
    {"Add R; Emit; " LN, kF32, {.onset = true}},
    {LN, kF16, {.onset = true}},
    {DQ LN, kI16, {.onset = true}},
    {"Mul P scale=p; " LN, kF32, {.onset = true}},
    {"Mul P scale=p; " LN, kF32, {.size = 1e30}},
    {"Mul P scale=p; " LN MODULATED, kF32, {.onset = true}},
    {"Mul P scale=p; " LN MODULATED, kF32, {.size = 1e30}},
    {LN, kF32, {.by_channel = true, .size = 1e-3, .scale = 2e36}},
    {"Normalize @", kF32, {.size = 1e30}},
    {LN Q("int8"), kF32, {.size = 1e30}},
    {"Add R; Emit; Normalize @ use_mean=0; Mul s; Add b", kF32, {.size = 1e30}},
    {"Normalize @", kBf16, {.size = 1e30}},
    {DQ LN, kI8, {.onset = true, .x_scale = 1e-33}},
    {DQ LN, kI16, {.onset = true, .x_scale = 1e-33}},
    {DQ LN, kI16, {.flat = true, .x_scale = 1e12}},
    {LN "; Gelu", kF32, {.onset = true}},
    {"Normalize @; Gelu", kF32, {.size = 1e30}},
    {LN "; Store type=float32", kBf16, {.size = 1e30}},
    {LN, kF16, {.infinite = true}},
};

// Where the tensors of a call lie, and who runs it.
struct Setting {
  int threads = 1;
  size_t x_offset = 0;  // elements
  size_t y_offset = 0;  // bytes
};

size_t SizeOf(DataType type) { return static_cast<size_t>(BitsOf(type)) / 8; }

// `count` groups of `tensor` from `begin` on, of `size` elements each.
Tensor Slice(const Tensor& tensor, std::vector<int64_t> dims, int64_t begin, size_t x_offset) {
  Tensor slice = MakeTensor(tensor.type, std::move(dims), x_offset);
  const size_t element = SizeOf(tensor.type);
  std::memcpy(slice.data(), tensor.data() + static_cast<size_t>(begin) * element,
              static_cast<size_t>(slice.Count()) * element);
  return slice;
}

std::vector<Bytes> OutputsOf(const Case& c, const Setting& setting) {
  std::unique_ptr<Executable> executable;
  const Result compiled = CompileForCpu(c.chain(), &executable);
  EXPECT(compiled.ok(), compiled.message());
  ArrayContext context(setting.threads);
  context.ShiftOutputs(setting.y_offset);
  c.FillContext(&context);
  const Result result = executable->Run(context);
  EXPECT(result.ok(), result.message());
  std::vector<Bytes> outputs;
  for (size_t i = 0; i < c.output_types.size(); ++i) {
    const Tensor& output = context.output(static_cast<int>(i));
    outputs.emplace_back(output.data(), output.data() + static_cast<size_t>(output.Count()) * SizeOf(output.type));
  }
  return outputs;
}

class Groups {
 public:
  // `inner`: the shape of one group.
  Groups(const Recipe& recipe, int64_t count, std::vector<int64_t> inner)
      : recipe_(recipe), count_(count), inner_(std::move(inner)) {
    for (int64_t dim : inner_) size_ *= dim;
    x_ = FewValues(recipe.x, Shape(count), 3);
    for (int64_t i = 0; i < x_.Count(); ++i) {
      if (i / size_ % 3 != 2) continue;
      const bool begins = i % size_ < std::min(size_ / 2, cpu::kShiftElements);
      if (recipe.some.far || (recipe.some.onset && !begins)) x_.Set(i, x_.At(i) + 90);
      if (recipe.some.size != 1) x_.Set(i, x_.At(i) * recipe.some.size);
      if (recipe.some.infinite && i % size_ == size_ / 2) x_.Set(i, std::numeric_limits<double>::infinity());
    }
    residual_ = FewValues(recipe.x, Shape(count), 4);
    if (recipe.Has("Mul P")) codes_ = FewValues(DataType::kInt8, Shape(count), 11);
    for (int64_t i = 0; recipe.some.flat && i < x_.Count(); ++i) {
      if (i / size_ % 3 != 2) continue;
      x_.Set(i, 1.5);
      residual_.Set(i, 0.25);
    }
    scale_ = FewValues(DataType::kFloat32, AffineShape(), 5);
    for (int64_t i = 0; recipe.some.scale != 1 && i < scale_.Count(); ++i)
      scale_.Set(i, scale_.At(i) * recipe.some.scale);
    bias_ = FewValues(DataType::kFloat32, AffineShape(), 6);
    group_scale_ = FewValues(DataType::kFloat32, {count}, 7);
    group_bias_ = FewValues(DataType::kFloat32, {count}, 8);
    factor_ = FewValues(DataType::kFloat32, AffineShape(), 9);
    residual_bias_ = FewValues(DataType::kFloat32, {inner_.back()}, 10);
  }
  int64_t count() const { return count_; }

  // Groups `begin` to `begin` + `count` as a call of their own.
  Case Make(int64_t begin, int64_t count, size_t x_offset) const {
    const auto slice = [&](const Tensor& of) { return Slice(of, Shape(count), begin * size_, x_offset); };
    const auto each = [&](const Tensor& of) { return Modulation(begin, count, of); };
    std::string axes = "axes=1";
    for (size_t i = 2; i <= inner_.size(); ++i) axes += "," + std::to_string(i);
    std::string steps = recipe_.steps;
    steps.replace(steps.find('@'), 1, axes);
    std::vector<NamedTensor> tensors = {{"X", slice(x_)},
                                        {"R", slice(residual_)},
                                        {"S", each(group_scale_)},
                                        {"B", each(group_bias_)},
                                        {"f", factor_},
                                        {"s", scale_, true},
                                        {"b", bias_, true},
                                        {"r", residual_bias_, true},
                                        {"d", MakeFloats({}, {recipe_.some.x_scale}), true}};
    if (recipe_.Has("Mul P")) tensors.push_back({"P", slice(codes_)});
    return FromSteps(steps, std::string("p=0.02 q=0.037 e=") + NameOf(recipe_.x) + "(7)", std::move(tensors));
  }

  // Their outputs, one after the other. A NaN's sign depends on which operand of an instruction the compiler puts first.
  std::vector<Bytes> Run(int64_t begin, int64_t count, const Setting& setting) const {
    const Case c = Make(begin, count, setting.x_offset);
    std::vector<Bytes> outputs = OutputsOf(c, setting);
    for (size_t i = 0; i < outputs.size(); ++i) {
      const DataType type = c.output_types[i];
      const size_t size = static_cast<size_t>(BitsOf(type)) / 8;
      for (size_t at = 0; !IsQuantized(type) && at < outputs[i].size(); at += size) {
        if (std::isnan(cpu::ReadElement(type, outputs[i].data() + at, 0)))
          std::memset(outputs[i].data() + at, 255, size);
      }
    }
    return outputs;
  }

  // Whether `some`, which Run gave for groups from `begin` on, are what is in `all` of the whole batch.
  bool AreIn(const std::vector<Bytes>& some, int64_t begin, const std::vector<Bytes>& all) const {
    for (size_t i = 0; i < some.size(); ++i) {
      const size_t group = all[i].size() / static_cast<size_t>(count_);
      if (std::memcmp(some[i].data(), all[i].data() + static_cast<size_t>(begin) * group, some[i].size()) != 0)
        return false;
    }
    return true;
  }

 private:
  std::vector<int64_t> Shape(int64_t count) const {
    std::vector<int64_t> shape = {count};
    shape.insert(shape.end(), inner_.begin(), inner_.end());
    return shape;
  }

  std::vector<int64_t> AffineShape() const {
    if (!recipe_.some.by_channel) return {inner_.back()};
    std::vector<int64_t> shape(inner_.size(), 1);
    shape.front() = inner_.front();
    return shape;
  }

  // One number for each group from `begin` on.
  Tensor Modulation(int64_t begin, int64_t count, const Tensor& all) const {
    std::vector<int64_t> shape(inner_.size() + 1, 1);
    shape.front() = count;
    Tensor some = MakeTensor(DataType::kFloat32, std::move(shape));
    for (int64_t i = 0; i < count; ++i) {
      const bool beyond = recipe_.some.beyond_float && (begin + i) % 3 == 2;
      some.Set(i, beyond ? 3e38 : all.At(begin + i));
    }
    return some;
  }

  const Recipe& recipe_;
  int64_t count_;
  std::vector<int64_t> inner_;
  int64_t size_ = 1;
  // Made once: that takes longer than many a run.
  Tensor x_, residual_, codes_, residual_bias_, scale_, bias_, group_scale_, group_bias_, factor_;
};

void Compare(const Groups& groups, const std::string& what) {
  const std::vector<Bytes> all = groups.Run(0, groups.count(), {});
  const auto same = [&](int64_t begin, int64_t count, const Setting& setting) {
    const int64_t end = std::min(begin + count, groups.count());
    if (begin >= end) return;
    EXPECT(groups.AreIn(groups.Run(begin, end - begin, setting), begin, all),
           what + ": groups " + std::to_string(begin) + " to " + std::to_string(end) + ", " +
               std::to_string(setting.threads) + " threads, X " + std::to_string(setting.x_offset) +
               " elements and Y " + std::to_string(setting.y_offset) + " bytes on");
  };
  for (const int64_t row : {int64_t{0}, int64_t{1}, groups.count() / 2, groups.count() - 1}) same(row, 1, {});
  same(0, 2, {});
  same(1, 3, {});
  same(1, 6, {});
  same(2, 17, {});
  for (const int threads : {2, 3}) {
    same(0, groups.count(), {.threads = threads});
    same(1, 2, {.threads = threads});
  }
  for (const size_t x_offset : {1, 3}) same(0, groups.count(), {.x_offset = x_offset});
  for (const size_t y_offset : {4, 16, 44}) same(0, groups.count(), {.y_offset = y_offset});
}

// Rows of one run: several of them are treated side by side.
TEST(RowsDoNotDependOnTheirBatch) {
  OnEveryIsa([](const std::string& isa) {
    for (const Recipe& recipe : kRecipes) {
      for (const int64_t width : {2, 5, 31, 64, 96, 128, 300, 768, 1030, 2600}) {
        Compare(Groups(recipe, 37, {width}), isa + " " + recipe.steps + " of " + std::to_string(width));
      }
    }
  });
}

// Rows so long that both passes overlap, and that threads share one.
TEST(LongRowsDoNotDependOnTheirBatch) {
  OnEveryIsa([](const std::string& isa) {
    for (const Recipe& recipe : kRecipes) {
      for (const int64_t width : {5000, 70000}) {
        Compare(Groups(recipe, 5, {width}), isa + " " + recipe.steps + " of " + std::to_string(width));
      }
    }
  });
}

// Groups of several runs each, whose scale goes along the innermost.
TEST(GroupsOfSeveralRunsDoNotDependOnTheirBatch) {
  OnEveryIsa([](const std::string& isa) {
    for (const Recipe& recipe : kRecipes) {
      for (const std::vector<int64_t>& inner : {std::vector<int64_t>{7, 49}, {5, 130}, {40, 1000}}) {
        Compare(Groups(recipe, 7, inner), isa + " " + recipe.steps + " of " + std::to_string(inner[0]) + " runs");
      }
    }
  });
}

// What is written without the caches is as it would be within them.
TEST(LargeTensorsAreTheSameAsTheirRows) {
  OnEveryIsa([](const std::string& isa) {
    for (const Recipe& recipe : {kRecipes[0], kRecipes[7]}) {
      for (const int64_t width : {1008, 1007}) {
        Compare(Groups(recipe, 1700, {width}), isa + " " + recipe.steps + " of " + std::to_string(width));
      }
    }
  });
}

std::string PathOf(const Chain& chain, const cpu::PathQuery& query = {}) {
  std::string text;
  const Result result = cpu::DescribePath(chain, query, &text);
  EXPECT(result.ok(), result.message());
  return text;
}

// An activation between bytes, of all values in turn.
Case OfBytes(const std::string& x_type, const std::string& y_type, const char* activation, int64_t count,
             size_t offset) {
  Tensor x = MakeTensor(x_type == "int8" ? kI8 : kU8, {count}, offset);
  for (int64_t i = 0; i < count; ++i) x.data()[i] = static_cast<unsigned char>(i * 7);
  return FromSteps(std::string(DQ) + activation + Q("") + y_type + " zero_point=u",
                   "d=0.04 e=" + x_type + "(100) q=0.03 u=" + y_type + "(9)", {{"X", std::move(x)}});
}

constexpr const char* kForcedPaths[] = {"groups",
                                        "rows",
                                        "pipeline",
                                        "shared",
                                        "shared,nontemporal",
                                        "blocks",
                                        "nontemporal",
                                        "nontemporal,groups",
                                        "blocks,nontemporal",
                                        "input",
                                        "separate",
                                        "separate,nontemporal",
                                        "cached",
                                        "pipeline,nontemporal"};

// Each path that suits a call gives the bits of the one that is chosen, which gives what float64 gives. Those of shared
// groups are seen with two threads.
TEST(ForcedPathsGiveTheSameBits) {
  std::vector<std::string> seen;
  for (const std::string& isa : AvailableIsas()) {
    ForceIsa(isa);
    for (const Recipe& recipe : kRecipes) {
      for (const std::vector<int64_t>& inner :
           {std::vector<int64_t>{31}, {128}, {300}, {336}, {1024}, {1030}, {5000}, {3, 100}, {4, 49}, {40000}}) {
        // Pieces of rows that are summed again.
        if (inner[0] == 40000 && !recipe.some.onset && !recipe.some.flat && recipe.some.size == 1) continue;
        const Groups groups(recipe, 9, inner);
        const std::vector<Bytes> chosen = groups.Run(0, groups.count(), {});
        // Single steps overflow in float32, too.
        if (inner.size() == 1 && inner[0] < 2000 && !recipe.some.beyond_float)
          RunAndCompare(groups.Make(0, groups.count(), 0), 1, isa + " " + recipe.steps);
        for (const char* words : kForcedPaths) {
          ForcePath(words);
          for (const Setting& setting : {Setting{.threads = 1}, {.threads = 2}, {.threads = 2, .y_offset = 4}}) {
            const std::string what = isa + " " + recipe.steps + " of " + std::to_string(inner.back()) + ": " + words;
            EXPECT(groups.AreIn(groups.Run(0, groups.count(), setting), 0, chosen), what);
          }
          std::vector<int64_t> shape = inner;
          shape.insert(shape.begin(), groups.count());
          // With parameters that are inputs it depends on their shapes.
          if (!recipe.Has(MODULATED)) seen.push_back(PathOf(groups.Make(0, 1, 0).chain(), {.x = shape}));
          ForcePath("");
        }
      }
    }
  }
  ForceIsa("");
  for (const char* part : {"rows of input", "rows of steps", "groups of input", "groups of blocks", "pipeline of input",
                           "result of sum", "result of kept", "result of blocks", "stored integers", "both passes",
                           "overlapping passes", "non-temporal,", "tiles of 1,", "tiles of 2,", "tiles of 4,"}) {
    const auto has_part = [part](const std::string& text) { return text.find(part) != std::string::npos; };
    const bool fast = AvailableIsas().front() == "avx512" || AvailableIsas().front() == "avx2";
    if (!fast) break;  // of baseline and NEON some paths are not there
    EXPECT(std::any_of(seen.begin(), seen.end(), has_part), part);
  }
}

// Constants that are joined are described as they are run.
TEST(DescribedPathIsThatOfJoinedConstants) {
  const Groups groups(kRecipes[0], 9, {768});
  const Case plain = groups.Make(0, 9, 0);
  Case joined = groups.Make(0, 9, 0);
  joined.steps->behind.insert(joined.steps->behind.end(), plain.steps->behind.begin(), plain.steps->behind.end());
  const cpu::PathQuery query{.x = {9, 768}};
  EXPECT(PathOf(joined.chain(), query) == PathOf(plain.chain(), query), PathOf(joined.chain(), query));
}

// Its last value alone decides what the range of the results is.
Case WithOutlier(const Groups& groups, size_t x_offset) {
  Case c = groups.Make(0, groups.count(), x_offset);
  Tensor& x = *c.tensors.front();
  x.Set(x.Count() - 1, 127);
  return c;
}

// The chain of `groups`, whose Y finds its scale itself: bytes, scale, zero point and, if wanted, the values.
Case WithOwnScale(const Groups& groups, size_t x_offset, bool with_values) {
  Case c = WithOutlier(groups, x_offset);
  Chain chain = c.chain();
  chain.store.type = DataType::kUint8;
  chain.store.dynamic = DynamicQuantization{1, 2, with_values ? 3 : kNoOutput};
  c.steps = std::move(chain);
  c.output_types = {DataType::kUint8, DataType::kFloat32, DataType::kUint8};
  if (with_values) c.output_types.push_back(DataType::kFloat32);
  return c;
}

// A scale of all values does depend on the batch. On nothing else, and the values are those of the chain without it.
TEST(ScalesOfTheirOwnDoNotDependOnThePath) {
  OnEveryIsa([](const std::string& isa) {
    for (const Recipe& recipe : kRecipes) {
      if (recipe.Has("Quantize") || recipe.Has("Emit") || recipe.Has("Store") || recipe.x == DataType::kFloat16 ||
          recipe.x == DataType::kBfloat16)
        continue;
      for (const int64_t width : {1, 31, 128, 1030, 40000}) {
        const Groups groups(recipe, 9, {width});
        const std::string what = isa + " " + recipe.steps + " of " + std::to_string(width) + ": ";
        const std::vector<Bytes> expected = OutputsOf(WithOwnScale(groups, 0, true), {});
        EXPECT(OutputsOf(WithOutlier(groups, 0), {})[0] == expected[3], what + "values");
        const auto same = [&](const char* words, const Setting& setting) {
          ForcePath(words);
          for (const bool with_values : {false, true}) {
            const std::vector<Bytes> got = OutputsOf(WithOwnScale(groups, setting.x_offset, with_values), setting);
            EXPECT(std::equal(got.begin(), got.end(), expected.begin()),
                   what + words + " " + std::to_string(setting.threads) + " threads");
          }
          ForcePath("");
        };
        for (const char* words : kForcedPaths) same(words, {.threads = 2});
        for (const int threads : {1, 3}) same("", {.threads = threads});
        same("", {.x_offset = 1});
        same("", {.y_offset = 4});
      }
    }
  });
}

// Every byte of X, by the table and by the kernels that it was made with, wherever X and Y lie.
TEST(TablesOfBytesGiveTheSameBits) {
  for (const std::string& isa : AvailableIsas()) {
    ForceIsa(isa);
    for (const char* x_type : {"int8", "uint8"}) {
      for (const char* y_type : {"int8", "uint8"}) {
        for (const char* activation : {"Identity", "Gelu", "LeakyRelu"}) {
          const std::string what = isa + ": " + activation;
          for (const int64_t count : {1, 31, 256, 1000, 70001}) {
            for (const size_t offset : {0, 3}) {
              const auto run = [&](const char* words, int threads) {
                ForcePath(words);
                Case c = OfBytes(x_type, y_type, activation, count, offset);
                std::unique_ptr<Executable> executable;
                Result result = CompileForCpu(c.chain(), &executable);
                ArrayContext context(threads);
                context.ShiftOutputs(offset);
                c.FillContext(&context);
                if (result.ok()) result = executable->Run(context);
                EXPECT(result.ok(), result.message());
                EXPECT((PathOf(c.chain()).find("by a table") != std::string::npos) == (*words == 0), what);
                const Tensor& y = context.output(0);
                return Bytes(y.data(), y.data() + count);
              };
              const Bytes expected = run("blocks", 1);
              EXPECT(run("", 1) == expected, what);
              EXPECT(run("", 2) == expected, what);
            }
          }
        }
      }
    }
  }
  ForcePath("");
  ForceIsa("");
}

// A scale for each element of the last dimension: what is dequantised goes straight into Y. Or a product of two.
TEST(DequantisingIsTheSameByAnyStore) {
  OnEveryIsa([](const std::string& isa) {
    for (const std::string type : {"int8", "uint16", "int32", "float8e4m3fn"}) {
      const std::string x = "X=" + type + "[5,1104] ";
      for (const char* words : {"cached", "nontemporal"}) {
        ForcePath(words);
        RunAndCompare(FromSteps("Dequantize scale=s zero_point=z", x + "s=[1104] z=" + type + "[1104]"), 1, isa + x);
        RunAndCompare(FromSteps("Dequantize scale=s zero_point=z; Mul P scale=p",
                                x + "s=1.25 z=" + type + "(4) P=int8[5,1104] p=0.125"),
                      1, isa + x + "product");
      }
    }
  });
  ForcePath("");
}

// Pairs that are one, that hold the clamp behind them, and that look so but are not; with a pair of float8 in front or behind, with
// which the steps are taken one by one.
TEST(PairsGiveTheSameBitsByBlocks) {
  struct Row {
    double first, divisor, second;
    std::string clip = "";
    std::string front = "", behind = "";
  };
  const std::string rare = "FakeQuantize scale=r type=float8e4m3fn";
  const Row rows[] = {{0.125, 6, 0.125 / 6},
                      {0.125, 6, 0.125 / 6, "; Clip min=-1 max=1"},
                      {0.125, 6, 0.125 / 6, "; Clip min=-1e30 max=1"},
                      {0.125, 1, 0.125, "; Clip min=1 max=-1"},
                      {0.125, 1, 0.25, "; Clip min=-1"},
                      {2e9, 4, 5e8},
                      {5e-10, 0.5, 1e-9},
                      {-0.125, 1, -0.125, "; Clip min=-1 max=1"},
                      {0.125, 6, 0.125 / 6, "", rare + "; "},
                      {0.125, 6, 0.125 / 6, "", "", "; " + rare}};
  OnEveryIsa([&](const std::string& isa) {
    for (const Row& row : rows) {
      Tensor x = FewValues(kF32, {3, 700}, 3);
      for (int64_t i = 0; i < x.Count(); ++i) x.Set(i, (x.At(i) - 1) * 60 * row.first);
      const auto number = [](double value) { return MakeFloats({}, {value}); };
      const std::string steps = row.front + "FakeQuantize scale=a type=int8" + row.clip +
                                "; Div d; FakeQuantize scale=c type=int8" + row.behind;
      const Case c = FromSteps(steps, "r=1",
                               {{"X", std::move(x)},
                                {"a", number(row.first), true},
                                {"d", number(row.divisor), true},
                                {"c", number(row.second), true}});
      const std::vector<Bytes> chosen = OutputsOf(c, {});
      ForcePath("blocks");
      EXPECT(OutputsOf(c, {}) == chosen, isa + " " + steps);
      if ((row.front + row.behind).empty()) RunAndCompare(c, 1, isa + " " + steps);
      ForcePath("");
    }
  });
}

// Blocks stay blocks where a pipeline would be chosen.
TEST(ForcedBlocksAreNoPipeline) {
  OnEveryIsa([](const std::string& isa) {
    ForcePath("blocks");
    const std::string path = PathOf(Groups(kRecipes[1], 1, {5000}).Make(0, 1, 0).chain(), {.x = {9, 5000}});
    EXPECT(path.starts_with("groups of blocks, result of blocks"), isa + ": " + path);
    ForcePath("");
  });
}

TEST(UnknownPathsAreAnError) {
  ForcePath("rows,sideways");
  std::unique_ptr<Executable> executable;
  const Result result = CompileForCpu(Groups(kRecipes[0], 2, {8}).Make(0, 2, 0).chain(), &executable);
  EXPECT(!result.ok() && result.message().find("'sideways'") != std::string::npos, result.message());
  ForcePath("");
}

// Every row of the list of kernels against the way by blocks.
TEST(EveryKernelGivesWhatBlocksGive) {
  for (const std::string& isa : AvailableIsas()) {
    ForceIsa(isa);
    for (const cpu::SecondPassKernel& kernel : cpu::kSecondPassKernels) {
      if (kernel.x != kernel.y && kernel.operands == cpu::SumKind::kSingle && IsQuantized(kernel.x) &&
          IsQuantized(kernel.y))
        continue;
      for (const char* activation : {"", "; Relu", "; Gelu", "; Swish", "; HardSwish"}) {
        for (const char* affine : {"", "; Mul s; Add b"}) {
          const std::string y = NameOf(kernel.y);
          const std::string read = std::string(IsQuantized(kernel.x) ? DQ : "") +
                                   (kernel.operands != cpu::SumKind::kSingle ? "Add R; " : "") +
                                   (kernel.operands == cpu::SumKind::kBiasedPair ? "Add r; " : "");
          const Recipe recipe{
              read + "Normalize @" + affine + activation + (IsQuantized(kernel.y) ? Q("") : "; Store type=") + y,
              kernel.x};
          const Groups groups(recipe, 5, {77});
          const std::vector<Bytes> chosen = groups.Run(0, 5, {});
          ForcePath("blocks");
          EXPECT(groups.AreIn(groups.Run(0, 5, {}), 0, chosen), isa + " " + NameOf(kernel.x) + " " + recipe.steps);
          ForcePath("");
        }
      }
    }
  }
  ForceIsa("");
}

// What is chosen for what, with AVX2.
TEST(ChooseIsATable) {
  const std::vector<std::string> isas = AvailableIsas();
  if (std::find(isas.begin(), isas.end(), "avx2") == isas.end()) return;
  ForceIsa("avx2");
  struct Row {
    int recipe;
    std::vector<int64_t> shape;
    int threads;
    size_t y_offset;
    const char* path;
  };
  const Row rows[] = {
      {0, {1, 768}, 2, 0, "rows of input, result of input, both passes in one kernel, cached, tiles of 4, 1 thread"},
      {0, {128, 768}, 1, 4, "rows of input, result of input, both passes in one kernel, cached, tiles of 4, 1 thread"},
      {0, {4096, 768}, 1, 0, "rows of input, result of input, overlapping passes, non-temporal, tiles of 1, 1 thread"},
      {0, {4095, 768}, 1, 0, "rows of input, result of input, both passes in one kernel, cached, tiles of 4, 1 thread"},
      {3, {8192, 768}, 1, 0, "rows of input, result of input, non-temporal, tiles of 2, 1 thread"},
      {7, {4096, 768}, 1, 0, "rows of input, result of input, overlapping passes, non-temporal, tiles of 1, 1 thread"},
      {0, {4096, 768}, 2, 4, "rows of input, result of input, non-temporal lines, tiles of 1, 2 threads"},
      {0, {4096, 768}, 1, 2, "rows of input, result of input, both passes in one kernel, cached, tiles of 4, 1 thread"},
      {0, {64, 5000}, 1, 0, "rows of input, result of input, cached, tiles of 2, 1 thread"},
      {0, {4, 50000}, 1, 0, "groups of input, result of input, cached, 1 thread"},
      {1, {64, 5000}, 1, 0, "pipeline of input, result of input, cached, 1 thread"},
      {0, {1, 500000}, 4, 0, "shared groups of input, result of input, cached, 4 threads"},
      {6, {128, 768}, 1, 0, "rows of input, result of input, cached, tiles of 2, 1 thread"},
      {7, {128, 768}, 1, 0, "rows of input, result of sum, cached, tiles of 2, 1 thread"},
      {11, {128, 768}, 1, 0, "rows of input, result of kept, cached, tiles of 4, 1 thread"},
      {11, {16, 5000}, 1, 0, "rows of input, result of kept, overlapping passes, cached, tiles of 1, 1 thread"},
      {11, {16, 9000}, 1, 0, "rows of input, result of input, cached, tiles of 2, 1 thread"},
      {15, {128, 768}, 1, 0, "rows of input, result of input, stored integers, cached, tiles of 16, 1 thread"},
      {18, {128, 768}, 1, 0, "softmax of input, result of blocks, cached, 1 thread"},
      {21, {128, 768}, 1, 0, "softmax of blocks, result of blocks, cached, 1 thread"},
  };
  for (const Row& row : rows) {
    const Groups groups(kRecipes[row.recipe], 1, {row.shape.back()});
    const std::string got =
        PathOf(groups.Make(0, 1, 0).chain(), {.x = row.shape, .threads = row.threads, .y_offset = row.y_offset});
    EXPECT(got == row.path, kRecipes[row.recipe].steps + ": " + got);
  }
  ForceIsa("");
}

// Columns side by side, some of which are summed again: their first values say nothing of the others.
TEST(ColumnsDoNotDependOnTheirNeighbours) {
  OnEveryIsa([](const std::string& isa) {
    constexpr int64_t kRows = 400;
    constexpr int64_t kColumns = 700;
    std::mt19937 random(7);
    std::normal_distribution<double> normal;
    std::vector<double> values(static_cast<size_t>(kRows * kColumns));
    for (size_t i = 0; i < values.size(); ++i) {
      const size_t column = i % kColumns;
      const bool begins = i / kColumns < 20;
      values[i] = normal(random) + (column % 5 == 1 && !begins ? 1e4 : 0);
      if (column % 97 == 3) values[i] *= 1e30;
    }
    const auto run = [&](int64_t begin, int64_t end, int threads) {
      std::vector<double> some;
      for (int64_t row = 0; row < kRows; ++row) {
        some.insert(some.end(), values.begin() + row * kColumns + begin, values.begin() + row * kColumns + end);
      }
      Case c;
      c.parts.name = "columns";
      c.parts.x.type = DataType::kFloat32;
      c.parts.x.tensor = c.Add(MakeFloats({kRows, end - begin}, some), false);
      c.parts.normalization.axes = {0};
      c.parts.y_type = DataType::kFloat32;
      c.output_types = {DataType::kFloat32};
      std::unique_ptr<Executable> executable;
      EXPECT(CompileForCpu(c.chain(), &executable).ok(), "compile");
      ArrayContext context(threads);
      c.FillContext(&context);
      EXPECT(executable->Run(context).ok(), "run");
      std::vector<double> y;
      for (int64_t i = 0; i < kRows * (end - begin); ++i) y.push_back(context.output(0).At(i));
      return y;
    };
    const std::vector<double> all = run(0, kColumns, 1);
    EXPECT(run(0, kColumns, 3) == all, isa + " 3 threads");
    for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, 2}, {2, 4}, {1, 3}, {3, 40}, {500, 700}}) {
      const std::vector<double> some = run(begin, end, 1);
      bool same = true;
      for (int64_t i = 0; i < kRows * (end - begin); ++i) {
        const int64_t row = i / (end - begin);
        same &= some[static_cast<size_t>(i)] == all[static_cast<size_t>(row * kColumns + begin + i % (end - begin))];
      }
      EXPECT(same, isa + " columns from " + std::to_string(begin) + " to " + std::to_string(end));
    }
  });
}

}  // namespace
}  // namespace normfuse::test

NORMFUSE_TEST_MAIN
