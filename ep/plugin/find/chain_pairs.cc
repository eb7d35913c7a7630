// The part of ChainBuilder that is about pairs: a QuantizeLinear and the DequantizeLinear of the same parameters behind it
// become one step, FakeQuantize, and a Clip of the integers between the two a Clip of what they stand for. What stands between
// pairs (Add, Mul, Div of tensors that are dequantised on their way, and activations) becomes the steps of one chain.
#include <algorithm>
#include <iterator>
#include <utility>

#include "cpu/plan/cost_model.h"
#include "plugin/find/chain_builder.h"
#include "plugin/find/quantization_nodes.h"
#include "plugin/find/tensor_shapes.h"

namespace normfuse::plugin {
namespace {

// Of ORT, which makes a matrix product with a factor (FusedMatMul) of a product by one number and the MatMul behind it.
bool IsFactorOfProduct(GraphView& graph, const GraphNode& node, int operand) {
  const TensorFacts& facts = graph.Facts(operand);
  if (!node.Is("", "Mul") || facts.constant == nullptr || facts.constant->ElementCount() != 1) return false;
  const std::vector<int>& consumers = graph.value(graph.Output(node, 0)).consumers;
  return std::any_of(consumers.begin(), consumers.end(),
                     [&graph](int consumer) { return consumer != kNone && graph.node(consumer).Is("", "MatMul"); });
}

}  // namespace

std::optional<StepKind> CombinationOf(const GraphNode& node) {
  if (node.Is("", "Add")) return StepKind::kAdd;
  if (node.Is("", "Mul")) return StepKind::kMul;
  if (node.Is("", "Div")) return StepKind::kDiv;
  return std::nullopt;
}

bool EndsInPair(const std::vector<Step>& steps) {
  const auto is_pair = [](const Step& step) { return step.kind == StepKind::kFakeQuantize; };
  const auto is_clip = [](const Step& step) {
    return step.kind == StepKind::kActivate && step.activation.kind == Activation::kClip;
  };
  if (steps.empty()) return false;
  return is_pair(steps.back()) || (steps.size() > 1 && is_clip(steps.back()) && is_pair(*(steps.end() - 2)));
}

// Whether a product stays in integers only where both ends of the pair around the value are left to ORT.
bool ChainBuilder::IsHalfOfPair(int value) {
  return leaves_to_ort_ && units_ != nullptr && units_->NeedsBothEnds(value);
}

// Whether both nodes are free and make one step. Between 16-bit floats the two nodes round more often than the step.
bool ChainBuilder::IsPair(int quantize, int dequantize) {
  if (units_ == nullptr || units_->IsOfProduct(quantize) || units_->IsOfProduct(dequantize)) return false;
  const GraphNode& q = graph_.node(quantize);
  const GraphNode& dq = graph_.node(dequantize);
  if (!IsQuantize(q) || !IsDequantize(dq) || graph_.Input(q, 0) == kNone) return false;
  if (!HaveSameParameters(graph_, q, dq)) return false;
  const int scale = graph_.Input(q, 1);
  const TensorFacts& x = graph_.Facts(graph_.Input(q, 0));
  if (x.type != DataType::kFloat32 || graph_.Facts(graph_.Output(dq, 0)).type != x.type) return false;
  if (scale == kNone || graph_.Facts(scale).type != x.type) return false;
  // What is quantised along an axis has the shape that leaves the chain: see FakeQuantize in ep/spec/operators.toml.
  return graph_.Facts(scale).rank == 0 || HasOneElement(graph_.Facts(scale)) || x.rank >= 0;
}

// The pair that a QuantizeLinear begins, as far as nothing else reads what is inside of it.
std::optional<QuantizedPair> ChainBuilder::PairFrom(int quantize) {
  QuantizedPair pair;
  pair.quantize = quantize;
  int quantized = graph_.Output(graph_.node(quantize), 0);
  int reader = quantized == kNone ? kNone : SoleConsumer(quantized);
  if (reader != kNone && graph_.node(reader).Is("", "Clip") && graph_.Input(graph_.node(reader), 0) == quantized) {
    pair.clip = reader;
    quantized = graph_.Output(graph_.node(reader), 0);
    reader = quantized == kNone ? kNone : SoleConsumer(quantized);
  }
  if (reader == kNone || graph_.Input(graph_.node(reader), 0) != quantized || !IsPair(quantize, reader)) {
    return std::nullopt;
  }
  pair.dequantize = reader;
  return ReadBounds(&pair) ? std::optional(pair) : std::nullopt;
}

// What the Clip of a pair keeps d within; false: it is no Clip of d.
bool ChainBuilder::ReadBounds(QuantizedPair* pair) {
  if (pair->clip == kNone) return true;
  const std::optional<FloatRange> range =
      DequantizedBounds(graph_, graph_.node(pair->quantize), graph_.node(pair->clip));
  if (range) pair->range = *range;
  return range.has_value();
}

// FakeQuantize, and what the Clip is behind it: dequantised numbers are in the order of the integers.
std::vector<Step> ChainBuilder::StepsOfPair(const QuantizedPair& pair) {
  const GraphNode& node = graph_.node(pair.quantize);
  Quantization quantization;
  ReadQuantization(node, &quantization);
  int64_t saturate = 1;
  node.attributes->GetInt("saturate", &saturate);
  for (const int each : {pair.quantize, pair.clip, pair.dequantize}) {
    if (each != kNone) AddNode(each);
  }
  std::vector<Step> steps;
  steps.push_back(FakeQuantise(std::move(quantization), graph_.Facts(graph_.Output(node, 0)).type, saturate != 0));
  if (pair.clip != kNone) steps.push_back(Activate({Activation::kClip, {pair.range.low, pair.range.high}}));
  return steps;
}

// The pair that is all that reads the value.
std::optional<QuantizedPair> ChainBuilder::PairBehind(int value) {
  if (units_ == nullptr || value == kNone) return std::nullopt;
  const int quantize = SoleConsumer(value);
  if (quantize == kNone || graph_.Input(graph_.node(quantize), 0) != value) return std::nullopt;
  return PairFrom(quantize);
}

// The pair that makes the value, which nothing but the chain reads.
std::optional<QuantizedPair> ChainBuilder::PairInFront(int value) {
  if (units_ == nullptr) return std::nullopt;
  const int dequantize = FreeProducer(value, "DequantizeLinear");
  if (dequantize == kNone || SoleConsumer(value) == kNone) return std::nullopt;
  int quantized = graph_.Input(graph_.node(dequantize), 0);
  const int clip = FreeProducer(quantized, "Clip");
  if (clip != kNone) quantized = graph_.Input(graph_.node(clip), 0);
  const int quantize = FreeProducer(quantized, "QuantizeLinear");
  if (quantize == kNone) return std::nullopt;
  std::optional<QuantizedPair> pair = PairFrom(quantize);
  return pair && pair->dequantize == dequantize ? pair : std::nullopt;
}

// The QuantizeLinear in front of X, all of whose readers are in the chain: the DequantizeLinear of X, and one that a later
// step, or SiLU, reads. The chain begins with a pair, whose result that step reads again.
void ChainBuilder::TakeSharedQuantize() {
  Chain& chain = found_.chain;
  const int input = chain.x.tensor.input;
  if (units_ == nullptr || !keeps_values_ || chain.normalizes() || input == TensorRef::kAbsent) return;
  if (!chain.x.quantization.present() || !IsOneNumber(chain.x.quantization)) return;
  const int quantized = found_.inputs[static_cast<size_t>(input)];
  const std::optional<QuantizedPair> pair = SharedPair(quantized);
  if (!pair || IsHalfOfPair(quantized)) return;
  const int x = graph_.Input(graph_.node(pair->quantize), 0);
  const bool is_read = std::find(found_.inputs.begin(), found_.inputs.end(), x) != found_.inputs.end();
  if (is_read || x == kNone || graph_.Facts(x).constant != nullptr) return;
  std::vector<Step*> again;
  for (Step& step : chain.behind) {
    if (step.operand.tensor.input == input) again.push_back(&step);
  }
  if (again.size() > 1 || (again.size() == 1 && !IsCombination(again.front()->kind))) return;
  if (!again.empty()) {
    if (pair->clip != kNone) return;  // a FakeQuantize alone keeps its result
    again.front()->operand = {};
    again.front()->operand.is_kept = true;
  }
  std::vector<Step> steps = StepsOfPair(*pair);
  found_.nodes.pop_back();  // the DequantizeLinear, which is there already
  steps.front().keeps = !again.empty();
  chain.behind.insert(chain.behind.begin(), std::make_move_iterator(steps.begin()),
                      std::make_move_iterator(steps.end()));
  found_.inputs[static_cast<size_t>(input)] = x;
  chain.x.type = graph_.Facts(x).type;
  chain.x.quantization = {};
}

// The pair that makes the integers, which nothing but the chain's DequantizeLinear nodes of the same parameters reads.
std::optional<QuantizedPair> ChainBuilder::SharedPair(int quantized) {
  QuantizedPair pair;
  pair.clip = FreeProducer(quantized, "Clip");
  const int whole = pair.clip == kNone ? quantized : graph_.Input(graph_.node(pair.clip), 0);
  pair.quantize = FreeProducer(whole, "QuantizeLinear");
  if (pair.quantize == kNone) return std::nullopt;
  if (pair.clip != kNone && (SoleConsumer(whole) != pair.clip || !graph_.node(pair.clip).domain.empty())) {
    return std::nullopt;
  }
  const GraphValue& value = graph_.value(quantized);
  const std::vector<int>& nodes = found_.nodes;
  const bool reads_all = !value.is_output && !value.consumers.empty() &&
                         std::all_of(value.consumers.begin(), value.consumers.end(), [&](int reader) {
                           return reader != kNone && std::find(nodes.begin(), nodes.end(), reader) != nodes.end() &&
                                  IsPair(pair.quantize, reader);
                         });
  if (!reads_all) return std::nullopt;
  pair.dequantize = value.consumers.front();
  return ReadBounds(&pair) ? std::optional(pair) : std::nullopt;
}

// Whether a pair is better a step than an end, or two, of chains with bytes at it: a normalisation has kernels for these. Of short
// rows between pairs, ORT's softmax is as fast; over another dimension than the last it transposes.
bool ChainBuilder::SuitsPair(const QuantizedPair& pair) const {
  if (!found_.chain.normalizes()) return true;
  const TensorFacts& facts = graph_.Facts(graph_.Output(graph_.node(pair.quantize), 0));
  if (BitsOf(facts.type) <= 8 && pair.clip == kNone) return false;
  return !found_.chain.has_softmax() || HasLongRows(facts) || !cpu::IsOverLast(*found_.chain.normalization, facts.rank);
}

bool ChainBuilder::HasRoomFor(int tensors) const { return StepTensors(found_.chain) + tensors <= kMostStepTensors; }

void ChainBuilder::TakePairs(int* value) {
  if (found_.chain.store.quantization.present()) return;
  for (std::optional<QuantizedPair> pair = PairBehind(*value); pair; pair = PairBehind(*value)) {
    if (!HasRoomFor(kTensorsOfQuantized - 1) || !SuitsPair(*pair)) return;
    for (Step& step : StepsOfPair(*pair)) found_.chain.behind.push_back(std::move(step));
    *value = graph_.Output(graph_.node(pair->dequantize), 0);
  }
}

void ChainBuilder::ReadXBehindPairs(int value) {
  const bool normalizes = found_.chain.normalizes();
  std::vector<Step>& first = normalizes ? found_.chain.before : found_.chain.behind;
  for (std::optional<QuantizedPair> pair = PairInFront(value); pair; pair = PairInFront(value)) {
    if (!HasRoomFor(kTensorsOfQuantized - 1) || !SuitsPair(*pair)) break;
    if (normalizes && pair->clip != kNone) break;  // activations stand behind
    std::vector<Step> steps = StepsOfPair(*pair);
    first.insert(first.begin(), std::make_move_iterator(steps.begin()), std::make_move_iterator(steps.end()));
    value = graph_.Input(graph_.node(pair->quantize), 0);
  }
  found_.chain.x = ReadOperand(value, "X");
}

bool ChainBuilder::IsFreeDequantized(int value) const {
  const int producer = FreeProducer(value, "DequantizeLinear");
  return producer != kNone && IsDequantize(graph_.node(producer)) && SoleConsumer(value) != kNone;
}

// Whether a step of a chain without a normalisation stands among quantised tensors: behind or before a pair, or with an
// operand that is one.
bool ChainBuilder::IsAmongQuantised(const GraphNode& step, int operand) {
  if (units_ == nullptr || found_.chain.normalizes()) return false;
  if (EndsInPair(found_.chain.behind)) return !IsFactorOfProduct(graph_, step, operand);
  return IsFreeDequantized(operand) || PairBehind(graph_.Output(step, 0));
}

// Whether a pair stands behind a node that a chain goes on with: no formula of ORT's goes on there.
bool ChainBuilder::IsBeforePair(const GraphNode& node) {
  return !found_.chain.normalizes() && PairBehind(graph_.Output(node, 0));
}

Operand ChainBuilder::ReadQuantisedOperand(int value) {
  return HasRoomFor(kTensorsOfQuantized) ? ReadOperand(value, "operand") : ReadTensor(value, "operand");
}

bool ChainBuilder::ReadAnchorStep(int* y) {
  const GraphNode& node = anchor();
  const std::optional<StepKind> kind = CombinationOf(node);
  *y = graph_.Output(node, 0);
  if (units_ == nullptr || !kind || *y == kNone || node.inputs.size() != 2) return false;
  const int quantize = SoleConsumer(*y);
  const bool quantises =
      PairBehind(*y) || (quantize != kNone && IsQuantize(graph_.node(quantize)) && !units_->IsOfProduct(quantize));
  // The chain begins with the tensor that is a pair's, as a residual Add's convolution: the other one is read as it is.
  const bool second_is_pair = PairInFront(graph_.Input(node, 1)) && !PairInFront(graph_.Input(node, 0));
  for (const size_t place : {size_t{0}, size_t{1}}) {
    const size_t position = second_is_pair ? 1 - place : place;
    const int x = graph_.Input(node, position);
    const int operand = graph_.Input(node, 1 - position);
    if (x == kNone || operand == kNone || x == operand || (position == 1 && *kind == StepKind::kDiv)) continue;
    const TensorFacts& facts = graph_.Facts(x);
    if (facts.type != DataType::kFloat32 || graph_.Facts(operand).type != facts.type || facts.constant) continue;
    if (!MayFit(graph_.Facts(operand), facts) || IsFactorOfProduct(graph_, node, operand)) continue;
    if (!quantises && !IsFreeDequantized(x) && !IsFreeDequantized(operand)) continue;
    ReadXBehindPairs(x);
    found_.chain.behind.push_back(Combine(*kind, ReadQuantisedOperand(operand)));
    return found_.chain.x.tensor.constant == nullptr;
  }
  return false;
}

bool ChainBuilder::ReadAnchorPair(int* y) {
  const int x = graph_.Input(anchor(), 0);
  if (x == kNone || units_ == nullptr) return false;
  const std::optional<QuantizedPair> pair = PairFrom(anchor_);
  if (!pair) return false;
  found_.nodes.clear();
  found_.chain.x = ReadOperand(x, "X");
  for (Step& step : StepsOfPair(*pair)) found_.chain.behind.push_back(std::move(step));
  *y = graph_.Output(graph_.node(pair->dequantize), 0);
  return true;
}

}  // namespace normfuse::plugin
