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

// What is computed of rows, and in which types.
struct Recipe {
  const char* name;
  DataType x = DataType::kFloat32;
  DataType y = DataType::kFloat32;
  Activation activation = Activation::kIdentity;
  bool affine = true;  // a scale for each element
  bool bias = true;    // and a bias
  bool residual = false;
  bool residual_bias = false;
  bool product = false;  // with an int8 factor for each element
  bool sum = false;
  bool use_mean = true;
  Method method = Method::kStandard;
  bool far = false;         // every third group lies far from the others
  bool flat = false;        // every third group is one value
  bool onset = false;       // every third group begins far from where it goes on
  bool infinite = false;    // every third group holds an infinity
  bool by_channel = false;  // the affine is one for each index of the group's first dimension
  // Behind it a Mul and an Add with one number for each group, and a Mul like the affine.
  bool modulated = false;
  bool beyond_float = false;  // and of every third group their product with the scale is no float
  double size = 1;            // of every third group, times that
  double scale = 1;           // all scales, times that
  double x_scale = 0.05;      // of quantised X
};

const Recipe kRecipes[] = {
    {"LayerNorm"},
    {.name = "LayerNorm without affine", .affine = false},
    {.name = "LayerNorm, Relu", .activation = Activation::kRelu},
    {.name = "LayerNorm, Gelu", .activation = Activation::kGelu},
    {.name = "LayerNorm, some huge, Swish", .activation = Activation::kSwish, .size = 1e30},
    {.name = "RMSNorm", .use_mean = false},
    {.name = "Add, LayerNorm", .residual = true},
    {.name = "Add, LayerNorm, sum", .residual = true, .sum = true},
    {.name = "Add, LayerNorm, Gelu", .activation = Activation::kGelu, .residual = true},
    {.name = "Add, LayerNorm, Q", .y = DataType::kInt8, .residual = true},
    {.name = "LayerNorm, Gelu, Q", .y = DataType::kUint8, .activation = Activation::kGelu},
    {.name = "float16", .x = DataType::kFloat16, .y = DataType::kFloat16},
    {.name = "float16, Gelu", .x = DataType::kFloat16, .y = DataType::kFloat16, .activation = Activation::kGelu},
    {.name = "float16, Add", .x = DataType::kFloat16, .y = DataType::kFloat16, .residual = true},
    {.name = "bfloat16, some huge", .x = DataType::kBfloat16, .y = DataType::kBfloat16, .size = 1e30},
    {.name = "DQ, LayerNorm, Q", .x = DataType::kInt8, .y = DataType::kInt8},
    {.name = "DQ, LayerNorm, Gelu, Q", .x = DataType::kUint8, .y = DataType::kUint8, .activation = Activation::kGelu},
    {.name = "DQ int16, LayerNorm", .x = DataType::kInt16},
    {.name = "Softmax", .affine = false, .method = Method::kSoftmax},
    {.name = "LogSoftmax, float16",
     .x = DataType::kFloat16,
     .y = DataType::kFloat16,
     .affine = false,
     .method = Method::kLogSoftmax},
    {.name = "Add, Softmax", .affine = false, .residual = true, .method = Method::kSoftmax},
    {.name = "Add, Softmax, sum", .affine = false, .residual = true, .sum = true, .method = Method::kSoftmax},
    {.name = "DQ, Softmax, Q",
     .x = DataType::kUint8,
     .y = DataType::kUint8,
     .affine = false,
     .method = Method::kSoftmax},
    {.name = "LayerNorm by channel, Swish", .activation = Activation::kSwish, .by_channel = true},
    {.name = "LayerNorm, modulated, some onsets", .onset = true, .modulated = true},
    {.name = "LayerNorm by channel, modulated, Swish",
     .activation = Activation::kSwish,
     .by_channel = true,
     .modulated = true},
    {.name = "LayerNorm without affine, modulated, some huge, Gelu",
     .activation = Activation::kGelu,
     .affine = false,
     .modulated = true,
     .size = 1e30},
    {.name = "Add, LayerNorm by channel, modulated, Q",
     .y = DataType::kInt8,
     .residual = true,
     .by_channel = true,
     .modulated = true},
    {.name = "LayerNorm by channel, modulated, some beyond float, Relu",
     .activation = Activation::kRelu,
     .by_channel = true,
     .modulated = true,
     .beyond_float = true},
    {.name = "float16, modulated", .x = DataType::kFloat16, .y = DataType::kFloat16, .modulated = true},
    {.name = "Softmax, some far", .affine = false, .method = Method::kSoftmax, .far = true},
    {.name = "Softmax, some far, Q", .y = DataType::kUint8, .affine = false, .method = Method::kSoftmax, .far = true},
    {.name = "Softmax, float16",
     .x = DataType::kFloat16,
     .y = DataType::kFloat16,
     .affine = false,
     .method = Method::kSoftmax},
    {.name = "DQ int8, Softmax, some far",
     .x = DataType::kInt8,
     .affine = false,
     .method = Method::kSoftmax,
     .far = true},
    {.name = "Add, Add bias, LayerNorm", .residual = true, .residual_bias = true},
    {.name = "float16, Add, Add bias, sum",
     .x = DataType::kFloat16,
     .y = DataType::kFloat16,
     .residual = true,
     .residual_bias = true,
     .sum = true},
    {.name = "float16, Add, sum", .x = DataType::kFloat16, .y = DataType::kFloat16, .residual = true, .sum = true},
    {.name = "DQ int16, RMSNorm", .x = DataType::kInt16, .use_mean = false},
    {.name = "LayerNorm without affine, some onsets, Gelu",
     .activation = Activation::kGelu,
     .affine = false,
     .onset = true},
    {.name = "RMSNorm without bias", .bias = false, .use_mean = false},
    {.name = "LayerNorm, some flat", .flat = true},
    {.name = "Add, LayerNorm, sum, some flat", .residual = true, .sum = true, .flat = true},
    {.name = "float16, some flat", .x = DataType::kFloat16, .y = DataType::kFloat16, .flat = true},
    // Summed again, in float32 or in double.
    {.name = "LayerNorm without affine, some onsets", .affine = false, .onset = true},
    {.name = "Add, LayerNorm, sum, some onsets", .residual = true, .sum = true, .onset = true},
    {.name = "float16, some onsets", .x = DataType::kFloat16, .y = DataType::kFloat16, .onset = true},
    {.name = "DQ int16, LayerNorm, some onsets", .x = DataType::kInt16, .onset = true},
    {.name = "Mul, LayerNorm, some onsets", .product = true, .onset = true},
    {.name = "Mul, LayerNorm, some huge", .product = true, .size = 1e30},
    {.name = "Mul, LayerNorm, modulated, some onsets", .product = true, .onset = true, .modulated = true},
    {.name = "Mul, LayerNorm, modulated, some huge", .product = true, .modulated = true, .size = 1e30},
    {.name = "LayerNorm by channel, factors beyond float", .by_channel = true, .size = 1e-3, .scale = 2e36},
    {.name = "LayerNorm without affine, some huge", .affine = false, .size = 1e30},
    {.name = "LayerNorm, some huge, Q", .y = DataType::kInt8, .size = 1e30},
    {.name = "Add, RMSNorm, sum, some huge", .residual = true, .sum = true, .use_mean = false, .size = 1e30},
    {.name = "bfloat16 without affine, some huge",
     .x = DataType::kBfloat16,
     .y = DataType::kBfloat16,
     .affine = false,
     .size = 1e30},
    {.name = "DQ, LayerNorm of next to nothing", .x = DataType::kInt8, .onset = true, .x_scale = 1e-33},
    {.name = "DQ int16, LayerNorm of next to nothing", .x = DataType::kInt16, .onset = true, .x_scale = 1e-33},
    {.name = "DQ int16, LayerNorm, some flat", .x = DataType::kInt16, .flat = true, .x_scale = 1e12},
    {.name = "LayerNorm, some onsets, Gelu", .activation = Activation::kGelu, .onset = true},
    {.name = "LayerNorm without affine, some huge, Gelu",
     .activation = Activation::kGelu,
     .affine = false,
     .size = 1e30},
    {.name = "bfloat16 to float32, some huge", .x = DataType::kBfloat16, .size = 1e30},
    {.name = "float16, some infinite", .x = DataType::kFloat16, .y = DataType::kFloat16, .infinite = true},
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
      if (recipe.far || (recipe.onset && !begins)) x_.Set(i, x_.At(i) + 90);
      if (recipe.size != 1) x_.Set(i, x_.At(i) * recipe.size);
      if (recipe.infinite && i % size_ == size_ / 2) x_.Set(i, std::numeric_limits<double>::infinity());
    }
    residual_ = FewValues(recipe.x, Shape(count), 4);
    if (recipe.product) codes_ = FewValues(DataType::kInt8, Shape(count), 11);
    for (int64_t i = 0; recipe.flat && i < x_.Count(); ++i) {
      if (i / size_ % 3 != 2) continue;
      x_.Set(i, 1.5);
      residual_.Set(i, 0.25);
    }
    scale_ = FewValues(DataType::kFloat32, AffineShape(), 5);
    for (int64_t i = 0; recipe.scale != 1 && i < scale_.Count(); ++i) scale_.Set(i, scale_.At(i) * recipe.scale);
    bias_ = FewValues(DataType::kFloat32, AffineShape(), 6);
    group_scale_ = FewValues(DataType::kFloat32, {count}, 7);
    group_bias_ = FewValues(DataType::kFloat32, {count}, 8);
    factor_ = FewValues(DataType::kFloat32, AffineShape(), 9);
    residual_bias_ = FewValues(DataType::kFloat32, {inner_.back()}, 10);
  }
  int64_t count() const { return count_; }

  // Groups `begin` to `begin` + `count` as a call of their own.
  Case Make(int64_t begin, int64_t count, size_t x_offset) const {
    Case c;
    Parts& parts = c.parts;
    parts.name = "invariance";
    parts.x.type = recipe_.x;
    parts.x.tensor = c.Add(Slice(x_, Shape(count), begin * size_, x_offset), false);
    if (IsQuantized(recipe_.x)) {
      parts.x.quantization.scale = c.Add(MakeFloats({}, {recipe_.x_scale}), true);
      Tensor zero = MakeTensor(recipe_.x, {});
      zero.Set(0, 7);
      parts.x.quantization.zero_point = c.Add(std::move(zero), true);
    }
    if (recipe_.residual) {
      parts.residual.type = recipe_.x;
      parts.residual.tensor = c.Add(Slice(residual_, Shape(count), begin * size_, x_offset), false);
    }
    if (recipe_.product) {
      Operand operand = Floats(c.Add(Slice(codes_, Shape(count), begin * size_, x_offset), false));
      operand.type = DataType::kInt8;
      operand.quantization.scale = c.Add(MakeFloats({}, {0.02}), true);
      parts.before = {Mul(operand)};
    }
    if (recipe_.residual_bias) {
      parts.residual_bias = Floats(c.Add(residual_bias_, true));
    }
    for (size_t i = 1; i <= inner_.size(); ++i) parts.normalization.axes.push_back(static_cast<int64_t>(i));
    parts.normalization.use_mean = recipe_.use_mean;
    parts.normalization.method = recipe_.method;
    if (recipe_.affine) {
      parts.scale = Floats(c.Add(scale_, true));
    }
    if (recipe_.affine && recipe_.bias) parts.bias = Floats(c.Add(bias_, true));
    ActivationCall activation{recipe_.activation, {1.0f}};
    if (recipe_.modulated) {
      parts.behind = {Mul(Floats(c.Add(Modulation(begin, count, group_scale_), false))),
                      Add(Floats(c.Add(Modulation(begin, count, group_bias_), false))),
                      Mul(Floats(c.Add(factor_, false)))};
      if (activation.kind != Activation::kIdentity) parts.behind.push_back(Activate(activation));
    } else {
      parts.activation = activation;
    }
    parts.y_type = recipe_.y;
    if (IsQuantized(recipe_.y)) parts.y_quantization.scale = c.Add(MakeFloats({}, {0.037}), true);
    c.output_types = {recipe_.y};
    if (recipe_.sum) {
      parts.sum_output = 1;
      parts.sum_type = recipe_.x;
      c.output_types.push_back(recipe_.x);
    }
    return c;
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

  static Operand Floats(TensorRef tensor) {
    Operand operand;
    operand.type = DataType::kFloat32;
    operand.tensor = std::move(tensor);
    operand.name = "operand";
    return operand;
  }

  std::vector<int64_t> AffineShape() const {
    if (!recipe_.by_channel) return {inner_.back()};
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
      const bool beyond = recipe_.beyond_float && (begin + i) % 3 == 2;
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
        Compare(Groups(recipe, 37, {width}), isa + " " + recipe.name + " of " + std::to_string(width));
      }
    }
  });
}

