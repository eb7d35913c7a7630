// From a node of our own operators (operators.toml) to a Chain: the same code serves the custom op and the EP's claim of
// a model-local function call.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "chain/chain.h"
#include "chain/reason.h"

namespace normfuse {

// Read access to a node's attributes. Each getter returns false when the attribute is absent.
class NodeAttributes {
 public:
  virtual ~NodeAttributes() = default;
  virtual bool GetInt(const char* name, int64_t* value) const = 0;
  virtual bool GetFloat(const char* name, float* value) const = 0;
  virtual bool GetString(const char* name, std::string* value) const = 0;
  virtual bool GetInts(const char* name, std::vector<int64_t>* value) const = 0;
};

// What is known of one tensor when the session is created.
struct TensorFacts {
  bool present = false;
  DataType type = DataType::kUndefined;
  int rank = -1;  // -1: unknown
  int64_t dims[kMaxRank] = {};
  std::shared_ptr<const ConstantTensor> constant;
  bool given = false;  // a constant of the model for which the session has another value: `constant` is null
};

enum class OperatorKind { kFusedNormalization, kFusedActivation, kFusedDequantizeLinear };

// The operator that an op type of domain ai.normfuse names: its own name, or that and "_suffix".
std::optional<OperatorKind> OperatorKindOf(std::string_view op_type);

struct OperatorNode {
  OperatorKind kind = OperatorKind::kFusedNormalization;
  std::string name;
  const NodeAttributes* attributes = nullptr;
  std::vector<TensorFacts> inputs;  // positional
  std::vector<bool> outputs_used;   // positional
  bool shows_constants = true;      // false: `inputs` does not say which of them are constant
};

// TensorRef::input is the node's input index and Chain's outputs are the node's output indices. Returns the reason when
// the node cannot be run by this library.
std::optional<Declined> ChainFromOperator(const OperatorNode& node, Chain* chain);

PartialShape ShapeOf(const TensorFacts& facts);

}  // namespace normfuse
