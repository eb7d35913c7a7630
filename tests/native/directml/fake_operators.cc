#include "fake_operators.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>

#include "cpu/run/elements.h"
#include "scalar_conversions.h"

namespace normfuse::test {
namespace {

using namespace abi;
using enum DmlField;
using Index = std::vector<uint32_t>;
using Data = std::vector<const uint8_t*>;

constexpr int kBits[] = {0, 32, 16, 32, 16, 8, 32, 16, 8, 64, 64, 64, 4, 4};

// --- elements ---------------------------------------------------------------------------------------------------------

uint64_t Offset(const FakeTensor& tensor, const Index& index) {
  uint64_t at = 0;
  for (size_t i = 0; i < index.size(); ++i) at += uint64_t{index[i]} * tensor.strides[i];
  return at;
}

template <typename T>
double Get(const uint8_t* data, uint64_t at) {
  T value;
  std::memcpy(&value, data + at * sizeof(T), sizeof(T));
  return static_cast<double>(value);
}

double GetHalf(const uint8_t* data, uint64_t at) {
  return cpu::HalfToFloat(static_cast<uint16_t>(Get<uint16_t>(data, at)));
}

template <bool is_signed>
double GetNibble(const uint8_t* data, uint64_t at) {
  const int value = data[at / 2] >> (at % 2 * 4) & 15;
  return is_signed && value > 7 ? value - 16 : value;
}

double ReadAt(const FakeTensor& tensor, const uint8_t* data, uint64_t at) {
  constexpr double (*kByType[])(const uint8_t*, uint64_t) = {
      nullptr,      Get<float>,  GetHalf,     Get<uint32_t>, Get<uint16_t>, Get<uint8_t>,     Get<int32_t>,
      Get<int16_t>, Get<int8_t>, Get<double>, Get<uint64_t>, Get<int64_t>,  GetNibble<false>, GetNibble<true>};
  return kByType[tensor.type](data, at);
}

double Read(const FakeTensor& tensor, const uint8_t* data, const Index& index) {
  return ReadAt(tensor, data, Offset(tensor, index));
}

template <typename T>
void Put(uint8_t* data, uint64_t at, T value) {
  std::memcpy(data + at * sizeof(T), &value, sizeof(T));
}

void Write(const FakeTensor& tensor, uint8_t* data, const Index& index, double value) {
  const uint64_t at = Offset(tensor, index);
  const auto integer = std::isnan(value) ? int64_t{0} : static_cast<int64_t>(std::clamp(value, -4.3e9, 4.3e9));
  switch (tensor.type) {
    case DML_TENSOR_DATA_TYPE_FLOAT32:
      return Put(data, at, static_cast<float>(value));
    case DML_TENSOR_DATA_TYPE_FLOAT16:
      return Put(data, at, NarrowToHalf(static_cast<float>(value)));
    case DML_TENSOR_DATA_TYPE_UINT16:
    case DML_TENSOR_DATA_TYPE_INT16:
      return Put(data, at, static_cast<uint16_t>(integer));
    case DML_TENSOR_DATA_TYPE_UINT8:
    case DML_TENSOR_DATA_TYPE_INT8:
      return Put(data, at, static_cast<uint8_t>(integer));
    case DML_TENSOR_DATA_TYPE_UINT4:
    case DML_TENSOR_DATA_TYPE_INT4: {
      const int shift = static_cast<int>(at % 2) * 4;
      data[at / 2] = static_cast<uint8_t>((data[at / 2] & ~(15 << shift)) | ((integer & 15) << shift));
      return;
    }
    default:
      return Put(data, at, static_cast<uint32_t>(integer));
  }
}

// Calls visit(index) for every element of `sizes`, the last dimension fastest.
template <typename Visit>
void ForEach(const std::vector<uint32_t>& sizes, Visit&& visit) {
  Index index(sizes.size(), 0);
  while (true) {
    visit(index);
    size_t d = sizes.size();
    while (d > 0 && ++index[d - 1] == sizes[d - 1]) index[--d] = 0;
    if (d == 0) return;
  }
}

// --- descriptions -----------------------------------------------------------------------------------------------------

FakeTensor ReadTensor(const DML_TENSOR_DESC* desc) {
  FakeTensor tensor;
  if (desc == nullptr) return tensor;
  const auto& buffer = *static_cast<const DML_BUFFER_TENSOR_DESC*>(desc->Desc);
  tensor.present = true;
  tensor.type = buffer.DataType;
  tensor.owned = buffer.Flags == DML_TENSOR_FLAG_OWNED_BY_DML;
  tensor.sizes.assign(buffer.Sizes, buffer.Sizes + buffer.DimensionCount);
  if (buffer.Strides != nullptr) {
    tensor.strides.assign(buffer.Strides, buffer.Strides + buffer.DimensionCount);
  } else {
    tensor.strides.resize(buffer.DimensionCount);
    uint32_t step = 1;
    for (size_t i = buffer.DimensionCount; i-- > 0; step *= tensor.sizes[i]) tensor.strides[i] = step;
  }
  tensor.bytes = buffer.TotalTensorSizeInBytes;
  return tensor;
}

std::string CheckTensor(const FakeTensor& tensor, uint32_t level) {
  if (!tensor.present) return "";
  if (tensor.sizes.empty() || tensor.sizes.size() > 8) return "rank";
  if (level < DML_FEATURE_LEVEL_3_1 && tensor.sizes.size() != 4) return "rank at this level";
  uint64_t last = 0;
  for (size_t i = 0; i < tensor.sizes.size(); ++i) {
    if (tensor.sizes[i] == 0) return "a dimension of 0";
    last += uint64_t{tensor.sizes[i] - 1} * tensor.strides[i];
  }
  const uint64_t needed = ((last + 1) * kBits[tensor.type] + 31) / 32 * 4;
  if (tensor.bytes % 4 != 0 || tensor.bytes < needed) return "TotalTensorSizeInBytes";
  return "";
}

using Function = std::function<double(double)>;

double HardSigmoid(double x, double alpha, double beta) { return std::max(0.0, std::min(1.0, alpha * x + beta)); }
double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double Softplus(double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::fabs(x))); }

struct FakeActivation {
  uint32_t level;
  double (*function)(double x, double a, double b);
};

