#include "directml/lowering/rules.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "spec/tables.h"

namespace normfuse::directml {
namespace {

using namespace abi;

static_assert([] {
  for (size_t i = 0; i < std::size(kRules); ++i) {
    if (static_cast<size_t>(kRules[i].id) != i) return false;
  }
  return true;
}());

constexpr auto DML_FEATURE_LEVEL_NEVER = static_cast<FeatureLevel>(kNever);

// Name, the level that it came with, that from which it takes other ranks than four, and types of its first input and its output.
// Levels from the feature level history; ranks and types from the operators' pages, those of 5_0, 6_2 and 6_4 proven with
// the libraries of these levels. CONVOLUTION, pooling and PADDING move over the spatial dimensions: four or five in all, from
// 3_0 on three for a CONVOLUTION; those of NEVER take two to four dimensions at every level.
#define NORMFUSE_FOR_EACH_DML_OPERATOR(X)                                                       \
  X(ELEMENT_WISE_IDENTITY, 1_0, 3_0, kAnyType, kAnyType)                                        \
  X(ELEMENT_WISE_ADD, 1_0, 3_0, kAnyType, kAnyType)                                             \
  X(ELEMENT_WISE_CLIP, 1_0, 3_0, kAnyType, kAnyType)                                            \
  X(ELEMENT_WISE_DIVIDE, 1_0, 3_0, kAnyType, kAnyType)                                          \
  X(ELEMENT_WISE_EXP, 1_0, 3_0, kFloatTypes, kFloatTypes)                                       \
  X(ELEMENT_WISE_MULTIPLY, 1_0, 3_0, kAnyType, kAnyType)                                        \
  X(ELEMENT_WISE_RECIP, 1_0, 3_0, kFloatTypes, kFloatTypes)                                     \
  X(ELEMENT_WISE_COS, 1_0, 3_0, kFloatTypes, kFloatTypes)                                       \
  X(ELEMENT_WISE_SIN, 1_0, 3_0, kFloatTypes, kFloatTypes)                                       \
  X(ELEMENT_WISE_SQRT, 1_0, 3_0, kFloatTypes, kFloatTypes)                                      \
  X(ELEMENT_WISE_SUBTRACT, 1_0, 3_0, kAnyType, kAnyType)                                        \
  X(ELEMENT_WISE_QUANTIZE_LINEAR, 1_0, 3_0, kAnyType, kByteTypes)                               \
  X(ELEMENT_WISE_DEQUANTIZE_LINEAR, 1_0, 3_0, kIntegerTypes, Bit(DML_TENSOR_DATA_TYPE_FLOAT32)) \
  X(ACTIVATION_PARAMETERIZED_RELU, 1_0, 3_0, kAnyType, kAnyType)                                \
  X(REDUCE, 1_0, 3_0, kAnyType, kAnyType)                                                       \
  X(CAST, 1_0, 3_1, kAnyType, kAnyType)                                                         \
  X(ELEMENT_WISE_ERF, 2_0, 3_0, kFloatTypes, kFloatTypes)                                       \
  X(ELEMENT_WISE_ROUND, 2_1, 3_0, kFloatTypes, kFloatTypes)                                     \
  X(MEAN_VARIANCE_NORMALIZATION1, 2_1, 3_1, kFloatTypes, kFloatTypes)                           \
  X(MEAN_VARIANCE_NORMALIZATION2, 6_3, 6_3, kFloatTypes, kFloatTypes)                           \
  X(ELEMENT_WISE_ABS, 1_0, 3_0, kAnyType, kAnyType)                                             \
  X(ELEMENT_WISE_LOG, 1_0, 3_0, kAnyType, kAnyType)                                             \
  X(ELEMENT_WISE_LOGICAL_EQUALS, 1_0, 3_0, kAnyType, kAnyType)                                  \
  X(ELEMENT_WISE_LOGICAL_AND, 1_0, 3_0, kAnyType, kAnyType)                                     \
  X(ELEMENT_WISE_LOGICAL_GREATER_THAN, 1_0, 3_0, kAnyType, kAnyType)                            \
  X(ELEMENT_WISE_LOGICAL_LESS_THAN, 1_0, 3_0, kAnyType, kAnyType)                               \
  X(ELEMENT_WISE_LOGICAL_NOT, 1_0, 3_0, kAnyType, kAnyType)                                     \
  X(ELEMENT_WISE_LOGICAL_OR, 1_0, 3_0, kAnyType, kAnyType)                                      \
  X(ELEMENT_WISE_LOGICAL_XOR, 1_0, 3_0, kAnyType, kAnyType)                                     \
  X(ELEMENT_WISE_IS_NAN, 2_0, 3_0, kAnyType, kAnyType)                                          \
  X(ELEMENT_WISE_LOGICAL_GREATER_THAN_OR_EQUAL, 3_0, 3_0, kAnyType, kAnyType)                   \
  X(ELEMENT_WISE_LOGICAL_LESS_THAN_OR_EQUAL, 3_0, 3_0, kAnyType, kAnyType)                      \
  X(ELEMENT_WISE_MAX, 1_0, 3_0, kAnyType, kAnyType)                                             \
  X(ELEMENT_WISE_MIN, 1_0, 3_0, kAnyType, kAnyType)                                             \
  X(ELEMENT_WISE_POW, 1_0, 3_0, kAnyType, kAnyType)                                             \
  X(ELEMENT_WISE_CONSTANT_POW, 1_0, 3_0, kAnyType, kAnyType)                                    \
  X(CONVOLUTION, 1_0, 3_0, kAnyType, kAnyType)                                                  \
  X(AVERAGE_POOLING, 1_0, 3_0, kAnyType, kAnyType)                                              \
  X(MAX_POOLING2, 2_1, 3_0, kAnyType, kAnyType)                                                 \
  X(PADDING, 1_0, 3_0, kAnyType, kAnyType)                                                      \
  X(BATCH_NORMALIZATION, 1_0, 3_1, kAnyType, kAnyType)                                          \
  X(GEMM, 1_0, NEVER, kAnyType, kAnyType)                                                       \
  X(MATRIX_MULTIPLY_INTEGER, 2_1, NEVER, kAnyType, kAnyType)                                    \
  X(QUANTIZED_LINEAR_MATRIX_MULTIPLY, 2_1, NEVER, kAnyType, kAnyType)                           \
  X(CONVOLUTION_INTEGER, 2_1, NEVER, kAnyType, kAnyType)                                        \
  X(QUANTIZED_LINEAR_CONVOLUTION, 2_1, NEVER, kAnyType, kAnyType)                               \
  X(JOIN, 1_0, 3_0, kAnyType, kAnyType)                                                         \
  X(GATHER, 1_0, 3_0, kAnyType, kAnyType)                                                       \
  X(ELEMENT_WISE_IF, 2_0, 3_0, kAnyType, kAnyType)                                              \
  X(SLICE1, 2_1, 3_0, kAnyType, kAnyType)                                                       \
  X(ACTIVATION_SOFTMAX1, 5_1, 5_1, kAnyType, kAnyType)                                          \
  X(ACTIVATION_LOG_SOFTMAX1, 5_1, 5_1, kAnyType, kAnyType)                                      \
  X(QUANTIZE, 6_3, 6_3, kFloatTypes, kByteTypes | kNibbleTypes)                                 \
  X(DEQUANTIZE, 6_3, 6_3, kByteTypes | kNibbleTypes, kFloatTypes)

#define NORMFUSE_RULE(name, level, all_ranks, in, out) \
  {DML_OPERATOR_##name, DML_FEATURE_LEVEL_##level, DML_FEATURE_LEVEL_##all_ranks, in, out},
constexpr OperatorRule kOperators[] = {NORMFUSE_FOR_EACH_DML_OPERATOR(NORMFUSE_RULE)};
#undef NORMFUSE_RULE

#define NORMFUSE_NAME(name, ...) {DML_OPERATOR_##name, #name},
constexpr std::pair<DML_OPERATOR_TYPE, const char*> kNames[] = {NORMFUSE_FOR_EACH_DML_OPERATOR(NORMFUSE_NAME)};
#undef NORMFUSE_NAME

const DirectMlActivation* ActivationOf(DML_OPERATOR_TYPE type) {
  for (const ActivationSpec& spec : kActivations) {
    if (spec.directml.level != 0 && spec.directml.type == static_cast<int>(type)) return &spec.directml;
  }
  return nullptr;
}

}  // namespace

std::optional<OperatorRule> OperatorRuleOf(DML_OPERATOR_TYPE type) {
  for (const OperatorRule& rule : kOperators) {
    if (rule.type == type) return rule;
  }
  const DirectMlActivation* activation = ActivationOf(type);
  if (activation == nullptr) return std::nullopt;
  const auto level = static_cast<FeatureLevel>(activation->level);
  return OperatorRule{type, level, std::max(level, DML_FEATURE_LEVEL_3_0), kAnyType, kAnyType};
}

std::string OperatorName(DML_OPERATOR_TYPE type) {
  for (const auto& [known, name] : kNames) {
    if (known == type) return name;
  }
  const DirectMlActivation* activation = ActivationOf(type);
  return activation == nullptr ? "UNKNOWN" : std::string("ACTIVATION_") + activation->op;
}

DML_OPERATOR_TYPE OperatorNamed(std::string_view name) {
  for (const auto& [type, known] : kNames) {
    if (known == name) return type;
  }
  for (const ActivationSpec& spec : kActivations) {
    const auto type = static_cast<DML_OPERATOR_TYPE>(spec.directml.type);
    if (spec.directml.level != 0 && OperatorName(type) == name) return type;
  }
  return DML_OPERATOR_INVALID;
}

std::string LevelName(uint32_t level) {
  return std::to_string((level >> 12U) & 15U) + "_" + std::to_string((level >> 8U) & 15U);
}

const OperatorRule* begin(OperatorRules) { return std::begin(kOperators); }
const OperatorRule* end(OperatorRules) { return std::end(kOperators); }

}  // namespace normfuse::directml
