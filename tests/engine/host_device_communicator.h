// Collectives between HostDevices of one process, by the real algorithms over in-process messages.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "comm/p2p/p2p_communicator.h"
#include "comm/self/self_communicator.h"
#include "common/errors.h"
#include "common/reduce.h"
#include "host_device.h"
#include "thread_ranks.h"

namespace autotune {

// What connects the devices of a job, and what happened on it.
class HostNetwork {
 public:
  struct Group {
    explicit Group(int size) : mail(std::make_shared<Mail>(size)) {}
    std::shared_ptr<Mail> mail;
  };

  // The same for all that ask for one name.
  std::shared_ptr<Group> group(const std::string& name, int size) {
    std::lock_guard lock(mutex_);
    std::shared_ptr<Group>& known = groups_[name];
    if (!known) known = std::make_shared<Group>(size);
    return known;
  }
  int64_t new_number() { return ++numbers_; }

  // Every communicator says from now on that this went wrong.
  void fail(const std::string& text) {
    std::lock_guard lock(mutex_);
    failure_ = text;
  }
  std::string failure() {
    std::lock_guard lock(mutex_);
    return failure_;
  }

  std::atomic<bool> fails_next_call{false};   // the rank that makes the next collective call fails
  std::atomic<bool> spoils_scattered{false};  // reduce_scatter spoils the first element
  std::atomic<int> open_groups{0};            // those of all ranks count
  std::atomic<int> connected{0}, aborts{0};
  // Those of all ranks count.
  std::atomic<int> allreduces{0}, spans{0}, reduce_scatters{0}, allgathers{0};

 private:
  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<Group>> groups_;
  std::string failure_;
  std::atomic<int64_t> numbers_{0};
};

class HostDeviceCommunicator final : public DeviceCommunicator {
 public:
  HostDeviceCommunicator(HostNetwork& network, HostDevice& device, std::string name, int rank,
                         int size)
      : network_(network),
        device_(device),
        name_(std::move(name)),
        rank_(rank),
        size_(size),
        group_(network.group(name_, size)),
        state_(std::make_shared<State>()) {
    if (size == 1) {
      state_->plain = std::make_unique<SelfCommunicator>();
      return;
    }
    const auto on_wait = [state = state_.get()] {
      if (state->aborted) throw EngineError("aborted");
      std::this_thread::yield();
    };
    auto transport = std::make_shared<ThreadPointToPoint>(group_->mail, rank);
    state_->plain = std::make_unique<P2pCommunicator>(std::move(transport), on_wait);
  }
  // As NCCL: when the stream has come past all that was put there.
  ~HostDeviceCommunicator() override {
    if (!state_->aborted || !last_) return;
    const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(500);
    while (!last_->has_happened() && std::chrono::steady_clock::now() < until) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    if (!last_->has_happened()) ++device_.stuck;
  }

