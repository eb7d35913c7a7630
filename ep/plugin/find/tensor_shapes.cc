#include "plugin/find/tensor_shapes.h"

#include <algorithm>

namespace normfuse::plugin {
namespace {

// Calls fits(dimension of operand, dimension of whole) for those that meet, from the first of operand's on.
template <typename Fits>
bool AllMeet(const TensorFacts& operand, const TensorFacts& whole, Fits&& fits) {
  if (operand.rank < 0 || whole.rank < operand.rank || whole.rank > kMaxRank) return false;
  for (int i = 0; i < operand.rank; ++i) {
    if (!fits(operand.dims[i], whole.dims[whole.rank - operand.rank + i])) return false;
  }
  return true;
}

}  // namespace

bool CertainlyFits(const TensorFacts& operand, const TensorFacts& whole) {
  return AllMeet(operand, whole, [](int64_t a, int64_t b) { return a == 1 || (a >= 0 && a == b); });
}

bool MayFit(const TensorFacts& operand, const TensorFacts& whole) {
  return AllMeet(operand, whole, [](int64_t a, int64_t b) { return a == 1 || a == b || (a < 0 && b > 1) || b < 0; });
}

bool HasOneElement(const TensorFacts& facts) {
  return facts.rank >= 0 && facts.rank <= kMaxRank &&
         std::all_of(facts.dims, facts.dims + facts.rank, [](int64_t dim) { return dim == 1; });
}

bool HaveOneShape(const TensorFacts& a, const TensorFacts& b) {
  return a.rank == b.rank && std::equal(a.dims, a.dims + std::max(a.rank, 0), b.dims);
}

}  // namespace normfuse::plugin
