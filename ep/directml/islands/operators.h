// The lowerings of an island's operators, by family. Each reads the node's inputs, emits DirectML operators and gives the
// node's outputs, or refuses.
#pragma once

#include "directml/islands/node.h"

namespace normfuse::directml {

// --- data movement: movement.cc ---
// What a node of data movement makes of a view; nothing for other operators, and after a refusal.
std::optional<StridedView> Moved(NodeLowering& node, const StridedView& from);
// A part of a tensor, as a copy: from `offsets`, in `steps`, of `dims`.
Tensor Window(NodeLowering& node, const Tensor& from, const Dims& offsets, const Dims& dims, const Dims& steps);
// A tensor's slices along an axis, by their indices.
Tensor Picked(NodeLowering& node, const Tensor& from, size_t axis, const std::vector<int32_t>& indices);
void LowerMovement(NodeLowering& node);
void LowerConstantOfShape(NodeLowering& node);
void LowerSplit(NodeLowering& node);
void LowerConcat(NodeLowering& node);
void LowerGather(NodeLowering& node);
void LowerGatherNd(NodeLowering& node);

// --- element by element: elementwise.cc ---
void LowerUnary(NodeLowering& node, abi::DML_OPERATOR_TYPE type, float scale = 1);
// Of two operands or, for Min and Max, more.
void LowerBinary(NodeLowering& node, abi::DML_OPERATOR_TYPE type);
void LowerPow(NodeLowering& node);
// Comparisons, And, Or, Xor.
void LowerLogical(NodeLowering& node, abi::DML_OPERATOR_TYPE type);
// IsNaN, Not.
void LowerPredicate(NodeLowering& node, abi::DML_OPERATOR_TYPE type);
void LowerWhere(NodeLowering& node);
void LowerCast(NodeLowering& node);
void LowerBatchNormalization(NodeLowering& node);

// --- reductions: reductions.cc ---
void LowerReduce(NodeLowering& node, abi::DML_REDUCE_FUNCTION function);
void LowerGlobalPool(NodeLowering& node, abi::DML_REDUCE_FUNCTION function);

// --- products: products.cc ---
void LowerMatMul(NodeLowering& node);
void LowerGemm(NodeLowering& node);
void LowerEinsum(NodeLowering& node);
void LowerMatMulInteger(NodeLowering& node);
void LowerQLinearMatMul(NodeLowering& node);

// --- quantised: quantized.cc ---
// A scale or zero point beside a tensor of `rank` dimensions: one element, or `most` along `axis`. Nothing where it is left
// out, and, with a refusal, where it has another number of elements.
std::optional<ExactView> ParameterOf(NodeLowering& node, size_t input, size_t rank, size_t axis, int64_t most);
void LowerDynamicQuantizeLinear(NodeLowering& node);

// --- windows that move: windows.cc ---
void LowerConv(NodeLowering& node);
void LowerConvTranspose(NodeLowering& node);
void LowerConvInteger(NodeLowering& node);
void LowerQLinearConv(NodeLowering& node);
void LowerPool(NodeLowering& node, abi::DML_OPERATOR_TYPE type);

// --- borders: borders.cc ---
void LowerPad(NodeLowering& node);
void LowerResize(NodeLowering& node);

}  // namespace normfuse::directml
