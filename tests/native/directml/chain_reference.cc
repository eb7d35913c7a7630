#include "chain_reference.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

#include "cpu/elements.h"
#include "scalar_conversions.h"
#include "spec/formulas.h"

namespace normfuse::test {
namespace {

using Dims = std::vector<int64_t>;

// Rounding of one float32 operation, with a margin for a few of them.
constexpr double kRounding = 8e-7;

int64_t Product(const Dims& dims) {
  int64_t product = 1;
  for (int64_t dim : dims) product *= dim;
  return product;
}

struct Real {
  Dims dims;
  std::vector<double> values;
};

// Position in a packed tensor of shape `dims` for an element of a larger one, broadcast from the last dimension.
int64_t BroadcastAt(const Dims& dims, const Dims& index) {
  int64_t at = 0;
  for (size_t i = 0; i < dims.size(); ++i) {
    const int64_t here = dims[i] == 1 ? 0 : index[index.size() - dims.size() + i];
    at = at * dims[i] + here;
  }
  return at;
}

template <typename Visit>
void ForEach(const Dims& dims, Visit&& visit) {
  Dims index(dims.size(), 0);
  for (int64_t i = 0; i < Product(dims); ++i) {
    visit(i, index);
    for (size_t d = dims.size(); d-- > 0;) {
      if (++index[d] < dims[d]) break;
      index[d] = 0;
    }
  }
}

class Evaluator {
 public:
  explicit Evaluator(const TestCase& test) : test_(test), parts_(test.parts) {}

  std::vector<Reference> Run() {
    SumInputs();
    if (parts_.sum_quantization.present()) {
      Requantise();
    } else if (parts_.sum_output != kNoOutput) {
      AddFloat(parts_.sum_output, parts_.sum_type, d_.dims, d_.values, [this](int64_t) { return error_d_; });
    }
    n_ = d_.values;
    error_n_.assign(n_.size(), error_d_);
    if (parts_.normalizes) Normalise();
    Finish();
    return std::move(results_);
  }

 private:
  Real Raw(const TensorRef& ref) const {
    Real real;
    if (ref.constant) {
      real.dims = ref.constant->dims;
      for (int64_t i = 0; i < ref.constant->ElementCount(); ++i) {
        real.values.push_back(cpu::ReadElement(ref.constant->type, ref.constant->data, i));
      }
    } else {
      const TestTensor& tensor = test_.inputs[ref.input];
      real.dims = tensor.dims;
      for (int64_t i = 0; i < tensor.count(); ++i) real.values.push_back(tensor.at(i));
    }
    return real;
  }

  static double ParameterAt(const Real& parameter, const Dims& dims, const Dims& index, const Quantization& q) {
    if (parameter.values.size() == 1) return parameter.values[0];
    const auto rank = static_cast<int64_t>(dims.size());
    const int64_t axis = q.axis < 0 ? q.axis + rank : q.axis;
    if (parameter.dims.size() == 1 && rank != 1) return parameter.values[index[axis]];
    Dims at = index;
    if (q.block_size > 0) at[axis] /= q.block_size;
    return parameter.values[BroadcastAt(parameter.dims, at)];
  }

  Real Load(const Operand& operand) const {
    Real real = Raw(operand.tensor);
    if (!operand.quantization.present()) return real;
    const Real scale = Raw(operand.quantization.scale);
    const bool has_zero = operand.quantization.zero_point.present();
    const Real zero = has_zero ? Raw(operand.quantization.zero_point) : Real{{}, {0.0}};
    ForEach(real.dims, [&](int64_t i, const Dims& index) {
      real.values[i] = (real.values[i] - ParameterAt(zero, real.dims, index, operand.quantization)) *
                       ParameterAt(scale, real.dims, index, operand.quantization);
    });
    return real;
  }

  // What a step reads.
  struct ReadStep {
    Real operand, scale, zero_point;
  };

  ReadStep Read(const Step& step) const {
    const Real nothing{{}, {0.0}};
    const auto of = [&](const TensorRef& ref) { return ref.present() ? Raw(ref) : nothing; };
    return {step.operand.present() ? Load(step.operand) : nothing, of(step.quantization.scale),
            of(step.quantization.zero_point)};
  }

  // Quantised and dequantised, by the operations of float32 that the step is.
  static double FakeQuantised(double x, double scale, double zero_point, DataType type) {
    float low, high;
    cpu::IntegerRange(type, &low, &high);
    const float steps = std::nearbyint(static_cast<float>(x) / static_cast<float>(scale));
    const auto zero = static_cast<float>(zero_point);
    return (std::clamp(steps + zero, low, high) - zero) * static_cast<float>(scale);
  }

