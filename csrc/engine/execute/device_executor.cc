#include "engine/execute/device_executor.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <numeric>
#include <thread>
#include <utility>

#include "comm/choose_device.h"
#include "common/errors.h"
#include "common/log.h"
#include "common/reduce.h"

namespace autotune {

namespace {

// Above this a call of its own within the group costs less than a copy in and out (measured by
// torch.distributed on 2 H200, ResNet-50's gradients: 0.45 ms a step from 2 MiB on, 0.53 from
// 1 MiB, 0.51 from 4, 0.55 with all of them packed, 0.38 for a flat tensor).
constexpr int64_t in_place_bytes = 2 << 20;
// Responses whose end the GPU has not reached; each is some launches, of about 1,000 that a stream
// takes before the driver blocks.
constexpr size_t most_under_way = 128;
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
  Reduction how{type, response.reduce_op, response.prescale, response.postscale, 1};
  if (type == DataType::int16) how.type = DataType::int32;  // the same modulo 2^16
  if (type == DataType::boolean) {                          // of zeros and ones
    if (how.op == ReduceOp::sum) how.op = ReduceOp::max;
    if (how.op == ReduceOp::product) how.op = ReduceOp::min;
  }
  if (how.op == ReduceOp::average && !is_float(type)) {
    how.op = ReduceOp::sum;
    how.divisor = size;
  }
  if (how.op == ReduceOp::average && is_half(type)) {
    // Nothing may grow on the way beyond what comes out. An input of a longer type may have to be
    // scaled before it fits.
    if (type == response.dtype) how.postscale *= std::exchange(how.prescale, 1.0);
    // The library averages halves by a factor of their type, which 1 / 3 is not.
    int larger = 1;
    while (larger < size) larger *= 2;
    if (larger != size) {
      how.op = ReduceOp::sum;
      how.prescale /= larger;
      how.postscale *= static_cast<double>(larger) / size;
    }
  }
  return how;
}

DeviceCommunicator& DeviceExecutor::connect(int32_t id, const Members& set, bool hierarchical) {
  Connected& connected = connected_[id];
  const Communicators& host = set.communicators;
  if (!connected.flat) {
    Activity activity(job_timeline_, "INIT_NCCL");
    drain(set.on_wait);
    connected.flat = backend_.connect(host.plain.get(), 0, set.on_wait);
  }
  if (!hierarchical || !host.hierarchical) return *connected.flat;
  if (!std::exchange(connected.knows_levels, true)) {
    Activity activity(job_timeline_, "INIT_NCCL");
    drain(set.on_wait);
    connected.hierarchical = choose_two_levels(*connected.flat, backend_.connect, *host.plain,
                                               host.host_of_rank, set.on_wait);
  }
  return connected.hierarchical ? *connected.hierarchical : *connected.flat;
}

void DeviceExecutor::remove_set(int32_t id, const WaitHook& on_wait) {
  if (connected_.count(id) == 0) return;
  drain(on_wait);
  if (checked_set() == id) drop_check();
  const auto use = device_.use();
  connected_.erase(id);
  buffer_.remove_set(id);
}

// Throws when a rank is gone or a communicator has failed: the GPU would never get there.
void DeviceExecutor::wait_for(const DeviceEvent& event, const WaitHook& on_wait) {
  while (!device_.is_complete(event)) {
    on_wait();
    check_communicators();
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

// All ranks get past this: what one of them waits for has been given to the GPUs of the others.
void DeviceExecutor::drain(const WaitHook& on_wait) {
  if (last_) wait_for(*last_, on_wait);
  under_way_.clear();
}

// The driver holds up the thread that gives a GPU more than it can queue, without end where the GPU
// waits for a rank that has died.
void DeviceExecutor::make_room(const WaitHook& on_wait) {
  if (under_way_.size() < most_under_way) return;
  wait_for(*under_way_[most_under_way / 2], on_wait);
  under_way_.erase(under_way_.begin(), under_way_.begin() + most_under_way / 2 + 1);
}

void DeviceExecutor::run(const Work& work, const Members& set, const Params& params) {
  const Response& response = *work.response;
  const Entries& entries = work.entries;
  const auto use = device_.use();
  set_ = &set;
  params_ = &params;
  make_room(set.on_wait);
  DeviceCommunicator& communicator =
      connect(response.process_set, set,
              params.hierarchical_allreduce && response.operation == Operation::allreduce);
  timeline_.begin(timeline_.wanted() && !has_work());
  wait_for_inputs(entries);
  const bool is_checked = response.check >= 0 && set.communicators.plain;
  if (is_checked) begin_check(work, set);
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
  if (is_checked) {
    checking_->check->read_result(*entries[static_cast<size_t>(response.check)]);
  }
  timeline_.end();
  scratch_.clear();
  last_ = device_.record(device_.stream());
  if (is_checked) checking_->done = last_;
  under_way_.push_back(last_);
  for (TensorEntry* entry : entries) {
    if (entry->handle) entry->handle->finished = last_;
  }
}

void DeviceExecutor::begin_check(const Work& work, const Members& set) {
  const Response& response = *work.response;
  const auto place = static_cast<size_t>(response.check);
  const int rank = set.communicators.plain->rank(), size = set.communicators.plain->size();
  Checking& checking = checking_.emplace();
  checking.set = response.process_set;
  checking.memory = device_.host_memory(ResultCheck::most_bytes(response, size) + 2 * alignment);
  checking.check = std::make_unique<ResultCheck>(
      response, response.items[place], *work.entries[place], rank, size,
      [this](const void* tensor, const std::vector<ElementRange>& ranges, int64_t item_bytes) {
        return read(tensor, ranges, item_bytes);
      });
}

// In one launch, straight to memory of the host.
const char* DeviceExecutor::read(const void* tensor, const std::vector<ElementRange>& ranges,
                                 int64_t item_bytes) {
  Checking& checking = *checking_;
  char* const begin = checking.memory.get() + checking.used;
  std::vector<DeviceCopy> copies;
  for (const ElementRange& range : ranges) {
    const int64_t bytes = range.count * item_bytes;
    copies.push_back(
        {offset(tensor, range.first * item_bytes), checking.memory.get() + checking.used, bytes});
    checking.used += bytes;
  }
  checking.used = (checking.used + alignment - 1) / alignment * alignment;
  if (!copies.empty()) device_.copy_all(copies);
  return begin;
}

std::optional<int32_t> DeviceExecutor::checked_set() const {
  return checking_ ? std::optional(checking_->set) : std::nullopt;
}

DeviceExecutor::Checked DeviceExecutor::finish_check(const Members& set) {
  wait_for(*checking_->done, set.on_wait);
  const double worst = checking_->check->worst_error(*set.communicators.plain);
  const Checked checked{checking_->check->name(), worst};
  drop_check();
  return checked;
}

bool DeviceExecutor::busy() {
  check_communicators();
  return has_work();
}

void DeviceExecutor::check_communicators() {
  for (const auto& [id, connected] : connected_) {
    for (const auto* each : {&connected.flat, &connected.hierarchical}) {
      const std::string failure = *each ? (*each)->failure() : "";
      if (!failure.empty()) throw EngineError(failure);
    }
  }
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
  drop_check();
  try {
    // Copies behind the collectives may still write to tensors, which the script gets back now.
    if (aborted) idle_within(std::chrono::seconds(1));
  } catch (const EngineError& error) {
    log(LogLevel::error, error.what());
  }
  scratch_.clear();
  buffer_.release();
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
    const auto same = [&](const auto& each) { return each.first == ready->stream_id; };
    const auto known = std::find_if(latest_.begin(), latest_.end(), same);
    if (known == latest_.end()) {
      latest_.emplace_back(ready->stream_id, ready);
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
  // Alike on all ranks.
  const int64_t limit_bytes = converts             ? std::numeric_limits<int64_t>::max()
                              : entries.size() > 1 ? in_place_bytes
                                                   : 0;
  const int64_t room =
      grant(response, pack_offsets(entries, limit_bytes, item, alignment, offsets_));
  const auto room_items = room / alignment * alignment / item;
  int64_t used = 0;  // bytes of the buffer
  parts_.clear();
  for (size_t i = 0; i < entries.size(); ++i) {
    const int64_t count = entries[i]->request->count();
    if (offsets_[i] < 0 || (!converts && count > room_items)) {
      parts_.push_back({entries[i], 0, count, -1});
      continue;
    }
    for (int64_t first = 0; first < count;) {
      if (used > 0 && used + (count - first) * item > room) {
        reduce_parts(response, how, communicator);
        used = 0;
      }
      const int64_t taken = std::min(count - first, room_items);
      parts_.push_back({entries[i], first, taken, used});
      used += (taken * item + alignment - 1) / alignment * alignment;
      first += taken;
    }
  }
  reduce_parts(response, how, communicator);
}

// Of `parts_`, which are done then.
void DeviceExecutor::reduce_parts(const Response& response, const Reduction& how,
                                  DeviceCommunicator& communicator) {
  const auto item = static_cast<int64_t>(size_of(how.type));
  const auto own_item = static_cast<int64_t>(size_of(response.dtype));
  const bool scales_after = how.postscale != 1.0 || how.divisor != 1;
  int64_t packed_bytes = 0;
  for (const Part& part : parts_) {
    if (part.offset < 0) continue;
    const int64_t end = part.offset + part.count * item;
    packed_bytes = std::max(packed_bytes, (end + alignment - 1) / alignment * alignment);
  }
  char* const buffer = buffer_.data(packed_bytes, set_->on_wait);
  before_.clear();
  after_.clear();
  spans_.clear();
  for (const Part& part : parts_) {
    const TensorEntry& entry = *part.entry;
    const int64_t count = part.count;
    const bool is_packed = part.offset >= 0;
    char* const place = is_packed ? buffer + part.offset : nullptr;
    const void* input = offset(entry.input, part.first * own_item);
    void* output = offset(entry.output, part.first * own_item);
    if (is_zeros(entry)) {
      if (is_packed) {
        device_.clear(place, count * item);
      } else {
        input = output = zeros(count * item);
      }
    } else if (is_packed) {
      before_.push_back({input, place, count, response.dtype, how.type, how.prescale, 1});
      after_.push_back(
          {place, output, count, how.type, response.dtype, how.postscale, how.divisor});
    } else {
      if (how.prescale != 1.0) {
        before_.push_back({input, output, count, how.type, how.type, how.prescale, 1});
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
  parts_.clear();
}

void DeviceExecutor::allgather(const Response& response, const Entries& entries,
                               DeviceCommunicator& communicator) {
  for (size_t i = 0; i < entries.size(); ++i) {
    const std::vector<int64_t>& rows = response.items[i].rows;
    make_result(*entries[i], std::accumulate(rows.begin(), rows.end(), int64_t{0}));
  }
  const auto bytes_of = [](int64_t sum, const TensorEntry* each) {
    return sum + each->handle->result_bytes;
  };
  const int64_t bytes = std::accumulate(entries.begin(), entries.end(), int64_t{0}, bytes_of);
  if (entries.size() == 1 || grant(response, bytes) == bytes) {
    return gather(entries, response.items, communicator);
  }
  for (size_t i = 0; i < entries.size(); ++i) {  // needs no buffer
    gather({entries[i]}, {response.items[i]}, communicator);
  }
}

void DeviceExecutor::gather(const Entries& entries, const std::vector<ResponseItem>& items,
                            DeviceCommunicator& communicator) {
  const int size = communicator.size();
  const Blocks layout = gathered_blocks(entries, items, size);
  const bool fused = entries.size() > 1;
  void* const buffer = fused ? buffer_.data(layout.total_bytes(), set_->on_wait)
                             : entries[0]->handle->device_result.data;
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
  const auto item = static_cast<int64_t>(size_of(entries[0]->request->dtype));
  for (int rank = 0; rank < size; ++rank) {
    const Piece* const pieces = layout.pieces_of(rank);
    for (size_t i = 0; i < entries.size(); ++i) {
      after_.push_back(
          bytes_copy(offset(buffer, pieces[i].offset),
                     offset(entries[i]->handle->device_result.data, pieces[i].first * item),
                     pieces[i].count * item));
    }
  }
  unpack(after_);
}

void DeviceExecutor::reducescatter(const Response& response, const Entries& entries,
                                   DeviceCommunicator& communicator) {
  const int size = communicator.size();
  const auto item = static_cast<int64_t>(size_of(reduction_of(response, size).type));
  for (TensorEntry* entry : entries) {
    make_result(*entry, rows_of(entry->request->shape[0], communicator.rank(), size));
  }
  const int64_t bytes = scattered_blocks(entries, size, item, alignment).total_bytes();
  const int64_t room = grant(response, bytes);
  if (room == bytes) return scatter(response, entries, bytes, communicator);
  for (TensorEntry* entry : entries) scatter(response, {entry}, room, communicator);
}

// One entry, where the buffer has less than all of it needs.
void DeviceExecutor::scatter(const Response& response, const Entries& entries, int64_t room_bytes,
                             DeviceCommunicator& communicator) {
  const int size = communicator.size(), rank = communicator.rank();
  const Reduction how = reduction_of(response, size);
  const auto from_item = static_cast<int64_t>(size_of(response.dtype));
  const auto item = static_cast<int64_t>(size_of(how.type));
  const Blocks layout = scattered_blocks(entries, size, item, alignment);
  const int64_t block_bytes = layout.bytes[0];
  const int64_t most_bytes =
      std::min(block_bytes, room_bytes / size / alignment * alignment);  // of a block
  char* const buffer = buffer_.data(most_bytes * size, set_->on_wait);
  for (int64_t done = 0; done < block_bytes; done += most_bytes) {
    const int64_t bytes = std::min(most_bytes, block_bytes - done);
    // The elements of a piece that lie in this part of the blocks, and where.
    const auto part_of = [&](const Piece& piece) {
      const int64_t begin = piece.offset % block_bytes - done;
      const int64_t first = std::max<int64_t>(0, -begin / item);
      const int64_t end = std::min(piece.count, (bytes - begin) / item);
      return Piece{piece.first + first, std::max<int64_t>(0, end - first), begin + first * item};
    };
    before_.clear();
    after_.clear();
    for (size_t p = 0; p < layout.pieces.size(); ++p) {
      const Piece part = part_of(layout.pieces[p]);
      const auto block = static_cast<int64_t>(p / entries.size());
      before_.push_back({offset(entries[p % entries.size()]->input, part.first * from_item),
                         buffer + block * bytes + part.offset, part.count, response.dtype, how.type,
                         how.prescale, 1});
    }
    const Piece* const own = layout.pieces_of(rank);
    for (size_t i = 0; i < entries.size(); ++i) {
      const Piece part = part_of(own[i]);
      after_.push_back(
          {buffer + bytes * rank + part.offset,
           offset(entries[i]->handle->device_result.data, (part.first - own[i].first) * from_item),
           part.count, how.type, response.dtype, how.postscale, how.divisor});
    }
    pack(before_);
    {
      Stopwatch watch(counters_.transfer_ns);
      communicator.reduce_scatter(buffer, buffer + bytes * rank, bytes / item, how.type, how.op);
      timeline_.mark("NCCL_REDUCESCATTER");
    }
    unpack(after_);
  }
}

void DeviceExecutor::alltoall(const Response& response, TensorEntry& entry,
                              DeviceCommunicator& communicator) {
  const std::vector<int64_t>& rows = response.items[0].rows;
  const std::vector<int64_t> received =
      rows_received(rows, communicator.rank(), communicator.size());
  make_result(entry, std::accumulate(received.begin(), received.end(), int64_t{0}));
  entry.handle->received_splits = received;
  Stopwatch watch(counters_.transfer_ns);
  communicator.alltoall(entry.input, entry.handle->device_result.data,
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

// How much of `bytes` the fusion buffer has for this response, on all ranks.
int64_t DeviceExecutor::grant(const Response& response, int64_t bytes) {
  return buffer_.grant(response.process_set, bytes, params_->fusion_threshold_bytes,
                       set_->communicators.plain.get(), set_->on_wait);
}

// Outside the fusion buffer.
DeviceMemory DeviceExecutor::allocate(int64_t bytes) {
  if (bytes == 0) return {};
  DeviceMemory memory = backend_.memory->allocate(bytes, device_.stream(), set_->on_wait);
  if (memory.data != nullptr) return memory;
  throw EngineError("GPU: no memory for " + std::to_string(bytes) +
                    " bytes, also after the framework gave back what it keeps; the job needs "
                    "smaller batches or results");
}

void DeviceExecutor::make_result(TensorEntry& entry, int64_t rows) {
  Handle& handle = *entry.handle;
  handle.result_bytes = rows * row_bytes_of(entry.request);
  handle.device_result = allocate(handle.result_bytes);
  handle.result_shape = entry.request->shape;
  handle.result_shape[0] = rows;
}

// Until the response has run.
void* DeviceExecutor::zeros(int64_t bytes) {
  scratch_.push_back(allocate(bytes));
  void* const memory = scratch_.back().data;
  device_.clear(memory, bytes);
  return memory;
}

}  // namespace autotune
