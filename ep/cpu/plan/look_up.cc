#include "cpu/plan/look_up.h"

#include <algorithm>

#include "cpu/plan/code_table.h"

namespace normfuse::cpu {
namespace {

void LookUp(const Call& call, const void* codes, size_t n, void* y) {
  const CodeTable& table = *call.table;
  if (BitsOf(table.code) != 8 || BitsOf(table.type) != 8) return LookUpValues(table, codes, n, y);
  call.kernels->look_up(table.values.data(), static_cast<const uint8_t*>(codes), n, static_cast<uint8_t*>(y));
}

}  // namespace

void LookUpCodes(const Call& call, const void* codes, size_t n, void* y, bool stream) {
  const CodeTable& table = *call.table;
  if (!table.ending) return LookUp(call, codes, n, y);
  alignas(64) uint16_t room[kBlock];
  const Vec scale{&table.ending->scale, 0};
  const Vec zero{&table.ending->zero, 0};
  const auto dequantize = call.kernels->dequantize[static_cast<int>(table.type)];
  for (size_t i = 0; i < n; i += kBlock) {
    const size_t some = std::min<size_t>(n - i, kBlock);
    LookUp(call, static_cast<const char*>(codes) + i * BytesFor(table.code, 1), some, room);
    dequantize(room, some, scale, zero, static_cast<float*>(y) + i, stream);
  }
}

}  // namespace normfuse::cpu
