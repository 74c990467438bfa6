#include "engine/submission/validate.h"

#include <algorithm>
#include <string>

#include "comm/communicator.h"
#include "common/errors.h"

namespace autotune {

namespace {

[[noreturn]] void refuse(const Request& request, const std::string& why) {
  throw InvalidRequest(describe(request) + ": " + why);
}

std::string text_of(const ProcessSet& set) {
  return to_string(Shape(set.ranks.begin(), set.ranks.end()));
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
                        text_of(*set) + ", got rank " + std::to_string(rank) + " (of " +
                        std::to_string(sets.global().size()) +
                        "); only its members may use a process set");
  }
  return *set;
}

void validate_broadcast(const Request& request, const ProcessSet& set) {
  if (set.contains(request.root_rank)) return;
  const std::string ranks =
      request.process_set == 0
          ? "from 0 to " + std::to_string(set.size() - 1)
          : "of process set " + std::to_string(request.process_set) + ", " + text_of(set);
  refuse(request, "expected a root rank " + ranks + ", got " + std::to_string(request.root_rank));
}

void validate_reduction(const Request& request, const ProcessSet& set) {
  const bool scaled =
      request.prescale != 1.0 || request.postscale != 1.0 || request.reduce_op == ReduceOp::average;
  if (request.dtype == DataType::boolean && scaled) {
    refuse(request, std::string("expected Min, Max, Sum or Product without factors for a bool "
                                "tensor, got ") +
                        name_of(request.reduce_op) + "; convert it to a number type first");
  }
  if (request.wire_type && (!request.on_device || request.dtype != DataType::float32)) {
    refuse(request, std::string("expected a float32 tensor of a GPU to compress, got ") +
                        name_of(request.dtype));
  }
  if (request.reduce_op != ReduceOp::adasum) return;
  if (request.on_device)
    refuse(request, "expected a tensor of the CPU for Adasum, got one of a GPU");
  const DataType type = request.dtype;
  if (type != DataType::float16 && type != DataType::bfloat16 && type != DataType::float32 &&
      type != DataType::float64) {
    refuse(request, std::string("expected a float tensor for Adasum, got ") + name_of(type));
  }
  if (!has_adasum(set.size())) {
    refuse(request, "expected a number of ranks that is a power of two for Adasum, got " +
                        std::to_string(set.size()) + "; use Average or Sum");
  }
}

void validate_reducescatter(const Request& request, const ProcessSet& set) {
  if (request.reduce_op != ReduceOp::average && request.reduce_op != ReduceOp::sum) {
    refuse(request, std::string("expected op Average or Sum, got ") + name_of(request.reduce_op));
  }
  if (request.shape.empty()) {
    refuse(request, "expected a tensor with at least one dimension, got a scalar");
  }
  validate_reduction(request, set);
}

void complete_splits(Request& request, const ProcessSet& set) {
  if (request.shape.empty()) {
    refuse(request, "expected a tensor with at least one dimension, got a scalar");
  }
  const int64_t rows = request.shape[0];
  const auto size = static_cast<size_t>(set.size());
  std::vector<int64_t>& splits = request.splits;
  if (splits.empty()) {
    if (rows % set.size() != 0) {
      refuse(request, "expected a first dimension that " + std::to_string(size) +
                          " ranks divide evenly, got " + std::to_string(rows) + "; pass splits");
    }
    splits.assign(size, rows / set.size());
    return;
  }
  if (splits.size() != size) {
    refuse(request, "expected " + std::to_string(size) +
                        " splits, one for each rank of the process set, got " +
                        std::to_string(splits.size()));
  }
  if (*std::min_element(splits.begin(), splits.end()) < 0) {
    refuse(request, "expected splits that are not negative, got " + to_string(splits));
  }
  int64_t rest = rows;
  for (const int64_t split : splits) {  // a sum could overflow
    rest -= split;
    if (rest >= 0) continue;
    refuse(request, "expected splits that sum to at most the first dimension, " +
                        std::to_string(rows) + ", got " + to_string(splits));
  }
}

// Sorts the ranks.
void validate_new_set(Request& request, const ProcessSetTable& sets) {
  std::vector<int64_t>& ranks = request.shape;
  std::sort(ranks.begin(), ranks.end());
  const int size = sets.global().size();
  const bool unique = std::adjacent_find(ranks.begin(), ranks.end()) == ranks.end();
  if (ranks.empty() || !unique || ranks.front() < 0 || ranks.back() >= size) {
    throw InvalidRequest("add_process_set: expected one or several different ranks from 0 to " +
                         std::to_string(size - 1) + ", got " + to_string(ranks));
  }
  const int32_t known = sets.id_of(std::vector<int>(ranks.begin(), ranks.end()));
  if (known >= 0) {
    throw InvalidRequest("add_process_set: expected ranks that no process set has, got " +
                         to_string(ranks) + ", which are process set " + std::to_string(known) +
                         "; use that one");
  }
}

void validate_removed_set(const Request& request, const ProcessSetTable& sets) {
  if (request.root_rank != 0 && sets.find(request.root_rank) != nullptr) return;
  throw InvalidRequest("remove_process_set: expected a process set that exists, and not 0, got " +
                       std::to_string(request.root_rank));
}

}  // namespace

void validate(SharedRequest& request, const ProcessSetTable& sets, int rank) {
  const ProcessSet& set = find_set(request, sets, rank);
  switch (request->operation) {
    case Operation::allreduce:
      return validate_reduction(request, set);
    case Operation::broadcast:
      return validate_broadcast(request, set);
    case Operation::reducescatter:
      return validate_reducescatter(request, set);
    case Operation::alltoall:
      return complete_splits(request.edit(), set);
    case Operation::add_process_set:
      return validate_new_set(request.edit(), sets);
    case Operation::remove_process_set:
      return validate_removed_set(request, sets);
    case Operation::allgather:
    case Operation::barrier:
    case Operation::join:
      return;
  }
}

}  // namespace autotune
