#include "directml/lowering/chain_lowering.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <map>

#include "directml/lowering/activations.h"
#include "directml/lowering/program_builder.h"
#include "directml/lowering/quantization.h"

namespace normfuse::directml {
namespace {

using namespace abi;

constexpr auto kFloat = DML_TENSOR_DATA_TYPE_FLOAT32;

// Up to this epsilon, sqrt(variance + epsilon^2) stands for sqrt(variance) + epsilon: they differ by less than
// epsilon / stddev, and agree on constant rows. Larger ones are composed.
constexpr float kLargestSquaredEpsilon = 1e-8f;
constexpr float kSmallestSquare = 1e-18f;

Dims BroadcastShape(const Dims& a, const Dims& b) {
  Dims shape(std::max(a.size(), b.size()), 1);
  for (const Dims* dims : {&a, &b}) {
    for (size_t i = 0; i < dims->size(); ++i) {
      int64_t& dim = shape[shape.size() - 1 - i];
      const int64_t other = (*dims)[dims->size() - 1 - i];
      if (dim == 1) dim = other;
    }
  }
  return shape;
}

bool BroadcastsTo(const Dims& dims, const Dims& shape) {
  if (dims.size() > shape.size()) return false;
  for (size_t i = 0; i < dims.size(); ++i) {
    const int64_t dim = dims[dims.size() - 1 - i];
    if (dim != 1 && dim != shape[shape.size() - 1 - i]) return false;
  }
  return true;
}

// What chains of a sequence have given so far, by the number of the output.
struct Produced {
  int output_count = std::numeric_limits<int>::max();  // numbers from here on are no outputs of the node
  std::map<int, Value> values;
};

class Lowering {
 public:
  // `x_shape` and `others`: whether the shapes of X, and of all other inputs, are known or assumed.
  Lowering(const Chain& chain, const std::vector<InputShape>& inputs, ProgramBuilder& builder, Produced* produced,
           Shapes x_shape, Shapes others)
      : chain_(chain), inputs_(inputs), builder_(builder), produced_(produced), x_shape_(x_shape), others_(others) {}

  std::optional<Declined> Run() {
    Value d = Load(chain_.x, "X");
    whole_ = ShapeOfChain(d.dims);
    for (const Step& step : chain_.before) {
      if (builder_.refused()) return builder_.refused();
      d = Before(step, d);
    }
    if (builder_.refused()) return builder_.refused();
    d_dims_ = chain_.normalizes() ? d.dims : ShapeOfChain(d.dims);
    d_shape_ = ShapesOfD();
    groups_ = chain_.num_groups();
    // Assumed channels need not fit the groups; any number that fits lowers alike.
    if (d_shape_ == Shapes::kAssumed && groups_ > 0 && d_dims_.size() > 1 && d_dims_[1] % groups_ != 0) groups_ = 1;
    const Value result = chain_.normalizes() ? Normalise(d) : Behind(chain_.behind.begin(), d, d_dims_);
    if (!builder_.refused()) EmitY(result);
    return builder_.refused();
  }

 private:
  // --- tensors ------------------------------------------------------------------------------------------------------

  Value Raw(const TensorRef& ref, DataType type, const char* name) {
    if (ref.constant) return builder_.Weight(name, ref.constant, ref.constant->type);
    if (ref.input >= kFromOutput) return produced_->values.at(ref.input - kFromOutput);
    const auto index = static_cast<size_t>(ref.input);
    if (index >= inputs_.size()) {
      builder_.Unsupported(std::string(name) + " of unknown shape");
      return {};
    }
    const InputShape& shape = inputs_[index];
    return builder_.Input(name, ref.input, shape.type == DataType::kUndefined ? type : shape.type, shape.dims);
  }

  Value AsFloat(const Value& value, const char* name) {
    if (value.type == kFloat || builder_.refused()) return value;
    return builder_.Cast(value, kFloat, (std::string(name) + " to float32").c_str());
  }

  // A tensor by reference as float32: converted here when it is constant, cast on the device otherwise.
  Value FloatParameter(const TensorRef& ref, const char* name, DataType type = DataType::kFloat32) {
    if (!ref.constant) return AsFloat(Raw(ref, type, name), name);
    return builder_.Weight(name, ref.constant, DataType::kFloat32);
  }

  // The zero point is of the quantised `type`, or float32.
  QuantizationValues Parameters(const Quantization& quantization, DataType type, const char* name,
                                bool zero_as_float = false) {
    QuantizationValues values{FloatParameter(quantization.scale, name), std::nullopt};
    const TensorRef& zero_point = quantization.zero_point;
    if (!zero_point.present() || IsZero(zero_point)) return values;
    values.zero_point = zero_as_float ? FloatParameter(zero_point, name, type) : Raw(zero_point, type, name);
    return values;
  }

