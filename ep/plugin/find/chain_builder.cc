#include "plugin/find/chain_builder.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "cpu/run/elements.h"
#include "plugin/find/quantization_nodes.h"
#include "plugin/find/tensor_shapes.h"

namespace normfuse::plugin {
namespace {

// A constant of more bytes than this stays an input of the node: ORT keeps it once, instead of once there and once here.
constexpr size_t kLargestCopiedConstant = 256 * 1024;
// Scales, biases and gates behind a normalisation or an activation, each of which an activation may follow.
constexpr int kMostFurtherSteps = 6;

// float8 outputs only: what becomes of values beyond the type's range.
void ReadSaturate(const GraphNode& node, Chain* chain) {
  int64_t saturate = 1;
  node.attributes->GetInt("saturate", &saturate);
  chain->store.saturate = saturate != 0;
}

// A default that is infinite, Clip's, is the type's lowest or largest number in ONNX.
float FiniteIn(DataType type, float number) {
  return std::isinf(number) ? std::copysign(cpu::LargestNumber(type), number) : number;
}

}  // namespace

ChainBuilder::ChainBuilder(GraphView& graph, const std::vector<bool>& taken, const Search& search, int anchor)
    : graph_(graph),
      taken_(taken),
      length_(search.length),
      units_(search.units),
      leaves_to_ort_(search.leaves_to_ort),
      keeps_values_(search.keeps_values),
      anchor_(anchor) {
  AddNode(anchor);
  found_.chain.name = graph.node(anchor).name.empty() ? graph.node(anchor).op_type : graph.node(anchor).name;
}

ChainBuilder::ChainBuilder(GraphView& graph, const std::vector<bool>& taken, const Search& search, int anchor,
                           FoundChain own)
    : graph_(graph), taken_(taken), length_(search.length), anchor_(anchor), found_(std::move(own)) {
  found_.description.clear();
}

std::vector<Step>& ChainBuilder::before() { return found_.chain.before; }

TensorRef ChainBuilder::Ref(int value) {
  TensorRef ref;
  if (value == kNone) return ref;
  const TensorFacts& facts = graph_.Facts(value);
  if (facts.constant &&
      BytesFor(facts.type, static_cast<size_t>(facts.constant->ElementCount())) <= kLargestCopiedConstant) {
    ref.constant = facts.constant;
    return ref;
  }
  const auto position = std::find(found_.inputs.begin(), found_.inputs.end(), value);
  ref.input = static_cast<int>(position - found_.inputs.begin());
  if (position == found_.inputs.end()) found_.inputs.push_back(value);
  return ref;
}

int ChainBuilder::AddOutput(int value) {
  found_.outputs.push_back(value);
  return static_cast<int>(found_.outputs.size()) - 1;
}

int ChainBuilder::SoleConsumer(int value) const {
  const int reader = length_ == ChainLength::kSingleNode ? kNone : graph_.OnlyReader(value);
  return reader == kNone || taken_[static_cast<size_t>(reader)] ? kNone : reader;
}

int ChainBuilder::FreeProducer(int value, std::string_view op_type) const {
  if (value == kNone || length_ == ChainLength::kSingleNode) return kNone;
  const int producer = graph_.value(value).producer;
  if (producer == kNone || taken_[static_cast<size_t>(producer)]) return kNone;
  return graph_.node(producer).op_type == op_type ? producer : kNone;
}

int ChainBuilder::InnerProducer(int value, std::string_view op_type) const {
  const int producer = FreeProducer(value, op_type);
  const bool fits = producer != kNone && graph_.node(producer).domain.empty() && SoleConsumer(value) != kNone;
  return fits ? producer : kNone;
}

std::optional<ChainBuilder::InTurn> ChainBuilder::ReadersInTurn(int value, std::string_view first,
                                                                std::string_view second) const {
  const GraphValue& entry = graph_.value(value);
  if (length_ == ChainLength::kSingleNode || entry.is_output || entry.consumers.size() != 2) return std::nullopt;
  for (size_t position = 0; position < 2; ++position) {
    const InTurn readers{entry.consumers[position], entry.consumers[1 - position]};
    if (readers.first == kNone || readers.second == kNone || readers.first == readers.second) continue;
    if (taken_[static_cast<size_t>(readers.first)] || !graph_.node(readers.first).Is("", first)) continue;
    if (!graph_.node(readers.second).Is("", second)) continue;
    if (SoleConsumer(graph_.Output(graph_.node(readers.first), 0)) == readers.second) return readers;
  }
  return std::nullopt;
}

void ChainBuilder::ReadQuantization(const GraphNode& node, Quantization* quantization) {
  quantization->scale = Ref(graph_.Input(node, 1));
  quantization->zero_point = Ref(graph_.Input(node, 2));
  quantization->axis = 1;
  quantization->block_size = 0;
  node.attributes->GetInt("axis", &quantization->axis);
  node.attributes->GetInt("block_size", &quantization->block_size);
}

bool ChainBuilder::TakeDequantize(int value, Operand* operand) {
  const int producer = FreeProducer(value, "DequantizeLinear");
  if (producer == kNone || !IsDequantize(graph_.node(producer)) || SoleConsumer(value) == kNone) return false;
  const GraphNode& node = graph_.node(producer);
  const int quantized = graph_.Input(node, 0);
  if (IsHalfOfPair(quantized)) return false;
  operand->type = graph_.Facts(quantized).type;
  operand->shape = ShapeOf(graph_.Facts(value));
  operand->tensor = Ref(quantized);
  ReadQuantization(node, &operand->quantization);
  AddNode(producer);
  return true;
}

// The Cast of int32 to float32 that makes a value which nothing else reads; kNone if there is none.
int ChainBuilder::CastOfIntegers(int value) const {
  const int cast = InnerProducer(value, "Cast");
  if (cast == kNone) return kNone;
  const int integers = graph_.Input(graph_.node(cast), 0);
  if (integers == kNone) return kNone;
  const TensorFacts& facts = graph_.Facts(integers);
  const bool fits = facts.type == DataType::kInt32 && graph_.Facts(value).type == DataType::kFloat32 && !facts.constant;
  return fits ? cast : kNone;
}

// Whether the factor can be the scale of a quantised tensor.
bool ChainBuilder::IsScaleOf(const TensorFacts& scale, const TensorFacts& integers) const {
  return scale.type == DataType::kFloat32 && CertainlyFits(scale, integers) &&
         (scale.rank == integers.rank || HasOneElement(scale));
}

// Cast of int32 -> Mul by a scale, as quantisers write it behind a convolution of integers: it is an operand with a scale. Behind a
// MatMulInteger ONNX Runtime makes MatMulIntegerToFloat of it. `mul` joins the chain unless it is the anchor.
bool ChainBuilder::TakeIntegers(int mul, Operand* operand) {
  const GraphNode& node = graph_.node(mul);
  for (size_t position = 0; position < 2; ++position) {
    const int scale = graph_.Input(node, 1 - position);
    const int cast = CastOfIntegers(graph_.Input(node, position));
    if (scale == kNone || cast == kNone) continue;
    const int integers = graph_.Input(graph_.node(cast), 0);
    const int product = graph_.value(integers).producer;
    if (product != kNone && graph_.node(product).Is("", "MatMulInteger")) continue;
    if (!IsScaleOf(graph_.Facts(scale), graph_.Facts(integers))) continue;
    *operand = ReadTensor(integers, "");
    operand->quantization.scale = Ref(scale);
    operand->by_cast = true;
    AddNode(cast);
    if (mul != anchor_) AddNode(mul);
    return true;
  }
  return false;
}

// Cast, or that and a Mul, in front of a node of our own, which may have the Mul as its first step.
bool ChainBuilder::TakeIntegersInFront() {
  Chain& chain = found_.chain;
  if (chain.x.tensor.input == TensorRef::kAbsent || chain.x.quantization.present()) return false;
  const int value = graph_.Input(anchor(), 0);
  const int mul = InnerProducer(value, "Mul");
  Operand x;
  if (!(mul != kNone && TakeIntegers(mul, &x)) && !TakeCastOfFirstProduct(value, &x)) return false;
  x.name = chain.x.name;
  chain.x = std::move(x);
  // The first input was the old X, and nothing else.
  found_.inputs.erase(found_.inputs.begin());
  ForEachTensorRef(chain, [](TensorRef& ref) {
    if (ref.input != TensorRef::kAbsent) --ref.input;
  });
  return true;
}

bool ChainBuilder::TakeCastOfFirstProduct(int value, Operand* x) {
  Chain& chain = found_.chain;
  std::vector<Step>& steps = chain.normalizes() ? chain.before : chain.behind;
  const int cast = CastOfIntegers(value);
  if (cast == kNone || steps.empty() || steps.front().kind != StepKind::kMul) return false;
  const Operand& factor = steps.front().operand;
  if (factor.quantization.present() || factor.align != Align::kTrailing) return false;
  const int integers = graph_.Input(graph_.node(cast), 0);
  const PartialShape shape = KnownShape(factor);
  TensorFacts scale;
  scale.type = factor.type;
  scale.rank = shape.rank;
  std::copy(std::begin(shape.dims), std::end(shape.dims), scale.dims);
  if (!IsScaleOf(scale, graph_.Facts(integers))) return false;
  *x = ReadTensor(integers, "");
  x->quantization.scale = factor.tensor;
  x->by_cast = true;
  steps.erase(steps.begin());
  AddNode(cast);
  return true;
}

bool ChainBuilder::TakeAroundOwnNode() {
  if (length_ != ChainLength::kAny) return false;
  const bool took_integers = TakeIntegersInFront();
  Store& store = found_.chain.store;
  if (store.quantizes() || store.type != DataType::kFloat32) return took_integers;
  // Y, the first of the outputs, may be one no more.
  int value = found_.outputs.front();
  FoundChain before = found_;
  found_.outputs.erase(found_.outputs.begin());
  store.output = kNoOutput;
  ForEachOutput(found_.chain, [](int& output) { --output; });
  if (!TakeDynamicQuantize(&value)) {
    found_ = std::move(before);
    return took_integers;
  }
  store.type = graph_.Facts(value).type;
  store.output = AddOutput(value);
  return true;
}

bool ChainBuilder::ReadAnchorIntegers() {
  if (!anchor().Is("", "Mul") || length_ == ChainLength::kSingleNode) return false;
  Operand x;
  x.name = "X";
  if (!TakeIntegers(anchor_, &x)) return false;
  found_.chain.x = std::move(x);
  reads_integers_ = true;
  return true;
}

Operand ChainBuilder::ReadOperand(int value, const char* name, Align align) {
  Operand operand;
  const int mul = InnerProducer(value, "Mul");
  const bool taken =
      value != kNone && (TakeDequantize(value, &operand) || (mul != kNone && TakeIntegers(mul, &operand)));
  if (value != kNone && !taken) operand = ReadTensor(value, name);
  operand.align = align;
  operand.name = name;
  return operand;
}

Operand ChainBuilder::ReadTensor(int value, const char* name) {
  Operand operand;
  operand.name = name;
  if (value == kNone) return operand;
  operand.tensor = Ref(value);
  operand.type = graph_.Facts(value).type;
  operand.shape = ShapeOf(graph_.Facts(value));
  return operand;
}

void ChainBuilder::ReadX(int value, bool with_residual, bool with_factor) {
  std::optional<Step> mask;
  if (with_factor) mask = TakeMask(&value);
  if (!with_residual || !(TakeResidualAdd(value, with_factor) || TakeRequantizedAdd(value))) {
    if (with_factor) TakeFactor(&value);
    ReadXBehindPairs(value);
  }
  if (mask) before().push_back(*std::move(mask));
}

// Where(mask, x, number) or Where(mask, number, x): scores of an attention, some of which are hidden. On a
// GPU the Where is an operator of its own.
std::optional<Step> ChainBuilder::TakeMask(int* value) {
  const int producer = InnerProducer(*value, "Where");
  if (length_ != ChainLength::kAny || producer == kNone) return std::nullopt;
  const GraphNode& where = graph_.node(producer);
  const int shown = graph_.Input(where, 0);
  const TensorFacts& whole = graph_.Facts(*value);
  const int rank = graph_.Facts(shown).rank;
  if (!IsFloat(whole.type) || rank < 0 || rank > whole.rank) return std::nullopt;
  for (size_t position = 1; position <= 2; ++position) {
    const int x = graph_.Input(where, position);
    float fill = 0;
    if (!ReadScalar(graph_.Input(where, 3 - position), &fill) || graph_.Facts(x).constant) continue;
    if (graph_.Facts(x).rank != whole.rank) continue;
    AddNode(producer);
    *value = x;
    return Mask(ReadTensor(shown, "mask"), /*shows=*/position == 1, fill);
  }
  return std::nullopt;
}

void ChainBuilder::ReadStep(StepKind kind, int value, const char* name, Align align) {
  if (value == kNone) return;
  Operand operand = ReadOperand(value, name, align);
  found_.chain.behind.push_back(kind == StepKind::kAdd ? Add(std::move(operand)) : Mul(std::move(operand)));
}

// x * constant of one element; not of a matrix product, which ORT gives the factor to.
void ChainBuilder::TakeFactor(int* value) {
  const int producer = InnerProducer(*value, "Mul");
  if (producer == kNone) return;
  const GraphNode& mul = graph_.node(producer);
  int x = graph_.Input(mul, 0);
  int factor = graph_.Input(mul, 1);
  if (graph_.Facts(x).constant) std::swap(x, factor);
  const TensorFacts& facts = graph_.Facts(factor);
  if (!facts.constant || facts.constant->ElementCount() != 1 || !IsFloat(facts.type)) return;
  if (!HaveOneShape(graph_.Facts(x), graph_.Facts(*value)) || graph_.Facts(x).rank < 0) return;
  const int source = graph_.value(x).producer;
  if (source != kNone && (graph_.node(source).Is("", "MatMul") || graph_.node(source).Is("", "Gemm"))) return;
  before().push_back(Mul(ReadTensor(factor, "factor")));
  AddNode(producer);
  *value = x;
}

bool ChainBuilder::TakeResidualAdd(int value, bool with_factor) {
  const int producer = FreeProducer(value, "Add");
  if (producer == kNone || !graph_.node(producer).domain.empty()) return false;
  const GraphNode& add = graph_.node(producer);
  int x = graph_.Input(add, 0);
  int residual = graph_.Input(add, 1);
  const TensorFacts sum = graph_.Facts(value);
  // The operand with the shape of the sum is X, if there is one: what is read in whole rows.
  if (!HaveOneShape(graph_.Facts(x), sum)) std::swap(x, residual);
  if (sum.rank < 0 || graph_.Facts(x).rank < 0 || graph_.Facts(residual).rank < 0) return false;
  if (!IsFloat(sum.type)) return false;

  AddNode(producer);
  const bool emits = SoleConsumer(value) == kNone;
  const int output = emits ? AddOutput(value) : kNoOutput;
  exports_inner_value_ |= emits;
  Operand bias = TakeResidualBias(&x);
  if (!bias.present()) bias = TakeResidualBias(&residual);
  if (with_factor && !bias.present()) TakeFactor(&x);
  ReadXBehindPairs(x);
  before().push_back(Add(ReadOperand(residual, "residual")));
  if (bias.present()) before().push_back(Add(std::move(bias)));
  if (emits) before().push_back(Emit(sum.type, output));
  return true;
}

// DequantizeLinear(QuantizeLinear(Add(x, residual))), as quantisers leave it behind an Add. Bytes, and a sum that the next
// residual Add reads too, are faster as a chain in front.
bool ChainBuilder::TakeRequantizedAdd(int value) {
  const int dequantize = FreeProducer(value, "DequantizeLinear");
  if (dequantize == kNone || !IsDequantize(graph_.node(dequantize)) || SoleConsumer(value) == kNone) return false;
  const int quantized = graph_.Input(graph_.node(dequantize), 0);
  const int quantize = FreeProducer(quantized, "QuantizeLinear");
  if (quantize == kNone || !IsQuantize(graph_.node(quantize)) || SoleConsumer(quantized) == kNone) return false;
  const DataType type = graph_.Facts(quantized).type;
  const GraphNode& node = graph_.node(quantize);
  const int sum = graph_.Input(node, 0);
  if (BitsOf(type) <= 8 || SoleConsumer(sum) == kNone || FreeProducer(sum, "Add") == kNone) return false;
  const TensorFacts scale = graph_.Facts(graph_.Input(node, 1));
  if (!scale.constant || scale.constant->ElementCount() != 1) return false;
  if (!HaveSameParameters(graph_, node, graph_.node(dequantize)) || !TakeResidualAdd(sum)) return false;
  AddNode(quantize);
  AddNode(dequantize);
  Quantization quantization;
  quantization.scale = Ref(graph_.Input(node, 1));
  quantization.zero_point = Ref(graph_.Input(node, 2));
  before().push_back(Requantise(std::move(quantization), type, kNoOutput));
  return true;
}

std::optional<ChainBuilder::AddedConstant> ChainBuilder::TakeAddedConstant(int value, int least_rank) {
  const int producer = InnerProducer(value, "Add");
  if (producer == kNone) return std::nullopt;
  for (size_t position = 0; position < 2; ++position) {
    const AddedConstant added{graph_.Input(graph_.node(producer), 1 - position),
                              graph_.Input(graph_.node(producer), position)};
    const TensorFacts& facts = graph_.Facts(added.constant);
    const TensorFacts& x = graph_.Facts(added.x);
    if (!facts.constant || facts.rank < least_rank || facts.rank > 1 || x.constant || x.rank < 0) continue;
    AddNode(producer);
    return added;
  }
  return std::nullopt;
}

// Add(MatMul(...), constant of one dimension): the bias of a linear layer.
Operand ChainBuilder::TakeResidualBias(int* value) {
  const std::optional<AddedConstant> added = TakeAddedConstant(*value, /*least_rank=*/1);
  if (!added) return {};
  *value = added->x;
  return ReadTensor(added->constant, "residual_bias");
}

void ChainBuilder::ReadXWithConstantBias(int value) {
  std::vector<Step>& behind = found_.chain.behind;
  if (const std::optional<AddedConstant> added = TakeAddedConstant(value, /*least_rank=*/0)) {
    behind.insert(behind.begin(), Add(ReadTensor(added->constant, "bias")));
    value = added->x;
  }
  ReadXBehindPairs(value);
}

bool ChainBuilder::ReadScalar(int value, float* scalar) {
  const std::shared_ptr<const ConstantTensor>& constant = graph_.Facts(value).constant;
  if (!constant || constant->ElementCount() != 1) return false;
  if (!IsFloat(constant->type)) return false;
  *scalar = static_cast<float>(cpu::ReadElement(constant->type, constant->data, 0));
  return true;
}

bool ChainBuilder::TakeNanToZero(int* value) {
  const std::optional<InTurn> readers = ReadersInTurn(*value, "IsNaN", "Where");
  if (!readers) return false;
  const GraphNode& where = graph_.node(readers->second);
  if (graph_.Input(where, 0) != graph_.Output(graph_.node(readers->first), 0)) return false;
  const int zero = graph_.Input(where, 1);
  float scalar = 0;
  if (graph_.Input(where, 2) != *value || !ReadScalar(zero, &scalar) || scalar != 0) return false;
  if (!CertainlyFits(graph_.Facts(zero), graph_.Facts(*value))) return false;
  AddNode(readers->first);
  AddNode(readers->second);
  *value = graph_.Output(where, 0);
  return true;
}

bool ChainBuilder::ReadActivationParams(const GraphNode& node, const ActivationSpelling& spelling, Step* step) {
  ActivationCall call;
  const ActivationSpec& spec = kActivations[static_cast<int>(spelling.activation)];
  if (*spelling.when_attribute != '\0') {
    std::string value;
    if (!node.attributes->GetString(spelling.when_attribute, &value) || value != spelling.when_value) return false;
  }
  call.kind = spelling.activation;
  for (int i = 0; i < spec.param_count; ++i) {
    call.params[i] = FiniteIn(graph_.Facts(graph_.Input(node, 0)).type, spelling.defaults[i]);
    if (*spelling.attributes[i] != '\0') node.attributes->GetFloat(spelling.attributes[i], &call.params[i]);
  }
  for (int i = 0; i < spelling.input_param_count; ++i) {
    const int value = graph_.Input(node, static_cast<size_t>(i) + 1);
    if (value != kNone && !ReadScalar(value, &call.params[spelling.input_params[i]])) return false;
  }
  *step = Activate(call, spec.has_slope ? ReadTensor(graph_.Input(node, 1), "slope") : Operand{});
  return true;
}

namespace {

// Calls use(spelling) for each way in which the node may be an activation, until one says yes.
template <typename Use>
bool AnySpelling(const GraphNode& node, Use&& use) {
  for (const ActivationSpelling& spelling : kActivationSpellings) {
    if (node.Is(spelling.domain, spelling.op_type) && node.since_version >= spelling.since &&
        node.since_version <= spelling.until && use(spelling)) {
      return true;
    }
  }
  return false;
}

}  // namespace

// x * Sigmoid(x): two nodes until opset 24.
bool ChainBuilder::TakeSilu(int* value) {
  const std::optional<InTurn> readers = ReadersInTurn(*value, "Sigmoid", "Mul");
  if (!readers) return false;
  AddNode(readers->first);
  AddNode(readers->second);
  found_.chain.behind.push_back(Activate({Activation::kSwish, {1.0f}}));
  *value = graph_.Output(graph_.node(readers->second), 0);
  return true;
}

// The same of a dequantised x, where ORT has made a DequantizeLinear for each of the two nodes.
bool ChainBuilder::TakeSiluOfTwins(int* value) {
  const int sigmoid = SoleConsumer(*value);
  const int dequantize = graph_.value(*value).producer;
  if (length_ == ChainLength::kSingleNode || sigmoid == kNone || dequantize == kNone) return false;
  const int gate = graph_.Output(graph_.node(sigmoid), 0);
  const int mul = SoleConsumer(gate);
  if (mul == kNone || !graph_.node(mul).Is("", "Mul")) return false;
  const int other = graph_.Input(graph_.node(mul), graph_.Input(graph_.node(mul), 0) == gate ? 1 : 0);
  const int twin = FreeProducer(other, "DequantizeLinear");
  if (twin == kNone || SoleConsumer(other) != mul || !AreTwins(graph_, graph_.node(dequantize), graph_.node(twin)))
    return false;
  if (graph_.Facts(*value).type != graph_.Facts(other).type) return false;
  AddNode(sigmoid);
  AddNode(mul);
  AddNode(twin);
  found_.chain.behind.push_back(Activate({Activation::kSwish, {1.0f}}));
  *value = graph_.Output(graph_.node(mul), 0);
  return true;
}

// Whether no formula goes on with what a node behind a normalisation computes: nothing but products read it.
bool ChainBuilder::EndsFormula(const GraphNode& node) const {
  const std::vector<int>& consumers = graph_.value(graph_.Output(node, 0)).consumers;
  return found_.chain.normalizes() && std::all_of(consumers.begin(), consumers.end(), [this](int consumer) {
           if (consumer == kNone) return false;
           const GraphNode& reader = graph_.node(consumer);
           if (IsQuantize(reader) || IsDequantize(reader)) return EndsFormula(reader);
           return reader.Is("", "MatMul") || reader.Is("", "Gemm") || reader.Is("", "Conv");
         });
}

bool ChainBuilder::TakeActivation(int* value) {
  if (TakeSilu(value)) return true;
  const int consumer = SoleConsumer(*value);
  if (consumer == kNone) return false;
  const GraphNode& node = graph_.node(consumer);
  if (graph_.Input(node, 0) != *value) return false;
  Step step;
  const bool found = AnySpelling(node, [&](const ActivationSpelling& spelling) {
    const bool biased = spelling.has_bias && graph_.Input(node, 1) != kNone;
    if (biased || (spelling.is_part && !EndsFormula(node) && !IsBeforePair(node))) return false;
    return ReadActivationParams(node, spelling, &step);
  });
  if (!found) return false;
  found_.chain.behind.push_back(std::move(step));
  AddNode(consumer);
  *value = graph_.Output(node, 0);
  return true;
}

bool ChainBuilder::ReadAnchorActivation(int* x, int* y) {
  const GraphNode& node = anchor();
  *x = graph_.Input(node, 0);
  *y = graph_.Output(node, 0);
  if (*x == kNone || *y == kNone) return false;
  // A Sigmoid whose output is multiplied with its input is SiLU.
  if (node.Is("", "Sigmoid")) {
    found_.nodes.clear();
    if (TakeSilu(x) || TakeSiluOfTwins(x)) {
      *y = *x;
      *x = graph_.Input(node, 0);
      return true;
    }
    found_.nodes.assign(1, anchor_);
  }
  return AnySpelling(node, [&](const ActivationSpelling& spelling) {
    Step step;
    if (spelling.is_part || !ReadActivationParams(node, spelling, &step)) return false;
    const int bias = spelling.has_bias ? graph_.Input(node, 1) : kNone;
    if (bias != kNone) found_.chain.behind.push_back(Add(ReadTensor(bias, "bias")));
    found_.chain.behind.push_back(std::move(step));
    return true;
  });
}

void ChainBuilder::ReadAnchorQuantization(bool dequantize) {
  const GraphNode& node = anchor();
  const int x = graph_.Input(node, 0);
  Chain& chain = found_.chain;
  chain.x = ReadTensor(x, "X");
  ReadQuantization(node, dequantize ? &chain.x.quantization : &chain.store.quantization);
  if (!dequantize) ReadSaturate(node, &chain);
}

bool ChainBuilder::TakeQuantize(int* value) {
  const int consumer = SoleConsumer(*value);
  if (consumer == kNone || !IsQuantize(graph_.node(consumer))) return false;
  const GraphNode& node = graph_.node(consumer);
  if (graph_.Input(node, 0) != *value || IsHalfOfPair(graph_.Output(node, 0))) return false;
  ReadQuantization(node, &found_.chain.store.quantization);
  ReadSaturate(node, &found_.chain);
  AddNode(consumer);
  *value = graph_.Output(node, 0);
  return true;
}

// ONNX Runtime makes one node of a MatMulInteger and the DynamicQuantizeLinear that nothing else reads (DynamicQuantizeMatMul).
bool ChainBuilder::IsLeftToProduct(const GraphNode& quantize) const {
  const std::vector<int>& consumers = graph_.value(graph_.Output(quantize, 0)).consumers;
  return consumers.size() == 1 && (consumers[0] == kNone || graph_.node(consumers[0]).Is("", "MatMulInteger"));
}

bool ChainBuilder::TakeDynamicQuantize(int* value) {
  if (length_ == ChainLength::kSingleNode || graph_.Facts(*value).type != DataType::kFloat32) return false;
  const GraphValue& entry = graph_.value(*value);
  const auto is_free = [this](int node) {
    return node != kNone && !taken_[static_cast<size_t>(node)] && graph_.node(node).Is("", "DynamicQuantizeLinear");
  };
  const auto consumer = std::find_if(entry.consumers.begin(), entry.consumers.end(), is_free);
  if (consumer == entry.consumers.end()) return false;
  const GraphNode& node = graph_.node(*consumer);
  const int bytes = graph_.Output(node, 0);
  if (bytes == kNone || !graph_.IsUsed(bytes) || IsLeftToProduct(node)) return false;
  DynamicQuantization dynamic;
  if (entry.is_output || entry.consumers.size() > 1) {
    const bool exported = std::exchange(exports_inner_value_, true);
    if (!OutputsAreSafe()) {
      exports_inner_value_ = exported;
      return false;
    }
    dynamic.value_output = AddOutput(*value);
  }
  const auto output = [&](size_t position) {
    const int made = graph_.Output(node, position);
    return made != kNone && graph_.IsUsed(made) ? AddOutput(made) : kNoOutput;
  };
  dynamic.scale_output = output(1);
  dynamic.zero_point_output = output(2);
  found_.chain.store.dynamic = dynamic;
  AddNode(*consumer);
  *value = bytes;
  return true;
}

bool ChainBuilder::IsX(int value) const {
  const Operand& x = found_.chain.x;
  return x.tensor.input != TensorRef::kAbsent && !x.quantization.present() &&
         found_.inputs[static_cast<size_t>(x.tensor.input)] == value;
}

// A residual connection, which the next normalisation takes, but around an activation (Snake); or a factor that ORT makes part
// of a matrix product.
bool ChainBuilder::BelongsElsewhere(const GraphNode& node, int operand, const TensorFacts& whole) {
  const TensorFacts& facts = graph_.Facts(operand);
  if (!found_.chain.normalizes() && IsX(operand)) return false;
  if (node.op_type == "Add") return facts.constant == nullptr && HaveOneShape(facts, whole);
  const std::vector<int>& consumers = graph_.value(graph_.Output(node, 0)).consumers;
  const auto is_product = [this](int consumer) { return consumer != kNone && graph_.node(consumer).Is("", "MatMul"); };
  return facts.constant != nullptr && facts.constant->ElementCount() == 1 && !consumers.empty() &&
         std::all_of(consumers.begin(), consumers.end(), is_product);
}

// x * Sigmoid(x) where x has more readers than the two: within the fused node it has not, and would be found as SiLU.
bool ChainBuilder::IsGateOfX(int operand) const {
  if (!anchor().Is("", "Sigmoid")) return false;
  const int x = graph_.Input(anchor(), 0);
  const int producer = graph_.value(x).producer;
  const int other = graph_.value(operand).producer;
  return operand == x ||
         (producer != kNone && other != kNone && AreTwins(graph_, graph_.node(producer), graph_.node(other)));
}

bool ChainBuilder::TakeStep(int* value) {
  const int consumer = SoleConsumer(*value);
  // Behind a mere DequantizeLinear, ORT may have a quantised kernel for it.
  const bool computes = found_.chain.normalizes() || reads_integers_ || !found_.chain.behind.empty();
  if (consumer == kNone || !computes) return false;
  const GraphNode& node = graph_.node(consumer);
  const std::optional<StepKind> kind = CombinationOf(node);
  if (!kind) return false;
  const int operand = graph_.Input(node, graph_.Input(node, 0) == *value ? 1 : 0);
  if (operand == kNone || operand == *value) return false;
  if (*kind == StepKind::kDiv && graph_.Input(node, 0) != *value) return false;
  TensorFacts whole = graph_.Facts(*value);
  if (whole.rank < 0) {  // of MeanVarianceNormalization, whose shape ORT does not infer
    const PartialShape d = KnownShapeOfD(found_.chain);
    whole.rank = d.rank;
    if (d.rank <= kMaxRank) std::copy_n(d.dims, std::max(d.rank, 0), whole.dims);
  }
  const TensorFacts& facts = graph_.Facts(operand);
  if (!IsFloat(facts.type) || facts.type != whole.type) return false;
  const bool quantised = IsAmongQuantised(node, operand);
  if (!(quantised ? MayFit(facts, whole) : CertainlyFits(facts, whole))) return false;
  if (!quantised && (BelongsElsewhere(node, operand, whole) || IsGateOfX(operand))) return false;
  // It must not be made from what leaves the chain earlier: see OutputsAreSafe.
  const bool exports =
      exports_inner_value_ || (found_.chain.normalization && found_.chain.normalization->has_statistics());
  if (exports && graph_.value(operand).producer != kNone) return false;
  Operand read = quantised ? ReadQuantisedOperand(operand) : ReadTensor(operand, "operand");
  found_.chain.behind.push_back(Combine(*kind, std::move(read)));
  AddNode(consumer);
  *value = graph_.Output(node, 0);
  return true;
}

void ChainBuilder::Finish(int value) {
  const std::vector<Step>& behind = found_.chain.behind;
  for (int steps = 0;; ++steps) {
    TakePairs(&value);
    const bool activates = !behind.empty() && behind.back().kind == StepKind::kActivate && !EndsInPair(behind);
    if (!activates && TakeActivation(&value)) TakePairs(&value);
    if (steps == kMostFurtherSteps || found_.chain.store.quantization.present() || !TakeStep(&value)) break;
  }
  TakeSharedQuantize();
  Store& store = found_.chain.store;
  if (!store.quantization.present() && !TakeQuantize(&value)) TakeDynamicQuantize(&value);
  store.type = graph_.Facts(value).type;
  store.output = AddOutput(value);
  y_value_ = value;
}

// A value that leaves the chain before its end may come back into it through other nodes: then the group would not be
// convex and ORT would drop every claim. Excluded by asking that what enters is made by no node, or only feeds X.
bool ChainBuilder::OutputsAreSafe() {
  const Chain& chain = found_.chain;
  // A node has no value that leaves it early, and what joins one of ours reads nothing but its result.
  if (anchor().domain == kOperatorDomain) return true;
  if (!exports_inner_value_ && !(chain.normalization && chain.normalization->has_statistics())) return true;
  std::vector<bool> early(found_.inputs.size(), false);
  const auto is_early = [&](const Operand& operand) {
    for (const TensorRef* ref : {&operand.tensor, &operand.quantization.scale, &operand.quantization.zero_point}) {
      if (ref->input != TensorRef::kAbsent) early[static_cast<size_t>(ref->input)] = true;
    }
  };
  is_early(chain.x);
  for (const Step& step : chain.before) is_early(step.operand);
  for (size_t i = 0; i < found_.inputs.size(); ++i) {
    if (!early[i] && graph_.value(found_.inputs[i]).producer != kNone) return false;
  }
  return true;
}

std::optional<Declined> ChainBuilder::CheckTypes() {
  const Chain& chain = found_.chain;
  const auto unsupported = [&](const std::string& what, DataType type) {
    return Decline(Reason::kUnsupportedType,
                   {{"tensor", what + " of " + chain.name}, {"type", NameOf(type)}, {"what", "normfuse"}});
  };
  if (chain.x.type == DataType::kUndefined || chain.x.shape.rank < 0) {
    return Decline(Reason::kUnknownTypeOrRank, {{"tensor", "X of " + chain.name}});
  }
  std::optional<Declined> declined;
  const auto check = [&](const Operand& operand) {
    const bool fits = operand.quantization.present() ? IsQuantized(operand.type) : IsFloat(operand.type);
    if (!fits && !declined) declined = unsupported(operand.name, operand.type);
  };
  check(chain.x);
  ForEachStep(chain, [&](const Step& step) {
    if (step.operand.present() && step.kind != StepKind::kMask) check(step.operand);
  });
  if (declined) return declined;
  const Store& store = chain.store;
  const bool y_fits = store.quantizes() ? IsQuantized(store.type) : IsFloat(store.type);
  if (!y_fits) return unsupported("Y", store.type);
  return std::nullopt;
}

void ChainBuilder::Describe() {
  std::sort(found_.nodes.begin(), found_.nodes.end());
  for (int node : found_.nodes) {
    if (!found_.description.empty()) found_.description += " -> ";
    found_.description += graph_.node(node).op_type;
  }
}

std::optional<Declined> ChainBuilder::Take(FoundChain* found) {
  if (std::optional<Declined> declined = CheckTypes()) return declined;
  if (!OutputsAreSafe()) return Decline(Reason::kNotConnected, {{"node", found_.chain.name}});
  const Result valid = Validate(found_.chain);
  if (!valid.ok()) {
    return Decline(Reason::kInvalidConfiguration, {{"node", found_.chain.name}, {"detail", valid.message()}});
  }
  Describe();
  *found = std::move(found_);
  return std::nullopt;
}

}  // namespace normfuse::plugin
