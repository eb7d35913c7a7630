#include "directml/rules.h"

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

constexpr std::pair<DML_OPERATOR_TYPE, const char*> kNames[] = {
    {DML_OPERATOR_ELEMENT_WISE_IDENTITY, "ELEMENT_WISE_IDENTITY"},
    {DML_OPERATOR_ELEMENT_WISE_ADD, "ELEMENT_WISE_ADD"},
    {DML_OPERATOR_ELEMENT_WISE_CLIP, "ELEMENT_WISE_CLIP"},
    {DML_OPERATOR_ELEMENT_WISE_DIVIDE, "ELEMENT_WISE_DIVIDE"},
    {DML_OPERATOR_ELEMENT_WISE_EXP, "ELEMENT_WISE_EXP"},
    {DML_OPERATOR_ELEMENT_WISE_MULTIPLY, "ELEMENT_WISE_MULTIPLY"},
    {DML_OPERATOR_ELEMENT_WISE_RECIP, "ELEMENT_WISE_RECIP"},
    {DML_OPERATOR_ELEMENT_WISE_SIN, "ELEMENT_WISE_SIN"},
    {DML_OPERATOR_ELEMENT_WISE_SQRT, "ELEMENT_WISE_SQRT"},
    {DML_OPERATOR_ELEMENT_WISE_SUBTRACT, "ELEMENT_WISE_SUBTRACT"},
    {DML_OPERATOR_ELEMENT_WISE_QUANTIZE_LINEAR, "ELEMENT_WISE_QUANTIZE_LINEAR"},
    {DML_OPERATOR_ELEMENT_WISE_DEQUANTIZE_LINEAR, "ELEMENT_WISE_DEQUANTIZE_LINEAR"},
    {DML_OPERATOR_ACTIVATION_PARAMETERIZED_RELU, "ACTIVATION_PARAMETERIZED_RELU"},
    {DML_OPERATOR_REDUCE, "REDUCE"},
    {DML_OPERATOR_CAST, "CAST"},
    {DML_OPERATOR_ELEMENT_WISE_ERF, "ELEMENT_WISE_ERF"},
    {DML_OPERATOR_ELEMENT_WISE_ROUND, "ELEMENT_WISE_ROUND"},
    {DML_OPERATOR_MEAN_VARIANCE_NORMALIZATION1, "MEAN_VARIANCE_NORMALIZATION1"},
    {DML_OPERATOR_MEAN_VARIANCE_NORMALIZATION2, "MEAN_VARIANCE_NORMALIZATION2"},
    {DML_OPERATOR_ELEMENT_WISE_ABS, "ELEMENT_WISE_ABS"},
    {DML_OPERATOR_ELEMENT_WISE_LOG, "ELEMENT_WISE_LOG"},
    {DML_OPERATOR_ELEMENT_WISE_LOGICAL_EQUALS, "ELEMENT_WISE_LOGICAL_EQUALS"},
    {DML_OPERATOR_ELEMENT_WISE_MAX, "ELEMENT_WISE_MAX"},
    {DML_OPERATOR_ELEMENT_WISE_MIN, "ELEMENT_WISE_MIN"},
    {DML_OPERATOR_ELEMENT_WISE_POW, "ELEMENT_WISE_POW"},
    {DML_OPERATOR_ELEMENT_WISE_CONSTANT_POW, "ELEMENT_WISE_CONSTANT_POW"},
    {DML_OPERATOR_GEMM, "GEMM"},
    {DML_OPERATOR_JOIN, "JOIN"},
    {DML_OPERATOR_GATHER, "GATHER"},
    {DML_OPERATOR_ELEMENT_WISE_IF, "ELEMENT_WISE_IF"},
    {DML_OPERATOR_SLICE1, "SLICE1"},
    {DML_OPERATOR_ACTIVATION_SOFTMAX1, "ACTIVATION_SOFTMAX1"},
    {DML_OPERATOR_ACTIVATION_LOG_SOFTMAX1, "ACTIVATION_LOG_SOFTMAX1"},
    {DML_OPERATOR_QUANTIZE, "QUANTIZE"},
    {DML_OPERATOR_DEQUANTIZE, "DEQUANTIZE"},
};