// By number.
const std::map<int, FakeActivation> kActivations = {
    {35, {0, [](double x, double a, double) { return x >= 0 ? x : a * std::expm1(x); }}},
    {37, {0, HardSigmoid}},
    {38, {0, [](double x, double, double) { return x; }}},
    {39, {0, [](double x, double a, double) { return x >= 0 ? x : a * x; }}},
    {40, {0, [](double x, double a, double b) { return a * x + b; }}},
    {43, {0, [](double x, double a, double b) { return a * Softplus(b * x); }}},
    {44, {0, [](double x, double, double) { return std::max(0.0, x); }}},
    {45, {0, [](double x, double a, double b) { return x > 0 ? b * x : b * a * std::expm1(x); }}},
    {46, {0, [](double x, double a, double b) { return a * std::tanh(b * x); }}},
    {47, {0, [](double x, double, double) { return Sigmoid(x); }}},
    {49, {0, [](double x, double a, double) { return Softplus(a * x) / a; }}},
    {50, {0, [](double x, double, double) { return x / (1 + std::fabs(x)); }}},
    {51, {0, [](double x, double, double) { return std::tanh(x); }}},
    {52, {0, [](double x, double a, double) { return x > a ? x : 0; }}},
    {90, {0, [](double x, double a, double b) { return x < -b  ? x + a
                                                       : x > b ? x - a
                                                               : 0; }}},
    {128,
     {DML_FEATURE_LEVEL_3_0,
      [](double x, double a, double) { return std::max(0.0, x) + std::min(0.0, a * std::expm1(x / a)); }}},
    {157, {DML_FEATURE_LEVEL_5_1, [](double x, double, double) { return 0.5 * x * std::erfc(-x / std::sqrt(2.0)); }}},
    {167, {DML_FEATURE_LEVEL_6_2, [](double x, double a, double) { return x * Sigmoid(a * x); }}},
    {168, {DML_FEATURE_LEVEL_6_2, [](double x, double a, double b) { return x * HardSigmoid(x, a, b); }}},
};

// Nothing where this level has none of the number.
Function ActivationFunction(int type, const float* p, uint32_t level) {
  constexpr int kSoftplus = 49;
  const auto found = kActivations.find(type);
  if (found == kActivations.end() || level < found->second.level) return nullptr;
  if (type == kSoftplus && p[0] < 1 && level < DML_FEATURE_LEVEL_6_4) return nullptr;
  return [f = found->second.function, a = p[0], b = p[1]](double x) { return f(x, a, b); };
}

enum Kind { kNumbers, kBooleans };

struct Comparison {
  Kind operands;
  uint32_t level;
  bool (*function)(double, double);
};

const std::map<DML_OPERATOR_TYPE, double (*)(double)> kUnary = {
    {DML_OPERATOR_ELEMENT_WISE_IDENTITY, [](double x) { return x; }},
    {DML_OPERATOR_ELEMENT_WISE_SQRT, [](double x) { return std::sqrt(x); }},
    {DML_OPERATOR_ELEMENT_WISE_RECIP, [](double x) { return 1 / x; }},
    {DML_OPERATOR_ELEMENT_WISE_ERF, [](double x) { return std::erf(x); }},
    {DML_OPERATOR_ELEMENT_WISE_EXP, [](double x) { return std::exp(x); }},
    {DML_OPERATOR_ELEMENT_WISE_COS, [](double x) { return std::cos(x); }},
    {DML_OPERATOR_ELEMENT_WISE_SIN, [](double x) { return std::sin(x); }},
    {DML_OPERATOR_ELEMENT_WISE_ABS, [](double x) { return std::fabs(x); }},
    {DML_OPERATOR_ELEMENT_WISE_LOG, [](double x) { return std::log(x); }},
};
const std::map<DML_OPERATOR_TYPE, double (*)(double, double)> kBinary = {
    {DML_OPERATOR_ELEMENT_WISE_ADD, [](double a, double b) { return a + b; }},
    {DML_OPERATOR_ELEMENT_WISE_SUBTRACT, [](double a, double b) { return a - b; }},
    {DML_OPERATOR_ELEMENT_WISE_MULTIPLY, [](double a, double b) { return a * b; }},
    {DML_OPERATOR_ELEMENT_WISE_DIVIDE, [](double a, double b) { return a / b; }},
    {DML_OPERATOR_ELEMENT_WISE_MAX, [](double a, double b) { return std::fmax(a, b); }},
    {DML_OPERATOR_ELEMENT_WISE_MIN, [](double a, double b) { return std::fmin(a, b); }},
    {DML_OPERATOR_ELEMENT_WISE_POW, [](double a, double b) { return std::pow(a, b); }},
};
const std::map<DML_OPERATOR_TYPE, Comparison> kComparisons = {
    {DML_OPERATOR_ELEMENT_WISE_LOGICAL_EQUALS, {kNumbers, 0, [](double a, double b) { return a == b; }}},
    {DML_OPERATOR_ELEMENT_WISE_LOGICAL_GREATER_THAN, {kNumbers, 0, [](double a, double b) { return a > b; }}},
    {DML_OPERATOR_ELEMENT_WISE_LOGICAL_LESS_THAN, {kNumbers, 0, [](double a, double b) { return a < b; }}},
    {DML_OPERATOR_ELEMENT_WISE_LOGICAL_GREATER_THAN_OR_EQUAL,
     {kNumbers, DML_FEATURE_LEVEL_3_0, [](double a, double b) { return a >= b; }}},
    {DML_OPERATOR_ELEMENT_WISE_LOGICAL_LESS_THAN_OR_EQUAL,
     {kNumbers, DML_FEATURE_LEVEL_3_0, [](double a, double b) { return a <= b; }}},
    {DML_OPERATOR_ELEMENT_WISE_LOGICAL_AND, {kBooleans, 0, [](double a, double b) { return a != 0 && b != 0; }}},
    {DML_OPERATOR_ELEMENT_WISE_LOGICAL_OR, {kBooleans, 0, [](double a, double b) { return a != 0 || b != 0; }}},
    {DML_OPERATOR_ELEMENT_WISE_LOGICAL_XOR, {kBooleans, 0, [](double a, double b) { return (a != 0) != (b != 0); }}},
};

class Reader {
 public:
  Reader(const DML_OPERATOR_DESC& desc, uint32_t level, FakeKernel* kernel)
      : type_(desc.Type), level_(level), kernel_(kernel) {
    ReadFields(static_cast<const uint8_t*>(desc.Desc));
  }

  std::string Run() {
    if (kernel_->inputs.empty() || !kernel_->inputs[0].present || !kernel_->output.present)
      return "a tensor is missing";
    ReadByType();
    for (const FakeTensor& tensor : kernel_->inputs) {
      if (problem_.empty()) problem_ = CheckTensor(tensor, level_);
    }
    if (problem_.empty()) problem_ = CheckTensor(kernel_->output, level_);
    return problem_;
  }

