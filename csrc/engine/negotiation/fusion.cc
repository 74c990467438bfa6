#include "engine/negotiation/fusion.h"

#include <algorithm>

namespace autotune {

namespace {

bool same_kind(const FusionCandidate& one, const FusionCandidate& other) {
  const OperationKind& kind = *one.response;
  return one.step == other.step && one.group == other.group && kind == *other.response;
}

}  // namespace

void FusionPlan::add_group(size_t candidate) {
  if (groups_.size() == size_) groups_.emplace_back();
  groups_[size_].clear();
  groups_[size_++].push_back(candidate);
}

void FusionPlan::make(const std::vector<FusionCandidate>& candidates, int64_t threshold_bytes) {
  size_ = 0;
  open_.clear();
  for (size_t i = 0; i < candidates.size(); ++i) {
    const FusionCandidate& candidate = candidates[i];
    if (threshold_bytes <= 0 || !can_fuse(*candidate.response)) {
      add_group(i);
      continue;
    }
    const auto group = std::find_if(open_.begin(), open_.end(), [&](const OpenGroup& each) {
      return same_kind(*each.first, candidate);
    });
    if (group == open_.end()) {
      open_.push_back({&candidate, size_, candidate.bytes});
      add_group(i);
    } else if (group->bytes + candidate.bytes <= threshold_bytes) {
      groups_[group->index].push_back(i);
      group->bytes += candidate.bytes;
    } else {
      *group = {&candidate, size_, candidate.bytes};
      add_group(i);
    }
  }
}

}  // namespace autotune
