// Whether the way in which an operation was carried out (fused, hierarchical, through shared
// memory, by a GPU) gives what the plainest way gives: some elements of one tensor
// (checked_elements.h) are sent again, alone, by messages between the ranks. The memory that this
// takes does not depend on the length of the tensor.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "common/message_memory.h"
#include "engine/execute/checked_elements.h"
#include "engine/operation/tensor.h"

namespace autotune {

class ResultCheck {
 public:
  // Sees to it that the elements of `ranges` of a tensor, `item_bytes` each, come to memory of the
  // host, one after the other, and returns that memory, which lives as long as this check. They
  // are there when `worst_error` is called.
  using Read = std::function<const char*(
      const void* tensor, const std::vector<ElementRange>& ranges, int64_t item_bytes)>;

  // Before the operation: reads elements of the input, which may be overwritten. `item`: of
  // `response`, the one that belongs to `entry`. The check is for rank `rank` of `size`. `read`:
  // how; none: the tensor is in memory of the host.
  ResultCheck(const Response& response, const ResponseItem& item, const TensorEntry& entry,
              int rank, int size, Read read = nullptr);
  ResultCheck(const ResultCheck&) = delete;
  ResultCheck& operator=(const ResultCheck&) = delete;

  // After it: reads elements of the result of `entry`, the same one.
  void read_result(const TensorEntry& entry);

  // Collective over the ranks of `plain`. The worst error of the elements on all ranks, in units of
  // what rounding explains: at most 1 is right. Integers, min, max and gathered rows have to be
  // equal: anything else is infinite.
  double worst_error(Communicator& plain);

  // Bytes that all reads together need at most.
  static int64_t most_bytes(const Response& response, int size);

  const std::string& name() const { return name_; }

 private:
  double error_of_reduction(Communicator& plain);
  double error_of_rows(Communicator& plain);
  template <typename T>
  double rounding_error(Communicator& plain, DataType work_type);
  // Whether a result may be infinite by one order of additions and finite by another.
  bool may_overflow(double magnitude) const;
  // What a float is off by that was rounded to a multiple of its type's smallest number.
  double smallest_error() const;
  std::vector<ElementRange> ranges_of_block(size_t rank) const;
  int64_t bytes_of(const std::vector<ElementRange>& ranges) const;
  const char* read_host(const void* tensor, const std::vector<ElementRange>& ranges);

  const OperationKind how_;
  const std::string name_;
  const std::vector<int64_t> rows_;
  const int64_t row_elements_;
  const int rank_;
  const int size_;
  const int64_t item_bytes_;
  Read read_;
  std::vector<std::vector<char>> host_;      // `read_host` has read it
  std::vector<ElementRange> ranges_;         // these are of the input,
  std::vector<ElementRange> result_ranges_;  // and these of the result
  // In an allgather, each rank's block has so many bytes of these.
  std::vector<int64_t> block_bytes_;
  const char* input_ = nullptr;
  const char* result_ = nullptr;
};

}  // namespace autotune