  static bool IsZero(const TensorRef& ref) {
    if (!ref.constant) return false;
    const auto* bytes = static_cast<const unsigned char*>(ref.constant->data);
    const size_t count = BytesFor(ref.constant->type, static_cast<size_t>(ref.constant->ElementCount()));
    return std::all_of(bytes, bytes + count, [](unsigned char byte) { return byte == 0; });
  }

  // Whether a parameter's shape is known: always, for a constant.
  Shapes ShapeOf(const TensorRef& ref) const { return ref.constant || !ref.present() ? Shapes::kKnown : others_; }

  Shapes ShapeOf(const Quantization& quantization, Shapes tensor) const {
    const bool known = tensor == Shapes::kKnown && ShapeOf(quantization.scale) == Shapes::kKnown &&
                       ShapeOf(quantization.zero_point) == Shapes::kKnown;
    return known ? Shapes::kKnown : Shapes::kAssumed;
  }

  // An operand as float32 real numbers.
  Value Load(const Operand& operand, const char* name) {
    if (operand.constant() && !operand.quantization.present()) {
      return builder_.Weight(name, operand.tensor.constant, DataType::kFloat32);
    }
    if (operand.constant()) {
      std::string problem;
      const auto values = DequantizeConstant(*operand.tensor.constant, operand.quantization, &problem);
      if (values) return builder_.FloatConstant(name, *values, operand.tensor.constant->dims);
      builder_.Unsupported("the quantisation of " + std::string(name) + ": " + problem);
      return {};
    }
    Value raw = Raw(operand.tensor, operand.type, name);
    if (!operand.quantization.present()) return AsFloat(raw, name);
    if (builder_.refused()) return raw;
    const Shapes tensor = &operand == &chain_.x ? x_shape_ : ShapeOf(operand.tensor);
    return EmitDequantize(builder_, raw, Parameters(operand.quantization, operand.type, name), operand.quantization,
                          ShapeOf(operand.quantization, tensor), name);
  }

  // Whether the shapes of all that d is made of are known.
  Shapes ShapesOfD() const {
    const auto are_known = [this](const std::vector<Step>& steps) {
      return std::all_of(steps.begin(), steps.end(),
                         [this](const Step& step) { return ShapeOf(step.operand.tensor) == Shapes::kKnown; });
    };
    return are_known(chain_.before) && (chain_.normalizes() || are_known(chain_.behind)) ? x_shape_ : Shapes::kAssumed;
  }

  // The dimensions of Y. Assumed shapes need not fit each other; known ones are looked at again where they are used.
  Dims ShapeOfChain(const Dims& otherwise) {
    PartialShape d;
    const auto shape_of = [this](const Operand& operand) { return DimsOf(operand.tensor); };
    if (!ShapeOfD(chain_, shape_of, &d).ok() || !d.IsKnown()) return otherwise;
    return Dims(d.dims, d.dims + d.rank);
  }

  PartialShape DimsOf(const TensorRef& ref) const {
    const Dims* dims = nullptr;
    if (ref.constant) {
      dims = &ref.constant->dims;
    } else if (ref.input >= kFromOutput) {
      dims = &produced_->values.at(ref.input - kFromOutput).dims;
    } else if (ref.present() && static_cast<size_t>(ref.input) < inputs_.size()) {
      dims = &inputs_[static_cast<size_t>(ref.input)].dims;
    }
    PartialShape shape;
    if (dims == nullptr) return shape;
    shape.rank = static_cast<int>(dims->size());
    if (shape.rank <= kMaxRank) std::copy(dims->begin(), dims->end(), shape.dims);
    return shape;
  }

  // --- steps before the normalisation -------------------------------------------------------------------------------

  Value Before(const Step& step, const Value& d) {
    switch (step.kind) {
      case StepKind::kActivate:
        d_shape_ = x_shape_ == Shapes::kKnown ? ShapeOf(step.operand.tensor) : x_shape_;
        d_dims_ = WithSlope(d.dims, step.operand);
        return Activate(step, Widen(d, d_dims_));
      case StepKind::kMask:
        builder_.Unsupported("a mask by Where inside a chain (in an island it is an operator of its own)");
        return d;
      case StepKind::kFakeQuantize:
        return FakeQuantize(step, IsOneNumber(step.quantization) ? d : Widen(d, whole_));
      default:
        return IsStoring(step.kind) ? StoreOutput(step, d, whole_) : Combine(step, d);
    }
  }