 private:
  void ReadFields(const uint8_t* desc) {
    size_t at = 0;
    const auto take = [&](auto value) {
      at = (at + sizeof(value) - 1) / sizeof(value) * sizeof(value);
      std::memcpy(&value, desc + at, sizeof(value));
      at += sizeof(value);
      return value;
    };
    const DML_TENSOR_DESC* tensor = nullptr;
    const UINT* list = nullptr;
    for (DmlField field : FieldsOf(type_)) {
      if (field == kInput) {
        kernel_->inputs.push_back(ReadTensor(take(tensor)));
      } else if (field == kOutput) {
        kernel_->output = ReadTensor(take(tensor));
      } else if (field == kTensors) {
        const auto* tensors = take(tensor);
        for (UINT i = 0; i < Number(kTensorCount); ++i) kernel_->inputs.push_back(ReadTensor(&tensors[i]));
      } else if (field < kAxes) {
        pointers_[field] = take(static_cast<const void*>(nullptr));
        if (field == kNone && pointers_[field] != nullptr) Refuse("something that is not known here");
      } else if (field < kTensorCount) {
        const UINT count = Number(field == kAxes ? kAxisCount : kDimensionCount);
        const UINT* numbers = take(list);
        lists_[field].assign(numbers, numbers + count);
      } else if (field < kParameter) {
        numbers_[field] = take(UINT{});
        if (field <= kOne && field >= kZero && numbers_[field] != (field == kOne)) Refuse("a mode");
      } else {
        reals_[field].push_back(take(float{}));
      }
    }
  }

  UINT Number(DmlField field) const { return numbers_.at(field); }
  double Real(DmlField field, size_t index = 0) const { return reals_.at(field).at(index); }
  const Index& List(DmlField field) const { return lists_.at(field); }

  void Refuse(const char* why) {
    if (problem_.empty()) problem_ = why;
  }

  // Every tensor has the output's sizes, as element-wise operators ask.
  void SameSizes() {
    for (const FakeTensor& input : kernel_->inputs) {
      if (input.present && input.sizes != kernel_->output.sizes) Refuse("sizes differ");
    }
  }

  void ReadByType() {
    if (const auto unary = kUnary.find(type_); unary != kUnary.end()) return Unary(unary->second);
    if (const auto binary = kBinary.find(type_); binary != kBinary.end()) return Binary(binary->second);
    if (const auto found = kComparisons.find(type_); found != kComparisons.end()) return Compare(found->second);
    static const std::map<DML_OPERATOR_TYPE, void (*)(Reader&)> kOthers = {
        {DML_OPERATOR_ELEMENT_WISE_LOGICAL_NOT,
         [](Reader& r) { r.Predicate(kBooleans, [](double x) { return x == 0; }); }},
        {DML_OPERATOR_ELEMENT_WISE_IS_NAN,
         [](Reader& r) { r.Predicate(kNumbers, [](double x) { return std::isnan(x); }); }},
        {DML_OPERATOR_ELEMENT_WISE_CONSTANT_POW,
         [](Reader& r) { r.Map([exponent = r.Real(kParameter)](double x) { return std::pow(x, exponent); }); }},
        {DML_OPERATOR_ELEMENT_WISE_ROUND, [](Reader& r) { r.Map([](double x) { return std::nearbyint(x); }); }},
        {DML_OPERATOR_ELEMENT_WISE_CLIP, [](Reader& r) { r.Clip(); }},
        {DML_OPERATOR_CAST, [](Reader& r) { r.Cast(); }},
        {DML_OPERATOR_ELEMENT_WISE_IF, [](Reader& r) { r.If(); }},
        {DML_OPERATOR_GEMM, [](Reader& r) { r.Gemm(); }},
        {DML_OPERATOR_MATRIX_MULTIPLY_INTEGER, [](Reader& r) { r.QuantizedProduct(kIntegerOperands); }},
        {DML_OPERATOR_QUANTIZED_LINEAR_MATRIX_MULTIPLY,
         [](Reader& r) { r.QuantizedProduct({0, 1, 2, 3, 4, 5, kLeftOut, 6, 7}); }},
        {DML_OPERATOR_CONVOLUTION, [](Reader& r) { r.RealConvolution(); }},
        {DML_OPERATOR_CONVOLUTION_INTEGER, [](Reader& r) { r.QuantizedConvolution(kIntegerOperands); }},
        {DML_OPERATOR_QUANTIZED_LINEAR_CONVOLUTION,
         [](Reader& r) { r.QuantizedConvolution({0, 1, 2, 3, 4, 5, 6, 7, 8}); }},
        {DML_OPERATOR_GATHER, [](Reader& r) { r.Gather(); }},
        {DML_OPERATOR_JOIN, [](Reader& r) { r.Join(); }},
        {DML_OPERATOR_SLICE1, [](Reader& r) { r.Slice(); }},
        {DML_OPERATOR_ACTIVATION_SOFTMAX1, [](Reader& r) { r.Softmax(); }},
        {DML_OPERATOR_ACTIVATION_LOG_SOFTMAX1, [](Reader& r) { r.Softmax(); }},
        {DML_OPERATOR_AVERAGE_POOLING,
         [](Reader& r) { r.Pool(r.Number(kIncludePadding) ? kMeanOfWindow : kMeanOfElements); }},
        {DML_OPERATOR_MAX_POOLING2, [](Reader& r) { r.Pool(kLargest); }},
        {DML_OPERATOR_PADDING, [](Reader& r) { r.Pad(); }},
        {DML_OPERATOR_BATCH_NORMALIZATION, [](Reader& r) { r.BatchNormalize(); }},
        {DML_OPERATOR_REDUCE, [](Reader& r) { r.Reduce(); }},
        {DML_OPERATOR_ACTIVATION_PARAMETERIZED_RELU, [](Reader& r) { r.PRelu(); }},
        {DML_OPERATOR_MEAN_VARIANCE_NORMALIZATION1, [](Reader& r) { r.Normalise(); }},
        {DML_OPERATOR_MEAN_VARIANCE_NORMALIZATION2, [](Reader& r) { r.Normalise(); }},
        {DML_OPERATOR_ELEMENT_WISE_QUANTIZE_LINEAR, [](Reader& r) { r.QuantizeLinear(); }},
        {DML_OPERATOR_ELEMENT_WISE_DEQUANTIZE_LINEAR, [](Reader& r) { r.QuantizeLinear(); }},
        {DML_OPERATOR_QUANTIZE, [](Reader& r) { r.QuantizeBlocks(); }},
        {DML_OPERATOR_DEQUANTIZE, [](Reader& r) { r.QuantizeBlocks(); }},
    };
    const auto other = kOthers.find(type_);
    other == kOthers.end() ? Activation() : other->second(*this);
  }

  void Clip() {
    Map([low = Real(kParameter), high = Real(kParameter, 1)](double x) {
      return std::isnan(x) ? x : std::max(low, std::min(x, high));
    });
  }

