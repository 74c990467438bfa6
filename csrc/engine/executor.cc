#include "engine/executor.h"

#include <chrono>
#include <cstring>
#include <numeric>

#include "common/reduce.h"

namespace autotune {

namespace {

using Clock = std::chrono::steady_clock;

// Above this a copy in and out costs more than one more message per peer (measured: 2 ranks, one
// host).
constexpr int64_t in_place_bytes = 128 << 10;

class Stopwatch {
 public:
  explicit Stopwatch(int64_t& total_ns) : total_ns_(total_ns) {}
  ~Stopwatch() { total_ns_ += (Clock::now() - start_).count(); }

 private:
  int64_t& total_ns_;
  Clock::time_point start_ = Clock::now();
};

void copy(void* to, const void* from, int64_t bytes) {
  if (to != from && bytes > 0) std::memcpy(to, from, static_cast<size_t>(bytes));
}

// First element of rank r's rows, in bytes, for r = 0..size (the last one: all bytes).
std::vector<int64_t> row_offsets(const std::vector<int64_t>& first_dims, int64_t row_bytes) {
  std::vector<int64_t> offsets{0};
  for (int64_t dim : first_dims) offsets.push_back(offsets.back() + dim * row_bytes);
  return offsets;
}

int64_t row_bytes_of(const Request& request) {
  const Shape row(request.shape.begin() + 1, request.shape.end());
  return element_count(row) * static_cast<int64_t>(size_of(request.dtype));
}

}  // namespace

char* Buffer::reserve(int64_t bytes) {
  if (bytes > capacity_) {
    data_.reset(new char[static_cast<size_t>(bytes)]);
    capacity_ = bytes;
  }
  return data_.get();
}

Executor::Executor(Communicators communicators, ActivityObserver* observer)
    : communicators_(std::move(communicators)), observer_(observer) {
  if (communicators_.hierarchical) communicators_.hierarchical->observe(observer);
}

void Executor::run(const Response& response, const std::vector<TensorEntry*>& entries,
                   const Params& params) {
  ++counters_.responses;
  counters_.operations += static_cast<int64_t>(entries.size());
  if (entries.size() > 1) counters_.fused_tensors += static_cast<int64_t>(entries.size());
  for (const TensorEntry* entry : entries) counters_.payload_bytes += entry->request.bytes();
  switch (response.operation) {
    case Operation::allreduce:
      return allreduce(response, entries, select(params.hierarchical_allreduce));
    case Operation::allgather:
      return allgather(response, entries, select(params.hierarchical_allgather));
    case Operation::broadcast:
      return broadcast(response, *entries[0]);
    case Operation::barrier:
      return;  // agreed by all ranks: that is all a barrier asks for
  }
}

void Executor::allreduce(const Response& response, const std::vector<TensorEntry*>& entries,
                         Communicator& communicator) {
  const auto item = static_cast<int64_t>(size_of(response.dtype));
  const bool packing = entries.size() > 1 && !communicator.gathers();
  const auto packed = [&](const TensorEntry& entry) {
    return packing && entry.request.bytes() < in_place_bytes;
  };
  int64_t packed_bytes = 0;
  for (const TensorEntry* entry : entries) {
    if (packed(*entry)) packed_bytes += entry->request.bytes();
  }
  char* const buffer = fusion_buffer_.reserve(packed_bytes);
  spans_.clear();
  {
    Stopwatch watch(counters_.pack_ns);
    Activity activity(observer_, packed_bytes > 0 ? "MEMCPY_IN_FUSION_BUFFER" : nullptr);
    char* next = buffer;
    for (const TensorEntry* entry : entries) {
      const int64_t bytes = entry->request.bytes();
      if (packed(*entry)) {
        copy(next, entry->input, bytes);
        next += bytes;
      } else {
        spans_.push_back({entry->input, entry->output, bytes / item});
      }
    }
    if (packed_bytes > 0) spans_.push_back({buffer, buffer, packed_bytes / item});
  }
  {
    Stopwatch watch(counters_.transfer_ns);
    Activity activity(observer_, activity_name(communicator.backend(), Operation::allreduce));
    communicator.allreduce(spans_, response.dtype, response.reduce_op, response.prescale,
                           response.postscale);
  }
  Stopwatch watch(counters_.unpack_ns);
  Activity activity(observer_, packed_bytes > 0 ? "MEMCPY_OUT_FUSION_BUFFER" : nullptr);
  const char* next = buffer;
  for (const TensorEntry* entry : entries) {
    if (!packed(*entry)) continue;
    copy(entry->output, next, entry->request.bytes());
    next += entry->request.bytes();
  }
}

void Executor::allgather(const Response& response, const std::vector<TensorEntry*>& entries,
                         Communicator& communicator) {
  const auto size = static_cast<size_t>(communicator.size());
  const auto rank = static_cast<size_t>(communicator.rank());
  std::vector<std::vector<int64_t>> offsets;  // by entry: of every rank's rows in the output
  std::vector<int64_t> block_bytes(size, 0);  // by rank: its rows of all entries
  for (size_t e = 0; e < entries.size(); ++e) {
    const Request& request = entries[e]->request;
    const std::vector<int64_t>& first_dims = response.items[e].first_dims;
    offsets.push_back(row_offsets(first_dims, row_bytes_of(request)));
    for (size_t r = 0; r < size; ++r) block_bytes[r] += offsets[e][r + 1] - offsets[e][r];
    Handle& handle = *entries[e]->handle;
    handle.result_bytes = offsets[e].back();
    handle.result.reset(new char[static_cast<size_t>(handle.result_bytes)]);
    handle.result_shape = request.shape;
    handle.result_shape[0] = std::accumulate(first_dims.begin(), first_dims.end(), int64_t{0});
  }
  const bool fused = entries.size() > 1;
  const int64_t total = std::accumulate(block_bytes.begin(), block_bytes.end(), int64_t{0});
  char* const blocks = fused ? fusion_buffer_.reserve(total) : entries[0]->handle->result.get();
  {
    Stopwatch watch(counters_.pack_ns);
    Activity activity(observer_, "MEMCPY_IN_FUSION_BUFFER");
    char* next =
        blocks + std::accumulate(block_bytes.begin(),
                                 block_bytes.begin() + static_cast<ptrdiff_t>(rank), int64_t{0});
    for (const TensorEntry* entry : entries) {
      copy(next, entry->input, entry->request.bytes());
      next += entry->request.bytes();
    }
  }
  {
    Stopwatch watch(counters_.transfer_ns);
    Activity activity(observer_, activity_name(communicator.backend(), Operation::allgather));
    communicator.allgather(blocks, block_bytes);
  }
  if (!fused) return;
  Stopwatch watch(counters_.unpack_ns);
  Activity activity(observer_, "MEMCPY_OUT_FUSION_BUFFER");
  const char* next = blocks;
  for (size_t r = 0; r < size; ++r) {
    for (size_t e = 0; e < entries.size(); ++e) {
      const int64_t bytes = offsets[e][r + 1] - offsets[e][r];
      copy(entries[e]->handle->result.get() + offsets[e][r], next, bytes);
      next += bytes;
    }
  }
}

void Executor::broadcast(const Response& response, TensorEntry& entry) {
  const int64_t bytes = entry.request.bytes();
  if (communicators_.flat->rank() == response.root_rank) copy(entry.output, entry.input, bytes);
  Stopwatch watch(counters_.transfer_ns);
  Activity activity(observer_, activity_name(communicators_.flat->backend(), Operation::broadcast));
  communicators_.flat->broadcast(entry.output, bytes, response.root_rank);
}

}  // namespace autotune
