// AVX-VNNI in software, for a processor that has AVX2 only: preloaded into a process (LD_PRELOAD), this library carries
// out VPDPBUSD, VPDPBUSDS, VPDPWSSD and VPDPWSSDS where the processor refuses them. A program that is told that AVX-VNNI
// is there then computes what it would on a processor with it, only slower (tests/vnni_in_software.py). Linux on x86-64.
//
// Where a signal's frame holds the registers: Intel SDM volume 1, 13.4 (the standard form of the XSAVE area). Upper
// halves of which the processor knows that all are zero are restored as zero: no result is anything else then.
#include <signal.h>
#include <ucontext.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>

#include "instruction.h"
#include "translation.h"

namespace avx_vnni {
namespace {

constexpr int kRegisterBytes = 32;
constexpr int kHalf = 16;

constexpr int kUpperHalves = 576;  // bytes from the beginning of the XSAVE area

// The general registers in the order of their numbers in an instruction.
constexpr int kGeneral[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                              REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};

// The registers of the thread that the signal interrupted. What AVX-512 has beyond 256 bits is not among them: code that
// uses it has VNNI of AVX-512.
class Registers {
 public:
  explicit Registers(ucontext_t* context)
      : general_(context->uc_mcontext.gregs),
        lower_(reinterpret_cast<uint8_t*>(context->uc_mcontext.fpregs->_xmm)),
        upper_(reinterpret_cast<uint8_t*>(context->uc_mcontext.fpregs) + kUpperHalves) {}

  uint8_t* Code() const { return reinterpret_cast<uint8_t*>(general_[REG_RIP]); }
  void ContinueAt(uint8_t* next) { general_[REG_RIP] = reinterpret_cast<greg_t>(next); }

  void Read(int number, uint8_t* bytes) const {
    std::memcpy(bytes, lower_ + number * kHalf, kHalf);
    std::memcpy(bytes + kHalf, upper_ + number * kHalf, kHalf);
  }
  void Write(int number, const uint8_t* bytes) {
    std::memcpy(lower_ + number * kHalf, bytes, kHalf);
    std::memcpy(upper_ + number * kHalf, bytes + kHalf, kHalf);
  }
  void Read(const Operand& operand, int length, int count, uint8_t* bytes) const {
    if (operand.vector != kNone) return Read(operand.vector, bytes);
    auto address = static_cast<uint64_t>(int64_t{operand.displacement});
    if (operand.base == kNextInstruction) {
      address += reinterpret_cast<uint64_t>(Code()) + static_cast<uint64_t>(length);
    } else if (operand.base != kNone) {
      address += General(operand.base);
    }
    if (operand.index != kNone) address += General(operand.index) << operand.shift;
    std::memcpy(bytes, reinterpret_cast<const void*>(address), static_cast<size_t>(count));
  }

 private:
  uint64_t General(int number) const { return static_cast<uint64_t>(general_[kGeneral[number]]); }

  greg_t* general_;
  uint8_t* lower_;
  uint8_t* upper_;
};

// Of what lies in the four bytes of a sum.
template <class First, class Second>
int64_t Products(const uint8_t* first, const uint8_t* second) {
  int64_t sum = 0;
  for (size_t i = 0; i < sizeof(int32_t); i += sizeof(First)) {
    First a;
    Second b;
    std::memcpy(&a, first + i, sizeof a);
    std::memcpy(&b, second + i, sizeof b);
    sum += int64_t{a} * b;
  }
  return sum;
}

void CarryOut(Registers& registers, const Instruction& instruction) {
  uint8_t sums[kRegisterBytes], first[kRegisterBytes], second[kRegisterBytes];
  registers.Read(instruction.sum, sums);
  registers.Read(instruction.first, first);
  registers.Read(instruction.second, instruction.length, instruction.bytes, second);
  for (int at = 0; at < instruction.bytes; at += static_cast<int>(sizeof(int32_t))) {
    int32_t sum;
    std::memcpy(&sum, sums + at, sizeof sum);
    int64_t total = sum + (instruction.words ? Products<int16_t, int16_t>(first + at, second + at)
                                             : Products<uint8_t, int8_t>(first + at, second + at));
    if (instruction.saturates) {
      total = std::clamp<int64_t>(total, std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max());
    }
    sum = static_cast<int32_t>(total);
    std::memcpy(sums + at, &sum, sizeof sum);
  }
  // An instruction with a VEX prefix clears what is beyond its own width.
  std::memset(sums + instruction.bytes, 0, static_cast<size_t>(kRegisterBytes - instruction.bytes));
  registers.Write(instruction.sum, sums);
}

// Of what threads may change: code.
class Lock {
 public:
  Lock() {
    while (taken_.test_and_set(std::memory_order_acquire)) __builtin_ia32_pause();
  }
  ~Lock() { taken_.clear(std::memory_order_release); }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

 private:
  static inline std::atomic_flag taken_;
};

// The first time it is carried out here, and from then on by what it is translated to, where it is.
void Refused(int /*signal*/, siginfo_t* /*info*/, void* context) {
  Registers registers(static_cast<ucontext_t*>(context));
  const Lock lock;
  uint8_t* const code = registers.Code();
  if (const std::optional<Instruction> instruction = Decode(code)) {
    CarryOut(registers, *instruction);
    registers.ContinueAt(code + instruction->length);
    Translate(code, *instruction);
  } else if (code[0] != kJump) {  // which another thread wrote meanwhile
    signal(SIGILL, SIG_DFL);      // it is refused again, and ends the process
  }
}

__attribute__((constructor)) void Install() {
  PrepareTranslation();
  struct sigaction action = {};
  action.sa_sigaction = Refused;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGILL, &action, nullptr);
}

}  // namespace
}  // namespace avx_vnni
