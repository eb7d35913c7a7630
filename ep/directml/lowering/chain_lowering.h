// From a Chain to a DmlProgram: which DirectML operators compute it on a given device, or why none do.
//
// All arithmetic is in float32; float16 tensors are cast at the edges. Scale, bias, zero points and residuals are
// broadcast by strides of 0. See docs/pages/directml.md for what becomes what.
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "chain/chain.h"
#include "chain/reason.h"
#include "chain/sequence.h"
#include "directml/lowering/program_builder.h"

namespace normfuse::directml {

// Shape and type of one input of the node.
struct InputShape {
  DataType type = DataType::kUndefined;
  std::vector<int64_t> dims;
  std::vector<int64_t> content = {};  // of a small integer tensor that decides shapes
};

// Lowers a chain for inputs of known shapes (indexed as TensorRef::input; constants need no entry). Returns the reason
// when DirectML cannot run it at this level: kDirectmlLevel or kDirectmlUnsupported.
std::optional<Declined> Lower(const Chain& chain, const std::vector<InputShape>& inputs,
                              const Capabilities& capabilities, DmlProgram* program);

// The same for chains that follow each other: one program, in which what passes between them stays on the GPU.
std::optional<Declined> Lower(const ChainSequence& sequence, const std::vector<InputShape>& inputs,
                              const Capabilities& capabilities, DmlProgram* program);

// Appends a chain whose inputs are all in `values` (TensorRef::input is kFromOutput plus the key) and adds its outputs to them.
void LowerInto(const Chain& chain, ProgramBuilder& builder, std::map<int, Value>* values);

// The same question for a chain whose shapes may still be open, as at claim time: dimensions that are not known are
// given values that fit the chain's constants. A chain that passes can fail at run time only by its real shapes.
std::optional<Declined> CheckLowering(const Chain& chain, const Capabilities& capabilities,
                                      DmlProgram* program = nullptr);

}  // namespace normfuse::directml
