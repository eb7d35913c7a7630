// Shows lowerings to Microsoft's own DirectML, by way of a stand-in device, and proves the table of rules with it:
//   directml_validate LEVEL SAMPLES [LIBRARY...] DIRECTML_LIBRARY, as: 6_2 2000 libd3d12.so libdxcore.so libdirectml.so
// 1. Every lowering of N random chains, at the library's feature level, is accepted by CreateOperator; and so it is for
//    lowerings at each lower level, which a newer library takes as well.
// 2. What the table calls impossible at this level is refused, and what it says to be possible is accepted.
// Prints a summary; exit code 1 on any miss.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "abi/directml_abi.h"
#include "directml/device/shared_library.h"
#include "directml/execution/operator_desc.h"
#include "directml/lowering/chain_lowering.h"
#include "random_case.h"
#include "stand_in_device.h"

namespace {

using namespace normfuse;
using namespace normfuse::abi;
using namespace normfuse::directml;

int failures = 0;

void Miss(const std::string& text) {
  ++failures;
  if (failures <= 10) std::printf("MISS %s\n", text.c_str());
}

// --- single operators for the rules -----------------------------------------------------------------------------------

uint64_t BytesOf(DML_TENSOR_DATA_TYPE type, const std::vector<uint32_t>& sizes) {
  static constexpr int kBits[] = {0, 32, 16, 32, 16, 8, 32, 16, 8, 64, 64, 64, 4, 4};
  uint64_t bits = kBits[type];
  for (uint32_t size : sizes) bits *= size;
  return (bits + 31) / 32 * 4;
}

TensorDesc Tensor(DML_TENSOR_DATA_TYPE type, std::vector<uint32_t> sizes) {
  const uint64_t bytes = BytesOf(type, sizes);
  return {type, std::move(sizes), {}, bytes, false};
}

std::optional<OperatorInput> In(TensorDesc desc) { return OperatorInput{std::move(desc), true, 0}; }

// A scalar seen under `sizes`.
TensorDesc Spread(DML_TENSOR_DATA_TYPE type, const std::vector<uint32_t>& sizes) {
  return {type, sizes, std::vector<uint32_t>(sizes.size(), 0), 4, false};
}

constexpr auto kF32 = DML_TENSOR_DATA_TYPE_FLOAT32;
constexpr auto kU8 = DML_TENSOR_DATA_TYPE_UINT8;
constexpr auto kI8 = DML_TENSOR_DATA_TYPE_INT8;
const std::vector<uint32_t> kShape = {2, 3, 4, 6};

bool IsDequantize(DML_OPERATOR_TYPE type) {
  return type == DML_OPERATOR_ELEMENT_WISE_DEQUANTIZE_LINEAR || type == DML_OPERATOR_DEQUANTIZE;
}
bool IsQuantize(DML_OPERATOR_TYPE type) {
  return type == DML_OPERATOR_ELEMENT_WISE_QUANTIZE_LINEAR || type == DML_OPERATOR_QUANTIZE;
}

// Of as many input as output channels.
std::vector<uint32_t> FilterSizes(const std::vector<uint32_t>& sizes) {
  std::vector<uint32_t> filter(sizes.size(), 1);
  filter[0] = sizes.size() > 1 ? sizes[1] : 1;
  if (sizes.size() > 1) filter[1] = sizes[1];
  return filter;
}

Sliding OneByOne(size_t rank) {
  const std::vector<uint32_t> ones(rank > 2 ? rank - 2 : 0, 1), zeros(ones.size(), 0);
  return {ones, ones, ones, zeros, zeros, zeros};
}

// Dimensions that an operator takes where its level takes others than four.
std::pair<uint32_t, uint32_t> RanksOf(DML_OPERATOR_TYPE type) {
  switch (type) {
    case DML_OPERATOR_GEMM:
    case DML_OPERATOR_MATRIX_MULTIPLY_INTEGER:
    case DML_OPERATOR_QUANTIZED_LINEAR_MATRIX_MULTIPLY:
      return {2, 8};
    case DML_OPERATOR_CONVOLUTION:
    case DML_OPERATOR_CONVOLUTION_INTEGER:
    case DML_OPERATOR_QUANTIZED_LINEAR_CONVOLUTION:
      return {3, 5};
    case DML_OPERATOR_AVERAGE_POOLING:
    case DML_OPERATOR_MAX_POOLING2:
      return {4, 5};
    default:
      return {1, 8};
  }
}

// The integers' products: what is read and what is given, by position; windows of 1, square matrices. B is signed, and has no
// zero point.
void SetQuantized(Operator* op, const std::vector<uint32_t>& sizes, bool convolves, bool requantised) {
  const std::vector<uint32_t> ones(sizes.size(), 1);
  const auto a = In(Tensor(kU8, sizes)), b = In(Tensor(kI8, convolves ? FilterSizes(sizes) : sizes));
  const auto scale = In(Tensor(kF32, ones)), zero = In(Tensor(kU8, ones));
  op->inputs = requantised ? std::vector{a, scale, zero, b, scale} : std::vector{a, zero, b};
  op->inputs.resize(op->inputs.size() + (requantised && convolves ? 2 : 1));
  if (requantised) op->inputs.insert(op->inputs.end(), {scale, zero});
  op->output = Tensor(requantised ? kU8 : DML_TENSOR_DATA_TYPE_INT32, sizes);
  if (convolves) op->sliding = OneByOne(sizes.size());
}

void SetParameters(Operator* op, const std::vector<uint32_t>& sizes, DML_TENSOR_DATA_TYPE real,
                   DML_TENSOR_DATA_TYPE integer) {
  const std::vector<uint32_t> ones(sizes.size(), 1);
  const bool by_size = op->type == DML_OPERATOR_QUANTIZE || op->type == DML_OPERATOR_DEQUANTIZE;
  op->inputs.resize(1);
  for (const auto type : {real, integer}) op->inputs.push_back(In(by_size ? Tensor(type, ones) : Spread(type, sizes)));
}

// A valid operator of this type over `sizes`, with the given types of first input and output.
Operator Example(DML_OPERATOR_TYPE type, const std::vector<uint32_t>& sizes, DML_TENSOR_DATA_TYPE in,
                 DML_TENSOR_DATA_TYPE out) {
  const auto is = [type](auto... types) { return ((type == types) || ...); };
  Operator op;
  op.type = type;
  for (DmlField field : FieldsOf(type)) {
    if (field == DmlField::kInput) op.inputs.push_back(In(Tensor(in, sizes)));
    if (field == DmlField::kAxisCount) op.axes = {static_cast<uint32_t>(sizes.size()) - 1};
  }
  op.output = Tensor(out, sizes);
  op.parameters[0] = op.parameters[1] = 1;
  op.parameter_count = 2;
  op.epsilon = 1e-5f;
  op.reduce_function = DML_REDUCE_FUNCTION_SUM_SQUARE;
  if (IsQuantize(type)) SetParameters(&op, sizes, in, out);
  if (IsDequantize(type)) SetParameters(&op, sizes, out, in);
  const bool of_booleans = is(DML_OPERATOR_ELEMENT_WISE_LOGICAL_AND, DML_OPERATOR_ELEMENT_WISE_LOGICAL_OR,
                              DML_OPERATOR_ELEMENT_WISE_LOGICAL_XOR, DML_OPERATOR_ELEMENT_WISE_LOGICAL_NOT);
  const bool is_logical = OperatorName(type).find("LOGICAL_") != std::string::npos;
  if (is_logical || type == DML_OPERATOR_ELEMENT_WISE_IS_NAN) op.output = Tensor(kU8, sizes);
  if (of_booleans) op.inputs.assign(op.inputs.size(), In(Tensor(kU8, sizes)));
  switch (type) {
    case DML_OPERATOR_ELEMENT_WISE_IF:
      op.inputs[0] = In(Tensor(kU8, sizes));
      break;
    case DML_OPERATOR_GEMM:  // of square matrices
      op.inputs[2].reset();
      break;
    case DML_OPERATOR_MATRIX_MULTIPLY_INTEGER:
    case DML_OPERATOR_QUANTIZED_LINEAR_MATRIX_MULTIPLY:
      SetQuantized(&op, sizes, false, type == DML_OPERATOR_QUANTIZED_LINEAR_MATRIX_MULTIPLY);
      break;
    case DML_OPERATOR_CONVOLUTION_INTEGER:
    case DML_OPERATOR_QUANTIZED_LINEAR_CONVOLUTION:
      SetQuantized(&op, sizes, true, type == DML_OPERATOR_QUANTIZED_LINEAR_CONVOLUTION);
      break;
    case DML_OPERATOR_CONVOLUTION:
      op.inputs = {op.inputs[0], In(Tensor(in, FilterSizes(sizes))), std::nullopt};
      op.sliding = OneByOne(sizes.size());
      break;
    case DML_OPERATOR_JOIN:
      op.inputs = {In(Tensor(in, sizes)), In(Tensor(in, sizes))};
      op.output.sizes[0] *= 2;
      op.output.bytes = BytesOf(out, op.output.sizes);
      break;
    case DML_OPERATOR_GATHER: {
      std::vector<uint32_t> indices(sizes.size(), 1);
      indices.back() = sizes.back();
      op.inputs[1] = In(Tensor(DML_TENSOR_DATA_TYPE_INT32, indices));
      op.axis = static_cast<uint32_t>(sizes.size()) - 1;
      op.index_dimensions = 1;
      break;
    }
    case DML_OPERATOR_AVERAGE_POOLING:
    case DML_OPERATOR_MAX_POOLING2:
      op.sliding = OneByOne(sizes.size());
      break;
    case DML_OPERATOR_PADDING:
      op.sliding.start_padding = op.sliding.end_padding = std::vector<uint32_t>(sizes.size(), 0);
      break;
    case DML_OPERATOR_BATCH_NORMALIZATION:
      for (int i = 1; i < 5; ++i) op.inputs[i] = In(Spread(in, sizes));
      break;
    case DML_OPERATOR_SLICE1:
      op.offsets.assign(sizes.size(), 0);
      op.window = sizes;
      op.steps.assign(sizes.size(), 1);
      break;
    case DML_OPERATOR_REDUCE:
      op.output.sizes.back() = 1;
      op.output.bytes = BytesOf(out, op.output.sizes);
      break;
    default:
      break;
  }
  return op;
}

Operator ExampleMvn() { return Example(DML_OPERATOR_MEAN_VARIANCE_NORMALIZATION1, kShape, kF32, kF32); }
Operator ExampleDq(DML_TENSOR_DATA_TYPE in = kU8, DML_TENSOR_DATA_TYPE out = kF32) {
  return Example(DML_OPERATOR_ELEMENT_WISE_DEQUANTIZE_LINEAR, kShape, in, out);
}

// The operators that a rule is about: what kImpossible says is refused, what kAvoided says is accepted.
std::vector<Operator> ProbesOf(RuleId id) {
  Operator op;
  switch (id) {
    case RuleId::kScaleWithoutBias: {
      Operator scale_only = ExampleMvn(), bias_only = ExampleMvn();
      scale_only.inputs[2].reset();
      bias_only.inputs[1].reset();
      return {scale_only, bias_only};
    }
    case RuleId::kOptionalZeroPoint: {
      op = ExampleDq();
      op.inputs[2].reset();
      Operator quantize = Example(DML_OPERATOR_ELEMENT_WISE_QUANTIZE_LINEAR, kShape, kF32, kU8);
      quantize.inputs[2].reset();
      return {op, quantize};
    }
    case RuleId::kSmallSoftplusSteepness:
      op = Example(DML_OPERATOR_ACTIVATION_SOFTPLUS, kShape, kF32, kF32);
      op.parameters[0] = 0.5f;
      return {op};
    case RuleId::kQuantizeTo16Bits:
      return {Example(DML_OPERATOR_ELEMENT_WISE_QUANTIZE_LINEAR, kShape, kF32, DML_TENSOR_DATA_TYPE_UINT16),
              Example(DML_OPERATOR_ELEMENT_WISE_QUANTIZE_LINEAR, kShape, kF32, DML_TENSOR_DATA_TYPE_INT16)};
    case RuleId::kFourBitElementWise:
      return {ExampleDq(DML_TENSOR_DATA_TYPE_UINT4), ExampleDq(DML_TENSOR_DATA_TYPE_INT4)};
    case RuleId::kUnevenBlocks:
      op = Example(DML_OPERATOR_DEQUANTIZE, kShape, kU8, kF32);
      op.inputs[1] = In(Tensor(kF32, {2, 3, 4, 4}));
      op.inputs[2] = In(Tensor(kU8, {2, 3, 4, 4}));
      return {op};
    case RuleId::kBlocksOfOtherShape:
      op = Example(DML_OPERATOR_DEQUANTIZE, kShape, kU8, kF32);
      op.inputs[1] = In(Tensor(kF32, {1, 3, 1, 1}));
      return {op};
    case RuleId::kNineDimensions:
      return {Example(DML_OPERATOR_MEAN_VARIANCE_NORMALIZATION1, std::vector<uint32_t>(9, 2), kF32, kF32)};
    case RuleId::kZeroDimension:
      return {Example(DML_OPERATOR_MEAN_VARIANCE_NORMALIZATION1, {2, 0, 4, 6}, kF32, kF32)};
    case RuleId::kTooManyElements:
      return {Example(DML_OPERATOR_ACTIVATION_RELU, {1, 2, 65536, 65536}, kF32, kF32)};
    case RuleId::kMixedTypes:
      op = ExampleMvn();
      op.inputs[1] = In(Tensor(DML_TENSOR_DATA_TYPE_FLOAT16, kShape));
      return {op};
    case RuleId::kFusedTwoTensors:
      op = ExampleMvn();
      op.fused_activation = FusedActivation{DML_OPERATOR_ACTIVATION_PARAMETERIZED_RELU, {}, 0};
      return {op};
    case RuleId::kFusedClip:
      op = ExampleMvn();
      op.fused_activation = FusedActivation{DML_OPERATOR_ELEMENT_WISE_CLIP, {}, 0};
      return {op};
    case RuleId::kBroadcastBySize:
      op = ExampleDq();
      op.inputs[1] = In(Tensor(kF32, {1, 3, 1, 1}));
      return {op};
    case RuleId::kHalfDequantizeScale:
      return {ExampleDq(kU8, DML_TENSOR_DATA_TYPE_FLOAT16)};
    case RuleId::kNoAxes:
      op = ExampleMvn();
      op.axes.clear();
      return {op};
    case RuleId::kOneElementRows:
      return {Example(DML_OPERATOR_MEAN_VARIANCE_NORMALIZATION1, {2, 1, 1, 1}, kF32, kF32)};
    case RuleId::kHalfStatistics:
      return {Example(DML_OPERATOR_MEAN_VARIANCE_NORMALIZATION1, kShape, DML_TENSOR_DATA_TYPE_FLOAT16,
                      DML_TENSOR_DATA_TYPE_FLOAT16)};
    case RuleId::kMidpointZeroPoint:
      op = Example(DML_OPERATOR_DEQUANTIZE, kShape, kU8, kF32);
      op.inputs.pop_back();
      return {op};
    case RuleId::kWideIntegerZeroPoint:
      return {ExampleDq(DML_TENSOR_DATA_TYPE_INT32), ExampleDq(DML_TENSOR_DATA_TYPE_UINT32)};
    case RuleId::kStatisticsOutputs:  // the operators are right, the graph is not
      return {Example(DML_OPERATOR_REDUCE, kShape, kF32, kF32)};
    case RuleId::kNanEpsilon:
      op = ExampleMvn();
      op.epsilon = NAN;
      return {op};
  }
  return {};
}

// --- the library ------------------------------------------------------------------------------------------------------

// Operators that a library has before their level: the 5_0 library is a development build of the release that brought 5_1.
bool EarlyIn(FeatureLevel level, DML_OPERATOR_TYPE type) {
  constexpr int kGelu = 157;
  const bool early =
      type == kGelu || type == DML_OPERATOR_ACTIVATION_SOFTMAX1 || type == DML_OPERATOR_ACTIVATION_LOG_SOFTMAX1;
  return level == DML_FEATURE_LEVEL_5_0 && early;
}

class Validator {
 public:
  Validator(IDMLDevice* device, FeatureLevel level) : device_(device), level_(level), types_(SupportedTypes()) {}

