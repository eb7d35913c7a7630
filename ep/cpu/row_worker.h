// One thread's way through groups whose innermost dimension is a reduced one (and everything without a normalisation,
// which counts as one group): each is read in contiguous runs, first for its statistics, then to be normalised.
#pragma once

#include "cpu/call.h"
#include "cpu/row_writer.h"
#include "cpu/statistics.h"

namespace normfuse::cpu {

inline const Dim& Innermost(const DimList& dims) { return dims.dims[dims.count - 1]; }

// Groups longer than that are summed in pieces, whoever does it: threads may share them, and their sums are added in order.
inline constexpr int64_t kMaxPieces = 64;
int64_t PieceSize(const Geometry& geometry);

class RowWorker {
 public:
  RowWorker(const Call& call, Scratch* scratch)
      : call_(call), scratch_(scratch), writer_(call), request_(RequestFor(call)), active_(call.geometry->active) {}

  // A whole group: statistics and result.
  void Group(const Offsets& base);
  // The two halves for a part of a group, for groups that several threads share.
  Sums FirstSums(const Offsets& base);
  // Goes on from `sums`.
  void Accumulate(const Offsets& base, int64_t begin, int64_t end, bool keep, bool write_sum, Sums* sums);
  // A whole group, piece by piece: see PieceSize.
  void AccumulateGroup(const Offsets& base, bool keep, bool write_sum, Sums* sums);
  void AccumulateWide(const Offsets& base, Sums* sums);
  // The statistics of a whole group from the sums that Accumulate made, or from better ones; true in the former case.
  bool Finish(const Offsets& base, bool keep, const Sums& sums, Statistics* statistics);
  void Apply(const Offsets& base, int64_t begin, int64_t end, bool kept, const Statistics& statistics);
  // The same where Statistics::beyond_float.
  void ApplyInDouble(const Offsets& base, int64_t begin, int64_t end, const Statistics& statistics);
  // Sets how stored integers of this group become d.
  void SetGroup(const Offsets& base);
  const StatisticsRequest& request() const { return request_; }

 private:
  // What makes d of stored integers with one scale and zero point.
  Statistics Dequantizer(const Offsets& at) const;

  const Call& call_;
  Scratch* scratch_;
  RowWriter writer_;
  StatisticsRequest request_;
  uint32_t active_;
};

// Groups `begin` to `end` where call.step has a kernel: while one is normalised the next is summed.
void RunPipeline(const Call& call, int64_t begin, int64_t end);

// Groups `begin` to `end` where each is one contiguous run and both passes have a kernel: a few rows at a time.
void RunBatches(const Call& call, int64_t begin, int64_t end);
// So many, a power of two.
int64_t RowsPerBatch(const Call& call);

}  // namespace normfuse::cpu
