// The parts that most chains have, by name: tests that want one of these set it and leave the rest alone.
#pragma once

#include <utility>
#include <vector>

#include "chain/chain.h"

namespace normfuse::test {

struct Parts {
  std::string name;
  bool normalizes = true;
  Operand x;
  std::vector<Step> before;  // of X, in front of the residual
  Operand residual, residual_bias;
  Quantization sum_quantization;
  Normalization normalization;
  Operand scale, bias;
  Align affine_align = Align::kTrailing;
  ActivationCall activation;
  Operand slope;
  std::vector<Step> behind;  // the activation
  DataType y_type = DataType::kUndefined;
  Quantization y_quantization;
  bool y_saturate = true;
  int y_output = 0;
  int sum_output = kNoOutput;
  DataType sum_type = DataType::kUndefined;

  Chain Make() const {
    Chain chain;
    chain.name = name;
    chain.x = Named(x, "X");
    chain.before = before;
    if (residual.present()) chain.before.push_back(Add(Named(residual, "residual")));
    if (residual_bias.present()) chain.before.push_back(Add(Named(residual_bias, "residual_bias")));
    if (sum_quantization.present()) {
      chain.before.push_back(Requantise(sum_quantization, sum_type, sum_output));
    } else if (sum_output != kNoOutput) {
      chain.before.push_back(Emit(sum_type, sum_output));
    }
    if (normalizes) chain.normalization = normalization;
    if (scale.present()) chain.behind.push_back(Mul(Named(scale, "scale", affine_align)));
    if (bias.present()) chain.behind.push_back(Add(Named(bias, "bias", affine_align)));
    if (activation.kind != Activation::kIdentity) {
      chain.behind.push_back(Activate(activation, Named(slope, "slope")));
    }
    chain.behind.insert(chain.behind.end(), behind.begin(), behind.end());
    chain.store = {y_type, y_quantization, y_saturate, y_output};
    return chain;
  }

 private:
  static Operand Named(Operand operand, const char* name, Align align = Align::kTrailing) {
    operand.name = name;
    operand.align = align;
    return operand;
  }
};

}  // namespace normfuse::test
