#include "chain/concatenation.h"

#include <algorithm>
#include <string>
#include <utility>

namespace normfuse {
namespace {

// What one part covers in X, between two of what lies in front of the axis.
struct Part {
  const char* data = nullptr;
  int64_t elements = 0;
};

struct JoinedShape {
  std::vector<int64_t> dims;
  int64_t outer = 1;  // how often the parts take turns
  std::vector<Part> parts;
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

class ConcatenatedExecutable final : public Executable {
 public:
  explicit ConcatenatedExecutable(ConcatenatedChain concatenated) : concatenated_(std::move(concatenated)) {}

  Result Init() {
    Chain chain = concatenated_.chain;
    chain.x.shape = {};  // that of all parts together
    return CompileForCpu(chain, &of_part_);
  }

  Result Run(ExecutionContext& context) const override {
    JoinedShape joined;
    NORMFUSE_RETURN_IF_ERROR(Join(context, &joined));
    const Store& store = concatenated_.chain.store;
    void* data = nullptr;
    NORMFUSE_RETURN_IF_ERROR(context.Output(store.output, store.type, joined.dims.data(), joined.dims.size(), &data));
    if (data == nullptr) return {};
    auto* y = static_cast<char*>(data);
    PartContext of_part(context, concatenated_.chain.x.type, joined.dims.size());
    for (int64_t o = 0; o < joined.outer; ++o) {
      for (const Part& part : joined.parts) {
        if (part.elements == 0) continue;
        const size_t bytes = BytesFor(concatenated_.chain.x.type, static_cast<size_t>(part.elements));
        of_part.MoveTo(part.data + static_cast<size_t>(o) * bytes, part.elements, y);
        NORMFUSE_RETURN_IF_ERROR(of_part_->Run(of_part));
        y += BytesFor(store.type, static_cast<size_t>(part.elements));
      }
    }
    return {};
  }

 private:
  Result Join(ExecutionContext& context, JoinedShape* joined) const;

  const ConcatenatedChain concatenated_;
  std::unique_ptr<Executable> of_part_;
};

Result ConcatenatedExecutable::Join(ExecutionContext& context, JoinedShape* joined) const {
  size_t axis = 0;
  for (const int input : concatenated_.parts) {
    TensorView view;
    NORMFUSE_RETURN_IF_ERROR(context.Input(input, &view));
    if (joined->parts.empty()) {
      joined->dims.assign(view.dims, view.dims + view.rank);
      const auto rank = static_cast<int64_t>(view.rank);
      const int64_t from_front = concatenated_.axis < 0 ? concatenated_.axis + rank : concatenated_.axis;
      if (from_front < 0 || from_front >= rank) {
        return Result::Error(ErrorCode::kInvalidArgument, concatenated_.chain.name + ": Concat has no axis " +
                                                              std::to_string(concatenated_.axis) + " of " + Text(view));
      }
      axis = static_cast<size_t>(from_front);
      for (size_t i = 0; i < axis; ++i) joined->outer *= view.dims[i];
      joined->dims[axis] = 0;
    }
    bool fits = view.rank == joined->dims.size() && view.type == concatenated_.chain.x.type;
    int64_t elements = 1;
    for (size_t i = 0; fits && i < view.rank; ++i) {
      fits = i == axis || view.dims[i] == joined->dims[i];
      if (i >= axis) elements *= view.dims[i];
    }
    if (!fits) {
      return Result::Error(ErrorCode::kInvalidArgument, concatenated_.chain.name + ": input " + std::to_string(input) +
                                                            " of Concat, " + Text(view) +
                                                            ", does not fit those before it");
    }
    joined->dims[axis] += view.dims[axis];
    joined->parts.push_back({static_cast<const char*>(view.data), elements});
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

Result CompileForCpu(ConcatenatedChain concatenated, std::unique_ptr<Executable>* executable) {
  auto made = std::make_unique<ConcatenatedExecutable>(std::move(concatenated));
  NORMFUSE_RETURN_IF_ERROR(made->Init());
  *executable = std::move(made);
  return {};
}

}  // namespace normfuse
