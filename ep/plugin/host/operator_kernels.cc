#include "plugin/host/operator_kernels.h"

#include <memory>
#include <set>
#include <string_view>
#include <utility>

#include "abi/ort_execution.h"
#include "plugin/find/normalization_nodes.h"
#include "plugin/host/execution_provider.h"
#include "plugin/host/kernel_chain.h"

namespace normfuse::plugin {
namespace {

using ort::GetHost;

struct Kernel : ort::KernelImpl {
  std::unique_ptr<Executable> executable;
};

Result CreateKernel(const ort::KernelInfo* info, ort::KernelImpl** out) {
  const ort::Ep* ep = nullptr;
  NORMFUSE_RETURN_IF_ORT_ERROR(GetHost().ep_api.KernelInfo_GetEp(info, &ep));
  Chain chain;
  NORMFUSE_RETURN_IF_ERROR(ReadChain(info, &chain));
  auto kernel = std::make_unique<Kernel>();
  kernel->ort_version_supported = GetHost().version;
  kernel->Compute = [](ort::KernelImpl* self, ort::KernelContext* context) {
    return ort::Guarded([&] {
      ort::KernelExecution execution(context);
      return static_cast<Kernel*>(self)->executable->Run(execution);
    });
  };
  kernel->Release = [](ort::KernelImpl* self) { delete static_cast<Kernel*>(self); };
  NORMFUSE_RETURN_IF_ERROR(BackendOf(ep).Compile(chain, &kernel->executable));
  *out = kernel.release();
  return {};
}

ort::Status* CreateKernelEntry(void*, const ort::KernelInfo* info, ort::KernelImpl** out) {
  *out = nullptr;
  return ort::Guarded([&] { return CreateKernel(info, out); });
}

// Without a last version ORT takes a kernel for operators of its first version alone.
constexpr int kLastVersion = 1000;

Result Describe(ort::KernelDefBuilder* builder, std::string_view domain, std::string_view op_type,
                ort::KernelDef** definition) {
  const ort::EpApi& api = GetHost().ep_api;
  NORMFUSE_RETURN_IF_ORT_ERROR(api.KernelDefBuilder_SetOperatorType(builder, std::string(op_type).c_str()));
  NORMFUSE_RETURN_IF_ORT_ERROR(api.KernelDefBuilder_SetDomain(builder, std::string(domain).c_str()));
  NORMFUSE_RETURN_IF_ORT_ERROR(api.KernelDefBuilder_SetSinceVersion(builder, 1, kLastVersion));
  NORMFUSE_RETURN_IF_ORT_ERROR(api.KernelDefBuilder_SetExecutionProvider(builder, kEpName));
  NORMFUSE_RETURN_IF_ORT_ERROR(api.KernelDefBuilder_Build(builder, definition));
  return {};
}

Result AddKernel(ort::KernelRegistry* registry, std::string_view domain, std::string_view op_type) {
  const ort::EpApi& api = GetHost().ep_api;
  ort::KernelDefBuilder* builder = nullptr;
  NORMFUSE_RETURN_IF_ORT_ERROR(api.CreateKernelDefBuilder(&builder));
  ort::KernelDef* definition = nullptr;
  Result result = Describe(builder, domain, op_type, &definition);
  if (result.ok()) {
    result = ort::FromStatus(api.KernelRegistry_AddKernel(registry, definition, CreateKernelEntry, nullptr));
  }
  if (definition != nullptr) api.ReleaseKernelDef(definition);
  api.ReleaseKernelDefBuilder(builder);
  return result;
}

// Domain and type of what a chain may be anchored at.
std::set<std::pair<std::string_view, std::string_view>> StandardOperators() {
  std::set<std::pair<std::string_view, std::string_view>> operators;
  for (const NormalizationSpec& row : kNormalizations) operators.emplace(row.domain, row.op_type);
  for (const ActivationSpelling& spelling : kActivationSpellings) operators.emplace(spelling.domain, spelling.op_type);
  for (const char* domain : {"", "com.microsoft"}) {
    for (const char* op_type : {"DequantizeLinear", "QuantizeLinear"}) operators.emplace(domain, op_type);
  }
  return operators;
}

Result MakeRegistry(ort::KernelRegistry** registry) {
  NORMFUSE_RETURN_IF_ORT_ERROR(GetHost().ep_api.CreateKernelRegistry(registry));
  for (const auto& [domain, op_type] : StandardOperators()) {
    NORMFUSE_RETURN_IF_ERROR(AddKernel(*registry, domain, op_type));
  }
  for (const char* name : kFunctionNames) {
    NORMFUSE_RETURN_IF_ERROR(AddKernel(*registry, kOperatorDomain, name));
    for (int number = 2; number <= kNumberedFunctions; ++number) {
      NORMFUSE_RETURN_IF_ERROR(AddKernel(*registry, kOperatorDomain, std::string(name) + "_" + std::to_string(number)));
    }
  }
  // A plain node; the names of the other two operators without any step are among the above.
  return AddKernel(*registry, kOperatorDomain, "FusedNormalization");
}

}  // namespace

Result OperatorKernelRegistry(const ort::KernelRegistry** registry) {
  // Never released: sessions may end while the process shuts down.
  static ort::KernelRegistry* shared = nullptr;
  static const Result made = MakeRegistry(&shared);
  *registry = shared;
  return made;
}

Result KernelLookup::Has(const GraphNode& node, bool* has_kernel) const {
  const ort::KernelDef* definition = nullptr;
  const bool contributed = !node.domain.empty() && FindNormalization(node) != nullptr;
  if (set_ == KernelSet::kEverything || node.domain == kOperatorDomain || contributed) {
    NORMFUSE_RETURN_IF_ORT_ERROR(GetHost().ep_api.EpGraphSupportInfo_LookUpKernel(support_, node.node, &definition));
  }
  *has_kernel = definition != nullptr;
  return {};
}

}  // namespace normfuse::plugin
