#include "chain_harness.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <map>
#include <sstream>

#include "chain/operator_node.h"
#include "spec/formulas.h"
#include "test_cases.h"

namespace normfuse::test {
namespace {

double PowerOfTwo(int exponent) { return std::ldexp(1.0, exponent); }

double DecodeFloat(uint32_t bits, int exponent_bits, int mantissa_bits, int bias, bool ieee, bool fnuz) {
  const uint32_t mantissa = bits & ((1u << mantissa_bits) - 1u);
  const auto exponent = static_cast<int>(bits >> mantissa_bits & ((1u << exponent_bits) - 1u));
  const double sign = (bits >> (mantissa_bits + exponent_bits) & 1u) != 0 ? -1.0 : 1.0;
  const int top = (1 << exponent_bits) - 1;
  if (fnuz && bits == 1u << (mantissa_bits + exponent_bits)) return std::nan("");
  if (ieee && exponent == top) return mantissa != 0 ? std::nan("") : sign * std::numeric_limits<double>::infinity();
  if (!ieee && !fnuz && exponent == top && mantissa == (1u << mantissa_bits) - 1u) return std::nan("");
  const double fraction = mantissa / PowerOfTwo(mantissa_bits);
  if (exponent == 0) return sign * fraction * PowerOfTwo(1 - bias);
  return sign * (1.0 + fraction) * PowerOfTwo(exponent - bias);
}

int SignedBits(uint32_t bits, int width) {
  const auto value = static_cast<int64_t>(bits);
  return static_cast<int>(bits >> (width - 1) & 1u ? value - (int64_t{1} << width) : value);
}

bool IsSigned(DataType type) {
  return type == DataType::kInt8 || type == DataType::kInt16 || type == DataType::kInt32 || type == DataType::kInt4 ||
         type == DataType::kInt2;
}

uint32_t ReadBits(DataType type, const unsigned char* data, int64_t index) {
  const int bits = BitsOf(type);
  if (bits < 8) {
    const int per_byte = 8 / bits;
    return static_cast<uint32_t>(data[index / per_byte] >> (bits * (index % per_byte))) & ((1u << bits) - 1u);
  }
  uint32_t value = 0;
  std::memcpy(&value, data + index * bits / 8, static_cast<size_t>(bits) / 8);
  return value;
}

void WriteBits(DataType type, unsigned char* data, int64_t index, uint32_t value) {
  const int bits = BitsOf(type);
  if (bits < 8) {
    const int per_byte = 8 / bits;
    const auto shift = static_cast<int>(bits * (index % per_byte));
    unsigned char& byte = data[index / per_byte];
    byte =
        static_cast<unsigned char>((byte & ~(((1u << bits) - 1u) << shift)) | (value & ((1u << bits) - 1u)) << shift);
    return;
  }
  std::memcpy(data + index * bits / 8, &value, static_cast<size_t>(bits) / 8);
}

// The largest finite code of a float type, looked for once: a thousand codes of float16 above it are NaN.
uint32_t LargestCode(DataType type) {
  static std::map<DataType, uint32_t> known;
  const auto [entry, is_new] = known.try_emplace(type, (1u << (BitsOf(type) - 1)) - 1);
  while (is_new && !std::isfinite(DecodeElement(type, entry->second))) --entry->second;
  return entry->second;
}

// The code of a float type whose value is nearest, of finite values a finite one; codes without their sign stand in the order of their values.
uint32_t NearestCode(DataType type, double value) {
  const uint32_t sign = 1u << (BitsOf(type) - 1);
  if (std::isinf(value)) return LargestCode(type) + (value < 0 ? sign : 0) + 1;
  uint32_t low = 0;
  uint32_t high = LargestCode(type);
  while (low + 1 < high) {
    const uint32_t middle = (low + high) / 2;
    (DecodeElement(type, middle) <= std::fabs(value) ? low : high) = middle;
  }
  const double below = std::fabs(value) - DecodeElement(type, low);
  const double above = DecodeElement(type, high) - std::fabs(value);
  const uint32_t code = below <= above ? low : high;
  return value < 0 && code != 0 ? code | sign : code;
}

}  // namespace

double DecodeElement(DataType type, uint32_t bits) {
  switch (type) {
    case DataType::kFloat32: {
      float value;
      std::memcpy(&value, &bits, sizeof value);
      return value;
    }
    case DataType::kFloat16:
      return DecodeFloat(bits, 5, 10, 15, true, false);
    case DataType::kBfloat16:
      return DecodeFloat(bits, 8, 7, 127, true, false);
    case DataType::kFloat8e4m3fn:
      return DecodeFloat(bits, 4, 3, 7, false, false);
    case DataType::kFloat8e4m3fnuz:
      return DecodeFloat(bits, 4, 3, 8, false, true);
    case DataType::kFloat8e5m2:
      return DecodeFloat(bits, 5, 2, 15, true, false);
    case DataType::kFloat8e5m2fnuz:
      return DecodeFloat(bits, 5, 2, 16, false, true);
    default:
      return IsSigned(type) ? SignedBits(bits, BitsOf(type)) : static_cast<double>(bits);
  }
}

double Tensor::At(int64_t index) const { return DecodeElement(type, ReadBits(type, data(), index)); }

void Tensor::Set(int64_t index, double value) {
  uint32_t bits = 0;
  if (type == DataType::kFloat32) {
    const auto single = static_cast<float>(value);
    std::memcpy(&bits, &single, sizeof single);
  } else if (IsFloat(type) || IsFloat8(type)) {
    bits = NearestCode(type, value);
  } else {
    bits = static_cast<uint32_t>(static_cast<int64_t>(std::llround(value)));
    if (BitsOf(type) < 32) bits &= (1u << BitsOf(type)) - 1u;
  }
  WriteBits(type, data(), index, bits);
}

Tensor MakeTensor(DataType type, std::vector<int64_t> dims, size_t misalignment) {
  Tensor tensor;
  tensor.type = type;
  tensor.dims = std::move(dims);
  tensor.misalignment = BitsOf(type) < 8 ? 0 : misalignment;
  tensor.bytes.resize(BytesFor(type, static_cast<size_t>(tensor.Count()) + tensor.misalignment));
  return tensor;
}

Tensor MakeFloats(std::vector<int64_t> dims, const std::vector<double>& values) {
  Tensor tensor = MakeTensor(DataType::kFloat32, std::move(dims));
  for (size_t i = 0; i < values.size(); ++i) tensor.Set(static_cast<int64_t>(i), values[i]);
  return tensor;
}

Tensor FewValues(DataType type, std::vector<int64_t> dims, uint32_t seed) {
  constexpr int64_t kValues = 251;
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  Tensor values = MakeTensor(type, {kValues});
  for (int64_t i = 0; i < kValues; ++i) {
    const double value = normal(random);
    values.Set(i, IsFloat(type) ? 1 + value : std::clamp(60 + 20 * value, 0.0, 127.0));
  }
  Tensor tensor = MakeTensor(type, std::move(dims));
  const size_t size = static_cast<size_t>(BitsOf(type)) / 8;
  for (size_t i = 0; i < static_cast<size_t>(tensor.Count()); ++i) {
    std::memcpy(tensor.data() + i * size, values.data() + random() % kValues * size, size);
  }
  return tensor;
}

void ArrayContext::SetOutputTypes(std::vector<DataType> types) {
  outputs_.resize(types.size());
  for (size_t i = 0; i < types.size(); ++i) outputs_[i].type = types[i];
}

Result ArrayContext::Input(int index, TensorView* view) {
  const Tensor& tensor = *inputs_[static_cast<size_t>(index)];
  *view = {tensor.data(), tensor.type, tensor.dims.data(), tensor.dims.size()};
  return {};
}

Result ArrayContext::Output(int index, DataType type, const int64_t* dims, size_t rank, void** data) {
  Tensor& tensor = outputs_[static_cast<size_t>(index)];
  if (tensor.type != type) return Result::Error(ErrorCode::kFail, "an output is written as another type than it has");
  tensor.dims.assign(dims, dims + rank);
  // 64 bytes of alignment, and a guard behind that must not change.
  const size_t bytes = BytesFor(tensor.type, static_cast<size_t>(tensor.Count()));
  constexpr size_t kGuard = 64;
  if (tensor.bytes.size() < bytes + 3 * kGuard) tensor.bytes.resize(bytes + 3 * kGuard);
  std::fill(tensor.bytes.begin(), tensor.bytes.end(), static_cast<unsigned char>(0xa5));
  const size_t address = reinterpret_cast<size_t>(tensor.bytes.data());
  const size_t skip = (kGuard - address % kGuard) % kGuard + shift_;
  tensor.misalignment = 8 * skip / static_cast<size_t>(BitsOf(tensor.type));
  *data = tensor.data();
  return {};
}

Result ArrayContext::ParallelFor(void (*task)(void* user, size_t index), size_t count, void* user) {
  ++parallel_calls_;
  if (threads_ == 1 || caller_only_) {
    for (size_t i = 0; i < count; ++i) task(user, i);
    return {};
  }
  std::vector<std::thread> threads;
  for (int t = 0; t < threads_; ++t) {
    threads.emplace_back([=, this] {
      for (auto i = static_cast<size_t>(t); i < count; i += static_cast<size_t>(threads_)) task(user, i);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return {};
}

TensorRef Case::Add(Tensor tensor, bool constant) {
  TensorRef ref;
  if (constant) {
    auto value = std::make_shared<ConstantTensor>();
    value->type = tensor.type;
    value->dims = tensor.dims;
    value->storage.assign(tensor.data(), tensor.data() + BytesFor(tensor.type, static_cast<size_t>(tensor.Count())));
    value->data = value->storage.data();
    ref.constant = value;
    constant_tensors.push_back(std::make_unique<Tensor>(std::move(tensor)));
    constants_by_value.emplace_back(value.get(), constant_tensors.back().get());
    return ref;
  }
  ref.input = static_cast<int>(tensors.size());
  tensors.push_back(std::make_unique<Tensor>(std::move(tensor)));
  return ref;
}

const Tensor& Case::Of(const TensorRef& ref) const {
  if (ref.constant == nullptr) return *tensors[static_cast<size_t>(ref.input)];
  for (const auto& [value, tensor] : constants_by_value) {
    if (value == ref.constant.get()) return *tensor;
  }
  std::abort();
}

void Case::FillContext(ArrayContext* context) const {
  for (const auto& tensor : tensors) context->AddInput(tensor.get());
  context->SetOutputTypes(output_types);
}

namespace {

struct StepsAttribute : NodeAttributes {
  std::string steps;
  bool GetInt(const char*, int64_t*) const override { return false; }
  bool GetFloat(const char*, float*) const override { return false; }
  bool GetInts(const char*, std::vector<int64_t>*) const override { return false; }
  bool GetString(const char* name, std::string* value) const override {
    *value = steps;
    return std::strcmp(name, "steps") == 0;
  }
};

// "X", and what stands behind the names of steps and arguments.
std::vector<std::string> Labels(std::string steps) {
  std::replace(steps.begin(), steps.end(), ';', ' ');
  std::istringstream words(steps);
  std::vector<std::string> labels = {"X"};
  for (std::string word; words >> word;) labels.push_back(word.substr(word.find('=') + 1));
  return labels;
}

DataType TypeOfName(const std::string& name) {
  for (int number = 0; number < kTypeSlots; ++number) {
    if (name == NameOf(static_cast<DataType>(number))) return static_cast<DataType>(number);
  }
  return DataType::kFloat32;
}

// "float32[2,768]", "int8(3)" or "0.05".
Tensor TensorOf(const std::string& text, uint32_t seed) {
  const size_t bracket = text.find_first_of("[(");
  const DataType type = TypeOfName(text.substr(0, bracket));
  std::vector<int64_t> dims;
  if (bracket == std::string::npos || text[bracket] == '(') {
    Tensor number = MakeTensor(type, {});
    number.Set(0, std::atof(text.c_str() + (bracket == std::string::npos ? 0 : bracket + 1)));
    return number;
  }
  std::istringstream sizes(text.substr(bracket + 1));
  for (int64_t dim = 0; sizes >> dim; sizes.ignore()) dims.push_back(dim);
  return FewValues(type, std::move(dims), seed);
}

}  // namespace

Case FromSteps(const std::string& steps, const std::vector<NamedTensor>& tensors) {
  Case c;
  StepsAttribute attribute;
  attribute.steps = steps;
  const bool normalizes = steps.find("Normalize") != std::string::npos || steps.find("oftmax") != std::string::npos;
  const bool sums = steps.find("Emit") != std::string::npos;
  OperatorNode node;
  node.kind = normalizes ? OperatorKind::kFusedNormalization : OperatorKind::kFusedActivation;
  node.name = "node";
  node.attributes = &attribute;
  node.outputs_used = {true, sums};
  for (const std::string& label : Labels(steps)) {
    const auto given =
        std::find_if(tensors.begin(), tensors.end(), [&](const NamedTensor& each) { return each.name == label; });
    if (given == tensors.end()) continue;
    TensorFacts& facts = node.inputs.emplace_back();
    facts.present = true;
    facts.type = given->tensor.type;
    if (given->constant) facts.constant = c.Add(given->tensor, true).constant;
    c.Add(given->tensor, false);  // at the node's own index
  }
  const std::optional<Declined> declined = ChainFromOperator(node, &c.steps.emplace());
  EXPECT(!declined, steps + ": " + (declined ? declined->message : ""));
  c.output_types = {c.steps->store.type};
  if (sums) c.output_types.push_back(c.steps->before.back().type);
  return c;
}

Case FromSteps(const std::string& steps, const std::string& tensors, std::vector<NamedTensor> more) {
  std::istringstream words(tensors);
  for (std::string word; words >> word;) {
    const size_t equals = word.find('=');
    const auto seed = static_cast<uint32_t>(more.size() + 1);
    more.push_back({word.substr(0, equals), TensorOf(word.substr(equals + 1), seed), word[0] > 'Z'});
  }
  return FromSteps(steps, more);
}

namespace {

using Index = std::vector<int64_t>;

bool NextIndex(Index* index, const std::vector<int64_t>& shape) {
  for (size_t d = shape.size(); d-- > 0;) {
    if (++(*index)[d] < shape[d]) return true;
    (*index)[d] = 0;
  }
  return false;
}

int64_t Count(const std::vector<int64_t>& shape) {
  int64_t count = 1;
  for (int64_t dim : shape) count *= dim;
  return count;
}

// Linear index into a tensor of shape `dims` that broadcasts to the space of `index` from the last dimension.
int64_t BroadcastIndex(const std::vector<int64_t>& dims, const Index& index) {
  int64_t linear = 0;
  for (size_t i = 0; i < dims.size(); ++i) {
    const auto at = static_cast<int64_t>(i) + static_cast<int64_t>(index.size()) - static_cast<int64_t>(dims.size());
    linear = linear * dims[i] + (at < 0 || dims[i] == 1 ? 0 : index[static_cast<size_t>(at)]);
  }
  return linear;
}

// The part of `index` that addresses a tensor of shape `dims`, broadcast dimensions set to 0.
Index Project(const std::vector<int64_t>& dims, const Index& index) {
  Index own(dims.size());
  for (size_t i = 0; i < dims.size(); ++i) own[i] = dims[i] == 1 ? 0 : index[i + index.size() - dims.size()];
  return own;
}

double QuantizationValue(const Tensor& parameter, const Quantization& q, const std::vector<int64_t>& dims,
                         const Index& own) {
  if (parameter.Count() == 1) return parameter.At(0);
  const auto rank = static_cast<int64_t>(dims.size());
  const auto axis = static_cast<size_t>(rank == 1 ? 0 : q.axis < 0 ? q.axis + rank : q.axis);
  if (parameter.dims.size() == 1 && q.block_size == 0) return parameter.At(own[axis]);
  Index at = own;
  if (q.block_size > 0) at[axis] /= q.block_size;
  return parameter.At(BroadcastIndex(parameter.dims, at));
}

// An operand's value at its own index; `size` grows by the magnitude that rounding acts on.
double OperandValue(const Case& c, const Operand& operand, const Index& own, double* size) {
  const Tensor& tensor = c.Of(operand.tensor);
  double value = tensor.At(BroadcastIndex(tensor.dims, own));
  if (operand.quantization.present()) {
    const Quantization& q = operand.quantization;
    if (q.zero_point.present()) value -= QuantizationValue(c.Of(q.zero_point), q, tensor.dims, own);
    value *= QuantizationValue(c.Of(q.scale), q, tensor.dims, own);
  }
  *size = std::max(*size, std::fabs(value));
  return value;
}

// The value of an operand that meets d at `index`; `size` as above.
double ValueAt(const Case& c, const Chain& chain, const Operand& operand, const std::vector<int64_t>& shape,
               const Index& index, double* size) {
  const Tensor& tensor = c.Of(operand.tensor);
  if (operand.align == Align::kTrailing) return OperandValue(c, operand, Project(tensor.dims, index), size);
  if (tensor.Count() == 1) return OperandValue(c, operand, Index(tensor.dims.size(), 0), size);
  const int64_t at = operand.align == Align::kGroup ? index[1] / (shape[1] / chain.num_groups()) : index[1];
  return OperandValue(c, operand, Index{at}, size);
}

std::vector<int64_t> BroadcastShape(const std::vector<int64_t>& a, const std::vector<int64_t>& b) {
  std::vector<int64_t> shape(std::max(a.size(), b.size()));
  for (size_t i = 0; i < shape.size(); ++i) {
    const size_t back = shape.size() - i;
    const int64_t x = back <= a.size() ? a[a.size() - back] : 1;
    const int64_t y = back <= b.size() ? b[b.size() - back] : 1;
    shape[i] = x == 1 ? y : x;
  }
  return shape;
}

}  // namespace

std::vector<int64_t> ShapeOfD(const Case& c, const Chain& chain) {
  std::vector<int64_t> shape = c.Of(chain.x.tensor).dims;
  std::vector<const Operand*> widening;
  for (const Step& step : chain.before) widening.push_back(&step.operand);
  for (const Step& step : chain.behind) {
    if (!chain.normalizes()) widening.push_back(&step.operand);
  }
  for (const Operand* operand : widening) {
    if (!operand->present() || operand->align != Align::kTrailing) continue;
    shape = BroadcastShape(shape, c.Of(operand->tensor).dims);
  }
  for (const Operand* operand : widening) {
    if (!operand->present() || operand->align != Align::kChannel) continue;
    if (c.Of(operand->tensor).Count() != 1) shape[1] = c.Of(operand->tensor).Count();
  }
  return shape;
}

namespace {

// Which group an index belongs to.
int64_t GroupOf(int64_t groups, const std::vector<int64_t>& shape, const std::vector<bool>& reduced,
                const Index& index) {
  if (groups > 0) return index[0] * groups + index[1] / (shape[1] / groups);
  int64_t group = 0;
  for (size_t i = 0; i < shape.size(); ++i) {
    if (!reduced[i]) group = group * shape[i] + index[i];
  }
  return group;
}

struct GroupSums {
  double count = 0;
  double first = 0;
  double second = 0;
  double size = 0;  // largest magnitude that was rounded on the way to d
};

// A value on its way through the steps, and how far float32 may be from it.
struct Tracked {
  double value = 0;
  double error = 0;
};

// Goes through the steps of a chain, element by element.
class Walker {
 public:
  Walker(const Case& c, const Chain& chain, Expected* e)
      : c_(c), chain_(chain), usual_(UsualFormOf(chain).before), e_(*e), eps_(e->accuracy.rounding) {}

  Tracked Walk(const std::vector<Step>& steps, bool before, const Index& index, Tracked t) {
    double largest = std::fabs(t.value);
    for (const Step& step : steps) {
      double unused = 0;
      const bool has_operand = step.operand.present();
      const double other = has_operand ? ValueAt(c_, chain_, step.operand, e_.shape, index, &unused) : 0;
      largest = std::max(largest, std::fabs(other));
      const double floor = before ? 0 : 1;
      switch (step.kind) {
        case StepKind::kAdd:
          t.error = usual_ && before ? std::max(t.error, largest * eps_)
                    : before         ? t.error + largest * eps_
                                     : t.error + 4 * eps_ * std::max({std::fabs(t.value), std::fabs(other), floor});
          t.value += other;
          break;
        case StepKind::kMul:
          t.value *= other;
          t.error = t.error * std::fabs(other) + 4 * eps_ * std::max(std::fabs(t.value), floor);
          break;
        case StepKind::kDiv:
          t.value /= other;
          t.error = t.error / std::fabs(other) + 4 * eps_ * std::max(std::fabs(t.value), floor);
          break;
        case StepKind::kActivate:
          t = Activated(step.activation, other, t);
          break;
        case StepKind::kFakeQuantize:
          t = FakeQuantised(step, index, t);
          break;
        case StepKind::kRequantize:
          t = Requantised(step, t);
          break;
        case StepKind::kEmit:
          Emit(step.output, t.value, before ? 4 * t.error : t.error);
          break;
        case StepKind::kMask:
          if ((other != 0) != step.mask.shows) t = {step.mask.fill, 0};
          break;
      }
      largest = std::max(largest, std::fabs(t.value));
    }
    if (!(largest < 1e37)) e_.overflows = true;
    return t;
  }

 private:
  Tracked Activated(const ActivationCall& call, double slope, const Tracked& t) const {
    const auto f = [&](double at) { return FormulaOf(call.kind, at, slope, call.params); };
    const double a = f(t.value);
    // How far the activation can carry the error: the widest of a few points within it, and its own rounding.
    double spread = 0;
    for (double part : {-1.0, -0.5, 0.5, 1.0}) {
      const double there = f(t.value + part * t.error);
      if (std::isfinite(there)) spread = std::max(spread, std::fabs(there - a));
    }
    // These go up and down between the points.
    if (call.kind == Activation::kSin) spread = std::min(t.error, 2.0);
    if (call.kind == Activation::kSinSquared) spread = std::min(t.error, 1.0);
    return {a, spread + 4 * 2 * eps_ * std::max(std::fabs(a), e_.accuracy.floor)};
  }

  // By the float32 operations that the step is (tests/operators/test_fake_quantization.py has their bits); an error in
  // front of it may be one of whole steps behind.
  Tracked FakeQuantised(const Step& step, const Index& index, const Tracked& t) const {
    const Quantization& q = step.quantization;
    const auto scale = static_cast<float>(QuantizationValue(c_.Of(q.scale), q, e_.shape, index));
    const double zero = q.zero_point.present() ? QuantizationValue(c_.Of(q.zero_point), q, e_.shape, index) : 0;
    const double low = IsSigned(step.type) ? -PowerOfTwo(BitsOf(step.type) - 1) : 0;
    const double high = low + PowerOfTwo(BitsOf(step.type)) - 1;
    const auto of = [&](double x) {
      const double steps = std::nearbyint(static_cast<float>(x) / scale);
      return (std::isnan(x) ? low - zero : std::min(std::max(steps + zero, low), high) - zero) * scale;
    };
    const double value = of(t.value);
    return {value, std::max(std::fabs(of(t.value - t.error) - value), std::fabs(of(t.value + t.error) - value))};
  }

  Tracked Requantised(const Step& step, const Tracked& t) {
    const double scale = c_.Of(step.quantization.scale).At(0);
    const double zero = step.quantization.zero_point.present() ? c_.Of(step.quantization.zero_point).At(0) : 0;
    const int bits = BitsOf(step.type);
    const double low = IsSigned(step.type) ? -PowerOfTwo(bits - 1) : 0;
    const double stored = std::min(std::max(std::nearbyint(t.value / scale) + zero, low), low + PowerOfTwo(bits) - 1);
    if (step.output != kNoOutput) Emit(step.output, stored, 0);
    return {(stored - zero) * scale, 0};
  }

  void Emit(int output, double value, double tolerance) {
    const auto is_output = [output](const Emitted& emitted) { return emitted.output == output; };
    auto at = std::find_if(e_.emitted.begin(), e_.emitted.end(), is_output);
    if (at == e_.emitted.end()) at = e_.emitted.insert(at, Emitted{output, {}, {}});
    at->values.push_back(value);
    at->tolerance.push_back(tolerance);
  }

  const Case& c_;
  const Chain& chain_;
  bool usual_;  // then what is added up is as exact as its largest part
  Expected& e_;
  double eps_;
};

// The dimensions that are normalised; with groups none.
std::vector<bool> Reduced(const Chain& chain, size_t dimensions) {
  std::vector<bool> reduced(dimensions, false);
  if (!chain.normalizes() || chain.num_groups() > 0) return reduced;
  const auto rank = static_cast<int64_t>(dimensions);
  const Normalization& norm = *chain.normalization;
  if (norm.from_first_axis) {
    for (int64_t i = norm.first_axis < 0 ? norm.first_axis + rank : norm.first_axis; i < rank; ++i) {
      reduced[static_cast<size_t>(i)] = true;
    }
  }
  for (int64_t axis : norm.axes) reduced[static_cast<size_t>(axis < 0 ? axis + rank : axis)] = true;
  return reduced;
}

std::vector<int64_t> StatShape(const Chain& chain, const std::vector<int64_t>& shape,
                               const std::vector<bool>& reduced) {
  std::vector<int64_t> stat_shape = shape;
  for (size_t i = 0; i < shape.size(); ++i) {
    if (reduced[i]) stat_shape[i] = 1;
  }
  if (chain.num_groups() == 0) return stat_shape;
  stat_shape[1] = chain.num_groups();
  for (size_t i = 2; i < shape.size(); ++i) stat_shape[i] = 1;
  return stat_shape;
}

// d with its errors; the values of each group, then their statistics.
struct Normalized {
  std::vector<double> errors;
  std::vector<int64_t> group_of;
  std::vector<GroupSums> groups;
};

void ComputeStatistics(const Normalization& norm, Normalized* n, Expected* e) {
  for (size_t i = 0; i < e->d.size(); ++i) {
    GroupSums& g = n->groups[static_cast<size_t>(n->group_of[i])];
    const double off = e->d[i] - (norm.use_mean ? g.first / g.count : 0.0);
    g.second += off * off;
  }
  for (const GroupSums& g : n->groups) {
    const double variance = g.second / g.count;
    e->mean.push_back(g.first / g.count);
    e->inv_std_dev.push_back(norm.epsilon_on == EpsilonOn::kVariance ? 1.0 / std::sqrt(variance + norm.epsilon)
                                                                     : 1.0 / (std::sqrt(variance) + norm.epsilon));
  }
}

// Of each group: what is subtracted from d before exp() for its softmax is the logarithm of its result.
std::vector<double> LogSums(const Normalized& n, const Expected& e) {
  std::vector<double> most(n.groups.size(), -std::numeric_limits<double>::infinity());
  std::vector<double> sums(n.groups.size(), 0);
  const auto group = [&n](size_t i) { return static_cast<size_t>(n.group_of[i]); };
  for (size_t i = 0; i < e.d.size(); ++i) most[group(i)] = std::max(most[group(i)], e.d[i]);
  for (size_t i = 0; i < e.d.size(); ++i) sums[group(i)] += std::exp(e.d[i] - most[group(i)]);
  for (size_t g = 0; g < sums.size(); ++g) sums[g] = most[g] + std::log(sums[g]);
  return sums;
}

Tracked SoftmaxOf(Method method, double d, double error, double log_sum, double eps) {
  if (method == Method::kLogSoftmax) return {d - log_sum, 2 * error + 4 * eps * std::fabs(d)};
  return {std::exp(d - log_sum), std::expm1(2 * error)};
}

}  // namespace

Expected Compute(const Case& c, const Accuracy& accuracy) {
  const Chain chain = c.chain();
  const Tensor& x = c.Of(chain.x.tensor);
  const double eps = accuracy.rounding;
  Expected e;
  e.accuracy = accuracy;
  e.shape = ShapeOfD(c, chain);
  const std::vector<bool> reduced = Reduced(chain, e.shape.size());
  e.stat_shape = StatShape(chain, e.shape, reduced);
  const int64_t total = Count(e.shape);
  if (total == 0) return e;

  Walker walker(c, chain, &e);
  Normalized all;
  all.groups.resize(static_cast<size_t>(Count(e.stat_shape)));
  // Without arithmetic on the way d is exact.
  const bool exact = !chain.x.quantization.present();
  Index index(e.shape.size(), 0);
  do {
    double size = 0;
    Tracked d;
    d.value = OperandValue(c, chain.x, Project(x.dims, index), &size);
    d.error = exact ? 0 : size * eps;
    d = walker.Walk(chain.before, true, index, d);
    e.d.push_back(d.value);
    all.errors.push_back(d.error);
    e.error_of_d = std::max(e.error_of_d, d.error);
    if (!chain.normalizes()) continue;
    all.group_of.push_back(GroupOf(chain.num_groups(), e.shape, reduced, index));
    GroupSums& g = all.groups[static_cast<size_t>(all.group_of.back())];
    g.count += 1;
    g.first += d.value;
    g.size = std::max(g.size, d.error);
  } while (NextIndex(&index, e.shape));
  if (chain.normalizes()) ComputeStatistics(*chain.normalization, &all, &e);

  const Method method = chain.normalizes() ? chain.normalization->method : Method::kStandard;
  const std::vector<double> log_sums = chain.has_softmax() ? LogSums(all, e) : std::vector<double>();
  // Behind a normalisation, without AVX-512.
  const bool gelu_of_bytes =
      chain.normalizes() && UsualFormOf(chain).activation() == Activation::kGelu && BitsOf(chain.store.type) == 8;
  index.assign(e.shape.size(), 0);
  size_t i = 0;
  do {
    Tracked n{e.d[i], all.errors[i]};
    if (chain.has_softmax()) {
      const auto group = static_cast<size_t>(all.group_of[i]);
      n = SoftmaxOf(method, e.d[i], all.groups[group].size, log_sums[group], eps);
      if (chain.normalization->zero_for_nan && std::isnan(n.value)) n = {};
    } else if (chain.normalizes()) {
      const auto group = static_cast<size_t>(all.group_of[i]);
      const double inv = chain.normalization->normalize_variance ? e.inv_std_dev[group] : 1.0;
      if (chain.normalization->use_mean) n.value -= e.mean[group];
      n.value *= inv;
      const double size = all.groups[group].size * inv;
      n.error = UsualFormOf(chain).before ? 3 * size : (3 + std::fabs(n.value)) * size;
    }
    n.error += 4 * eps * std::max(std::fabs(n.value), 1.0);
    const Tracked a = walker.Walk(chain.behind, false, index, n);
    e.a.push_back(a.value);
    e.tolerance.push_back(a.error + 4 * 2 * eps * std::max(std::fabs(a.value), accuracy.floor));
    double y_scale = 1;
    double y_zero = 0;
    const Quantization& q = chain.store.quantization;
    if (q.present()) {
      y_scale = QuantizationValue(c.Of(q.scale), q, e.shape, index);
      if (q.zero_point.present()) y_zero = QuantizationValue(c.Of(q.zero_point), q, e.shape, index);
      if (gelu_of_bytes && std::fabs(y_scale) >= 0x1p-7) e.tolerance.back() += 5e-6;
    }
    e.y_scale.push_back(y_scale);
    e.y_zero.push_back(y_zero);
    ++i;
  } while (NextIndex(&index, e.shape));
  return e;
}

bool Overflows(const Case& c) { return Compute(c).overflows; }

std::vector<std::string> AvailableIsas() {
  std::vector<std::string> names;
  for (const char* name : {"avx512", "avx2", "baseline", "neon"}) {
    ForceIsa(name);
    const char* selected = nullptr;
    if (SelectedIsa(&selected).ok()) names.emplace_back(name);
  }
  ForceIsa("");
  return names;
}

void OnEveryIsa(const std::function<void(const std::string& isa)>& test) {
  for (const std::string& isa : AvailableIsas()) {
    ForceIsa(isa);
    test(isa);
  }
  ForceIsa("");
}

namespace {

void SetVariable(const char* name, const char* value) {
#ifdef _WIN32
  _putenv_s(name, value);
#else
  setenv(name, value, 1);
#endif
}

}  // namespace

void ForceIsa(const std::string& name) { SetVariable("NORMFUSE_ISA", name.c_str()); }
void ForcePath(const char* words) { SetVariable("NORMFUSE_PATH", words); }

namespace {

// The representable values nearest to `value` from both sides are at most this far.
double HalfUlp(DataType type, double value) {
  const int digits = type == DataType::kFloat16 ? 11 : type == DataType::kBfloat16 ? 8 : 24;
  const int lowest = type == DataType::kFloat16 ? -25 : -150;
  int exponent = 0;
  std::frexp(value, &exponent);
  return PowerOfTwo(std::max(exponent - digits - 1, lowest));
}

bool FloatMatches(DataType type, double got, double want, double tolerance, const Accuracy& accuracy) {
  if (std::isnan(want)) return std::isnan(got);
  const double largest = type == DataType::kFloat16 ? 65504.0 : std::numeric_limits<float>::max();
  if (std::fabs(want) > largest) return got == want || std::fabs(got) >= largest;
  const double units = type == DataType::kFloat16 ? accuracy.float16_units : 0.505;
  return std::fabs(got - want) <= tolerance + 2 * units * HalfUlp(type, std::fabs(want) + tolerance);
}

bool IntegerMatches(DataType type, double got, double a, double scale, double zero, double tolerance) {
  const int bits = BitsOf(type);
  const double low = IsSigned(type) ? -PowerOfTwo(bits - 1) : 0;
  const double high = IsSigned(type) ? PowerOfTwo(bits - 1) - 1 : PowerOfTwo(bits) - 1;
  if (std::isnan(a / scale)) return got == low;
  const double slack = std::fabs(tolerance / scale) + 4 * kEps * std::fabs(a / scale);
  const auto quantize = [&](double v) { return std::min(std::max(std::nearbyint(v) + zero, low), high); };
  if (std::isinf(a / scale)) return got == quantize(a / scale);  // an infinite slack of it is no bound
  return got >= quantize(a / scale - slack) && got <= quantize(a / scale + slack);
}

bool Float8Matches(DataType type, double got, double a, double scale, double tolerance, bool saturate) {
  const double largest = DecodeElement(type, LargestCode(type));
  const double want = a / scale;
  if (std::isnan(want)) return std::isnan(got);
  if (std::fabs(want) > 1.2 * largest) {
    return saturate ? got == std::copysign(largest, want) : !std::isfinite(got);
  }
  if (!saturate && std::fabs(want) > largest) return true;  // either, as rounding has it
  const double nearest = std::fabs(DecodeElement(type, NearestCode(type, want)) - want);
  return std::fabs(got - want) <= nearest + 2 * (tolerance / std::fabs(scale) + 4 * kEps * std::fabs(want));
}

std::string Text(double value) {
  char text[64];
  std::snprintf(text, sizeof text, "%.9g", value);
  return text;
}

void CompareShape(const Tensor& tensor, const std::vector<int64_t>& shape, const std::string& what) {
  EXPECT(tensor.dims == shape, what);
  // Nothing may have been written behind the end.
  const size_t end = tensor.misalignment * static_cast<size_t>(BitsOf(tensor.type)) / 8 +
                     BytesFor(tensor.type, static_cast<size_t>(tensor.Count()));
  for (size_t i = end; i < tensor.bytes.size(); ++i) {
    if (tensor.bytes[i] != 0xa5) {
      EXPECT(tensor.bytes[i] == 0xa5, what + ": written behind the end");
      return;
    }
  }
}

void CompareY(const Case& c, const Expected& e, const Tensor& y, const std::string& what) {
  const Store store = c.chain().store;
  for (size_t i = 0; i < e.a.size(); ++i) {
    const double got = y.At(static_cast<int64_t>(i));
    bool matches = false;
    if (!store.quantization.present()) {
      matches = FloatMatches(store.type, got, e.a[i], e.tolerance[i], e.accuracy);
    } else if (IsFloat8(store.type)) {
      matches = Float8Matches(store.type, got, e.a[i], e.y_scale[i], e.tolerance[i], store.saturate);
    } else {
      matches = IntegerMatches(store.type, got, e.a[i], e.y_scale[i], e.y_zero[i], e.tolerance[i]);
    }
    if (!matches) {
      EXPECT(matches, what + ": Y[" + std::to_string(i) + "] = " + Text(got) + ", expected " + Text(e.a[i]) + " / " +
                          Text(e.y_scale[i]) + " + " + Text(e.y_zero[i]) + " within " + Text(e.tolerance[i]) +
                          ", d = " + Text(e.d[i]));
      return;
    }
  }
}

// Scale and zero point come from the values, and so do their errors.
void CompareDynamic(const Case& c, const Expected& e, const ArrayContext& context, const std::string& what) {
  const DynamicQuantization dynamic = *c.chain().store.dynamic;
  const Tensor& y = context.output(c.chain().store.output);
  const double scale = context.output(dynamic.scale_output).At(0);
  const double zero = context.output(dynamic.zero_point_output).At(0);
  double low = 0;
  double high = 0;
  double error = 0;
  for (size_t i = 0; i < e.a.size(); ++i) {
    if (std::isnan(e.a[i])) continue;
    low = std::min(low, e.a[i]);
    high = std::max(high, e.a[i]);
    error = std::max(error, std::isfinite(e.tolerance[i]) ? e.tolerance[i] : 0);
  }
  const double range = high - low;
  if (range > 1e38) {
    EXPECT(!(scale < range / 300), what + ": scale of values that overflow");
    return;
  }
  if (range <= 16 * error) return;  // of values that float32 does not tell from 0
  const double slack = 2 * error / range + 8 * kEps;
  EXPECT(std::fabs(scale * 255 / range - 1) <= slack, what + ": scale " + Text(scale) + " of " + Text(range));
  const double want_zero = std::min(-low / (range / 255), 255.0);
  EXPECT(std::fabs(zero - want_zero) <= 0.5 + 255 * 2 * slack, what + ": zero point " + Text(zero));
  for (size_t i = 0; i < e.a.size(); ++i) {
    const double got = y.At(static_cast<int64_t>(i));
    const bool matches = IntegerMatches(DataType::kUint8, got, e.a[i], scale, zero, e.tolerance[i]);
    EXPECT(matches, what + ": Y[" + std::to_string(i) + "] = " + Text(got) + " of " + Text(e.a[i]));
    if (!matches) return;
  }
}

void CompareValues(const Tensor& tensor, const std::vector<double>& want,
                   const std::function<double(size_t)>& tolerance, const Accuracy& accuracy, const std::string& what) {
  for (size_t i = 0; i < want.size(); ++i) {
    const double got = tensor.At(static_cast<int64_t>(i));
    if (!FloatMatches(tensor.type, got, want[i], tolerance(i), accuracy)) {
      EXPECT(false, what + "[" + std::to_string(i) + "] = " + Text(got) + ", expected " + Text(want[i]));
      return;
    }
  }
}

}  // namespace

void RunAndCompare(const Case& c, int threads, const std::string& what) {
  std::unique_ptr<Executable> executable;
  const Result compiled = CompileForCpu(c.chain(), &executable);
  EXPECT(compiled.ok(), what + ": " + compiled.message());
  if (!compiled.ok()) return;
  ArrayContext context(threads);
  c.FillContext(&context);
  const Result result = executable->Run(context);
  EXPECT(result.ok(), what + ": " + result.message());
  if (!result.ok()) return;
  CompareOutputs(c, context, what);
}

void CompareOutputs(const Case& c, const ArrayContext& context, const std::string& what, const Accuracy& accuracy) {
  const Expected e = Compute(c, accuracy);
  const Chain chain = c.chain();
  if (chain.store.output != kNoOutput) {
    CompareShape(context.output(chain.store.output), e.shape, what + ": Y");
    if (chain.store.dynamic) {
      CompareDynamic(c, e, context, what);
    } else {
      CompareY(c, e, context.output(chain.store.output), what);
    }
  }
  if (chain.store.dynamic && chain.store.dynamic->value_output != kNoOutput) {
    const Tensor& value = context.output(chain.store.dynamic->value_output);
    CompareShape(value, e.shape, what + ": value");
    CompareValues(value, e.a, [&](size_t i) { return e.tolerance[i]; }, accuracy, what + ": value");
  }
  ForEachStep(chain, [&](const normfuse::Step& step) {
    if (step.output == kNoOutput) return;
    CompareShape(context.output(step.output), e.shape, what + ": emitted");
    for (const Emitted& emitted : e.emitted) {
      if (emitted.output != step.output) continue;
      CompareValues(
          context.output(step.output), emitted.values, [&](size_t i) { return emitted.tolerance[i]; }, accuracy,
          what + ": emitted");
    }
  });
  if (!chain.normalizes()) return;
  const Normalization& norm = *chain.normalization;
  double largest = 1e-30;
  for (double d : e.d) largest = std::isfinite(d) ? std::max(largest, std::fabs(d)) : largest;
  const double of_d = std::max(6 * accuracy.rounding * largest, 3 * e.error_of_d);
  if (norm.mean_output != kNoOutput) {
    CompareShape(context.output(norm.mean_output), e.stat_shape, what + ": mean");
    CompareValues(context.output(norm.mean_output), e.mean, [&](size_t) { return of_d; }, accuracy, what + ": mean");
  }
  if (norm.inv_std_dev_output != kNoOutput) {
    CompareShape(context.output(norm.inv_std_dev_output), e.stat_shape, what + ": inv_std_dev");
    // An error of d of eps * largest changes the standard deviation by as much.
    const auto tolerance = [&](size_t i) {
      return e.inv_std_dev[i] * (6 * accuracy.rounding + of_d * e.inv_std_dev[i]);
    };
    CompareValues(context.output(norm.inv_std_dev_output), e.inv_std_dev, tolerance, accuracy, what + ": inv_std_dev");
  }
}

}  // namespace normfuse::test
