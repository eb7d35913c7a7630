#include "cpu/dynamic_quantization.h"

#include <algorithm>
#include <cmath>

namespace normfuse::cpu {
namespace {

constexpr int64_t kMostParts = 64;

// The parts are the same whoever does them, and the least and the largest value do not depend on the order.
struct Task {
  const KernelTable* kernels;
  const float* values;
  int64_t count;
  int64_t parts;
  uint8_t* y;
  ByteQuantization quantization;
  float low[kMostParts];
  float high[kMostParts];

  int64_t Begin(size_t part) const { return count * static_cast<int64_t>(part) / parts; }
};

void FindRange(void* user, size_t part) {
  auto& task = *static_cast<Task*>(user);
  const int64_t begin = task.Begin(part);
  task.low[part] = task.high[part] = 0.0f;
  task.kernels->widen_range(task.values + begin, static_cast<size_t>(task.Begin(part + 1) - begin), &task.low[part],
                            &task.high[part]);
}

void QuantizePart(void* user, size_t part) {
  auto& task = *static_cast<Task*>(user);
  const int64_t begin = task.Begin(part);
  task.kernels->quantize_to_bytes(task.values + begin, static_cast<size_t>(task.Begin(part + 1) - begin),
                                  task.quantization.scale, task.quantization.zero, task.y + begin);
}

}  // namespace

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
  const bool alone = call.path.threads == 1 || call.work_sharing->HasNoThreads();
  const int64_t parts = alone ? 1 : std::min<int64_t>(call.path.threads, kMostParts);
  const auto* values = static_cast<const float*>(call.y);
  Task task{call.kernels, values, call.geometry->element_count, parts, y, {}, {}, {}};
  const auto run = [&](void (*part)(void* user, size_t index)) -> Result {
    if (!alone) return call.work_sharing->ParallelFor(*call.context, part, static_cast<size_t>(task.parts), &task);
    part(&task, 0);
    return {};
  };
  NORMFUSE_RETURN_IF_ERROR(run(FindRange));
  task.quantization = QuantizationOf(*std::min_element(task.low, task.low + task.parts),
                                     *std::max_element(task.high, task.high + task.parts));
  *made = task.quantization;
  return y == nullptr ? Result() : run(QuantizePart);
}

}  // namespace normfuse::cpu
