#include "plugin/host/content_hash.h"

#include <algorithm>
#include <cstring>
#include <vector>

namespace normfuse::plugin {
namespace {

__extension__ using Wide = unsigned __int128;

constexpr size_t kWords = 256;  // of a block
constexpr size_t kBytes = kWords * sizeof(uint64_t);

using Keys = std::array<uint64_t, kWords>;

// The next number of SplitMix64 (Steele, Lea and Flood, 2014).
uint64_t Next(uint64_t& state) {
  uint64_t z = state += 0x9E3779B97F4A7C15;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  return z ^ (z >> 31);
}

// What is missing of a block counts as zeros.
Digest HashBlock(const uint8_t* data, size_t size, const Keys& keys) {
  std::array<uint64_t, kWords> words;
  if (size < kBytes) words.fill(0);
  std::memcpy(words.data(), data, size);
  Wide sum = 0;
  for (size_t i = 0; i < kWords; i += 2) sum += static_cast<Wide>(words[i] + keys[i]) * (words[i + 1] + keys[i + 1]);
  return {static_cast<uint64_t>(sum), static_cast<uint64_t>(sum >> 64)};
}

}  // namespace

Digest HashContent(const uint8_t* data, size_t size, uint64_t key) {
  const uint64_t length = size;
  std::vector<Digest> level;
  for (;;) {
    Keys keys;  // others on each level
    std::generate(keys.begin(), keys.end(), [&key] { return Next(key); });
    std::vector<Digest> next;
    next.reserve(size / kBytes + 2);
    for (size_t begin = 0; begin < size; begin += kBytes)
      next.push_back(HashBlock(data + begin, std::min(kBytes, size - begin), keys));
    const bool is_last = next.size() <= 1 && !level.empty();
    if (is_last) return next.front();
    if (level.empty()) next.push_back({length, 0});  // zeros behind the content change it
    level = std::move(next);
    data = reinterpret_cast<const uint8_t*>(level.data());
    size = level.size() * sizeof(Digest);
  }
}

}  // namespace normfuse::plugin