  // What a step makes of an element of a tensor of `dims`.
  static double Applied(const Step& step, const ReadStep& read, const Dims& dims, const Dims& index, double x) {
    const double operand = read.operand.values[BroadcastAt(read.operand.dims, index)];
    switch (step.kind) {
      case StepKind::kMul:
        return x * operand;
      case StepKind::kAdd:
        return x + operand;
      case StepKind::kDiv:
        return x / operand;
      case StepKind::kFakeQuantize:
        return FakeQuantised(x, ParameterAt(read.scale, dims, index, step.quantization),
                             ParameterAt(read.zero_point, dims, index, step.quantization), step.type);
      default:
        return FormulaOf(step.activation.kind, x, 0, step.activation.params);
    }
  }

  // The tensor, repeated over what it is widened by.
  static Real Widened(const Real& real, const Dims& by) {
    Real wide;
    wide.dims.assign(std::max(real.dims.size(), by.size()), 1);
    for (const Dims* dims : {&real.dims, &by}) {
      for (size_t i = 0; i < dims->size(); ++i) {
        int64_t& dim = wide.dims[wide.dims.size() - dims->size() + i];
        dim = std::max(dim, (*dims)[i]);
      }
    }
    ForEach(wide.dims,
            [&](int64_t, const Dims& index) { wide.values.push_back(real.values[BroadcastAt(real.dims, index)]); });
    return wide;
  }

  // Without a normalisation scale, bias and slope widen d as well.
  void WidenElementwise() {
    const bool trailing = parts_.affine_align == Align::kTrailing;
    for (const TensorRef* ref : {&parts_.scale.tensor, &parts_.bias.tensor}) {
      if (!ref->present()) continue;
      const Dims dims = Raw(*ref).dims;
      Dims channels(std::max<size_t>(d_.dims.size(), 2) - 1, 1);
      channels[0] = dims.empty() ? 1 : dims[0];
      d_ = Widened(d_, trailing ? dims : channels);
    }
    if (parts_.slope.tensor.present()) d_ = Widened(d_, Raw(parts_.slope.tensor).dims);
  }

  void SumInputs() {
    d_ = Load(parts_.x);
    double largest = Largest(d_.values);
    for (const Step& step : parts_.before) {
      const ReadStep read = Read(step);
      double growth = 1;
      ForEach(d_.dims, [&](int64_t i, const Dims& index) {
        d_.values[i] = Applied(step, read, d_.dims, index, d_.values[i]);
        const double operand = std::fabs(read.operand.values[BroadcastAt(read.operand.dims, index)]);
        if (step.kind == StepKind::kMul) growth = std::max(growth, operand);
        if (step.kind == StepKind::kDiv) growth = std::max(growth, 1 / operand);
      });
      // What was rounded before may have been larger, or be made larger.
      largest = std::max({largest * growth, Largest(read.operand.values), Largest(d_.values)});
    }
    for (const Operand* operand : {&parts_.residual, &parts_.residual_bias}) {
      if (!operand->present()) continue;
      const Real other = Load(*operand);
      largest = std::max(largest, Largest(other.values));
      d_ = Widened(d_, other.dims);
      ForEach(d_.dims,
              [&](int64_t i, const Dims& index) { d_.values[i] += other.values[BroadcastAt(other.dims, index)]; });
    }
    if (!parts_.normalizes) WidenElementwise();
    error_d_ = kRounding * std::max(largest, Largest(d_.values));
  }

  void Requantise() {
    const double step = Raw(parts_.sum_quantization.scale).values[0];
    const bool has_zero = parts_.sum_quantization.zero_point.present();
    const double zero = has_zero ? Raw(parts_.sum_quantization.zero_point).values[0] : 0;
    Reference sum{parts_.sum_output, parts_.sum_type, d_.dims, {}, {}, {}};
    float low, high;
    cpu::IntegerRange(parts_.sum_type, &low, &high);
    for (double& value : d_.values) {
      const double steps = value / step;
      sum.low.push_back(steps);
      sum.high.push_back(steps);
      sum.zero_point.push_back(zero);
      value = (std::clamp(std::nearbyint(steps) + zero, double{low}, double{high}) - zero) * step;
    }
    if (parts_.sum_output != kNoOutput) results_.push_back(std::move(sum));
  }

  static double Largest(const std::vector<double>& values) {
    double largest = 0;
    for (double value : values) largest = std::max(largest, std::fabs(value));
    return largest;
  }

