// Constants of an island on a GPU: uploaded once, and read there by the programs of all its shapes.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "directml/device/gpu.h"
#include "directml/lowering/program.h"

namespace normfuse::directml {

class Weights {
 public:
  struct Place {
    ComPtr<abi::ID3D12Resource> resource;
    uint64_t offset = 0;
  };

  // Brings to the GPU those weights of a program that are not there yet, and says where each lies, by input. One caller
  // at a time.
  Result Upload(const DmlProgram& program, const std::shared_ptr<Gpu>& gpu, std::vector<Place>* places, GpuWork* work);

 private:
  // As it is, or as float32.
  using Key = std::pair<std::shared_ptr<const ConstantTensor>, DataType>;

  Result UploadNew(const DmlProgram& program, GpuWork* work);

  std::shared_ptr<Gpu> gpu_;  // what is on another one is of no use
  std::map<Key, Place> places_;
};

}  // namespace normfuse::directml
