#include "translation.h"

#include <linux/membarrier.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <initializer_list>

namespace avx_vnni {
namespace {

constexpr int kJumpLength = 5;
constexpr int64_t kReach = int64_t{1} << 31;  // of 32 bits with a sign
constexpr int kRsp = 4;

// Bytes of new code, at the address where they will run.
class Writer {
 public:
  explicit Writer(uint8_t* at) : at_(at) {}

  uint8_t* End() const { return at_; }

  void Bytes(std::initializer_list<int> bytes) {
    for (int byte : bytes) *at_++ = static_cast<uint8_t>(byte);
  }
  void Number(int32_t number) {
    std::memcpy(at_, &number, sizeof number);
    at_ += sizeof number;
  }
  void JumpTo(const uint8_t* target) {
    Bytes({kJump});
    Number(static_cast<int32_t>(target - (at_ + sizeof(int32_t))));
  }

 private:
  uint8_t* at_;
};

// Integer instructions of AVX2 on vector registers, named as in the manual without VP.
class Vectors {
 public:
  Vectors(Writer& writer, int bytes) : writer_(writer), wide_(bytes == 32) {}

  void Xor(int to, int a, int b) { Three(0xef, to, a, b); }
  void And(int to, int a, int b) { Three(0xdb, to, a, b); }
  void AndNot(int to, int a, int b) { Three(0xdf, to, a, b); }  // b without the bits of a
  void Or(int to, int a, int b) { Three(0xeb, to, a, b); }
  void AddD(int to, int a, int b) { Three(0xfe, to, a, b); }
  void MulAddWd(int to, int a, int b) { Three(0xf5, to, a, b); }
  void ShiftLeftW(int to, int from, int by) { Shift(0x71, 6, to, from, by); }
  void ShiftRightW(int to, int from, int by) { Shift(0x71, 2, to, from, by); }
  void ShiftRightSignedW(int to, int from, int by) { Shift(0x71, 4, to, from, by); }
  void ShiftLeftD(int to, int from, int by) { Shift(0x72, 6, to, from, by); }
  void ShiftRightSignedD(int to, int from, int by) { Shift(0x72, 4, to, from, by); }

  void Load(int to, const Operand& from) { Move(0x6f, to, from); }
  void Store(int from, const Operand& to) { Move(0x7f, from, to); }

 private:
  static constexpr int k66 = 1, kF3 = 2, kMap0F = 1;

  // A prefix of three bytes, and the opcode; which of the upper eight registers are meant is inverted.
  void Prefixed(int prefix, int opcode, int reg, int v, int index, int base) {
    const int extensions = (reg >= 8 ? 0 : 0x80) | (index >= 8 ? 0 : 0x40) | (base >= 8 ? 0 : 0x20);
    writer_.Bytes({0xc4, extensions | kMap0F, (~v & 15) << 3 | (wide_ ? 4 : 0) | prefix, opcode});
  }
  void Three(int opcode, int to, int a, int b) {
    Prefixed(k66, opcode, to, a, 0, b);
    writer_.Bytes({0xc0 | (to & 7) << 3 | (b & 7)});
  }
  void Shift(int opcode, int kind, int to, int from, int by) {
    Prefixed(k66, opcode, 0, to, 0, from);
    writer_.Bytes({0xc0 | kind << 3 | (from & 7), by});
  }
  void Move(int opcode, int reg, const Operand& operand) {
    const int base = operand.vector == kNone ? operand.base : operand.vector;
    Prefixed(kF3, opcode, reg, 0, operand.index, base);
    const int low = (reg & 7) << 3;
    if (operand.vector != kNone) return writer_.Bytes({0xc0 | low | (operand.vector & 7)});
    if (operand.base == kNextInstruction) {
      writer_.Bytes({low | 5});
    } else {
      const int index = operand.index == kNone ? 4 : operand.index & 7;
      const int mode = operand.base == kNone ? 0 : 0x80;
      writer_.Bytes({mode | low | 4, operand.shift << 6 | index << 3 | (operand.base == kNone ? 5 : operand.base & 7)});
    }
    writer_.Number(operand.displacement);
  }

