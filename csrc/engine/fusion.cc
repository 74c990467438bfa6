#include "engine/fusion.h"

#include <algorithm>

namespace autotune {

namespace {

// The newest group of its kind.
struct OpenGroup {
  const FusionCandidate* first;
  size_t index;
  int64_t bytes;
};

bool can_fuse(const Response& response) {
  return response.error.empty() && (response.operation == Operation::allreduce ||
                                    response.operation == Operation::allgather ||
                                    response.operation == Operation::reducescatter);
}

bool same_kind(const FusionCandidate& one, const FusionCandidate& other) {
  const Response &a = *one.response, &b = *other.response;
  return one.step == other.step && one.group == other.group && a.process_set == b.process_set &&
         a.operation == b.operation && a.dtype == b.dtype && a.wire_type == b.wire_type &&
         a.on_device == b.on_device && a.reduce_op == b.reduce_op && a.prescale == b.prescale &&
         a.postscale == b.postscale;
}

}  // namespace

std::vector<std::vector<size_t>> plan_fusion(const std::vector<FusionCandidate>& candidates,
                                             int64_t threshold_bytes) {
  std::vector<std::vector<size_t>> groups;
  std::vector<OpenGroup> open;  // few: a step has few kinds of operations
  for (size_t i = 0; i < candidates.size(); ++i) {
    const FusionCandidate& candidate = candidates[i];
    if (threshold_bytes <= 0 || !can_fuse(*candidate.response)) {
      groups.push_back({i});
      continue;
    }
    const auto group = std::find_if(open.begin(), open.end(), [&](const OpenGroup& each) {
      return same_kind(*each.first, candidate);
    });
    if (group == open.end()) {
      open.push_back({&candidate, groups.size(), candidate.bytes});
      groups.push_back({i});
    } else if (group->bytes + candidate.bytes <= threshold_bytes) {
      groups[group->index].push_back(i);
      group->bytes += candidate.bytes;
    } else {
      *group = {&candidate, groups.size(), candidate.bytes};
      groups.push_back({i});
    }
  }
  return groups;
}

}  // namespace autotune
