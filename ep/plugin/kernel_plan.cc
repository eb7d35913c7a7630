#include "plugin/kernel_plan.h"

#include "plugin/chain.h"

namespace normfuse::plugin {

Result ReadPlan(const ort::KernelInfo* info, Plan* plan) {
  GraphView graph;
  NORMFUSE_RETURN_IF_ERROR(graph.ReadKernel(info));
  std::vector<Site> sites = FindSites(graph, ChainLength::kSingleNode);
  const GraphNode& node = graph.node(0);
  if (sites.empty()) {
    return Result::Error(ErrorCode::kNotImplemented, node.name + ": normfuse has no operator " + node.op_type);
  }
  if (sites[0].declined) return Result::Error(ErrorCode::kInvalidArgument, sites[0].declined->message);
  // In a graph read from a kernel the values are the node's inputs, then its outputs, by position.
  const Chain& chain = *sites[0].chain;
  *plan = chain.plan;
  ForEachTensorRef(*plan, [&](TensorRef& ref) {
    if (ref.input != TensorRef::kAbsent) ref.input = chain.inputs[static_cast<size_t>(ref.input)];
  });
  for (int* output : {&plan->y_output, &plan->sum_output, &plan->mean_output, &plan->inv_std_dev_output}) {
    if (*output == Plan::kNoOutput) continue;
    *output = chain.outputs[static_cast<size_t>(*output)] - static_cast<int>(node.inputs.size());
  }
  return {};
}

}  // namespace normfuse::plugin
