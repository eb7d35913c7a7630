#include "directml/device/adapter.h"

#include <vector>

#include "directml/device/hresult.h"

namespace normfuse::directml {
namespace {

using namespace abi;

std::string NameOfAdapter(IDXCoreAdapter* adapter) {
  size_t bytes = 0;
  if (!Succeeded(adapter->GetPropertySize(DXCoreAdapterProperty::DriverDescription, &bytes)) || bytes == 0) return "?";
  std::string name(bytes, '\0');
  if (!Succeeded(adapter->GetProperty(DXCoreAdapterProperty::DriverDescription, bytes, name.data()))) return "?";
  return name.c_str();
}

std::string ListOf(IDXCoreAdapterList* list) {
  std::string text;
  for (uint32_t i = 0; i < list->GetAdapterCount(); ++i) {
    ComPtr<IDXCoreAdapter> adapter;
    if (!Succeeded(list->GetAdapter(i, IDXCoreAdapter::kIid, adapter.Receive()))) continue;
    text += (text.empty() ? "" : ", ") + std::to_string(i) + ": " + NameOfAdapter(adapter.get());
  }
  return text.empty() ? "none" : text;
}

Result ByLuid(IDXCoreAdapterFactory* factory, uint64_t luid, ComPtr<IDXCoreAdapter>* adapter) {
  const LUID id = {static_cast<uint32_t>(luid), static_cast<int32_t>(luid >> 32U)};
  return CheckHresult("IDXCoreAdapterFactory::GetAdapterByLuid",
                      factory->GetAdapterByLuid(id, IDXCoreAdapter::kIid, adapter->Receive()));
}

Result FromList(IDXCoreAdapterFactory* factory, const DirectMlOptions& options, ComPtr<IDXCoreAdapter>* adapter) {
  ComPtr<IDXCoreAdapterList> list;
  NORMFUSE_RETURN_IF_FAILED(
      "IDXCoreAdapterFactory::CreateAdapterList",
      factory->CreateAdapterList(1, &kDxcoreD3d12CoreCompute, IDXCoreAdapterList::kIid, list.Receive()));
  if (options.adapter != DirectMlOptions::Adapter::kIndex) {
    const bool fast = options.adapter == DirectMlOptions::Adapter::kHighPerformance;
    const DXCoreAdapterPreference order[] = {
        DXCoreAdapterPreference::Hardware,
        fast ? DXCoreAdapterPreference::HighPerformance : DXCoreAdapterPreference::MinimumPower};
    NORMFUSE_RETURN_IF_FAILED("IDXCoreAdapterList::Sort", list->Sort(2, order));
  }
  const uint32_t index = options.adapter == DirectMlOptions::Adapter::kIndex ? options.index : 0;
  if (index >= list->GetAdapterCount()) {
    return Result::Error(ErrorCode::kInvalidArgument, "DirectML path: there is no adapter " + std::to_string(index) +
                                                          "; this machine has: " + ListOf(list.get()));
  }
  return CheckHresult("IDXCoreAdapterList::GetAdapter",
                      list->GetAdapter(index, IDXCoreAdapter::kIid, adapter->Receive()));
}

}  // namespace

Result ChooseAdapter(IDXCoreAdapterFactory* factory, const DirectMlOptions& options, ComPtr<IDXCoreAdapter>* adapter,
                     std::string* name) {
  NORMFUSE_RETURN_IF_ERROR(options.adapter == DirectMlOptions::Adapter::kLuid ? ByLuid(factory, options.luid, adapter)
                                                                              : FromList(factory, options, adapter));
  *name = NameOfAdapter(adapter->get());
  return {};
}

}  // namespace normfuse::directml
