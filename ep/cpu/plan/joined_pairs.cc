#include "cpu/plan/joined_pairs.h"

#include <algorithm>
#include <memory>

#include "cpu/plan/cost_model.h"
#include "cpu/run/elements.h"

namespace normfuse::cpu {
namespace {

// Whether the stage quantises with two numbers, to all integers of its type.
bool IsOnePair(const Stage& stage) {
  if (stage.kind != StepKind::kFakeQuantize || stage.quantization_form != kFormCount) return false;
  if (IsFloat8(stage.type) || !Quantizer::Fits(stage.quantizer.scale)) return false;
  float low = 0.0f;
  float high = 0.0f;
  IntegerRange(stage.type, &low, &high);
  return stage.least_code == low && stage.most_code == high;
}

// Whether the second pair makes the first one's integers of what comes of these on the way.
bool KeepsIntegers(const Chain& chain, const Stage& first, const Stage& second) {
  const std::optional<Chain> between = BetweenPairs(chain, first.step, second.step);
  std::unique_ptr<Executable> executable;
  if (!between || !CompileForCpu(*between, &executable).ok()) return false;
  CodeTable table{first.type, first.type, std::nullopt, {}};
  return Tabulate(*executable, &table).ok() && IsIdentity(table);
}

bool JoinNext(const Chain& chain, size_t place, std::vector<Stage>* stages) {
  Stage& first = (*stages)[place];
  const auto behind = stages->begin() + static_cast<std::ptrdiff_t>(place) + 1;
  const auto is_pair = [](const Stage& stage) { return stage.kind == StepKind::kFakeQuantize; };
  const auto second = std::find_if(behind, stages->end(), is_pair);
  if (second == stages->end() || !IsOnePair(first) || !IsOnePair(*second)) return false;
  if (first.keeps || second->makes_codes || first.quantization_zero != second->quantization_zero) return false;
  if (!KeepsIntegers(chain, first, *second)) return false;
  first.quantizer.factor = second->quantizer.factor;
  first.keeps = second->keeps;
  first.step = second->step;
  stages->erase(behind, second + 1);
  return true;
}

}  // namespace

void JoinPairs(const Chain& chain, Isa isa, ChainSpec* spec) {
  Chain shorter = chain;
  for (size_t place = 0; place < spec->behind.size(); ++place) {
    const int first = spec->behind[place].step;
    while (JoinNext(chain, place, &spec->behind)) {
    }
    const std::ptrdiff_t gone = spec->behind[place].step - first;
    const auto behind = shorter.behind.end() - (std::ssize(chain.behind) - first) + 1;
    shorter.behind.erase(behind, behind + gone);
  }
  // What is left may be faster than a table.
  if (shorter.behind.size() == chain.behind.size() || !spec->codes || WorthwhileCodes(shorter, isa)) return;
  spec->codes.reset();
  for (Stage& stage : spec->behind) stage.makes_codes = false;
}

}  // namespace normfuse::cpu
