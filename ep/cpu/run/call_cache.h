// Geometries and plans of earlier calls: most nodes see the same shapes, and memory alike, again and again.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "cpu/run/call.h"

namespace normfuse::cpu {

// The first few things that were added, which stay as they are. Calls may run at the same time.
template <class T>
class FirstFew {
 public:
  FirstFew() = default;
  FirstFew(const FirstFew&) = delete;
  FirstFew& operator=(const FirstFew&) = delete;
  ~FirstFew() {
    for (auto& slot : slots_) delete slot.load(std::memory_order_relaxed);
  }

  // The first one for which matches(thing), or null.
  template <class Matches>
  const T* Find(Matches matches) const {
    for (const auto& slot : slots_) {
      const T* thing = slot.load(std::memory_order_acquire);
      if (thing == nullptr || matches(*thing)) return thing;
    }
    return nullptr;
  }

  bool full() const { return slots_[kMost - 1].load(std::memory_order_relaxed) != nullptr; }

  // Returns what it is from now on, or null where there is no room left.
  const T* Add(std::unique_ptr<const T> thing) {
    for (auto& slot : slots_) {
      const T* nothing = nullptr;
      if (slot.compare_exchange_strong(nothing, thing.get(), std::memory_order_release, std::memory_order_relaxed)) {
        return thing.release();
      }
    }
    return nullptr;
  }

 private:
  static constexpr int kMost = 4;
  std::atomic<const T*> slots_[kMost] = {};  // filled from the first on
};

// What is known of calls with the same shapes.
class BoundShapes {
 public:
  BoundShapes(std::vector<int64_t> shapes, const Geometry& geometry)
      : shapes_(std::move(shapes)), geometry_(geometry) {}

  bool IsOf(const std::vector<FormId>& forms, const CallShapes& shapes) const;
  const Geometry& geometry() const { return geometry_; }
  // The plan of a call with this PlanKey, or null.
  const Plan* FindPlan(uint64_t key) const;
  // Allocates, but for plans that no room is left for.
  void AddPlan(uint64_t key, const Plan& plan) const;

 private:
  struct KeyedPlan {
    uint64_t key;
    Plan plan;
  };
  std::vector<int64_t> shapes_;  // of each form the rank and the dimensions
  Geometry geometry_;
  mutable FirstFew<KeyedPlan> plans_;
};

// Of the first few shapes that a node meets; further ones are bound anew in every call.
class CallCache {
 public:
  // `forms`: those whose shapes change from call to call. Of the others nothing is read.
  void KeyedBy(std::vector<FormId> forms) { forms_ = std::move(forms); }
  const std::vector<FormId>& forms() const { return forms_; }

  // Null where these shapes are new.
  const BoundShapes* Find(const CallShapes& shapes) const;
  // Allocates; null where there is no room left.
  const BoundShapes* Add(const CallShapes& shapes, const Geometry& geometry);

 private:
  std::vector<FormId> forms_;
  FirstFew<BoundShapes> shapes_;
};

}  // namespace normfuse::cpu