  void Cast() {
    const bool to_float = kernel_->output.type <= DML_TENSOR_DATA_TYPE_FLOAT16;
    Map([=](double x) { return to_float ? x : std::trunc(x); });
  }

  void PRelu() {
    SameSizes();
    EachPair(+[](double x, double slope) { return x >= 0 ? x : x * slope; });
  }

  // Each element of the result is a function of its index.
  void Each(std::function<double(const Data&, const Index&)> function) {
    kernel_->run = [out = kernel_->output, function](const Data& inputs, uint8_t* output) {
      ForEach(out.sizes, [&](const Index& i) { Write(out, output, i, function(inputs, i)); });
    };
  }

  void Map(Function function) {
    SameSizes();
    Each([in = kernel_->inputs[0], function](const Data& inputs, const Index& i) {
      return function(Read(in, inputs[0], i));
    });
  }

  void Unary(Function function) {
    const auto* given = static_cast<const DML_SCALE_BIAS*>(pointers_.at(kScaleBias));
    const double scale = given ? given->Scale : 1, bias = given ? given->Bias : 0;
    Map([=](double x) { return function(x * scale + bias); });
  }

  void Binary(double (*function)(double, double)) {
    ReadOperands();
    if (kernel_->output.type != kernel_->inputs[0].type) Refuse("types differ");
    EachPair(function);
  }

  void ReadOperands() {
    SameSizes();
    if (kernel_->inputs[0].type != kernel_->inputs[1].type) Refuse("types differ");
  }

  template <typename Result>
  void EachPair(Result (*function)(double, double)) {
    Each([a = kernel_->inputs[0], b = kernel_->inputs[1], function](const Data& inputs, const Index& i) {
      return static_cast<double>(function(Read(a, inputs[0], i), Read(b, inputs[1], i)));
    });
  }

  // Results and booleans are of UINT8.
  void CheckBooleans(Kind operands) {
    const auto type = kernel_->inputs[0].type;
    if (operands == kBooleans && type != DML_TENSOR_DATA_TYPE_UINT8) Refuse("an operand that is no boolean");
    if (kernel_->output.type != DML_TENSOR_DATA_TYPE_UINT8) Refuse("a result that is no boolean");
  }

  void Compare(const Comparison& comparison) {
    if (level_ < comparison.level) return Refuse("not at this level");
    ReadOperands();
    CheckBooleans(comparison.operands);
    EachPair(comparison.function);
  }

  void Predicate(Kind operands, std::function<bool(double)> function) {
    CheckBooleans(operands);
    Map([function](double x) { return function(x) ? 1.0 : 0.0; });
  }

  void If() {
    SameSizes();
    const FakeTensor condition = kernel_->inputs[0], a = kernel_->inputs[1], b = kernel_->inputs[2];
    const FakeTensor out = kernel_->output;
    if (condition.type != DML_TENSOR_DATA_TYPE_UINT8 || a.type != b.type || a.type != out.type) Refuse("types differ");
    Each([=](const Data& inputs, const Index& i) {
      return Read(condition, inputs[0], i) != 0 ? Read(a, inputs[1], i) : Read(b, inputs[2], i);
    });
  }

  // --- products

  static constexpr int kLeftOut = -1;

  // Positions of inputs.
  struct Operands {
    int a, a_scale, a_zero, b, b_scale, b_zero, bias, y_scale, y_zero;
  };
  static constexpr Operands kRealOperands = {0, kLeftOut, kLeftOut, 1, kLeftOut, kLeftOut, 2, kLeftOut, kLeftOut};
  static constexpr Operands kIntegerOperands = {0, kLeftOut, 1, 2, kLeftOut, 3, kLeftOut, kLeftOut, kLeftOut};

  void Gemm() {
    const FakeTensor& c = kernel_->inputs[2];
    if (c.present && c.sizes != kernel_->output.sizes) return Refuse("sizes of what is added");
    for (const FakeTensor* each : {&kernel_->inputs[0], &kernel_->inputs[1], &kernel_->output}) {
      if (each->type != DML_TENSOR_DATA_TYPE_FLOAT32) return Refuse("types");
    }
    Product(kRealOperands, Real(kAlpha), Real(kBeta));
  }

  void QuantizedProduct(const Operands& q) {
    CheckQuantized(q, 2, 3);
    Product(q, 1, 1);
  }

  // Sizes of a parameter: 1 everywhere, or as many as the tensor along one axis.
  void CheckParameter(int input, DML_TENSOR_DATA_TYPE type, const std::vector<uint32_t>& sizes, size_t axis) {
    if (input == kLeftOut || !kernel_->inputs[static_cast<size_t>(input)].present) return;
    const FakeTensor& parameter = kernel_->inputs[static_cast<size_t>(input)];
    if (parameter.type != type) Refuse("type of a parameter");
    if (parameter.sizes.size() != sizes.size()) return Refuse("rank of a parameter");
    for (size_t i = 0; i < sizes.size(); ++i) {
      if (parameter.sizes[i] != 1 && (i != axis || parameter.sizes[i] != sizes[i])) Refuse("sizes of a parameter");
    }
  }

  // `row` is where parameters of A may have more than one element, `column` where those of B may, by the result's dimensions.
  void CheckQuantized(const Operands& q, size_t row, size_t column) {
    const auto byte = [](DML_TENSOR_DATA_TYPE type) {
      return type == DML_TENSOR_DATA_TYPE_UINT8 || type == DML_TENSOR_DATA_TYPE_INT8;
    };
    const FakeTensor &a = kernel_->inputs[static_cast<size_t>(q.a)], &b = kernel_->inputs[static_cast<size_t>(q.b)];
    const FakeTensor& out = kernel_->output;
    const bool quantised = q.y_scale != kLeftOut;
    if (!byte(a.type) || !byte(b.type)) Refuse("types of the operands");
    if (quantised ? !byte(out.type) : out.type != DML_TENSOR_DATA_TYPE_INT32) Refuse("type of the result");
    CheckParameter(q.a_zero, a.type, out.sizes, row);
    CheckParameter(q.a_scale, DML_TENSOR_DATA_TYPE_FLOAT32, out.sizes, row);
    CheckParameter(q.b_zero, b.type, out.sizes, column);
    CheckParameter(q.b_scale, DML_TENSOR_DATA_TYPE_FLOAT32, out.sizes, column);
    CheckParameter(q.bias, DML_TENSOR_DATA_TYPE_INT32, out.sizes, column);
    CheckParameter(q.y_scale, DML_TENSOR_DATA_TYPE_FLOAT32, out.sizes, row);
    CheckParameter(q.y_zero, out.type, out.sizes, row);
  }

