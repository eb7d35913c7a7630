#include "cpu/plan/code_table.h"

#include <algorithm>
#include <numeric>

#include "cpu/run/parameters.h"

namespace normfuse::cpu {
namespace {

bool IsCode(DataType type) {
  return type == DataType::kInt8 || type == DataType::kUint8 || type == DataType::kInt16 || type == DataType::kUint16;
}

template <class Code, class Value>
void LookUp(const CodeTable& table, const void* codes, size_t n, void* y) {
  const auto* values = reinterpret_cast<const Value*>(table.values.data());
  const auto* from = static_cast<const Code*>(codes);
  auto* to = static_cast<Value*>(y);
  for (size_t i = 0; i < n; ++i) to[i] = values[from[i]];
}

template <class Code>
void LookUp(const CodeTable& table, const void* codes, size_t n, void* y) {
  const int bits = BitsOf(table.type);
  if (bits == 8) return LookUp<Code, uint8_t>(table, codes, n, y);
  return bits == 16 ? LookUp<Code, uint16_t>(table, codes, n, y) : LookUp<Code, uint32_t>(table, codes, n, y);
}

// All integers of a type, and what becomes of them.
class AllCodes final : public ExecutionContext {
 public:
  AllCodes(DataType type, void* y) : type_(type), count_(int64_t{1} << BitsOf(type)), y_(y) {
    if (BitsOf(type) == 8) {
      bytes_.resize(static_cast<size_t>(count_));
      std::iota(bytes_.begin(), bytes_.end(), static_cast<uint8_t>(0));
    } else {
      words_.resize(static_cast<size_t>(count_));
      std::iota(words_.begin(), words_.end(), static_cast<uint16_t>(0));
    }
  }
  Result Input(int /*index*/, TensorView* view) override {
    const void* x = words_.empty() ? static_cast<const void*>(bytes_.data()) : words_.data();
    *view = {x, type_, &count_, 1};
    return {};
  }
  Result Output(int /*index*/, DataType /*type*/, const int64_t* /*dims*/, size_t /*rank*/, void** data) override {
    *data = y_;
    return {};
  }
  // One thread shares nothing.
  Result ParallelFor(void (*)(void* user, size_t index), size_t, void*) override { return {}; }
  int ThreadCount() const override { return 1; }

 private:
  DataType type_;
  int64_t count_;
  std::vector<uint8_t> bytes_;
  std::vector<uint16_t> words_;
  void* y_;
};

}  // namespace

std::optional<Codes> CodesOf(const Chain& chain) {
  const bool stores = chain.store.quantization.present()
                          ? IsCode(chain.store.type) && IsOneNumber(chain.store.quantization)
                          : chain.store.type == DataType::kFloat32;
  if (chain.normalizes() || !chain.before.empty() || chain.store.dynamic || !stores) return std::nullopt;
  std::optional<Codes> codes;
  bool reads_kept = false;
  bool reads_x = false;
  for (int i = static_cast<int>(chain.behind.size()) - 1; i >= 0; --i) {
    const Step& step = chain.behind[static_cast<size_t>(i)];
    if (!DependsOnOneNumber(chain, step)) return codes;
    if (step.operand.present() && ReadsX(chain, step.operand)) reads_x = true;
    reads_kept = (reads_kept || step.operand.is_kept) && !step.keeps;
    const bool alone = !reads_kept && !reads_x;
    if (alone && step.kind == StepKind::kFakeQuantize && IsCode(step.type)) codes = {i, step.type};
  }
  const Operand& x = chain.x;
  const bool is_code = IsCode(x.type) && x.quantization.present() && IsOneNumber(x.quantization);
  if (is_code && x.tensor.constant == nullptr) codes = {Codes::kX, x.type};
  return codes;
}

Chain HeadOf(const Chain& chain, const Codes& codes) {
  Chain head = chain;
  const Step& step = chain.behind[static_cast<size_t>(codes.step)];
  head.behind.resize(static_cast<size_t>(codes.step));
  head.store.type = step.type;
  head.store.quantization = step.quantization;
  return head;
}

// The fake quantisation of its own values changes nothing, and keeps them where they are read again.
Chain TailOf(const Chain& chain, const Codes& codes) {
  Chain tail = chain;
  tail.x.shape = {};
  if (codes.step == Codes::kX) return tail;
  const Step& step = chain.behind[static_cast<size_t>(codes.step)];
  tail.behind.erase(tail.behind.begin(), tail.behind.begin() + codes.step);
  tail.x.tensor = {0, nullptr};
  tail.x.type = step.type;
  tail.x.quantization = step.quantization;
  return tail;
}

std::optional<Ending> EndingOf(const Chain& tail, DataType code) {
  if (tail.behind.empty() || tail.store.quantization.present() || tail.store.type != DataType::kFloat32) {
    return std::nullopt;
  }
  const Step& last = tail.behind.back();
  const bool is_small = last.kind == StepKind::kFakeQuantize && IsCode(last.type) && BitsOf(last.type) <= BitsOf(code);
  if (!is_small || last.keeps || last.output != kNoOutput || !IsOneNumber(last.quantization)) return std::nullopt;
  return Ending{last.type, OneNumberOf(last.quantization.scale, 1.0f), OneNumberOf(last.quantization.zero_point, 0.0f)};
}

Chain WithoutEnding(const Chain& tail) {
  Chain shorter = tail;
  shorter.store.type = tail.behind.back().type;
  shorter.store.quantization = tail.behind.back().quantization;
  shorter.behind.pop_back();
  return shorter;
}

std::optional<Chain> BetweenPairs(const Chain& chain, int first, int second) {
  const Step& pair = chain.behind[static_cast<size_t>(second)];
  Chain between = TailOf(chain, {first, chain.behind[static_cast<size_t>(first)].type});
  between.behind.erase(between.behind.begin());
  between.behind.resize(static_cast<size_t>(second - first - 1));
  between.store.type = pair.type;
  between.store.quantization = pair.quantization;
  const bool is_alone = std::all_of(between.behind.begin(), between.behind.end(), [&](const Step& step) {
    return DependsOnOneNumber(chain, step) && !step.operand.is_kept &&
           !(step.operand.present() && ReadsX(chain, step.operand));
  });
  if (between.behind.empty() || !is_alone || between.x.type != pair.type || !IsCode(pair.type)) return std::nullopt;
  return between;
}

Result Tabulate(const Executable& tail, CodeTable* table) {
  table->values.resize(BytesFor(table->type, size_t{1} << BitsOf(table->code)));
  AllCodes context(table->code, table->values.data());
  return tail.Run(context);
}

bool IsIdentity(const CodeTable& table) {
  const auto same = [&]<class Code>(Code) {
    const auto* values = reinterpret_cast<const Code*>(table.values.data());
    Code code = 0;
    do {
      if (values[code] != code) return false;
    } while (++code != 0);
    return true;
  };
  return BitsOf(table.code) == 8 ? same(uint8_t{}) : same(uint16_t{});
}

void LookUpValues(const CodeTable& table, const void* codes, size_t n, void* y) {
  return BitsOf(table.code) == 8 ? LookUp<uint8_t>(table, codes, n, y) : LookUp<uint16_t>(table, codes, n, y);
}

}  // namespace normfuse::cpu
