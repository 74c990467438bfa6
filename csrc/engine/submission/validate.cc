#include "engine/submission/validate.h"

#include <algorithm>
#include <string>

#include "common/errors.h"
#include "engine/operation/request_check.h"

namespace autotune {

namespace {

[[noreturn]] void refuse(const Request& request, const std::string& why) {
  throw InvalidRequest(describe(request) + ": " + why);
}

const ProcessSet& find_set(const Request& request, const ProcessSetTable& sets, int rank) {
  const ProcessSet* set = sets.find(request.process_set);
  if (set == nullptr) {
    std::string known;
    for (const auto& [id, each] : sets.all()) {
      known += (known.empty() ? "" : ", ") + std::to_string(id);
    }
    refuse(request, "expected a process set that exists (" + known + "), got " +
                        std::to_string(request.process_set) + "; was it removed?");
  }
  if (!set->contains(rank)) {
    refuse(request, "expected a rank of process set " + std::to_string(request.process_set) + ", " +
                        to_string(*set) + ", got rank " + std::to_string(rank) + " (of " +
                        std::to_string(sets.global().size()) +
                        "); only its members may use a process set");
  }
  return *set;
}

// Equal parts, where the caller has left them out.
void complete_splits(SharedRequest& request, const ProcessSet& set) {
  if (!request->splits.empty() || request->shape.empty()) return;
  const int64_t rows = request->shape[0];
  if (rows % set.size() != 0) {
    refuse(request, "expected a first dimension that " + std::to_string(set.size()) +
                        " ranks divide evenly, got " + std::to_string(rows) + "; pass splits");
  }
  request.edit().splits.assign(static_cast<size_t>(set.size()), rows / set.size());
}

void sort_ranks(SharedRequest& request) {
  std::vector<int64_t>& ranks = request.edit().shape;
  std::sort(ranks.begin(), ranks.end());
}

void expect_new_set(const Request& request, const ProcessSetTable& sets) {
  const std::vector<int64_t>& ranks = request.shape;
  const int32_t known = sets.id_of(std::vector<int>(ranks.begin(), ranks.end()));
  if (known < 0) return;
  throw InvalidRequest("add_process_set: expected ranks that no process set has, got " +
                       to_string(ranks) + ", which are process set " + std::to_string(known) +
                       "; use that one");
}

void expect_removable_set(const Request& request, const ProcessSetTable& sets) {
  if (request.root_rank != 0 && sets.find(request.root_rank) != nullptr) return;
  throw InvalidRequest("remove_process_set: expected a process set that exists, and not 0, got " +
                       std::to_string(request.root_rank));
}

}  // namespace

void validate(SharedRequest& request, const ProcessSetTable& sets, int rank) {
  const ProcessSet& set = find_set(request, sets, rank);
  if (request->operation == Operation::alltoall) complete_splits(request, set);
  if (request->operation == Operation::add_process_set) sort_ranks(request);
  if (request->operation == Operation::remove_process_set) expect_removable_set(request, sets);
  check_request(request, set, sets.global().size());
  if (request->operation == Operation::add_process_set) expect_new_set(request, sets);
}

}  // namespace autotune
