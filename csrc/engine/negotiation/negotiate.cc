// First failure wins; the text names the tensor, two ranks and both values.
#include "engine/negotiation/negotiate.h"

#include <iomanip>
#include <sstream>
#include <string>

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

bool is_reduction(const Request& request) {
  return request.operation == Operation::allreduce || request.operation == Operation::reducescatter;
}

// Operations whose tensors may differ in the first dimension.
bool has_free_rows(const Request& request) {
  return request.operation == Operation::allgather || request.operation == Operation::alltoall;
}

Shape dims_after_first(const Shape& shape) { return Shape(shape.begin() + 1, shape.end()); }

Difference compare_shapes(const Request& a, const Request& b) {
  if (a.operation == Operation::add_process_set && a.shape != b.shape) {
    return {"set of ranks", to_string(a.shape), to_string(b.shape)};
  }
  if (a.operation == Operation::remove_process_set && a.shape != b.shape) {
    return {"process set", std::to_string(a.shape[0]), std::to_string(b.shape[0])};
  }
  if (!has_free_rows(a)) {
    if (a.shape == b.shape) return {};
    return {"shape", to_string(a.shape), to_string(b.shape)};
  }
  if (a.shape.size() != b.shape.size()) {
    return {"number of dimensions", to_string(a.shape), to_string(b.shape)};
  }
  if (a.shape.empty() || dims_after_first(a.shape) == dims_after_first(b.shape)) return {};
  return {"shape after the first dimension", to_string(a.shape), to_string(b.shape)};
}

std::string device_of(const Request& request) { return request.on_device ? "GPU" : "CPU"; }

std::string wire_of(const Request& request) {
  return request.wire_type ? name_of(*request.wire_type) : "none";
}

// What differs between two ranks' requests for one name; what == "" when nothing does.
Difference compare(const Request& a, const Request& b) {
  if (a.operation != b.operation) return {"operation", name_of(a.operation), name_of(b.operation)};
  if (a.dtype != b.dtype) return {"data type", name_of(a.dtype), name_of(b.dtype)};
  if (a.on_device != b.on_device) return {"device", device_of(a), device_of(b)};
  if (a.wire_type != b.wire_type) return {"compression", wire_of(a), wire_of(b)};
  const Difference difference = compare_shapes(a, b);
  if (!difference.what.empty()) return difference;
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

std::string mismatch_text(const Announced& first, const Announced& other,
                          const Difference& difference, int size) {
  return describe(*first.request) + " failed: expected the same " + difference.what +
         " on all ranks, got " + difference.first + " on rank " + std::to_string(first.rank) +
         " and " + difference.other + " on rank " + std::to_string(other.rank) + " (of " +
         std::to_string(size) + "); make the ranks pass the same, then call it again";
}

std::string check(const std::vector<Announced>& announced, const std::vector<int>& joined,
                  int size) {
  const Request& first = *announced[0].request;
  for (const Announced& other : announced) {
    const Difference difference = compare(first, *other.request);
    if (!difference.what.empty()) {
      return mismatch_text(announced[0], other, difference, size);
    }
  }
  const std::string of = " (of " + std::to_string(size) + ")";
  if (first.operation == Operation::allgather && first.shape.empty()) {
    return describe(first) + " failed: expected a tensor with at least one dimension, got a " +
           "scalar on rank " + std::to_string(announced[0].rank) + of + "; reshape it to [1]";
  }
  const bool goes_on =
      first.operation == Operation::allreduce || first.operation == Operation::barrier;
  if (!joined.empty() && !goes_on) {
    return describe(first) + " failed: expected all ranks to call it, got rank " +
           std::to_string(joined[0]) + of + " in hvd.join() and rank " +
           std::to_string(announced[0].rank) +
           " calling it; until all ranks have joined only allreduce and barrier go on";
  }
  return "";
}

// What a request asks for, without its tensor.
Response response_to(const Request& request) {
  Response response;
  response.operation = request.operation;
  response.dtype = request.dtype;
  response.wire_type = request.wire_type;
  response.on_device = request.on_device;
  response.reduce_op = request.reduce_op;
  response.root_rank = request.root_rank;
  response.prescale = request.prescale;
  response.postscale = request.postscale;
  response.process_set = request.process_set;
  return response;
}

}  // namespace

Response negotiate(const std::vector<Announced>& announced, const std::vector<int>& joined,
                   int size) {
  const Request& first = *announced[0].request;
  Response response = response_to(first);
  response.error = check(announced, joined, size);
  ResponseItem item;
  item.name = first.name;
  if (!joined.empty()) item.count = first.count();
  if (response.error.empty() && first.operation == Operation::allgather) {
    for (const Announced& each : announced) item.rows.push_back(each.request->shape[0]);
  }
  if (response.error.empty() && first.operation == Operation::alltoall) {
    for (const Announced& each : announced) {
      const std::vector<int64_t>& splits = each.request->splits;
      item.rows.insert(item.rows.end(), splits.begin(), splits.end());
    }
  }
  if (first.operation == Operation::add_process_set) item.rows = first.shape;
  response.items.push_back(std::move(item));
  return response;
}

bool is_checkable(const Response& response) {
  if (!response.error.empty() || response.items[0].count >= 0) return false;
  if (response.on_device) return false;
  return response.operation == Operation::allgather ||
         (response.operation == Operation::allreduce && response.reduce_op != ReduceOp::adasum);
}

}  // namespace autotune
