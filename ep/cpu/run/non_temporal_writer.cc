#include "cpu/run/non_temporal_writer.h"

#include <algorithm>
#include <cstring>

namespace normfuse::cpu {
namespace {

// Stores `count` elements of each row, from `element` on.
ApplyArgs Part(DataType x_type, DataType y_type, const ApplyArgs& args, int64_t element, int64_t count) {
  ApplyArgs part = args;
  ForEachPointer(&part, x_type, y_type,
                 [element](auto** pointer, int64_t, int64_t step) { MoveOn(pointer, element * step); });
  part.n = static_cast<size_t>(count);
  return part;
}

// The arguments for `rows` rows from `row` on.
ApplyArgs Rows(DataType x_type, DataType y_type, const ApplyArgs& args, int row, int rows) {
  ApplyArgs some = args;
  ForEachPointer(&some, x_type, y_type,
                 [row](auto** pointer, int64_t stride, int64_t) { MoveOn(pointer, row * stride); });
  some.rows = rows;
  some.normalizers += row;
  return some;
}

}  // namespace

// Stores the line that is not full yet, because the next row does not continue it.
void NonTemporalWriter::Close() {
  if (open_ != nullptr) std::memcpy(open_, lines_[0].bytes, static_cast<size_t>(filled_));
  open_ = nullptr;
}

void NonTemporalWriter::ByLines(ApplyFn apply, DataType x_type, const ApplyArgs& args) {
  const DataType y_type = call_.spec->y_type;
  const bool alike =
      args.y_stride == static_cast<int64_t>(args.n) && args.y_stride * BitsOf(y_type) / 8 % kCacheLine == 0;
  const int most = alike ? kMostRows : 1;
  if (args.rows <= most) return Together(apply, x_type, args);
  for (int row = 0; row < args.rows; row += most) {
    Together(apply, x_type, Rows(x_type, y_type, args, row, std::min(most, args.rows - row)));
  }
}

// Rows that begin at the same place of a line, each where the one before it ends.
void NonTemporalWriter::Together(ApplyFn apply, DataType x_type, const ApplyArgs& args) {
  const DataType y_type = call_.spec->y_type;
  const int64_t size = BitsOf(y_type) / 8;
  const auto n = static_cast<int64_t>(args.n);
  auto* const y = static_cast<unsigned char*>(args.y);
  if (n * size < 2 * kCacheLine) {
    // Where threads share a run, one may begin shortly before its end.
    Close();
    ApplyArgs direct = args;
    direct.stream = false;
    apply(direct);
    return;
  }
  const auto before = static_cast<int64_t>(reinterpret_cast<uintptr_t>(y) % kCacheLine);
  const int64_t front = (kCacheLine - before) % kCacheLine / size;
  const int64_t whole = (n - front) * size / kCacheLine * kCacheLine / size;
  const int64_t end = front + whole;
  if (open_ != y - before || filled_ != before) Close();
  const bool joined = open_ != nullptr;

  const auto run = [&](int64_t element, int64_t count, unsigned char* edge) {
    if (count == 0) return;
    ApplyArgs part = Part(x_type, y_type, args, element, count);
    part.stream = edge == nullptr;
    if (edge != nullptr) {
      part.y = edge;
      part.y_stride = kCacheLine / size;
    }
    apply(part);
  };
  // Stores are carried out in order. What is read again from the lines is stored before the many that take long.
  run(0, front, lines_[0].bytes + before);
  run(end, n - end, lines_[1].bytes);
  run(front, whole, nullptr);

  if (front != 0) {
    if (!joined) std::memcpy(y, lines_[0].bytes + before, static_cast<size_t>(front * size));
    for (int row = joined ? 0 : 1; row < args.rows; ++row) {
      call_.kernels->stream_line(y + row * n * size - before, lines_[row].bytes);
    }
  }
  open_ = n == end ? nullptr : y + (args.rows * n - (n - end)) * size;
  filled_ = (n - end) * size;
  lines_[0] = lines_[args.rows];
}

}  // namespace normfuse::cpu