  bool Accepts(const Operator& op) {
    const OperatorDesc desc(op);
    IDMLOperator* made = nullptr;
    const HRESULT result = device_->CreateOperator(&desc.get(), IDMLOperator::kIid, reinterpret_cast<void**>(&made));
    if (made != nullptr) made->Release();
    ++created_;
    return Succeeded(result);
  }

  void CheckRules() {
    for (const Rule& rule : kRules) {
      for (const Operator& op : ProbesOf(rule.id)) {
        const OperatorRule whole = *OperatorRuleOf(op.type);
        const bool expected = whole.level <= level_ && (rule.kind == RuleKind::kAvoided || Allows(rule.id, level_));
        if (Accepts(op) != expected) {
          Miss(std::string("rule ") + rule.name + ": " + OperatorName(op.type) + (expected ? " refused" : " accepted"));
        }
      }
    }
  }

  void CheckOperators() {
    for (const OperatorRule& rule : OperatorRules{}) CheckOperator(rule);
    for (const ActivationSpec& spec : kActivations) {
      if (spec.directml.level != 0) CheckOperator(*OperatorRuleOf(static_cast<DML_OPERATOR_TYPE>(spec.directml.type)));
    }
  }

  // Products read their operands by strides: transposed, and one matrix for a whole batch. Elements beyond those that are
  // looked at may follow.
  void CheckStrides() {
    Operator product = Example(DML_OPERATOR_GEMM, {2, 3, 4, 4}, kF32, kF32);
    product.inputs[0]->desc.strides = {48, 4, 1, 12};
    product.inputs[1]->desc.strides = {0, 0, 1, 4};
    Operator copy = Example(DML_OPERATOR_ELEMENT_WISE_IDENTITY, {1, 2, 3, 4}, kF32, kF32);
    copy.inputs[0]->desc.strides = {0, 1, 16, 4};
    copy.inputs[0]->desc.bytes = 256;
    for (const Operator* op : {&product, &copy}) {
      if (!Accepts(*op)) Miss(OperatorName(op->type) + " with strides refused");
    }
  }