  // The parameter of an element of the result; `otherwise` where it is left out.
  static double ParameterAt(const std::vector<FakeTensor>& tensors, const std::vector<const uint8_t*>& inputs,
                            int input, const Index& at, double otherwise) {
    if (input == kLeftOut || !tensors[static_cast<size_t>(input)].present) return otherwise;
    const FakeTensor& parameter = tensors[static_cast<size_t>(input)];
    Index index = at;
    for (size_t i = 0; i < index.size(); ++i) index[i] = parameter.sizes[i] == 1 ? 0 : index[i];
    return Read(parameter, inputs[static_cast<size_t>(input)], index);
  }

  // What becomes of a sum of products.
  static std::function<double(double, const Index&)> Finish(const Operands& q, const std::vector<FakeTensor>& tensors,
                                                            const Data& inputs, DML_TENSOR_DATA_TYPE type, double alpha,
                                                            double beta) {
    return [=](double sum, const Index& at) {
      const auto of = [&](int input, double otherwise) { return ParameterAt(tensors, inputs, input, at, otherwise); };
      const double real = (alpha * sum + beta * of(q.bias, 0)) * of(q.a_scale, 1) * of(q.b_scale, 1);
      return q.y_scale == kLeftOut ? real : Quantised(real, of(q.y_scale, 1), of(q.y_zero, 0), type);
    };
  }

  void Product(const Operands& q, double alpha, double beta) {
    const std::vector<FakeTensor> tensors = kernel_->inputs;
    const FakeTensor a = tensors[static_cast<size_t>(q.a)], b = tensors[static_cast<size_t>(q.b)],
                     out = kernel_->output;
    if (a.sizes.size() != 4 || b.sizes.size() != 4 || out.sizes.size() != 4) return Refuse("rank");
    if (a.sizes[2] != out.sizes[2] || b.sizes[3] != out.sizes[3] || a.sizes[3] != b.sizes[2]) {
      return Refuse("sizes of the product");
    }
    for (size_t i : {0, 1}) {
      if (a.sizes[i] != out.sizes[i] || b.sizes[i] != out.sizes[i]) return Refuse("sizes of the batches");
    }
    kernel_->run = [=](const Data& inputs, uint8_t* output) {
      const auto finish = Finish(q, tensors, inputs, out.type, alpha, beta);
      const uint8_t *from_a = inputs[static_cast<size_t>(q.a)], *from_b = inputs[static_cast<size_t>(q.b)];
      const uint32_t inner = a.sizes[3], columns = out.sizes[3];
      std::vector<double> matrix(size_t{inner} * columns), sums(columns);
      ForEach({out.sizes[0], out.sizes[1], out.sizes[2], 1}, [&](const Index& at) {
        for (uint32_t k = 0; k < inner && at[2] == 0; ++k) {  // a new batch
          for (uint32_t n = 0; n < columns; ++n) {
            const double zero = ParameterAt(tensors, inputs, q.b_zero, {at[0], at[1], 0, n}, 0);
            matrix[size_t{k} * columns + n] = Read(b, from_b, {at[0], at[1], k, n}) - zero;
          }
        }
        std::fill(sums.begin(), sums.end(), 0.0);
        const double zero = ParameterAt(tensors, inputs, q.a_zero, at, 0);
        for (uint32_t k = 0; k < inner; ++k) {
          const double factor = Read(a, from_a, {at[0], at[1], at[2], k}) - zero;
          for (uint32_t n = 0; n < columns; ++n) sums[n] += factor * matrix[size_t{k} * columns + n];
        }
        for (uint32_t n = 0; n < columns; ++n) {
          const Index to = {at[0], at[1], at[2], n};
          Write(out, output, to, finish(sums[n], to));
        }
      });
    };
  }

  // How a window moves over the spatial dimensions.
  struct Window {
    // Element `at` of the tensor under element `k` of window `o`; negative or too large in the padding.
    int64_t At(size_t i, uint32_t o, uint32_t k) const {
      return int64_t{o} * strides[i] + int64_t{k} * dilations[i] - int64_t{begin[i]};
    }
    int64_t Count(size_t i, uint32_t size) const {
      const int64_t room = int64_t{size} + begin[i] + end[i] - (int64_t{sizes[i]} - 1) * dilations[i] - 1;
      return room < 0 ? 0 : room / strides[i] + 1;
    }

    Index strides, dilations, sizes, begin, end;
  };

  Window WindowOf(const FakeTensor& filter) const { return WindowOf({filter.sizes.begin() + 2, filter.sizes.end()}); }
  Window WindowOf(const Index& sizes) const {
    const auto dilations = lists_.find(kDilations);
    return {List(kStrides), dilations == lists_.end() ? Index(sizes.size(), 1) : dilations->second, sizes,
            List(kStartPadding), List(kEndPadding)};
  }

  // Calls visit(k) for each element of a window that is in the tensor; `at` gets the spatial part of its index.
  template <typename Visit>
  static void ForEachIn(const Window& window, const Index& out, const std::vector<uint32_t>& sizes, Index* at,
                        Visit&& visit) {
    ForEach(window.sizes, [&](const Index& k) {
      for (size_t i = 0; i < k.size(); ++i) {
        const int64_t from = window.At(i, out[i + 2], k[i]);
        if (from < 0 || from >= sizes[i + 2]) return;
        (*at)[i + 2] = static_cast<uint32_t>(from);
      }
      visit(k);
    });
  }

  bool RanksFit() {
    const size_t rank = kernel_->output.sizes.size(), spatial = Number(kDimensionCount);
    const bool fits = kernel_->inputs[0].sizes.size() == rank && (rank == 4 || rank == 5) && spatial + 2 == rank;
    if (!fits) Refuse("rank");
    return fits;
  }

  enum Pooling { kLargest, kMeanOfWindow, kMeanOfElements };

  void Pool(Pooling pooling) {
    if (!RanksFit()) return;
    const Window window = WindowOf(List(kWindow));
    const FakeTensor in = kernel_->inputs[0], out = kernel_->output;
    for (size_t i = 0; i < window.sizes.size(); ++i) {
      if (window.Count(i, in.sizes[i + 2]) != out.sizes[i + 2]) return Refuse("sizes of what is pooled");
    }
    Each([=](const Data& inputs, const Index& o) {
      double sum = 0, largest = -std::numeric_limits<double>::infinity(), count = 0;
      Index at = o;
      ForEachIn(window, o, in.sizes, &at, [&](const Index&) {
        const double value = Read(in, inputs[0], at);
        sum += value;
        largest = std::isnan(value) || value > largest ? value : largest;
        ++count;
      });
      if (pooling == kMeanOfWindow) {
        count = 1;
        for (uint32_t size : window.sizes) count *= size;
      }
      return pooling == kLargest ? largest : sum / count;
    });
  }