  // Of the whole of d, or with one scale for all of it of any part.
  Value FakeQuantize(const Step& step, const Value& d) {
    if (builder_.refused()) return d;
    const auto values = Parameters(step.quantization, step.type, "d_scale", !HasQuantizer(builder_, step.type));
    return EmitFakeQuantize(builder_, d, values, step.quantization, ShapeOf(step.quantization, ShapesOfD()), step.type);
  }

  // The operand's dimensions as NumPy broadcasting has them.
  Dims TrailingDims(const Operand& operand, const Value& value, size_t rank) const {
    if (operand.align == Align::kTrailing || Product(value.dims) == 1) return value.dims;
    Dims dims(std::max<size_t>(rank, 2), 1);
    dims[1] = Product(value.dims);
    return dims;
  }

  // DirectML's operator of two tensors for a combination, for which the chain is refused where there is none.
  Operator Combination(const Step& step) {
    const StepSpec& spec = SpecOf(step.kind);
    Operator op = OpOf(OperatorNamed(spec.directml), std::string(spec.name) + " " + step.operand.name);
    if (op.type == DML_OPERATOR_INVALID) builder_.Unsupported(std::string("the step ") + spec.name);
    return op;
  }

  Value Combine(const Step& step, const Value& d) {
    const Operand& operand = step.operand;
    const Operator op = Combination(step);
    if (builder_.refused()) return d;
    const char* name = operand.name.c_str();
    Value other = Load(operand, name);
    if (builder_.refused()) return d;
    if (operand.align == Align::kGroup) {
      builder_.Unsupported(operand.name + " with an element for each group before the normalisation");
      return d;
    }
    other.dims = TrailingDims(operand, other, d.dims.size());
    const Dims shape = BroadcastShape(d.dims, other.dims);
    if (!BroadcastsTo(d.dims, shape) || !BroadcastsTo(other.dims, shape)) {
      Mismatch(name, x_shape_ == Shapes::kKnown ? ShapeOf(operand.tensor) : x_shape_);
      return d;
    }
    return builder_.Binary(op.type, op.purpose.c_str(), d, other, shape);
  }

  // Gives d, of these dimensions, away where the step's output is used. It goes on as what was stored where that is quantised.
  Value StoreOutput(const Step& step, const Value& d, const Dims& dims) {
    const std::string name = kFusedNormalizationOutputs[SpecOf(step.kind).output];
    const Value whole = step.output == kNoOutput ? d : Widen(d, dims);
    const Quantization& q = step.quantization;
    if (!q.present()) {
      EmitOutput(step.output, step.type, whole, dims, name.c_str());
      return d;
    }
    const Shapes shapes = ShapeOf(q, x_shape_);
    const auto values = Parameters(q, step.type, (name + "_scale").c_str());
    const Value stored = EmitQuantize(builder_, whole, values, q, shapes, step.type, name.c_str());
    if (builder_.refused()) return d;
    if (step.output != kNoOutput) Give(step.output, step.type, whole.dims, stored);
    return EmitDequantize(builder_, stored, values, q, shapes, name.c_str());
  }

  Value Widen(Value value, const Dims& dims) {
    if (Product(value.dims) == Product(dims)) {
      value.dims = dims;
      return value;
    }
    if (builder_.refused()) return value;
    return builder_.Emit(OpOf(DML_OPERATOR_ELEMENT_WISE_IDENTITY, "widen"), dims,
                         {ProgramBuilder::Broadcast(value, dims)}, kFloat);
  }

  // What `dims` become where the slope has more elements.
  Dims WithSlope(const Dims& dims, const Operand& slope) const {
    const PartialShape other = DimsOf(slope.tensor);
    if (!slope.present() || !other.IsKnown()) return dims;
    const Dims shape = BroadcastShape(dims, Dims(other.dims, other.dims + other.rank));
    return BroadcastsTo(dims, shape) ? shape : dims;
  }

  void Mismatch(const char* name, Shapes shapes) {
    if (shapes == Shapes::kAssumed) return;
    builder_.Unsupported(std::string(name) + " of a shape that does not broadcast to X's");
  }

  // --- normalisation ------------------------------------------------------------------------------------------------

  // d as the normalisation sees it: X's dimensions, or with groups [N, groups, C / groups, ...].
  struct Grouped {
    Dims sizes;
    std::vector<bool> axes;
  };

