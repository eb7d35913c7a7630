// The text of a program and its numbers: what is read gives what was written, what is malformed gets a sentence and no
// crash, and nothing but the table decides which steps there are.
#include "chain/program.h"

#include <bit>
#include <charconv>
#include <cmath>
#include <cstring>
#include <initializer_list>
#include <random>
#include <string>

#include "chain/numbers.h"
#include "chain/operator_node.h"
#include "check.h"

namespace normfuse::test {
namespace {

std::string Shortest(float value) {
  char text[64];
  const std::to_chars_result written = std::to_chars(text, text + sizeof text, value);
  return std::string(text, written.ptr);
}

void CheckNumber(uint32_t bits) {
  const auto value = std::bit_cast<float>(bits);
  const std::string text = std::isnan(value) ? "nan" : Shortest(value);
  float read = 0;
  const bool is_number = ParseFloat(text, &read);
  const bool same = std::isnan(value) ? std::isnan(read) : std::bit_cast<uint32_t>(read) == bits;
  CHECK(is_number && same, "%s gives %08x, not %08x", text.c_str(), std::bit_cast<uint32_t>(read), bits);
}

void TestFloats() {
  std::mt19937 random(1);
  for (int i = 0; i < 100'000; ++i) CheckNumber(static_cast<uint32_t>(random()));
  for (uint32_t sign = 0; sign < 2; ++sign) {
    for (uint32_t exponent = 0; exponent < 256; ++exponent) {
      for (const uint32_t fraction : {0u, 1u, 0x400000u, 0x7FFFFFu})
        CheckNumber(sign << 31 | exponent << 23 | fraction);
    }
  }
  float value = 0;
  for (const char* text : {"1e-05", "1E-05", "0.00001", "10e-6", "1.0000000e-005", "1e+400", "0.0000001e2"}) {
    const bool expected = std::string_view(text) != "1E-05" && std::string_view(text) != "1e+400";
    CHECK(ParseFloat(text, &value) == expected && (!expected || value == 1e-5f), "%s", text);
  }
  CHECK(ParseFloat("1e-400", &value) && value == 0, "underflow");
  for (const char* text : {"",      "-",        "+1",    ".5",    "5.",
                           "1e",    "1e+",      "1e+-5", "1e5.0", "0x10",
                           "1,5",   "1_0",      " 1",    "1 ",    "NaN",
                           "-nan",  "infinity", "+inf",  "Inf",   "--1",
                           "1e5e5", "1e--5",    "e5",    "1f",    "1e99999999999999999999"}) {
    CHECK(!ParseFloat(text, &value), "'%s' is read as %g", text, static_cast<double>(value));
  }
}

void TestInts() {
  int64_t value = 0;
  CHECK(ParseInt("-9223372036854775808", &value) && value == INT64_MIN, "the smallest");
  CHECK(ParseInt("9223372036854775807", &value) && value == INT64_MAX, "the largest");
  for (const char* text : {"", "-", "+1", "1.0", "1e3", " 1", "1 ", "0x1", "9223372036854775808", "1,2"}) {
    CHECK(!ParseInt(text, &value), "'%s' is read as %lld", text, static_cast<long long>(value));
  }
}

// "": it is a program.
std::string Problem(std::string_view text, std::vector<ProgramStep>* steps) {
  steps->clear();
  const std::optional<Declined> declined = ParseProgram("node", text, steps);
  return declined ? declined->message : "";
}

void TestForm() {
  std::vector<ProgramStep> steps;
  const std::string problem = Problem(
      "Dequantize scale=s zero_point=z;Add r\t; Normalize epsilon=1e-05  axes=-1,-2 ;Mul g align=channel; LeakyRelu "
      "alpha=0.5;Quantize\nscale=t",
      &steps);
  CHECK(problem.empty() && steps.size() == 6, "%s", problem.c_str());
  if (steps.size() != 6) return;
  CHECK(steps[0].Is(StepName::kDequantize) && *steps[0].Find(Argument::kZeroPoint) == "z", "Dequantize");
  CHECK(steps[1].Is(StepName::kAdd) && steps[1].operand == "r" && steps[1].in_front, "Add");
  CHECK(*steps[2].Find(Argument::kAxes) == "-1,-2" && !steps[2].Find(Argument::kNumGroups), "Normalize");
  CHECK(steps[3].Is(StepName::kMul) && !steps[3].in_front && *steps[3].Find(Argument::kAlign) == "channel", "Mul");
  CHECK(steps[4].step == nullptr && steps[4].activation == static_cast<int>(Activation::kLeakyRelu), "LeakyRelu");
  CHECK(steps[5].Where() == "step 6 (Quantize)", "%s", steps[5].Where().c_str());
  CHECK(Problem("Mul a; Relu", &steps).empty() && !steps[0].in_front, "without a normalisation all steps are behind");
}

void TestProblems() {
  const std::pair<const char*, const char*> cases[] = {
      {"", "step 1 is empty"},
      {"Relu;", "step 2 is empty"},
      {"Relu; ;Relu", "step 2 is empty"},
      {"Sharpen", "the step 'Sharpen', which"},
      {"relu", "the step 'relu', which"},
      {"Relu x", "step 1 (Relu) has the operand x, a slope, but takes none"},
      {"PRelu", "step 1 (PRelu) has no operand, its slope"},
      {"Add", "step 1 (Add) has no operand"},
      {"Add scale=s r", "step 1 (Add): 'r' is no argument, key=value"},
      {"Add r-1", "step 1 (Add): 'r-1' is no argument, key=value"},
      {"Normalize x axes=1", "step 1 (Normalize) has the operand x, but takes none"},
      {"Add r gain=2", "step 1 (Add) takes no argument gain"},
      {"Add r =2", "step 1 (Add) takes no argument "},
      {"Add r axis=1 axis=1", "step 1 (Add): axis is given twice"},
      {"Elu alpha=1 beta=1", "step 1 (Elu) takes no argument beta"},
      {"Relu; Dequantize scale=s", "step 2 (Dequantize) cannot stand behind step 1 (Relu)"},
      {"Dequantize scale=s; Dequantize scale=t", "step 2 (Dequantize) cannot stand behind step 1 (Dequantize)"},
      {"Normalize axes=1; Softmax axes=1", "step 2 (Softmax) cannot stand behind step 1 (Normalize)"},
      {"Quantize scale=s; Relu", "step 2 (Relu) cannot stand behind step 1 (Quantize)"},
      {"Quantize scale=s; Store type=float16", "step 2 (Store) cannot stand behind step 1 (Quantize)"},
      {"Relu; Normalize axes=1", "step 2 (Normalize) cannot stand behind step 1 (Relu)"},
      {"Requantize scale=s; Relu", "step 1 (Requantize) stands before no normalisation"},
      {"Normalize axes=1; Emit", "step 2 (Emit) cannot stand behind step 1 (Normalize)"},
  };
  std::vector<ProgramStep> steps;
  for (const auto& [text, expected] : cases) {
    const std::string problem = Problem(text, &steps);
    CHECK(problem.find(expected) != std::string::npos, "%s: %s", text, problem.c_str());
  }
}

class Attributes : public NodeAttributes {
 public:
  explicit Attributes(std::string steps) : steps_(std::move(steps)) {}
  bool GetInt(const char*, int64_t*) const override { return false; }
  bool GetFloat(const char*, float*) const override { return false; }
  bool GetInts(const char*, std::vector<int64_t>*) const override { return false; }
  bool GetString(const char* name, std::string* value) const override {
    *value = steps_;
    return !steps_.empty() && std::strcmp(name, "steps") == 0;
  }

 private:
  std::string steps_;
};

// The chain of a node that has `inputs` tensors behind X; "": there is one.
std::string ReadNode(OperatorKind kind, const std::string& steps, size_t inputs, Chain* chain) {
  const Attributes attributes(steps);
  TensorFacts facts;
  facts.present = true;
  facts.type = DataType::kFloat32;
  OperatorNode node{kind, "node", &attributes, {}, {true, false, false, false}};
  node.inputs.assign(1 + inputs, facts);
  *chain = {};
  const std::optional<Declined> declined = ChainFromOperator(node, chain);
  return declined ? declined->message : "";
}

void TestMeaning() {
  Chain chain;
  const std::string problem =
      ReadNode(OperatorKind::kFusedNormalization,
               "Dequantize zero_point=a axis=0 scale=b; Add c scale=d block_size=32; Normalize axes=-1 epsilon=0.25 "
               "epsilon_on=stddev use_mean=0; Mul e align=channel; HardSigmoid beta=0.75; PRelu f; Quantize scale=g "
               "type=int16 saturate=0",
               7, &chain);
  CHECK(problem.empty(), "%s", problem.c_str());
  CHECK(chain.x.quantization.zero_point.input == 1 && chain.x.quantization.scale.input == 2, "X");
  CHECK(chain.x.quantization.axis == 0 && chain.x.quantization.block_size == 0, "X");
  CHECK(chain.before.size() == 1 && chain.behind.size() == 3 && chain.normalizes(), "steps");
  if (chain.before.size() != 1 || chain.behind.size() != 3 || !chain.normalizes()) return;
  const Operand& residual = chain.before[0].operand;
  CHECK(residual.tensor.input == 3 && residual.quantization.scale.input == 4 && residual.quantization.axis == 1 &&
            residual.quantization.block_size == 32 && residual.name == "c",
        "Add");
  CHECK(chain.normalization->epsilon == 0.25f && chain.normalization->epsilon_on == EpsilonOn::kStddev, "Normalize");
  CHECK(!chain.normalization->use_mean && chain.normalization->normalize_variance, "Normalize");
  CHECK(chain.behind[0].kind == StepKind::kMul && chain.behind[0].operand.align == Align::kChannel, "Mul");
  const ActivationCall& call = chain.behind[1].activation;
  CHECK(call.kind == Activation::kHardSigmoid && call.params[0] == 0.2f && call.params[1] == 0.75f, "HardSigmoid");
  CHECK(chain.behind[2].operand.tensor.input == 6, "PRelu");
  CHECK(chain.store.quantization.scale.input == 7 && chain.store.type == DataType::kInt16 && !chain.store.saturate,
        "Quantize");
}

void TestNodesThatAreRefused() {
  constexpr auto kNormalization = OperatorKind::kFusedNormalization;
  constexpr auto kActivation = OperatorKind::kFusedActivation;
  const struct {
    OperatorKind kind;
    const char* steps;
    size_t inputs;
    const char* expected;
  } cases[] = {
      {kNormalization, "", 0, "its attribute steps is missing"},
      {kActivation, "", 0, "its attribute steps is missing"},
      {kNormalization, "Mul a", 1, "its steps have no normalisation"},
      {kActivation, "Normalize axes=1", 0, "its steps have a normalisation, which belongs to FusedNormalization"},
      {OperatorKind::kFusedDequantizeLinear, "Relu", 0, "its steps have no Dequantize"},
      {kNormalization, "Normalize", 0, "axes is missing"},
      {kNormalization, "Normalize axes=1,", 0, "axes is '1,', which is not a list of whole numbers"},
      {kNormalization, "Normalize axes=", 0, "axes is '', which is not a list of whole numbers"},
      {kNormalization, "Normalize axes=1 epsilon=1e-5f", 0, "epsilon is '1e-5f', which is not a number"},
      {kNormalization, "Normalize axes=1 epsilon=nan", 0, "epsilon is NaN"},
      {kNormalization, "Normalize axes=1 use_mean=2", 0, "use_mean is '2', which is not 0 or 1"},
      {kNormalization, "Normalize axes=1 epsilon_on=mean", 0, "epsilon_on is 'mean', which is not variance or stddev"},
      {kNormalization, "Normalize axes=1; Mul a align=group", 1, "a has align=group, but num_groups is 0"},
      {kNormalization, "Mul a align=channel; Normalize axes=1", 1, "align is of steps behind the normalisation"},
      {kNormalization, "Emit; Add a; Normalize axes=1", 1, "stands behind the step that makes the output sum"},
      {kNormalization, "Emit; Emit; Normalize axes=1", 0, "step 2 (Emit) stands twice"},
      {kActivation, "Mul a; Add a", 1, "the label a stands twice"},
      {kActivation, "Mul a", 0, "a is missing, input 1 of the node"},
      {kActivation, "Mul a", 2, "input 2 is given, but its steps name inputs 1 to 1 only"},
      {kActivation, "Quantize scale=a-b", 1, "'a-b' is no label of a tensor"},
      {kActivation, "Quantize zero_point=a", 1, "y_zero_point is given without y_scale"},
      {kActivation, "Store type=int64", 0, "type is 'int64', which is not an element type that normfuse writes"},
      {kActivation, "Elu alpha=one", 0, "alpha is 'one', which is not a number"},
  };
  Chain chain;
  for (const auto& each : cases) {
    const std::string problem = ReadNode(each.kind, each.steps, each.inputs, &chain);
    CHECK(problem.find(each.expected) != std::string::npos, "%s: %s", each.steps, problem.c_str());
  }
}

// Pieces of programs put together at random, and damaged: each is read or refused with a sentence.
void TestAnyText() {
  std::mt19937 random(2);
  const auto pick = [&](size_t count) { return static_cast<size_t>(random() % count); };
  std::vector<std::string> pieces = {"; ", ";", " ",     "=",   ",",       "a",          "b",
                                     "-1", "0", "1e-05", "inf", "float16", "99999999999"};
  for (const StepSpec& step : kSteps) pieces.emplace_back(std::string(" ; ") + step.name + " ");
  for (const ActivationSpec& each : kActivations) pieces.emplace_back(std::string(";") + each.name);
  for (const char* name : kArgumentNames) pieces.emplace_back(std::string(" ") + name + "=");
  int read = 0;
  for (int i = 0; i < 200'000; ++i) {
    std::string text = i % 2 == 0 ? "Normalize axes=-1" : "Relu";
    for (size_t count = pick(8); count > 0; --count) text += pieces[pick(pieces.size())];
    if (i % 4 == 0) text[pick(text.size())] = static_cast<char>(random());
    Chain chain;
    const auto kind = static_cast<OperatorKind>(i % 2);
    read += ReadNode(kind, text, pick(4), &chain).empty() ? 1 : 0;
  }
  CHECK(read > 1000, "%d", read);  // or the pieces are no programs at all
}

}  // namespace
}  // namespace normfuse::test

int main() {
  normfuse::test::TestFloats();
  normfuse::test::TestInts();
  normfuse::test::TestForm();
  normfuse::test::TestProblems();
  normfuse::test::TestMeaning();
  normfuse::test::TestNodesThatAreRefused();
  normfuse::test::TestAnyText();
  return normfuse::test::ExitCode();
}
