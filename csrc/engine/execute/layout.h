// Where the parts of tensors lie in a buffer, and how many rows each rank has of them: pure
// functions, which are the same for the memory of the host and of a GPU.
//
// Rows are the elements of a tensor's first dimension. Buffers are measured in bytes, tensors in
// elements: on its way an element may have another type.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/operation/message.h"
#include "engine/operation/tensor.h"

namespace autotune {

using Entries = std::vector<TensorEntry*>;

// Elements of a row.
int64_t row_elements_of(const Request& request);
int64_t row_bytes_of(const Request& request);
// Rows that the rank at place `rank` of `size` keeps of a scattered tensor of `rows` rows.
int64_t rows_of(int64_t rows, int rank, int size);

// allreduce: which tensors are packed, and where. Sets `offsets[i]` to the first byte of entry i in
// the buffer, or to -1 where the tensor stays where it is: one of `limit_bytes` or more. On the way
// elements have `item_bytes`, and tensors begin at multiples of `alignment`. Returns the length of
// the buffer.
int64_t pack_offsets(const Entries& entries, int64_t limit_bytes, int64_t item_bytes,
                     int64_t alignment, std::vector<int64_t>& offsets);

// The elements [first, first + count) of a tensor, and where they lie in a buffer.
struct Piece {
  int64_t first;
  int64_t count;
  int64_t offset;  // it counts bytes
};

// A buffer of one block per rank, back to back. In every block each tensor has a piece, in order.
struct Blocks {
  std::vector<int64_t> bytes;  // each block has so many
  std::vector<Piece> pieces;  // those of the first block come first, by tensor, then the next one's

  int64_t total_bytes() const;
  // Returns those of one block, one for each tensor.
  const Piece* pieces_of(int rank) const {
    return pieces.data() + static_cast<size_t>(rank) * (pieces.size() / bytes.size());
  }
};

// allgather: a block is what its rank has of all tensors. The pieces are parts of the results.
Blocks gathered_blocks(const Entries& entries, const std::vector<ResponseItem>& items, int size);
// reducescatter: a block is what its rank keeps of all tensors, each at a multiple of `alignment`;
// all blocks are as long as rank 0's, which is the longest. The pieces are parts of the inputs.
Blocks scattered_blocks(const Entries& entries, int size, int64_t item_bytes, int64_t alignment);

// Of an alltoall, `rows[r * size + d]` go from rank r to rank d. What rank `rank` gets from each.
std::vector<int64_t> rows_received(const std::vector<int64_t>& rows, int rank, int size);
std::vector<int64_t> bytes_of_rows(const std::vector<int64_t>& rows, int64_t row_bytes);

}  // namespace autotune
