#include "plugin/host/given_initializers.h"

#include "chain/data_type.h"

namespace normfuse::plugin {

Result GivenInitializers::Of(const ort::SessionOptions* session, GivenInitializers* given) {
  static uint8_t byte = 0;  // ONNX Runtime takes no value whose memory is its own
  const ort::Api& api = ort::GetApi();
  ort::SessionOptions* copy = nullptr;
  NORMFUSE_RETURN_IF_ORT_ERROR(api.CloneSessionOptions(session, &copy));
  given->copy_.reset(copy);
  ort::MemoryInfo* memory = nullptr;
  NORMFUSE_RETURN_IF_ORT_ERROR(api.CreateCpuMemoryInfo(ort::AllocatorType::kDevice, ort::MemType::kDefault, &memory));
  ort::Value* tried = nullptr;
  ort::Status* created = api.CreateTensorWithDataAsOrtValue(memory, &byte, sizeof(byte), nullptr, 0,
                                                            static_cast<int>(DataType::kUint8), &tried);
  api.ReleaseMemoryInfo(memory);
  NORMFUSE_RETURN_IF_ORT_ERROR(created);
  given->tried_.reset(tried);
  return {};
}

bool GivenInitializers::Has(const std::string& name) {
  const auto [answer, is_new] = answers_.try_emplace(name, false);
  if (is_new) {
    answer->second = !ort::FromStatus(ort::GetApi().AddInitializer(copy_.get(), name.c_str(), tried_.get())).ok();
  }
  return answer->second;
}

std::vector<std::string> GivenInitializers::Found() const {
  std::vector<std::string> found;
  for (const auto& [name, is_given] : answers_) {
    if (is_given) found.push_back(name);
  }
  return found;
}

}  // namespace normfuse::plugin
