// Whether the way in which an operation was carried out (fused, hierarchical, through shared
// memory) gives what the plainest way gives: some elements of one tensor (checked_elements.h) are
// sent again, alone, by messages between the ranks. The memory that this takes does not depend on
// the length of the tensor.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "comm/communicator.h"
#include "common/message_memory.h"
#include "engine/execute/checked_elements.h"
#include "engine/operation/tensor.h"

namespace autotune {

class ResultCheck {
 public:
  // Copies the elements of `ranges` of a tensor, `item_bytes` each, to `to`, in memory of the host,
  // one after the other.
  using Read = std::function<void(const void* tensor, const std::vector<ElementRange>& ranges,
                                  int64_t item_bytes, char* to)>;

  // Before the operation: copies elements of the input, which may be overwritten. `item`: of
  // `response`, the one that belongs to `entry`. `read`: how; none: the tensor is in memory of the
  // host. `plain` outlives this.
  ResultCheck(const Response& response, const ResponseItem& item, const TensorEntry& entry,
              Communicator& plain, Read read = nullptr);

  // After it. Collective over the ranks of `plain`. The worst error of the elements on all ranks,
  // in units of what rounding explains: at most 1 is right. Integers, min, max and gathered rows
  // have to be equal: anything else is infinite.
  double worst_error();

 private:
  double error_of_reduction();
  double error_of_rows();
  template <typename T>
  double rounding_error(DataType work_type);
  std::vector<ElementRange> ranges_of_block(size_t rank) const;
  MessageVector<char> read(const void* tensor, const std::vector<ElementRange>& ranges) const;

  const Response& response_;
  const ResponseItem& item_;
  const TensorEntry& entry_;
  Communicator& plain_;
  const Read read_;
  const int64_t item_bytes_;
  std::vector<ElementRange> ranges_;  // of the input
  MessageVector<char> copy_;          // its elements in them
};

}  // namespace autotune
