// Kernels for single nodes (our own operators and the standard normalisations), through ORT's kernel registry: cheaper for
// each call, and far cheaper at session creation, than a fused subgraph. (ORT's partitioning of fused groups takes time
// that grows with the cube of a model's size: 25 s for 1,000 groups among 3,000 nodes on ORT 1.31.1, where registered
// kernels take 0.35 s.)
#pragma once

#include "abi/ort_host.h"
#include "plugin/find/graph_view.h"
#include "plugin/host/options.h"

namespace normfuse::plugin {

// The registry for every session of the process, made on first use. ORT copies it before it shows the graph: the op
// types have to be known by then, which is why function names follow the convention in operators.toml.
Result OperatorKernelRegistry(const ort::KernelRegistry** registry);

// Single activations, DequantizeLinear and QuantizeLinear gain little without their neighbours: they run on kernels only
// where a session that claims all it can has too many of them to be compiled.
enum class KernelSet { kNormalizations, kEverything };

// Asks the registry for the kernel of a node.
class KernelLookup {
 public:
  KernelLookup(ort::EpGraphSupportInfo* support, KernelSet set) : support_(support), set_(set) {}
  Result Has(const GraphNode& node, bool* has_kernel) const;

 private:
  ort::EpGraphSupportInfo* support_;
  KernelSet set_;
};

}  // namespace normfuse::plugin
