// Which ready operations share one buffer: a pure function, evaluated by the coordinator only. The
// response carries the result, so a rank's own parameters never decide.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/operation/message.h"

namespace autotune {

struct FusionCandidate {
  const Response* response;  // it has a single item
  int64_t bytes;             // the item has so many, an allgather's on all ranks together
  int64_t step;              // operations of two training steps never fuse,
  uint64_t group = 0;        // and those of two groups do not, either
};

// Groups of indices into `candidates`, in order of their first member. Members of a group agree in
// kind, step and group, and their bytes sum to at most `threshold_bytes` (a single member may be
// larger). Only allreduce, allgather and reducescatter fuse; errors and threshold 0 never do.
//
// In memory that is used again.
class FusionPlan {
 public:
  void make(const std::vector<FusionCandidate>& candidates, int64_t threshold_bytes);
  size_t size() const { return size_; }
  const std::vector<size_t>& group(size_t i) const { return groups_[i]; }

 private:
  // The newest group of its kind.
  struct OpenGroup {
    const FusionCandidate* first;
    size_t index;
    int64_t bytes;
  };

  void add_group(size_t candidate);

  std::vector<std::vector<size_t>> groups_;  // the first `size_` of them count
  size_t size_ = 0;
  std::vector<OpenGroup> open_;  // they are few: a step has few kinds of operations
};

}  // namespace autotune
