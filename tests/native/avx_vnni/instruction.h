// The instructions of AVX-VNNI: VPDPBUSD, VPDPBUSDS, VPDPWSSD and VPDPWSSDS, as their bytes say what they are.
#pragma once

#include <cstdint>
#include <optional>

namespace avx_vnni {

constexpr int kNone = -1;
constexpr int kNextInstruction = -2;  // as a base: where the instruction ends

// A vector register, or what is in memory at base + (index << shift) + displacement.
struct Operand {
  int vector = kNone;
  int base = kNone;
  int index = kNone;
  int shift = 0;
  int32_t displacement = 0;
};

struct Instruction {
  bool words = false;      // pairs of int16 instead of four of uint8 and int8
  bool saturates = false;  // the sum, to int32
  int bytes = 0;           // 16 (xmm) or 32 (ymm)
  int sum = 0;             // vector registers
  int first = 0;
  Operand second;
  int length = 0;  // bytes of code: five or more
};

// None where the bytes are none of the four.
std::optional<Instruction> Decode(const uint8_t* code);

}  // namespace avx_vnni