  std::optional<Grouped> Group(const Dims& dims) {
    const Normalization& n = *chain_.normalization;
    const auto rank = static_cast<int64_t>(dims.size());
    if (groups_ > 0) {
      if (rank < 2 || dims[1] % groups_ != 0) {
        builder_.Unsupported("groups that do not divide the channels");
        return std::nullopt;
      }
      Grouped grouped{dims, std::vector<bool>(dims.size() + 1, true)};
      grouped.sizes[1] = groups_;
      grouped.sizes.insert(grouped.sizes.begin() + 2, dims[1] / groups_);
      grouped.axes[0] = grouped.axes[1] = false;
      return grouped;
    }
    Grouped grouped{dims, {}};
    for (int64_t i = 0; i < rank; ++i) grouped.axes.push_back(n.Reduces(i, rank));
    const bool any = n.from_first_axis || !n.axes.empty();
    // Of an assumed rank, the axes may lie beyond.
    if (any && d_shape_ == Shapes::kAssumed && rank > 0) grouped.axes.back() = true;
    if (std::find(grouped.axes.begin(), grouped.axes.end(), true) == grouped.axes.end()) {
      builder_.Check(RuleId::kNoAxes);
      return std::nullopt;
    }
    return grouped;
  }

  // Strides of an operand over the dimensions that the normalisation sees.
  Dims AffineStrides(const Value& parameter, Align align, Shapes shapes, const char* name) {
    const bool per_group = align == Align::kGroup && groups_ > 0;
    const bool along_one = align != Align::kTrailing;
    Dims strides(d_dims_.size(), 0);
    const bool one = Product(parameter.dims) == 1;
    const bool fits = along_one ? d_dims_.size() > 1 && Product(parameter.dims) == (per_group ? groups_ : d_dims_[1])
                                : BroadcastsTo(parameter.dims, d_dims_);
    if (!one && !fits) {
      Mismatch(name, shapes);
    } else if (!one && along_one) {
      strides[1] = 1;
    } else if (!one) {
      strides = BroadcastStrides(parameter.dims, d_dims_);
    }
    if (groups_ > 0) {
      const int64_t channels = d_dims_[1] / groups_;
      const int64_t step = strides[1];
      strides.insert(strides.begin() + 2, per_group ? 0 : step);
      if (!per_group) strides[1] = step * channels;
    }
    return strides;
  }

  std::optional<View> AffineView(const Operand* step) {
    if (step == nullptr) return std::nullopt;
    const Operand& operand = *step;
    const char* name = operand.name.c_str();
    const Value value = Load(operand, name);
    if (builder_.refused()) return std::nullopt;
    const Shapes shapes = d_shape_ == Shapes::kKnown ? ShapeOf(operand.tensor) : d_shape_;
    return View{value, AffineStrides(value, operand.align, shapes, name)};
  }

  View Filled(float value, size_t rank, const char* name) {
    return {builder_.FloatConstant(name, {value}, {1}), Dims(rank, 0)};
  }

  Value Reduce(DML_REDUCE_FUNCTION function, const char* purpose, const Value& x, const Grouped& grouped) {
    Operator op = OpOf(DML_OPERATOR_REDUCE, purpose);
    op.reduce_function = function;
    return builder_.Emit(std::move(op), grouped.sizes, {ProgramBuilder::Whole(x)}, kFloat, grouped.axes);
  }

  // By its own operator, or below its level by the formula: the largest value is subtracted before the exponentials.
  Value Softmax(const Value& x, const Grouped& grouped) {
    const bool logarithm = chain_.normalization->method == Method::kLogSoftmax;
    if (builder_.level() >= DML_FEATURE_LEVEL_5_1) {
      return builder_.Emit(OpOf(logarithm ? DML_OPERATOR_ACTIVATION_LOG_SOFTMAX1 : DML_OPERATOR_ACTIVATION_SOFTMAX1,
                                logarithm ? "log_softmax" : "softmax"),
                           grouped.sizes, {ProgramBuilder::Whole(x)}, kFloat, grouped.axes);
    }
    const auto unary = [&](DML_OPERATOR_TYPE type, const char* purpose, const Value& value) {
      return builder_.Unary(OpOf(type, purpose), value);
    };
    const Value largest = Reduce(DML_REDUCE_FUNCTION_MAX, "softmax: the largest value", x, grouped);
    const Value centred = builder_.Binary(DML_OPERATOR_ELEMENT_WISE_SUBTRACT, "softmax: subtract the largest value", x,
                                          largest, grouped.sizes);
    const Value powers = unary(DML_OPERATOR_ELEMENT_WISE_EXP, "softmax: exp", centred);
    const Value sum = Reduce(DML_REDUCE_FUNCTION_SUM, "softmax: sum", powers, grouped);
    if (!logarithm) {
      return builder_.Binary(DML_OPERATOR_ELEMENT_WISE_DIVIDE, "softmax: divide by the sum", powers, sum,
                             grouped.sizes);
    }
    return builder_.Binary(DML_OPERATOR_ELEMENT_WISE_SUBTRACT, "log_softmax: subtract the logarithm", centred,
                           unary(DML_OPERATOR_ELEMENT_WISE_LOG, "log_softmax: log", sum), grouped.sizes);
  }

