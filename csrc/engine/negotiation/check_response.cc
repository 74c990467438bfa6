#include "engine/negotiation/check_response.h"

#include <algorithm>
#include <cstddef>
#include <string>

#include "common/errors.h"
#include "engine/negotiation/negotiate.h"
#include "engine/operation/request_check.h"

namespace autotune {

namespace {

[[noreturn]] void refuse(const std::string& what, const std::string& expected,
                         const std::string& got) {
  throw EngineError("negotiation: expected " + expected + ", got " + got + " in the response for " +
                    what + "; do all ranks run the same version of this package?");
}

std::string text_of(const Response& response) {
  const ResponseItem& first = response.items[0];
  const std::string name =
      first.from_cache ? "slot " + std::to_string(first.cache_slot) : shown_name(first.name);
  return std::string(name_of(response.operation)) + " " + name;
}

void check_sets(const Response& response, const ProcessSetTable& sets) {
  const int32_t id = response.root_rank;
  if (response.operation == Operation::add_process_set) {
    if (id == 0 || sets.find(id) != nullptr) {
      refuse(text_of(response), "the number of a new process set", std::to_string(id));
    }
    const std::vector<int64_t>& ranks = response.items[0].rows;
    if (!are_ranks(ranks, sets.global().size())) {
      refuse(text_of(response), "ranks of the job", to_string(ranks));
    }
  } else if (response.operation == Operation::remove_process_set) {
    if (id == 0 || sets.find(id) == nullptr) {
      refuse(text_of(response), "a process set that exists, and not 0", std::to_string(id));
    }
  }
}

void check_length(const ResponseItem& item, const Request& own, size_t expected) {
  if (item.rows.size() == expected) return;
  refuse(describe(own), std::to_string(expected) + " numbers of rows",
         std::to_string(item.rows.size()));
}

// Of what all ranks together send or receive.
void check_bytes(const ResponseItem& item, const Request& own) {
  Shape all = own.shape;
  all[0] = 0;
  for (const int64_t rows : item.rows) {
    all[0] += rows;  // of numbers below 2^48, looked at each time: no overflow
    if (!can_exist(all, own.dtype)) refuse(describe(own), "less rows", to_string(item.rows));
  }
}

void check_gathered_rows(const ResponseItem& item, const Request& own, const ProcessSet& set,
                         int position) {
  check_length(item, own, set.ranks.size());
  const int64_t rows = item.rows[static_cast<size_t>(position)];
  if (own.shape.empty() || rows != own.shape[0]) {
    refuse(describe(own), "the rows of this rank's tensor of shape " + to_string(own.shape),
           std::to_string(rows));
  }
  if (!item.from_cache) check_bytes(item, own);
}

void check_exchanged_rows(const ResponseItem& item, const Request& own, const ProcessSet& set,
                          int position) {
  const size_t size = set.ranks.size();
  check_length(item, own, size * size);
  const auto row = item.rows.begin() + static_cast<std::ptrdiff_t>(position * size);
  if (!std::equal(own.splits.begin(), own.splits.end(), row)) {
    refuse(describe(own), "this rank's splits " + to_string(own.splits),
           to_string(Shape(row, row + static_cast<std::ptrdiff_t>(size))));
  }
  if (!item.from_cache) check_bytes(item, own);
}

}  // namespace

const ProcessSet& check_response(const Response& response, const ProcessSetTable& sets) {
  const ProcessSet* set = sets.find(response.process_set);
  if (set == nullptr) {
    refuse(text_of(response), "a process set that exists", std::to_string(response.process_set));
  }
  if (!response.error.empty()) return *set;
  if (response.operation == Operation::broadcast && !set->contains(response.root_rank)) {
    refuse(text_of(response), "a root rank of " + to_string(*set),
           std::to_string(response.root_rank));
  }
  if (response.check >= 0 && !is_checkable(response)) {
    refuse(text_of(response), "no check of its result", std::to_string(response.check));
  }
  check_sets(response, sets);
  return *set;
}

void check_item(const Response& response, const ResponseItem& item, const Request& own,
                const ProcessSet& set, int position) {
  if (!response.error.empty()) return;
  // Nothing of its tensor is agreed on: there is none.
  if (response.operation == Operation::join && own.operation == Operation::join) return;
  const std::string difference = difference_of(own, response);
  if (!difference.empty()) refuse(describe(own), "what this rank has announced", difference);
  if (item.count >= 0 && response.operation == Operation::allreduce && item.count != own.count()) {
    refuse(describe(own), std::to_string(own.count()) + " elements", std::to_string(item.count));
  }
  if (response.operation == Operation::allgather) {
    check_gathered_rows(item, own, set, position);
  } else if (response.operation == Operation::alltoall) {
    check_exchanged_rows(item, own, set, position);
  }
}

}  // namespace autotune