  void RealConvolution() {
    const FakeTensor &bias = kernel_->inputs[2], &out = kernel_->output;
    if (bias.present && (bias.sizes.size() != out.sizes.size() || bias.sizes[1] != out.sizes[1])) Refuse("bias");
    Convolution(kRealOperands, Number(kBackward) != 0);
  }

  void QuantizedConvolution(const Operands& q) {
    if (kernel_->output.sizes.size() != 4) return Refuse("rank");
    CheckQuantized(q, 4, 1);
    Convolution(q, false);
  }

  void Convolution(const Operands& q, bool backward) {
    const std::vector<FakeTensor> tensors = kernel_->inputs;
    const FakeTensor in = tensors[static_cast<size_t>(q.a)], filter = tensors[static_cast<size_t>(q.b)];
    const FakeTensor out = kernel_->output;
    if (!RanksFit() || filter.sizes.size() != in.sizes.size()) return Refuse("rank");
    const Window window = WindowOf(filter);
    // A transposed convolution is the gradient of the one that goes from its result to its input.
    const FakeTensor& large = backward ? out : in;
    const FakeTensor& small = backward ? in : out;
    for (size_t i = 0; i < window.sizes.size(); ++i) {
      const uint32_t more = backward ? List(kOutputPadding)[i] : 0;
      if (window.Count(i, large.sizes[i + 2] - more) != small.sizes[i + 2]) return Refuse("sizes of the convolution");
    }
    const UINT groups = Number(kGroups);
    if (small.sizes[1] != filter.sizes[0] || large.sizes[1] != filter.sizes[1] * groups) return Refuse("channels");
    if (in.sizes[0] != out.sizes[0]) return Refuse("batch");
    kernel_->run = [=](const Data& inputs, uint8_t* output) {
      const uint8_t *from = inputs[static_cast<size_t>(q.a)], *by = inputs[static_cast<size_t>(q.b)];
      const FakeTensor& wide = backward ? out : in;
      const FakeTensor& narrow = backward ? in : out;
      size_t elements = 1;
      for (uint32_t size : out.sizes) elements *= size;
      std::vector<double> sums(elements, 0.0);
      const uint32_t share = narrow.sizes[1] / groups;
      const uint64_t plane = elements / out.sizes[0] / out.sizes[1];
      ForEach(narrow.sizes, [&](const Index& o) {
        const double a_zero = ParameterAt(tensors, inputs, q.a_zero, o, 0);
        const double b_zero = ParameterAt(tensors, inputs, q.b_zero, o, 0);
        Index at = o;
        ForEachIn(window, o, wide.sizes, &at, [&](const Index& k) {
          Index weight = {o[1], 0};
          weight.insert(weight.end(), k.begin(), k.end());
          at[1] = o[1] / share * filter.sizes[1];
          const uint64_t first = Offset(in, backward ? o : at), factor = Offset(filter, weight);
          double* sum = &sums[Slot(backward ? at : o, out.sizes)];
          // Along the channels of the larger tensor.
          const uint64_t step_in = backward ? 0 : in.strides[1], step_out = backward ? plane : 0;
          for (uint32_t c = 0; c < filter.sizes[1]; ++c) {
            sum[c * step_out] += (ReadAt(filter, by, factor + uint64_t{c} * filter.strides[1]) - b_zero) *
                                 (ReadAt(in, from, first + c * step_in) - a_zero);
          }
        });
      });
      const auto finish = Finish(q, tensors, inputs, out.type, 1, 1);
      ForEach(out.sizes, [&](const Index& i) { Write(out, output, i, finish(sums[Slot(i, out.sizes)], i)); });
    };
  }

  void Pad() {
    const FakeTensor in = kernel_->inputs[0], out = kernel_->output;
    const size_t rank = out.sizes.size();
    const Index before = List(kStartPadding), after = List(kEndPadding);
    if (in.sizes.size() != rank || before.size() != rank) return Refuse("rank");
    for (size_t i = 0; i < rank; ++i) {
      if (in.sizes[i] + before[i] + after[i] != out.sizes[i]) return Refuse("sizes of what is padded");
    }
    const double value = Real(kParameter);
    const UINT mode = Number(kPaddingMode);
    Each([=](const Data& inputs, const Index& o) {
      Index at = o;
      for (size_t i = 0; i < rank; ++i) {
        const int64_t size = in.sizes[i];
        int64_t from = int64_t{o[i]} - before[i];
        if (mode == DML_PADDING_MODE_CONSTANT && (from < 0 || from >= size)) return value;
        if (mode == DML_PADDING_MODE_REFLECTION) from = from < 0 ? -from : from >= size ? 2 * size - 2 - from : from;
        at[i] = static_cast<uint32_t>(std::clamp<int64_t>(from, 0, size - 1));
      }
      return Read(in, inputs[0], at);
    });
  }

  void BatchNormalize() {
    SameSizes();
    Each([in = kernel_->inputs, epsilon = Real(kEpsilon)](const Data& inputs, const Index& i) {
      const auto value = [&](size_t input) { return Read(in[input], inputs[input], i); };
      return value(3) * (value(0) - value(1)) / std::sqrt(value(2) + epsilon) + value(4);
    });
  }

  void Gather() {
    const FakeTensor in = kernel_->inputs[0], indices = kernel_->inputs[1], out = kernel_->output;
    const UINT axis = Number(kAxis);
    if (Number(kIndexDimensions) != 1 || in.sizes.size() != out.sizes.size() ||
        in.sizes.size() != indices.sizes.size() || axis >= in.sizes.size()) {
      return Refuse("dimensions of the indices");
    }
    std::vector<uint32_t> expected = in.sizes;
    expected[axis] = indices.sizes.back();
    if (expected != out.sizes || in.type != out.type) return Refuse("sizes of what is gathered");
    Each([=](const Data& inputs, const Index& i) {
      Index at(indices.sizes.size(), 0), from = i;
      at.back() = i[axis];
      const double index = Read(indices, inputs[1], at);
      from[axis] = static_cast<uint32_t>(index < 0 ? index + in.sizes[axis] : index);
      return Read(in, inputs[0], from);
    });
  }

  void Join() {
    const std::vector<FakeTensor> parts = kernel_->inputs;
    const FakeTensor out = kernel_->output;
    const UINT axis = Number(kAxis);
    uint32_t total = 0;
    for (const FakeTensor& part : parts) {
      std::vector<uint32_t> expected = out.sizes;
      if (part.sizes.size() != out.sizes.size() || part.type != out.type) return Refuse("parts");
      expected[axis] = part.sizes[axis];
      if (part.sizes != expected) return Refuse("sizes of the parts");
      total += part.sizes[axis];
    }
    if (total != out.sizes[axis]) return Refuse("size of what is joined");
    kernel_->run = [=](const Data& inputs, uint8_t* output) {
      uint32_t before = 0;
      for (size_t p = 0; p < parts.size(); before += parts[p++].sizes[axis]) {
        ForEach(parts[p].sizes, [&](const Index& i) {
          Index to = i;
          to[axis] += before;
          Write(out, output, to, Read(parts[p], inputs[p], i));
        });
      }
    };
  }

