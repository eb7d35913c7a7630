// A sequence of chains on the CPU path: what DirectML falls back to for shapes that it cannot run.
#include <map>
#include <new>
#include <utility>

#include "chain/execution.h"

namespace normfuse {
namespace {

// Memory for one tensor that only later chains read.
class AlignedBytes {
 public:
  explicit AlignedBytes(size_t bytes) : data_(::operator new(bytes, kAlignment)) {}
  ~AlignedBytes() { ::operator delete(data_, kAlignment); }
  AlignedBytes(const AlignedBytes&) = delete;
  AlignedBytes& operator=(const AlignedBytes&) = delete;
  void* get() const { return data_; }

 private:
  static constexpr std::align_val_t kAlignment{64};
  void* data_;
};

struct Produced {
  DataType type = DataType::kUndefined;
  std::vector<int64_t> dims;
  void* data = nullptr;
  std::unique_ptr<AlignedBytes> own;
};

// The node's context, whose inputs include the results of earlier chains.
class SequenceContext final : public ExecutionContext {
 public:
  SequenceContext(ExecutionContext& node, int output_count) : node_(node), output_count_(output_count) {}

  Result Input(int index, TensorView* view) override {
    if (index < kFromOutput) return node_.Input(index, view);
    const Produced& produced = produced_.at(index - kFromOutput);
    *view = {produced.data, produced.type, produced.dims.data(), produced.dims.size()};
    return {};
  }

  Result Output(int index, DataType type, const int64_t* dims, size_t rank, void** data) override {
    Produced& produced = produced_[index];
    produced.type = type;
    produced.dims.assign(dims, dims + rank);
    if (index < output_count_) NORMFUSE_RETURN_IF_ERROR(node_.Output(index, type, dims, rank, &produced.data));
    if (produced.data == nullptr) {
      size_t count = 1;
      for (int64_t dim : produced.dims) count *= static_cast<size_t>(dim);
      produced.own = std::make_unique<AlignedBytes>(BytesFor(produced.type, count));
      produced.data = produced.own->get();
    }
    *data = produced.data;
    return {};
  }

  Result ParallelFor(void (*task)(void* user, size_t index), size_t count, void* user) override {
    return node_.ParallelFor(task, count, user);
  }
  int ThreadCount() const override { return node_.ThreadCount(); }

 private:
  ExecutionContext& node_;
  int output_count_;
  std::map<int, Produced> produced_;
};

class CpuSequence final : public Executable {
 public:
  Result Init(const ChainSequence& sequence) {
    output_count_ = sequence.output_count;
    for (const Chain& chain : sequence.chains) {
      NORMFUSE_RETURN_IF_ERROR(CompileForCpu(chain, &executables_.emplace_back()));
    }
    return {};
  }

  Result Run(ExecutionContext& context) const override {
    SequenceContext inner(context, output_count_);
    for (const auto& executable : executables_) NORMFUSE_RETURN_IF_ERROR(executable->Run(inner));
    return {};
  }

 private:
  int output_count_ = 0;
  std::vector<std::unique_ptr<Executable>> executables_;
};

}  // namespace

Result CompileForCpu(const ChainSequence& sequence, std::unique_ptr<Executable>* executable) {
  if (sequence.chains.size() == 1) return CompileForCpu(sequence.chains.front(), executable);
  auto made = std::make_unique<CpuSequence>();
  NORMFUSE_RETURN_IF_ERROR(made->Init(sequence));
  *executable = std::move(made);
  return {};
}

}  // namespace normfuse
