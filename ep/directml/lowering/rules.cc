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

#define NORMFUSE_RULE(name, number, fields, level, all_ranks, in, out) \
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