  Writer& writer_;
  bool wide_;
};

// Adds to the sums the products of uint8 and int8, which fit into 16 bits; two of them are added in 32.
void WriteProducts(Vectors& vectors, const Instruction& instruction, const int (&scratch)[3]) {
  const auto [a, b, c] = scratch;  // a holds the second operand
  const int sum = instruction.sum, first = instruction.first;
  vectors.ShiftLeftW(b, a, 8);
  vectors.ShiftRightSignedW(b, b, 8);
  vectors.ShiftLeftW(c, first, 8);
  vectors.ShiftRightW(c, c, 8);
  vectors.MulAddWd(b, b, c);
  vectors.ShiftRightSignedW(a, a, 8);
  vectors.ShiftRightW(c, first, 8);
  vectors.MulAddWd(a, a, c);
  vectors.AddD(a, a, b);
  if (!instruction.saturates) return vectors.AddD(sum, sum, a);
  vectors.AddD(b, sum, a);
  // Beyond int32 where the result has another sign than both: then it is the largest, or the smallest if it is positive.
  vectors.Xor(c, b, sum);
  vectors.Xor(a, b, a);
  vectors.And(a, a, c);
  vectors.ShiftRightSignedD(a, a, 31);
  vectors.ShiftRightSignedD(c, b, 31);
  vectors.And(c, c, a);
  vectors.AndNot(sum, a, b);
  vectors.ShiftLeftD(a, a, 31);
  vectors.Xor(c, c, a);
  vectors.Or(sum, sum, c);
}

// Moves the stack's end without changing the flags.
void WriteStackMove(Writer& writer, int bytes) {
  writer.Bytes({0x48, 0x8d, 0xa4, 0x24});  // lea rsp, [rsp + bytes]
  writer.Number(bytes);
}

// The code that a jump at `code` leads to. It uses three registers, and leaves them as they were.
void WriteTranslation(Writer& writer, uint8_t* code, const Instruction& instruction) {
  constexpr int kRedZone = 128, kVector = 32, kMoved = kRedZone + 3 * kVector;
  int scratch[3];
  for (int number = 0, found = 0; found < 3; ++number) {
    if (number != instruction.sum && number != instruction.first) scratch[found++] = number;
  }
  Vectors whole(writer, kVector), vectors(writer, instruction.bytes);
  WriteStackMove(writer, -kMoved);
  for (int i = 0; i < 3; ++i) whole.Store(scratch[i], {.base = kRsp, .displacement = i * kVector});
  Operand second = instruction.second;
  if (second.base == kRsp) second.displacement += kMoved;
  if (second.base == kNextInstruction) {
    constexpr int kLoadLength = 9;
    second.displacement += static_cast<int32_t>(code + instruction.length - (writer.End() + kLoadLength));
  }
  vectors.Load(scratch[0], second);
  WriteProducts(vectors, instruction, scratch);
  for (int i = 0; i < 3; ++i) whole.Load(scratch[i], {.base = kRsp, .displacement = i * kVector});
  WriteStackMove(writer, kMoved);
  writer.JumpTo(code + instruction.length);
}

constexpr size_t kBlock = size_t{1} << 16;
constexpr size_t kLongest = 512;  // bytes of a translation

// Where translations are written, within the reach of jumps from the code around them.
struct Block {
  uint8_t* begin = nullptr;
  uint8_t* end = nullptr;  // of what is written
};

bool IsNear(const uint8_t* a, const uint8_t* b) { return std::llabs(a - b) < kReach / 4; }

// Tries free addresses on both sides.
uint8_t* MapNear(const uint8_t* code) {
  constexpr int64_t kStep = int64_t{1} << 20;
  const int64_t middle = reinterpret_cast<int64_t>(code) / kStep * kStep;
  for (int64_t away = kStep; away < kReach / 4; away += kStep) {
    for (int64_t address : {middle - away, middle + away}) {
      if (address <= 0) continue;
      void* wanted = reinterpret_cast<void*>(address);
      constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
      void* block = mmap(wanted, kBlock, PROT_READ | PROT_WRITE | PROT_EXEC, kFlags, -1, 0);
      if (block == wanted) return static_cast<uint8_t*>(block);
      if (block != MAP_FAILED) munmap(block, kBlock);
    }
  }
  return nullptr;
}

// The last block is filled until it is full or too far away; nothing where the system gives none.
Block* BlockFor(const uint8_t* code) {
  static Block block;
  const bool fits = block.begin != nullptr && block.end + kLongest <= block.begin + kBlock;
  if (fits && IsNear(block.begin, code)) return &block;
  block.begin = block.end = MapNear(code);
  return block.begin == nullptr ? nullptr : &block;
}

bool MakeWritable(uint8_t* code, size_t count) {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t begin = reinterpret_cast<uintptr_t>(code) / page * page;
  const uintptr_t end = reinterpret_cast<uintptr_t>(code) + count;
  return mprotect(reinterpret_cast<void*>(begin), end - begin, PROT_READ | PROT_WRITE | PROT_EXEC) == 0;
}

// What the first byte is while those behind it are changed: refused, as the instruction was.
constexpr uint8_t kBeingChanged = 0x06;

// Until every thread has forgotten code that it read before.
void LetAllSee() { syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED_SYNC_CORE, 0, 0); }

void StoreFirst(uint8_t* code, uint8_t byte) { std::atomic_ref<uint8_t>(*code).store(byte); }

}  // namespace

void PrepareTranslation() { syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED_SYNC_CORE, 0, 0); }

void Translate(uint8_t* code, const Instruction& instruction) {
  if (instruction.words) return;  // ONNX Runtime uses none
  Block* block = BlockFor(code);
  if (block == nullptr || !MakeWritable(code, kJumpLength)) return;
  Writer writer(block->end);
  WriteTranslation(writer, code, instruction);
  uint8_t jump[kJumpLength];
  const auto distance = static_cast<int32_t>(block->end - (code + kJumpLength));
  std::memcpy(jump + 1, &distance, sizeof distance);
  block->end = writer.End();
  // A thread that comes here meanwhile is refused, and waits for the lock.
  StoreFirst(code, kBeingChanged);
  LetAllSee();
  std::memcpy(code + 1, jump + 1, kJumpLength - 1);
  LetAllSee();
  StoreFirst(code, kJump);
}

}  // namespace avx_vnni
