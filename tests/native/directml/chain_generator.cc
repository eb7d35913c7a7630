#include "chain_generator.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "cpu/elements.h"
#include "scalar_conversions.h"

namespace normfuse::test {
namespace {

using Dims = std::vector<int64_t>;

int64_t Product(const Dims& dims) {
  int64_t product = 1;
  for (int64_t dim : dims) product *= dim;
  return product;
}

class Generator {
 public:
  Generator(std::mt19937& random, const GeneratorLimits& limits) : random_(random), limits_(limits) {}

  TestCase Make() {
    Parts& parts = case_.parts;
    parts.name = "random chain";
    parts.normalizes = Chance(75);
    ChooseShape();
    const bool requantise = parts.normalizes && Chance(8);
    if (requantise) {
      ChooseQuantisedSum();
    } else {
      ChooseX();
    }
    if (!requantise && parts.normalizes && Chance(20)) ChooseSteps(DimsOf(parts.x.tensor), false, &parts.before);
    if (parts.normalizes) {
      if (!requantise) ChooseResidual();
      MeetOperands();
      ChooseNormalization();
    }
    ChooseAffine();
    ChooseActivation();
    MeetOperands();
    if (Chance(30)) ChooseSteps(dims_, true, &parts.behind);
    TellShapes();
    ChooseY();
    if (parts.normalizes) ChooseOutputs();
    return std::move(case_);
  }

 private:
  bool Chance(int percent) { return Pick(0, 99) < percent; }
  // The same numbers with every standard library, which its distributions do not promise.
  int64_t Pick(int64_t low, int64_t high) { return low + static_cast<int64_t>(random_() % (high - low + 1)); }
  double Draw(double low, double high) { return low + (high - low) * (random_() / 4294967296.0); }
  template <typename T>
  T OneOf(std::initializer_list<T> values) {
    return values.begin()[Pick(0, static_cast<int64_t>(values.size()) - 1)];
  }
  void Note(const std::string& text) { case_.description += (case_.description.empty() ? "" : ", ") + text; }

  // --- tensors ------------------------------------------------------------------------------------------------------

  TestTensor Floats(DataType type, const Dims& dims, double low, double high) {
    TestTensor tensor{type, dims, std::vector<unsigned char>(BytesFor(type, Product(dims)))};
    for (int64_t i = 0; i < Product(dims); ++i) {
      const auto value = static_cast<float>(Draw(low, high));
      if (type == DataType::kFloat32) std::memcpy(&tensor.bytes[i * 4], &value, 4);
      if (type == DataType::kFloat16) {
        const uint16_t half = NarrowToHalf(value);
        std::memcpy(&tensor.bytes[i * 2], &half, 2);
      }
    }
    return tensor;
  }

  // Integers over the type's range, or over `spread` values around 0 for the wide types.
  TestTensor Integers(DataType type, const Dims& dims) {
    TestTensor tensor{type, dims, std::vector<unsigned char>(BytesFor(type, Product(dims)))};
    for (int64_t i = 0; i < Product(dims); ++i) {
      const bool is_signed =
          type == DataType::kInt32 || type == DataType::kInt16 || type == DataType::kInt8 || type == DataType::kInt4;
      const int bits = std::min(BitsOf(type), 12);
      const auto value =
          static_cast<int32_t>(Pick(0, (int64_t{1} << bits) - 1) - (is_signed ? int64_t{1} << (bits - 1) : 0));
      if (BitsOf(type) == 4) {
        tensor.bytes[i / 2] |= static_cast<unsigned char>((value & 15) << (i % 2 * 4));
      } else {
        std::memcpy(&tensor.bytes[i * BitsOf(type) / 8], &value, BitsOf(type) / 8);
      }
    }
    return tensor;
  }

  // As an input of the node or as a constant.
  TensorRef Refer(TestTensor tensor, bool constant) {
    TensorRef ref;
    if (constant) {
      auto made = std::make_shared<ConstantTensor>();
      made->type = tensor.type;
      made->dims = tensor.dims;
      made->storage = std::move(tensor.bytes);
      made->data = made->storage.data();
      ref.constant = made;
    } else {
      ref.input = static_cast<int>(case_.inputs.size());
      case_.inputs.push_back(std::move(tensor));
    }
    return ref;
  }