  Value ZeroForNan(const Value& y, const Dims& sizes) {
    const Value nan = builder_.Emit(OpOf(DML_OPERATOR_ELEMENT_WISE_IS_NAN, "softmax: rows without a result"), sizes,
                                    {ProgramBuilder::Whole(y)}, DML_TENSOR_DATA_TYPE_UINT8);
    return builder_.Emit(OpOf(DML_OPERATOR_ELEMENT_WISE_IF, "softmax: 0 for these"), sizes,
                         {ProgramBuilder::Whole(nan), Filled(0, sizes.size(), "softmax: 0"), ProgramBuilder::Whole(y)},
                         kFloat);
  }

  // MEAN_VARIANCE_NORMALIZATION1 or 2 without scale, bias and activation.
  Operator Mvn(bool normalize_variance, float epsilon, const char* purpose) {
    Operator op = OpOf(chain_.normalization->use_mean ? DML_OPERATOR_MEAN_VARIANCE_NORMALIZATION1
                                                      : DML_OPERATOR_MEAN_VARIANCE_NORMALIZATION2,
                       purpose);
    op.use_mean = chain_.normalization->use_mean;
    op.normalize_variance = normalize_variance;
    op.epsilon = epsilon;
    return op;
  }

  bool StddevEpsilonIsSmall() const {
    const float epsilon = chain_.normalization->epsilon;
    return chain_.normalization->epsilon_on == EpsilonOn::kStddev && epsilon >= 0 && epsilon <= kLargestSquaredEpsilon;
  }

  // Epsilon as MVN adds it, inside the root.
  float VarianceEpsilon() const {
    const Normalization& n = *chain_.normalization;
    if (n.epsilon_on == EpsilonOn::kVariance || n.epsilon == 0) return n.epsilon;
    return std::max(n.epsilon * n.epsilon, kSmallestSquare);
  }

  static int64_t RowSize(const Grouped& grouped) {
    int64_t count = 1;
    for (size_t i = 0; i < grouped.sizes.size(); ++i) count *= grouped.axes[i] ? grouped.sizes[i] : 1;
    return count;
  }

  bool OneOperatorNormalises(const Grouped& grouped) const {
    const Normalization& n = *chain_.normalization;
    if (RowSize(grouped) == 1) return false;
    if (!n.normalize_variance) return n.use_mean;
    const bool epsilon_fits = n.epsilon_on == EpsilonOn::kVariance || StddevEpsilonIsSmall();
    return epsilon_fits && (n.use_mean || builder_.level() >= DML_FEATURE_LEVEL_6_3);
  }

  Value Normalise(const Value& d) {
    if (std::isnan(chain_.normalization->epsilon)) builder_.Check(RuleId::kNanEpsilon);
    const auto grouped = Group(d_dims_);
    if (!grouped) return d;
    Value viewed = d;
    viewed.dims = grouped->sizes;
    if (chain_.has_softmax()) {
      Value y = Softmax(viewed, *grouped);
      if (chain_.normalization->zero_for_nan) y = ZeroForNan(y, grouped->sizes);
      return Behind(chain_.behind.begin(), y, grouped->sizes);
    }
    EmitStatistics(viewed, *grouped);
    if (builder_.refused()) return d;
    if (OneOperatorNormalises(*grouped)) return NormaliseInOne(viewed, *grouped);
    Value n = Centred(viewed, *grouped);
    if (chain_.normalization->normalize_variance) {
      n = builder_.Binary(DML_OPERATOR_ELEMENT_WISE_DIVIDE, "divide by the deviation", n, Deviation(n, *grouped),
                          grouped->sizes);
    }
    return Behind(chain_.behind.begin(), n, grouped->sizes);
  }

