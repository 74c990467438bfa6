// The checks of negotiation. First failure wins; the text names the tensor, two ranks and both
// values.

#include <iomanip>
#include <sstream>
#include <string>

#include "engine/coordinator.h"

namespace autotune {

namespace {

struct Difference {
  std::string what;
  std::string first;
  std::string other;
};

std::string number(double value) {
  std::ostringstream text;
  text << std::setprecision(17) << value;
  return text.str();
}

bool is_reduction(const Request& request) { return request.operation == Operation::allreduce; }

std::string dims_after_first(const Shape& shape) {
  return to_string(Shape(shape.begin() + 1, shape.end()));
}

// What differs between two ranks' requests for one name; what == "" when nothing does.
Difference compare(const Request& a, const Request& b) {
  if (a.operation != b.operation) return {"operation", name_of(a.operation), name_of(b.operation)};
  if (a.dtype != b.dtype) return {"data type", name_of(a.dtype), name_of(b.dtype)};
  if (a.operation == Operation::allgather) {
    if (a.shape.size() != b.shape.size()) {
      return {"number of dimensions", to_string(a.shape), to_string(b.shape)};
    }
    if (!a.shape.empty() && dims_after_first(a.shape) != dims_after_first(b.shape)) {
      return {"shape after the first dimension", to_string(a.shape), to_string(b.shape)};
    }
  } else if (a.shape != b.shape) {
    return {"shape", to_string(a.shape), to_string(b.shape)};
  }
  if (is_reduction(a) && a.reduce_op != b.reduce_op) {
    return {"reduce op", name_of(a.reduce_op), name_of(b.reduce_op)};
  }
  if (is_reduction(a) && a.prescale != b.prescale) {
    return {"prescale factor", number(a.prescale), number(b.prescale)};
  }
  if (is_reduction(a) && a.postscale != b.postscale) {
    return {"postscale factor", number(a.postscale), number(b.postscale)};
  }
  if (a.operation == Operation::broadcast && a.root_rank != b.root_rank) {
    return {"root rank", std::to_string(a.root_rank), std::to_string(b.root_rank)};
  }
  return {};
}

std::string mismatch_text(const Request& request, const Difference& difference, size_t rank,
                          size_t size) {
  return std::string(name_of(request.operation)) + " '" + request.name +
         "' failed: expected the same " + difference.what + " on all ranks, got " +
         difference.first + " on rank 0 and " + difference.other + " on rank " +
         std::to_string(rank) + " (of " + std::to_string(size) +
         "); make the ranks pass the same, then call it again";
}

std::string check(const std::vector<Request>& requests) {
  const Request& first = requests[0];
  for (size_t rank = 1; rank < requests.size(); ++rank) {
    const Difference difference = compare(first, requests[rank]);
    if (!difference.what.empty()) return mismatch_text(first, difference, rank, requests.size());
  }
  if (first.operation == Operation::allgather && first.shape.empty()) {
    return "allgather '" + first.name +
           "' failed: expected a tensor with at least one dimension, got a scalar on rank 0 (of " +
           std::to_string(requests.size()) + "); reshape it to [1]";
  }
  return "";
}

}  // namespace

Response negotiate(const std::vector<Request>& requests) {
  const Request& first = requests[0];
  Response response;
  response.operation = first.operation;
  response.dtype = first.dtype;
  response.reduce_op = first.reduce_op;
  response.root_rank = first.root_rank;
  response.prescale = first.prescale;
  response.postscale = first.postscale;
  response.error = check(requests);
  ResponseItem item;
  item.name = first.name;
  if (response.error.empty() && first.operation == Operation::allgather) {
    for (const Request& request : requests) item.first_dims.push_back(request.shape[0]);
  }
  response.items.push_back(std::move(item));
  return response;
}

}  // namespace autotune