  // Scale and zero point for a tensor of `dims`: per tensor, per axis, blocked or of its rank.
  Quantization Quantize(DataType type, const Dims& dims, double step) {
    Quantization q;
    const auto rank = static_cast<int64_t>(dims.size());
    Dims shape;
    const int64_t kind = rank == 0 ? 0 : Pick(0, 3);
    if (kind == 1) {
      q.axis = Pick(0, rank - 1);
      shape = {dims[q.axis]};
      if (Chance(30)) q.axis -= rank;
    } else if (kind == 2) {
      q.axis = Pick(0, rank - 1);
      shape = dims;
      std::vector<int64_t> divisors;
      for (int64_t b = 1; b <= dims[q.axis]; ++b) {
        if (dims[q.axis] % b == 0) divisors.push_back(b);
      }
      q.block_size = divisors[Pick(0, static_cast<int64_t>(divisors.size()) - 1)];
      shape[q.axis] /= q.block_size;
    } else if (kind == 3) {
      shape = dims;
      for (int64_t& dim : shape) dim = Chance(50) ? dim : 1;
    }
    q.scale = Refer(Floats(Chance(85) ? DataType::kFloat32 : DataType::kFloat16, shape, step / 2, step), Chance(60));
    const bool wide = BitsOf(type) == 32;
    if (!wide && Chance(65)) q.zero_point = Refer(Integers(type, Chance(80) ? shape : Dims{}), Chance(60));
    return q;
  }

  Operand QuantizedOperand(DataType type, const Dims& dims, double step, bool constant) {
    Operand operand;
    operand.tensor = Refer(Integers(type, dims), constant);
    operand.type = type;
    operand.quantization = Quantize(type, dims, step);
    return operand;
  }

  Operand FloatOperand(const Dims& dims, double low, double high, bool constant) {
    Operand operand;
    operand.type = Chance(80) ? DataType::kFloat32 : DataType::kFloat16;
    operand.tensor = Refer(Floats(operand.type, dims, low, high), constant);
    return operand;
  }

  // --- parts of the chain --------------------------------------------------------------------------------------------

  void ChooseShape() {
    groups_ = case_.parts.normalizes && Chance(15) ? Pick(1, 3) : 0;
    const int64_t rank = groups_ > 0 ? Pick(2, 5) : Pick(1, 8);
    for (int64_t i = 0; i < rank; ++i) dims_.push_back(Pick(1, 6));
    if (groups_ > 0) dims_[1] = groups_ * Pick(1, 4);
    for (int64_t i = rank - 1; Product(dims_) > limits_.max_elements; --i) {
      if (groups_ == 0 || i != 1) dims_[i] = 1;
    }
    case_.parts.normalization.num_groups = groups_;
  }

  // The whole shape or, with some chance, one that may be widened to it; groups keep their channels.
  Dims Some(int percent) {
    Dims dims = dims_;
    if (groups_ > 0 || !Chance(percent)) return dims;
    for (int64_t& dim : dims) dim = Chance(60) ? dim : 1;
    dims.erase(dims.begin(), dims.begin() + Pick(0, static_cast<int64_t>(dims.size()) - 1));
    return dims;
  }

  const Dims& DimsOf(const TensorRef& ref) const {
    return ref.constant ? ref.constant->dims : case_.inputs[static_cast<size_t>(ref.input)].dims;
  }

