// Geometries of earlier calls: most nodes see the same shapes again and again.
#pragma once

#include <atomic>
#include <cstdint>
#include <utility>
#include <vector>

#include "cpu/geometry.h"

namespace normfuse::cpu {

// Of the first few shapes that a node meets; those of further ones are made anew in every call. Calls may run at the same
// time.
class GeometryCache {
 public:
  // `forms`: those whose shapes change from call to call.
  void KeyedBy(std::vector<FormId> forms) { forms_ = std::move(forms); }
  GeometryCache() = default;
  GeometryCache(const GeometryCache&) = delete;
  GeometryCache& operator=(const GeometryCache&) = delete;
  ~GeometryCache();

  // Null where these shapes are new.
  const Geometry* Find(const CallShapes& shapes) const;
  // Allocates, but for shapes that no room is left for.
  void Add(const CallShapes& shapes, const Geometry& geometry);

 private:
  struct Entry {
    std::vector<std::vector<int64_t>> shapes;  // one for each of forms_; those of rank 0 and absent ones look alike
    Geometry geometry;
  };
  bool IsOf(const Entry& entry, const CallShapes& shapes) const;

  static constexpr int kMostEntries = 4;
  std::vector<FormId> forms_;
  std::atomic<const Entry*> entries_[kMostEntries] = {};  // filled from the first on, and never changed
};

}  // namespace normfuse::cpu
