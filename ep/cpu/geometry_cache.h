// Geometries of earlier calls: most nodes see the same shapes again and again.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "cpu/geometry.h"

namespace normfuse::cpu {

// Of the first few shapes that a node meets; those of further ones are made anew in every call. Only for nodes whose
// parameters are all constant, so that X and the residual are all that changes. Calls may run at the same time.
class GeometryCache {
 public:
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
    std::vector<int64_t> x;
    std::vector<int64_t> residual;
    Geometry geometry;
  };
  static constexpr int kMostEntries = 4;
  std::atomic<const Entry*> entries_[kMostEntries] = {};  // filled from the first on, and never changed
};

}  // namespace normfuse::cpu
