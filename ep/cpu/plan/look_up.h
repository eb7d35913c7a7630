// The rest of a chain by its table: see code_table.h.
#pragma once

#include "cpu/run/call.h"

namespace normfuse::cpu {

// Y's elements for n integers. `stream`: they are float32, begin with a line of the cache, and are stored non-temporally.
void LookUpCodes(const Call& call, const void* codes, size_t n, void* y, bool stream);

}  // namespace normfuse::cpu
