#include "engine/execute/device_executor.h"

#include <algorithm>
#include <numeric>

#include "engine/execute/rows.h"
#include "engine/operation/counters.h"

namespace autotune {

namespace {

// Above this a call of its own within the group costs less than a copy in and out (measured by
// torch.distributed on 2 H200, ResNet-50's gradients: 0.45 ms a step from 2 MiB on, 0.53 from
// 1 MiB, 0.51 from 4, 0.55 with all of them packed, 0.38 for a flat tensor).
constexpr int64_t in_place_bytes = 2 << 20;
// Tensors begin at whole words of this many bytes in the buffer, so that they are copied in those.
constexpr int64_t alignment = 16;

int64_t aligned(int64_t bytes) { return (bytes + alignment - 1) / alignment * alignment; }

bool is_float(DataType type) {
  return type == DataType::float16 || type == DataType::bfloat16 || type == DataType::float32 ||
         type == DataType::float64;
}

// Ranks that have joined take part without a tensor.
bool is_zeros(const TensorEntry& entry) { return entry.handle == nullptr; }

char* offset(void* memory, int64_t bytes) { return static_cast<char*>(memory) + bytes; }

const char* offset(const void* memory, int64_t bytes) {
  return static_cast<const char*>(memory) + bytes;
}

}  // namespace

DeviceExecutor::Reduction DeviceExecutor::reduction_of(const Response& response, int size) {
  const DataType type = response.wire_type.value_or(response.dtype);
  Reduction how{type, response.reduce_op, response.postscale, 1};
  if (type == DataType::int16) how.type = DataType::int32;  // the same modulo 2^16
  if (type == DataType::boolean) {                          // of zeros and ones
    if (how.op == ReduceOp::sum) how.op = ReduceOp::max;
    if (how.op == ReduceOp::product) how.op = ReduceOp::min;
  }
  if (how.op == ReduceOp::average && !is_float(type)) {
    how.op = ReduceOp::sum;
    how.divisor = size;
  }
  return how;
}

void DeviceExecutor::run(const Work& work, const std::vector<int>& ranks,
                         DeviceCommunicator& communicator) {
  const Response& response = *work.response;
  const Entries& entries = work.entries;
  timeline_.begin(timeline_.wanted() && !busy());
  wait_for_inputs(entries);
  switch (response.operation) {
    case Operation::allreduce:
      allreduce(response, entries, communicator);
      break;
    case Operation::allgather:
      allgather(response, entries, communicator);
      break;
    case Operation::reducescatter:
      reducescatter(response, entries, communicator);
      break;
    case Operation::alltoall:
      alltoall(response, *entries[0], communicator);
      break;
    case Operation::broadcast: {
      const auto found = std::find(ranks.begin(), ranks.end(), response.root_rank);
      broadcast(*entries[0], static_cast<int>(found - ranks.begin()), communicator);
      break;
    }
    default:
      break;
  }
  timeline_.end();
  for (void* memory : scratch_) device_.free(memory, device_.stream());
  scratch_.clear();
  last_ = device_.record(device_.stream());
  for (TensorEntry* entry : entries) {
    if (entry->handle) entry->handle->finished = last_;
  }
}

bool DeviceExecutor::busy() {
  if (last_ && device_.is_complete(*last_)) last_ = nullptr;
  return last_ != nullptr;
}

// The last event of a stream stands for those before it.
void DeviceExecutor::wait_for_inputs(const Entries& entries) {
  latest_.clear();
  for (const TensorEntry* entry : entries) {
    const EventPtr& ready = entry->ready;
    if (!ready) continue;
    const auto same = [&](const auto& each) { return each.first == ready->stream; };
    const auto known = std::find_if(latest_.begin(), latest_.end(), same);
    if (known == latest_.end()) {
      latest_.emplace_back(ready->stream, ready);
    } else if (known->second->number < ready->number) {
      known->second = ready;
    }
  }
  for (const auto& [stream, event] : latest_) device_.wait(device_.stream(), *event);
  if (!latest_.empty()) timeline_.mark("WAIT_FOR_DATA");
}

void DeviceExecutor::allreduce(const Response& response, const Entries& entries,
                               DeviceCommunicator& communicator) {
  const Reduction how = reduction_of(response, communicator.size());
  const auto item = static_cast<int64_t>(size_of(how.type));
  const bool converts = how.type != response.dtype;
  const bool scales_after = how.postscale != 1.0 || how.divisor != 1;
  const auto packed = [&](const TensorEntry& entry) {  // alike on all ranks
    return converts || (entries.size() > 1 && entry.request->bytes() < in_place_bytes);
  };
  int64_t packed_bytes = 0;
  for (const TensorEntry* entry : entries) {
    if (packed(*entry)) packed_bytes += aligned(entry->request->count() * item);
  }
  char* const buffer = reserve(packed_bytes);
  before_.clear();
  after_.clear();
  spans_.clear();
  char* next = buffer;
  for (const TensorEntry* entry : entries) {
    const int64_t count = entry->request->count();
    const bool is_packed = packed(*entry);
    const void* input = entry->input;
    void* output = entry->output;
    if (is_zeros(*entry)) {
      if (is_packed) {
        device_.clear(next, count * item);
      } else {
        input = output = zeros(count * item);
      }
    } else if (is_packed) {
      before_.push_back({input, next, count, response.dtype, how.type, response.prescale, 1});
      after_.push_back({next, output, count, how.type, response.dtype, how.postscale, how.divisor});
    } else {
      if (response.prescale != 1.0) {
        before_.push_back({input, output, count, how.type, how.type, response.prescale, 1});
        input = output;
      }
      if (scales_after) {
        after_.push_back({output, output, count, how.type, how.type, how.postscale, how.divisor});
      }
    }
    if (is_packed) {
      next += aligned(count * item);
    } else {
      spans_.push_back({input, output, count});
    }
  }
  if (packed_bytes > 0) spans_.push_back({buffer, buffer, packed_bytes / item});
  pack(before_);
  {
    Stopwatch watch(counters_.transfer_ns);
    communicator.allreduce(spans_, how.type, how.op);
    timeline_.mark("NCCL_ALLREDUCE");
  }
  unpack(after_);
}

void DeviceExecutor::allgather(const Response& response, const Entries& entries,
                               DeviceCommunicator& communicator) {
  const auto size = static_cast<size_t>(communicator.size());
  const auto rank = static_cast<ptrdiff_t>(communicator.rank());
  std::vector<std::vector<int64_t>> offsets;  // by entry: of every rank's rows in the output
  std::vector<int64_t> block_bytes(size, 0);  // by rank: its rows of all entries
  for (size_t e = 0; e < entries.size(); ++e) {
    const std::vector<int64_t>& rows = response.items[e].rows;
    offsets.push_back(row_offsets(rows, row_bytes_of(entries[e]->request)));
    for (size_t r = 0; r < size; ++r) block_bytes[r] += offsets[e][r + 1] - offsets[e][r];
    make_result(*entries[e], std::accumulate(rows.begin(), rows.end(), int64_t{0}));
  }
  const bool fused = entries.size() > 1;
  const int64_t total = std::accumulate(block_bytes.begin(), block_bytes.end(), int64_t{0});
  void* const blocks = fused ? reserve(total) : entries[0]->handle->device_result;
  const auto bytes_copy = [](const void* from, void* to, int64_t bytes) {
    return DeviceCopy{from, to, bytes};
  };
  before_.clear();
  after_.clear();
  char* next =
      offset(blocks, std::accumulate(block_bytes.begin(), block_bytes.begin() + rank, int64_t{0}));
  for (const TensorEntry* entry : entries) {
    before_.push_back(bytes_copy(entry->input, next, entry->request->bytes()));
    next += entry->request->bytes();
  }
  pack(before_);
  {
    Stopwatch watch(counters_.transfer_ns);
    communicator.allgather(blocks, block_bytes);
    timeline_.mark("NCCL_ALLGATHER");
  }
  if (!fused) return;
  const char* from = static_cast<const char*>(blocks);
  for (size_t r = 0; r < size; ++r) {
    for (size_t e = 0; e < entries.size(); ++e) {
      const int64_t bytes = offsets[e][r + 1] - offsets[e][r];
      void* result = entries[e]->handle->device_result;
      after_.push_back(bytes_copy(from, offset(result, offsets[e][r]), bytes));
      from += bytes;
    }
  }
  unpack(after_);
}

// The buffer holds a block per rank, as in Executor::reducescatter.
void DeviceExecutor::reducescatter(const Response& response, const Entries& entries,
                                   DeviceCommunicator& communicator) {
  const Reduction how = reduction_of(response, communicator.size());
  const int size = communicator.size(), rank = communicator.rank();
  const auto from_item = static_cast<int64_t>(size_of(response.dtype));
  const auto item = static_cast<int64_t>(size_of(how.type));
  const auto elements = [&](const Request& request, int r) {
    return rows_of(request.shape[0], r, size) * row_bytes_of(request) / from_item;
  };
  int64_t block_bytes = 0;
  for (TensorEntry* entry : entries) {
    block_bytes += aligned(elements(entry->request, 0) * item);
    make_result(*entry, rows_of(entry->request->shape[0], rank, size));
  }
  char* const buffer = reserve(block_bytes * size);
  before_.clear();
  after_.clear();
  std::vector<int64_t> done(entries.size(), 0);  // bytes of each tensor
  for (int r = 0; r < size; ++r) {
    char* next = buffer + block_bytes * r;
    for (size_t e = 0; e < entries.size(); ++e) {
      const TensorEntry& entry = *entries[e];
      const int64_t count = elements(entry.request, r);
      before_.push_back({offset(entry.input, done[e]), next, count, response.dtype, how.type,
                         response.prescale, 1});
      if (r == rank) {
        after_.push_back({next, entry.handle->device_result, count, how.type, response.dtype,
                          how.postscale, how.divisor});
      }
      done[e] += count * from_item;
      next += aligned(elements(entry.request, 0) * item);
    }
  }
  pack(before_);
  {
    Stopwatch watch(counters_.transfer_ns);
    communicator.reduce_scatter(buffer, buffer + block_bytes * rank, block_bytes / item, how.type,
                                how.op);
    timeline_.mark("NCCL_REDUCESCATTER");
  }
  unpack(after_);
}

void DeviceExecutor::alltoall(const Response& response, TensorEntry& entry,
                              DeviceCommunicator& communicator) {
  const std::vector<int64_t>& rows = response.items[0].rows;
  const std::vector<int64_t> received =
      rows_received(rows, communicator.rank(), communicator.size());
  make_result(entry, std::accumulate(received.begin(), received.end(), int64_t{0}));
  entry.handle->received_splits = received;
  Stopwatch watch(counters_.transfer_ns);
  communicator.alltoall(entry.input, entry.handle->device_result,
                        bytes_of_rows(rows, row_bytes_of(entry.request)));
  timeline_.mark("NCCL_ALLTOALL");
}

void DeviceExecutor::broadcast(TensorEntry& entry, int root, DeviceCommunicator& communicator) {
  const int64_t bytes = entry.request->bytes();
  if (communicator.rank() == root) {
    device_.copy(entry.output, entry.input, bytes, device_.stream());
  }
  Stopwatch watch(counters_.transfer_ns);
  communicator.broadcast(entry.output, bytes, root);
  timeline_.mark("NCCL_BCAST");
}

void DeviceExecutor::pack(const std::vector<DeviceCopy>& copies) {
  if (copies.empty()) return;
  Stopwatch watch(counters_.pack_ns);
  device_.copy_all(copies);
  timeline_.mark("MEMCPY_IN_FUSION_BUFFER");
}

void DeviceExecutor::unpack(const std::vector<DeviceCopy>& copies) {
  if (copies.empty()) return;
  Stopwatch watch(counters_.unpack_ns);
  device_.copy_all(copies);
  timeline_.mark("MEMCPY_OUT_FUSION_BUFFER");
}

// In the order of the stream: what still uses the old memory runs before it is freed.
char* DeviceExecutor::reserve(int64_t bytes) {
  if (bytes > buffer_.capacity) {
    free_buffer();
    buffer_.data = static_cast<char*>(device_.allocate(bytes));
    buffer_.capacity = bytes;
  }
  return buffer_.data;
}

void DeviceExecutor::free_buffer() {
  device_.free(buffer_.data, device_.stream());
  buffer_ = {};
}

void DeviceExecutor::make_result(TensorEntry& entry, int64_t rows) {
  Handle& handle = *entry.handle;
  handle.result_bytes = rows * row_bytes_of(entry.request);
  handle.device_result = device_.allocate(handle.result_bytes);
  handle.result_shape = entry.request->shape;
  handle.result_shape[0] = rows;
}

// Until the response has run.
void* DeviceExecutor::zeros(int64_t bytes) {
  void* memory = device_.allocate(bytes);
  device_.clear(memory, bytes);
  scratch_.push_back(memory);
  return memory;
}

}  // namespace autotune
