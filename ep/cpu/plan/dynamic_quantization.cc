#include "cpu/plan/dynamic_quantization.h"

#include <algorithm>
#include <cmath>

namespace normfuse::cpu {

ByteQuantization QuantizationOf(float low, float high) {
  constexpr float kMost = 255.0f;
  ByteQuantization made;
  made.scale = low == high ? 1.0f : (high - low) / kMost;
  const float zero = 0.0f - low / made.scale;
  // At least 0; NaN of an infinite or vanishing scale gives 255, as there.
  made.zero = static_cast<uint8_t>(zero < kMost ? std::nearbyint(zero) : kMost);
  return made;
}

Result QuantizeDynamically(const Call& call, uint8_t* y, ByteQuantization* made) {
  constexpr int64_t kMostParts = 64;
  const int threads = call.path.threads;
  const int64_t parts = call.work_sharing->PartsFor(threads, std::min<int64_t>(threads, kMostParts));
  const auto* values = static_cast<const float*>(call.y);
  const auto begin = [&](int64_t part) { return BeginOfPart(part, parts, call.geometry->element_count); };
  const auto size = [&](int64_t part) { return static_cast<size_t>(begin(part + 1) - begin(part)); };
  // The least and the largest value do not depend on the order.
  float low[kMostParts] = {};
  float high[kMostParts] = {};
  NORMFUSE_RETURN_IF_ERROR(ForEachPart(call, parts, [&](int64_t part) {
    call.kernels->widen_range(values + begin(part), size(part), &low[part], &high[part]);
  }));
  *made = QuantizationOf(*std::min_element(low, low + parts), *std::max_element(high, high + parts));
  if (y == nullptr) return {};
  return ForEachPart(call, parts, [&](int64_t part) {
    call.kernels->quantize_to_bytes(values + begin(part), size(part), made->scale, made->zero, y + begin(part));
  });
}

}  // namespace normfuse::cpu