  // Which set of elements each element is normalised with.
  std::vector<int64_t> Sets(Dims* shape, std::vector<bool>* reduced) const {
    const Normalization& n = parts_.normalization;
    *shape = d_.dims;
    if (n.num_groups > 0) {
      (*shape)[1] /= n.num_groups;
      shape->insert(shape->begin() + 1, n.num_groups);
    }
    const auto rank = static_cast<int64_t>(shape->size());
    reduced->assign(rank, false);
    for (int64_t i = 2; n.num_groups > 0 && i < rank; ++i) (*reduced)[i] = true;
    const int64_t first = n.first_axis < 0 ? n.first_axis + rank : n.first_axis;
    for (int64_t i = first; n.from_first_axis && i < rank; ++i) (*reduced)[i] = true;
    for (int64_t axis : n.axes) (*reduced)[axis < 0 ? axis + rank : axis] = true;
    std::vector<int64_t> sets;
    ForEach(*shape, [&](int64_t, const Dims& index) {
      int64_t set = 0;
      for (int64_t i = 0; i < rank; ++i) {
        if (!(*reduced)[i]) set = set * (*shape)[i] + index[i];
      }
      sets.push_back(set);
    });
    return sets;
  }

  void Normalise() {
    const Normalization& norm = parts_.normalization;
    Dims shape;
    std::vector<bool> reduced;
    const std::vector<int64_t> sets = Sets(&shape, &reduced);
    const size_t count = static_cast<size_t>(*std::max_element(sets.begin(), sets.end())) + 1;
    std::vector<double> mean(count, 0), variance(count, 0), size(count, 0), inverse(count, 1);
    for (size_t i = 0; i < sets.size(); ++i) {
      mean[sets[i]] += d_.values[i];
      ++size[sets[i]];
    }
    for (size_t s = 0; s < count; ++s) mean[s] = norm.use_mean ? mean[s] / size[s] : 0;
    for (size_t i = 0; i < sets.size(); ++i) {
      const double centred = d_.values[i] - mean[sets[i]];
      variance[sets[i]] += centred * centred / size[sets[i]];
    }
    for (size_t s = 0; s < count; ++s) {
      const double epsilon = norm.epsilon;
      const bool inside = norm.epsilon_on == EpsilonOn::kVariance;
      const double deviation = inside ? std::sqrt(variance[s] + epsilon) : std::sqrt(variance[s]) + epsilon;
      if (norm.normalize_variance) inverse[s] = 1 / deviation;
    }
    for (size_t i = 0; i < sets.size(); ++i) {
      // A set of equal values is centred to exactly 0, whatever the rounding.
      const bool constant = norm.use_mean && variance[sets[i]] < 1e-20;
      n_[i] = constant ? 0 : (d_.values[i] - mean[sets[i]]) * inverse[sets[i]];
      error_n_[i] =
          constant ? 1e-6 : error_d_ * inverse[sets[i]] * (2 + std::fabs(n_[i])) + kRounding * std::fabs(n_[i]);
    }
    Dims kept = shape;
    for (size_t i = 0; i < kept.size(); ++i) kept[i] = reduced[i] ? 1 : kept[i];
    if (parts_.normalization.mean_output != kNoOutput) {
      AddFloat(parts_.normalization.mean_output, parts_.normalization.stats_type, kept, mean,
               [this](int64_t) { return error_d_; });
    }
    if (parts_.normalization.inv_std_dev_output != kNoOutput) {
      AddFloat(parts_.normalization.inv_std_dev_output, parts_.normalization.stats_type, kept, inverse, [&](int64_t s) {
        const bool constant = norm.use_mean && variance[s] < 1e-20;
        return inverse[s] * (4 * kRounding + (constant ? 0 : 2 * error_d_ * inverse[s]));
      });
    }
  }

  double AffineAt(const Real& parameter, const Dims& index) const {
    if (parameter.values.size() == 1) return parameter.values[0];
    const int64_t groups = parts_.normalization.num_groups;
    if (parts_.affine_align == Align::kGroup) return parameter.values[index[1] / (d_.dims[1] / groups)];
    if (parts_.affine_align == Align::kChannel) return parameter.values[index[1]];
    return parameter.values[BroadcastAt(parameter.dims, index)];
  }

  // An interval through one of the steps behind the activation, all of which are monotonous within it but GELU.
  void Further(const Step& step, const ReadStep& read, const Dims& index, double* low, double* high) const {
    double ends[3] = {*low, (*low + *high) / 2, *high};
    for (double& end : ends) end = Applied(step, read, d_.dims, index, end);
    *low = std::min({ends[0], ends[1], ends[2]});
    *high = std::max({ends[0], ends[1], ends[2]});
    const double rounding = 2e-6 * (1 + std::max(std::fabs(*low), std::fabs(*high)));
    *low -= rounding;
    *high += rounding;
  }