  void CheckFusedActivations() {
    for (const ActivationSpec& spec : kActivations) {
      if (spec.directml.level == 0 || EarlyIn(level_, static_cast<DML_OPERATOR_TYPE>(spec.directml.type))) continue;
      Operator op = ExampleMvn();
      op.fused_activation = FusedActivation{static_cast<DML_OPERATOR_TYPE>(spec.directml.type), {1, 1}, 2};
      const bool expected =
          spec.directml.fused_level != 0 && level_ >= static_cast<uint32_t>(spec.directml.fused_level);
      if (Accepts(op) != expected) Miss(std::string("fused ") + spec.name + (expected ? " refused" : " accepted"));
    }
  }

  void CheckLowerings(int samples) {
    const test::GeneratorLimits limits{4096, true, true};
    for (int i = 0; i < samples; ++i) {
      std::string text;
      const test::Case made = test::RandomCase(uint64_t{100000} + static_cast<uint64_t>(i), limits, &text);
      for (FeatureLevel level : kLevels) {
        // Each chain at the library's own level, and at one lower level in turn.
        const bool lower = static_cast<size_t>(i) % std::size(kLevels) == static_cast<size_t>(&level - kLevels);
        if (level >= kMinimumLevel && level <= level_ && (level == level_ || lower)) CheckLowering(made, text, level);
      }
    }
  }

