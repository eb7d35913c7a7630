// AVX-VNNI in software (in_software.cc) against plain C++: every instruction, width, register and kind of
// address, each as the assembler encodes it. On a processor with AVX-VNNI this is a test of the processor.
// Compiled by tests/python/test_without_vnni.py.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <limits>
#include <random>

#include "check.h"
#include "guarded_page.h"

namespace normfuse::test {

enum Operation : uint8_t { kBytes, kBytesSaturating, kWords, kWordsSaturating };

constexpr int8_t kNone = -1, kAtInstruction = 16, kStack = 4;

// An instruction that stands in the program, and a return behind it.
struct Form {
  void (*code)();
  Operation operation;
  uint8_t bytes;
  uint8_t sum;
  uint8_t first;
  int8_t second;  // a register, or kNone: what is at base + index * scale + displacement
  int8_t base;
  int8_t index;
  uint8_t scale;
  int32_t displacement;
  int32_t unused;
};

struct State {
  uint8_t vectors[16][32];
  uint64_t general[16];
  uint8_t on_stack[32];  // 8 bytes above where the stack ends when the instruction is reached
};
static_assert(offsetof(State, general) == 512 && offsetof(State, on_stack) == 640 && sizeof(Form) == 24);

constexpr uint64_t kAbsolute = 0x20000000;

}  // namespace normfuse::test

// What the assembler code below refers to, or defines.
extern "C" {
alignas(32) uint8_t vnni_beside_code[32];
void vnni_run(normfuse::test::State* state, void (*code)());
void vnni_row();
void vnni_after_zeroing();
extern const normfuse::test::Form vnni_forms[], vnni_forms_end[];
}

asm(R"(
.section .data.vnni_forms, "aw", @progbits
.balign 8
vnni_forms:
.text

.macro form operation, number, bytes, sum, first, second, base, index, scale, displacement, operands:vararg
1: {vex} \operation \operands
  ret
.pushsection .data.vnni_forms, "aw", @progbits
  .quad 1b
  .byte \number, \bytes, \sum, \first, \second, \base, \index, \scale
  .long \displacement, 0
.popsection
.endm

.macro registers operation, number, size, bytes
.irp sum, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
.irp first, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
.irp second, 0, 5, 7, 8, 12, 15
  form \operation, \number, \bytes, \sum, \first, \second, -1, -1, 0, 0, %\size\second, %\size\first, %\size\sum
.endr
.endr
.endr
.endm

.macro each_register action:vararg
  \action, rax, 0
  \action, rcx, 1
  \action, rdx, 2
  \action, rbx, 3
  \action, rbp, 5
  \action, rsi, 6
  \action, rdi, 7
  \action, r8, 8
  \action, r9, 9
  \action, r10, 10
  \action, r11, 11
  \action, r12, 12
  \action, r13, 13
  \action, r14, 14
  \action, r15, 15
.endm

.macro base_and_index operation, number, size, bytes, base, b, index, i
.if \b - \i
.irp scale, 1, 2, 4, 8
.irp displacement, 0, -128, 127, 128, -1000000
  form \operation, \number, \bytes, \b, \i, -1, \b, \i, \scale, \displacement, \displacement(%\base, %\index, \scale), %\size\i, %\size\b
.endr
.endr
.endif
.endm

.macro base operation, number, size, bytes, base, b
.irp displacement, 0, -128, 127, 128, -1000000
  form \operation, \number, \bytes, \b, 9, -1, \b, -1, 0, \displacement, \displacement(%\base), %\size\()9, %\size\b
.endr
.irp scale, 1, 2, 4, 8
  form \operation, \number, \bytes, \b, 6, -1, -1, \b, \scale, -16, -16(, %\base, \scale), %\size\()6, %\size\b
  form \operation, \number, \bytes, 1, \b, -1, 4, \b, \scale, 8+16*\scale, 8+16*\scale(%rsp, %\base, \scale), %\size\b, %\size\()1
  form \operation, \number, \bytes, 1, \b, -1, 4, \b, \scale, 8-160*\scale, 8-160*\scale(%rsp, %\base, \scale), %\size\b, %\size\()1
.endr
.endm

.macro operands operation, number, size, bytes
  registers \operation, \number, \size, \bytes
  each_register base \operation, \number, \size, \bytes
  form \operation, \number, \bytes, 11, 3, -1, 4, -1, 0, 8, 8(%rsp), %\size\()3, %\size\()11
  form \operation, \number, \bytes, 10, 2, -1, 16, -1, 0, 0, vnni_beside_code(%rip), %\size\()2, %\size\()10
  form \operation, \number, \bytes, 12, 4, -1, -1, -1, 0, 0x20000000, 0x20000000, %\size\()4, %\size\()12
.endm

.macro operation name, number
  operands \name, \number, xmm, 16
  operands \name, \number, ymm, 32
.endm

operation vpdpbusd, 0
operation vpdpbusds, 1
operation vpdpwssd, 2
operation vpdpwssds, 3

.macro pairs operation, number, size, bytes, base, b
  each_register base_and_index \operation, \number, \size, \bytes, \base, \b
.endm
each_register pairs vpdpbusds, 1, ymm, 32
each_register pairs vpdpwssd, 2, xmm, 16

.pushsection .data.vnni_forms, "aw", @progbits
vnni_forms_end:
.popsection

vnni_row:
  vmovdqu %ymm1, -32(%rsp)
  vmovdqu %ymm4, -128(%rsp)
  {vex} vpdpbusd %ymm1, %ymm2, %ymm0
  {vex} vpdpwssd %ymm0, %ymm3, %ymm0
  vpaddd %ymm0, %ymm4, %ymm5
  {vex} vpdpbusds 8(%rsp), %xmm5, %xmm6
  vmovdqu -32(%rsp), %ymm7
  vmovdqu -128(%rsp), %ymm8
  ret

vnni_after_zeroing:
  vzeroupper
  {vex} vpdpbusd 8(%rsp), %ymm9, %ymm8
  ret

vnni_run:
  pushq %rbx
  pushq %rbp
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  pushq %rdi
  pushq %rsi
  pushq 664(%rdi)
  pushq 656(%rdi)
  pushq 648(%rdi)
  pushq 640(%rdi)
.irp number, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
  vmovdqu 32 * \number(%rdi), %ymm\number
.endr
.macro load_general name, number
.if \number - 7
  movq 512 + 8 * \number(%rdi), %\name
.endif
.endm
.macro load action, name, number
  load_general \name, \number
.endm
  each_register load general
  movq 512 + 8 * 7(%rdi), %rdi
  callq *32(%rsp)
  addq $40, %rsp
  popq %rdi
.irp number, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
  vmovdqu %ymm\number, 32 * \number(%rdi)
.endr
  vzeroupper
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbp
  popq %rbx
  ret
)");

