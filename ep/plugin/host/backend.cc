#include "plugin/host/backend.h"

#include <map>
#include <mutex>
#include <tuple>
#include <utility>

#include "plugin/claim/json_lines.h"

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

constexpr const char* kReport = "directml_report";

std::string LineOf(const std::string& node, const GpuWork& work) {
  const std::pair<const char*, uint64_t> fields[] = {{"submissions", work.submissions}, {"waits", work.waits},
                                                     {"dispatches", work.dispatches},   {"barriers", work.barriers},
                                                     {"bytes_up", work.bytes_up},       {"bytes_down", work.bytes_down},
                                                     {"created", work.created},         {"recorded", work.recorded}};
  std::string line = "{\"node\": " + Quoted(node);
  for (const auto& [name, value] : fields) line += ", " + Quoted(name) + ": " + std::to_string(value);
  return line + "}\n";
}

GpuWorkListener ReportTo(const std::string& file) {
  if (file.empty()) return {};
  // A call that has its result is not failed because a disk is full.
  return [file](const std::string& node, const GpuWork& work) {
    (void)AppendJsonLines(kReport, file, LineOf(node, work));
  };
}

}  // namespace

Result Backend::Create(const BackendOptions& options, std::unique_ptr<Backend>* backend) {
  auto created = std::make_unique<Backend>();
  NORMFUSE_RETURN_IF_ERROR(CheckJsonLines(kReport, options.directml_report));
  const char* isa = nullptr;
  NORMFUSE_RETURN_IF_ERROR(SelectedIsa(&isa));
  if (options.choice == BackendValue::kDirectml) {
    NORMFUSE_RETURN_IF_ERROR(ShareDevice(options.directml, &created->device_));
    created->listener_ = ReportTo(options.directml_report);
  }
  *backend = std::move(created);
  return {};
}

std::optional<Declined> Backend::CheckForDirectMl(const Chain& chain) const {
  return device_ == nullptr ? std::nullopt : normfuse::CheckForDirectMl(chain, *device_);
}

Result Backend::Compile(const Chain& chain, std::unique_ptr<Executable>* executable) const {
  if (device_ == nullptr || CheckForDirectMl(chain).has_value()) return CompileForCpu(chain, executable);
  return CompileForDirectMl(chain, device_, executable, listener_);
}

Result Backend::Compile(ChainSequence sequence, std::unique_ptr<Executable>* executable) const {
  return CompileForDirectMl(std::move(sequence), device_, executable, listener_);
}

Result Backend::Compile(directml::Island island, Tensors tensors, std::unique_ptr<Executable>* executable) const {
  return CompileForDirectMl(std::move(island), device_, tensors, executable, listener_);
}

}  // namespace normfuse::plugin
