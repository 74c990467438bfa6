// negotiation_bench [pieces [asleep [elsewhere]]]: what the coordinator pays per training step of
// 161 cached tensors, by number of ranks. All ranks are in this thread, with real connections: it
// shows the cost of the work, not of waiting, of wake-ups or of other cores' caches
// (experiments/negotiation does).
//
// `pieces`: request lists in which every rank announces its tensors; default 1. `asleep`: not 0:
// the other ranks seem to sleep when the answer comes (but nobody is woken here). `elsewhere`: not
// 0: they are connected by TCP, as ranks of other hosts are; the cable is this machine's loopback.
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "control/control.h"
#include "engine/negotiation/coordinator.h"
#include "returning.h"

namespace {

int64_t allocations = 0;

}  // namespace

void* operator new(size_t bytes) {
  ++allocations;
  if (void* memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace autotune {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int tensors = 161;
constexpr int warm_up = 200;
constexpr int steps = 2000;

// Time and allocations of one part of a step.
struct Part {
  const char* name;
  std::vector<int64_t> ns{};  // each step has one
  int64_t allocated = 0;

  void begin_step() { ns.push_back(0); }
  double median_us() {
    const auto middle = ns.begin() + static_cast<std::ptrdiff_t>(ns.size() / 2);
    std::nth_element(ns.begin(), middle, ns.end());
    return 1e-3 * static_cast<double>(*middle);
  }

  template <typename Body>
  void measure(Body&& body) {
    const int64_t before = allocations;
    const auto start = Clock::now();
    body();
    ns.back() += (Clock::now() - start).count();
    allocated += allocations - before;
  }
};

// The two ends of a connection between ranks of one host.
std::pair<std::unique_ptr<Connection>, std::unique_ptr<Connection>> connect(
    const std::shared_ptr<Bell>& bell) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) std::abort();
  auto first = std::make_unique<Connection>(ends[0]);
  auto second = std::make_unique<Connection>(ends[1]);
  const int memory = RingPair::create();
  first->use(RingPair::map(memory, true), bell);
  second->use(RingPair::map(memory, false), std::make_unique<BellListener>(bell->fd()));
  ::close(memory);
  return {std::move(first), std::move(second)};
}

// The same between hosts: without shared memory.
std::pair<std::unique_ptr<Connection>, std::unique_ptr<Connection>> connect_by_tcp() {
  const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
  const int first = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  auto* const name = reinterpret_cast<sockaddr*>(&address);
  socklen_t length = sizeof address;
  if (::bind(listener, name, length) != 0 || ::listen(listener, 1) != 0 ||
      ::getsockname(listener, name, &length) != 0 || ::connect(first, name, length) != 0) {
    std::abort();
  }
  const int second = ::accept(listener, nullptr, nullptr);
  if (second < 0) std::abort();
  ::close(listener);
  for (const int fd : {first, second}) {
    const int yes = 1;
    ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
  }
  return {std::make_unique<Connection>(first), std::make_unique<Connection>(second)};
}

class Bench {
 public:
  Bench(int size, int pieces, bool asleep, bool elsewhere)
      : size_(size), pieces_(pieces), asleep_(asleep), coordinator_(size, {}) {
    std::vector<std::unique_ptr<Connection>> connections;
    const auto bell = std::make_shared<Bell>();
    for (int rank = 1; rank < size; ++rank) {
      auto [here, there] = elsewhere ? connect_by_tcp() : connect(bell);
      connections.push_back(std::move(here));
      workers_.push_back(std::move(there));
    }
    control_ = std::make_unique<ControlPlane>(0, size, std::move(connections));
    fill_cache();
  }

  void run() {
    for (Part* part : parts()) part->ns.reserve(warm_up + steps);
    for (int i = 0; i < warm_up; ++i) step();
    for (Part* part : parts()) {
      part->ns.clear();
      part->allocated = 0;
    }
    for (int i = 0; i < steps; ++i) step();
    std::printf("%5d", size_);
    double own_us = 0, own_allocated = 0;
    for (Part* part : parts()) {
      const double us = part->median_us(), allocated = double(part->allocated) / steps;
      std::printf("  %8.2f %6.1f", us, allocated);
      if (part->name[0] == '(') continue;  // of other ranks
      own_us += us;
      own_allocated += allocated;
    }
    std::printf("  %11.2f %6.1f\n", own_us, own_allocated);
  }

  std::vector<Part*> parts() { return {&say_, &read_, &add_, &take_, &encode_, &send_, &hear_}; }

 private:
  void fill_cache() {
    for (int rank = 0; rank < size_; ++rank) {
      RequestList list;
      for (int i = 0; i < tensors; ++i) {
        Request request;
        request.name = "a.layer.of.the.network." + std::to_string(i) + ".weight";
        request.shape = {64, 64};
        list.requests.push_back(request);
      }
      coordinator_.add(rank, list, Clock::now());
    }
    for (const ResponseList& list : take(coordinator_)) {
      for (const Response& response : list.responses) {
        for (const ResponseItem& item : response.items) slots_.push_back(item.cache_slot);
      }
      ++processed_;
    }
    if (slots_.size() != tensors) std::abort();
  }

  RequestList piece(int number) const {
    RequestList list;
    list.step = step_;
    list.processed = processed_;
    for (int i = tensors * number / pieces_; i < tensors * (number + 1) / pieces_; ++i) {
      list.set_hit(slots_[size_t(i)]);
    }
    return list;
  }

  void step() {
    ++step_;
    for (Part* part : parts()) part->begin_step();
    for (int number = 0; number < pieces_; ++number) {
      const RequestList list = piece(number);
      say_.measure([&] {
        for (auto& worker : workers_) {
          encode(list, bytes_);
          worker->send(FrameType::requests, bytes_);
        }
      });
      read_.measure([&] {
        // By TCP not all of it may have come.
        while (frames_.size() < workers_.size()) control_->pump(frames_);
      });
      add_.measure([&] {
        coordinator_.add(0, list, Clock::now());
        for (; !frames_.empty(); frames_.pop_front()) {
          const Frame& frame = frames_.front();
          decode(frame.payload, frame.rank, heard_);
          coordinator_.add(frame.rank, heard_, Clock::now());
        }
      });
    }
    lists_.clear();
    take_.measure([&] { coordinator_.take(lists_); });
    if (lists_.size() != 1 || lists_[0].responses.size() != 1) std::abort();
    encode_.measure([&] { encode(lists_[0], bytes_); });
    for (auto& worker : workers_) {
      if (asleep_) worker->begin_sleep();
    }
    send_.measure([&] { control_->send_all(FrameType::responses, bytes_); });
    hear_.measure([&] {
      for (auto& worker : workers_) {
        while (frames_.empty()) worker->receive(0, frames_);
        ResponseList list = decode(frames_.front().payload, 0, pool_);
        if (list.responses.size() != 1) std::abort();
        pool_.give(std::move(list));
        frames_.pop_front();
      }
    });
    for (auto& worker : workers_) {
      if (asleep_) worker->end_sleep();
    }
    ++processed_;
    take_.measure([&] { coordinator_.give_back(std::move(lists_[0])); });
  }

  const int size_;
  const int pieces_;
  const bool asleep_;
  Coordinator coordinator_;
  std::unique_ptr<ControlPlane> control_;
  std::vector<std::unique_ptr<Connection>> workers_;
  FrameQueue frames_;
  std::vector<ResponseList> lists_;
  ResponsePool pool_;
  std::string bytes_;
  RequestList heard_;
  std::vector<int64_t> slots_;
  int64_t step_ = 0;
  uint64_t processed_ = 0;
  Part say_{"(say)"}, read_{"read"}, add_{"add"}, take_{"take"}, encode_{"encode"}, send_{"send"},
      hear_{"(hear)"};
};

}  // namespace
}  // namespace autotune

int main(int argc, char** argv) {
  const int pieces = argc > 1 ? std::atoi(argv[1]) : 1;
  const bool asleep = argc > 2 && std::atoi(argv[2]) != 0;
  const bool elsewhere = argc > 3 && std::atoi(argv[3]) != 0;
  bool first = true;
  for (int size : {2, 4, 8, 16, 32, 64, 256}) {
    autotune::Bench bench(size, pieces, asleep, elsewhere);
    if (std::exchange(first, false)) {
      std::printf("ranks");
      for (const auto* part : bench.parts()) std::printf("  %8s      #", part->name);
      std::printf("  %11s      #   (us, medians; allocations)\n", "coordinator");
    }
    bench.run();
  }
}
