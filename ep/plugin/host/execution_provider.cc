#include "plugin/host/execution_provider.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <optional>
#include <set>
#include <utility>

#include "abi/ort_execution.h"
#include "plugin/claim/claim_policy.h"
#include "plugin/claim/claim_report.h"
#include "plugin/claim/claimed_nodes.h"
#include "plugin/find/chain_parts.h"
#include "plugin/find/found_chain.h"
#include "plugin/host/device_tensors.h"
#include "plugin/host/operator_kernels.h"
#include "plugin/islands/island_finder.h"
#include "plugin/islands/island_reader.h"
#include "plugin/islands/island_report.h"

namespace normfuse::plugin {
namespace {

using ort::GetApi;

struct ExecutionProvider : ort::Ep {
  EpOptions options;
  std::unique_ptr<Backend> backend;
  GivenInitializers given;
  const ort::Logger* logger = nullptr;
  std::optional<Tuning> tuning;              // of the session's model; read with its first graph
  std::set<std::string> claim_report_lines;  // written already
  ClaimedNodes claimed;                      // of the last graph
};

ExecutionProvider& From(ort::Ep* ep) { return *static_cast<ExecutionProvider*>(ep); }

// The compute function of one fused node.
struct FusedNode : ort::NodeComputeInfo {
  std::unique_ptr<Executable> executable;
};

void Log(const ExecutionProvider& ep, ort::LoggingLevel level, const std::string& message) {
#ifdef _WIN32
  const ort::PathChar* file = L"execution_provider.cc";
#else
  const ort::PathChar* file = "execution_provider.cc";
#endif
  // A logger that fails must not fail the session.
  (void)ort::FromStatus(GetApi().Logger_LogMessage(ep.logger, level, message.c_str(), file, __LINE__, "normfuse"));
}

// Tells how long a call by ORT took, at a level that users do not see unless they ask for it.
class CallTimer {
 public:
  CallTimer(const ExecutionProvider& ep, const char* call) : ep_(ep), call_(call), start_(Clock::now()) {}

  void Log(size_t count, const char* what) const {
    const auto elapsed = std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - start_);
    plugin::Log(ep_, ort::LoggingLevel::kInfo,
                std::string("normfuse: ") + call_ + " of " + std::to_string(count) + " " + what + " took " +
                    std::to_string(elapsed.count()) + " us");
  }

