// What ONNX Runtime needs so that tensors can stay on the GPU: a kind of memory, its allocator, and copies to and from
// it. Offered where the environment asks for it, as it is seen by all sessions of the process, those on the CPU too.
#pragma once

#include "plugin/host/options.h"

namespace normfuse::plugin {

// Null where it is not offered: before ONNX Runtime 1.28 a session cannot choose, and would have it forced upon it.
const ort::MemoryInfo* DeviceMemoryInfo();

// Why the session cannot have what its options ask for.
Result CheckDeviceMemory(const EpOptions& options);

// Where the nodes of a session have their tensors.
const ort::MemoryDevice* DefaultMemoryDevice(bool on_gpu);

ort::Allocator* DeviceAllocator();
// Null where it is not offered.
ort::DataTransferImpl* DeviceDataTransfer();

}  // namespace normfuse::plugin
