// The operator specification as data: what one fused node computes. A Plan is built from a custom-op node, from a call
// of a model-local function, or from a chain of standard nodes; the CPU path and DirectML both execute it.
//
//   d  = dequantise(X) [+ dequantise(residual)] [+ residual_bias]        -> optional output sum
//   d  = dequantise(quantise(d))                                         with sum_quantization
//   n  = (d - mean) / sqrt(variance + epsilon)                           kNormalization only; -> outputs mean, inv_std_dev
//   a  = activation(scale * n + bias)
//   Y  = a, or saturate(round_half_even(a / y_scale) + y_zero_point)
//
// kElementwise leaves the second line out (n = d), which gives FusedActivation and FusedDequantizeLinear.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "plan/data_type.h"
#include "plan/result.h"
#include "spec/tables.h"  // generated: enum class Activation, kActivations, enum class Reason ...

namespace normfuse {

inline constexpr int kMaxRank = 8;

// Dimensions as far as they are known: -1 for one that is not; rank -1 when not even their number is. A rank above
// kMaxRank has no dimensions here.
struct PartialShape {
  int rank = -1;
  int64_t dims[kMaxRank] = {};

  bool IsKnown() const;
  std::string Text() const;
};

// A tensor whose value is known when the session is created.
struct ConstantTensor {
  DataType type = DataType::kUndefined;
  std::vector<int64_t> dims;
  const void* data = nullptr;  // points into `storage`, or into memory that outlives the plan
  std::vector<unsigned char> storage;

  int64_t ElementCount() const {
    int64_t count = 1;
    for (int64_t dim : dims) count *= dim;
    return count;
  }
};

// One tensor that a plan reads: an input of the node, a constant, or nothing. Where `constant` is set it wins and
// `input` is kAbsent: ORT need not pass the tensor at run time.
struct TensorRef {
  static constexpr int kAbsent = -1;
  int input = kAbsent;
  std::shared_ptr<const ConstantTensor> constant;

  bool present() const { return input != kAbsent || constant != nullptr; }
};

// How a quantised tensor stands for real numbers. The shape of `scale` decides the granularity: one element = per
// tensor; one dimension = per axis; the tensor's own rank = blocked along `axis` when block_size > 0, otherwise
// broadcast in every dimension. So does that of `zero_point`, for itself, but blocked it has scale's shape or one
// element; absent means 0.
struct Quantization {
  TensorRef scale;
  TensorRef zero_point;
  int64_t axis = 1;
  int64_t block_size = 0;

  bool present() const { return scale.present(); }
};

// A tensor and, when it is quantised, its quantisation. `type` is the element type as stored, `shape` what the session
// knows of it; a constant tells its shape itself.
struct Operand {
  TensorRef tensor;
  DataType type = DataType::kUndefined;
  Quantization quantization;
  PartialShape shape;

  bool present() const { return tensor.present(); }
};

enum class PlanKind { kNormalization, kElementwise };
enum class EpsilonOn { kVariance, kStddev };
// How scale and bias meet X: numpy broadcasting from the last dimension; one dimension along dimension 1; one
// dimension of num_groups elements.
enum class AffineAlign { kTrailing, kChannel, kGroup };

struct Normalization {
  std::vector<int64_t> axes;     // may be negative; empty when num_groups > 0 or first_axis is set
  bool from_first_axis = false;  // LayerNormalization's `axis`: all dimensions from first_axis on
  int64_t first_axis = -1;
  int64_t num_groups = 0;  // > 0: over [C / num_groups, rest...] of X seen as [N, num_groups, C / num_groups, rest...]
  bool use_mean = true;
  bool normalize_variance = true;
  float epsilon = 1e-5f;
  EpsilonOn epsilon_on = EpsilonOn::kVariance;
};

struct ActivationCall {
  Activation kind = Activation::kIdentity;
  float params[kMaxActivationParams] = {};  // in the table's order
  TensorRef slope;                          // PRelu only; broadcast from the last dimension, see ShapeOfD
  DataType slope_type = DataType::kUndefined;
  PartialShape slope_shape;
};

struct Plan {
  static constexpr int kNoOutput = -1;

  std::string name;  // of the node, for messages
  PlanKind kind = PlanKind::kNormalization;

  Operand x;
  Operand residual;  // with X, and residual_bias with their sum: broadcast in both directions, as ONNX's Add does
  Operand residual_bias;
  // Present: d is quantised and dequantised again before anything else, and the output sum is the quantised tensor.
  // Per tensor and constant.
  Quantization sum_quantization;
  Normalization normalization;
  Operand scale;
  Operand bias;
  AffineAlign affine_align = AffineAlign::kTrailing;
  ActivationCall activation;

  DataType y_type = DataType::kUndefined;
  Quantization y_quantization;  // absent: Y is a float type
  bool y_saturate = true;       // float8 only

  // Positions among the node's outputs, or kNoOutput.
  int y_output = 0;
  int sum_output = kNoOutput;
  int mean_output = kNoOutput;
  int inv_std_dev_output = kNoOutput;
  DataType sum_type = DataType::kUndefined;  // a float type; with sum_quantization the quantised type
  DataType stats_type = DataType::kFloat32;  // of mean and inv_std_dev
};

// Shapes of the tensors that d is made of. Those that a plan does not read are ignored.
struct OperandShapes {
  PartialShape x;
  PartialShape residual;
  PartialShape residual_bias;
  PartialShape scale;
  PartialShape bias;
  PartialShape slope;
};

// What the session knows of them.
OperandShapes KnownShapes(const Plan& plan);

// The shape of d, and so that of Y: X, residual and residual_bias broadcast with each other. Without a normalisation
// scale, bias and slope may widen X as well; behind one they must fit d as it is, which is for the caller to check.
// Fails with a sentence that names the operand when two known shapes do not fit each other.
Result ShapeOfD(const Plan& plan, const OperandShapes& shapes, PartialShape* d);

// The same of what the session knows; rank -1 where the shapes do not fit, which Validate refuses.
PartialShape KnownShapeOfD(const Plan& plan);

// Calls visit(TensorRef&) for each tensor that the plan may read, present or not.
template <typename PlanType, typename Visitor>
void ForEachTensorRef(PlanType& plan, Visitor&& visit) {
  for (auto* operand : {&plan.x, &plan.residual, &plan.residual_bias, &plan.scale, &plan.bias}) {
    visit(operand->tensor);
    visit(operand->quantization.scale);
    visit(operand->quantization.zero_point);
  }
  visit(plan.sum_quantization.scale);
  visit(plan.sum_quantization.zero_point);
  visit(plan.activation.slope);
  visit(plan.y_quantization.scale);
  visit(plan.y_quantization.zero_point);
}

// Everything about a plan that can be judged without knowing the dimensions that ORT leaves open: types, ranks,
// parameter shapes, axes, block sizes. The message names the operand and the values seen. A plan that passes can fail
// at run time only by shapes that were not known.
Result Validate(const Plan& plan);

}  // namespace normfuse