  void Slice() {
    const FakeTensor in = kernel_->inputs[0], out = kernel_->output;
    const size_t rank = in.sizes.size();
    const Index offsets = List(kOffsets), sizes = List(kSizes), steps = List(kSteps);
    if (offsets.size() != rank || out.sizes.size() != rank || in.type != out.type) return Refuse("rank or type");
    for (size_t i = 0; i < rank; ++i) {  // a step is signed
      if (steps[i] == 0 || steps[i] > 0x7FFFFFFF || offsets[i] + sizes[i] > in.sizes[i]) return Refuse("window");
      if ((sizes[i] + steps[i] - 1) / steps[i] != out.sizes[i]) return Refuse("size of the slice");
    }
    Each([=](const Data& inputs, const Index& i) {
      Index from = offsets;
      for (size_t dim = 0; dim < from.size(); ++dim) from[dim] += i[dim] * steps[dim];
      return Read(in, inputs[0], from);
    });
  }

  void Softmax() {
    if (level_ < DML_FEATURE_LEVEL_5_1) return Refuse("not at this level");
    SameSizes();
    const Index axes = List(kAxes);
    const bool logarithm = type_ == DML_OPERATOR_ACTIVATION_LOG_SOFTMAX1;
    const FakeTensor in = kernel_->inputs[0], out = kernel_->output;
    kernel_->run = [=](const Data& inputs, uint8_t* output) {
      std::vector<uint32_t> kept = in.sizes;
      for (uint32_t axis : axes) kept[axis] = 1;
      std::vector<double> most = Totals(in, inputs[0], axes, [](double) { return 0.0; });
      std::fill(most.begin(), most.end(), -std::numeric_limits<double>::infinity());
      ForEach(in.sizes, [&](const Index& i) {
        double& largest = most[Slot(i, kept)];
        largest = std::max(largest, Read(in, inputs[0], i));
      });
      std::vector<double> sums(most.size(), 0.0);
      ForEach(in.sizes,
              [&](const Index& i) { sums[Slot(i, kept)] += std::exp(Read(in, inputs[0], i) - most[Slot(i, kept)]); });
      ForEach(out.sizes, [&](const Index& i) {
        const size_t slot = Slot(i, kept);
        const double centred = Read(in, inputs[0], i) - most[slot];
        Write(out, output, i, logarithm ? centred - std::log(sums[slot]) : std::exp(centred) / sums[slot]);
      });
    };
  }

  void Activation() {
    const float parameters[] = {reals_[kParameter][0], reals_[kParameter][1]};
    const Function function = ActivationFunction(static_cast<int>(type_), parameters, level_);
    if (!function) return Refuse("no such operator at this level");
    Map(function);
  }

  void Reduce() {
    const Index axes = List(kAxes);
    const UINT of = Number(kReduceFunction);
    std::vector<uint32_t> expected = kernel_->inputs[0].sizes;
    for (uint32_t axis : axes) expected[axis] = 1;
    if (expected != kernel_->output.sizes) return Refuse("sizes of the reduction");
    const bool squares = of == DML_REDUCE_FUNCTION_SUM_SQUARE;
    const bool least = of == DML_REDUCE_FUNCTION_MIN;
    const bool extreme = least || of == DML_REDUCE_FUNCTION_MAX;
    const bool average = of == DML_REDUCE_FUNCTION_AVERAGE;
    if (!squares && !extreme && !average && of != DML_REDUCE_FUNCTION_SUM) return Refuse("reduction");
    const FakeTensor in = kernel_->inputs[0], out = kernel_->output;
    if (extreme) return ReduceExtreme(in, out, axes, least ? -1 : 1);
    kernel_->run = [=](const Data& inputs, uint8_t* output) {
      const std::vector<double> totals = Totals(in, inputs[0], axes, [&](double x) { return squares ? x * x : x; });
      const double count = average ? CountOf(in, axes) : 1;
      size_t at = 0;
      ForEach(out.sizes, [&](const Index& i) { Write(out, output, i, totals[at++] / count); });
    };
  }

  // The largest for a sign of 1, the least for -1.
  void ReduceExtreme(const FakeTensor& in, const FakeTensor& out, const std::vector<uint32_t>& axes, double sign) {
    kernel_->run = [=](const Data& inputs, uint8_t* output) {
      ForEach(out.sizes,
              [&](const Index& i) { Write(out, output, i, -sign * std::numeric_limits<double>::infinity()); });
      ForEach(in.sizes, [&](const Index& i) {
        Index to = i;
        for (uint32_t axis : axes) to[axis] = 0;
        const double value = Read(in, inputs[0], i);
        if (!(sign * value <= sign * Read(out, output, to))) Write(out, output, to, value);
      });
    };
  }

  static double CountOf(const FakeTensor& tensor, const std::vector<uint32_t>& axes) {
    double count = 1;
    for (uint32_t axis : axes) count *= tensor.sizes[axis];
    return count;
  }

  // Sums over the axes, in the order of the elements that remain.
  template <typename Term>
  static std::vector<double> Totals(const FakeTensor& in, const uint8_t* data, const std::vector<uint32_t>& axes,
                                    Term&& term) {
    std::vector<uint32_t> kept = in.sizes;
    for (uint32_t axis : axes) kept[axis] = 1;
    size_t count = 1;
    for (uint32_t size : kept) count *= size;
    std::vector<double> totals(count, 0.0);
    ForEach(in.sizes, [&](const Index& i) { totals[Slot(i, kept)] += term(Read(in, data, i)); });
    return totals;
  }

  static size_t Slot(const Index& index, const std::vector<uint32_t>& kept) {
    size_t at = 0;
    for (size_t d = 0; d < kept.size(); ++d) at = at * kept[d] + (kept[d] == 1 ? 0 : index[d]);
    return at;
  }

