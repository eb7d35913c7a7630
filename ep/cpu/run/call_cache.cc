#include "cpu/run/call_cache.h"

#include <algorithm>

namespace normfuse::cpu {
namespace {

// Moves `shapes` on where they go on with this one.
bool Begins(const int64_t** shapes, const Shape& shape) {
  const int64_t* at = *shapes;
  if (*at++ != shape.rank) return false;
  for (int i = 0; i < shape.rank; ++i) {
    if (*at++ != shape.dims[i]) return false;
  }
  *shapes = at;
  return true;
}

}  // namespace

bool BoundShapes::IsOf(const std::vector<FormId>& forms, const CallShapes& shapes) const {
  const int64_t* at = shapes_.data();
  return std::all_of(forms.begin(), forms.end(), [&](FormId form) { return Begins(&at, shapes.of[form]); });
}

const Plan* BoundShapes::FindPlan(uint64_t key) const {
  const KeyedPlan* found = plans_.Find([key](const KeyedPlan& each) { return each.key == key; });
  return found == nullptr ? nullptr : &found->plan;
}

void BoundShapes::AddPlan(uint64_t key, const Plan& plan) const {
  if (!plans_.full()) plans_.Add(std::make_unique<const KeyedPlan>(KeyedPlan{key, plan}));
}

const BoundShapes* CallCache::Find(const CallShapes& shapes) const {
  return shapes_.Find([&](const BoundShapes& each) { return each.IsOf(forms_, shapes); });
}

const BoundShapes* CallCache::Add(const CallShapes& shapes, const Geometry& geometry) {
  if (shapes_.full()) return nullptr;
  std::vector<int64_t> copies;
  for (const FormId form : forms_) {
    const Shape& shape = shapes.of[form];
    copies.push_back(shape.rank);
    copies.insert(copies.end(), shape.dims, shape.dims + std::max(shape.rank, 0));
  }
  return shapes_.Add(std::make_unique<const BoundShapes>(std::move(copies), geometry));
}

}  // namespace normfuse::cpu
