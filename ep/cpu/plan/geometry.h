// Where the elements of every operand of a chain lie, for the shapes of one call.
//
// The logical shape is that of d: X broadcast with what is added to it (ShapeOfD), and for group normalisation with
// dimension 1 seen as [groups, channels per group]. Each operand is a *form*: one stride per logical dimension, 0 where
// it is broadcast.
// Dimensions of size 1 go, the others are sorted into kept ones and reduced ones, and neighbours of the same kind are
// joined wherever every form in use walks through them in one stride. A *group* is a set of values with one mean.
// Without a normalisation a form may also *repeat*: its few elements along the innermost dimension begin again and again, as
// a gate of each channel does along the pixels of a tensor in ONNX Runtime's blocked layout.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "chain/chain.h"

namespace normfuse::cpu {

inline constexpr int kMaxDims = kMaxRank + 1;
inline constexpr int64_t kBlock = 1024;  // elements that pass through the level-1 cache together
inline constexpr int64_t kMaxPieces = 64;
inline constexpr int64_t kLongestPeriod = 128;  // longer runs are worth a visit each

enum FormId : int {
  kFormX,
  kFormY,     // also what steps emit
  kFormStat,  // the outputs mean and inv_std_dev
  kFormResidual,
  kFormResidualBias,
  kFormScale,  // of UsualForm, or joined of several: see joined_affine.h
  kFormBias,
  kFormSlope,
  kFormXScale,
  kFormXZero,
  kFormXBlock,  // coordinate along the blocked axis, not an offset
  kFormResidualScale,
  kFormResidualZero,
  kFormResidualBlock,
  kFormYScale,
  kFormYZero,
  kFormYBlock,
  kFormFurther,  // the first of those of steps beyond UsualForm
  kFormCount = kFormFurther + kMostStepTensors,
};

// A form as one of a set.
constexpr uint32_t Bit(FormId form) { return 1u << form; }

// Where an operand of the chain stands among the forms.
struct OperandForms {
  const Operand* operand = nullptr;
  FormId form = kFormX;
  // Of the quantisation of a tensor that is read where it lies: its scale; the next two are zero point and block.
  FormId scale_form = kFormCount;
  bool of_d = false;  // X, or of a step before the normalisation

  bool has_quantization() const { return scale_form != kFormCount; }
};

// Where a quantisation of d itself, by a step or as Y, stands among the forms: scale, zero point and block.
struct QuantizationForms {
  const Quantization* quantization = nullptr;
  FormId scale_form = kFormYScale;
  bool of_d = false;  // of a step before the normalisation
};

// All tensors of a chain, X first.
struct ChainForms {
  std::vector<OperandForms> operands;
  std::vector<QuantizationForms> quantizations;
};

struct Shape {
  const int64_t* dims;
  int rank;  // -1: absent

  int64_t ElementCount() const {
    int64_t count = 1;
    for (int i = 0; i < rank; ++i) count *= dims[i];
    return count;
  }
};

// One position, or one step: a value per form.
struct Offsets {
  int64_t at[kFormCount];
};

struct Dim {
  int64_t size;
  int64_t stride[kFormCount];
};

// `steps` further along a dimension, of those forms that the mask has.
inline void MoveOn(const Dim& dim, uint32_t active, int64_t steps, Offsets* at) {
  for (uint32_t left = active; left != 0; left &= left - 1) {
    const int form = std::countr_zero(left);
    at->at[form] += steps * dim.stride[form];
  }
}

// The same of all.
inline Offsets Moved(Offsets at, const Dim& dim, int64_t steps) {
  for (int form = 0; form < kFormCount; ++form) at.at[form] += steps * dim.stride[form];
  return at;
}

// An ordered list of dimensions, outermost first; never empty once bound.
struct DimList {
  int count = 0;
  Dim dims[kMaxDims];

  int64_t ElementCount() const {
    int64_t total = 1;
    for (int i = 0; i < count; ++i) total *= dims[i].size;
    return total;
  }
};

// Shapes by form, as they come from the call.
struct CallShapes {
  Shape of[kFormCount];  // of those that change from call to call; for BindGeometry all
  // Bit f: all elements of that operand are equal, so that it counts as one element once its shape is checked.
  uint32_t uniform = 0;
};

// Elements `begin` to `end` of an index space, at most `most` at a time.
struct Range {
  int64_t begin;
  int64_t end;
  int64_t most = std::numeric_limits<int64_t>::max();
};

struct Geometry {
  int rank = 0;             // of d
  int64_t shape[kMaxRank];  // of d and Y
  int64_t stat_shape[kMaxRank];
  int64_t element_count = 0;
  int64_t group_count = 0;
  int64_t group_size = 0;  // values per mean
  // Long groups are summed in pieces, whoever does it: threads may share them, and their sums are added in order.
  int64_t piece_size = 0;
  int64_t piece_count = 0;

  uint32_t active = 0;   // bit f: form f is in use
  DimList kept;          // one entry per independent direction between groups
  DimList reduced;       // within a group, joined for all forms
  DimList reduced_d;     // within a group, joined for the forms that d is made of
  bool columns = false;  // the innermost dimension is a kept one: it is the last of `kept`
  // Bit f: form f, whose stride is 0 there, repeats along the innermost dimension of `reduced`, after `period` elements. Stretches
  // of blocks begin and end at multiples of it.
  uint32_t repeating = 0;
  int64_t period = 1;
  int64_t joined_count = 0;  // elements of a joined scale; 0: nothing joins
  // By the form of a blocked quantisation's scale: its stride along its axis, in elements of the scale.
  int64_t block_stride[kFormCount] = {};

  bool Repeats(FormId form) const { return (repeating & Bit(form)) != 0; }
  Range Piece(int64_t index) const { return {index * piece_size, std::min((index + 1) * piece_size, group_size)}; }
};

// Fails with a sentence that names the operand and the shapes when they do not fit each other.
Result BindGeometry(const Chain& chain, const ChainForms& forms, const CallShapes& shapes, Geometry* geometry);

// Walks the index space of a DimList in order, from any start.
class Odometer {
 public:
  Odometer(const DimList& dims, uint32_t active) : dims_(dims), active_(active) {}

  // Calls visit(offsets, index, n) for stretches along the innermost dimension, in order.
  template <class Visit>
  void ForEachStretch(const Range& range, const Offsets& base, Visit visit) {
    const int64_t count = range.end - range.begin;
    if (dims_.count == 1 && range.begin == 0 && count <= range.most) {
      if (count != 0) visit(base, int64_t{0}, count);
      return;
    }
    Offsets at;
    Seek(range.begin, base, &at);
    for (int64_t index = range.begin; index < range.end;) {
      const int64_t n = std::min({RunLength(), range.end - index, range.most});
      visit(at, index, n);
      Advance(n, &at);
      index += n;
    }
  }

  // Sets `offsets` to base + the position of linear index `index`.
  void Seek(int64_t index, const Offsets& base, Offsets* offsets);
  // How many steps remain along the innermost dimension, the present position included.
  int64_t RunLength() const { return dims_.dims[dims_.count - 1].size - index_[dims_.count - 1]; }
  // `steps` further along the innermost dimension, at most RunLength(), and on to the next run behind its end.
  void Advance(int64_t steps, Offsets* offsets);

 private:
  void Carry(int dim, Offsets* offsets);

  const DimList& dims_;
  uint32_t active_;
  int64_t index_[kMaxDims] = {};
};

}  // namespace normfuse::cpu