  // Makes dims_ what the operands chosen so far give together.
  void MeetOperands() {
    const Parts& parts = case_.parts;
    dims_.clear();
    for (const TensorRef* ref : {&parts.x.tensor, &parts.residual.tensor, &parts.residual_bias.tensor,
                                 &parts.scale.tensor, &parts.bias.tensor, &parts.slope.tensor}) {
      if (!ref->present()) continue;
      const bool is_affine = ref == &parts.scale.tensor || ref == &parts.bias.tensor;
      if (is_affine && parts.affine_align == Align::kGroup) continue;  // one element for each group of channels
      const bool is_channel = is_affine && parts.affine_align == Align::kChannel;
      const Dims& dims = DimsOf(*ref);
      if (is_channel) {
        dims_[1] = std::max(dims_[1], dims[0]);
        continue;
      }
      dims_.insert(dims_.begin(), dims.size() > dims_.size() ? dims.size() - dims_.size() : 0, 1);
      for (size_t i = 0; i < dims.size(); ++i) {
        int64_t& dim = dims_[dims_.size() - dims.size() + i];
        dim = std::max(dim, dims[i]);
      }
    }
  }

  // What the session knows.
  void TellShapes() {
    Parts& parts = case_.parts;
    const auto tell = [this](const TensorRef& ref, PartialShape* shape) {
      if (!ref.present()) return;
      const Dims& dims = DimsOf(ref);
      shape->rank = static_cast<int>(dims.size());
      std::copy(dims.begin(), dims.end(), shape->dims);
    };
    for (Operand* operand : {&parts.x, &parts.residual, &parts.residual_bias, &parts.scale, &parts.bias}) {
      tell(operand->tensor, &operand->shape);
    }
    tell(parts.slope.tensor, &parts.slope.shape);
  }

  void ChooseX() {
    Parts& parts = case_.parts;
    std::vector<DataType> quantised = {DataType::kUint8, DataType::kInt8,  DataType::kUint16,
                                       DataType::kInt16, DataType::kInt32, DataType::kUint32};
    if (limits_.four_bit) quantised.insert(quantised.end(), {DataType::kUint4, DataType::kInt4});
    const Dims dims = Some(25);
    if (Chance(45)) {
      const DataType type = quantised[Pick(0, static_cast<int64_t>(quantised.size()) - 1)];
      parts.x = QuantizedOperand(type, dims, BitsOf(type) <= 4 ? 0.5 : BitsOf(type) == 8 ? 0.04 : 0.004, false);
      Note(std::string("X ") + NameOf(type) + (parts.x.quantization.block_size > 0 ? " blocked" : ""));
    } else {
      parts.x = FloatOperand(dims, -3, 5, false);
      Note(std::string("X ") + NameOf(parts.x.type));
    }
  }

  void ChooseResidual() {
    Parts& parts = case_.parts;
    if (Chance(35)) {
      const Dims dims = Some(40);
      const bool quantised = Chance(20);
      parts.residual =
          quantised ? QuantizedOperand(DataType::kInt8, dims, 0.03, false) : FloatOperand(dims, -2, 2, Chance(10));
      Note(quantised ? "residual int8" : "residual");
    }
    if (Chance(15)) {
      parts.residual_bias = FloatOperand(Chance(60) ? Dims{dims_.back()} : Some(80), -1, 1, Chance(70));
      Note("residual_bias");
    }
  }

  // int8 + int8, quantised and dequantised: all steps are powers of two, so that float32 is exact up to the norm.
  void ChooseQuantisedSum() {
    Parts& parts = case_.parts;
    const auto step = [this](float value) {
      TestTensor scale{DataType::kFloat32, {1}, std::vector<unsigned char>(4)};
      std::memcpy(scale.bytes.data(), &value, 4);
      return Refer(std::move(scale), true);
    };
    for (Operand* operand : {&parts.x, &parts.residual}) {
      operand->type = DataType::kInt8;
      operand->tensor = Refer(Integers(DataType::kInt8, dims_), false);
      operand->quantization.scale = step(operand == &parts.x ? 0.0625f : 0.03125f);
    }
    parts.sum_type = OneOf({DataType::kUint8, DataType::kInt8, DataType::kUint16, DataType::kInt16});
    parts.sum_quantization.scale = step(0.125f);
    if (Chance(60)) parts.sum_quantization.zero_point = Refer(Integers(parts.sum_type, {1}), true);
    Note(std::string("sum in ") + NameOf(parts.sum_type));
  }

