// Types and shapes of the custom operators' outputs.
#pragma once

#include "abi/ort_abi.h"
#include "chain/operator_node.h"

namespace normfuse::custom_ops {

Result InferOutputs(OperatorKind kind, const char* op_type, ort::ShapeInferContext* context);

}  // namespace normfuse::custom_ops
