#include "plugin/host/kernel_chain.h"

#include "plugin/find/found_chain.h"

namespace normfuse::plugin {

Result ReadChain(const ort::KernelInfo* info, Chain* chain) {
  GraphView graph;
  NORMFUSE_RETURN_IF_ERROR(graph.ReadKernel(info));
  std::vector<Site> sites = FindSites(graph, {ChainLength::kSingleNode});
  const GraphNode& node = graph.node(0);
  if (sites.empty()) {
    return Result::Error(ErrorCode::kNotImplemented, node.name + ": normfuse has no operator " + node.op_type);
  }
  if (sites[0].declined) return Result::Error(ErrorCode::kInvalidArgument, sites[0].declined->message);
  // In a graph read from a kernel the values are the node's inputs, then its outputs, by position.
  const FoundChain& found = *sites[0].found;
  *chain = found.chain;
  ForEachTensorRef(*chain, [&](TensorRef& ref) {
    if (ref.input != TensorRef::kAbsent) ref.input = found.inputs[static_cast<size_t>(ref.input)];
  });
  ForEachOutput(*chain, [&](int& output) {
    output = found.outputs[static_cast<size_t>(output)] - static_cast<int>(node.inputs.size());
  });
  return {};
}

}  // namespace normfuse::plugin
