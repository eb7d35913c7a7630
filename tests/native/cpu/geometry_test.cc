// Which dimensions of operands become one run; that each element is found there, tests/operators/test_repeating_operands.py says.
#include "cpu/plan/geometry.h"

#include <string>
#include <vector>

#include "chain/chain.h"
#include "cpu/plan/chain_spec.h"
#include "test_cases.h"

namespace normfuse::test {
namespace {

using cpu::FormId;
using Dims = std::vector<int64_t>;

// Without a normalisation: X, times a factor, plus an addend, quantised.
struct Bound {
  Bound(const Dims& x, const Dims& factor, const Dims& addend) : shapes{x, factor, addend} {
    const auto input = [this](int index, const char* name) {
      Operand operand;
      operand.tensor.input = index;
      operand.type = DataType::kFloat32;
      operand.name = name;
      return operand;
    };
    chain.name = "geometry";
    chain.x = input(0, "X");
    chain.behind = {Mul(input(1, "factor")), Add(input(2, "addend"))};
    chain.store.type = DataType::kFloat32;
  }

  void Bind() {
    const Result read = cpu::ReadChain(chain, cpu::Isa::kBaseline, &compiled);
    EXPECT(read.ok(), read.message());
    cpu::CallShapes call;
    std::fill_n(call.of, cpu::kFormCount, cpu::Shape{nullptr, -1});
    for (size_t i = 0; i < shapes.size(); ++i) {
      call.of[form(i)] = {shapes[i].data(), static_cast<int>(shapes[i].size())};
    }
    if (!scale_shape.empty()) {
      call.of[compiled.forms.operands[1].scale_form] = {scale_shape.data(), static_cast<int>(scale_shape.size())};
    }
    const Result bound = BindGeometry(chain, compiled.forms, call, &geometry);
    EXPECT(bound.ok(), bound.message());
  }

  FormId form(size_t operand) const { return compiled.forms.operands[operand].form; }
  const cpu::Dim& run() const { return geometry.reduced.dims[geometry.reduced.count - 1]; }

  Chain chain;
  std::vector<Dims> shapes;
  Dims scale_shape;  // of the factor's quantisation
  cpu::CompiledChain compiled;
  cpu::Geometry geometry;
};

std::string Text(const std::vector<Dims>& shapes) {
  std::string text;
  for (const Dims& shape : shapes) {
    for (const int64_t dim : shape) text += std::to_string(dim) + " ";
    text += "| ";
  }
  return text;
}

void ExpectRun(const std::vector<Dims>& shapes, int64_t size, int64_t period) {
  Bound b(shapes[0], shapes[1], shapes[2]);
  b.Bind();
  EXPECT(b.run().size == size && b.geometry.period == period,
         Text(shapes) + "run of " + std::to_string(b.run().size) + ", period " + std::to_string(b.geometry.period));
}

TEST(OperandsThatRepeatAreInLongRuns) {
  const Dims x = {6, 11, 288, 8};
  const Dims one = {1, 1, 1, 1};
  ExpectRun({x, {6, 11, 1, 8}, one}, 288 * 8, 8);
  ExpectRun({{6, 11, 1, 8}, x, one}, 288 * 8, 8);
  ExpectRun({x, {6, 11, 1, 8}, x}, 288 * 8, 8);
  ExpectRun({x, {6, 11, 1, 8}, {1, 11, 1, 8}}, 288 * 8, 8);
  ExpectRun({x, {1, 1, 1, 8}, one}, 6 * 11 * 288 * 8, 8);
  ExpectRun({x, {6, 11, 1, 8}, {6, 11, 1, 1}}, 288 * 8, 8);
  ExpectRun({{2, 3, 9, 128}, {2, 3, 1, 128}, one}, 9 * 128, 128);
  ExpectRun({{2, 0, 9, 8}, {2, 0, 1, 8}, one}, 9 * 8, 8);
}

TEST(OtherDimensionsStayApart) {
  const Dims one = {1, 1, 1, 1};
  const Dims x = {2, 3, 9, 8};
  ExpectRun({x, {2, 3, 1, 8}, {2, 1, 9, 1}}, 8, 1);            // one for each pixel
  ExpectRun({{2, 3, 9, 12}, {2, 3, 1, 12}, one}, 12, 1);       // does not divide a block
  ExpectRun({{2, 3, 9, 256}, {2, 3, 1, 256}, one}, 256, 1);    // long enough
  ExpectRun({{2, 3, 1, 8}, {2, 3, 1, 8}, one}, 2 * 3 * 8, 1);  // one pixel: all is one run
  ExpectRun({{2, 3, 9, 1}, {2, 3, 1, 1}, one}, 9, 1);          // one channel
  ExpectRun({x, x, x}, 2 * 3 * 9 * 8, 1);
}

TEST(ScalesThatRepeatStayApart) {
  for (const int64_t scales : {int64_t{1}, int64_t{8}}) {
    Bound b({2, 3, 9, 8}, {2, 3, 1, 8}, {1, 1, 1, 1});
    Operand& factor = b.chain.behind[0].operand;
    factor.type = DataType::kUint8;
    factor.quantization.scale.input = 3;
    factor.quantization.axis = 3;
    b.scale_shape = {scales};
    b.Bind();
    EXPECT(b.run().size == (scales == 1 ? 72 : 8), std::to_string(scales) + " scales");
  }
}

TEST(RowsOfANormalisationStayApart) {
  Bound b({2, 3, 9, 8}, {2, 3, 1, 8}, {1, 1, 1, 1});
  b.chain.normalization.emplace();
  b.chain.normalization->axes = {2, 3};
  b.Bind();
  EXPECT(b.geometry.repeating == 0 && b.run().size == 8, std::to_string(b.run().size));
}

}  // namespace
}  // namespace normfuse::test

NORMFUSE_TEST_MAIN