  // The first steps behind the normalisation, which its operator can do: scale, bias and activation.
  Value NormaliseInOne(const Value& x, const Grouped& grouped) {
    auto next = chain_.behind.begin();
    const auto take = [&](StepKind kind) -> const Step* {
      return next != chain_.behind.end() && next->kind == kind ? &*next++ : nullptr;
    };
    const auto operand_of = [](const Step* step) { return step == nullptr ? nullptr : &step->operand; };
    auto scale = AffineView(operand_of(take(StepKind::kMul)));
    auto bias = AffineView(operand_of(take(StepKind::kAdd)));
    if (scale.has_value() != bias.has_value() && !Allows(RuleId::kScaleWithoutBias, builder_.level())) {
      const size_t rank = grouped.sizes.size();
      if (!scale) scale = Filled(1, rank, "scale 1");
      if (!bias) bias = Filled(0, rank, "bias 0");
    }
    Operator op = Mvn(chain_.normalization->normalize_variance, VarianceEpsilon(), "normalise");
    const auto activate = next;
    if (take(StepKind::kActivate) != nullptr) op.fused_activation = Fusable(*activate, builder_.level());
    if (!op.fused_activation) next = activate;
    if (op.fused_activation && op.fused_activation->type == DML_OPERATOR_ACTIVATION_IDENTITY) {
      op.fused_activation.reset();
    }
    const Value n =
        builder_.Emit(std::move(op), grouped.sizes, {ProgramBuilder::Whole(x), scale, bias}, kFloat, grouped.axes);
    return Behind(next, n, grouped.sizes);
  }

  Value Centred(const Value& x, const Grouped& grouped) {
    if (!chain_.normalization->use_mean) return x;
    if (RowSize(grouped) == 1) {
      return builder_.Binary(DML_OPERATOR_ELEMENT_WISE_SUBTRACT, "subtract the mean", x, x, grouped.sizes);
    }
    return builder_.Emit(Mvn(false, 0, "subtract the mean"), grouped.sizes,
                         {ProgramBuilder::Whole(x), std::nullopt, std::nullopt}, kFloat, grouped.axes);
  }

  // sqrt(mean(x^2) + epsilon), or sqrt(mean(x^2)) + epsilon, with size 1 on the reduced dimensions.
  Value Deviation(const Value& centred, const Grouped& grouped) {
    const float share = static_cast<float>(1.0 / static_cast<double>(RowSize(grouped)));
    const bool outside = chain_.normalization->epsilon_on == EpsilonOn::kStddev && !StddevEpsilonIsSmall();
    const Value squares = Reduce(DML_REDUCE_FUNCTION_SUM_SQUARE, "sum of squares", centred, grouped);
    Value deviation = builder_.Unary(OpOf(DML_OPERATOR_ELEMENT_WISE_SQRT, "root of the mean square",
                                          DML_SCALE_BIAS{share, outside ? 0 : VarianceEpsilon()}),
                                     squares);
    if (!outside) return deviation;
    return builder_.Unary(OpOf(DML_OPERATOR_ELEMENT_WISE_IDENTITY, "add epsilon to the deviation",
                               DML_SCALE_BIAS{1, chain_.normalization->epsilon}),
                          deviation);
  }

  // The outputs mean and inv_std_dev.
  void EmitStatistics(const Value& x, const Grouped& grouped) {
    const Normalization& n = *chain_.normalization;
    if (!n.has_statistics()) return;
    builder_.Check(RuleId::kStatisticsOutputs);
    Dims dims = grouped.sizes;
    for (size_t i = 0; i < dims.size(); ++i) {
      if (grouped.axes[i]) dims[i] = 1;
    }
    if (groups_ > 0) dims.pop_back();  // of X's rank
    if (n.mean_output != kNoOutput) {
      EmitOutput(n.mean_output, n.stats_type, Reduce(DML_REDUCE_FUNCTION_AVERAGE, "mean", x, grouped), dims, "mean");
    }
    if (n.inv_std_dev_output != kNoOutput) {
      const Value inverse = builder_.Unary(OpOf(DML_OPERATOR_ELEMENT_WISE_RECIP, "inverse standard deviation"),
                                           Deviation(Centred(x, grouped), grouped));
      EmitOutput(n.inv_std_dev_output, n.stats_type, inverse, dims, "inv_std_dev");
    }
  }

  // --- behind the normalisation -------------------------------------------------------------------------------------

  using StepIterator = std::vector<Step>::const_iterator;

  // The steps from `next` on. `sizes`: d's, or as the normalisation sees them.
  Value Behind(StepIterator next, Value value, const Dims& sizes) {
    for (; next != chain_.behind.end() && !builder_.refused(); ++next) {
      if (next->kind == StepKind::kActivate) {
        value = Activate(*next, Widen(value, d_dims_));
      } else if (IsStoring(next->kind)) {
        value = StoreOutput(*next, Widen(value, d_dims_), d_dims_);
      } else if (next->kind == StepKind::kFakeQuantize) {
        value = FakeQuantize(*next, Widen(value, d_dims_));
      } else {
        value = CombineBehind(*next, value, sizes);
      }
      value.dims = sizes;
    }
    return value;
  }

