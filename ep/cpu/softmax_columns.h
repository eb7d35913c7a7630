// Softmax and its logarithm of groups that lie side by side: see columns.cc.
#pragma once

#include <cstdint>

#include "cpu/call.h"
#include "cpu/flush_denormals.h"

namespace normfuse::cpu {

// A tile of groups: the innermost dimension is a kept one.
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
  void FindBases();
  void MakeNormalizers();

  FlushDenormals flush_;
  const Call& call_;
  Scratch* s_;
  const Dim& columns_;
  int64_t width_ = 0;
  bool kept_ = false;
};

}  // namespace normfuse::cpu
