#include "chain/parts.h"

#include <algorithm>
#include <string>
#include <utility>

namespace normfuse {
namespace {

struct Part {
  char* data = nullptr;
  int64_t elements = 0;  // between two of what lies in front of the axis
};

struct PartsOfCall {
  std::vector<int64_t> dims;  // of the whole
  int64_t turns = 1;          // how often the parts follow each other
  int64_t inner = 1;          // elements for each place of the axis
  std::vector<Part> x;
  std::vector<Part> y;
};

std::string Text(const TensorView& view) {
  std::string text = "[";
  for (size_t i = 0; i < view.rank; ++i) text += (i == 0 ? "" : ", ") + std::to_string(view.dims[i]);
  return text + "]";
}

// Elements of some of the parts, as a tensor of X's rank that has them all in its last dimension.
class PartContext final : public ExecutionContext {
 public:
  PartContext(ExecutionContext& node, DataType type, size_t rank) : node_(node), type_(type), dims_(rank, 1) {}

  void MoveTo(const char* x, int64_t elements, char* y) {
    x_ = x;
    y_ = y;
    dims_.back() = elements;
  }

  Result Input(int /*index*/, TensorView* view) override {
    *view = {x_, type_, dims_.data(), dims_.size()};
    return {};
  }
  Result Output(int /*index*/, DataType /*type*/, const int64_t* /*dims*/, size_t /*rank*/, void** data) override {
    *data = y_;
    return {};
  }
  Result ParallelFor(void (*task)(void* user, size_t index), size_t count, void* user) override {
    return node_.ParallelFor(task, count, user);
  }
  int ThreadCount() const override { return node_.ThreadCount(); }
  void Warn(const std::string& message) override { node_.Warn(message); }

 private:
  ExecutionContext& node_;
  DataType type_;
  std::vector<int64_t> dims_;
  const char* x_ = nullptr;
  char* y_ = nullptr;
};

class ExecutableOfParts final : public Executable {
 public:
  explicit ExecutableOfParts(ChainOfParts parts) : parts_(std::move(parts)) {}

  Result Init() {
    Chain chain = parts_.chain;
    chain.x.shape = {};  // that of all parts together
    return CompileForCpu(chain, &of_part_);
  }

  Result Run(ExecutionContext& context) const override {
    PartsOfCall call;
    NORMFUSE_RETURN_IF_ERROR(ReadX(context, &call));
    NORMFUSE_RETURN_IF_ERROR(AllocateY(context, &call));
    PartContext of_part(context, parts_.chain.x.type, call.dims.size());
    for (int64_t turn = 0; turn < call.turns; ++turn) NORMFUSE_RETURN_IF_ERROR(RunTurn(call, turn, &of_part));
    return {};
  }

 private:
  Result ReadX(ExecutionContext& context, PartsOfCall* call) const;
  Result AllocateY(ExecutionContext& context, PartsOfCall* call) const;
  Result RunTurn(const PartsOfCall& call, int64_t turn, PartContext* of_part) const;
  Result Error(std::string what) const {
    return Result::Error(ErrorCode::kInvalidArgument, parts_.chain.name + ": " + std::move(what));
  }

