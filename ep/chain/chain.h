// What one fused node computes, as a short program. A Chain is built from a custom-op node, from a call of a model-local
// function, or from a chain of standard nodes; the CPU path and DirectML both execute it.
//
//   d  = dequantise(X), then each step of `before` in turn
//   n  = (d - mean) / sqrt(variance + epsilon)       with a normalization; -> outputs mean, inv_std_dev
//        or exp(d) / sum(exp(d)), or its logarithm, as the normalization's method says
//   a  = n, then each step of `behind` in turn
//   Y  = a, or saturate(round_half_even(a / scale) + zero_point), as `store` says, which may leave it to all of a what
//        scale and zero point are; -> outputs scale, zero_point, a
//
// Without a normalization n = d, and the two lists of steps are one.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "chain/data_type.h"
#include "chain/result.h"
#include "spec/tables.h"  // generated: enum class Activation, kActivations, enum class Reason ...

namespace normfuse {

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
  const void* data = nullptr;  // points into `storage`, or into memory that outlives the chain
  std::vector<unsigned char> storage;

  int64_t ElementCount() const {
    int64_t count = 1;
    for (int64_t dim : dims) count *= dim;
    return count;
  }
};

// A copy that has its own data.
std::shared_ptr<const ConstantTensor> Owned(const ConstantTensor& tensor);

// One tensor that a chain reads: an input of the node, a constant, or nothing. Where `constant` is set it wins and
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

// How a tensor meets d: NumPy broadcasting from the last dimension (kTrailing); one dimension along dimension 1
// (kChannel); one dimension of num_groups elements, each for the channels of one group (kGroup).
using Align = AlignValue;

// A tensor and, when it is quantised, its quantisation. `type` is the element type as stored, `shape` what the session
// knows of it; a constant tells its shape itself. `name` is for messages.
struct Operand {
  TensorRef tensor;
  DataType type = DataType::kUndefined;
  Quantization quantization;
  PartialShape shape;
  Align align = Align::kTrailing;
  std::string name;
  bool is_kept = false;  // no tensor, but d as a step before this one kept it
  bool by_cast = false;  // the quantisation is Cast and Mul in the model, not DequantizeLinear: for the cost model

  bool present() const { return tensor.present(); }
  // Whether its value, dequantised, is known when the session is created.
  bool constant() const {
    const auto is_fixed = [](const TensorRef& ref) { return !ref.present() || ref.constant != nullptr; };
    return tensor.constant != nullptr && is_fixed(quantization.scale) && is_fixed(quantization.zero_point);
  }
};

struct ActivationCall {
  Activation kind = Activation::kIdentity;
  float params[kMaxActivationParams] = {};  // in the table's order
};

inline constexpr int kNoOutput = -1;  // among positions of the node's outputs

// Whether the step combines d with its operand, as the table of steps says (kAdd, kMul ...).
constexpr bool IsCombination(StepKind kind) { return static_cast<int>(kind) < kCombinationCount; }

// Whether its output is d as it is there, by a quantisation (of one constant scale) or as a float. d goes on with the
// values that were stored where it is quantised (kRequantize), and as it is otherwise (kEmit).
constexpr bool IsStoring(StepKind kind) { return static_cast<int>(kind) >= kFirstStoring; }

// The other kinds:
//   kActivate      activation(d); the operand is the slope, of activations that have one
//   kMask          d where the operand, of bool, is as `mask` says, and another value elsewhere; before a softmax
//   kFakeQuantize  d quantised and dequantised

// The row of a step that combines or stores.
const StepSpec& SpecOf(StepKind kind);

// Whether steps of the row have the argument.
bool Takes(const StepSpec& spec, Argument argument);

struct MaskCall {
  bool shows = true;  // d stays where the operand is this
  float fill = 0.0f;  // and becomes this elsewhere
};

// What happens to each element of d. Operands broadcast with d in both directions, as ONNX's Add does; behind a
// normalization they must fit d as it is.
struct Step {
  StepKind kind = StepKind::kAdd;
  Operand operand;
  ActivationCall activation;
  MaskCall mask;  // kMask
  // Of those that store, and kFakeQuantize:
  DataType type = DataType::kUndefined;
  Quantization quantization;
  bool saturate = true;    // kFakeQuantize, float8 only
  bool keeps = false;      // kFakeQuantize behind no normalisation: the only step whose result a later one reads again
  int output = kNoOutput;  // of the shape of Y
};

