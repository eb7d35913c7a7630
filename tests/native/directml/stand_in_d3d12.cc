// Stands in for libd3d12.so where there is none: Microsoft's libdirectml.so asks for this one symbol when it is loaded, and
// calls it only when an operator is compiled, which the validation does not do.
#include "com_object.h"

NORMFUSE_TEST_EXPORT normfuse::abi::HRESULT D3D12SerializeVersionedRootSignature(const void*, void**, void**) {
  return normfuse::abi::kNotImplemented;
}
