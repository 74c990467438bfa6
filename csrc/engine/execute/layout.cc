#include "engine/execute/layout.h"

#include <numeric>

namespace autotune {

namespace {

int64_t aligned(int64_t bytes, int64_t alignment) {
  return (bytes + alignment - 1) / alignment * alignment;
}

}  // namespace

int64_t row_elements_of(const Request& request) {
  int64_t elements = 1;
  for (size_t i = 1; i < request.shape.size(); ++i) elements *= request.shape[i];
  return elements;
}

int64_t row_bytes_of(const Request& request) {
  return row_elements_of(request) * static_cast<int64_t>(size_of(request.dtype));
}

int64_t rows_of(int64_t rows, int rank, int size) {
  return rows / size + (rank < rows % size ? 1 : 0);
}

int64_t pack_offsets(const Entries& entries, int64_t limit_bytes, int64_t item_bytes,
                     int64_t alignment, std::vector<int64_t>& offsets) {
  int64_t next = 0;
  offsets.clear();
  for (const TensorEntry* entry : entries) {
    if (entry->request->bytes() >= limit_bytes) {
      offsets.push_back(-1);
      continue;
    }
    offsets.push_back(next);
    next += aligned(entry->request->count() * item_bytes, alignment);
  }
  return next;
}

int64_t Blocks::total_bytes() const {
  return std::accumulate(bytes.begin(), bytes.end(), int64_t{0});
}

Blocks gathered_blocks(const Entries& entries, const std::vector<ResponseItem>& items, int size) {
  Blocks blocks;
  blocks.pieces.reserve(entries.size() * static_cast<size_t>(size));
  std::vector<int64_t> done(entries.size(), 0);  // elements of each result
  int64_t next = 0;
  for (int rank = 0; rank < size; ++rank) {
    const int64_t begin = next;
    for (size_t i = 0; i < entries.size(); ++i) {
      const Request& request = entries[i]->request;
      const int64_t count = items[i].rows[static_cast<size_t>(rank)] * row_elements_of(request);
      blocks.pieces.push_back({done[i], count, next});
      done[i] += count;
      next += count * static_cast<int64_t>(size_of(request.dtype));
    }
    blocks.bytes.push_back(next - begin);
  }
  return blocks;
}

Blocks scattered_blocks(const Entries& entries, int size, int64_t item_bytes, int64_t alignment) {
  const auto elements = [&](const TensorEntry* entry, int rank) {
    return rows_of(entry->request->shape[0], rank, size) * row_elements_of(entry->request);
  };
  Blocks blocks;
  blocks.pieces.reserve(entries.size() * static_cast<size_t>(size));
  std::vector<int64_t> done(entries.size(), 0);  // elements of each input
  int64_t next = 0;
  for (int rank = 0; rank < size; ++rank) {
    const int64_t begin = next;
    for (size_t i = 0; i < entries.size(); ++i) {
      const int64_t count = elements(entries[i], rank);
      blocks.pieces.push_back({done[i], count, next});
      done[i] += count;
      next += aligned(elements(entries[i], 0) * item_bytes, alignment);
    }
    blocks.bytes.push_back(next - begin);
  }
  return blocks;
}

std::vector<int64_t> rows_received(const std::vector<int64_t>& rows, int rank, int size) {
  std::vector<int64_t> received;
  for (int peer = 0; peer < size; ++peer) {
    received.push_back(rows[static_cast<size_t>(peer * size + rank)]);
  }
  return received;
}

std::vector<int64_t> bytes_of_rows(const std::vector<int64_t>& rows, int64_t row_bytes) {
  std::vector<int64_t> bytes;
  bytes.reserve(rows.size());
  for (int64_t count : rows) bytes.push_back(count * row_bytes);
  return bytes;
}

}  // namespace autotune
