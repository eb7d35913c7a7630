// The text of a program and its numbers: what is read gives what was written, and what is malformed no crash; which sentence
// it gets, tests/operators/test_refused.py says.
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
  normfuse::test::TestMeaning();
  normfuse::test::TestAnyText();
  return normfuse::test::ExitCode();
}
