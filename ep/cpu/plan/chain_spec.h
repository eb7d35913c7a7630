// What a chain asks of the passes, as stages, and where its tensors stand among the forms: read once, when it is compiled.
#pragma once

#include <optional>
#include <vector>

#include "cpu/kernels/kernels.h"
#include "cpu/plan/code_table.h"
#include "cpu/run/parameters.h"

namespace normfuse::cpu {

inline constexpr float kNoParams[kMaxActivationParams] = {};

// The operand of a step: a parameter that is float32 already, or a tensor that is read where it lies.
struct StageOperand {
  FormId form = kFormCount;  // kFormCount: absent
  bool is_parameter = true;
  bool is_kept = false;  // no tensor, but what a stage before this one kept

  bool present() const { return form != kFormCount; }
};

// A product or a sum with a parameter that joins a stage's own scale and bias: see joined_affine.h.
struct FurtherAffine {
  StepKind kind;  // kMul or kAdd
  FormId form;
};

// One or more steps of a chain as the passes run them on a block of float32.
struct Stage {
  // kActivate: scale, bias and activation in one kernel, each of which may be absent; the first one behind normalises, too.
  StepKind kind = StepKind::kActivate;
  StageOperand operand;  // of a combination or mask
  MaskCall mask;
  StageOperand scale, bias, slope;
  std::vector<FurtherAffine> further;  // between bias and activation
  Activation activation = Activation::kIdentity;
  bool gated = false;               // the activation's result times the slope
  const float* params = kNoParams;  // of the activation
  // What is stored on the way, and where: index into Call::emitted, or -1.
  DataType type = DataType::kUndefined;
  bool quantizes = false;
  float quantization_scale = 1.0f;
  float quantization_zero = 0.0f;
  int emitted = -1;
  float least_code = 0.0f;  // of integers of 16 bits at most: between which they are
  float most_code = 0.0f;
  Quantizer quantizer;  // of the two numbers, likewise
  // kFakeQuantize, where scale and zero point are not the two numbers above.
  FormId quantization_form = kFormCount;
  int64_t block_size = 0;
  bool saturate = true;
  bool keeps = false;
  bool makes_codes = false;  // of ChainSpec::codes
  bool unclamped = false;    // ElementStep's: see pairs.h
  int step = 0;              // kFakeQuantize behind: which one of Chain::behind
  int element_steps = -1;    // that it becomes in a kernel for several; -1: it has to be run by itself

  // Of kActivate: nothing is left of it.
  bool changes_nothing() const {
    return kind == StepKind::kActivate && activation == Activation::kIdentity && !scale.present() && !bias.present() &&
           further.empty() && !gated;
  }
};

struct ChainSpec {
  bool normalizes = true;
  Normalization normalization;
  // Whether each half is of UsualForm, for which there are kernels that read and write where tensors lie, or behind would be
  // if what joins scale and bias were joined.
  bool usual_before = true;
  bool usual_behind = true;
  std::vector<Stage> before;
  std::vector<Stage> behind;  // the first is kActivate
  // The arguments of the last stage behind, which is kActivate.
  Activation activation = Activation::kIdentity;
  const float* activation_params = nullptr;
  DataType y_type = DataType::kUndefined;
  bool y_quantized = false;
  bool y_dynamic = false;  // Y is float32 here, and quantised when all of it is there: see dynamic_quantization.h
  bool y_saturate = true;
  int64_t y_block_size = 0;
  DataType sum_type = DataType::kUndefined;
  bool requantizes = false;  // in a step before
  bool emits_behind = false;
  bool ends_fake_quantized = false;  // nothing follows a fake quantisation, and Y is float32
  // See element_steps.h.
  bool steps_at_once = false;
  bool steps_before_at_once = false;
  bool steps_behind_at_once = false;
  std::optional<Codes> codes;  // whose table is faster than the steps behind them
  // For a call on one thread.
  double nanoseconds = 0;
  double nanoseconds_per_element = 0;

  // Whether the first stage behind has further products and sums.
  bool joins() const { return !behind.front().further.empty(); }
};

// A chain as it was read, into which all of this points.
struct CompiledChain {
  UsualForm usual;
  ChainSpec spec;
  ChainForms forms;
  std::vector<size_t> tensors;        // those of `forms.operands` that are read where they lie
  ParamSource sources[kFormCount];    // of the parameters
  std::vector<const Step*> emitting;  // by index into Call::emitted
};

Result ReadChain(const Chain& chain, Isa isa, CompiledChain* compiled);

}  // namespace normfuse::cpu