  Value CombineBehind(const Step& step, const Value& value, const Dims& sizes) {
    const std::optional<View> parameter = AffineView(&step.operand);
    Operator op = Combination(step);
    if (builder_.refused()) return value;
    return builder_.Emit(std::move(op), sizes, {ProgramBuilder::Broadcast(value, sizes), parameter}, kFloat);
  }

  // x has the dimensions of d.
  Value Activate(const Step& step, const Value& x) {
    if (builder_.refused()) return x;
    std::optional<Value> slope;
    if (ReadsSlope(step)) slope = FloatParameter(step.operand.tensor, "slope");
    if (slope && !BroadcastsTo(slope->dims, d_dims_)) {
      Mismatch("slope", d_shape_ == Shapes::kKnown ? ShapeOf(step.operand.tensor) : d_shape_);
    }
    if (builder_.refused()) return x;
    return EmitActivation(builder_, step, x, slope);
  }

  void EmitY(Value result) {
    const Store& store = chain_.store;
    if (store.output == kNoOutput) return;
    result = Widen(result, d_dims_);
    if (store.dynamic) return EmitDynamicY(result);
    if (store.quantization.present()) {
      const auto values = Parameters(store.quantization, store.type, "y_scale");
      const Value quantised = EmitQuantize(builder_, result, values, store.quantization,
                                           ShapeOf(store.quantization, d_shape_), store.type, "Y");
      if (!builder_.refused()) Give(store.output, store.type, d_dims_, quantised);
      return;
    }
    EmitOutput(store.output, store.type, result, d_dims_, "Y");
  }

  void EmitDynamicY(Value result) {
    if (builder_.refused()) return;
    const DynamicQuantization& dynamic = *chain_.store.dynamic;
    result.dims = d_dims_;
    const DynamicValues made = EmitDynamicQuantize(builder_, result, "Y");
    if (builder_.refused()) return;
    if (dynamic.value_output != kNoOutput) {
      EmitOutput(dynamic.value_output, DataType::kFloat32, result, d_dims_, "Y before its quantisation");
    }
    Give(chain_.store.output, DataType::kUint8, d_dims_, made.y);
    if (dynamic.scale_output != kNoOutput) Give(dynamic.scale_output, DataType::kFloat32, {}, made.scale);
    if (dynamic.zero_point_output != kNoOutput) Give(dynamic.zero_point_output, DataType::kUint8, {}, made.zero_point);
  }

  // A float32 value as an output of the graph, which must come from an operator.
  void EmitOutput(int node_output, DataType type, Value value, const Dims& dims, const char* name) {
    if (builder_.refused()) return;
    const auto dml_type = ToDirectMl(type);
    if (!dml_type || !IsFloat(type)) {
      return builder_.Unsupported(std::string("an output of type ") + NameOf(type) + " (" + name + ")");
    }
    value.dims = dims;
    if (*dml_type != kFloat) {
      value = builder_.Cast(value, *dml_type, (std::string(name) + " to " + NameOf(type)).c_str());
    } else if (value.from_graph_input && node_output < produced_->output_count) {
      value = builder_.Unary(OpOf(DML_OPERATOR_ELEMENT_WISE_IDENTITY, std::string("copy to ") + name), value);
    }
    Give(node_output, type, dims, value);
  }

  // To the node, to later chains, or to both.
  void Give(int output, DataType type, const Dims& dims, Value value) {
    value.dims = dims;
    if (output < produced_->output_count) builder_.Output(output, type, dims, value);
    produced_->values[output] = value;
  }

