#include "cpu/plan/clipped_pairs.h"

#include <cmath>

#include "cpu/run/elements.h"

namespace normfuse::cpu {
namespace {

float NumberOf(const TensorRef& tensor) {
  if (!tensor.present()) return 0.0f;
  return static_cast<float>(ReadElement(tensor.constant->type, tensor.constant->data, 0));
}

}  // namespace

std::optional<IntegerBounds> BoundsOfClippedPair(const Step& pair, const Step& clip) {
  if (pair.kind != StepKind::kFakeQuantize || !IsOneNumber(pair.quantization)) return std::nullopt;
  if (clip.kind != StepKind::kActivate || clip.activation.kind != Activation::kClip) return std::nullopt;
  if (IsFloat8(pair.type)) return std::nullopt;
  const float* const ends = clip.activation.params;
  const float scale = NumberOf(pair.quantization.scale);
  const float zero = NumberOf(pair.quantization.zero_point);
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

}  // namespace normfuse::cpu
