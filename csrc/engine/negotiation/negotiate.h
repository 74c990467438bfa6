// The checks of negotiation: pure functions of what the ranks have announced.
#pragma once

#include <string>
#include <vector>

#include "engine/operation/message.h"
#include "engine/operation/process_set.h"

namespace autotune {

struct Announced {
  int rank;  // it is global
  const Request* request;
};

// The decision about one tensor: a response of one item, or an error response whose text names the
// tensor, the ranks and both values. `announced`: by rank, at least one; `joined`: members of the
// set that take part without having announced; `size`: ranks of the job.
Response negotiate(const std::vector<Announced>& announced, const std::vector<int>& joined,
                   int size);

// What an operation's ranks have to agree in and the other kind has otherwise, for people ("data
// type float32 and int32"); "": nothing.
std::string difference_of(const OperationKind& kind, const OperationKind& other);

// Operations whose result can be checked (execute/result_check.h): those of tensors in host memory.
bool is_checkable(const Response& response);

}  // namespace autotune
