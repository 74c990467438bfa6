#include "engine/execute/executor.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <numeric>
#include <thread>

#include "comm/choose_device.h"
#include "common/copy.h"
#include "common/errors.h"
#include "common/log.h"
#include "common/reduce.h"
#include "engine/execute/result_check.h"
#include "engine/execute/rows.h"

namespace autotune {

namespace {

// Above this a copy in and out costs more than one more message per peer (measured: 2 ranks, one
// host).
constexpr int64_t in_place_bytes = 128 << 10;

// Memory for `rows` rows like those of the input.
void make_result(TensorEntry& entry, int64_t rows) {
  Handle& handle = *entry.handle;
  handle.result_bytes = rows * row_bytes_of(entry.request);
  handle.result.reset(new char[static_cast<size_t>(handle.result_bytes)]);
  handle.result_shape = entry.request->shape;
  handle.result_shape[0] = rows;
}

}  // namespace

char* Buffer::reserve(int64_t bytes) {
  if (bytes > capacity_) {
    data_.reset(new char[static_cast<size_t>(bytes)]);
    capacity_ = bytes;
  }
  return data_.get();
}

void Executor::add_set(int32_t id, const ProcessSet& set, Communicators communicators,
                       WaitHook on_wait) {
  if (communicators.hierarchical) communicators.hierarchical->observe(timeline_);
  sets_[id] = {set.ranks, std::move(communicators), std::move(on_wait)};
}

void Executor::use_device(DeviceBackend backend) {
  backend_ = std::move(backend);
  device_executor_ = std::make_unique<DeviceExecutor>(*backend_.device, timeline_, counters_);
}

DeviceCommunicator& Executor::connect_device(Set& set, bool hierarchical) {
  if (!set.device) {
    Activity activity(timeline_, "INIT_NCCL");
    set.device = backend_.connect(set.communicators.plain.get(), set.on_wait);
  }
  if (!hierarchical || !set.communicators.hierarchical) return *set.device;
  if (!set.device_hierarchical) {
    set.device_hierarchical = choose_two_levels(*set.device, set.communicators.host_of_rank);
  }
  return set.device_hierarchical ? *set.device_hierarchical : *set.device;
}

bool Executor::device_busy() {
  if (!device_executor_) return false;
  for (auto& [id, set] : sets_) {
    for (const auto* each : {&set.device, &set.device_hierarchical}) {
      const std::string failure = *each ? (*each)->failure() : "";
      if (!failure.empty()) throw EngineError(failure);
    }
  }
  return device_executor_->busy();
}

bool Executor::write_device_timeline() {
  if (!device_executor_) return true;
  device_executor_->timeline().write_complete();
  return !device_timeline_pending();
}

void Executor::close_device(bool failed) {
  if (!device_executor_) return;
  std::unique_ptr<DeviceUse> use;
  try {
    use = backend_.device->use();
    if (!failed) failed = !device_idle_within(std::chrono::seconds(5));
  } catch (const EngineError& error) {  // of a GPU that is lost: no reason to wait for others
    log(LogLevel::error, error.what());
    failed = true;
  }
  bool aborted = false;
  for (auto& [id, set] : sets_) {  // all, before one is waited for
    for (const auto* each : {&set.device_hierarchical, &set.device}) {
      if (!failed || !*each) continue;
      (*each)->abort();
      aborted = true;
    }
  }
  for (auto& [id, set] : sets_) {
    set.device_hierarchical.reset();
    set.device.reset();
  }
  try {
    // Copies behind the collectives may still write to tensors, which the script gets back now.
    if (aborted) device_idle_within(std::chrono::seconds(1));
    device_executor_->free_buffer();
  } catch (const EngineError& error) {
    log(LogLevel::error, error.what());
  }
}

bool Executor::device_idle_within(std::chrono::seconds time) {
  const auto deadline = std::chrono::steady_clock::now() + time;
  while (device_executor_->busy()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

double Executor::run(const Work& work, const Params& params) {
  const Response& response = *work.response;
  Set& set = sets_.at(response.process_set);
  count(work);
  if (response.on_device) {
    if (!device_executor_) throw EngineError("negotiation: response for a GPU that is not in use");
    const auto use = backend_.device->use();
    DeviceCommunicator& communicator = connect_device(
        set, params.hierarchical_allreduce && response.operation == Operation::allreduce);
    device_executor_->run(work, set.ranks, communicator);
    return -1;
  }
  if (response.check < 0 || !set.communicators.plain) {
    move(set, work, params);
    return -1;
  }
  const auto place = static_cast<size_t>(response.check);
  ResultCheck check(response, response.items[place], *work.entries[place]);
  move(set, work, params);
  return check.worst_error(*set.communicators.plain);
}

void Executor::count(const Work& work) {
  const auto tensors = static_cast<int64_t>(work.entries.size());
  ++counters_.responses;
  counters_.operations += tensors;
  if (tensors > 1) counters_.fused_tensors += tensors;
  for (const TensorEntry* entry : work.entries) {
    counters_.payload_bytes += entry->request->wire_bytes();
  }
}

void Executor::move(const Set& set, const Work& work, const Params& params) {
  const Response& response = *work.response;
  const Entries& entries = work.entries;
  switch (response.operation) {
    case Operation::allreduce:
      return allreduce(response, entries, set.select(params.hierarchical_allreduce), set);
    case Operation::allgather:
      return allgather(response, entries, set.select(params.hierarchical_allgather));
    case Operation::reducescatter:
      return reducescatter(response, entries, set.select(params.hierarchical_allreduce));
    case Operation::alltoall:
      return alltoall(response, *entries[0], *set.communicators.flat);
    case Operation::broadcast:
      return broadcast(response, *entries[0], set);
    case Operation::barrier:
    case Operation::join:
    case Operation::add_process_set:
    case Operation::remove_process_set:
      return;  // agreed by all ranks: that is all they ask for here
  }
}

void Executor::allreduce(const Response& response, const Entries& entries,
                         Communicator& communicator, const Set& set) {
  const auto item = static_cast<int64_t>(size_of(response.dtype));
  const bool is_adasum = response.reduce_op == ReduceOp::adasum;
  const bool packing = entries.size() > 1 && !communicator.gathers() && !is_adasum;
  const auto packed = [&](const TensorEntry& entry) {
    return packing && entry.request->bytes() < in_place_bytes;
  };
  int64_t packed_bytes = 0;
  for (const TensorEntry* entry : entries) {
    if (packed(*entry)) packed_bytes += entry->request->bytes();
  }
  char* const buffer = fusion_buffer_.reserve(packed_bytes);
  spans_.clear();
  {
    Stopwatch watch(counters_.pack_ns);
    Activity activity(timeline_, packed_bytes > 0 ? "MEMCPY_IN_FUSION_BUFFER" : nullptr);
    char* next = buffer;
    for (const TensorEntry* entry : entries) {
      const int64_t bytes = entry->request->bytes();
      if (packed(*entry)) {
        copy_bytes(next, entry->input, bytes);
        next += bytes;
      } else {
        spans_.push_back({entry->input, entry->output, bytes / item});
      }
    }
    if (packed_bytes > 0) spans_.push_back({buffer, buffer, packed_bytes / item});
  }
  reduce(response, communicator, set);
  Stopwatch watch(counters_.unpack_ns);
  Activity activity(timeline_, packed_bytes > 0 ? "MEMCPY_OUT_FUSION_BUFFER" : nullptr);
  const char* next = buffer;
  for (const TensorEntry* entry : entries) {
    if (!packed(*entry)) continue;
    copy_bytes(entry->output, next, entry->request->bytes());
    next += entry->request->bytes();
  }
}

// Reduce spans_ over the ranks.
void Executor::reduce(const Response& response, Communicator& communicator, const Set& set) {
  const bool is_adasum = response.reduce_op == ReduceOp::adasum;
  Stopwatch watch(counters_.transfer_ns);
  Activity activity(timeline_, is_adasum
                                   ? "MPI_ADASUM_ALLREDUCE"
                                   : activity_name(communicator.backend(), Operation::allreduce));
  Communicator& chosen =
      is_adasum && set.communicators.plain ? *set.communicators.plain : communicator;
  chosen.allreduce(spans_, response.dtype, response.reduce_op, response.prescale,
                   response.postscale);
}

void Executor::allgather(const Response& response, const Entries& entries,
                         Communicator& communicator) {
  const auto size = static_cast<size_t>(communicator.size());
  const auto rank = static_cast<size_t>(communicator.rank());
  std::vector<std::vector<int64_t>> offsets;  // by entry: of every rank's rows in the output
  std::vector<int64_t> block_bytes(size, 0);  // by rank: its rows of all entries
  for (size_t e = 0; e < entries.size(); ++e) {
    const Request& request = entries[e]->request;
    const std::vector<int64_t>& rows = response.items[e].rows;
    offsets.push_back(row_offsets(rows, row_bytes_of(request)));
    for (size_t r = 0; r < size; ++r) block_bytes[r] += offsets[e][r + 1] - offsets[e][r];
    make_result(*entries[e], std::accumulate(rows.begin(), rows.end(), int64_t{0}));
  }
  const bool fused = entries.size() > 1;
  const int64_t total = std::accumulate(block_bytes.begin(), block_bytes.end(), int64_t{0});
  char* const blocks = fused ? fusion_buffer_.reserve(total) : entries[0]->handle->result.get();
  {
    Stopwatch watch(counters_.pack_ns);
    Activity activity(timeline_, "MEMCPY_IN_FUSION_BUFFER");
    char* next =
        blocks + std::accumulate(block_bytes.begin(),
                                 block_bytes.begin() + static_cast<ptrdiff_t>(rank), int64_t{0});
    for (const TensorEntry* entry : entries) {
      copy_bytes(next, entry->input, entry->request->bytes());
      next += entry->request->bytes();
    }
  }
  {
    Stopwatch watch(counters_.transfer_ns);
    Activity activity(timeline_, activity_name(communicator.backend(), Operation::allgather));
    communicator.allgather(blocks, block_bytes);
  }
  if (!fused) return;
  Stopwatch watch(counters_.unpack_ns);
  Activity activity(timeline_, "MEMCPY_OUT_FUSION_BUFFER");
  const char* next = blocks;
  for (size_t r = 0; r < size; ++r) {
    for (size_t e = 0; e < entries.size(); ++e) {
      const int64_t bytes = offsets[e][r + 1] - offsets[e][r];
      copy_bytes(entries[e]->handle->result.get() + offsets[e][r], next, bytes);
      next += bytes;
    }
  }
}

// The fusion buffer holds a block per rank: its rows of all tensors, and nothing of use up to the
// length of the longest block, which is rank 0's.
void Executor::reducescatter(const Response& response, const Entries& entries,
                             Communicator& communicator) {
  const int size = communicator.size();
  const int rank = communicator.rank();
  const auto item = static_cast<int64_t>(size_of(response.dtype));
  int64_t block_bytes = 0;
  for (TensorEntry* entry : entries) {
    const int64_t rows = entry->request->shape[0];
    block_bytes += rows_of(rows, 0, size) * row_bytes_of(entry->request);
    make_result(*entry, rows_of(rows, rank, size));
  }
  const int64_t total_bytes = block_bytes * size;
  char* const buffer = fusion_buffer_.reserve(total_bytes);
  {
    Stopwatch watch(counters_.pack_ns);
    Activity activity(timeline_, "MEMCPY_IN_FUSION_BUFFER");
    std::vector<int64_t> done(entries.size(), 0);  // bytes of each tensor
    for (int r = 0; r < size; ++r) {
      char* next = buffer + block_bytes * r;
      for (size_t e = 0; e < entries.size(); ++e) {
        const Request& request = entries[e]->request;
        const int64_t bytes = rows_of(request.shape[0], r, size) * row_bytes_of(request);
        copy_bytes(next, static_cast<const char*>(entries[e]->input) + done[e], bytes);
        done[e] += bytes;
        next += bytes;
      }
      const int64_t unused = buffer + block_bytes * (r + 1) - next;
      if (unused > 0) std::memset(next, 0, static_cast<size_t>(unused));
    }
  }
  {
    Stopwatch watch(counters_.transfer_ns);
    Activity activity(timeline_, activity_name(communicator.backend(), Operation::reducescatter));
    spans_ = {{buffer, buffer, total_bytes / item}};
    communicator.reduce_scatter(spans_, response.dtype, response.reduce_op, response.prescale,
                                size);
  }
  Stopwatch watch(counters_.unpack_ns);
  Activity activity(timeline_, "MEMCPY_OUT_FUSION_BUFFER");
  char* own = buffer + block_bytes * rank;
  scale(own, block_bytes / item, response.dtype, response.postscale,
        response.reduce_op == ReduceOp::average ? size : 1);
  for (const TensorEntry* entry : entries) {
    copy_bytes(entry->handle->result.get(), own, entry->handle->result_bytes);
    own += entry->handle->result_bytes;
  }
}

void Executor::alltoall(const Response& response, TensorEntry& entry, Communicator& communicator) {
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

void Executor::broadcast(const Response& response, TensorEntry& entry, const Set& set) {
  Communicator& communicator = *set.communicators.flat;
  const int64_t bytes = entry.request->bytes();
  const auto found = std::find(set.ranks.begin(), set.ranks.end(), response.root_rank);
  const auto root = static_cast<int>(found - set.ranks.begin());
  if (communicator.rank() == root) copy_bytes(entry.output, entry.input, bytes);
  Stopwatch watch(counters_.transfer_ns);
  Activity activity(timeline_, activity_name(communicator.backend(), Operation::broadcast));
  communicator.broadcast(entry.output, bytes, root);
}

}  // namespace autotune
