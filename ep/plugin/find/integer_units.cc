#include "plugin/find/integer_units.h"

#include <algorithm>
#include <string_view>

#include "plugin/find/quantization_nodes.h"
#include "spec/tables.h"

namespace normfuse::plugin {
namespace {

// On x86 ORT's kernels of products take uint8, on Arm int8 as well.
#if defined(__x86_64__) || defined(_M_X64)
constexpr bool kTakesInt8 = false;
#else
constexpr bool kTakesInt8 = true;
#endif

bool IsByte(DataType type) { return type == DataType::kInt8 || type == DataType::kUint8; }

bool Is16Bit(DataType type) { return type == DataType::kInt16 || type == DataType::kUint16; }

// Integers of 8 bits, or also of 16.
bool IsTaken(DataType type, bool allows_16_bits) { return IsByte(type) || (allows_16_bits && Is16Bit(type)); }

}  // namespace

// What stands around an operator.
struct IntegerUnits::Surroundings {
  std::vector<int> dequantizers;  // in the order of the inputs; only those that nothing else reads
  int clip = kNone;               // a Relu or Clip between the operator and its QuantizeLinear
  std::vector<int> quantizers;    // one for each output
  bool reads_only_quantized = true;
  bool writes_only_quantized = true;
};

IntegerUnits::IntegerUnits(GraphView& graph)
    : graph_(graph),
      takes_int8_(true),
      shifts_int8_(false),
      units_(graph.nodes().size(), IntegerUnit::kNone),
      clips_product_(graph.nodes().size(), false) {}

IntegerUnits::IntegerUnits(GraphView& graph, bool int8_stays) : IntegerUnits(graph) {
  takes_int8_ = kTakesInt8 || int8_stays;
  shifts_int8_ = !takes_int8_;
  const bool quantises = std::any_of(graph.nodes().begin(), graph.nodes().end(), IsDequantize);
  if (!quantises) return;
  for (const GraphNode& node : graph.nodes()) Mark(node);
}

void IntegerUnits::Mark(const GraphNode& node) {
  if (!node.IsOneOf(kQuantizedKernels)) return;
  const Surroundings around = Around(node);
  const IntegerUnit unit = UnitAround(around, node);
  if (unit == IntegerUnit::kNone) return MarkWeights(node, around);
  const auto mark = [&](int index) { units_[static_cast<size_t>(index)] = unit; };
  std::for_each(around.dequantizers.begin(), around.dequantizers.end(), mark);
  std::for_each(around.quantizers.begin(), around.quantizers.end(), mark);
  if (around.clip == kNone) return;
  if (!around.quantizers.empty()) mark(around.clip);
  clips_product_[static_cast<size_t>(around.clip)] = unit == IntegerUnit::kProduct;
}

// ORT makes a MatMulNBits of a product and the DequantizeLinear of its weights, where that of the other factor is gone.
void IntegerUnits::MarkWeights(const GraphNode& node, const Surroundings& around) {
  if (!node.Is("", "MatMul") && !node.Is("", "Gemm")) return;
  const GraphNode* dequantize = graph_.ProducerOf(graph_.Input(node, 1));
  if (dequantize == nullptr || !IsDequantize(*dequantize) || graph_.Input(*dequantize, 0) == kNone) return;
  const TensorFacts& weights = graph_.Facts(graph_.Input(*dequantize, 0));
  if (weights.constant == nullptr || weights.rank != 2 || BitsOf(weights.type) > 8) return;
  if (around.clip != kNone) clips_product_[static_cast<size_t>(around.clip)] = true;
  // Its products round the other factor to 8 bits: that one keeps its DequantizeLinear, and ORT its kernel.
  for (const size_t position : {size_t{0}, size_t{1}}) {
    const int producer = graph_.value(graph_.Input(node, position)).producer;
    if (producer != kNone && IsDequantize(graph_.node(producer))) {
      units_[static_cast<size_t>(producer)] = IntegerUnit::kProduct;
    }
  }
}

IntegerUnits::Surroundings IntegerUnits::Around(const GraphNode& node) const {
  Surroundings around;
  for (const int value : node.inputs) {
    if (value == kNone) continue;
    const int producer = graph_.value(value).producer;
    const bool fits = producer != kNone && IsDequantize(graph_.node(producer)) && graph_.OnlyReader(value) != kNone;
    if (fits) around.dequantizers.push_back(producer);
    around.reads_only_quantized = around.reads_only_quantized && fits;
  }
  for (int value : node.outputs) {
    if (value == kNone) continue;
    int reader = graph_.OnlyReader(value);
    const bool clips = reader != kNone && (graph_.node(reader).Is("", "Relu") || graph_.node(reader).Is("", "Clip"));
    if (clips) {
      around.clip = reader;
      reader = graph_.OnlyReader(graph_.Output(graph_.node(reader), 0));
    }
    const bool fits = reader != kNone && IsQuantize(graph_.node(reader));
    if (fits) around.quantizers.push_back(reader);
    around.writes_only_quantized = around.writes_only_quantized && fits;
  }
  return around;
}

// The element type of integers as ORT sees it when it looks for units: those of int8 between a QuantizeLinear and its one
// DequantizeLinear have become uint8 where the kernels want that (QDQS8ToU8Transformer).
DataType IntegerUnits::TypeOf(int value) {
  const DataType type = graph_.Facts(value).type;
  if (type != DataType::kInt8 || !shifts_int8_ || !IsInPair(graph_, value)) return type;
  for (const int node : {graph_.value(value).producer, graph_.OnlyReader(value)}) {
    if (graph_.node(node).domain == kOperatorDomain) continue;
    const int zero_point = graph_.Input(graph_.node(node), 2);
    const std::shared_ptr<const ConstantTensor> zero =
        zero_point == kNone ? nullptr : graph_.Facts(zero_point).constant;
    if (zero == nullptr || zero->ElementCount() != 1) return type;
  }
  return DataType::kUint8;
}

bool IntegerUnits::NeedsBothEnds(int value) {
  if (value == kNone || TypeOf(value) == graph_.Facts(value).type) return false;
  const GraphValue& entry = graph_.value(value);
  return IsOfProduct(entry.producer) || IsOfProduct(entry.consumers.front());
}

DataType IntegerUnits::InputType(const Surroundings& around, size_t position) {
  return TypeOf(graph_.Input(graph_.node(around.dequantizers[position]), 0));
}

DataType IntegerUnits::OutputType(const Surroundings& around) {
  return TypeOf(graph_.Output(graph_.node(around.quantizers.front()), 0));
}

bool IntegerUnits::HasBias(const Surroundings& around, const GraphNode& node) {
  return graph_.Input(node, 2) == kNone || InputType(around, 2) == DataType::kInt32;
}

bool IntegerUnits::IsConv(const Surroundings& around, const GraphNode& node) {
  if (!around.reads_only_quantized || !around.writes_only_quantized || around.dequantizers.size() < 2) return false;
  const DataType x = InputType(around, 0), weights = InputType(around, 1);
  if (!IsByte(x) || !IsByte(weights) || x != OutputType(around)) return false;
  if (x == DataType::kInt8 && (!takes_int8_ || weights != x)) return false;
  return HasBias(around, node);
}

bool IntegerUnits::IsMatMul(const Surroundings& around) {
  if (!around.reads_only_quantized || around.dequantizers.size() != 2) return false;
  const DataType a = InputType(around, 0), b = InputType(around, 1);
  if (!IsByte(a) || !IsByte(b) || (a == DataType::kInt8 && (!takes_int8_ || b != a))) return false;
  return around.quantizers.empty() || (around.writes_only_quantized && a == OutputType(around));
}

bool IntegerUnits::IsGemm(const Surroundings& around, const GraphNode& node) {
  if (!around.reads_only_quantized || around.dequantizers.size() < 2) return false;
  const DataType a = InputType(around, 0), b = InputType(around, 1);
  if (!IsByte(a) || !IsByte(b) || (a == DataType::kInt8 && b != a)) return false;
  if (!around.quantizers.empty() && a != OutputType(around)) return false;
  return HasBias(around, node);
}

// Whether all that is quantised around it has one type.
bool IntegerUnits::IsOfOneType(const Surroundings& around, size_t inputs, bool allows_16_bits) {
  if (around.dequantizers.size() != inputs || inputs == 0 || around.quantizers.empty()) return false;
  if (!around.writes_only_quantized) return false;
  const DataType type = OutputType(around);
  bool alike = IsTaken(type, allows_16_bits);
  for (size_t i = 0; i < inputs; ++i) alike = alike && InputType(around, i) == type;
  return alike;
}

// What picks or moves elements does so with integers where they stand for the same numbers before and behind.
bool IntegerUnits::IsMove(const Surroundings& around, bool allows_16_bits) {
  if (!IsOfOneType(around, 1, allows_16_bits)) return false;
  const GraphNode& dequantize = graph_.node(around.dequantizers.front());
  return std::all_of(around.quantizers.begin(), around.quantizers.end(),
                     [&](int quantize) { return HaveSameParameters(graph_, graph_.node(quantize), dequantize); });
}

IntegerUnit IntegerUnits::UnitAround(const Surroundings& around, const GraphNode& node) {
  static constexpr std::string_view kOfBytes[] = {"AveragePool", "GlobalAveragePool", "LeakyRelu", "Sigmoid",
                                                  "Softmax"};
  static constexpr std::string_view kMovesOfBytes[] = {"MaxPool", "ReduceMax", "ReduceMin", "Resize"};
  static constexpr std::string_view kElementwise[] = {"Add", "LeakyRelu", "Mul", "Sigmoid", "Softmax"};
  const auto unit = [&](bool is_one) {
    if (!is_one) return IntegerUnit::kNone;
    return node.IsOneOf(kElementwise) ? IntegerUnit::kElementwise : IntegerUnit::kProduct;
  };
  if (around.dequantizers.empty()) return IntegerUnit::kNone;
  if (node.op_type == "Conv") return unit(IsConv(around, node));
  if (node.op_type == "MatMul") return unit(IsMatMul(around));
  if (node.op_type == "Gemm") return unit(IsGemm(around, node));
  if (node.op_type == "ArgMax") return unit(IsByte(InputType(around, 0)));
  if (node.op_type == "Concat") return unit(IsOfOneType(around, node.inputs.size(), /*allows_16_bits=*/false));
  if (node.op_type == "Add" || node.op_type == "Mul" || node.op_type == "Where") {
    return unit(IsOfOneType(around, 2, /*allows_16_bits=*/false));
  }
  if (node.IsOneOf(kOfBytes)) return unit(IsOfOneType(around, 1, /*allows_16_bits=*/false));
  if (node.IsOneOf(kMovesOfBytes)) return unit(IsMove(around, /*allows_16_bits=*/false));
  // Relu and Clip are dropped before a QuantizeLinear that saturates where they do, and are no units.
  if (node.op_type == "Relu" || node.op_type == "Clip") return IntegerUnit::kNone;
  return unit(IsMove(around, /*allows_16_bits=*/true));
}

}  // namespace normfuse::plugin
