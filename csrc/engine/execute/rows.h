// Tensors as rows: elements of the first dimension.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/operation/message.h"

namespace autotune {

// First element of rank r's rows, in bytes, for r = 0..size (the last one: all bytes).
inline std::vector<int64_t> row_offsets(const std::vector<int64_t>& rows, int64_t row_bytes) {
  std::vector<int64_t> offsets{0};
  for (int64_t dim : rows) offsets.push_back(offsets.back() + dim * row_bytes);
  return offsets;
}

inline int64_t row_bytes_of(const Request& request) {
  const Shape row(request.shape.begin() + 1, request.shape.end());
  return element_count(row) * static_cast<int64_t>(size_of(request.dtype));
}

// Rows that the rank at place `rank` of `size` keeps of a scattered tensor of `rows` rows.
inline int64_t rows_of(int64_t rows, int rank, int size) {
  return rows / size + (rank < rows % size ? 1 : 0);
}

// Of an alltoall, `rows[r * size + d]` go from rank r to rank d. What rank `rank` gets from each.
inline std::vector<int64_t> rows_received(const std::vector<int64_t>& rows, int rank, int size) {
  std::vector<int64_t> received;
  for (int peer = 0; peer < size; ++peer) {
    received.push_back(rows[static_cast<size_t>(peer * size + rank)]);
  }
  return received;
}

inline std::vector<int64_t> bytes_of_rows(const std::vector<int64_t>& rows, int64_t row_bytes) {
  std::vector<int64_t> bytes;
  bytes.reserve(rows.size());
  for (int64_t count : rows) bytes.push_back(count * row_bytes);
  return bytes;
}

}  // namespace autotune
