#include "plugin/claim/expected_gain.h"

#include <algorithm>

#include "cpu/plan/cost_model.h"

namespace normfuse::plugin {
namespace {

// ONNX Runtime has kernels with a table for two activations, between tensors of one type.
bool HasTableInOrt(const Chain& chain) {
  const UsualForm form = UsualFormOf(chain);
  const Activation activation = form.activation();
  return chain.store.type == chain.x.type && form.behind && !form.scale && !form.bias &&
         (activation == Activation::kLeakyRelu || activation == Activation::kSigmoid);
}

// What a step that ONNX Runtime runs in integers saves it: three conversions and the nodes for them.
double SavedByIntegers(int64_t elements) {
  const double price = 2 * kDequantize8Price.ort + kAddPrice.ort + kQuantizePrice.ort - kIntegerStepPrice.ort;
  return 3 * kOrtFurtherNodeNanoseconds + static_cast<double>(elements) * price;
}

// What it saves by dropping a Relu or Clip before a QuantizeLinear.
double SavedByClamp(int64_t elements) {
  const double price = kActivations[static_cast<int>(Activation::kRelu)].price.ort;
  return kOrtFurtherNodeNanoseconds + static_cast<double>(elements) * price;
}

// What a softmax that it runs in integers costs it more than one of floats and the conversions around that.
double LostByIntegers(int64_t elements) {
  const double price = kSoftmaxOfBytesPrice.ort - kSoftmaxPrice.ort - kDequantize8Price.ort - kQuantizePrice.ort;
  return static_cast<double>(elements) * price;
}

// What each row of a normalisation takes besides its elements.
Price RowPrice(const Normalization& n, int rank) {
  if (n.is_softmax()) return cpu::IsOverLast(n, rank) ? kSoftmaxRowPrice : Price{};
  if (!n.use_mean || n.num_groups > 0) return {};
  return n.epsilon_on == EpsilonOn::kStddev ? kMeanVarianceRowPrice : kNormalizationRowPrice;
}

int64_t TypicalSize(int64_t dim) { return dim < 0 ? kTypicalDimension : dim; }

int64_t TypicalElements(const PartialShape& d) {
  int64_t elements = d.rank < 0 ? kTypicalDimension * kTypicalDimension : 1;
  for (int i = 0; i < d.rank; ++i) elements *= TypicalSize(d.dims[i]);
  return elements;
}

// The number of rows, or groups, that are normalised.
int64_t TypicalRows(const Normalization& n, const PartialShape& d) {
  if (d.rank < 0) return kTypicalDimension;
  if (n.num_groups > 0) return n.num_groups * (d.rank > 0 ? TypicalSize(d.dims[0]) : 1);
  int64_t rows = 1;
  for (int i = 0; i < d.rank; ++i) {
    if (!n.Reduces(i, d.rank)) rows *= TypicalSize(d.dims[i]);
  }
  return rows;
}

// What ONNX Runtime takes for the rows besides their elements, less what they take here.
double GainOfRows(const Chain& chain, cpu::Isa isa, const PartialShape& d) {
  if (!chain.normalizes()) return 0;
  const Price price = RowPrice(*chain.normalization, d.rank);
  return (price.ort - cpu::PriceOn(price, isa)) * static_cast<double>(TypicalRows(*chain.normalization, d));
}

// The cost of rows for which there is no kernel, and which pass through blocks of float32.
double RowsThroughBlocks(const Chain& chain, const PartialShape& d) {
  const UsualForm usual = UsualFormOf(chain);
  if (cpu::IsSoftmaxOfBlocks(chain)) {
    return kOwnSoftmaxOfBlocksNanoseconds * static_cast<double>(TypicalRows(*chain.normalization, d));
  }
  if (!chain.normalizes() || chain.has_softmax() || (usual.before && usual.behind)) return 0;
  return kOwnRowOfBlocksNanoseconds * static_cast<double>(TypicalRows(*chain.normalization, d));
}

// The same of the runs of a chain without a normalisation, where operands that are broadcast cut them short.
double GainOfRuns(const Chain& chain, double elements) {
  const cpu::RunLengths lengths = cpu::KnownRunLengths(chain);
  const double own = cpu::HasCheapRuns(chain) ? kOrtRunNanoseconds : kOwnRunNanoseconds;
  return elements * (kOrtRunNanoseconds / lengths.ort - own / lengths.own);
}

}  // namespace

bool IsPlainSoftmax(const Chain& chain) {
  return chain.has_softmax() && chain.x.type == DataType::kFloat32 && chain.store.type == DataType::kFloat32 &&
         (chain.before.empty() || (chain.before.size() == 1 && chain.before[0].kind == StepKind::kMul)) &&
         chain.behind.empty() && !chain.normalization->zero_for_nan &&
         cpu::IsOverLast(*chain.normalization, KnownShapeOfD(chain).rank);
}

bool IsPlainActivation(const Chain& chain) {
  if (chain.x.type != DataType::kFloat32 || chain.store.type != DataType::kFloat32 || chain.normalizes()) return false;
  if (!chain.before.empty() || chain.behind.size() != 1 || chain.behind[0].kind != StepKind::kActivate) return false;
  const Activation activation = chain.behind[0].activation.kind;
  return activation == Activation::kSigmoid || activation == Activation::kTanh;
}

double EstimateOrtNanoseconds(const Chain& chain, int64_t elements, RunInIntegers in_integers) {
  if (cpu::IsOfBytes(chain) && HasTableInOrt(chain)) {
    return kOrtOtherNodeNanoseconds + static_cast<double>(elements) * kByteTablePrice.ort;
  }
  double total = 0;
  int nodes = 0;
  cpu::ForEachPrice(chain, [&](const Price& price, int count) {
    total += price.ort;
    nodes += count;
  });
  const double first = chain.normalizes() ? kOrtNormalizationNanoseconds : kOrtOtherNodeNanoseconds;
  return first + std::max(nodes - 1, 0) * kOrtFurtherNodeNanoseconds + static_cast<double>(elements) * total -
         in_integers.steps * SavedByIntegers(elements) - in_integers.clamps * SavedByClamp(elements) +
         (in_integers.softmax ? LostByIntegers(elements) : 0);
}

double ExpectedGain(const Chain& chain, cpu::Isa isa, RunInIntegers in_integers) {
  const PartialShape d = KnownShapeOfD(chain);
  const int64_t elements = TypicalElements(d);
  const double ours = cpu::EstimateNanoseconds(chain, isa, elements) + RowsThroughBlocks(chain, d);
  return EstimateOrtNanoseconds(chain, elements, in_integers) + GainOfRows(chain, isa, d) +
         GainOfRuns(chain, static_cast<double>(elements)) - ours;
}

}  // namespace normfuse::plugin
