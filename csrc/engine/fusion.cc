#include "engine/fusion.h"

#include <map>
#include <tuple>

namespace autotune {

namespace {

using Key = std::tuple<int32_t, Operation, DataType, std::optional<DataType>, bool, ReduceOp,
                       double, double, int64_t, uint64_t>;

struct OpenGroup {
  size_t index;
  int64_t bytes;
};

bool can_fuse(const Response& response) {
  return response.error.empty() && (response.operation == Operation::allreduce ||
                                    response.operation == Operation::allgather ||
                                    response.operation == Operation::reducescatter);
}

}  // namespace

std::vector<std::vector<size_t>> plan_fusion(const std::vector<FusionCandidate>& candidates,
                                             int64_t threshold_bytes) {
  std::vector<std::vector<size_t>> groups;
  std::map<Key, OpenGroup> open;
  for (size_t i = 0; i < candidates.size(); ++i) {
    const FusionCandidate& candidate = candidates[i];
    const Response& r = *candidate.response;
    if (threshold_bytes <= 0 || !can_fuse(r)) {
      groups.push_back({i});
      continue;
    }
    const Key key{r.process_set, r.operation, r.dtype,     r.wire_type,    r.on_device,
                  r.reduce_op,   r.prescale,  r.postscale, candidate.step, candidate.group};
    const auto group = open.find(key);
    if (group != open.end() && group->second.bytes + candidate.bytes <= threshold_bytes) {
      groups[group->second.index].push_back(i);
      group->second.bytes += candidate.bytes;
    } else {
      open[key] = {groups.size(), candidate.bytes};
      groups.push_back({i});
    }
  }
  return groups;
}

}  // namespace autotune