Step Combine(StepKind kind, Operand operand);
Step Add(Operand operand);
Step Mul(Operand operand);
Step Activate(const ActivationCall& activation, Operand slope = {});
Step Requantise(Quantization quantization, DataType type, int output);
Step FakeQuantise(Quantization quantization, DataType type, bool saturate = true);
Step Emit(DataType type, int output);
Step Mask(Operand shown, bool shows, float fill);

using EpsilonOn = EpsilonOnValue;
using Method = MethodValue;

struct Normalization {
  Method method = Method::kStandard;
  std::vector<int64_t> axes;     // may be negative; empty when num_groups > 0 or first_axis is set
  bool from_first_axis = false;  // LayerNormalization's `axis`: all dimensions from first_axis on
  int64_t first_axis = -1;
  // Of the standard method alone:
  int64_t num_groups = 0;  // > 0: over [C / num_groups, rest...] of X seen as [N, num_groups, C / num_groups, rest...]
  bool use_mean = true;
  bool normalize_variance = true;
  float epsilon = 1e-5f;
  EpsilonOn epsilon_on = EpsilonOn::kVariance;
  int mean_output = kNoOutput;
  int inv_std_dev_output = kNoOutput;
  DataType stats_type = DataType::kFloat32;  // of these two
  // Of kSoftmax alone: a group without a result (all of it masked) is 0 instead of NaN.
  bool zero_for_nan = false;

  bool is_softmax() const { return method != Method::kStandard; }
  // Whether it goes along dimension `dim` of `rank`; groups go along others.
  bool Reduces(int64_t dim, int64_t rank) const;
  bool has_statistics() const { return mean_output != kNoOutput || inv_std_dev_output != kNoOutput; }
};

// ONNX's DynamicQuantizeLinear: to uint8, with one scale and zero point made from the least and the largest of the values and
// 0. As in ONNX Runtime the scale is 1 where there is no value but 0. NaN has no say in them, and becomes 0.
struct DynamicQuantization {
  int scale_output = kNoOutput;       // float32, without dimensions
  int zero_point_output = kNoOutput;  // uint8, without dimensions
  int value_output = kNoOutput;       // the last value itself, float32
};

// What becomes of the last value.
struct Store {
  DataType type = DataType::kUndefined;
  Quantization quantization;  // absent: Y is a float type
  bool saturate = true;       // float8 only
  int output = 0;
  std::optional<DynamicQuantization> dynamic = std::nullopt;

  bool quantizes() const { return quantization.present() || dynamic.has_value(); }
};

struct Chain {
  std::string name;  // of the node, for messages

  Operand x;
  std::vector<Step> before;
  std::optional<Normalization> normalization;
  std::vector<Step> behind;
  Store store;

  bool normalizes() const { return normalization.has_value(); }
  bool has_softmax() const { return normalization && normalization->is_softmax(); }
  int64_t num_groups() const { return normalization ? normalization->num_groups : 0; }
};

// The form that most chains have, and for which there are kernels of their own:
//   d = X [+ residual [+ residual_bias]], requantised or not, and an output or not;  a = activation(n * scale + bias)
// Everything in it may be absent (null); `before` and `behind` say which half of a chain is of that form. Scale and bias that are
// dequantised in each call are so behind a normalisation, where they are small.
struct UsualForm {
  bool before = false;
  const Operand* residual = nullptr;
  const Operand* residual_bias = nullptr;
  const Step* requantise = nullptr;
  const Step* sum = nullptr;  // the step whose output is d
  bool behind = false;
  const Operand* scale = nullptr;
  const Operand* bias = nullptr;
  const Step* activate = nullptr;

  Activation activation() const { return activate == nullptr ? Activation::kIdentity : activate->activation.kind; }
};
UsualForm UsualFormOf(const Chain& chain);