// Rows so long that both passes overlap, and that threads share one.
TEST(LongRowsDoNotDependOnTheirBatch) {
  OnEveryIsa([](const std::string& isa) {
    for (const Recipe& recipe : kRecipes) {
      for (const int64_t width : {5000, 70000}) {
        Compare(Groups(recipe, 5, {width}), isa + " " + recipe.name + " of " + std::to_string(width));
      }
    }
  });
}

// Groups of several runs each, whose scale goes along the innermost.
TEST(GroupsOfSeveralRunsDoNotDependOnTheirBatch) {
  OnEveryIsa([](const std::string& isa) {
    for (const Recipe& recipe : kRecipes) {
      for (const std::vector<int64_t>& inner : {std::vector<int64_t>{7, 49}, {5, 130}, {40, 1000}}) {
        Compare(Groups(recipe, 7, inner), isa + " " + recipe.name + " of " + std::to_string(inner[0]) + " runs");
      }
    }
  });
}

// What is written without the caches is as it would be within them.
TEST(LargeTensorsAreTheSameAsTheirRows) {
  OnEveryIsa([](const std::string& isa) {
    for (const Recipe& recipe : {kRecipes[0], kRecipes[7]}) {
      for (const int64_t width : {1008, 1007}) {
        Compare(Groups(recipe, 1700, {width}), isa + " " + recipe.name + " of " + std::to_string(width));
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
Case OfBytes(DataType x_type, DataType y_type, Activation activation, int64_t count, size_t offset) {
  Case c;
  c.parts.name = "bytes";
  Tensor x = MakeTensor(x_type, {count}, offset);
  for (int64_t i = 0; i < count; ++i) x.data()[i] = static_cast<unsigned char>(i * 7);
  c.parts.x.type = x_type;
  c.parts.x.tensor = c.Add(std::move(x), false);
  const auto number = [&](DataType type, double value) {
    Tensor tensor = MakeTensor(type, {});
    tensor.Set(0, value);
    return c.Add(std::move(tensor), true);
  };
  c.parts.x.quantization.scale = number(DataType::kFloat32, 0.04);
  c.parts.x.quantization.zero_point = number(x_type, 100);
  c.parts.y_type = y_type;
  c.parts.y_quantization.scale = number(DataType::kFloat32, 0.03);
  c.parts.y_quantization.zero_point = number(y_type, 9);
  c.output_types = {y_type};
  c.parts.normalizes = false;
  c.parts.activation.kind = activation;
  c.parts.activation.params[0] = kActivations[static_cast<int>(activation)].defaults[0];
  return c;
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
        if (inner[0] == 40000 && !recipe.onset && !recipe.flat && recipe.size == 1) continue;
        const Groups groups(recipe, 9, inner);
        const std::vector<Bytes> chosen = groups.Run(0, groups.count(), {});
        // Single steps overflow in float32, too.
        if (inner.size() == 1 && inner[0] < 2000 && !recipe.beyond_float)
          RunAndCompare(groups.Make(0, groups.count(), 0), 1, isa + " " + recipe.name);
        for (const char* words : kForcedPaths) {
          ForcePath(words);
          for (const Setting& setting : {Setting{.threads = 1}, {.threads = 2}, {.threads = 2, .y_offset = 4}}) {
            const std::string what = isa + " " + recipe.name + " of " + std::to_string(inner.back()) + ": " + words;
            EXPECT(groups.AreIn(groups.Run(0, groups.count(), setting), 0, chosen), what);
          }
          std::vector<int64_t> shape = inner;
          shape.insert(shape.begin(), groups.count());
          // With parameters that are inputs it depends on their shapes.
          if (!recipe.modulated) seen.push_back(PathOf(groups.Make(0, 1, 0).chain(), {.x = shape}));
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
  joined.parts.behind = {Mul(joined.parts.scale), Add(joined.parts.bias)};
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
      if (recipe.y != DataType::kFloat32 || recipe.sum) continue;
      for (const int64_t width : {1, 31, 128, 1030, 40000}) {
        const Groups groups(recipe, 9, {width});
        const std::string what = isa + " " + recipe.name + " of " + std::to_string(width) + ": ";
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
    for (const DataType x_type : {DataType::kInt8, DataType::kUint8}) {
      for (const DataType y_type : {DataType::kInt8, DataType::kUint8}) {
        for (const Activation activation : {Activation::kIdentity, Activation::kGelu, Activation::kLeakyRelu}) {
          const std::string what = isa + ": " + kActivations[static_cast<int>(activation)].name;
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
    const DataType types[] = {DataType::kInt8, DataType::kUint16, DataType::kInt32, DataType::kFloat8e4m3fn};
    for (int i = 0; i < 8; ++i) {
      const DataType type = types[i % 4];
      const bool multiplies = i >= 4;
      for (const char* words : {"cached", "nontemporal"}) {
        ForcePath(words);
        Case c;
        c.parts.name = "dequantise";
        c.parts.normalizes = false;
        c.parts.x.type = type;
        Tensor x = MakeTensor(type, {5, 1104});
        for (int64_t i = 0; i < x.Count(); ++i) x.Set(i, static_cast<double>(i * 7 % 120));
        c.parts.x.tensor = c.Add(std::move(x), false);
        const std::vector<int64_t> shape = multiplies ? std::vector<int64_t>{} : std::vector<int64_t>{1104};
        c.parts.x.quantization.scale = c.Add(FewValues(DataType::kFloat32, shape, 5), true);
        Tensor zero = MakeTensor(type, shape);
        for (int64_t i = 0; i < zero.Count(); ++i) zero.Set(i, static_cast<double>(i % 5));
        c.parts.x.quantization.zero_point = c.Add(std::move(zero), true);
        c.parts.y_type = DataType::kFloat32;
        c.output_types = {DataType::kFloat32};
        if (multiplies) {
          Operand factor;
          factor.name = "factor";
          factor.type = DataType::kInt8;
          factor.tensor = c.Add(FewValues(DataType::kInt8, {5, 1104}, 6), false);
          factor.quantization.scale = c.Add(MakeFloats({}, {0.125}), true);
          c.parts.behind = {Mul(factor)};
        }
        RunAndCompare(c, 1, isa + " " + words + " " + NameOf(type));
      }
    }
  });
  ForcePath("");
}

// Pairs that are one, that hold the clamp behind them, and that look so but are not.
TEST(PairsGiveTheSameBitsByBlocks) {
  struct Row {
    double first;  // scale of a pair
    double divisor;
    float low, high;  // of a Clip, behind a pair and in front of the next
    double second;
    int rare = -1;  // where a pair of float8 stands, with which the steps are taken one by one
  };
  constexpr float kMost = std::numeric_limits<float>::max();
  const Row rows[] = {{0.125, 6, -kMost, kMost, 0.125 / 6},
                      {0.125, 6, -1, 1, 0.125 / 6},
                      {0.125, 6, -1e30f, 1, 0.125 / 6},
                      {0.125, 1, 1, -1, 0.125},
                      {0.125, 1, -1, kMost, 0.25},
                      {2e9, 4, -kMost, kMost, 5e8},
                      {5e-10, 0.5, -kMost, kMost, 1e-9},
                      {-0.125, 1, -1, 1, -0.125},
                      {0.125, 6, -kMost, kMost, 0.125 / 6, 0},
                      {0.125, 6, -kMost, kMost, 0.125 / 6, 3}};
  OnEveryIsa([&](const std::string& isa) {
    for (const Row& row : rows) {
      Case c;
      Chain chain;
      chain.name = "pairs";
      chain.x.type = chain.store.type = DataType::kFloat32;
      chain.x.name = "X";
      Tensor x = FewValues(DataType::kFloat32, {3, 700}, 3);
      for (int64_t i = 0; i < x.Count(); ++i) x.Set(i, (x.At(i) - 1) * 60 * row.first);
      chain.x.tensor = c.Add(std::move(x), false);
      const auto number = [&c](double value) { return c.Add(MakeFloats({}, {value}), true); };
      const auto pair = [&](double scale, DataType type = DataType::kInt8) {
        Quantization q;
        q.scale = number(scale);
        return FakeQuantise(q, type);
      };
      Operand divisor;
      divisor.name = "divisor";
      divisor.type = DataType::kFloat32;
      divisor.tensor = number(row.divisor);
      chain.behind = {pair(row.first), Activate({Activation::kClip, {row.low, row.high}}),
                      Combine(StepKind::kDiv, divisor), pair(row.second)};
      if (row.low == -kMost) chain.behind.erase(chain.behind.begin() + 1);
      if (row.rare >= 0) chain.behind.insert(chain.behind.begin() + row.rare, pair(1, DataType::kFloat8e4m3fn));
      c.steps = chain;
      c.output_types = {DataType::kFloat32};
      const std::vector<Bytes> chosen = OutputsOf(c, {});
      ForcePath("blocks");
      const std::string what = isa + " " + std::to_string(&row - rows);
      EXPECT(OutputsOf(c, {}) == chosen, what);
      if (row.rare < 0) RunAndCompare(c, 1, what);
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
      for (const Activation activation :
           {Activation::kIdentity, Activation::kRelu, Activation::kGelu, Activation::kSwish, Activation::kHardSwish}) {
        for (const bool affine : {false, true}) {
          const Recipe recipe{.name = "kernel",
                              .x = kernel.x,
                              .y = kernel.y,
                              .activation = activation,
                              .affine = affine,
                              .residual = kernel.operands != cpu::SumKind::kSingle,
                              .residual_bias = kernel.operands == cpu::SumKind::kBiasedPair};
          const Groups groups(recipe, 5, {77});
          const std::vector<Bytes> chosen = groups.Run(0, 5, {});
          ForcePath("blocks");
          EXPECT(groups.AreIn(groups.Run(0, 5, {}), 0, chosen), isa + " " + NameOf(kernel.x) + " to " +
                                                                    NameOf(kernel.y) + " " +
                                                                    kActivations[static_cast<int>(activation)].name);
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
    EXPECT(got == row.path, std::string(kRecipes[row.recipe].name) + ": " + got);
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