  const ChainOfParts parts_;
  std::unique_ptr<Executable> of_part_;
};

// As in ONNX Runtime, what is of length 0 need not fit: a list that is empty in the first turn of a loop.
Result ExecutableOfParts::ReadX(ExecutionContext& context, PartsOfCall* call) const {
  const auto axis = static_cast<size_t>(parts_.axis);
  std::vector<TensorView> views(parts_.x_parts.size());
  for (size_t i = 0; i < views.size(); ++i) {
    NORMFUSE_RETURN_IF_ERROR(context.Input(parts_.x_parts[i], &views[i]));
    if (axis >= views[i].rank) return Error("no axis " + std::to_string(axis) + " of " + Text(views[i]));
  }
  const auto some = std::find_if(views.begin(), views.end(), [](const TensorView& view) {
    return std::none_of(view.dims, view.dims + view.rank, [](int64_t dim) { return dim == 0; });
  });
  const TensorView& first = some == views.end() ? views.front() : *some;
  call->dims.assign(first.dims, first.dims + first.rank);
  for (size_t i = 0; i < axis; ++i) call->turns *= first.dims[i];
  for (size_t i = axis + 1; i < first.rank; ++i) call->inner *= first.dims[i];
  call->dims[axis] = 0;
  for (size_t i = 0; i < views.size(); ++i) {
    const TensorView& view = views[i];
    bool fits = view.rank == first.rank && view.type == parts_.chain.x.type;
    for (size_t k = 0; fits && view.dims[axis] != 0 && k < view.rank; ++k) {
      fits = k == axis || view.dims[k] == call->dims[k];
    }
    if (!fits) {
      return Error("input " + std::to_string(parts_.x_parts[i]) + " of Concat, " + Text(view) + ", does not fit " +
                   Text(first));
    }
    call->dims[axis] += view.dims[axis];
    // It is only read.
    char* const data = const_cast<char*>(static_cast<const char*>(view.data));
    call->x.push_back({data, view.dims[axis] * call->inner});
  }
  return {};
}

Result ExecutableOfParts::AllocateY(ExecutionContext& context, PartsOfCall* call) const {
  int64_t& along = call->dims[static_cast<size_t>(parts_.axis)];
  const int64_t whole = along;
  const std::vector<int64_t>& sizes = parts_.sizes.empty() ? std::vector<int64_t>{whole} : parts_.sizes;
  int64_t sum = 0;
  for (const int64_t size : sizes) sum += size;
  if (sum != whole) {
    return Error("Split makes parts of " + std::to_string(sum) + " of a dimension of " + std::to_string(whole));
  }
  const Store& store = parts_.chain.store;
  for (size_t i = 0; i < sizes.size(); ++i) {
    void* data = nullptr;
    along = sizes[i];
    NORMFUSE_RETURN_IF_ERROR(
        context.Output(parts_.y_parts[i], store.type, call->dims.data(), call->dims.size(), &data));
    call->y.push_back({static_cast<char*>(data), sizes[i] * call->inner});
  }
  along = whole;
  return {};
}

// What is of one part of X and of one part of Y, one after the other.
Result ExecutableOfParts::RunTurn(const PartsOfCall& call, int64_t turn, PartContext* of_part) const {
  const auto at = [turn](const Part& part, int64_t done, DataType type) {
    return part.data + BytesFor(type, static_cast<size_t>(turn * part.elements + done));
  };
  auto x = call.x.begin();
  auto y = call.y.begin();
  int64_t read = 0;
  int64_t written = 0;
  while (x != call.x.end() && y != call.y.end()) {
    const int64_t elements = std::min(x->elements - read, y->elements - written);
    if (elements > 0 && y->data != nullptr) {
      of_part->MoveTo(at(*x, read, parts_.chain.x.type), elements, at(*y, written, parts_.chain.store.type));
      NORMFUSE_RETURN_IF_ERROR(of_part_->Run(*of_part));
    }
    read += elements;
    written += elements;
    if (read == x->elements) {
      ++x;
      read = 0;
    }
    if (written == y->elements) {
      ++y;
      written = 0;
    }
  }
  return {};
}

bool IsOneNumberOrNone(const Quantization& quantization) {
  return !quantization.present() || IsOneNumber(quantization);
}

}  // namespace

bool DependsOnElementsAlone(const Chain& chain) {
  const auto is_whole_bytes = [](DataType type) { return BitsOf(type) % 8 == 0; };
  return !chain.normalizes() && chain.before.empty() && !chain.store.dynamic && is_whole_bytes(chain.x.type) &&
         is_whole_bytes(chain.store.type) && IsOneNumberOrNone(chain.x.quantization) &&
         IsOneNumberOrNone(chain.store.quantization) && KnownShapeOfD(chain).rank == chain.x.shape.rank &&
         std::all_of(chain.behind.begin(), chain.behind.end(),
                     [&](const Step& step) { return DependsOnOneNumber(chain, step); });
}

Result CompileForCpu(ChainOfParts chain, std::unique_ptr<Executable>* executable) {
  auto made = std::make_unique<ExecutableOfParts>(std::move(chain));
  NORMFUSE_RETURN_IF_ERROR(made->Init());
  *executable = std::move(made);
  return {};
}

}  // namespace normfuse