  void PrintSummary() const {
    std::printf("feature level %s: %d operators created, %d lowerings accepted, %d declined\n",
                LevelName(level_).c_str(), created_, accepted_, declined_total_);
    for (const auto& [message, count] : declined_) std::printf("  declined %5d: %s\n", count, message.c_str());
    std::printf("  operators used:");
    for (const auto& [name, count] : used_) std::printf(" %s %d", name.c_str(), count);
    std::printf("\n");
  }

 private:
  void CheckOperator(const OperatorRule& rule) {
    const auto type = rule.type;
    if (EarlyIn(level_, type)) return;
    const auto in = rule.input_types != kAnyType && !(rule.input_types & Bit(kF32)) ? kU8 : kF32;
    const auto out = rule.output_types != kAnyType && !(rule.output_types & Bit(kF32)) ? kU8 : kF32;
    const auto [least_rank, most_rank] = RanksOf(type);
    for (uint32_t rank = 1; rank <= 9; ++rank) {
      const bool expected =
          level_ >= rule.level && rank <= (level_ >= rule.all_ranks ? most_rank : 4u) && rank >= least_rank;
      std::vector<uint32_t> sizes(rank, 2);
      if (Accepts(Example(type, sizes, in, out)) != expected) {
        Miss(OperatorName(type) + " of rank " + std::to_string(rank) + (expected ? " refused" : " accepted"));
      }
    }
    for (uint32_t t = DML_TENSOR_DATA_TYPE_FLOAT32; t <= DML_TENSOR_DATA_TYPE_INT4; ++t) {
      const auto probe = static_cast<DML_TENSOR_DATA_TYPE>(t);
      const bool same_type = !IsDequantize(type) && !IsQuantize(type);
      CheckType(rule, rule.input_types, probe, probe, same_type ? probe : out, "input");
      if (!same_type) CheckType(rule, rule.output_types, probe, in, probe, "output");
    }
  }

