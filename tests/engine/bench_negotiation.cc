// negotiation_bench [pieces]: what the coordinator pays per training step of 161 cached tensors, by
// number of ranks. All ranks are in this thread, with real connections: it shows the cost of the
// work, not of waiting, of wake-ups or of other cores' caches (experiments/negotiation does).
//
// `pieces`: request lists in which every rank announces its tensors; default 1.
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "comm/control/control.h"
#include "engine/coordinator.h"

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
  int64_t ns = 0;
  int64_t allocated = 0;

  template <typename Body>
  void measure(Body&& body) {
    const int64_t before = allocations;
    const auto start = Clock::now();
    body();
    ns += (Clock::now() - start).count();
    allocated += allocations - before;
  }
};

// The two ends of a connection between ranks of one host.
std::pair<std::unique_ptr<Connection>, std::unique_ptr<Connection>> connect() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) std::abort();
  auto first = std::make_unique<Connection>(ends[0]);
  auto second = std::make_unique<Connection>(ends[1]);
  const int memory = RingPair::create();
  first->use(RingPair::map(memory, true));
  second->use(RingPair::map(memory, false));
  ::close(memory);
  return {std::move(first), std::move(second)};
}

class Bench {
 public:
  Bench(int size, int pieces) : size_(size), pieces_(pieces), coordinator_(size, {}) {
    std::vector<std::unique_ptr<Connection>> connections;
    for (int rank = 1; rank < size; ++rank) {
      auto [here, there] = connect();
      connections.push_back(std::move(here));
      workers_.push_back(std::move(there));
    }
    control_ = std::make_unique<ControlPlane>(0, size, std::move(connections));
    fill_cache();
  }

  void run() {
    for (int i = 0; i < warm_up; ++i) step();
    for (Part* part : parts()) part->ns = part->allocated = 0;
    for (int i = 0; i < steps; ++i) step();
    std::printf("%5d", size_);
    double ns = 0, allocated = 0;
    for (const Part* part : parts()) {
      std::printf("  %8.2f %6.1f", 1e-3 * part->ns / steps, double(part->allocated) / steps);
      ns += double(part->ns) / steps;
      allocated += double(part->allocated) / steps;
    }
    std::printf("  %8.2f %6.1f\n", 1e-3 * ns, allocated);
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
    for (const ResponseList& list : coordinator_.take()) {
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
    for (int number = 0; number < pieces_; ++number) {
      const RequestList list = piece(number);
      say_.measure([&] {
        for (auto& worker : workers_) worker->send(FrameType::requests, encode(list));
      });
      read_.measure([&] { control_->pump(frames_); });
      add_.measure([&] {
        coordinator_.add(0, list, Clock::now());
        for (; !frames_.empty(); frames_.pop_front()) {
          const Frame& frame = frames_.front();
          coordinator_.add(frame.rank, decode_request_list(frame.payload), Clock::now());
        }
      });
    }
    std::vector<ResponseList> lists;
    take_.measure([&] { lists = coordinator_.take(); });
    if (lists.size() != 1 || lists[0].responses.size() != 1) std::abort();
    std::string bytes;
    encode_.measure([&] { bytes = encode(lists[0]); });
    send_.measure([&] { control_->send_all(FrameType::responses, bytes); });
    hear_.measure([&] {
      for (auto& worker : workers_) {
        worker->receive(0, frames_);
        if (decode_response_list(frames_.front().payload).responses.size() != 1) std::abort();
        frames_.pop_front();
      }
    });
    processed_ += lists.size();
  }

  const int size_;
  const int pieces_;
  Coordinator coordinator_;
  std::unique_ptr<ControlPlane> control_;
  std::vector<std::unique_ptr<Connection>> workers_;
  std::deque<Frame> frames_;
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
  bool first = true;
  for (int size : {2, 4, 8, 16, 32, 64, 256}) {
    autotune::Bench bench(size, pieces);
    if (std::exchange(first, false)) {
      std::printf("ranks");
      for (const auto* part : bench.parts()) std::printf("  %8s      #", part->name);
      std::printf("  %8s      #   (us and allocations a step)\n", "all");
    }
    bench.run();
  }
}
