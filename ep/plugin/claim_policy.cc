#include "plugin/claim_policy.h"

#include <algorithm>

namespace normfuse::plugin {
namespace {

// Operators for which ORT has a kernel on quantised tensors: a DequantizeLinear before or a QuantizeLinear behind one
// belongs to it, and taking that away would make it run in float.
constexpr std::string_view kQuantizedKernels[] = {
    "Add",       "AveragePool",       "Clip",      "Concat",  "Conv",    "ConvTranspose", "Gather",
    "Gemm",      "GlobalAveragePool", "LeakyRelu", "MatMul",  "MaxPool", "Mul",           "Pad",
    "Relu",      "Reshape",           "Resize",    "Sigmoid", "Softmax", "Split",         "Squeeze",
    "Transpose", "Unsqueeze",         "Where"};

bool HasQuantizedKernel(const GraphNode& node) {
  return std::find(std::begin(kQuantizedKernels), std::end(kQuantizedKernels), node.op_type) !=
         std::end(kQuantizedKernels);
}

Declined NotProfitable(const Chain& chain, const char* detail) {
  return Decline(Reason::kNotProfitable, {{"node", chain.plan.name}, {"detail", detail}});
}

// Looks at the neighbours that ORT would fuse the chain's ends with.
std::optional<Declined> CheckNeighbours(GraphView& graph, const Chain& chain) {
  if (chain.plan.kind == PlanKind::kNormalization) return std::nullopt;
  const GraphNode& first = graph.node(chain.nodes.front());
  const int x = graph.Input(first, 0);
  const int producer = x == kNone ? kNone : graph.value(x).producer;
  const bool dequantizes = chain.plan.x.quantization.present();
  const bool quantizes = chain.plan.y_quantization.present();
  if (quantizes && !dequantizes && producer != kNone && HasQuantizedKernel(graph.node(producer))) {
    return NotProfitable(chain, "its QuantizeLinear belongs to the quantised operator before it");
  }
  if (!dequantizes || quantizes) return std::nullopt;
  const int y = chain.outputs[static_cast<size_t>(chain.plan.y_output)];
  for (int consumer : graph.value(y).consumers) {
    if (consumer != kNone && HasQuantizedKernel(graph.node(consumer))) {
      return NotProfitable(chain, "its DequantizeLinear belongs to the quantised operator behind it");
    }
  }
  return std::nullopt;
}

}  // namespace

std::optional<Declined> CheckClaim(GraphView& graph, const Chain& chain, const EpOptions& options,
                                   bool has_registered_kernel) {
  if (!has_registered_kernel && options.generates_context) return Decline(Reason::kContextGeneration, {});
  if (!has_registered_kernel && !options.compile) return Decline(Reason::kCompilationOff, {});
  if (options.claim_all) return std::nullopt;
  return CheckNeighbours(graph, chain);
}

Result CompileForBackend(const Plan& plan, const EpOptions& options, std::unique_ptr<Executable>* executable) {
  if (options.backend == BackendChoice::kDirectMl) {
    return Result::Error(ErrorCode::kNotImplemented, "NormFuseExecutionProvider: backend=directml is not available");
  }
  return CompileForCpu(plan, executable);
}

}  // namespace normfuse::plugin