  // See DeviceConnector.
  static std::unique_ptr<DeviceCommunicator> connect(HostNetwork& network, HostDevice& device,
                                                     Communicator* plain, int color) {
    ++network.connected;
    if (device.collectives > 0) throw std::logic_error("a communicator is made amid collectives");
    int64_t number = network.new_number();
    if (plain == nullptr) {
      return std::make_unique<HostDeviceCommunicator>(network, device, std::to_string(number), 0,
                                                      1);
    }
    plain->broadcast(&number, sizeof number, 0);
    std::vector<int> colors(static_cast<size_t>(plain->size()));
    colors[static_cast<size_t>(plain->rank())] = color;
    plain->allgather(colors.data(), std::vector<int64_t>(colors.size(), sizeof color));
    const auto own = colors.begin() + plain->rank();
    return std::make_unique<HostDeviceCommunicator>(
        network, device, std::to_string(number) + "/" + std::to_string(color),
        static_cast<int>(std::count(colors.begin(), own, color)),
        static_cast<int>(std::count(colors.begin(), colors.end(), color)));
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  void allreduce(const std::vector<Span>& spans, DataType type, ReduceOp op) override {
    check(type, op);
    ++network_.allreduces;
    network_.spans += static_cast<int>(spans.size());
    put([=](Communicator& plain) { reduce(plain, spans, type, op); });
  }
  void reduce_scatter(const void* blocks, void* own, int64_t count, DataType type,
                      ReduceOp op) override {
    check(type, op);
    ++network_.reduce_scatters;
    const auto bytes = static_cast<size_t>(count) * size_of(type);
    put([=, network = &network_, size = size_, rank = rank_](Communicator& plain) {
      if (bytes == 0) return;
      const auto all = static_cast<size_t>(size);
      std::vector<char> reduced(bytes * all);  // the other blocks stay as they are
      std::memcpy(reduced.data(), blocks, reduced.size());
      reduce(plain, {{reduced.data(), reduced.data(), count * size}}, type, op);
      std::memcpy(own, reduced.data() + bytes * static_cast<size_t>(rank), bytes);
      if (network->spoils_scattered) combine(own, own, own, 1, type, ReduceOp::sum);
    });
  }
  void allgather(void* blocks, const std::vector<int64_t>& bytes_per_rank) override {
    ++network_.allgathers;
    put([=](Communicator& plain) { plain.allgather(blocks, bytes_per_rank); });
  }
  void broadcast(void* data, int64_t bytes, int root_rank) override {
    put([=](Communicator& plain) { plain.broadcast(data, bytes, root_rank); });
  }
  void alltoall(const void* send, void* receive, const std::vector<int64_t>& bytes) override {
    put([=](Communicator& plain) { plain.alltoall(send, receive, bytes); });
  }

  void begin_group() override {
    check_use();
    if (std::exchange(grouping_, true)) throw std::logic_error("a group within a group");
    ++network_.open_groups;
  }
  void end_group() override {
    if (!std::exchange(grouping_, false)) throw std::logic_error("end of a group without begin");
    --network_.open_groups;
    launch(std::exchange(works_, {}));
  }

  std::string failure() override { return network_.failure(); }
  void abort() override {
    ++network_.aborts;
    state_->aborted = true;
  }

 private:
  using Work = std::function<void(Communicator& plain)>;

  // Work that is under way outlives the communicator.
  struct State {
    std::unique_ptr<Communicator> plain;
    std::atomic<bool> aborted{false};
  };

  // A library would take the GPU that happens to be the thread's.
  void check_use() const {
    if (!device_.is_used_by_this_thread()) throw std::logic_error("the GPU is not in use");
  }

  // Halves as NCCL does it: an average multiplies by a factor of their type, and what goes from
  // rank to rank is rounded to it.
  static void reduce(Communicator& plain, const std::vector<Span>& spans, DataType type,
                     ReduceOp op) {
    if (!is_half(type)) return plain.allreduce(spans, type, op, 1.0, 1.0);
    const auto size = static_cast<size_t>(plain.size());
    float factor = 1.0f / static_cast<float>(size);
    uint16_t short_factor = 0;
    convert(&short_factor, type, &factor, DataType::float32, 1);
    convert(&factor, DataType::float32, &short_factor, type, 1);
    for (const Span& span : spans) {
      const auto count = static_cast<size_t>(span.count);
      if (count == 0) continue;
      std::vector<uint16_t> all(count * size);
      uint16_t* const own = all.data() + count * static_cast<size_t>(plain.rank());
      std::memcpy(own, span.input, 2 * count);
      plain.allgather(all.data(), std::vector<int64_t>(size, 2 * span.count));
      if (op == ReduceOp::average) {
        scale(all.data(), span.count * plain.size(), type, static_cast<double>(factor));
      }
      for (size_t rank = 1; rank < size; ++rank) {
        combine(all.data(), all.data(), all.data() + rank * count, span.count, type, op);
      }
      std::memcpy(span.output, all.data(), 2 * count);
    }
  }

  void check(DataType type, ReduceOp op) const {
    const bool integer = type < DataType::float16 || type == DataType::boolean;
    const bool sums_bools = type == DataType::boolean && op != ReduceOp::min && op != ReduceOp::max;
    if (type == DataType::int16 || op == ReduceOp::adasum || sums_bools ||
        (integer && op == ReduceOp::average)) {
      throw std::logic_error(std::string("device.h: not for a device: ") + name_of(op) + " of " +
                             name_of(type));
    }
  }

  void put(Work work) {
    check_use();
    if (network_.fails_next_call.exchange(false)) throw EngineError("NCCL: remote error");
    works_.push_back(std::move(work));
    if (!grouping_) launch(std::exchange(works_, {}));
  }

  // From the last to the first, on all ranks: nothing may depend on the order in a group.
  void launch(std::vector<Work> works) {
    HostStream& stream = device_.engine_stream();
    const int under_way = ++device_.collectives;
    if (under_way > device_.most_collectives) device_.most_collectives = under_way;
    stream.put([state = state_, works = std::move(works), device = &device_] {
      try {
        for (auto work = works.rbegin(); work != works.rend() && !state->aborted; ++work) {
          (*work)(*state->plain);
        }
      } catch (const EngineError&) {  // aborted while it was waiting
      }
      --device->collectives;
    });
    last_ = std::make_shared<HostEvent>();
    stream.put([last = last_] { last->happen(); });
  }

  HostNetwork& network_;
  HostDevice& device_;
  const std::string name_;
  const int rank_;
  const int size_;
  std::shared_ptr<HostNetwork::Group> group_;
  std::shared_ptr<State> state_;
  std::shared_ptr<HostEvent> last_;  // all that was put into the stream is done
  bool grouping_ = false;
  std::vector<Work> works_;
};

}  // namespace autotune
