#include "plugin/backend.h"

#include <map>
#include <mutex>
#include <tuple>
#include <utility>

namespace normfuse::plugin {
namespace {

using DeviceKey = std::tuple<int, uint32_t, uint64_t, std::string, std::string, std::string>;

DeviceKey KeyOf(const DirectMlOptions& options) {
  return {static_cast<int>(options.adapter), options.index,         options.luid,
          options.directml_library,          options.d3d12_library, options.dxcore_library};
}

// Opens the device, or returns the one that a session with the same options holds.
Result ShareDevice(const DirectMlOptions& options, std::shared_ptr<DirectMlDevice>* device) {
  // Never destroyed: sessions may end while the process shuts down.
  static auto* mutex = new std::mutex;
  static auto* devices = new std::map<DeviceKey, std::weak_ptr<DirectMlDevice>>;
  const std::lock_guard<std::mutex> lock(*mutex);
  std::weak_ptr<DirectMlDevice>& known = (*devices)[KeyOf(options)];
  *device = known.lock();
  if (*device != nullptr) return {};
  NORMFUSE_RETURN_IF_ERROR(DirectMlDevice::Create(options, device));
  known = *device;
  return {};
}

}  // namespace

Result Backend::Create(const BackendOptions& options, std::unique_ptr<Backend>* backend) {
  auto created = std::make_unique<Backend>();
  const char* isa = nullptr;
  NORMFUSE_RETURN_IF_ERROR(SelectedIsa(&isa));
  if (options.choice == BackendChoice::kDirectMl) {
    NORMFUSE_RETURN_IF_ERROR(ShareDevice(options.directml, &created->device_));
  }
  *backend = std::move(created);
  return {};
}

std::optional<Declined> Backend::CheckForDirectMl(const Plan& plan) const {
  return device_ == nullptr ? std::nullopt : normfuse::CheckForDirectMl(plan, *device_);
}

Result Backend::Compile(const Plan& plan, std::unique_ptr<Executable>* executable) const {
  if (device_ == nullptr || CheckForDirectMl(plan).has_value()) return CompileForCpu(plan, executable);
  return CompileForDirectMl(plan, device_, executable);
}

Result Backend::Compile(PlanSequence sequence, std::unique_ptr<Executable>* executable) const {
  if (sequence.plans.size() == 1) return Compile(sequence.plans.front(), executable);
  return CompileForDirectMl(std::move(sequence), device_, executable);
}

}  // namespace normfuse::plugin
