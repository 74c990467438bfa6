// Whether the way in which an operation was carried out (fused, hierarchical, through shared
// memory) gives what the plainest way gives: one tensor is sent again, alone, by messages between
// the ranks.
#pragma once

#include <vector>

#include "comm/communicator.h"
#include "common/message_memory.h"
#include "engine/operation/tensor.h"

namespace autotune {

class ResultCheck {
 public:
  // Before the operation: copies the input, which may be overwritten. `item`: of `response`, the
  // one that belongs to `entry`.
  ResultCheck(const Response& response, const ResponseItem& item, const TensorEntry& entry);

  // After it. Collective over the ranks of `plain`. The worst error of all elements on all ranks,
  // in units of what rounding explains: at most 1 is right. Integers, min, max and gathered rows
  // have to be equal: anything else is infinite.
  double worst_error(Communicator& plain);

 private:
  double error_of_reduction(Communicator& plain);
  double error_of_rows(Communicator& plain) const;
  template <typename T>
  double rounding_error(Communicator& plain, DataType work_type);

  const Response& response_;
  const ResponseItem& item_;
  const TensorEntry& entry_;
  MessageVector<char> copy_;
};

}  // namespace autotune
