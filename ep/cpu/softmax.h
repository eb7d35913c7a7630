// Softmax and its logarithm over groups of d: the largest value, then exponentials and their sum, then the quotients. The
// second pass of a normalisation does the rest: what a group is made of is as there.
#pragma once

#include <cstdint>

#include "cpu/call.h"
#include "cpu/flush_denormals.h"

namespace normfuse::cpu {

// Whether one kernel reads d where X and at most a factor and an addend lie.
bool ReadsRows(const Call& call);

// Whether the exponentials of a row wait in Y for their sum. Y is stored twice then, the second time from the caches.
bool KeepsInY(const Call& call);

// Groups `begin` to `end`, each of which is read in runs.
void RunSoftmaxRows(const Call& call, int64_t begin, int64_t end);

// A tile of groups that lie side by side: the innermost dimension is a kept one.
class SoftmaxColumns {
 public:
  static constexpr int64_t kWidest = 512;
  // Tiles of that many columns are kept between the passes, where they are not too many rows.
  static int64_t WidthFor(int64_t rows);

  struct Scratch {
    cpu::Scratch blocks;
    alignas(64) float most[kWidest];
    alignas(64) float shift[kWidest];
    alignas(64) float down[kWidest];
    alignas(64) float sum[kWidest];
    alignas(64) float lost[kWidest];
    alignas(64) float mean[kWidest];
    alignas(64) float rest[kWidest];
    alignas(64) float inv[kWidest];
  };

  SoftmaxColumns(const Call& call, Scratch* scratch);
  void Tile(const Offsets& base, int64_t width);

 private:
  // Row `row` of d, kept or read again.
  float* Read(const Offsets& at, int64_t row, Emission emission);
  float* Again(const Offsets& at, int64_t row);
  void MakeNormalizers();

  FlushDenormals flush_;
  const Call& call_;
  Scratch* s_;
  const Dim& columns_;
  int64_t width_ = 0;
  bool kept_ = false;
};

}  // namespace normfuse::cpu
