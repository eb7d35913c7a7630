// Refused instructions become jumps to what does the same with AVX2: a signal takes ten microseconds or more each time.
#pragma once

#include "instruction.h"

namespace avx_vnni {

// At program start: what Translate needs of the system.
void PrepareTranslation();

// Replaces an instruction that was refused, if that can be done. Only one thread at a time may call it.
void Translate(uint8_t* code, const Instruction& instruction);

// The first byte of what it has become.
constexpr uint8_t kJump = 0xe9;

}  // namespace avx_vnni
