#include "cpu/plan/joined_affine.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace normfuse::cpu {
namespace {

// The forms of all operands that the stage joins.
uint32_t FormsOf(const Stage& stage) {
  uint32_t forms = 0;
  for (const StageOperand* operand : {&stage.scale, &stage.bias}) {
    if (operand->present()) forms |= Bit(operand->form);
  }
  for (const FurtherAffine& further : stage.further) forms |= Bit(further.form);
  return forms;
}

bool Varies(const Dim& dim, uint32_t forms) {
  for (int form = 0; form < kFormCount; ++form) {
    if ((forms >> form & 1u) != 0 && dim.stride[form] != 0) return true;
  }
  return false;
}

// A dimension's strides in the joined parameters, whose elements so far are `count`.
void LayOut(uint32_t forms, Dim* dim, int64_t* count) {
  const bool varies = Varies(*dim, forms);
  dim->stride[kFormScale] = dim->stride[kFormBias] = varies ? *count : 0;
  if (varies) *count *= dim->size;
}

bool IsNormal(float value) {
  const float magnitude = std::fabs(value);
  return magnitude >= std::numeric_limits<float>::min() && magnitude <= std::numeric_limits<float>::max();
}

// values[i] *= factors[i], and whether none of the products has left the range of normal floats.
bool Multiply(int64_t n, Vec factors, float* values) {
  bool normal = true;
  for (int64_t i = 0; i < n; ++i) {
    const float factor = factors.data[i * factors.step];
    const float product = values[i] * factor;
    normal &= IsNormal(product) || ((values[i] == 0 || factor == 0) && product == 0);
    values[i] = product;
  }
  return normal;
}

// values[i] += terms[i], and whether all sums are finite.
bool Add(int64_t n, Vec terms, float* values) {
  bool finite = true;
  for (int64_t i = 0; i < n; ++i) {
    values[i] += terms.data[i * terms.step];
    finite &= std::fabs(values[i]) <= std::numeric_limits<float>::max();
  }
  return finite;
}

void Fill(int64_t n, Vec from, float* values) {
  for (int64_t i = 0; i < n; ++i) values[i] = from.data[i * from.step];
}

// Joins n elements from `at` on into scale and bias.
bool Join(const Call& call, const Stage& stage, const Offsets& at, const Dim& step, int64_t n, float* const out[2]) {
  const auto vec_at = [&](FormId form, const float* absent) { return VecAt(call, form, at, step, absent); };
  Fill(n, stage.scale.present() ? vec_at(stage.scale.form, &kOne) : Vec{&kOne, 0}, out[0]);
  Fill(n, stage.bias.present() ? vec_at(stage.bias.form, &kNoBias) : Vec{&kNoBias, 0}, out[1]);
  bool joined = true;
  for (const FurtherAffine& further : stage.further) {
    const Vec operand = vec_at(further.form, nullptr);
    if (further.kind == StepKind::kAdd) {
      joined &= Add(n, operand, out[1]);
    } else {
      joined &= Multiply(n, operand, out[0]);
      joined &= Multiply(n, operand, out[1]);
    }
  }
  return joined;
}

}  // namespace

void LayOutJoined(const Stage& stage, Geometry* g) {
  const uint32_t forms = FormsOf(stage);
  int64_t count = 1;
  // What lies along a run, or side by side in columns, is contiguous.
  for (DimList* list : {g->columns ? &g->kept : &g->reduced, g->columns ? &g->reduced : &g->kept}) {
    for (int i = list->count - 1; i >= 0; --i) LayOut(forms, &list->dims[i], &count);
  }
  g->joined_count = count;
  g->active |= Bit(kFormScale) | Bit(kFormBias);
}

bool JoinedAt(const Block& b, const Stage& stage, float* const rooms[2], Affine* joined) {
  const bool varies = b.step.stride[kFormScale] != 0;
  if (!Join(b.call, stage, b.at, b.step, varies ? b.n : 1, rooms)) return false;
  *joined = {{rooms[0], varies ? 1 : 0}, {rooms[1], varies ? 1 : 0}};
  return true;
}

void JoinForCall(Call* call, const Stage& stage, float* memory) {
  const Geometry& g = *call->geometry;
  DimList dims;
  for (const DimList* list : {g.columns ? &g.reduced : &g.kept, g.columns ? &g.kept : &g.reduced}) {
    for (int i = 0; i < list->count; ++i) {
      if (list->dims[i].stride[kFormScale] != 0) dims.dims[dims.count++] = list->dims[i];
    }
  }
  if (dims.count == 0) dims.dims[dims.count++] = Dim{1, {}};
  bool joined = true;
  const auto join = [&](const Offsets& at, int64_t index, int64_t n) {
    float* const out[2] = {memory + index, memory + g.joined_count + index};
    joined = joined && Join(*call, stage, at, Innermost(dims), n, out);
  };
  Odometer(dims, FormsOf(stage)).ForEachStretch({0, g.joined_count}, Offsets{}, join);
  if (!joined) return;
  constexpr int64_t kNoDimensions[1] = {};
  call->params[kFormScale] = {memory, nullptr, {kNoDimensions, 0}};
  call->params[kFormBias] = {memory + g.joined_count, nullptr, {kNoDimensions, 0}};
  call->is_joined = true;
}

}  // namespace normfuse::cpu