  void Normalise() {
    const bool always_centred = type_ == DML_OPERATOR_MEAN_VARIANCE_NORMALIZATION1;
    if (!always_centred && level_ < DML_FEATURE_LEVEL_6_3) return Refuse("not at this level");
    const bool use_mean = always_centred || Number(kUseMean) != 0;
    const Index axes = List(kAxes);
    const bool use_variance = Number(kNormalizeVariance) != 0;
    const double epsilon = Real(kEpsilon);
    const auto* fused = static_cast<const DML_OPERATOR_DESC*>(pointers_.at(kFused));
    SameSizes();
    for (const FakeTensor& input : kernel_->inputs) {
      if (input.present && input.type != kernel_->output.type) Refuse("types differ");
    }
    const FakeTensor in = kernel_->inputs[0], scale = kernel_->inputs[1], bias = kernel_->inputs[2];
    const FakeTensor out = kernel_->output;
    if (scale.present != bias.present && level_ < DML_FEATURE_LEVEL_5_2) Refuse("only one of scale and bias");
    Function activation = [](double x) { return x; };
    if (fused != nullptr) {
      const auto& d = *static_cast<const DML_ACTIVATION_OPERATOR_DESC*>(fused->Desc);
      if (d.InputTensor != nullptr || d.OutputTensor != nullptr) Refuse("tensors of a fused activation");
      activation = ActivationFunction(static_cast<int>(fused->Type), d.Parameters, level_);
      if (!activation) return Refuse("fused activation");
    }
    kernel_->run = [=](const Data& inputs, uint8_t* output) {
      std::vector<uint32_t> kept = in.sizes;
      for (uint32_t axis : axes) kept[axis] = 1;
      const double count = CountOf(in, axes);
      auto mean = Totals(in, inputs[0], axes, [](double x) { return x; });
      for (double& m : mean) m = use_mean ? m / count : 0;
      std::vector<double> variance(mean.size(), 0.0);
      ForEach(in.sizes, [&](const Index& i) {
        const size_t slot = Slot(i, kept);
        const double centred = Read(in, inputs[0], i) - mean[slot];
        variance[slot] += centred * centred / count;
      });
      ForEach(out.sizes, [&](const Index& i) {
        const size_t slot = Slot(i, kept);
        double value = Read(in, inputs[0], i) - mean[slot];
        if (use_variance) value /= std::sqrt(variance[slot] + epsilon);
        if (count == 1) value = std::nan("");  // as Microsoft's library does it
        if (scale.present) value *= Read(scale, inputs[1], i);
        if (bias.present) value += Read(bias, inputs[2], i);
        Write(out, output, i, activation(value));
      });
    };
  }

  static void Range(DML_TENSOR_DATA_TYPE type, double* low, double* high) {
    const int bits = kBits[type];
    const bool is_signed = type == DML_TENSOR_DATA_TYPE_INT8 || type == DML_TENSOR_DATA_TYPE_INT4;
    *low = is_signed ? -std::ldexp(1, bits - 1) : 0;
    *high = std::ldexp(1, is_signed ? bits - 1 : bits) - 1;
  }

  static double Quantised(double x, double scale, double zero_point, DML_TENSOR_DATA_TYPE type) {
    double low, high;
    Range(type, &low, &high);
    // The operator divides in float32.
    const double quotient = static_cast<float>(x / scale);
    if (std::isnan(quotient)) return low;
    return std::clamp(std::nearbyint(quotient) + zero_point, low, high);
  }

  void QuantizeLinear() {
    SameSizes();
    const bool quantise = type_ == DML_OPERATOR_ELEMENT_WISE_QUANTIZE_LINEAR;
    const FakeTensor in = kernel_->inputs[0], scale = kernel_->inputs[1], zero = kernel_->inputs[2];
    const FakeTensor out = kernel_->output;
    if (!scale.present) Refuse("no scale");
    if (!zero.present && level_ < DML_FEATURE_LEVEL_6_2) Refuse("no zero point");
    if (zero.present && zero.type != (quantise ? out.type : in.type)) Refuse("type of the zero point");
    if (kBits[quantise ? out.type : in.type] == 4) Refuse("4-bit type");
    if (quantise && kBits[out.type] != 8) Refuse("16-bit result");
    Elements(in, scale, zero, out, quantise, 0);
  }

  void QuantizeBlocks() {
    if (level_ < DML_FEATURE_LEVEL_6_3) return Refuse("not at this level");
    const bool quantise = type_ == DML_OPERATOR_QUANTIZE;
    if (Number(kQuantizationType) != Number(kTensorCount)) Refuse("the number of tensors");
    kernel_->inputs.resize(3);  // a zero point may be left out
    const FakeTensor scale = kernel_->inputs[1], zero = kernel_->inputs[2];
    const FakeTensor in = kernel_->inputs[0], out = kernel_->output;
    if (in.sizes != out.sizes) Refuse("sizes differ");
    const auto type = quantise ? out.type : in.type;
    if (zero.present && zero.type != type) Refuse("type of the zero point");
    // Without a zero point, unsigned types are centred.
    const bool is_unsigned = type == DML_TENSOR_DATA_TYPE_UINT8 || type == DML_TENSOR_DATA_TYPE_UINT4;
    const double implied = is_unsigned ? std::ldexp(1, kBits[type] - 1) : 0;
    Elements(in, scale, zero, out, quantise, implied);
  }

  // A parameter's element for an element of the tensor: block sizes follow from the sizes.
  static double Parameter(const FakeTensor& parameter, const uint8_t* data, const Index& index,
                          const std::vector<uint32_t>& sizes) {
    Index at = index;
    for (size_t d = 0; d < at.size(); ++d) at[d] = index[d] / (sizes[d] / parameter.sizes[d]);
    return Read(parameter, data, at);
  }

  void Elements(const FakeTensor& in, const FakeTensor& scale, const FakeTensor& zero, const FakeTensor& out,
                bool quantise, double implied) {
    for (const FakeTensor* parameter : {&scale, &zero}) {
      if (!parameter->present) continue;
      for (size_t d = 0; d < out.sizes.size(); ++d) {
        if (parameter->sizes.size() != out.sizes.size() || out.sizes[d] % parameter->sizes[d] != 0) {
          return Refuse("blocks that do not divide");
        }
      }
    }
    Each([=](const Data& inputs, const Index& i) {
      const double x = Read(in, inputs[0], i);
      const double step = Parameter(scale, inputs[1], i, out.sizes);
      const double offset = zero.present ? Parameter(zero, inputs[2], i, out.sizes) : implied;
      return quantise ? Quantised(x, step, offset, out.type) : (x - offset) * step;
    });
  }

  DML_OPERATOR_TYPE type_;
  uint32_t level_;
  FakeKernel* kernel_;
  std::map<DmlField, const void*> pointers_;
  std::map<DmlField, Index> lists_;
  std::map<DmlField, UINT> numbers_;
  std::map<DmlField, std::vector<float>> reals_;
  std::string problem_;
};

}  // namespace

std::string ReadOperator(const DML_OPERATOR_DESC& desc, uint32_t level, FakeKernel* kernel) {
  return Reader(desc, level, kernel).Run();
}

}  // namespace normfuse::test
