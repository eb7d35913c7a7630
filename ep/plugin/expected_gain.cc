#include "plugin/expected_gain.h"

#include <algorithm>

#include "cpu/cost_model.h"

namespace normfuse::plugin {
namespace {

// ONNX Runtime has kernels with a table for two activations, between tensors of one type.
bool HasTableInOrt(const Chain& chain) {
  const UsualForm form = UsualFormOf(chain);
  const Activation activation = form.activation();
  return chain.store.type == chain.x.type && form.behind && !form.scale && !form.bias &&
         (activation == Activation::kLeakyRelu || activation == Activation::kSigmoid);
}

bool IsByte(DataType type) { return type == DataType::kInt8 || type == DataType::kUint8; }

// The steps of a chain without a normalisation that ONNX Runtime runs in integers: Add and Mul where both tensors are of one
// type of 8 bits, and what is made of them too.
int IntegerSteps(const Chain& chain) {
  if (chain.normalizes()) return 0;
  int count = 0;
  DataType type = chain.x.quantization.present() ? chain.x.type : DataType::kUndefined;
  for (size_t i = 0; i < chain.behind.size(); ++i) {
    const Step& step = chain.behind[i];
    const Step* next = i + 1 < chain.behind.size() ? &chain.behind[i + 1] : nullptr;
    const bool stores = next == nullptr && chain.store.quantization.present();
    const DataType made = stores                                                     ? chain.store.type
                          : next != nullptr && next->kind == StepKind::kFakeQuantize ? next->type
                                                                                     : DataType::kUndefined;
    const bool combines = step.kind == StepKind::kAdd || step.kind == StepKind::kMul;
    if (combines && IsByte(type) && step.operand.quantization.present() && step.operand.type == type && made == type) {
      ++count;
    }
    type = step.kind == StepKind::kFakeQuantize ? step.type : DataType::kUndefined;
  }
  return count;
}

// What such a step saves ONNX Runtime: three conversions and the nodes for them.
double SavedByIntegers(int64_t elements) {
  const double price = 2 * kDequantize8Price.ort + kAddPrice.ort + kQuantizePrice.ort - kIntegerStepPrice.ort;
  return 3 * kOrtFurtherNodeNanoseconds + static_cast<double>(elements) * price;
}

// What each row of a normalisation takes besides its elements.
Price RowPrice(const Normalization& n, int rank) {
  if (n.is_softmax()) return cpu::IsOverLast(n, rank) ? kSoftmaxRowPrice : Price{};
  if (!n.use_mean || n.num_groups > 0) return {};
  return n.epsilon_on == EpsilonOn::kStddev ? kMeanVarianceRowPrice : kNormalizationRowPrice;
}

int64_t TypicalSize(int64_t dim) { return dim < 0 ? cpu::kTypicalDimension : dim; }

int64_t TypicalElements(const PartialShape& d) {
  int64_t elements = d.rank < 0 ? cpu::kTypicalDimension * cpu::kTypicalDimension : 1;
  for (int i = 0; i < d.rank; ++i) elements *= TypicalSize(d.dims[i]);
  return elements;
}

// The number of rows, or groups, that are normalised.
int64_t TypicalRows(const Normalization& n, const PartialShape& d) {
  if (d.rank < 0) return cpu::kTypicalDimension;
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
  if (!chain.normalizes() || chain.has_softmax() || (usual.before && usual.behind)) return 0;
  return kOwnRowOfBlocksNanoseconds * static_cast<double>(TypicalRows(*chain.normalization, d));
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

double EstimateOrtNanoseconds(const Chain& chain, int64_t elements) {
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
         IntegerSteps(chain) * SavedByIntegers(elements);
}

double ExpectedGain(const Chain& chain, cpu::Isa isa) {
  const PartialShape d = KnownShapeOfD(chain);
  const int64_t elements = TypicalElements(d);
  const double ours = cpu::EstimateNanoseconds(chain, isa, elements) + RowsThroughBlocks(chain, d);
  return EstimateOrtNanoseconds(chain, elements) + GainOfRows(chain, isa, d) - ours;
}

}  // namespace normfuse::plugin