  const Chain& chain_;
  const std::vector<InputShape>& inputs_;
  ProgramBuilder& builder_;
  Produced* produced_;
  Shapes x_shape_;
  Shapes others_;
  Shapes d_shape_ = Shapes::kKnown;
  Dims whole_;   // of Y
  Dims d_dims_;  // of d
  int64_t groups_ = 0;
};

// Values for the dimensions of X that are not known: what constants along them say, else one block or group.
Dims AssumedShape(const Chain& chain) {
  const PartialShape known = KnownShape(chain.x);
  const size_t rank = known.rank < 0 ? 4 : static_cast<size_t>(known.rank);
  Dims dims(rank, -1);
  for (size_t i = 0; i < rank && known.rank >= 0; ++i) dims[i] = known.dims[i];
  const auto learn = [&](int64_t at, int64_t size) {
    if (at >= 0 && at < static_cast<int64_t>(rank) && dims[at] < 0 && size > 1) dims[at] = size;
  };
  const auto meet = [&](const Operand& operand) {
    const PartialShape shape = KnownShape(operand);
    if (operand.align == Align::kChannel && shape.rank == 1) learn(1, shape.dims[0]);
    for (int i = 0; operand.align == Align::kTrailing && i < shape.rank && shape.rank <= kMaxRank; ++i) {
      learn(static_cast<int64_t>(rank) - shape.rank + i, shape.dims[i]);
    }
  };
  const auto along = [&](const Quantization& q) {
    if (!q.scale.constant) return;
    const Dims& shape = q.scale.constant->dims;
    const int64_t axis = q.axis < 0 ? q.axis + static_cast<int64_t>(rank) : q.axis;
    if (shape.size() == 1 && rank != 1) return learn(axis, shape[0]);
    for (size_t i = 0; i < shape.size() && shape.size() == rank; ++i) {
      const bool blocked = q.block_size > 0 && static_cast<int64_t>(i) == axis;
      learn(static_cast<int64_t>(i), blocked ? shape[i] * q.block_size : shape[i]);
    }
  };
  along(chain.x.quantization);
  along(chain.store.quantization);
  ForEachStep(chain, [&](const Step& step) { along(step.quantization); });
  for (const Step& step : chain.behind) meet(step.operand);
  for (const Step& step : chain.before) meet(step.operand);
  if (chain.num_groups() > 0) learn(1, chain.num_groups());
  for (int64_t& dim : dims) {
    if (dim < 0) dim = 1;
  }
  return dims;
}

}  // namespace

std::optional<Declined> Lower(const Chain& chain, const std::vector<InputShape>& inputs,
                              const Capabilities& capabilities, DmlProgram* program) {
  return Lower(ChainSequence{{chain}, std::numeric_limits<int>::max()}, inputs, capabilities, program);
}

std::optional<Declined> Lower(const ChainSequence& sequence, const std::vector<InputShape>& inputs,
                              const Capabilities& capabilities, DmlProgram* program) {
  ProgramBuilder builder(capabilities, program);
  Produced produced{sequence.output_count, {}};
  for (const Chain& chain : sequence.chains) {
    auto declined = Lowering(chain, inputs, builder, &produced, Shapes::kKnown, Shapes::kKnown).Run();
    if (declined) return declined;
  }
  return std::nullopt;
}

void LowerInto(const Chain& chain, ProgramBuilder& builder, std::map<int, Value>* values) {
  Produced produced{0, std::move(*values)};
  (void)Lowering(chain, {}, builder, &produced, Shapes::kKnown, Shapes::kKnown).Run();
  *values = std::move(produced.values);
}

std::optional<Declined> CheckLowering(const Chain& chain, const Capabilities& capabilities, DmlProgram* program) {
  std::vector<InputShape> inputs;
  const auto assume = [&](const TensorRef& ref, DataType type, const Dims& dims) {
    if (ref.input == TensorRef::kAbsent || ref.constant) return;
    if (inputs.size() <= static_cast<size_t>(ref.input)) inputs.resize(static_cast<size_t>(ref.input) + 1);
    inputs[static_cast<size_t>(ref.input)] = {type, dims, {}};
  };
  // What is not known of tensors that arrive at run time is taken to be 1: every other size that fits lowers alike.
  const auto least = [](const PartialShape& shape) {
    Dims dims = shape.rank < 0 ? Dims{1} : Dims(shape.dims, shape.dims + shape.rank);
    for (int64_t& dim : dims) dim = dim < 0 ? 1 : dim;
    return dims;
  };
  const auto assume_quantization = [&](const Quantization& quantization, DataType type) {
    assume(quantization.scale, DataType::kFloat32, {1});
    assume(quantization.zero_point, type, {1});
  };
  assume_quantization(chain.x.quantization, chain.x.type);
  ForEachStep(chain, [&](const Step& step) {
    assume(step.operand.tensor, step.operand.type, least(step.operand.shape));
    assume_quantization(step.operand.quantization, step.operand.type);
    assume_quantization(step.quantization, step.type);
  });
  assume_quantization(chain.store.quantization, chain.store.type);
  assume(chain.x.tensor, chain.x.type, AssumedShape(chain));
  DmlProgram scratch;
  ProgramBuilder builder(capabilities, program ? program : &scratch);
  Produced produced;
  const Shapes x_shape = KnownShape(chain.x).IsKnown() ? Shapes::kKnown : Shapes::kAssumed;
  return Lowering(chain, inputs, builder, &produced, x_shape, Shapes::kAssumed).Run();
}

}  // namespace normfuse::directml
