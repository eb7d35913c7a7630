// The second pass of rows by non-temporal stores, where rows need not begin with a line of the cache.
#pragma once

#include "cpu/run/call.h"

namespace normfuse::cpu {

// With Store::kNonTemporalLines a row is written in three parts: what lies in front of its first whole line of the cache,
// its whole lines, and what is left. The line that one row ends in and the next begins in is put together here, and stored
// non-temporally as well: for a part of a line the rest of it would have to be read from memory first.
class NonTemporalWriter {
 public:
  explicit NonTemporalWriter(const Call& call) : call_(call) {}
  ~NonTemporalWriter() { Close(); }
  NonTemporalWriter(const NonTemporalWriter&) = delete;
  NonTemporalWriter& operator=(const NonTemporalWriter&) = delete;

  // args.rows rows of `x_type` by `apply`. The end of the last row may stay here
  // until the next call, or the writer's end.
  void Apply(ApplyFn apply, DataType x_type, const ApplyArgs& args) {
    if (call_.path.store == Store::kNonTemporalLines) {
      ByLines(apply, x_type, args);
    } else {
      apply(args);
    }
  }
  // Writes what stays here.
  void Close();

 private:
  static constexpr int kMostRows = 2;  // at once
  struct alignas(kCacheLine) Line {
    unsigned char bytes[kCacheLine];
  };

  void ByLines(ApplyFn apply, DataType x_type, const ApplyArgs& args);
  void Together(ApplyFn apply, DataType x_type, const ApplyArgs& args);

  const Call& call_;
  // Of the lines that rows begin in; the first `filled_` bytes of the first one belong at `open_`, if that is not null.
  Line lines_[kMostRows + 1];
  unsigned char* open_ = nullptr;
  int64_t filled_ = 0;
};

}  // namespace normfuse::cpu