  void Finish() {
    const Real one{{}, {1.0}}, nothing{{}, {0.0}};
    const Real scale = parts_.scale.present() ? Load(parts_.scale) : one;
    const Real bias = parts_.bias.present() ? Load(parts_.bias) : nothing;
    const Real slope = parts_.slope.tensor.present() ? Raw(parts_.slope.tensor) : nothing;
    const Quantization& q = parts_.y_quantization;
    const Real step = q.present() ? Raw(q.scale) : one;
    const Real zero = q.zero_point.present() ? Raw(q.zero_point) : nothing;
    std::vector<ReadStep> further;
    for (const Step& each : parts_.behind) further.push_back(Read(each));
    Reference y{parts_.y_output, parts_.y_type, d_.dims, {}, {}, {}};
    ForEach(d_.dims, [&](int64_t i, const Dims& index) {
      const double s = AffineAt(scale, index), b = AffineAt(bias, index);
      const double z = s * n_[i] + b;
      const double error = std::fabs(s) * error_n_[i] + kRounding * (std::fabs(s * n_[i]) + std::fabs(b));
      const double k = slope.values[BroadcastAt(slope.dims, index)];
      double low = INFINITY, high = -INFINITY;
      for (double at : {z - error, z, z + error}) {
        const double a = FormulaOf(parts_.activation.kind, at, k, parts_.activation.params);
        low = std::min(low, a - 2e-6 * (1 + std::fabs(a)));
        high = std::max(high, a + 2e-6 * (1 + std::fabs(a)));
      }
      for (size_t k = 0; k < parts_.behind.size(); ++k) Further(parts_.behind[k], further[k], index, &low, &high);
      const double unit = ParameterAt(step, d_.dims, index, q);
      y.low.push_back(low / unit);
      y.high.push_back(high / unit);
      if (q.present()) y.zero_point.push_back(ParameterAt(zero, d_.dims, index, q));
    });
    results_.push_back(std::move(y));
  }

  void AddFloat(int output, DataType type, const Dims& dims, const std::vector<double>& values,
                const std::function<double(int64_t)>& error) {
    Reference reference{output, type, dims, {}, {}, {}};
    for (size_t i = 0; i < values.size(); ++i) {
      reference.low.push_back(values[i] - error(static_cast<int64_t>(i)));
      reference.high.push_back(values[i] + error(static_cast<int64_t>(i)));
    }
    results_.push_back(std::move(reference));
  }

  const TestCase& test_;
  const Parts& parts_;
  Real d_;
  double error_d_ = 0;
  std::vector<double> n_, error_n_;
  std::vector<Reference> results_;
};

// A bound of the interval as the output's type stores it.
double Stored(const Reference& expected, size_t i, double value) {
  if (!expected.zero_point.empty()) {
    float low, high;
    cpu::IntegerRange(expected.type, &low, &high);
    return std::clamp(std::nearbyint(value) + expected.zero_point[i], static_cast<double>(low),
                      static_cast<double>(high));
  }
  if (expected.type == DataType::kFloat16) return HalfValue(NarrowToHalf(static_cast<float>(value)));
  return value;
}

}  // namespace

std::vector<Reference> Evaluate(const TestCase& test) { return Evaluator(test).Run(); }

std::string Compare(const Reference& expected, const TestTensor& got, HalfRounding half) {
  if (got.dims != expected.dims) return "shape";
  // One step of float16, normal or denormal, relative and absolute.
  const bool any = half == HalfRounding::kAny && expected.type == DataType::kFloat16;
  const double relative = any ? 0x1p-10 : 0, absolute = any ? 0x1p-24 : 0;
  for (size_t i = 0; i < expected.low.size(); ++i) {
    const double slack = expected.zero_point.empty() ? absolute + relative * std::fabs(expected.low[i])
                                                     : 1e-4 + 1e-6 * std::fabs(expected.low[i]);
    const double low = Stored(expected, i, expected.low[i] - slack);
    const double high = Stored(expected, i, expected.high[i] + slack);
    const double value = got.at(static_cast<int64_t>(i));
    if (value >= low && value <= high) continue;
    return "element " + std::to_string(i) + " is " + std::to_string(value) + ", allowed [" + std::to_string(low) +
           ", " + std::to_string(high) + "]";
  }
  return "";
}

}  // namespace normfuse::test
