#include "comm/nccl/nccl_communicator.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <optional>
#include <thread>
#include <utility>

#include "common/errors.h"

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

// How long aborted communicators may take to end.
constexpr auto abort_patience = std::chrono::seconds(5);

// NCCL waits without end for ranks that have died: it waits in a thread of its own while this one
// looks after the job. The thread is left alone when `on_wait` throws: the process is about to
// end, or the other ranks come after all.
int wait_in_thread(std::function<int()> act, const WaitHook& on_wait) {
  const NcclCall call(std::move(act));
  while (!call.done()) {
    on_wait();
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  return call.result();
}

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

}  // namespace

NcclCall::NcclCall(std::function<int()> act) : state_(std::make_shared<State>()) {
  std::thread([state = state_, act = std::move(act)] {
    state->result = act();
    state->done = true;
  }).detach();
}

std::unique_ptr<DeviceCommunicator> NcclCommunicator::connect(
    std::shared_ptr<const NcclLibrary> nccl, const Device& device, const std::string& host_id,
    Communicator* plain, const WaitHook& on_wait) {
  const int rank = plain == nullptr ? 0 : plain->rank();
  const int size = plain == nullptr ? 1 : plain->size();
  NcclId id{};
  if (plain != nullptr) check_devices(device, host_id, *plain);
  if (rank == 0) nccl->check(nccl->make_id(&id), "starting a communicator");
  if (plain != nullptr) plain->broadcast(&id, sizeof id, 0);
  auto made = std::make_shared<void*>(nullptr);
  // A communicator belongs to the GPU that is current in the thread that makes it.
  const auto make = [nccl, made, size, id, rank, bind = device.binder()] {
    bind();
    return nccl->init(made.get(), size, id, rank);
  };
  nccl->check(wait_in_thread(make, on_wait), "making a communicator");
  return std::unique_ptr<DeviceCommunicator>(
      new NcclCommunicator(std::move(nccl), device.binder(), device.stream(), *made, rank, size));
}

NcclCommunicator::~NcclCommunicator() {
  if (communicator_ != nullptr) nccl_->destroy(communicator_);
  while (abort_ && !abort_->done() && std::chrono::steady_clock::now() < abort_until_) {
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
}

void NcclCommunicator::allreduce(const std::vector<Span>& spans, DataType type, ReduceOp op) {
  const int type_of_all = type_number(type), op_of_all = op_number(op);
  std::optional<DeviceGroup> group;
  if (spans.size() > 1) group.emplace(*this);
  for (const Span& span : spans) {
    if (span.count == 0) continue;
    nccl_->check(nccl_->allreduce(span.input, span.output, static_cast<size_t>(span.count),
                                  type_of_all, op_of_all, communicator_, stream_),
                 "allreduce");
  }
  if (group) group->end();
}

void NcclCommunicator::reduce_scatter(const void* blocks, void* own, int64_t count, DataType type,
                                      ReduceOp op) {
  if (count == 0) return;
  nccl_->check(nccl_->reduce_scatter(blocks, own, static_cast<size_t>(count), type_number(type),
                                     op_number(op), communicator_, stream_),
               "reducescatter");
}

void NcclCommunicator::allgather(void* blocks, const std::vector<int64_t>& bytes_per_rank) {
  auto* block = static_cast<char*>(blocks);
  const auto [least, most] = std::minmax_element(bytes_per_rank.begin(), bytes_per_rank.end());
  if (*least == *most) {
    if (*most == 0) return;
    nccl_->check(nccl_->allgather(block + *most * rank_, block, static_cast<size_t>(*most),
                                  uint8_type, communicator_, stream_),
                 "allgather");
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
  if (bytes == 0) return;
  nccl_->check(nccl_->broadcast(data, data, static_cast<size_t>(bytes), uint8_type, root_rank,
                                communicator_, stream_),
               "broadcast");
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
    if (sent > 0) {
      nccl_->check(
          nccl_->send(next_sent, static_cast<size_t>(sent), uint8_type, to, communicator_, stream_),
          "alltoall");
    }
    if (received > 0) {
      nccl_->check(nccl_->receive(next_received, static_cast<size_t>(received), uint8_type, to,
                                  communicator_, stream_),
                   "alltoall");
    }
    next_sent += sent;
    next_received += received;
  }
  group.end();
}

void NcclCommunicator::begin_group() { nccl_->check(nccl_->group_start(), "a group"); }

void NcclCommunicator::end_group() { nccl_->check(nccl_->group_end(), "a group"); }

std::unique_ptr<DeviceCommunicator> NcclCommunicator::split(int color) {
  void* part = nullptr;
  nccl_->check(nccl_->split(communicator_, color, rank_, &part, nullptr), "splitting");
  if (color < 0 || part == nullptr) return nullptr;
  int rank = 0, size = 0;
  nccl_->check(nccl_->rank_in(part, &rank), "splitting");
  nccl_->check(nccl_->size_of(part, &size), "splitting");
  return std::unique_ptr<DeviceCommunicator>(new NcclCommunicator(
      nccl_, bind_, reinterpret_cast<DeviceStream>(stream_), part, rank, size));
}

std::string NcclCommunicator::failure() {
  if (communicator_ == nullptr) return "";
  int result = NcclLibrary::success;
  nccl_->async_error(communicator_, &result);
  if (result == NcclLibrary::success) return "";
  const char* more = nccl_->last_error(communicator_);
  return std::string("NCCL: ") + nccl_->error_text(result) +
         (more != nullptr && *more != '\0' ? std::string(" (") + more + ")" : "");
}

void NcclCommunicator::abort() {
  if (communicator_ == nullptr) return;
  // NCCL returns when the GPU has left all of this communicator's kernels.
  abort_.emplace([nccl = nccl_, bind = bind_, communicator = communicator_] {
    bind();
    return nccl->abort(communicator);
  });
  abort_until_ = std::chrono::steady_clock::now() + abort_patience;
  communicator_ = nullptr;
}

}  // namespace autotune
