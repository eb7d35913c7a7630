#include "chain_generator.h"

#include <algorithm>
#include <cmath>
#include <random>

namespace normfuse::test {
namespace {

// For one more quantised tensor.
bool HasRoom(const Chain& chain) { return StepTensors(chain) <= kMostStepTensors - kTensorsOfQuantized; }

class Generator {
 public:
  Generator(uint64_t seed, const GeneratorLimits& limits) : random_(seed), limits_(limits) {}
  // `usual`: an Add or two, a normalisation, Mul, Add and an activation; or any steps.
  Case Draw(bool usual);

 private:
  int64_t Int(int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(random_); }
  bool Chance(double p) { return std::uniform_real_distribution<double>(0, 1)(random_) < p; }
  double Normal() { return std::normal_distribution<double>(0, 1)(random_); }
  template <class T>
  T Pick(const std::vector<T>& from) {
    return from[static_cast<size_t>(Int(0, static_cast<int64_t>(from.size()) - 1))];
  }

  std::vector<int64_t> Shape();
  std::vector<int64_t> SmallShape();
  DataType FloatType() {
    if (limits_.for_directml) return Chance(0.8) ? DataType::kFloat32 : DataType::kFloat16;
    return Pick<DataType>({DataType::kFloat32, DataType::kFloat32, DataType::kFloat16, DataType::kBfloat16});
  }
  DataType QuantizedType();
  Tensor Values(DataType type, const std::vector<int64_t>& dims, double mean, double deviation);
  double OfFamily(int64_t family, int64_t row, int64_t at, int64_t length);
  void Structure(Tensor* tensor, double mean, double deviation);
  Operand Input(Case* c, const std::vector<int64_t>& dims, double mean);
  Quantization Quantize(Case* c, DataType type, const std::vector<int64_t>& dims, double step);
  std::vector<int64_t> Broadcastable(const std::vector<int64_t>& shape);
  PartialShape Known(const std::vector<int64_t>& dims);
  void Normalize(Case* c, const std::vector<int64_t>& shape, const TensorRef& x);
  Step DrawCombination(Case* c, const std::vector<int64_t>& shape, Align align, StepKind kind);
  void DrawUsualBehind(Case* c, Chain* chain, const std::vector<int64_t>& most);
  void Output(Case* c);
  Step DrawStep(Case* c, const std::vector<int64_t>& shape, Align align);
  Step DrawActivation(Case* c, const std::vector<int64_t>& shape);
  Step DrawPair(Case* c, const std::vector<int64_t>& shape);
  void FindsItsScale(Case* c);
  void DrawExact(Case* c, Chain* chain, const std::vector<int64_t>& shape);
  int Emitted(Case* c, DataType type) {
    c->output_types.push_back(type);
    return static_cast<int>(c->output_types.size()) - 1;
  }