  void ChooseNormalization() {
    Normalization& n = case_.parts.normalization;
    const auto rank = static_cast<int64_t>(dims_.size());
    if (groups_ > 0) {
      Note(std::to_string(groups_) + " groups");
    } else if (Chance(50)) {
      n.from_first_axis = true;
      n.first_axis = Chance(50) ? -1 : Pick(0, rank - 1);
      Note("from axis " + std::to_string(n.first_axis));
    } else {
      for (int64_t i = 0; i < rank; ++i) {
        if (Chance(50)) n.axes.push_back(Chance(30) ? i - rank : i);
      }
      if (n.axes.empty()) n.axes.push_back(rank - 1);
      std::shuffle(n.axes.begin(), n.axes.end(), random_);
      Note("axes " + std::to_string(n.axes.size()));
    }
    n.use_mean = Chance(70);
    n.normalize_variance = Chance(90);
    n.epsilon = OneOf({1e-5f, 1e-3f, 1e-6f});
    if (Chance(20)) {
      n.epsilon_on = EpsilonOn::kStddev;
      n.epsilon = OneOf({1e-9f, 1e-2f});
    }
    char epsilon[16];
    std::snprintf(epsilon, sizeof(epsilon), "%g", static_cast<double>(n.epsilon));
    std::string shape;
    for (int64_t dim : dims_) shape += (shape.empty() ? "" : "x") + std::to_string(dim);
    Note(std::string("of ") + shape + (n.use_mean ? "" : " without mean") +
         (n.normalize_variance ? "" : " or variance") + ", epsilon " + epsilon +
         (n.epsilon_on == EpsilonOn::kStddev ? " on stddev" : ""));
  }

  Dims AffineShape() {
    const auto rank = static_cast<int64_t>(dims_.size());
    switch (case_.parts.affine_align) {
      case Align::kChannel:
        return {dims_[1]};
      case Align::kGroup:
        return {groups_};
      case Align::kTrailing:
        break;
    }
    Dims shape = dims_;
    for (int64_t& dim : shape) dim = Chance(70) ? dim : 1;
    shape.erase(shape.begin(), shape.begin() + Pick(0, rank));
    return shape;
  }

  void ChooseAffine() {
    Parts& parts = case_.parts;
    if (groups_ > 0) {
      parts.affine_align = OneOf({Align::kTrailing, Align::kChannel, Align::kGroup});
    } else if (dims_.size() > 1 && DimsOf(parts.x.tensor).size() == dims_.size() && Chance(25)) {
      parts.affine_align = Align::kChannel;
    }
    for (Operand* operand : {&parts.scale, &parts.bias}) {
      if (!Chance(65)) continue;
      const bool constant = Chance(75);
      const Dims shape = AffineShape();
      *operand = parts.normalizes && Chance(20) ? QuantizedOperand(DataType::kInt8, shape, 0.02, constant)
                                                : FloatOperand(shape, -1.5, 2, constant);
      Note(operand == &parts.scale ? "scale" : "bias");
    }
  }

  void ChooseActivation() {
    ActivationCall& call = case_.parts.activation;
    call.kind = static_cast<Activation>(Pick(0, kActivationCount - 1));
    const ActivationSpec& spec = kActivations[static_cast<int>(call.kind)];
    for (int i = 0; i < spec.param_count; ++i) {
      const auto& [name, low, high, nonzero] = spec.params[i];
      // Where a range ends, a Clip may be a Relu.
      const float within = Chance(20) ? static_cast<float>(Pick(0, 1)) : static_cast<float>(Pick(0, 100)) / 100;
      call.params[i] = Chance(50) ? spec.defaults[i] : low + within * (high - low);
    }
    if (spec.has_slope) {
      Dims shape = dims_;
      for (int64_t& dim : shape) dim = Chance(50) ? dim : 1;
      if (Chance(30)) shape = {1};
      case_.parts.slope.type = DataType::kFloat32;
      case_.parts.slope.tensor = Refer(Floats(DataType::kFloat32, shape, -0.5, 1.5), Chance(70));
    }
    Note(spec.name);
  }

