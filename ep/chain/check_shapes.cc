// CheckShapes: whether the tensors of a chain fit each other. The sentences end up before users, so each names the node, the
// operand and the shapes seen.
#include <algorithm>
#include <string>

#include "chain/chain.h"

namespace normfuse {
namespace {

// The name of a tensor, or of a part of its quantisation, in messages: built only when there is a message.
struct Name {
  const std::string& tensor;
  const char* part = "";

  std::string Text() const {
    if (*part == '\0') return tensor;
    return (tensor == "X" ? "x" : tensor) + part;
  }
};

bool IsSingle(const PartialShape& shape) {
  return shape.rank <= kMaxRank &&
         std::all_of(shape.dims, shape.dims + shape.rank, [](int64_t dim) { return dim == 1; });
}

bool Same(const PartialShape& a, const PartialShape& b) {
  return a.rank == b.rank && a.rank <= kMaxRank && std::equal(a.dims, a.dims + a.rank, b.dims);
}

Result Error(const std::string& node, const std::string& text) {
  return Result::Error(ErrorCode::kInvalidArgument, node + ": " + text);
}

// A vector along one axis.
Result CheckAxis(const std::string& node, const Name& what, int64_t axis, int64_t length, const PartialShape& shape) {
  const int64_t at = axis < 0 ? axis + shape.rank : axis;
  if (at < 0 || at >= shape.rank) {
    return Error(node, what.Text() + ": axis " + std::to_string(axis) + " is out of range for shape " + shape.Text());
  }
  if (shape.dims[at] >= 0 && shape.dims[at] != length) {
    return Error(node, what.Text() + " has " + std::to_string(length) + " elements, but dimension " +
                           std::to_string(at) + " of shape " + shape.Text() + " has " + std::to_string(shape.dims[at]));
  }
  return {};
}

Result CheckBlocks(const QuantizedShapes& tensor) {
  const Quantization& q = tensor.quantization;
  const PartialShape& shape = tensor.shape;
  const PartialShape& scale = tensor.scale;
  const Name what{tensor.tensor, "_scale"};
  const int64_t axis = q.axis < 0 ? q.axis + shape.rank : q.axis;
  if (axis < 0 || axis >= shape.rank) {
    return Error(tensor.node,
                 what.Text() + ": axis " + std::to_string(q.axis) + " is out of range for shape " + shape.Text());
  }
  bool fits = scale.rank == shape.rank;
  for (int i = 0; i < shape.rank && fits; ++i) {
    if (shape.dims[i] < 0) continue;
    fits = scale.dims[i] == (i == axis ? (shape.dims[i] + q.block_size - 1) / q.block_size : shape.dims[i]);
  }
  if (fits) return {};
  return Error(tensor.node, what.Text() + " of shape " + scale.Text() + " does not fit blocks of " +
                                std::to_string(q.block_size) + " along axis " + std::to_string(q.axis) + " of shape " +
                                shape.Text());
}

// A scale or a zero point that is not blocked: one for all, one for each element of an axis, or of the tensor's rank.
Result CheckPart(const Name& what, const QuantizedShapes& tensor, const PartialShape& part) {
  if (part.rank < 0 || IsSingle(part)) return {};
  const PartialShape& shape = tensor.shape;
  // A tensor of one dimension has only one axis, whatever the attribute says.
  if (part.rank == 1)
    return CheckAxis(tensor.node, what, shape.rank == 1 ? 0 : tensor.quantization.axis, part.dims[0], shape);
  bool fits = part.rank == shape.rank;
  for (int i = 0; i < shape.rank && fits; ++i) {
    fits = part.dims[i] == 1 || shape.dims[i] < 0 || part.dims[i] == shape.dims[i];
  }
  if (fits) return {};
  return Error(tensor.node, what.Text() + " of shape " + part.Text() + " does not broadcast to shape " + shape.Text());
}

class ShapeChecker {
 public:
  ShapeChecker(const Chain& chain, const KnownShapes& shapes) : chain_(chain), shapes_(shapes) {}

  Result Run(PartialShape* d) {
    NORMFUSE_RETURN_IF_ERROR(ShapeOfD(chain_, shapes_.of_operand, &d_));
    *d = d_;
    Result result;
    ForEachOperand(chain_, [&](const Operand& operand) {
      if (!result.ok() || !operand.quantization.present()) return;
      result = Check(operand.name, operand.quantization, shapes_.of_operand(operand));
    });
    if (result.ok() && chain_.normalizes()) result = chain_.num_groups() > 0 ? CheckGroups() : CheckAxes();
    ForEachStep(chain_, [&](const Step& step) {
      if (result.ok() && step.operand.present()) result = CheckMeeting(step.operand);
      static const std::string kD = "d";
      if (result.ok() && step.kind == StepKind::kFakeQuantize) result = Check(kD, step.quantization, d_);
    });
    if (!result.ok() || !chain_.store.quantization.present()) return result;
    static const std::string kY = "y";
    return Check(kY, chain_.store.quantization, d_);
  }

 private:
  Result Error(const std::string& text) const { return normfuse::Error(chain_.name, text); }

