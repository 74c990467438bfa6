#include "engine/execute/host_executor.h"

#include <cstring>
#include <numeric>

#include "common/copy.h"
#include "common/halves.h"
#include "common/reduce.h"
#include "engine/execute/result_check.h"

namespace autotune {

namespace {

// Memory for `rows` rows like those of the input.
void make_result(TensorEntry& entry, int64_t rows) {
  Handle& handle = *entry.handle;
  handle.result_bytes = rows * row_bytes_of(entry.request);
  handle.result = message_memory(handle.result_bytes);
  handle.result_shape = entry.request->shape;
  handle.result_shape[0] = rows;
}

}  // namespace

char* HostExecutor::Buffer::reserve(int64_t bytes) {
  if (bytes > capacity_) {
    data_ = message_memory(bytes);
    capacity_ = bytes;
  }
  return data_.get();
}

double HostExecutor::run(const Work& work, const Members& set, const Params& params) {
  const Response& response = *work.response;
  if (response.check < 0 || !set.communicators.plain) {
    move(work, set, params);
    return -1;
  }
  const auto place = static_cast<size_t>(response.check);
  const TensorEntry& entry = *work.entries[place];
  Communicator& plain = *set.communicators.plain;
  ResultCheck check(response, response.items[place], entry, plain.rank(), plain.size());
  move(work, set, params);
  check.read_result(entry);
  return check.worst_error(plain);
}

void HostExecutor::move(const Work& work, const Members& set, const Params& params) {
  const Response& response = *work.response;
  const Entries& entries = work.entries;
  switch (response.operation) {
    case Operation::allreduce: {
      if (response.wire_type) {
        return allreduce_compressed(response, entries, set.select(params.hierarchical_allreduce));
      }
      const bool plain = response.reduce_op == ReduceOp::adasum && set.communicators.plain;
      return allreduce(
          response, entries,
          plain ? *set.communicators.plain : set.select(params.hierarchical_allreduce));
    }
    case Operation::allgather:
      return allgather(response, entries, set.select(params.hierarchical_allgather));
    case Operation::reducescatter:
      return reducescatter(response, entries, set.select(params.hierarchical_allreduce));
    case Operation::alltoall:
      return alltoall(response, *entries[0], *set.communicators.flat);
    case Operation::broadcast:
      return broadcast(*entries[0], set.place_of(response.root_rank), *set.communicators.flat);
    case Operation::barrier:
    case Operation::join:
    case Operation::add_process_set:
    case Operation::remove_process_set:
      return;  // agreed by all ranks: that is all they ask for here
  }
}

void HostExecutor::allreduce(const Response& response, const Entries& entries,
                             Communicator& communicator) {
  const auto item = static_cast<int64_t>(size_of(response.dtype));
  const bool is_adasum = response.reduce_op == ReduceOp::adasum;
  const bool packing = entries.size() > 1 && !communicator.gathers() && !is_adasum;
  const int64_t packed_bytes =
      pack_offsets(entries, packing ? in_place_bytes : 0, item, 1, offsets_);
  char* const buffer = fusion_buffer_.reserve(packed_bytes);
  spans_.clear();
  {
    Stopwatch watch(counters_.pack_ns);
    Activity activity(timeline_, packed_bytes > 0 ? "MEMCPY_IN_FUSION_BUFFER" : nullptr);
    for (size_t i = 0; i < entries.size(); ++i) {
      const TensorEntry& entry = *entries[i];
      if (offsets_[i] < 0) {
        spans_.push_back({entry.input, entry.output, entry.request->count()});
      } else {
        copy_bytes(buffer + offsets_[i], entry.input, entry.request->bytes());
      }
    }
    if (packed_bytes > 0) spans_.push_back({buffer, buffer, packed_bytes / item, true});
  }
  {
    Stopwatch watch(counters_.transfer_ns);
    const char* const usual = activity_name(communicator.backend(), Operation::allreduce);
    Activity activity(timeline_, is_adasum ? "MPI_ADASUM_ALLREDUCE" : usual);
    communicator.allreduce(spans_, response.dtype, response.reduce_op, response.prescale,
                           response.postscale);
  }
  Stopwatch watch(counters_.unpack_ns);
  Activity activity(timeline_, packed_bytes > 0 ? "MEMCPY_OUT_FUSION_BUFFER" : nullptr);
  if (packed_bytes == 0) return;
  for (size_t i = 0; i < entries.size(); ++i) {
    const TensorEntry& entry = *entries[i];
    if (offsets_[i] < 0) continue;
    copy_bytes(entry.output, buffer + offsets_[i], entry.request->bytes());
  }
}

// A factor from before the reduction is part of the rounding to the short type, in which the
// product may be too small or too large for it; one from after it is applied to what has come back.
void HostExecutor::allreduce_compressed(const Response& response, const Entries& entries,
                                        Communicator& communicator) {
  const DataType wire = *response.wire_type;
  int64_t total = 0;
  for (const TensorEntry* entry : entries) total += entry->request->count();
  const int64_t bytes = total * static_cast<int64_t>(size_of(wire));
  auto* const buffer = reinterpret_cast<uint16_t*>(fusion_buffer_.reserve(bytes));
  {
    Stopwatch watch(counters_.pack_ns);
    Activity activity(timeline_, "MEMCPY_IN_FUSION_BUFFER");
    uint16_t* to = buffer;
    for (const TensorEntry* entry : entries) {
      const int64_t count = entry->request->count();
      shorten(wire, to, static_cast<const float*>(entry->input), count,
              static_cast<float>(response.prescale));
      to += count;
    }
  }
  {
    Stopwatch watch(counters_.transfer_ns);
    Activity activity(timeline_, activity_name(communicator.backend(), Operation::allreduce));
    spans_ = {{buffer, buffer, total, true}};
    communicator.allreduce(spans_, wire, response.reduce_op, 1.0, 1.0);
  }
  Stopwatch watch(counters_.unpack_ns);
  Activity activity(timeline_, "MEMCPY_OUT_FUSION_BUFFER");
  const uint16_t* from = buffer;
  for (const TensorEntry* entry : entries) {
    const int64_t count = entry->request->count();
    lengthen(wire, static_cast<float*>(entry->output), from, count,
             static_cast<float>(response.postscale));
    from += count;
  }
}

void HostExecutor::allgather(const Response& response, const Entries& entries,
                             Communicator& communicator) {
  const int size = communicator.size();
  const Blocks layout = gathered_blocks(entries, response.items, size);
  for (size_t i = 0; i < entries.size(); ++i) {
    const std::vector<int64_t>& rows = response.items[i].rows;
    make_result(*entries[i], std::accumulate(rows.begin(), rows.end(), int64_t{0}));
  }
  const bool fused = entries.size() > 1;
  char* const buffer =
      fused ? fusion_buffer_.reserve(layout.total_bytes()) : entries[0]->handle->result.get();
  {
    Stopwatch watch(counters_.pack_ns);
    Activity activity(timeline_, "MEMCPY_IN_FUSION_BUFFER");
    const Piece* const own = layout.pieces_of(communicator.rank());
    for (size_t i = 0; i < entries.size(); ++i) {
      copy_bytes(buffer + own[i].offset, entries[i]->input, entries[i]->request->bytes());
    }
  }
  {
    Stopwatch watch(counters_.transfer_ns);
    Activity activity(timeline_, activity_name(communicator.backend(), Operation::allgather));
    communicator.allgather(buffer, layout.bytes);
  }
  if (!fused) return;
  Stopwatch watch(counters_.unpack_ns);
  Activity activity(timeline_, "MEMCPY_OUT_FUSION_BUFFER");
  const auto item = static_cast<int64_t>(size_of(response.dtype));
  for (int rank = 0; rank < size; ++rank) {
    const Piece* const pieces = layout.pieces_of(rank);
    for (size_t i = 0; i < entries.size(); ++i) {
      copy_bytes(entries[i]->handle->result.get() + pieces[i].first * item,
                 buffer + pieces[i].offset, pieces[i].count * item);
    }
  }
}

void HostExecutor::reducescatter(const Response& response, const Entries& entries,
                                 Communicator& communicator) {
  const int size = communicator.size();
  const int rank = communicator.rank();
  const auto item = static_cast<int64_t>(size_of(response.dtype));
  for (TensorEntry* entry : entries) {
    make_result(*entry, rows_of(entry->request->shape[0], rank, size));
  }
  const Blocks layout = scattered_blocks(entries, size, item, 1);
  const int64_t total_bytes = layout.total_bytes();
  char* const buffer = fusion_buffer_.reserve(total_bytes);
  {
    Stopwatch watch(counters_.pack_ns);
    Activity activity(timeline_, "MEMCPY_IN_FUSION_BUFFER");
    for (size_t p = 0; p < layout.pieces.size(); ++p) {
      const Piece& piece = layout.pieces[p];
      const auto* const input = static_cast<const char*>(entries[p % entries.size()]->input);
      const int64_t bytes = piece.count * item;
      copy_bytes(buffer + piece.offset, input + piece.first * item, bytes);
      // Up to the next piece there is nothing of use.
      const int64_t next = p + 1 < layout.pieces.size() ? layout.pieces[p + 1].offset : total_bytes;
      const int64_t unused = next - piece.offset - bytes;
      if (unused > 0) std::memset(buffer + piece.offset + bytes, 0, static_cast<size_t>(unused));
    }
  }
  {
    Stopwatch watch(counters_.transfer_ns);
    Activity activity(timeline_, activity_name(communicator.backend(), Operation::reducescatter));
    spans_ = {{buffer, buffer, total_bytes / item}};
    communicator.reduce_scatter(spans_, response.dtype, response.reduce_op, response.prescale,
                                response.postscale, size);
  }
  Stopwatch watch(counters_.unpack_ns);
  Activity activity(timeline_, "MEMCPY_OUT_FUSION_BUFFER");
  const Piece* const own = layout.pieces_of(rank);
  for (size_t i = 0; i < entries.size(); ++i) {
    Handle& handle = *entries[i]->handle;
    copy_bytes(handle.result.get(), buffer + own[i].offset, handle.result_bytes);
  }
}

void HostExecutor::alltoall(const Response& response, TensorEntry& entry,
                            Communicator& communicator) {
  const std::vector<int64_t>& rows = response.items[0].rows;
  const std::vector<int64_t> received =
      rows_received(rows, communicator.rank(), communicator.size());
  make_result(entry, std::accumulate(received.begin(), received.end(), int64_t{0}));
  entry.handle->received_splits = received;
  Stopwatch watch(counters_.transfer_ns);
  Activity activity(timeline_, activity_name(communicator.backend(), Operation::alltoall));
  communicator.alltoall(entry.input, entry.handle->result.get(),
                        bytes_of_rows(rows, row_bytes_of(entry.request)));
}

void HostExecutor::broadcast(TensorEntry& entry, int root, Communicator& communicator) {
  const int64_t bytes = entry.request->bytes();
  if (communicator.rank() == root) copy_bytes(entry.output, entry.input, bytes);
  Stopwatch watch(counters_.transfer_ns);
  Activity activity(timeline_, activity_name(communicator.backend(), Operation::broadcast));
  communicator.broadcast(entry.output, bytes, root);
}

}  // namespace autotune
