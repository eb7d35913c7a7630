// The instructions: Intel SDM volume 2D. Their encoding (VEX of three bytes, map 0F38, prefix 66, opcodes 50 to 53):
// volume 2A, 2.1 and 2.3.
#include "instruction.h"

#include <cstring>

namespace avx_vnni {
namespace {

constexpr int kSib = 4, kNoIndex = 4, kNoBase = 5;

template <class Number>
Number Taken(const uint8_t*& at) {
  Number number;
  std::memcpy(&number, at, sizeof number);
  at += sizeof number;
  return number;
}

// Which of the upper eight registers are meant; the bits are inverted.
int Extension(uint8_t vex, int bit) { return (vex & bit) != 0 ? 0 : 8; }

// `at` is at ModRM, and afterwards behind the instruction.
Operand TakeOperand(uint8_t vex, const uint8_t*& at) {
  const uint8_t modrm = *at++;
  const int mode = modrm >> 6, rm = modrm & 7, base_extension = Extension(vex, 0x20);
  if (mode == 3) return {.vector = rm + base_extension};
  Operand operand;
  int base = rm;
  if (rm == kSib) {
    const uint8_t sib = *at++;
    base = sib & 7;
    operand.shift = sib >> 6;
    const int index = (sib >> 3 & 7) + Extension(vex, 0x40);
    if (index != kNoIndex) operand.index = index;
  }
  if (base == kNoBase && mode == 0) {
    operand.base = rm == kSib ? kNone : kNextInstruction;
    operand.displacement = Taken<int32_t>(at);
    return operand;
  }
  operand.base = base + base_extension;
  if (mode == 1) operand.displacement = Taken<int8_t>(at);
  if (mode == 2) operand.displacement = Taken<int32_t>(at);
  return operand;
}

}  // namespace

std::optional<Instruction> Decode(const uint8_t* code) {
  constexpr uint8_t kVex = 0xc4, kMap0F38 = 2, kPrefix66 = 1;  // and the bit W is 0
  if (code[0] != kVex || (code[1] & 0x1f) != kMap0F38 || (code[2] & 0x83) != kPrefix66) return std::nullopt;
  if ((code[3] & 0xfc) != 0x50) return std::nullopt;
  Instruction instruction = {.words = (code[3] & 2) != 0,
                             .saturates = (code[3] & 1) != 0,
                             .bytes = (code[2] & 4) != 0 ? 32 : 16,
                             .sum = (code[4] >> 3 & 7) + Extension(code[1], 0x80),
                             .first = ~(code[2] >> 3) & 15,
                             .second = {}};
  const uint8_t* at = code + 4;
  instruction.second = TakeOperand(code[1], at);
  instruction.length = static_cast<int>(at - code);
  return instruction;
}

}  // namespace avx_vnni
