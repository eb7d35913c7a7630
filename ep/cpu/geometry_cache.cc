#include "cpu/geometry_cache.h"

#include <algorithm>
#include <memory>
#include <tuple>

namespace normfuse::cpu {
namespace {

bool Equal(const std::vector<int64_t>& dims, const Shape& shape) {
  return std::equal(dims.begin(), dims.end(), shape.dims, shape.dims + std::max(shape.rank, 0));
}

std::vector<int64_t> Copy(const Shape& shape) { return {shape.dims, shape.dims + std::max(shape.rank, 0)}; }

}  // namespace

GeometryCache::~GeometryCache() {
  for (auto& entry : entries_) delete entry.load(std::memory_order_relaxed);
}

bool GeometryCache::IsOf(const Entry& entry, const CallShapes& shapes) const {
  for (size_t i = 0; i < forms_.size(); ++i) {
    if (!Equal(entry.shapes[i], shapes.of[forms_[i]])) return false;
  }
  return true;
}

const Geometry* GeometryCache::Find(const CallShapes& shapes) const {
  for (const auto& each : entries_) {
    const Entry* entry = each.load(std::memory_order_acquire);
    if (entry == nullptr) return nullptr;
    if (IsOf(*entry, shapes)) return &entry->geometry;
  }
  return nullptr;
}

void GeometryCache::Add(const CallShapes& shapes, const Geometry& geometry) {
  if (entries_[kMostEntries - 1].load(std::memory_order_relaxed) != nullptr) return;
  std::vector<std::vector<int64_t>> copies;
  copies.reserve(forms_.size());
  for (const FormId form : forms_) copies.push_back(Copy(shapes.of[form]));
  auto entry = std::make_unique<const Entry>(Entry{std::move(copies), geometry});
  for (auto& each : entries_) {
    const Entry* nothing = nullptr;
    if (each.compare_exchange_strong(nothing, entry.get(), std::memory_order_release, std::memory_order_relaxed)) {
      std::ignore = entry.release();
      return;
    }
  }
}

}  // namespace normfuse::cpu
