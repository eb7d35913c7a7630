// A hash of files' content: by what models that were prepared before are found, and checked.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace normfuse::plugin {

using Digest = std::array<uint64_t, 2>;

// NH (the universal hash of UMAC, RFC 4418, with words of 64 bits) over blocks, in a tree. Two contents that were chosen
// without the key have the same digest with a probability below 2^-60; who knows the key can make such ones. It runs at
// the speed of memory, where the instructions of SHA take ten times as long.
Digest HashContent(const uint8_t* data, size_t size, uint64_t key);

}  // namespace normfuse::plugin
