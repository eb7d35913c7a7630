// Small integer tensors whose content is known when a program is made: computations of shapes, which stay on the CPU.
#pragma once

#include <optional>
#include <vector>

#include "directml/islands/island.h"
#include "directml/islands/tensor_views.h"

namespace normfuse::directml {

// Tensors with more elements are computed on the GPU.
inline constexpr int64_t kMostKnownElements = 1 << 20;

struct KnownTensor {
  DataType type = DataType::kUndefined;  // int64, int32 or bool
  Dims dims;
  std::vector<int64_t> values;
};

bool IsKnowable(DataType type);

// Nothing for another element type.
std::optional<KnownTensor> Known(DataType type, const Dims& dims, const void* data);
ConstantTensor AsConstant(const KnownTensor& tensor);

// The elements that a view shows.
KnownTensor Taken(const KnownTensor& tensor, const StridedView& view);

// Which rows GatherND takes of a tensor that is seen as a matrix: all dimensions that indices choose from, by the others.
struct GatheredRows {
  Dims result_dims;
  int64_t width = 1;
  std::vector<int64_t> rows;
};

// Nothing where an index or a shape does not fit.
std::optional<GatheredRows> RowsOfGatherNd(const IslandNode& node, const Dims& dims, const KnownTensor& indices);

// What an operator of the table that computes with integers gives; nothing where it cannot be computed here.
std::optional<KnownTensor> ComputeKnown(const IslandNode& node, const std::vector<const KnownTensor*>& inputs);

}  // namespace normfuse::directml
