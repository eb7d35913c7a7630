// A library to link with: its functions succeed and give nothing, as the ones in torch_directml's folder do.
#include <cstdint>

#define NORMFUSE_STUB __attribute__((visibility("default"))) int32_t

extern "C" {

NORMFUSE_STUB DXCoreCreateAdapterFactory(const void* /*iid*/, void** /*factory*/) { return 0; }
NORMFUSE_STUB D3D12CreateDevice(void* /*adapter*/, int32_t /*level*/, const void* /*iid*/, void** /*device*/) {
  return 0;
}
NORMFUSE_STUB DMLCreateDevice1(void* /*d3d12*/, uint32_t /*flags*/, uint32_t /*level*/, const void* /*iid*/,
                               void** /*device*/) {
  return 0;
}

}  // extern "C"
