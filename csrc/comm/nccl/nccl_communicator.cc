#include "comm/nccl/nccl_communicator.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "common/errors.h"
#include "common/log.h"

namespace autotune {

namespace {

constexpr int uint8_type = 1;

// NCCL's numbers.
int type_number(DataType type) {
  switch (type) {
    case DataType::uint8:
    case DataType::boolean:
      return uint8_type;
    case DataType::int8:
      return 0;
    case DataType::int32:
      return 2;
    case DataType::int64:
      return 4;
    case DataType::float16:
      return 6;
    case DataType::bfloat16:
      return 9;
    case DataType::float32:
      return 7;
    case DataType::float64:
      return 8;
    case DataType::int16:
      break;
  }
  throw EngineError("NCCL: has no type int16");
}

int op_number(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum:
      return 0;
    case ReduceOp::product:
      return 1;
    case ReduceOp::max:
      return 2;
    case ReduceOp::min:
      return 3;
    case ReduceOp::average:
      return 4;
    case ReduceOp::adasum:
      break;
  }
  throw EngineError("NCCL: has no Adasum");
}

// How long a communicator may take to end.
constexpr auto end_patience = std::chrono::seconds(5);
// How long the end of a communicator waits for a call that is inside it.
constexpr auto call_patience = std::chrono::seconds(3);
// Where lengths change all the time, knowing them does not help.
constexpr size_t most_known = 4096;

struct Place {
  char host[64];
  char gpu[64];
};

// Two ranks on one GPU make NCCL fail with words that nobody understands.
void check_devices(const Device& device, const std::string& host_id, Communicator& plain) {
  std::vector<Place> places(static_cast<size_t>(plain.size()));
  Place& own = places[static_cast<size_t>(plain.rank())];
  std::memset(&own, 0, sizeof own);
  gethostname(own.host, sizeof own.host - 1);
  if (!host_id.empty()) own.host[host_id.copy(own.host, sizeof own.host - 1)] = '\0';
  device.identity().copy(own.gpu, sizeof own.gpu - 1);
  plain.allgather(places.data(), std::vector<int64_t>(places.size(), sizeof(Place)));
  for (size_t a = 0; a < places.size(); ++a) {
    for (size_t b = 0; b < a; ++b) {
      if (std::memcmp(&places[a], &places[b], sizeof(Place)) != 0) continue;
      throw EngineError("expected a GPU for each rank, got GPU " + std::string(places[a].gpu) +
                        " of host " + places[a].host + " for the ranks " + std::to_string(b) +
                        " and " + std::to_string(a) + " (of " + std::to_string(plain.size()) +
                        "); call torch.cuda.set_device(hvd.local_rank()) first");
    }
  }
}

// FNV-1a.
void add_to(uint64_t& hash, uint64_t value) { hash = (hash ^ value) * 0x100000001b3; }

// Ranks of `plain` that say the same color as this one.
std::vector<int> members_of(Communicator& plain, int color) {
  std::vector<int> colors(static_cast<size_t>(plain.size()));
  colors[static_cast<size_t>(plain.rank())] = color;
  plain.allgather(colors.data(), std::vector<int64_t>(colors.size(), sizeof color));
  std::vector<int> members;
  for (int rank = 0; rank < plain.size(); ++rank) {
    if (colors[static_cast<size_t>(rank)] == color) members.push_back(rank);
  }
  return members;
}

// By which the members find each other: the first one's.
NcclId exchange_id(const NcclLibrary& nccl, Communicator& plain, const std::vector<int>& members) {
  std::vector<NcclId> ids(static_cast<size_t>(plain.size()));
  NcclId& own = ids[static_cast<size_t>(plain.rank())];
  std::memset(&own, 0, sizeof own);
  if (plain.rank() == members[0]) nccl.check(nccl.make_id(&own), "starting a communicator");
  plain.allgather(ids.data(), std::vector<int64_t>(ids.size(), sizeof own));
  return ids[static_cast<size_t>(members[0])];
}

// Whether the tuner serves the communicator of the members on all of them. The first one says it
// where only some can.
bool all_are_tuned(Communicator& plain, const std::vector<int>& members, bool own) {
  std::vector<uint8_t> tuned(static_cast<size_t>(plain.size()));
  tuned[static_cast<size_t>(plain.rank())] = own ? 1 : 0;
  plain.allgather(tuned.data(), std::vector<int64_t>(tuned.size(), 1));
  const auto served = std::count_if(members.begin(), members.end(), [&](int rank) {
    return tuned[static_cast<size_t>(rank)] != 0;
  });
  const auto size = static_cast<std::ptrdiff_t>(members.size());
  if (served > 0 && served < size && plain.rank() == members[0]) {
    log(LogLevel::warning, "NCCL has loaded the tuner of this package on " +
                               std::to_string(served) + " of " + std::to_string(size) +
                               " ranks only: its own choices are kept, and the parameters nccl_* "
                               "have no effect; do all ranks have the same environment?");
  }
  return served == size;
}

}  // namespace