  std::mt19937_64 random_;
  GeneratorLimits limits_;
};

std::vector<int64_t> Generator::Shape() {
  if (limits_.for_directml) return SmallShape();
  if (Chance(0.25)) return {Int(2, 9), Pick<int64_t>({33, 100, 384, 1024, 1500})};  // several rows a tile
  const int64_t rank = Pick<int64_t>({1, 2, 2, 3, 3, 4, 4, 5, 6, 8});
  std::vector<int64_t> shape;
  int64_t total = 1;
  for (int64_t i = 0; i < rank; ++i) {
    int64_t limit = std::max<int64_t>(1, std::min<int64_t>(limits_.max_elements / total, i == rank - 1 ? 3000 : 24));
    if (Chance(0.5)) limit = std::min<int64_t>(limit, 70);
    shape.push_back(Chance(0.12) ? 1 : Int(1, limit));
    total *= shape.back();
  }
  return shape;
}

// Of any rank that DirectML has.
std::vector<int64_t> Generator::SmallShape() {
  std::vector<int64_t> shape;
  int64_t total = 1;
  for (int64_t i = Int(1, kMaxRank); i > 0; --i) {
    shape.push_back(Int(1, std::min<int64_t>(6, limits_.max_elements / total)));
    total *= shape.back();
  }
  return shape;
}

DataType Generator::QuantizedType() {
  if (limits_.for_directml) {
    const DataType type =
        Pick<DataType>({DataType::kInt8, DataType::kInt8, DataType::kUint8, DataType::kUint8, DataType::kInt16,
                        DataType::kUint16, DataType::kInt32, DataType::kUint32, DataType::kInt4, DataType::kUint4});
    return limits_.four_bit || BitsOf(type) >= 8 ? type : DataType::kInt8;
  }
  return Pick<DataType>({DataType::kInt8, DataType::kInt8, DataType::kUint8, DataType::kUint8, DataType::kInt16,
                         DataType::kUint16, DataType::kInt32, DataType::kUint32, DataType::kInt4, DataType::kUint4,
                         DataType::kInt2, DataType::kUint2, DataType::kFloat8e4m3fn, DataType::kFloat8e4m3fnuz,
                         DataType::kFloat8e5m2, DataType::kFloat8e5m2fnuz});
}

Tensor Generator::Values(DataType type, const std::vector<int64_t>& dims, double mean, double deviation) {
  Tensor tensor = MakeTensor(type, dims, static_cast<size_t>(Int(0, 3)));
  const int bits = BitsOf(type);
  // Every code of a small type, but no NaN and no infinity.
  std::vector<uint32_t> codes;
  for (uint32_t code = 0; bits <= 8 && code < 1u << bits; ++code) {
    if (std::isfinite(DecodeElement(type, code))) codes.push_back(code);
  }
  for (int64_t i = 0; i < tensor.Count(); ++i) {
    if (IsFloat(type)) {
      tensor.Set(i, mean + deviation * Normal());
    } else if (!codes.empty()) {
      const uint32_t code = Pick(codes);
      if (bits == 8) {
        tensor.data()[i] = static_cast<unsigned char>(code);
      } else {
        tensor.Set(i, DecodeElement(type, code));
      }
    } else {
      const bool is_signed = type == DataType::kInt16 || type == DataType::kInt32;
      const double low = is_signed ? -3000 : 0;
      tensor.Set(i, static_cast<double>(Int(static_cast<int64_t>(low), 3000)));
    }
  }
  return tensor;
}

// What data look like, of size about 1 (tests/families.py has more of them, and says why).
double Generator::OfFamily(int64_t family, int64_t row, int64_t at, int64_t length) {
  const double along = static_cast<double>(at) / static_cast<double>(length);
  const int64_t edge = (row * 5 + length) % length;  // of this row
  switch (family) {
    case 0:
      return 2 * along * static_cast<double>(row % 8 + 1);  // a ramp
    case 1:
      return 2 * (1 - along) * static_cast<double>(row % 8 + 1);  // one down
    case 2:
      return at < edge ? -1 : 1;  // a step
    case 3:
      return at < edge ? 0 : Normal() + 2;  // padding in front
    case 4:
      return at >= edge ? 0 : Normal() + 2;  // and behind
    case 5:
      return static_cast<double>(row % 5) / 3;  // a constant
    case 6:
      return at == (row % 2 != 0 ? length - 1 : 0) ? 2 : 0.3;  // constant but one
    case 7:
      return at == std::min<int64_t>(Pick<int64_t>({0, 7, 8, 15, 16, 31, 32}), length - 1) ? 100 : 0.1 * Normal();
    case 8:
      return 1 + std::sin(6.28 * (along + static_cast<double>(row) / 9));  // a smooth picture
    case 9:
      return Chance(0.05) ? Normal() : 0;  // sparse
    case 10:
      return at % 2 != 0 ? -1000 : 1000;  // alternating
    default:
      return 300 + Normal();  // far from 0
  }
}

// Rows along the last dimension of a family, all or one of them.
void Generator::Structure(Tensor* tensor, double mean, double deviation) {
  const int64_t count = tensor->Count();
  if (tensor->dims.empty() || count == 0 || IsFloat8(tensor->type)) return;
  const int64_t length = tensor->dims.back();
  const int64_t family = Int(0, 11);
  const int64_t only = Chance(0.5) ? Int(0, count / length - 1) : -1;
  const int bits = BitsOf(tensor->type);
  const bool is_float = IsFloat(tensor->type);
  const bool is_signed = DecodeElement(tensor->type, bits < 32 ? (1u << bits) - 1u : ~0u) < 0;
  const double size = bits > 8 ? 1000 : std::exp2(bits - 2);
  for (int64_t i = 0; i < count; ++i) {
    if (only >= 0 && i / length != only) continue;
    const double value = OfFamily(family, i / length, i % length, length);
    const double limit = 2 * size - 1;
    tensor->Set(i, is_float    ? mean + deviation * value
                   : is_signed ? std::round(std::clamp(value * size, -limit, limit))
                               : std::round(std::clamp((value + 2) * size, 0.0, 2 * limit)));
  }
}

Quantization Generator::Quantize(Case* c, DataType type, const std::vector<int64_t>& dims, double step) {
  Quantization q;
  std::vector<int64_t> shape;
  const auto rank = static_cast<int64_t>(dims.size());
  q.axis = rank == 0 ? 0 : Int(-rank, rank - 1);
  const auto axis = static_cast<size_t>(q.axis < 0 ? q.axis + rank : q.axis);
  const int64_t form = rank == 0 ? Int(0, 1) : Int(0, 4);
  if (form == 0) {
    shape = {};
  } else if (form == 1) {
    shape = {1};
  } else if (form == 2) {
    shape = {dims[axis]};
  } else if (form == 3) {
    shape = dims;
    q.block_size = Int(1, dims[axis] + 1);
    while (limits_.for_directml && dims[axis] % q.block_size != 0) q.block_size = Int(1, dims[axis]);
    shape[axis] = (dims[axis] + q.block_size - 1) / q.block_size;
  } else {
    shape = dims;
    for (int64_t& dim : shape) dim = Chance(0.5) ? 1 : dim;
    if (shape.size() == 1) q.axis = 0;
  }
  const bool constant = Chance(0.6);
  const DataType narrow = limits_.for_directml ? DataType::kFloat16 : DataType::kBfloat16;
  Tensor scale = MakeTensor(Chance(0.8) ? DataType::kFloat32 : narrow, shape);
  const bool same = Chance(0.2);
  for (int64_t i = 0; i < scale.Count(); ++i) {
    // Few bits, so that both types hold it.
    scale.Set(i, same ? step : step * static_cast<double>(Int(4, 16)) / 8);
  }
  const bool zero_single = Chance(0.3);
  const std::vector<int64_t> zero_shape = zero_single ? std::vector<int64_t>{} : shape;
  q.scale = c->Add(std::move(scale), constant);
  if (Chance(0.7) && !(limits_.for_directml && BitsOf(type) == 32)) {
    Tensor zero = MakeTensor(type, zero_shape);
    for (int64_t i = 0; i < zero.Count(); ++i) {
      const bool is_signed = type == DataType::kInt8 || type == DataType::kInt16 || type == DataType::kInt32;
      const int bits = BitsOf(type);
      double value = 0;
      if (bits >= 8 && !IsFloat8(type)) value = static_cast<double>(Int(is_signed ? -100 : 0, is_signed ? 100 : 200));
      if (type == DataType::kUint4) value = static_cast<double>(Int(0, 15));
      if (type == DataType::kInt4) value = static_cast<double>(Int(-8, 7));
      zero.Set(i, value);
    }
    q.zero_point = c->Add(std::move(zero), constant);
  }
  return q;
}

Operand Generator::Input(Case* c, const std::vector<int64_t>& dims, double mean) {
  Operand operand;
  const bool quantized = Chance(0.45);
  operand.type = quantized ? QuantizedType() : FloatType();
  const bool constant = Chance(0.05);
  Tensor values = Values(operand.type, dims, operand.type == DataType::kFloat32 ? mean : 0.0, 1.0);
  if (Chance(0.6)) Structure(&values, operand.type == DataType::kFloat32 ? mean : 0.0, 1.0);
  operand.tensor = c->Add(std::move(values), constant);
  const double range = BitsOf(operand.type) > 8 ? 1000 : BitsOf(operand.type) == 8 ? 100 : 4;
  if (quantized) operand.quantization = Quantize(c, operand.type, dims, 1.0 / std::exp2(std::floor(std::log2(range))));
  return operand;
}

// A shape that broadcasts to `shape` from the last dimension.
std::vector<int64_t> Generator::Broadcastable(const std::vector<int64_t>& shape) {
  std::vector<int64_t> dims = shape;
  for (int64_t& dim : dims) dim = Chance(0.35) ? 1 : dim;
  const auto drop = static_cast<size_t>(Int(0, static_cast<int64_t>(dims.size())));
  dims.erase(dims.begin(), dims.begin() + static_cast<int64_t>(drop));
  return dims;
}

// What a session may know of a shape: some of it, or nothing.
PartialShape Generator::Known(const std::vector<int64_t>& dims) {
  PartialShape shape;
  if (Chance(0.1)) return shape;
  shape.rank = static_cast<int>(dims.size());
  for (size_t i = 0; i < dims.size(); ++i) shape.dims[i] = Chance(0.8) ? dims[i] : -1;
  return shape;
}

void Generator::Normalize(Case* c, const std::vector<int64_t>& shape, const TensorRef& x) {
  Normalization& norm = c->parts.normalization;
  const auto rank = static_cast<int64_t>(shape.size());
  const int64_t form = Int(0, 3);
  // On DirectML, channels that X itself does not have wait for all shapes.
  const bool has_channels = rank >= 2 && (!limits_.for_directml || c->Of(x).dims.size() >= 2);
  if (form == 0 && has_channels) {
    std::vector<int64_t> divisors;
    for (int64_t g = 1; g <= shape[1]; ++g) {
      if (shape[1] % g == 0) divisors.push_back(g);
    }
    norm.num_groups = Pick(divisors);
  } else if (form == 1) {
    norm.from_first_axis = true;
    norm.first_axis = Int(-rank, rank - 1);
  } else {
    for (int64_t i = 0; i < rank; ++i) {
      if (Chance(0.5)) norm.axes.push_back(Chance(0.5) ? i : i - rank);
    }
    if (norm.axes.empty()) norm.axes.push_back(rank - 1);
    std::shuffle(norm.axes.begin(), norm.axes.end(), random_);
  }
  norm.use_mean = Chance(0.8);
  norm.normalize_variance = Chance(0.85);
  norm.epsilon = Pick<float>({1e-5f, 1e-3f, 1e-5f});
  if (Chance(0.2)) {
    norm.epsilon_on = EpsilonOn::kStddev;
    norm.epsilon = Pick<float>({1e-3f, 1e-5f});
  }
}

// Quantised and dequantised. Of dimensions that are not known the scale is one number.
Step Generator::DrawPair(Case* c, const std::vector<int64_t>& shape) {
  DataType type = QuantizedType();
  while (BitsOf(type) > 16 || IsFloat8(type)) type = QuantizedType();
  return FakeQuantise(Quantize(c, type, shape, BitsOf(type) >= 8 ? 1.0 / 32 : 0.5), type);
}

Step Generator::DrawActivation(Case* c, const std::vector<int64_t>& shape) {
  ActivationCall call;
  while (call.kind == Activation::kIdentity) call.kind = static_cast<Activation>(Int(0, kActivationCount - 1));
  const ActivationSpec& spec = kActivations[static_cast<int>(call.kind)];
  const bool drawn = Chance(0.5);
  for (int i = 0; i < spec.param_count; ++i) {
    const float within = static_cast<float>(Int(0, 100)) / 100;
    call.params[i] = spec.defaults[i];
    if (drawn || !std::isfinite(spec.defaults[i])) {
      call.params[i] = spec.params[i].low + within * (spec.params[i].high - spec.params[i].low);
    }
  }
  Operand slope;
  if (spec.has_slope) {
    slope.type = FloatType();
    slope.tensor = c->Add(Values(slope.type, Broadcastable(shape), 0.25, 0.1), Chance(0.5));
    slope.shape = Known(c->Of(slope.tensor).dims);
    slope.name = "slope";
  }
  return normfuse::Activate(call, slope);
}

// `shape`: of d, or of all that may widen it.
Step Generator::DrawCombination(Case* c, const std::vector<int64_t>& shape, Align align, StepKind kind) {
  const bool adds = kind == StepKind::kAdd, divides = kind == StepKind::kDiv;
  const double mean = adds ? 0.3 : divides ? 3 : 1.0;  // nothing near 0 to divide by
  Operand operand;
  if (align == Align::kTrailing && !divides) {
    operand = Input(c, Chance(0.4) ? shape : Broadcastable(shape), mean);
  } else {
    std::vector<int64_t> dims = {c->parts.normalization.num_groups};
    if (align != Align::kGroup) dims = align == Align::kChannel ? std::vector<int64_t>{shape[1]} : Broadcastable(shape);
    operand.type = divides ? DataType::kFloat32 : FloatType();
    operand.tensor = c->Add(Values(operand.type, dims, mean, divides ? 0.3 : 0.5), Chance(0.6));
  }
  operand.align = align;
  operand.name = adds ? "addend" : divides ? "divisor" : "factor";
  operand.shape = Known(c->Of(operand.tensor).dims);
  return Combine(kind, operand);
}

Step Generator::DrawStep(Case* c, const std::vector<int64_t>& shape, Align align) {
  const int64_t kind = Int(0, 10);
  if (kind == 0 && !limits_.for_directml) {
    const DataType type = FloatType();
    return Emit(type, Emitted(c, type));
  }
  if (kind <= 2) return DrawActivation(c, shape);
  return DrawCombination(c, shape, align, kind <= 6 ? StepKind::kAdd : kind == 10 ? StepKind::kDiv : StepKind::kMul);
}

void Generator::DrawUsualBehind(Case* c, Chain* chain, const std::vector<int64_t>& most) {
  std::vector<int64_t> shape = ShapeOfD(*c, *chain);
  const bool groups = chain->num_groups() > 0 && Chance(0.3);
  const bool channels = shape.size() >= 2 && Chance(0.3);
  const Align align = groups ? Align::kGroup : channels ? Align::kChannel : Align::kTrailing;
  if (!chain->normalizes() && !channels) shape = most;
  if (Chance(0.7)) chain->behind.push_back(DrawCombination(c, shape, align, StepKind::kMul));
  if (Chance(0.7) && HasRoom(*chain)) chain->behind.push_back(DrawCombination(c, shape, align, StepKind::kAdd));
  if (Chance(0.6) && HasRoom(*chain)) chain->behind.push_back(DrawActivation(c, shape));
}

// Stored integers whose sum is a multiple of 1 / 32, requantised in steps of 1 / 8.
void Generator::DrawExact(Case* c, Chain* chain, const std::vector<int64_t>& shape) {
  const auto stored = [&](double step, const char* name) {
    Operand operand;
    operand.type = DataType::kInt8;
    operand.tensor = c->Add(Values(operand.type, shape, 0, 1), false);
    operand.quantization.scale = c->Add(MakeFloats({}, {step}), true);
    operand.name = name;
    return operand;
  };
  chain->x = stored(1.0 / 16, "X");
  chain->before.push_back(Add(stored(1.0 / 32, "addend")));
  const DataType type = Pick<DataType>({DataType::kInt8, DataType::kUint8, DataType::kInt16, DataType::kUint16});
  Quantization q;
  q.scale = c->Add(MakeFloats({}, {1.0 / 8}), true);
  if (Chance(0.5)) {
    Tensor zero = MakeTensor(type, {1});
    zero.Set(0, 7);
    q.zero_point = c->Add(std::move(zero), true);
  }
  chain->before.push_back(Requantise(q, type, Chance(0.5) ? Emitted(c, type) : kNoOutput));
}

void Generator::FindsItsScale(Case* c) {
  Store& store = c->steps->store;
  store.type = c->output_types[0] = DataType::kUint8;
  store.dynamic.emplace();
  store.dynamic->scale_output = Emitted(c, DataType::kFloat32);
  store.dynamic->zero_point_output = Emitted(c, DataType::kUint8);
  if (Chance(0.4)) store.dynamic->value_output = Emitted(c, DataType::kFloat32);
}

void Generator::Output(Case* c) {
  const std::vector<int64_t> shape = ShapeOfD(*c, *c->steps);
  Store& store = c->steps->store;
  store.type = FloatType();
  if (Chance(0.4)) {
    do store.type = QuantizedType();
    while (BitsOf(store.type) > 16);
    store.quantization = Quantize(c, store.type, shape, BitsOf(store.type) >= 8 ? 1.0 / 32 : 0.5);
    store.saturate = Chance(0.5);
  }
  c->output_types[0] = store.type;
  if (c->steps->normalizes()) {
    Normalization& norm = *c->steps->normalization;
    norm.stats_type = FloatType();
    if (Chance(0.2)) norm.mean_output = Emitted(c, norm.stats_type);
    if (Chance(0.2)) norm.inv_std_dev_output = Emitted(c, norm.stats_type);
  }
  if (!store.quantization.present() && !limits_.for_directml && Chance(0.3)) FindsItsScale(c);
}

Case Generator::Draw(bool usual) {
  Case c;
  Chain chain;
  chain.name = "random steps";
  const std::vector<int64_t> most = Shape();
  c.output_types = {DataType::kFloat32};
  c.parts.normalizes = Chance(0.7);
  if (!usual && Chance(0.15)) {
    DrawExact(&c, &chain, most);
  } else {
    const double mean = usual ? Pick<double>({0, 0, 0, 1, -30, 1000}) : Pick<double>({0, 0, 1, -3});
    chain.x = Input(&c, Chance(0.3) ? Broadcastable(most) : most, mean);
    chain.x.name = "X";
    if (usual) chain.x.shape = Known(c.Of(chain.x.tensor).dims);
    if (!usual && !chain.x.quantization.present() && Chance(0.2)) chain.before.push_back(DrawPair(&c, {}));
    for (int64_t i = usual ? Pick<int64_t>({0, 0, 1, 2}) : Int(0, 4); i > 0 && HasRoom(chain); --i) {
      const Align align = Align::kTrailing;
      chain.before.push_back(usual ? DrawCombination(&c, most, align, StepKind::kAdd) : DrawStep(&c, most, align));
    }
    if (usual && Chance(0.3)) {
      const DataType type = FloatType();
      chain.before.push_back(Emit(type, Emitted(&c, type)));
    }
  }
  const std::vector<int64_t> shape = ShapeOfD(c, chain);
  if (shape.empty()) c.parts.normalizes = false;
  if (c.parts.normalizes) {
    Normalize(&c, shape, chain.x.tensor);
    chain.normalization = c.parts.normalization;
  }
  if (usual) DrawUsualBehind(&c, &chain, most);
  for (int64_t i = usual ? 0 : Int(0, 6); i > 0 && HasRoom(chain) && c.output_types.size() < kMostEmitted; --i) {
    if (Chance(0.15)) {
      chain.behind.push_back(DrawPair(&c, c.parts.normalizes ? shape : std::vector<int64_t>{}));
      continue;
    }
    const bool channels = shape.size() >= 2 && c.parts.normalizes && Chance(0.3);
    const bool groups = chain.num_groups() > 0 && Chance(0.3);
    const Align align = groups ? Align::kGroup : channels ? Align::kChannel : Align::kTrailing;
    chain.behind.push_back(DrawStep(&c, c.parts.normalizes ? shape : most, align));
  }
  c.steps = chain;
  Output(&c);
  return c;
}

}  // namespace

Case RandomChain(uint64_t seed, const GeneratorLimits& limits) {
  return Generator(seed, limits).Draw(/*usual=*/seed % 2 == 0);
}

std::string Describe(const Case& c, uint64_t seed) {
  const Chain& chain = *c.steps;
  std::string text = "steps, seed " + std::to_string(seed) + " X " + NameOf(chain.x.type) + " [";
  for (int64_t dim : c.Of(chain.x.tensor).dims) text += std::to_string(dim) + " ";
  text += "]";
  const auto describe = [&](const std::vector<Step>& steps) {
    for (const Step& step : steps) {
      text += " ";
      if (step.kind == StepKind::kActivate) {
        text += kActivations[static_cast<int>(step.activation.kind)].name;
        continue;
      }
      text += step.kind == StepKind::kFakeQuantize ? std::string("pair of ") + NameOf(step.type)
                                                   : std::string(SpecOf(step.kind).name);
      if (step.operand.present()) {
        text +=
            std::string(" ") + NameOf(step.operand.type) + " of " + std::to_string(c.Of(step.operand.tensor).Count());
      }
    }
  };
  describe(chain.before);
  text += chain.normalizes() ? " | normalised |" : " | |";
  describe(chain.behind);
  return text + " -> " + NameOf(chain.store.type) + (chain.store.dynamic ? " of its own scale" : "");
}

}  // namespace normfuse::test
