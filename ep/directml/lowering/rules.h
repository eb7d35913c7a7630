// What DirectML can do at which feature level: the one table that the lowering asks, the documentation shows and the
// tests prove against Microsoft's libraries.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "abi/directml_abi.h"

namespace normfuse::directml {

using FeatureLevel = abi::DML_FEATURE_LEVEL;

// The lowest level that we use: MEAN_VARIANCE_NORMALIZATION1 and operator graphs came with it.
inline constexpr FeatureLevel kMinimumLevel = abi::DML_FEATURE_LEVEL_2_1;

inline constexpr uint32_t kNever = 0xFFFFFFFF;

// What a lowering may rely on: the library's level, and the element types that it supports on this GPU (a bit set of
// DML_TENSOR_DATA_TYPE; 8- and 16-bit types depend on the driver).
struct Capabilities {
  FeatureLevel level = kMinimumLevel;
  uint32_t types = 0xFFFFFFFF;
};

enum class RuleKind {
  kImpossible,  // CreateOperator refuses it below the level
  kAvoided,     // CreateOperator takes it, but the result is wrong, undefined or useless
};

enum class RuleId : int {
  kScaleWithoutBias,
  kOptionalZeroPoint,
  kSmallSoftplusSteepness,
  kQuantizeTo16Bits,
  kFourBitElementWise,
  kUnevenBlocks,
  kBlocksOfOtherShape,
  kNineDimensions,
  kZeroDimension,
  kTooManyElements,
  kMixedTypes,
  kFusedTwoTensors,
  kFusedClip,
  kBroadcastBySize,
  kHalfDequantizeScale,
  kNoAxes,
  kOneElementRows,
  kHalfStatistics,
  kMidpointZeroPoint,
  kWideIntegerZeroPoint,
  kNanEpsilon,
  kStatisticsOutputs,
};

struct Rule {
  RuleId id;
  const char* name;
  RuleKind kind;
  uint32_t since;      // feature level from which it is possible (or right); kNever
  const char* what;    // a noun phrase that completes "DirectML cannot express ..." or "... needs feature level"
  const char* source;  // where the rule comes from
};

inline constexpr Rule kRules[] = {
    {RuleId::kScaleWithoutBias, "scale_without_bias", RuleKind::kImpossible, abi::DML_FEATURE_LEVEL_5_2,
     "a normalisation with only one of scale and bias", "feature level history, 5_2; refused by the 5_0 library"},
    {RuleId::kOptionalZeroPoint, "optional_zero_point", RuleKind::kImpossible, abi::DML_FEATURE_LEVEL_6_2,
     "(de)quantisation without a zero point", "feature level history, 6_2; refused by the 5_0 library"},
    {RuleId::kSmallSoftplusSteepness, "small_softplus_steepness", RuleKind::kImpossible, abi::DML_FEATURE_LEVEL_6_4,
     "Softplus with a steepness below 1", "feature level history, 6_4; refused by the 5_0 and 6_2 libraries"},
    {RuleId::kQuantizeTo16Bits, "quantize_to_16_bits", RuleKind::kImpossible, kNever,
     "ELEMENT_WISE_QUANTIZE_LINEAR to a 16-bit type", "operator page; refused by every library tried"},
    {RuleId::kFourBitElementWise, "four_bit_element_wise", RuleKind::kImpossible, kNever,
     "ELEMENT_WISE_DEQUANTIZE_LINEAR of a 4-bit type", "operator page; refused by every library tried"},
    {RuleId::kUnevenBlocks, "uneven_blocks", RuleKind::kImpossible, kNever, "blocks that do not divide the dimension",
     "operator page; refused by every library tried"},
    {RuleId::kBlocksOfOtherShape, "blocks_of_other_shape", RuleKind::kImpossible, kNever,
     "DEQUANTIZE with a zero point of other sizes than its scale (strides of 0 broadcast)",
     "refused by the 6_4 library"},
    {RuleId::kNineDimensions, "nine_dimensions", RuleKind::kImpossible, kNever, "more than 8 dimensions",
     "DML_TENSOR_DIMENSION_COUNT_MAX1; refused by every library tried"},
    {RuleId::kZeroDimension, "zero_dimension", RuleKind::kImpossible, kNever, "a dimension of 0",
     "tensor rules; refused by every library tried"},
    {RuleId::kTooManyElements, "too_many_elements", RuleKind::kImpossible, kNever,
     "a tensor of more than 2^32 - 1 elements", "tensor rules; refused by every library tried"},
    {RuleId::kMixedTypes, "mixed_types", RuleKind::kImpossible, kNever,
     "a normalisation whose scale and input differ in type", "operator page; refused by every library tried"},
    {RuleId::kFusedTwoTensors, "fused_two_tensors", RuleKind::kImpossible, kNever,
     "PARAMETERIZED_RELU as fused activation", "fused activation page; refused by every library tried"},
    {RuleId::kFusedClip, "fused_clip", RuleKind::kImpossible, kNever,
     "ELEMENT_WISE_CLIP as activation fused into a normalisation",
     "fused activation page; refused by every library tried"},
    {RuleId::kBroadcastBySize, "broadcast_by_size", RuleKind::kImpossible, kNever,
     "ELEMENT_WISE_DEQUANTIZE_LINEAR with a scale of other sizes than its input (strides of 0 broadcast)",
     "operator page; refused by every library tried"},
    {RuleId::kHalfDequantizeScale, "half_dequantize_scale", RuleKind::kImpossible, abi::DML_FEATURE_LEVEL_6_0,
     "dequantisation with a float16 scale", "feature level history, 6_0; refused by the 5_0 library"},
    {RuleId::kNoAxes, "no_axes", RuleKind::kAvoided, kNever, "a normalisation over no axes",
     "accepted, but gives NaN (measured)"},
    {RuleId::kOneElementRows, "one_element_rows", RuleKind::kAvoided, kNever,
     "a normalisation over one element (the element is subtracted from itself)", "accepted, but gives NaN (measured)"},
    {RuleId::kHalfStatistics, "half_statistics", RuleKind::kAvoided, kNever,
     "a normalisation computed in float16 (tensors are cast to float32)",
     "accepted, but a variance above 65504 saturates (measured)"},
    {RuleId::kMidpointZeroPoint, "midpoint_zero_point", RuleKind::kAvoided, kNever,
     "DEQUANTIZE without a zero point (an explicit 0 is given)",
     "accepted, but unsigned types then use the middle of their range (measured)"},
    {RuleId::kWideIntegerZeroPoint, "wide_integer_zero_point", RuleKind::kAvoided, kNever,
     "a 32-bit integer tensor with a zero point (it would be subtracted in float32)",
     "accepted, but (2^24 + 1) - 2^24 gives 0 (measured)"},
    {RuleId::kNanEpsilon, "nan_epsilon", RuleKind::kAvoided, kNever, "a NaN epsilon",
     "accepted, and everything is NaN (measured)"},
    {RuleId::kStatisticsOutputs, "statistics_outputs", RuleKind::kAvoided, abi::DML_FEATURE_LEVEL_6_2,
     "a normalisation whose mean or inverse standard deviation is an output",
     "compiled, but some elements of Y are wrong with the 5_0 library, none with 6_2 (measured)"},
};

constexpr const Rule& RuleOf(RuleId id) { return kRules[static_cast<int>(id)]; }
constexpr bool Allows(RuleId id, FeatureLevel level) { return level >= RuleOf(id).since; }

// Operators as a whole. Before `all_ranks` exactly four dimensions are taken, from then on one to eight.
struct OperatorRule {
  abi::DML_OPERATOR_TYPE type;
  FeatureLevel level;
  FeatureLevel all_ranks;
  uint32_t input_types;   // bit set of DML_TENSOR_DATA_TYPE for the first input, as of the level above
  uint32_t output_types;  // and for the output
};

constexpr uint32_t Bit(abi::DML_TENSOR_DATA_TYPE type) { return 1u << type; }
inline constexpr uint32_t kFloat32Type = Bit(abi::DML_TENSOR_DATA_TYPE_FLOAT32);
inline constexpr uint32_t kFloatTypes = kFloat32Type | Bit(abi::DML_TENSOR_DATA_TYPE_FLOAT16);
inline constexpr uint32_t kByteTypes = Bit(abi::DML_TENSOR_DATA_TYPE_UINT8) | Bit(abi::DML_TENSOR_DATA_TYPE_INT8);
inline constexpr uint32_t kNibbleTypes = Bit(abi::DML_TENSOR_DATA_TYPE_UINT4) | Bit(abi::DML_TENSOR_DATA_TYPE_INT4);
inline constexpr uint32_t kIntegerTypes = kByteTypes | Bit(abi::DML_TENSOR_DATA_TYPE_UINT16) |
                                          Bit(abi::DML_TENSOR_DATA_TYPE_INT16) | Bit(abi::DML_TENSOR_DATA_TYPE_UINT32) |
                                          Bit(abi::DML_TENSOR_DATA_TYPE_INT32);
inline constexpr uint32_t kAnyType = 0;  // not stated here: we use float32 only

// The rule of an operator; nothing for a type that the lowering does not use. Activations come from kActivations.
std::optional<OperatorRule> OperatorRuleOf(abi::DML_OPERATOR_TYPE type);

// The rules of all operators but the activations, to iterate over.
struct OperatorRules {};
const OperatorRule* begin(OperatorRules);
const OperatorRule* end(OperatorRules);

// "ELEMENT_WISE_ADD", "ACTIVATION_RELU" ...; "UNKNOWN" for anything else.
std::string OperatorName(abi::DML_OPERATOR_TYPE type);
// INVALID: there is none of that name.
abi::DML_OPERATOR_TYPE OperatorNamed(std::string_view name);

// "6_2"
std::string LevelName(uint32_t level);

// Every level from 1_0 to the newest that we know, ascending.
inline constexpr FeatureLevel kLevels[] = {
    abi::DML_FEATURE_LEVEL_1_0, abi::DML_FEATURE_LEVEL_2_0, abi::DML_FEATURE_LEVEL_2_1, abi::DML_FEATURE_LEVEL_3_0,
    abi::DML_FEATURE_LEVEL_3_1, abi::DML_FEATURE_LEVEL_4_0, abi::DML_FEATURE_LEVEL_4_1, abi::DML_FEATURE_LEVEL_5_0,
    abi::DML_FEATURE_LEVEL_5_1, abi::DML_FEATURE_LEVEL_5_2, abi::DML_FEATURE_LEVEL_6_0, abi::DML_FEATURE_LEVEL_6_1,
    abi::DML_FEATURE_LEVEL_6_2, abi::DML_FEATURE_LEVEL_6_3, abi::DML_FEATURE_LEVEL_6_4,
};

}  // namespace normfuse::directml