std::unique_ptr<DeviceCommunicator> NcclCommunicator::connect(
    std::shared_ptr<const NcclLibrary> nccl, std::shared_ptr<NcclTuner> tuner, const Device& device,
    const std::string& host_id, Communicator* plain, int color, const WaitHook& on_wait) {
  int rank = 0, size = 1;
  NcclId id{};
  std::vector<int> members{0};
  if (plain == nullptr) {
    nccl->check(nccl->make_id(&id), "starting a communicator");
  } else {
    check_devices(device, host_id, *plain);
    members = members_of(*plain, color);
    const auto own = std::find(members.begin(), members.end(), plain->rank());
    rank = static_cast<int>(own - members.begin());
    size = static_cast<int>(members.size());
    id = exchange_id(*nccl, *plain, members);
  }
  struct Made {
    void* communicator = nullptr;
    uint64_t number = 0;
    std::atomic<bool> is_wanted{true};
  };
  const auto made = std::make_shared<Made>();
  // A communicator belongs to the GPU that is current in the thread that makes it.
  const NcclCall making([nccl, tuner, made, size, id, rank, bind = device.binder()] {
    bind();
    const uint64_t begun = tuner->begin();
    const int result = nccl->init(&made->communicator, size, id, rank);
    made->number = tuner->end(begun);
    if (!made->is_wanted && result == NcclLibrary::success) nccl->abort(made->communicator);
    return result;
  });
  try {
    nccl->check(making.finish(on_wait), "making a communicator");
  } catch (...) {
    made->is_wanted = false;  // the process is about to end, or the other ranks come after all
    throw;
  }
  if (plain != nullptr && !all_are_tuned(*plain, members, made->number != 0)) made->number = 0;
  tuner->follow(made->number);
  auto* const stream = reinterpret_cast<void*>(device.stream());
  return std::unique_ptr<DeviceCommunicator>(new NcclCommunicator(
      {std::move(nccl), std::move(tuner), made->number, made->communicator, stream},
      device.binder(), rank, size, on_wait));
}

NcclCommunicator::~NcclCommunicator() {
  if (!ending_) end(&NcclLibrary::destroy);
  const auto left = end_until_ - std::chrono::steady_clock::now();
  ending_->wait(std::chrono::duration_cast<std::chrono::milliseconds>(left));
}

int NcclCommunicator::Caller::call(const Part& p) const {
  switch (p.kind) {
    case Kind::allreduce:
      return nccl->allreduce(p.from, p.to, p.count, p.type, p.other, communicator, stream);
    case Kind::reduce_scatter:
      return nccl->reduce_scatter(p.from, p.to, p.count, p.type, p.other, communicator, stream);
    case Kind::allgather:
      return nccl->allgather(p.from, p.to, p.count, p.type, communicator, stream);
    case Kind::broadcast:
      return nccl->broadcast(p.from, p.to, p.count, p.type, p.other, communicator, stream);
    case Kind::send:
      return nccl->send(p.from, p.count, p.type, p.other, communicator, stream);
    case Kind::receive:
      return nccl->receive(p.to, p.count, p.type, p.other, communicator, stream);
  }
  return NcclLibrary::success;
}

// The first error; a group is ended in any case: it would swallow whatever this thread calls next.
int NcclCommunicator::Caller::call_all(const std::vector<Part>& parts) const {
  tuner->announce(number, static_cast<int>(parts.size()));
  if (parts.size() == 1) return call(parts[0]);
  int result = nccl->group_start();
  if (result != NcclLibrary::success) return result;
  for (const Part& part : parts) {
    if (result == NcclLibrary::success) result = call(part);
  }
  const int ended = nccl->group_end();
  return result == NcclLibrary::success ? ended : result;
}

void NcclCommunicator::add(const Part& part) {
  if (part.count > 0) parts_.push_back(part);
  if (depth_ == 0) launch();
}

void NcclCommunicator::end_group() {
  if (--depth_ == 0) launch();
}

