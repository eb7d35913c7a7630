// One thread's way through groups whose innermost dimension is a reduced one (and everything without a normalisation,
// which counts as one group): each is read in contiguous runs, first for its statistics, then to be normalised.
#pragma once

#include "cpu/run/call.h"
#include "cpu/run/non_temporal_writer.h"
#include "cpu/run/statistics.h"

namespace normfuse::cpu {

class GroupWorker {
 public:
  GroupWorker(const Call& call, Scratch* scratch)
      : call_(call), scratch_(scratch), writer_(call), request_(RequestFor(call)), active_(call.geometry->active) {}

  // A whole group: statistics and result.
  void Group(const Offsets& base);
  // The two halves for a part of a group, for groups that several threads share.
  Sums FirstSums(const Offsets& base);
  // Goes on from `sums`. `kept`: room for d of the whole group, or null.
  void Accumulate(const Offsets& base, const Range& range, float* kept, Emission emission, Sums* sums);
  // A whole group, piece by piece.
  void AccumulateGroup(const Offsets& base, float* kept, Emission emission, Sums* sums);
  void AccumulateWide(const Offsets& base, Sums* sums);
  // The statistics of a whole group, also where they are outputs, from the sums that Accumulate made, or from better ones.
  void Finish(const Offsets& base, const Sums& sums, Statistics* statistics);
  // `kept`: d of the group as Accumulate left it, or null.
  void Apply(const Offsets& base, const Range& range, float* kept, const Statistics& statistics);
  // The same where Statistics::beyond_float.
  void ApplyInDouble(const Offsets& base, const Range& range, const Statistics& statistics);
  // Sets how stored integers of this group become d.
  void SetGroup(const Offsets& base);
  const StatisticsRequest& request() const { return request_; }

 private:
  bool ApplySteps(const Offsets& base, const Range& range);
  void ApplyBlock(const Offsets& at, int64_t n, float* kept, const Normalizer& normalizer);
  void ApplyRuns(const Offsets& base, const Normalizer& normalizer);
  // What makes d of stored integers with one scale and zero point.
  Statistics Dequantizer(const Offsets& at) const;

  const Call& call_;
  Scratch* scratch_;
  NonTemporalWriter writer_;
  StatisticsRequest request_;
  uint32_t active_;
};

// Groups `begin` to `end` along the walk of each name.
void RunGroups(const Call& call, int64_t begin, int64_t end);
void RunTiles(const Call& call, int64_t begin, int64_t end);
void RunPipeline(const Call& call, int64_t begin, int64_t end);

}  // namespace normfuse::cpu