// Calls visit(Step&) for each step, in order.
template <typename ChainType, typename Visitor>
void ForEachStep(ChainType& chain, Visitor&& visit) {
  for (auto& step : chain.before) visit(step);
  for (auto& step : chain.behind) visit(step);
}

// Calls visit(Operand&) for each tensor that the chain reads, X first.
template <typename ChainType, typename Visitor>
void ForEachOperand(ChainType& chain, Visitor&& visit) {
  visit(chain.x);
  ForEachStep(chain, [&](auto& step) {
    if (step.operand.present()) visit(step.operand);
  });
}

// Calls visit(TensorRef&) for each tensor that the chain may read, present or not.
template <typename ChainType, typename Visitor>
void ForEachTensorRef(ChainType& chain, Visitor&& visit) {
  const auto visit_quantization = [&](auto& quantization) {
    visit(quantization.scale);
    visit(quantization.zero_point);
  };
  visit(chain.x.tensor);
  visit_quantization(chain.x.quantization);
  ForEachStep(chain, [&](auto& step) {
    visit(step.operand.tensor);
    visit_quantization(step.operand.quantization);
    visit_quantization(step.quantization);
  });
  visit_quantization(chain.store.quantization);
}

// Calls visit(int&) for the position of each output that the chain writes, Y first.
template <typename ChainType, typename Visitor>
void ForEachOutput(ChainType& chain, Visitor&& visit) {
  const auto visit_used = [&](auto& output) {
    if (output != kNoOutput) visit(output);
  };
  visit_used(chain.store.output);
  if (chain.store.dynamic) {
    visit_used(chain.store.dynamic->scale_output);
    visit_used(chain.store.dynamic->zero_point_output);
    visit_used(chain.store.dynamic->value_output);
  }
  ForEachStep(chain, [&](auto& step) { visit_used(step.output); });
  if (!chain.normalization) return;
  visit_used(chain.normalization->mean_output);
  visit_used(chain.normalization->inv_std_dev_output);
}

// Whether scale and zero point are constants, each one number for the whole tensor.
bool IsOneNumber(const Quantization& quantization);

// Whether the operand is X once more.
bool ReadsX(const Chain& chain, const Operand& operand);

// Whether d behind the step depends on d before it, or on X, and on nothing that changes.
bool DependsOnOneNumber(const Chain& chain, const Step& step);

// How many tensors its steps read, as kMostStepTensors counts them.
int StepTensors(const Chain& chain);

// What the session knows of an operand's shape.
PartialShape KnownShape(const Operand& operand);
// The same of a scale or a zero point.
PartialShape KnownShape(const TensorRef& parameter);

using OperandShape = std::function<PartialShape(const Operand& operand)>;

// What is known of the shapes of tensors; rank -1: nothing.
struct KnownShapes {
  OperandShape of_operand;
  std::function<PartialShape(const TensorRef& parameter)> of_parameter;  // scales and zero points
};

// The shape of d, and so that of Y: X and the operands of steps before the normalization, without one of all steps,
// broadcast with each other. Fails with a sentence that names the operand when two known shapes do not fit each other.
Result ShapeOfD(const Chain& chain, const OperandShape& shape_of, PartialShape* d);

// The same of what the session knows; rank -1 where the shapes do not fit, which Validate refuses.
PartialShape KnownShapeOfD(const Chain& chain);

// Fails with a sentence that names the operand and the shapes when they do not fit each other, or the axes; otherwise gives the
// shape of d.
Result CheckShapes(const Chain& chain, const KnownShapes& shapes, PartialShape* d);

// A quantised tensor, as far as the shapes are known. `tensor` is its name in messages.
struct QuantizedShapes {
  const std::string& node;
  const std::string& tensor;
  const Quantization& quantization;
  PartialShape shape;
  PartialShape scale;
  PartialShape zero_point;
};

// Fails with a sentence that names the tensor when its scale or zero point does not fit it. CheckShapes asks this, too.
Result CheckQuantization(const QuantizedShapes& shapes);

// Everything about a chain that can be judged without knowing the dimensions that ORT leaves open: types, ranks,
// parameter shapes, axes, block sizes. The message names the operand and the values seen. A chain that passes can fail
// at run time only by shapes that were not known.
Result Validate(const Chain& chain);

}  // namespace normfuse
