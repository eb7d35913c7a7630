// Softmax and its logarithm along rows of d: the largest value, then exponentials and their sum, then the quotients. The
// second pass of a normalisation does the rest: what a group is made of is as there.
#pragma once

#include <cstdint>

#include "cpu/run/call.h"

namespace normfuse::cpu {

// Whether one kernel reads d where X and at most a factor and an addend lie.
bool ReadsRows(const Call& call);

// Whether the exponentials of a row wait in Y for their sum. Y is stored twice then, the second time from the caches.
bool KeepsInY(const Call& call);

// Groups `begin` to `end`, each of which is read in runs.
void RunSoftmaxRows(const Call& call, int64_t begin, int64_t end);

}  // namespace normfuse::cpu