  void CheckType(const OperatorRule& rule, uint32_t types, DML_TENSOR_DATA_TYPE probe, DML_TENSOR_DATA_TYPE in,
                 DML_TENSOR_DATA_TYPE out, const char* what) {
    if (types == kAnyType) return;
    // float16 scales and results of dequantisation came later than the operator: a rule of its own.
    if (IsDequantize(rule.type) && probe == DML_TENSOR_DATA_TYPE_FLOAT16) return;
    const bool expected = level_ >= rule.level && (types & Bit(probe)) != 0;
    if (Accepts(Example(rule.type, kShape, in, out)) != expected) {
      Miss(OperatorName(rule.type) + " with " + what + " type " + std::to_string(probe) +
           (expected ? " refused" : " accepted"));
    }
  }

  void CheckLowering(const test::Case& made, const std::string& text, FeatureLevel level) {
    DmlProgram program;
    const auto declined = Lower(made.chain(), test::InputShapes(made), {level, types_}, &program);
    if (declined) {
      ++declined_total_;
      ++declined_[declined->message];
      return;
    }
    bool all = true;
    for (const Operator& op : program.operators) {
      ++used_[OperatorName(op.type)];
      if (Accepts(op)) continue;
      all = false;
      Miss("lowering at " + LevelName(level) + " of {" + text + "}: " + OperatorName(op.type) +
           " refused: " + ToJson(program).substr(0, 2000));
      break;
    }
    accepted_ += all ? 1 : 0;
  }

