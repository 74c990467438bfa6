#include "engine/execute/device_executor.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <numeric>
#include <thread>

#include "comm/choose_device.h"
#include "common/errors.h"
#include "common/log.h"

namespace autotune {

namespace {

// Above this a call of its own within the group costs less than a copy in and out (measured by
// torch.distributed on 2 H200, ResNet-50's gradients: 0.45 ms a step from 2 MiB on, 0.53 from
// 1 MiB, 0.51 from 4, 0.55 with all of them packed, 0.38 for a flat tensor).
constexpr int64_t in_place_bytes = 2 << 20;
// Tensors begin at whole words of this many bytes in the buffer, so that they are copied in those.
constexpr int64_t alignment = 16;

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

DeviceCommunicator& DeviceExecutor::connect(int32_t id, const Members& set, bool hierarchical) {
  Connected& connected = connected_[id];
  const Communicators& host = set.communicators;
  if (!connected.flat) {
    Activity activity(job_timeline_, "INIT_NCCL");
    connected.flat = backend_.connect(host.plain.get(), set.on_wait);
  }
  if (!hierarchical || !host.hierarchical) return *connected.flat;
  if (!connected.hierarchical) {
    connected.hierarchical = choose_two_levels(*connected.flat, host.host_of_rank);
  }
  return connected.hierarchical ? *connected.hierarchical : *connected.flat;
}

void DeviceExecutor::run(const Work& work, const Members& set, const Params& params) {
  const Response& response = *work.response;
  const Entries& entries = work.entries;
  const auto use = device_.use();
  DeviceCommunicator& communicator =
      connect(response.process_set, set,
              params.hierarchical_allreduce && response.operation == Operation::allreduce);
  timeline_.begin(timeline_.wanted() && !has_work());
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
    case Operation::broadcast:
      broadcast(*entries[0], set.place_of(response.root_rank), communicator);
      break;
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
  for (const auto& [id, connected] : connected_) {
    for (const auto* each : {&connected.flat, &connected.hierarchical}) {
      const std::string failure = *each ? (*each)->failure() : "";
      if (!failure.empty()) throw EngineError(failure);
    }
  }
  return has_work();
}

bool DeviceExecutor::has_work() {
  if (last_ && device_.is_complete(*last_)) last_ = nullptr;
  return last_ != nullptr;
}

void DeviceExecutor::close(bool failed) {
  std::unique_ptr<DeviceUse> use;
  try {
    use = device_.use();
    if (!failed) failed = !idle_within(std::chrono::seconds(5));
  } catch (const EngineError& error) {  // of a GPU that is lost: no reason to wait for others
    log(LogLevel::error, error.what());
    failed = true;
  }
  bool aborted = false;
  for (auto& [id, connected] : connected_) {  // all, before one is waited for
    for (const auto* each : {&connected.hierarchical, &connected.flat}) {
      if (!failed || !*each) continue;
      (*each)->abort();
      aborted = true;
    }
  }
  connected_.clear();
  try {
    // Copies behind the collectives may still write to tensors, which the script gets back now.
    if (aborted) idle_within(std::chrono::seconds(1));
    free_buffer();
  } catch (const EngineError& error) {
    log(LogLevel::error, error.what());
  }
}

bool DeviceExecutor::idle_within(std::chrono::seconds time) {
  const auto deadline = std::chrono::steady_clock::now() + time;
  while (has_work()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
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
  // Alike on all ranks.
  const int64_t limit_bytes = converts             ? std::numeric_limits<int64_t>::max()
                              : entries.size() > 1 ? in_place_bytes
                                                   : 0;
  const int64_t packed_bytes = pack_offsets(entries, limit_bytes, item, alignment, offsets_);
  char* const buffer = reserve(packed_bytes);
  before_.clear();
  after_.clear();
  spans_.clear();
  for (size_t i = 0; i < entries.size(); ++i) {
    const TensorEntry& entry = *entries[i];
    const int64_t count = entry.request->count();
    const bool is_packed = offsets_[i] >= 0;
    char* const place = is_packed ? buffer + offsets_[i] : nullptr;
    const void* input = entry.input;
    void* output = entry.output;
    if (is_zeros(entry)) {
      if (is_packed) {
        device_.clear(place, count * item);
      } else {
        input = output = zeros(count * item);
      }
    } else if (is_packed) {
      before_.push_back({input, place, count, response.dtype, how.type, response.prescale, 1});
      after_.push_back(
          {place, output, count, how.type, response.dtype, how.postscale, how.divisor});
    } else {
      if (response.prescale != 1.0) {
        before_.push_back({input, output, count, how.type, how.type, response.prescale, 1});
        input = output;
      }
      if (scales_after) {
        after_.push_back({output, output, count, how.type, how.type, how.postscale, how.divisor});
      }
    }
    if (!is_packed) spans_.push_back({input, output, count});
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
  const int size = communicator.size();
  const Blocks layout = gathered_blocks(entries, response.items, size);
  for (size_t i = 0; i < entries.size(); ++i) {
    const std::vector<int64_t>& rows = response.items[i].rows;
    make_result(*entries[i], std::accumulate(rows.begin(), rows.end(), int64_t{0}));
  }
  const bool fused = entries.size() > 1;
  void* const buffer = fused ? reserve(layout.total_bytes()) : entries[0]->handle->device_result;
  const auto bytes_copy = [](const void* from, void* to, int64_t bytes) {
    return DeviceCopy{from, to, bytes};
  };
  before_.clear();
  after_.clear();
  const Piece* const own = layout.pieces_of(communicator.rank());
  for (size_t i = 0; i < entries.size(); ++i) {
    before_.push_back(
        bytes_copy(entries[i]->input, offset(buffer, own[i].offset), entries[i]->request->bytes()));
  }
  pack(before_);
  {
    Stopwatch watch(counters_.transfer_ns);
    communicator.allgather(buffer, layout.bytes);
    timeline_.mark("NCCL_ALLGATHER");
  }
  if (!fused) return;
  const auto item = static_cast<int64_t>(size_of(response.dtype));
  for (int rank = 0; rank < size; ++rank) {
    const Piece* const pieces = layout.pieces_of(rank);
    for (size_t i = 0; i < entries.size(); ++i) {
      after_.push_back(bytes_copy(offset(buffer, pieces[i].offset),
                                  offset(entries[i]->handle->device_result, pieces[i].first * item),
                                  pieces[i].count * item));
    }
  }
  unpack(after_);
}

void DeviceExecutor::reducescatter(const Response& response, const Entries& entries,
                                   DeviceCommunicator& communicator) {
  const Reduction how = reduction_of(response, communicator.size());
  const int size = communicator.size(), rank = communicator.rank();
  const auto from_item = static_cast<int64_t>(size_of(response.dtype));
  const auto item = static_cast<int64_t>(size_of(how.type));
  for (TensorEntry* entry : entries) {
    make_result(*entry, rows_of(entry->request->shape[0], rank, size));
  }
  const Blocks layout = scattered_blocks(entries, size, item, alignment);
  const int64_t block_bytes = layout.bytes[0];
  char* const buffer = reserve(layout.total_bytes());
  before_.clear();
  after_.clear();
  for (size_t p = 0; p < layout.pieces.size(); ++p) {
    const Piece& piece = layout.pieces[p];
    const TensorEntry& entry = *entries[p % entries.size()];
    before_.push_back({offset(entry.input, piece.first * from_item), buffer + piece.offset,
                       piece.count, response.dtype, how.type, response.prescale, 1});
  }
  const Piece* const own = layout.pieces_of(rank);
  for (size_t i = 0; i < entries.size(); ++i) {
    after_.push_back({buffer + own[i].offset, entries[i]->handle->device_result, own[i].count,
                      how.type, response.dtype, how.postscale, how.divisor});
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
