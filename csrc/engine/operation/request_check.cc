#include "engine/operation/request_check.h"

#include <algorithm>
#include <functional>
#include <string>

#include "comm/communicator.h"
#include "common/errors.h"

namespace autotune {

namespace {

[[noreturn]] void refuse(const Request& request, const std::string& why) {
  throw InvalidRequest(describe(request) + ": " + why);
}

void check_shape(const Request& request) {
  if (can_exist(request.shape, request.dtype)) return;
  refuse(request, "expected a shape of at most " + std::to_string(most_elements) + " bytes, got " +
                      to_string(request.shape));
}

void expect_dimensions(const Request& request) {
  if (!request.shape.empty()) return;
  refuse(request, "expected a tensor with at least one dimension, got a scalar");
}

void check_broadcast(const Request& request, const ProcessSet& set) {
  if (set.contains(request.root_rank)) return;
  const std::string ranks =
      request.process_set == 0
          ? "from 0 to " + std::to_string(set.size() - 1)
          : "of process set " + std::to_string(request.process_set) + ", " + to_string(set);
  refuse(request, "expected a root rank " + ranks + ", got " + std::to_string(request.root_rank));
}

void check_reduction(const Request& request, const ProcessSet& set) {
  const bool scaled =
      request.prescale != 1.0 || request.postscale != 1.0 || request.reduce_op == ReduceOp::average;
  if (request.dtype == DataType::boolean && scaled) {
    refuse(request, std::string("expected Min, Max, Sum or Product without factors for a bool "
                                "tensor, got ") +
                        name_of(request.reduce_op) + "; convert it to a number type first");
  }
  if (request.wire_type && request.dtype != DataType::float32) {
    refuse(request,
           std::string("expected a float32 tensor to compress, got ") + name_of(request.dtype));
  }
  if (request.wire_type && !request.on_device && request.operation != Operation::allreduce) {
    refuse(request, "expected an allreduce to compress on the CPU");
  }
  if (request.reduce_op != ReduceOp::adasum) return;
  if (request.wire_type) refuse(request, "expected another reduction than Adasum to compress");
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

void check_reducescatter(const Request& request, const ProcessSet& set) {
  if (request.reduce_op != ReduceOp::average && request.reduce_op != ReduceOp::sum) {
    refuse(request, std::string("expected op Average or Sum, got ") + name_of(request.reduce_op));
  }
  expect_dimensions(request);
  check_reduction(request, set);
}

void check_splits(const Request& request, const ProcessSet& set) {
  expect_dimensions(request);
  const std::vector<int64_t>& splits = request.splits;
  const auto size = static_cast<size_t>(set.size());
  if (splits.size() != size) {
    refuse(request, "expected " + std::to_string(size) +
                        " splits, one for each rank of the process set, got " +
                        std::to_string(splits.size()));
  }
  if (*std::min_element(splits.begin(), splits.end()) < 0) {
    refuse(request, "expected splits that are not negative, got " + to_string(splits));
  }
  int64_t rest = request.shape[0];
  for (const int64_t split : splits) {  // a sum could overflow
    rest -= split;
    if (rest >= 0) continue;
    refuse(request, "expected splits that sum to at most the first dimension, " +
                        std::to_string(request.shape[0]) + ", got " + to_string(splits));
  }
}

void check_new_set(const Request& request, int size) {
  const std::vector<int64_t>& ranks = request.shape;
  if (are_ranks(ranks, size)) return;
  throw InvalidRequest("add_process_set: expected one or several different ranks from 0 to " +
                       std::to_string(size - 1) + ", got " + to_string(ranks));
}

void check_removed_set(const Request& request) {
  if (request.root_rank > 0 && request.shape == Shape{request.root_rank}) return;
  throw InvalidRequest("remove_process_set: expected a process set that is not 0, got " +
                       std::to_string(request.root_rank));
}

void expect_all_ranks(const Request& request) {
  if (request.process_set == 0) return;
  refuse(request, "expected process set 0, got " + std::to_string(request.process_set));
}

}  // namespace

bool are_ranks(const std::vector<int64_t>& ranks, int size) {
  const auto not_less = std::greater_equal<>();
  return !ranks.empty() && ranks.front() >= 0 && ranks.back() < size &&
         std::adjacent_find(ranks.begin(), ranks.end(), not_less) == ranks.end();
}

void check_request(const Request& request, const ProcessSet& set, int size) {
  switch (request.operation) {
    case Operation::allreduce:
      check_shape(request);
      return check_reduction(request, set);
    case Operation::broadcast:
      check_shape(request);
      return check_broadcast(request, set);
    case Operation::reducescatter:
      check_shape(request);
      return check_reducescatter(request, set);
    case Operation::alltoall:
      check_shape(request);
      return check_splits(request, set);
    case Operation::allgather:
      return check_shape(request);
    case Operation::barrier:
      return;
    case Operation::join:
      return expect_all_ranks(request);
    case Operation::add_process_set:
      expect_all_ranks(request);
      return check_new_set(request, size);
    case Operation::remove_process_set:
      expect_all_ranks(request);
      return check_removed_set(request);
  }
}

}  // namespace autotune