  uint32_t SupportedTypes() {
    uint32_t types = 0;
    for (uint32_t type = DML_TENSOR_DATA_TYPE_FLOAT32; type <= DML_TENSOR_DATA_TYPE_INT4; ++type) {
      BOOL supported = 0;
      const HRESULT result = device_->CheckFeatureSupport(DML_FEATURE_TENSOR_DATA_TYPE_SUPPORT, sizeof(type), &type,
                                                          sizeof(supported), &supported);
      if (Succeeded(result) && supported) types |= 1u << type;
    }
    return types;
  }

  IDMLDevice* device_;
  FeatureLevel level_;
  uint32_t types_;
  int created_ = 0;
  int accepted_ = 0;
  int declined_total_ = 0;
  std::map<std::string, int> declined_;
  std::map<std::string, int> used_;
};

FeatureLevel MaximumLevel(IDMLDevice* device) {
  const DML_FEATURE_QUERY_FEATURE_LEVELS query = {static_cast<UINT>(std::size(kLevels)), kLevels};
  DML_FEATURE_DATA_FEATURE_LEVELS data = {};
  const HRESULT result =
      device->CheckFeatureSupport(DML_FEATURE_FEATURE_LEVELS, sizeof(query), &query, sizeof(data), &data);
  return Succeeded(result) ? data.MaxSupportedFeatureLevel : DML_FEATURE_LEVEL_1_0;
}

int Validate(const std::string& expected, int samples, const std::vector<std::string>& files) {
  // Loaded first, the stand-ins answer for the libraries of the same name that libdirectml.so needs.
  std::vector<SharedLibrary> libraries(files.size());
  for (size_t i = 0; i < files.size(); ++i) {
    const Result loaded = SharedLibrary::Load(files[i], &libraries[i]);
    if (!loaded.ok()) {
      std::printf("%s\n", loaded.message().c_str());
      return 2;
    }
  }
  const auto create = libraries.back().Symbol<DMLCreateDevice1Function>("DMLCreateDevice1");
  if (create == nullptr) {
    std::printf("%s does not export DMLCreateDevice1\n", files.back().c_str());
    return 2;
  }
  IDMLDevice* device = nullptr;
  const HRESULT result = create(new test::StandInDevice(true), DML_CREATE_DEVICE_FLAG_NONE, kMinimumLevel,
                                IDMLDevice::kIid, reinterpret_cast<void**>(&device));
  if (!Succeeded(result)) {
    std::printf("DMLCreateDevice1 failed with 0x%08X\n", static_cast<unsigned>(result));
    return 2;
  }
  const FeatureLevel level = MaximumLevel(device);
  if (LevelName(level) != expected) Miss("feature level " + LevelName(level) + " instead of " + expected);
  Validator validator(device, level);
  validator.CheckRules();
  validator.CheckOperators();
  validator.CheckStrides();
  validator.CheckFusedActivations();
  validator.CheckLowerings(samples);
  validator.PrintSummary();
  std::printf("%d misses\n", failures);
  return failures == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    std::printf("usage: directml_validate LEVEL SAMPLES [LIBRARY...] DIRECTML_LIBRARY\n");
    return 2;
  }
  const int status = Validate(argv[1], std::atoi(argv[2]), {argv + 3, argv + argc});
  std::fflush(stdout);
  // The library's own threads and static destructors need no part of this process any more.
  std::_Exit(status);
}