  std::vector<DataType> StoredIntegers() const {
    std::vector<DataType> types = {DataType::kUint8, DataType::kInt8, DataType::kUint16, DataType::kInt16};
    if (limits_.four_bit) types.insert(types.end(), {DataType::kUint4, DataType::kInt4});
    return types;
  }

  static double StepOf(DataType type) { return BitsOf(type) == 4 ? 0.5 : 0.04; }

  // Quantises and dequantises a tensor of `dims`.
  Step ChoosePair(const Dims& dims) {
    const std::vector<DataType> types = StoredIntegers();
    const DataType type = types[Pick(0, static_cast<int64_t>(types.size()) - 1)];
    Note(std::string("pair of ") + NameOf(type));
    return FakeQuantise(Quantize(type, dims, StepOf(type)), type);
  }

  // Further steps, with operands that broadcast to `dims`. Behind, pairs stand among them; before, a pair is the first one, and
  // its X exact, because what rounds the other way there is normalised with all else.
  void ChooseSteps(Dims dims, bool behind, std::vector<Step>* steps) {
    if (!behind && !case_.parts.x.quantization.present() && Chance(40)) steps->push_back(ChoosePair({}));
    for (int64_t count = Pick(1, 3); count > 0; --count) {
      if (behind && Chance(25)) {
        steps->push_back(ChoosePair(dims));
        continue;
      }
      if (behind && Chance(30)) {
        const Activation kind = OneOf({Activation::kRelu, Activation::kSigmoid, Activation::kGelu, Activation::kTanh});
        steps->push_back(Activate({kind, {}}));
        Note(kActivations[static_cast<int>(kind)].name);
        continue;
      }
      Dims shape = dims;
      for (int64_t& dim : shape) dim = Chance(60) ? dim : 1;
      shape.erase(shape.begin(), shape.begin() + Pick(0, static_cast<int64_t>(shape.size())));
      const StepKind kind = OneOf({StepKind::kAdd, StepKind::kMul, StepKind::kDiv});
      Operand operand = FloatOperand(shape, kind == StepKind::kDiv ? 0.5 : -1.5, 2, Chance(60));
      operand.name = "operand";
      operand.shape.rank = static_cast<int>(shape.size());
      std::copy(shape.begin(), shape.end(), operand.shape.dims);
      steps->push_back(Combine(kind, std::move(operand)));
      Note(kind == StepKind::kAdd ? "plus" : kind == StepKind::kMul ? "times" : "over");
    }
  }

  void ChooseY() {
    Parts& parts = case_.parts;
    if (Chance(60)) {
      parts.y_type = Chance(80) ? DataType::kFloat32 : DataType::kFloat16;
    } else {
      const std::vector<DataType> types = StoredIntegers();
      parts.y_type = types[Pick(0, static_cast<int64_t>(types.size()) - 1)];
      parts.y_quantization = Quantize(parts.y_type, dims_, StepOf(parts.y_type));
    }
    Note(std::string("Y ") + NameOf(parts.y_type));
  }

  void ChooseOutputs() {
    Parts& parts = case_.parts;
    int next = 1;
    if (Chance(20)) {
      parts.sum_output = next++;
      if (!parts.sum_quantization.present()) parts.sum_type = Chance(80) ? DataType::kFloat32 : DataType::kFloat16;
    }
    if (Chance(15)) parts.normalization.mean_output = next++;
    if (Chance(15)) parts.normalization.inv_std_dev_output = next++;
  }

  std::mt19937& random_;
  GeneratorLimits limits_;
  TestCase case_;
  Dims dims_;
  int64_t groups_ = 0;
};

}  // namespace

int64_t TestTensor::count() const { return Product(dims); }

double TestTensor::at(int64_t index) const { return cpu::ReadElement(type, bytes.data(), index); }

std::vector<directml::InputShape> TestCase::shapes() const {
  std::vector<directml::InputShape> shapes;
  for (const TestTensor& tensor : inputs) shapes.push_back({tensor.type, tensor.dims});
  return shapes;
}

TestCase RandomCase(std::mt19937& random, const GeneratorLimits& limits) { return Generator(random, limits).Make(); }

}  // namespace normfuse::test
