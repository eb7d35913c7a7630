// Kernels for single nodes (our own operators and the standard normalisations), through ORT's kernel registry: cheaper for
// each call, and far cheaper at session creation, than a fused subgraph. (ORT's partitioning of fused groups takes time that grows with the cube
// of a model's size: 25 s for 1,000 groups among 3,000 nodes on ORT 1.31.1, where registered kernels take 0.35 s.)
#pragma once

#include "abi/ort_host.h"
#include "plugin/graph_view.h"
#include "plugin/options.h"

namespace normfuse::plugin {

// The registry for every session of the process, made on first use. ORT copies it before it shows the graph: the op
// types have to be known by then, which is why function names follow the convention in operators.toml.
Result OperatorKernelRegistry(const ort::KernelRegistry** registry);

// Whether the registry holds a kernel for the node.
Result HasKernel(const GraphNode& node, ort::EpGraphSupportInfo* support, bool* has_kernel);

}  // namespace normfuse::plugin
