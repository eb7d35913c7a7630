#include "cpu/plan/pairs.h"

#include <algorithm>
#include <cmath>
#include <memory>

#include "cpu/plan/cost_model.h"
#include "cpu/run/elements.h"

namespace normfuse::cpu {
namespace {

// Whether the stage is a fake quantisation to integers, of one scale and zero point.
bool IsOnePair(const Stage& stage) {
  return stage.kind == StepKind::kFakeQuantize && stage.quantization_form == kFormCount && !IsFloat8(stage.type) &&
         Quantizer::Fits(stage.quantizer.scale);
}

bool HasAllIntegers(const Stage& stage) {
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
  if (!HasAllIntegers(first) || !HasAllIntegers(*second)) return false;
  if (first.keeps || second->makes_codes || first.quantization_zero != second->quantization_zero) return false;
  if (!KeepsIntegers(chain, first, *second)) return false;
  first.quantizer.factor = second->quantizer.factor;
  first.keeps = second->keeps;
  first.step = second->step;
  stages->erase(behind, second + 1);
  return true;
}

// Those behind the normalisation, or in a chain without one.
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

}  // namespace

std::optional<IntegerBounds> BoundsOfClippedPair(const Step& pair, const Step& clip) {
  if (pair.kind != StepKind::kFakeQuantize || !IsOneNumber(pair.quantization)) return std::nullopt;
  if (clip.kind != StepKind::kActivate || clip.activation.kind != Activation::kClip) return std::nullopt;
  if (IsFloat8(pair.type)) return std::nullopt;
  const float* const ends = clip.activation.params;
  const float scale = OneNumberOf(pair.quantization.scale, 0.0f);
  const float zero = OneNumberOf(pair.quantization.zero_point, 0.0f);
  if (!(scale > 0) || !(ends[0] <= ends[1])) return std::nullopt;
  IntegerBounds bounds;
  IntegerRange(pair.type, &bounds.low, &bounds.high);
  const IntegerBounds all = bounds;
  const float least = (all.low - zero) * scale;
  const float most = (all.high - zero) * scale;
  const auto integer_at = [&](float end) { return std::nearbyint(end / scale) + zero; };
  if (ends[0] > least) bounds.low = integer_at(ends[0]);
  if (ends[1] < most) bounds.high = integer_at(ends[1]);
  const auto is_one = [&](float integer, float end) {
    return integer >= all.low && integer <= all.high && (integer - zero) * scale == end;
  };
  const bool fits =
      (ends[0] <= least || is_one(bounds.low, ends[0])) && (ends[1] >= most || is_one(bounds.high, ends[1]));
  return fits ? std::optional(bounds) : std::nullopt;
}

void SimplifyPairs(const Chain& chain, Isa isa, CompiledChain* compiled) {
  const KernelTable& kernels = KernelsFor(isa);
  JoinPairs(chain, isa, &compiled->spec);
  for (std::vector<Stage>* stages : {&compiled->spec.before, &compiled->spec.behind}) {
    for (Stage& stage : *stages) {
      if (!IsOnePair(stage)) continue;
      stage.quantizer.by_product = kernels.rounds_by_product(stage.quantizer, stage.least_code, stage.most_code);
    }
  }
  DropRedundantClamps(chain, kernels, compiled);
}

}  // namespace normfuse::cpu