namespace normfuse::test {
namespace {

std::mt19937 generator(1);

int Below(int end) { return static_cast<int>(generator() % static_cast<unsigned>(end)); }

// Extreme ones among them, so that sums of words leave 16 bits and sums of double words 32.
void FillRandomly(uint8_t* bytes, int count) {
  constexpr int32_t kExtremes[] = {std::numeric_limits<int32_t>::max(),
                                   std::numeric_limits<int32_t>::min(),
                                   std::numeric_limits<int32_t>::max() - 20000,
                                   std::numeric_limits<int32_t>::min() + 20000,
                                   -1,
                                   0x7f7f7f7f,
                                   static_cast<int32_t>(0x80808080),
                                   static_cast<int32_t>(0x80008000)};
  for (int i = 0; i < count; i += static_cast<int>(sizeof(int32_t))) {
    const int32_t value = Below(2) == 0 ? kExtremes[Below(8)] : static_cast<int32_t>(generator());
    std::memcpy(bytes + i, &value, sizeof value);
  }
}

State RandomState() {
  State state;
  for (uint8_t* vector : state.vectors) FillRandomly(vector, 32);
  for (uint64_t& general : state.general) general = generator();
  FillRandomly(state.on_stack, 32);
  return state;
}

int32_t Signed(int value, int bits) { return value >= 1 << (bits - 1) ? value - (1 << bits) : value; }

// What the manual says, on one element of a result.
int32_t Sum(Operation operation, int32_t sum, const uint8_t* a, const uint8_t* b) {
  int64_t total = sum;
  if (operation == kBytes || operation == kBytesSaturating) {
    for (int i = 0; i < 4; ++i) total += a[i] * Signed(b[i], 8);
  } else {
    for (int i = 0; i < 4; i += 2) {
      total += int64_t{Signed(a[i] + 256 * a[i + 1], 16)} * Signed(b[i] + 256 * b[i + 1], 16);
    }
  }
  if (operation == kBytesSaturating || operation == kWordsSaturating) {
    total = std::max<int64_t>(total, std::numeric_limits<int32_t>::min());
    total = std::min<int64_t>(total, std::numeric_limits<int32_t>::max());
  }
  return static_cast<int32_t>(total);
}

void Apply(State& state, Operation operation, int bytes, int sum, int first, const uint8_t* second) {
  uint8_t result[32] = {};
  for (int i = 0; i < bytes; i += 4) {
    int32_t element;
    std::memcpy(&element, state.vectors[sum] + i, 4);
    element = Sum(operation, element, state.vectors[first] + i, second + i);
    std::memcpy(result + i, &element, 4);
  }
  std::memcpy(state.vectors[sum], result, 32);
}

// Where the instruction finds its operand once the general registers are set so.
uint8_t* OperandPlace(const Form& form, State& state) {
  if (form.base == kAtInstruction) return vnni_beside_code;
  if (form.base == kStack) {
    if (form.index != kNone) state.general[form.index] = static_cast<uint64_t>((8 - form.displacement) / form.scale);
    return state.on_stack;
  }
  if (form.base == kNone && form.index == kNone) return reinterpret_cast<uint8_t*>(kAbsolute);
  // Reading more than the operand's own bytes ends the process.
  uint8_t* operand = EndOfMemory() - form.bytes;
  uint64_t rest = reinterpret_cast<uint64_t>(operand) - static_cast<uint64_t>(int64_t{form.displacement});
  if (form.base == kNone) {
    state.general[form.index] = rest / form.scale;
  } else {
    if (form.index != kNone) {
      state.general[form.index] = static_cast<uint64_t>(int64_t{Below(2000) - 1000});
      rest -= state.general[form.index] * form.scale;
    }
    state.general[form.base] = rest;
  }
  return operand;
}

uint8_t* PlaceOperand(const Form& form, State& state) {
  uint8_t* operand = OperandPlace(form, state);
  FillRandomly(operand, form.bytes);
  return operand;
}

void Compare(const State& got, const State& wanted, const Form& form, const char* name) {
  for (int i = 0; i < 16; ++i) {
    CHECK(std::memcmp(got.vectors[i], wanted.vectors[i], 32) == 0,
          "%s: register %d is wrong (operation %d, %d bytes, registers %d, %d, %d, address %d + %d * %d + %d)", name, i,
          form.operation, form.bytes, form.sum, form.first, form.second, form.base, form.index, form.scale,
          form.displacement);
  }
}

void TestForm(const Form& form, const char* name) {
  State state = RandomState();
  const uint8_t* second = form.second == kNone ? PlaceOperand(form, state) : state.vectors[form.second];
  State wanted = state;
  Apply(wanted, form.operation, form.bytes, form.sum, form.first, second);
  vnni_run(&state, form.code);
  Compare(state, wanted, form, name);
}

void TestForms() {
  for (const Form* form = vnni_forms; form != vnni_forms_end; ++form) {
    TestForm(*form, "at first");
    TestForm(*form, "again");
    TestForm(*form, "again");
  }
  std::printf("%td forms\n", vnni_forms_end - vnni_forms);
}

// Each sees what the one before it left. Others stand among them, and what was stored below the stack's end remains.
void TestRow() {
  for (int repeat = 0; repeat < 100; ++repeat) {
    State state = RandomState();
    State wanted = state;
    Apply(wanted, kBytes, 32, 0, 2, state.vectors[1]);
    uint8_t sums[32];
    std::memcpy(sums, wanted.vectors[0], 32);
    Apply(wanted, kWords, 32, 0, 3, sums);
    for (int i = 0; i < 32; i += 4) {
      uint32_t a, b;
      std::memcpy(&a, wanted.vectors[0] + i, 4);
      std::memcpy(&b, wanted.vectors[4] + i, 4);
      a += b;
      std::memcpy(wanted.vectors[5] + i, &a, 4);
    }
    Apply(wanted, kBytesSaturating, 16, 6, 5, state.on_stack);
    std::memcpy(wanted.vectors[7], wanted.vectors[1], 32);
    std::memcpy(wanted.vectors[8], wanted.vectors[4], 32);
    vnni_run(&state, vnni_row);
    Compare(state, wanted, {}, "row");
  }
}

// The upper halves are not saved where they are known to be zero.
void TestAfterZeroing() {
  for (int repeat = 0; repeat < 100; ++repeat) {
    State state = RandomState();
    State wanted = state;
    for (uint8_t* vector : wanted.vectors) std::memset(vector + 16, 0, 16);
    // Zero times anything, plus zero.
    Apply(wanted, kBytes, 32, 8, 9, state.on_stack);
    vnni_run(&state, vnni_after_zeroing);
    Compare(state, wanted, {}, "after zeroing");
  }
}

void TestOthersAreRefused() {
  const pid_t child = fork();
  if (child == 0) {
    asm volatile("ud2");
    _exit(0);
  }
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child, "waitpid");
  CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGILL, "ud2 ends with status %d", status);
}

int Main() {
  void* absolute = mmap(reinterpret_cast<void*>(kAbsolute), 4096, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
  CHECK(absolute == reinterpret_cast<void*>(kAbsolute), "no memory at the absolute address");
  if (Failures() != 0) return ExitCode();
  TestForms();
  TestRow();
  TestAfterZeroing();
  TestOthersAreRefused();
  return ExitCode();
}

}  // namespace
}  // namespace normfuse::test

int main() { return normfuse::test::Main(); }
