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

std::string text_of(Operation operation) { return name_of(operation); }
std::string text_of(ReduceOp op) { return name_of(op); }
std::string text_of(DataType type) { return name_of(type); }
std::string text_of(const std::optional<DataType>& type) { return type ? name_of(*type) : "none"; }
std::string text_of(bool on_device) { return on_device ? "GPU" : "CPU"; }
std::string text_of(int32_t number) { return std::to_string(number); }
std::string text_of(double number) {
  std::ostringstream text;
  text << std::setprecision(17) << number;
  return text.str();
}

bool has_to_agree(AgreedBy by, Operation operation) {
  switch (by) {
    case AgreedBy::all:
      return true;
    case AgreedBy::reductions:
      return operation == Operation::allreduce || operation == Operation::reducescatter;
    case AgreedBy::broadcasts:
      return operation == Operation::broadcast;
  }
  return true;
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

Difference compare_kinds(const OperationKind& a, const OperationKind& b) {
  Difference found;
  visit_fields([&](const char* name, auto member, AgreedBy by) {
    if (!found.what.empty() || is_same(a.*member, b.*member) || !has_to_agree(by, a.operation))
      return;
    found = {name, text_of(a.*member), text_of(b.*member)};
  });
  return found;
}

// What differs between two ranks' requests for one name; what == "" when nothing does.
Difference compare(const Request& a, const Request& b) {
  const Difference found = compare_kinds(a, b);
  return found.what.empty() ? compare_shapes(a, b) : found;
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

}  // namespace

Response negotiate(const std::vector<Announced>& announced, const std::vector<int>& joined,
                   int size) {
  const Request& first = *announced[0].request;
  Response response;
  static_cast<OperationKind&>(response) = first;
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

std::string difference_of(const OperationKind& kind, const OperationKind& other) {
  if (kind == other) return "";
  const Difference found = compare_kinds(kind, other);
  return found.what.empty() ? "" : found.what + " " + found.first + " and " + found.other;
}

bool is_checkable(const Response& response) {
  if (!response.error.empty() || response.items[0].count >= 0) return false;
  if (response.operation == Operation::allgather) return true;
  if (response.operation != Operation::allreduce) return false;
  if (response.reduce_op == ReduceOp::adasum) return false;
  // A GPU computes integers in a wider type: where they overflow, factors make a difference.
  const bool is_integer = response.dtype < DataType::float16 || response.dtype > DataType::float64;
  const bool has_factors = response.reduce_op == ReduceOp::average || response.prescale != 1.0 ||
                           response.postscale != 1.0;
  return !(response.on_device && is_integer && has_factors);
}

}  // namespace autotune