  Result Check(const std::string& name, const Quantization& quantization, const PartialShape& shape) const {
    return CheckQuantization({chain_.name, name, quantization, shape, shapes_.of_parameter(quantization.scale),
                              shapes_.of_parameter(quantization.zero_point)});
  }

  // How the operand of a step meets d.
  Result CheckMeeting(const Operand& operand) const {
    const PartialShape shape = shapes_.of_operand(operand);
    if (operand.align == Align::kTrailing) return CheckTrailing(operand.name, shape);
    const int64_t groups = chain_.num_groups();
    if (operand.align == Align::kGroup && groups <= 0) {
      return Error(operand.name + " has an element for each group, but num_groups is " + std::to_string(groups));
    }
    if (shape.rank < 0 || IsSingle(shape)) return {};
    if (shape.rank != 1) return Error(operand.name + " of shape " + shape.Text() + " must have one dimension");
    const int64_t length = shape.dims[0];
    if (operand.align == Align::kGroup) {
      if (length < 0 || length == groups) return {};
      return Error(operand.name + " of shape " + shape.Text() + " does not have one element for each of the " +
                   std::to_string(groups) + " groups");
    }
    if (d_.rank < 0 || length < 0) return {};
    return CheckAxis(chain_.name, {operand.name}, 1, length, d_);
  }

  // A tensor that broadcasts to d from the last dimension.
  Result CheckTrailing(const std::string& name, const PartialShape& shape) const {
    if (d_.rank < 0) return {};
    // More dimensions would give Y more than d has, even those of one element.
    const int missing = d_.rank - shape.rank;
    bool fits = missing >= 0;
    for (int i = 0; i < shape.rank && fits; ++i) {
      const int64_t whole = d_.dims[i + missing];
      fits = shape.dims[i] == 1 || shape.dims[i] < 0 || whole < 0 || shape.dims[i] == whole;
    }
    if (fits) return {};
    return Error(name + " of shape " + shape.Text() + " does not broadcast to X of shape " + d_.Text());
  }

  bool IsAxis(int64_t axis) const {
    const int64_t rank = d_.rank < 0 ? kMaxRank : d_.rank;
    return axis >= -rank && axis < rank;
  }

  // "axes [0, 5]: 5 is out of range for X of shape [2, 3]"
  Result AxisError(int64_t axis, const std::string& problem) const {
    const Normalization& norm = *chain_.normalization;
    std::string text;
    for (const int64_t each : norm.axes) text += (text.empty() ? "axes [" : ", ") + std::to_string(each);
    if (!norm.from_first_axis) text += "]: ";
    return Error(text + "axis " + std::to_string(axis) + problem +
                 (d_.rank >= 0 ? " for X of shape " + d_.Text() : ""));
  }

  // Allocates nothing while nothing is wrong, as all of this.
  Result CheckAxes() const {
    const Normalization& norm = *chain_.normalization;
    constexpr const char* kOutOfRange = " is out of range";
    if (norm.from_first_axis) return IsAxis(norm.first_axis) ? Result() : AxisError(norm.first_axis, kOutOfRange);
    bool seen[2 * kMaxRank] = {};
    for (const int64_t axis : norm.axes) {
      if (!IsAxis(axis)) return AxisError(axis, kOutOfRange);
      bool& known = seen[kMaxRank + (axis < 0 && d_.rank >= 0 ? axis + d_.rank : axis)];
      if (known) return AxisError(axis, " is given twice");
      known = true;
    }
    return {};
  }

  Result CheckGroups() const {
    if (d_.rank < 0) return {};
    if (d_.rank < 2) return Error("group normalisation needs at least 2 dimensions, X has shape " + d_.Text());
    const int64_t groups = chain_.num_groups();
    if (d_.dims[1] < 0 || d_.dims[1] % groups == 0) return {};
    return Error("the " + std::to_string(d_.dims[1]) + " channels of X of shape " + d_.Text() +
                 " cannot be divided into " + std::to_string(groups) + " groups");
  }

  const Chain& chain_;
  const KnownShapes& shapes_;
  PartialShape d_;
};

}  // namespace

Result CheckQuantization(const QuantizedShapes& tensor) {
  const Name scale_name{tensor.tensor, "_scale"};
  const Name zero_name{tensor.tensor, "_zero_point"};
  const PartialShape& scale = tensor.scale;
  const PartialShape& zero = tensor.zero_point;
  const bool blocked = tensor.quantization.block_size > 0;
  if (blocked && scale.rank >= 0 && zero.rank >= 0 && !IsSingle(zero) && !Same(zero, scale)) {
    return Error(tensor.node, zero_name.Text() + " of shape " + zero.Text() +
                                  " is neither one element nor of the shape " + scale.Text() + " of " +
                                  scale_name.Text());
  }
  if (tensor.shape.rank < 0) return {};
  if (blocked) return scale.rank < 0 ? Result() : CheckBlocks(tensor);
  NORMFUSE_RETURN_IF_ERROR(CheckPart(scale_name, tensor, scale));
  return CheckPart(zero_name, tensor, zero);
}

Result CheckShapes(const Chain& chain, const KnownShapes& shapes, PartialShape* d) {
  return ShapeChecker(chain, shapes).Run(d);
}

}  // namespace normfuse
