// Products and sums with parameters behind a normalisation, one after the other, as one scale and one bias:
//
//   (n * s + b) * m + a = n * (s * m) + (b * m + a)
//
// So a modulation behind the normalisation's own affine costs what the affine alone does. The products and sums of
// parameters are rounded one by one, in the same way whether they are joined for a whole call (JoinForCall), which then may
// take any path, or block by block (JoinedAt), so that all paths give the same bits.
#pragma once

#include "cpu/run/call.h"

namespace normfuse::cpu {

// A scale and a bias along a run.
struct Affine {
  Vec scale;
  Vec bias;
};

// Gives the forms kFormScale and kFormBias, which no operand of such a stage has, strides that suit what it joins, and sets
// joined_count.
void LayOutJoined(const Stage& stage, Geometry* geometry);

// Makes scale and bias of n <= kBlock elements from `at` on, in `rooms`, of kBlock floats each. False where a product or a
// sum leaves the range of normal floats, which the result of all steps need not: they are then taken one by one.
bool JoinedAt(const Block& block, const Stage& stage, float* const rooms[2], Affine* joined);

// Joins them for all elements in `memory`, of 2 * joined_count floats: sets the parameters kFormScale and kFormBias, and
// is_joined; nothing where JoinedAt would fail.
void JoinForCall(Call* call, const Stage& stage, float* memory);

}  // namespace normfuse::cpu