// Levels from the feature level history; ranks and types from the operators' pages, those of 5_0, 6_2 and 6_4 proven
// with the libraries of these levels.
constexpr OperatorRule kOperators[] = {
    {DML_OPERATOR_ELEMENT_WISE_IDENTITY, DML_FEATURE_LEVEL_1_0, DML_FEATURE_LEVEL_3_0, kAnyType, kAnyType},
    {DML_OPERATOR_ELEMENT_WISE_ADD, DML_FEATURE_LEVEL_1_0, DML_FEATURE_LEVEL_3_0, kAnyType, kAnyType},
    {DML_OPERATOR_ELEMENT_WISE_CLIP, DML_FEATURE_LEVEL_1_0, DML_FEATURE_LEVEL_3_0, kAnyType, kAnyType},
    {DML_OPERATOR_ELEMENT_WISE_DIVIDE, DML_FEATURE_LEVEL_1_0, DML_FEATURE_LEVEL_3_0, kAnyType, kAnyType},
    {DML_OPERATOR_ELEMENT_WISE_EXP, DML_FEATURE_LEVEL_1_0, DML_FEATURE_LEVEL_3_0, kFloatTypes, kFloatTypes},
    {DML_OPERATOR_ELEMENT_WISE_MULTIPLY, DML_FEATURE_LEVEL_1_0, DML_FEATURE_LEVEL_3_0, kAnyType, kAnyType},
    {DML_OPERATOR_ELEMENT_WISE_RECIP, DML_FEATURE_LEVEL_1_0, DML_FEATURE_LEVEL_3_0, kFloatTypes, kFloatTypes},
    {DML_OPERATOR_ELEMENT_WISE_SIN, DML_FEATURE_LEVEL_1_0, DML_FEATURE_LEVEL_3_0, kFloatTypes, kFloatTypes},
    {DML_OPERATOR_ELEMENT_WISE_SQRT, DML_FEATURE_LEVEL_1_0, DML_FEATURE_LEVEL_3_0, kFloatTypes, kFloatTypes},
    {DML_OPERATOR_ELEMENT_WISE_SUBTRACT, DML_FEATURE_LEVEL_1_0, DML_FEATURE_LEVEL_3_0, kAnyType, kAnyType},
    {DML_OPERATOR_ELEMENT_WISE_QUANTIZE_LINEAR, DML_FEATURE_LEVEL_1_0, DML_FEATURE_LEVEL_3_0, kAnyType, kByteTypes},
    {DML_OPERATOR_ELEMENT_WISE_DEQUANTIZE_LINEAR, DML_FEATURE_LEVEL_1_0, DML_FEATURE_LEVEL_3_0, kIntegerTypes,
     Bit(DML_TENSOR_DATA_TYPE_FLOAT32)},
    {DML_OPERATOR_ACTIVATION_PARAMETERIZED_RELU, DML_FEATURE_LEVEL_1_0, DML_FEATURE_LEVEL_3_0, kAnyType, kAnyType},
    {DML_OPERATOR_REDUCE, DML_FEATURE_LEVEL_1_0, DML_FEATURE_LEVEL_3_0, kAnyType, kAnyType},
    {DML_OPERATOR_CAST, DML_FEATURE_LEVEL_1_0, DML_FEATURE_LEVEL_3_1, kAnyType, kAnyType},
    {DML_OPERATOR_ELEMENT_WISE_ERF, DML_FEATURE_LEVEL_2_0, DML_FEATURE_LEVEL_3_0, kFloatTypes, kFloatTypes},
    {DML_OPERATOR_ELEMENT_WISE_ROUND, DML_FEATURE_LEVEL_2_1, DML_FEATURE_LEVEL_3_0, kFloatTypes, kFloatTypes},
    {DML_OPERATOR_MEAN_VARIANCE_NORMALIZATION1, DML_FEATURE_LEVEL_2_1, DML_FEATURE_LEVEL_3_1, kFloatTypes, kFloatTypes},
    {DML_OPERATOR_MEAN_VARIANCE_NORMALIZATION2, DML_FEATURE_LEVEL_6_3, DML_FEATURE_LEVEL_6_3, kFloatTypes, kFloatTypes},
    {DML_OPERATOR_ELEMENT_WISE_ABS, DML_FEATURE_LEVEL_1_0, DML_FEATURE_LEVEL_3_0, kAnyType, kAnyType},
    {DML_OPERATOR_ELEMENT_WISE_LOG, DML_FEATURE_LEVEL_1_0, DML_FEATURE_LEVEL_3_0, kAnyType, kAnyType},
    {DML_OPERATOR_ELEMENT_WISE_LOGICAL_EQUALS, DML_FEATURE_LEVEL_1_0, DML_FEATURE_LEVEL_3_0, kAnyType, kAnyType},
    {DML_OPERATOR_ELEMENT_WISE_MAX, DML_FEATURE_LEVEL_1_0, DML_FEATURE_LEVEL_3_0, kAnyType, kAnyType},
    {DML_OPERATOR_ELEMENT_WISE_MIN, DML_FEATURE_LEVEL_1_0, DML_FEATURE_LEVEL_3_0, kAnyType, kAnyType},
    {DML_OPERATOR_ELEMENT_WISE_POW, DML_FEATURE_LEVEL_1_0, DML_FEATURE_LEVEL_3_0, kAnyType, kAnyType},
    {DML_OPERATOR_ELEMENT_WISE_CONSTANT_POW, DML_FEATURE_LEVEL_1_0, DML_FEATURE_LEVEL_3_0, kAnyType, kAnyType},
    // Two to four dimensions at every level.
    {DML_OPERATOR_GEMM, DML_FEATURE_LEVEL_1_0, static_cast<FeatureLevel>(kNever), kAnyType, kAnyType},
    {DML_OPERATOR_JOIN, DML_FEATURE_LEVEL_1_0, DML_FEATURE_LEVEL_3_0, kAnyType, kAnyType},
    {DML_OPERATOR_GATHER, DML_FEATURE_LEVEL_1_0, DML_FEATURE_LEVEL_3_0, kAnyType, kAnyType},
    {DML_OPERATOR_ELEMENT_WISE_IF, DML_FEATURE_LEVEL_2_0, DML_FEATURE_LEVEL_3_0, kAnyType, kAnyType},
    {DML_OPERATOR_SLICE1, DML_FEATURE_LEVEL_2_1, DML_FEATURE_LEVEL_3_0, kAnyType, kAnyType},
    {DML_OPERATOR_ACTIVATION_SOFTMAX1, DML_FEATURE_LEVEL_5_1, DML_FEATURE_LEVEL_5_1, kAnyType, kAnyType},
    {DML_OPERATOR_ACTIVATION_LOG_SOFTMAX1, DML_FEATURE_LEVEL_5_1, DML_FEATURE_LEVEL_5_1, kAnyType, kAnyType},
    {DML_OPERATOR_QUANTIZE, DML_FEATURE_LEVEL_6_3, DML_FEATURE_LEVEL_6_3, kFloatTypes, kByteTypes | kNibbleTypes},
    {DML_OPERATOR_DEQUANTIZE, DML_FEATURE_LEVEL_6_3, DML_FEATURE_LEVEL_6_3, kByteTypes | kNibbleTypes, kFloatTypes},
};

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

std::string LevelName(uint32_t level) {
  return std::to_string((level >> 12U) & 15U) + "_" + std::to_string((level >> 8U) & 15U);
}

const OperatorRule* begin(OperatorRules) { return std::begin(kOperators); }
const OperatorRule* end(OperatorRules) { return std::end(kOperators); }

}  // namespace normfuse::directml
