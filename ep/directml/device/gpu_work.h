// What a call of a node asks of the GPU, counted where it is recorded.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace normfuse {

struct GpuWork {
  uint64_t submissions = 0;
  uint64_t waits = 0;       // of the CPU for the GPU
  uint64_t dispatches = 0;  // of compiled DirectML graphs; DirectML makes one or more of Direct3D of each
  uint64_t barriers = 0;
  uint64_t bytes_up = 0;    // copied from CPU memory to the GPU's
  uint64_t bytes_down = 0;  // and back
  uint64_t created = 0;     // buffers, descriptor heaps, operators, graphs, lists: nothing once shapes were seen
  uint64_t recorded = 0;    // command lists: nothing once shapes were seen

  GpuWork& operator+=(const GpuWork& other) {
    submissions += other.submissions;
    waits += other.waits;
    dispatches += other.dispatches;
    barriers += other.barriers;
    bytes_up += other.bytes_up;
    bytes_down += other.bytes_down;
    created += other.created;
    recorded += other.recorded;
    return *this;
  }
};

// Told of each call of a node on the GPU that succeeded. May be called from several threads at once.
using GpuWorkListener = std::function<void(const std::string& node, const GpuWork& work)>;

}  // namespace normfuse