 private:
  using Clock = std::chrono::steady_clock;
  const ExecutionProvider& ep_;
  const char* call_;
  Clock::time_point start_;
};

std::string NameOf(const ort::Graph* graph) {
  const char* name = nullptr;
  if (!ort::FromStatus(GetApi().Graph_GetName(graph, &name)).ok() || name == nullptr) return {};
  return name;
}

void LogSite(const ExecutionProvider& ep, const GraphView& graph, const Site& site) {
  const GraphNode& anchor = graph.node(site.anchor);
  if (site.declined) {
    Log(ep, ort::LoggingLevel::kVerbose, "normfuse leaves '" + anchor.name + "': " + site.declined->message);
  } else {
    Log(ep, ort::LoggingLevel::kVerbose, "normfuse fuses " + site.found->description + " at '" + anchor.name + "'");
  }
}

// A constant that stays an input of the fused node must not be dropped by ORT.
bool ReadsConstantInput(GraphView& graph, const FoundChain& found) {
  return std::any_of(found.inputs.begin(), found.inputs.end(),
                     [&](int value) { return graph.Facts(value).constant != nullptr || graph.Facts(value).given; });
}

Result ClaimToCompile(const GraphView& graph, const std::vector<int>& nodes, bool drop_constant_initializers,
                      ort::EpGraphSupportInfo* support) {
  std::vector<const ort::Node*> ort_nodes;
  for (int node : nodes) ort_nodes.push_back(graph.node(node).node);
  ort::NodeFusionOptions fusion{};
  fusion.ort_version_supported = ort::GetHost().version;
  fusion.drop_constant_initializers = drop_constant_initializers;
  return ort::FromStatus(
      ort::GetHost().ep_api.EpGraphSupportInfo_AddNodesToFuse(support, ort_nodes.data(), ort_nodes.size(), &fusion));
}

Result Claim(ExecutionProvider& ep, GraphView& graph, FoundChain found, bool has_kernel,
             ort::EpGraphSupportInfo* support) {
  if (has_kernel) {
    const ort::Node* node = graph.node(found.nodes.front()).node;
    return ort::FromStatus(ort::GetHost().ep_api.EpGraphSupportInfo_AddSingleNode(support, node));
  }
  NORMFUSE_RETURN_IF_ERROR(ClaimToCompile(graph, found.nodes, !ReadsConstantInput(graph, found), support));
  const std::vector<std::string> made = MadeBy(graph, found.nodes);
  ClaimedNode claimed;
  claimed.chains.push_back(Named(graph, std::move(found)));
  ep.claimed.Keep(made, std::move(claimed));
  return {};
}

// Finds the sites and decides each; *has_kernel tells which chains run on a registered kernel of `kernels`.
Result DecideSites(const ExecutionProvider& ep, GraphView& graph, ChainLength length, const KernelLookup& kernels,
                   std::vector<Site>* sites, std::vector<bool>* has_kernel) {
  const bool on_cpu = ep.backend->directml() == nullptr;
  IntegerUnits units(graph, ep.options.int8_stays);
  const bool takes_pairs = on_cpu && length == ChainLength::kAny;
  *sites = FindSites(graph, {length, takes_pairs ? &units : nullptr, on_cpu && !ep.options.claim_all, on_cpu});
  has_kernel->assign(sites->size(), false);
  const BlockedLayout blocked(graph, *sites);
  const ClaimContext context{ep.options, blocked, units, *ep.tuning, *sites, on_cpu};
  for (size_t i = 0; i < sites->size(); ++i) {
    Site& site = (*sites)[i];
    if (site.declined) continue;
    const auto decide = [&]() -> Result {
      bool found = false;
      if (site.found->nodes.size() == 1) {
        NORMFUSE_RETURN_IF_ERROR(kernels.Has(graph.node(site.anchor), &found));
      }
      (*has_kernel)[i] = found;
      DecideClaim(graph, context, found, &site);
      return {};
    };
    NORMFUSE_RETURN_IF_ERROR(decide());
    if (!site.declined || !site.alone) continue;
    site.found = std::move(site.alone);
    site.alone.reset();
    NORMFUSE_RETURN_IF_ERROR(decide());
  }
  return {};
}

// Reads what the model says of its tuning, once. It was measured on the CPU path.
Result EnsureTuning(ExecutionProvider& ep, const ort::Graph* graph) {
  if (ep.tuning) return {};
  ep.tuning.emplace();
  if (!ep.options.tuning || ep.backend->directml() != nullptr) return {};
  std::string unused;
  NORMFUSE_RETURN_IF_ERROR(ReadTuning(graph, &*ep.tuning, &unused));
  if (!unused.empty()) {
    Log(ep, ort::LoggingLevel::kInfo, "normfuse does not use the tuning that the model carries: " + unused);
  }
  return {};
}

// Whether chains read anything but ports: an island's constants are none.
bool ReadsConstants(GraphView& graph, const FoundChain& found) {
  bool reads = false;
  ForEachTensorRef(found.chain, [&](const TensorRef& ref) {
    if (ref.constant || ref.input == TensorRef::kAbsent) return;
    reads = reads || graph.Facts(found.inputs[static_cast<size_t>(ref.input)]).constant != nullptr;
  });
  return reads;
}

// Chains alone are kept as such: they have the CPU path to fall back on, which reads the CPU's memory.
bool IsOfChains(const ExecutionProvider& ep, GraphView& graph, const FoundIsland& island,
                const std::vector<Site>& sites) {
  size_t nodes = 0;
  for (size_t site : island.sites) {
    if (ReadsConstants(graph, *sites[site].found)) return false;
    nodes += sites[site].found->nodes.size();
  }
  return nodes == island.nodes.size() && !ep.options.device_memory;
}

bool ReadsGiven(GraphView& graph, const std::vector<int>& nodes) {
  return std::any_of(nodes.begin(), nodes.end(), [&](int node) {
    const std::vector<int>& inputs = graph.node(node).inputs;
    return std::any_of(inputs.begin(), inputs.end(), [&](int value) { return graph.Facts(value).given; });
  });
}

Result ClaimIsland(ExecutionProvider& ep, GraphView& graph, const FoundIsland& island, const std::vector<Site>& sites,
                   ort::EpGraphSupportInfo* support) {
  NORMFUSE_RETURN_IF_ERROR(ClaimToCompile(graph, island.nodes, !ReadsGiven(graph, island.nodes), support));
  ClaimedNode claimed;
  if (IsOfChains(ep, graph, island, sites)) {
    claimed.on_gpu = true;
    std::vector<ValuesOf> values;
    for (size_t site : island.sites) values.push_back({&sites[site].found->inputs, &sites[site].found->outputs});
    for (size_t at : ProducersFirst(values)) claimed.chains.push_back(Named(graph, *sites[island.sites[at]].found));
  } else {
    NORMFUSE_RETURN_IF_ERROR(ReadIsland(graph, island, sites, &claimed.island.emplace()));
  }
  ep.claimed.Keep(MadeBy(graph, island.nodes), std::move(claimed));
  return {};
}

// Claims the islands that pay, or with claim=all all that compute anything. Gives the sites in them, and by node which are.
Result ClaimIslands(ExecutionProvider& ep, GraphView& graph, ort::EpGraphSupportInfo* support,
                    std::vector<bool>* claimed, std::vector<Site>* in_islands) {
  claimed->assign(graph.nodes().size(), false);
  std::vector<Site> sites = FindSitesForGpu(graph);
  for (const FoundIsland& island : FindIslands(graph, sites, ep.backend->directml()->capabilities())) {
    if (!island.computes || !(island.pays || ep.options.claim_all)) continue;
    NORMFUSE_RETURN_IF_ERROR(ClaimIsland(ep, graph, island, sites, support));
    for (const int node : island.nodes) (*claimed)[static_cast<size_t>(node)] = true;
    for (const size_t site : island.sites) {
      if (ep.options.claim_all) sites[site].decided_by = DecidedBy::kOption;
      in_islands->push_back(std::move(sites[site]));
    }
  }
  return {};
}

// On DirectML: what is in an island runs on the GPU; of the rest, what pays on the CPU path runs there, unless nodes have
// their tensors on the GPU.
Result ClaimOnDirectMl(ExecutionProvider& ep, GraphView& graph, ort::EpGraphSupportInfo* support,
                       std::vector<Site>* sites) {
  std::vector<bool> in_island;
  NORMFUSE_RETURN_IF_ERROR(ClaimIslands(ep, graph, support, &in_island, sites));
  IntegerUnits units(graph, ep.options.int8_stays);
  std::vector<Site> rest = FindSites(
      graph, {ChainLength::kOwnNodesAlone, &units, !ep.options.claim_all, /*keeps_values=*/false, &in_island});
  std::move(rest.begin(), rest.end(), std::back_inserter(*sites));
  std::sort(sites->begin(), sites->end(), [](const Site& a, const Site& b) { return a.anchor < b.anchor; });
  const BlockedLayout blocked(graph, *sites);
  const ClaimContext context{ep.options, blocked, units, *ep.tuning, *sites, /*on_cpu=*/true};
  for (Site& site : *sites) {
    if (site.declined || in_island[static_cast<size_t>(site.anchor)]) continue;
    if (ep.options.device_memory) {
      site.declined = ep.backend->CheckForDirectMl(site.found->chain)
                          .value_or(Decline(Reason::kNotWorthTheGpu, {{"node", site.found->chain.name}}));
      continue;
    }
    DecideClaim(graph, context, /*has_registered_kernel=*/false, &site);
    if (!ep.backend->CheckForDirectMl(site.found->chain)) {
      site.off_gpu = Decline(Reason::kNotWorthTheGpu, {{"node", site.found->chain.name}});
    }
    if (!site.declined) NORMFUSE_RETURN_IF_ERROR(Claim(ep, graph, *site.found, /*has_kernel=*/false, support));
  }
  return {};
}

Result Report(ExecutionProvider& ep, const ort::Graph* ort_graph, GraphView& graph, const std::vector<Site>& sites) {
  for (const Site& site : sites) LogSite(ep, graph, site);
  for (const std::string& name : ep.given.Found()) {
    Log(ep, ort::LoggingLevel::kInfo,
        "normfuse takes '" + name + "' for no constant: the session's options give it (add_initializer)");
  }
  if (ep.options.claim_report.empty()) return {};
  const std::string name = NameOf(ort_graph);
  NORMFUSE_RETURN_IF_ERROR(AppendClaimReport(ep.options, *ep.backend, name, graph, sites, &ep.claim_report_lines));
  if (ep.options.explain_directml == 0) return {};
  return AppendIslandReport(ep.options, name, graph, &ep.claim_report_lines);
}

Result GetCapability(ExecutionProvider& ep, const ort::Graph* ort_graph, ort::EpGraphSupportInfo* support) {
  const CallTimer timer(ep, "GetCapability");
  ep.claimed.Clear();
  NORMFUSE_RETURN_IF_ERROR(EnsureTuning(ep, ort_graph));
  GraphView graph;
  NORMFUSE_RETURN_IF_ERROR(graph.Read(ort_graph, &ep.given));
  std::vector<Site> sites;
  std::vector<bool> has_kernel;
  const bool may_compile = ep.options.compile && !ep.options.generates_context;
  if (may_compile && ep.backend->directml() != nullptr) {
    NORMFUSE_RETURN_IF_ERROR(ClaimOnDirectMl(ep, graph, support, &sites));
    NORMFUSE_RETURN_IF_ERROR(Report(ep, ort_graph, graph, sites));
    timer.Log(graph.nodes().size(), "nodes");
    return {};
  }
  if (ep.options.device_memory) return {};  // kernels of single nodes read the CPU's memory
  NORMFUSE_RETURN_IF_ERROR(DecideSites(ep, graph, may_compile ? ChainLength::kAny : ChainLength::kSingleNode,
                                       KernelLookup(support, KernelSet::kNormalizations), &sites, &has_kernel));
  if (CompilesTooMuch(graph, sites, has_kernel, ep.options)) {
    const KernelSet kernels = ep.options.claim_all ? KernelSet::kEverything : KernelSet::kNormalizations;
    NORMFUSE_RETURN_IF_ERROR(
        DecideSites(ep, graph, ChainLength::kSingleNode, KernelLookup(support, kernels), &sites, &has_kernel));
    DeclineCompilation(&sites, has_kernel);
  }
  for (size_t i = 0; i < sites.size(); ++i) {
    if (!sites[i].declined && !has_kernel[i]) TakeParts(graph, ep.options.claim_all, &*sites[i].found);
  }
  NORMFUSE_RETURN_IF_ERROR(Report(ep, ort_graph, graph, sites));
  for (size_t i = 0; i < sites.size(); ++i) {
    if (sites[i].declined) continue;
    NORMFUSE_RETURN_IF_ERROR(Claim(ep, graph, std::move(*sites[i].found), has_kernel[i], support));
  }
  timer.Log(graph.nodes().size(), "nodes");
  return {};
}

ort::Status* CreateState(ort::NodeComputeInfo* info, ort::NodeComputeContext*, void** state) {
  *state = info;
  return nullptr;
}

ort::Status* Compute(ort::NodeComputeInfo*, void* state, ort::KernelContext* context) {
  return ort::Guarded([&] {
    ort::KernelExecution execution(context);
    return static_cast<FusedNode*>(state)->executable->Run(execution);
  });
}

std::unique_ptr<FusedNode> MakeFusedNode() {
  auto node = std::make_unique<FusedNode>();
  static_cast<ort::NodeComputeInfo&>(*node) = {ort::GetHost().version, CreateState, Compute,
                                               [](ort::NodeComputeInfo*, void*) {}};
  return node;
}

Result CompileOne(ExecutionProvider& ep, const ort::Graph* graph, const ort::Node* fused_node,
                  std::unique_ptr<FusedNode>* out) {
  Ports ports;
  NORMFUSE_RETURN_IF_ERROR(ReadPorts(fused_node, &ports));
  std::vector<std::string> made;
  NORMFUSE_RETURN_IF_ERROR(MadeInside(graph, &made));
  ClaimedNode claimed;
  NORMFUSE_RETURN_IF_ERROR(ep.claimed.Take(made, &claimed));
  *out = MakeFusedNode();
  if (claimed.island) {
    Connect(ports, &*claimed.island);
    const Tensors tensors = ep.options.device_memory ? Tensors::kMayStayOnGpu : Tensors::kOnCpu;
    return ep.backend->Compile(std::move(*claimed.island), tensors, &(*out)->executable);
  }
  if (claimed.chains.size() == 1 && claimed.chains.front().has_parts()) {
    ChainOfParts chain;
    NORMFUSE_RETURN_IF_ERROR(Connect(std::move(claimed.chains.front()), ports, &chain));
    return CompileForCpu(std::move(chain), &(*out)->executable);
  }
  ChainSequence sequence;
  NORMFUSE_RETURN_IF_ERROR(Connect(std::move(claimed.chains), ports, &sequence));
  if (claimed.on_gpu) return ep.backend->Compile(std::move(sequence), &(*out)->executable);
  return CompileForCpu(sequence, &(*out)->executable);
}

const char* GetName(const ort::Ep*) { return kEpName; }

ort::Status* GetCapabilityEntry(ort::Ep* ep, const ort::Graph* graph, ort::EpGraphSupportInfo* support) {
  return ort::Guarded([&] { return GetCapability(From(ep), graph, support); });
}

ort::Status* CompileEntry(ort::Ep* ep, const ort::Graph** graphs, const ort::Node** fused_nodes, size_t count,
                          ort::NodeComputeInfo** infos, ort::Node**) {
  return ort::Guarded([&]() -> Result {
    const CallTimer timer(From(ep), "Compile");
    std::vector<std::unique_ptr<FusedNode>> nodes(count);
    for (size_t i = 0; i < count; ++i) {
      NORMFUSE_RETURN_IF_ERROR(CompileOne(From(ep), graphs[i], fused_nodes[i], &nodes[i]));
    }
    for (size_t i = 0; i < count; ++i) infos[i] = nodes[i].release();
    timer.Log(count, "fused nodes");
    return {};
  });
}

ort::Status* OnSessionInitializationEnd(ort::Ep* ep) {
  From(ep).given = {};
  return nullptr;
}

ort::Status* GetKernelRegistry(ort::Ep*, const ort::KernelRegistry** out) {
  return ort::Guarded([&] { return OperatorKernelRegistry(out); });
}

ort::Status* GetDefaultMemoryDevice(const ort::Ep* ep, const ort::MemoryDevice** out) {
  *out = DefaultMemoryDevice(static_cast<const ExecutionProvider*>(ep)->options.device_memory);
  return nullptr;
}

void ReleaseNodeComputeInfos(ort::Ep*, ort::NodeComputeInfo** infos, size_t count) {
  for (size_t i = 0; i < count; ++i) delete static_cast<FusedNode*>(infos[i]);
}

}  // namespace

ort::Ep* CreateExecutionProvider(EpOptions options, std::unique_ptr<Backend> backend, GivenInitializers given,
                                 const ort::Logger* logger) {
  auto ep = std::make_unique<ExecutionProvider>();
  ep->ort_version_supported = ort::GetHost().version;
  ep->GetName = GetName;
  ep->GetCapability = GetCapabilityEntry;
  ep->Compile = CompileEntry;
  ep->ReleaseNodeComputeInfos = ReleaseNodeComputeInfos;
  ep->GetKernelRegistry = GetKernelRegistry;
  ep->OnSessionInitializationEnd = OnSessionInitializationEnd;
  if (DeviceMemoryInfo() != nullptr) ep->GetDefaultMemoryDevice = GetDefaultMemoryDevice;
  ep->options = std::move(options);
  ep->backend = std::move(backend);
  ep->given = std::move(given);
  ep->logger = logger;
  return ep.release();
}

const Backend& BackendOf(const ort::Ep* ep) { return *static_cast<const ExecutionProvider*>(ep)->backend; }

void ReleaseExecutionProvider(ort::Ep* ep) { delete static_cast<ExecutionProvider*>(ep); }

}  // namespace normfuse::plugin