void NcclCommunicator::launch() {
  if (parts_.empty()) return;
  const std::vector<Part> parts = std::exchange(parts_, {});
  uint64_t like = 0xcbf29ce484222325;
  add_to(like, caller_.tuner->current(caller_.number));
  for (const Part& part : parts) {
    add_to(like, static_cast<uint64_t>(part.kind));
    add_to(like, part.count);
    add_to(like, static_cast<uint64_t>(part.type));
    add_to(like, static_cast<uint64_t>(part.other));
  }
  if (known_.count(like) > 0) {
    caller_.nccl->check(caller_.call_all(parts), "a collective");
    return;
  }
  running_.emplace([caller = caller_, parts, bind = bind_] {
    bind();
    return caller.call_all(parts);
  });
  caller_.nccl->check(running_->finish(on_wait_), "a collective");
  if (known_.size() >= most_known) known_.clear();
  known_.insert(like);
}

void NcclCommunicator::allreduce(const std::vector<Span>& spans, DataType type, ReduceOp op) {
  DeviceGroup group(*this);
  for (const Span& span : spans) {
    add({Kind::allreduce, span.input, span.output, static_cast<size_t>(span.count),
         type_number(type), op_number(op)});
  }
  group.end();
}

void NcclCommunicator::reduce_scatter(const void* blocks, void* own, int64_t count, DataType type,
                                      ReduceOp op) {
  add({Kind::reduce_scatter, blocks, own, static_cast<size_t>(count), type_number(type),
       op_number(op)});
}

void NcclCommunicator::allgather(void* blocks, const std::vector<int64_t>& bytes_per_rank) {
  auto* block = static_cast<char*>(blocks);
  const auto [least, most] = std::minmax_element(bytes_per_rank.begin(), bytes_per_rank.end());
  if (*least == *most) {
    add({Kind::allgather, block + *most * rank_, block, static_cast<size_t>(*most), uint8_type, 0});
    return;
  }
  DeviceGroup group(*this);
  for (int root = 0; root < size_; ++root) {
    const int64_t bytes = bytes_per_rank[static_cast<size_t>(root)];
    broadcast(block, bytes, root);
    block += bytes;
  }
  group.end();
}

void NcclCommunicator::broadcast(void* data, int64_t bytes, int root_rank) {
  add({Kind::broadcast, data, data, static_cast<size_t>(bytes), uint8_type, root_rank});
}

void NcclCommunicator::alltoall(const void* send, void* receive,
                                const std::vector<int64_t>& bytes) {
  const auto n = static_cast<size_t>(size_), own = static_cast<size_t>(rank_);
  const auto* next_sent = static_cast<const char*>(send);
  auto* next_received = static_cast<char*>(receive);
  DeviceGroup group(*this);
  for (size_t peer = 0; peer < n; ++peer) {
    const int64_t sent = bytes[own * n + peer], received = bytes[peer * n + own];
    const int to = static_cast<int>(peer);
    add({Kind::send, next_sent, nullptr, static_cast<size_t>(sent), uint8_type, to});
    add({Kind::receive, nullptr, next_received, static_cast<size_t>(received), uint8_type, to});
    next_sent += sent;
    next_received += received;
  }
  group.end();
}

std::string NcclCommunicator::failure() {
  if (ending_) return "";
  if (running_ && !running_->wait(std::chrono::milliseconds(0))) return "";
  const NcclLibrary& nccl = *caller_.nccl;
  int result = NcclLibrary::success;
  nccl.async_error(caller_.communicator, &result);
  if (result == NcclLibrary::success) return "";
  const char* more = nccl.last_error(caller_.communicator);
  return std::string("NCCL: ") + nccl.error_text(result) +
         (more != nullptr && *more != '\0' ? std::string(" (") + more + ")" : "");
}

void NcclCommunicator::abort() {
  if (!ending_) end(&NcclLibrary::abort);
}

// NCCL returns when the GPU has left all of this communicator's kernels. A call that is still
// inside it is told to leave at once, but what it uses is freed only at the end of the group.
void NcclCommunicator::end(int (*NcclLibrary::*how)(void*)) {
  ending_.emplace([caller = caller_, how, bind = bind_, running = running_] {
    bind();
    const NcclLibrary& nccl = *caller.nccl;
    nccl.group_start();
    const int result = (nccl.*how)(caller.communicator);
    if (running) running->wait(call_patience);
    const int ended = nccl.group_end();
    return result == NcclLibrary::success ? ended : result;
  });
  end_until_ = std::chrono::steady_clock::now() + end_patience;
}

}  // namespace autotune
