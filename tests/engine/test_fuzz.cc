// Random and damaged messages: what a rank hears is understood, or refused with an error that names
// its sender; see fuzz.h for how many.
#include <sys/socket.h>

#include <atomic>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "common/errors.h"
#include "control/control.h"
#include "engine/negotiation/check_response.h"
#include "engine/negotiation/coordinator.h"
#include "engine/negotiation/stall.h"
#include "engine_fixture.h"
#include "fuzz.h"
#include "random_messages.h"
#include "returning.h"

using namespace autotune;
using namespace std::chrono_literals;

namespace {

// Whether `text` is what the engine says of a message that it refuses.
bool names_sender(const std::string& text, int sender) {
  return text.find("rank " + std::to_string(sender)) != std::string::npos &&
         (text.find("control plane: ") == 0 || text.find("negotiation: ") == 0);
}

// Reads the bytes; what is accepted is encoded to the same bytes.
template <typename Decode>
void read_or_refuse(const std::string& bytes, int sender, Decode&& decode) {
  try {
    CHECK(encode(decode(bytes, sender)) == bytes);
  } catch (const EngineError& error) {
    if (!names_sender(error.what(), sender)) throw;
  }
}

// A damaged message as often as a message of random bytes is worth it.
template <typename List>
std::string damaged(Random& random, List&& list) {
  if (random.one_in(16)) return random.bytes(100);
  const std::string bytes = encode(list(random));
  return damage(random, bytes, random.one_in(8) ? encode(list(random)) : bytes);
}

// Ranks that announce tensors of every kind, and a coordinator; some of what is said is damaged on
// its way. A rank does with a response what the engine's cycle does, without the data.
class DamagedJob {
 public:
  explicit DamagedJob(Random& random)
      : random_(random),
        size_(static_cast<int>(random.pick(1, 4))),
        coordinator_(size_, params()),
        sets_(size_),
        ranks_(static_cast<size_t>(size_)) {}

  // Returns after an error that names the rank whose message was damaged, or without one.
  void run() {
    for (int turn = 0; turn < 40; ++turn) {
      const auto rank = static_cast<int>(random_.pick(0, size_ - 1));
      if (!hear(rank) || !answer()) return;
    }
  }

 private:
  struct Rank {
    ResponseCache cache;
    uint64_t processed = 0;
    int64_t step = 0;
    bool has_joined = false;
    std::map<std::string, Request> in_flight;
  };

  Params params() {
    Params params;
    params.cache_capacity = random_.of(std::vector<int64_t>{0, 1, 4, 70, 1024});
    params.fusion_threshold_bytes = random_.of(std::vector<int64_t>{0, 100, 1 << 20});
    return params;
  }

  Request request(int rank, const ProcessSet& set, int32_t id) {
    const int64_t number = random_.pick(0, 11);
    Request made;
    made.operation = static_cast<Operation>(number % 6);
    made.name = "t" + std::to_string(number);
    made.process_set = id;
    made.dtype = static_cast<DataType>(5 + number % 4);
    made.root_rank = set.ranks[0];
    made.shape = {4, number % 3};
    if (made.operation == Operation::allgather) made.shape[0] = rank + number;
    if (made.operation == Operation::alltoall) {
      made.splits.assign(set.ranks.size(), 1 + rank);
      made.shape[0] = static_cast<int64_t>(set.ranks.size()) * (1 + rank);
    }
    if (made.operation == Operation::reducescatter) made.reduce_op = ReduceOp::sum;
    complete_name(made.name, id);
    return made;
  }

  Request of_sets(int rank) {
    Request made;
    made.operation = Operation::join;
    made.name = "join";
    if (random_.one_in(3)) return made;
    made.operation = Operation::add_process_set;
    made.name = "add";
    for (int each = 0; each < size_; ++each) {
      if (each == 0 || (each + static_cast<int>(sets_.all().size())) % 2 == 0) {
        made.shape.push_back(each);
      }
    }
    if (sets_.all().size() < 2 || random_.one_in(2)) return made;
    made.operation = Operation::remove_process_set;
    made.name = "remove";
    made.root_rank = sets_.all().rbegin()->first;
    made.shape = {made.root_rank};
    static_cast<void>(rank);
    return made;
  }

  RequestList announced(int rank) {
    Rank& own = ranks_[static_cast<size_t>(rank)];
    RequestList list;
    list.step = own.step += random_.one_in(3);
    list.processed = own.processed;
    if (own.has_joined) return list;
    for (int64_t count = random_.pick(1, 8); count > 0 && !own.has_joined; --count) {
      const auto set = random_.of(std::vector(sets_.all().begin(), sets_.all().end()));
      if (!set.second.contains(rank)) continue;
      const Request made =
          random_.one_in(20) ? of_sets(rank) : request(rank, set.second, set.first);
      if (!own.in_flight.emplace(made.name, made).second) continue;
      own.has_joined = made.operation == Operation::join;
      const int64_t slot = own.cache.find(made);
      if (slot < 0) {
        list.requests.push_back(made);
      } else {
        list.set_hit(slot);
      }
    }
    return list;
  }

  // A message on its way.
  std::string travelled(const std::string& bytes) {
    if (!random_.one_in(8)) return bytes;
    const std::string arrived = damage(random_, bytes, last_);
    is_damaged_ = is_damaged_ || arrived != bytes;
    return arrived;
  }

  // False: the job has ended, as it should.
  bool hear(int rank) {
    const std::string bytes = travelled(encode(announced(rank)));
    try {
      coordinator_.add(rank, decode_request_list(bytes, rank), TimePoint(1s));
    } catch (const EngineError& error) {
      if (!is_damaged_ || !names_sender(error.what(), rank)) throw;
      return false;
    }
    if (random_.one_in(20)) coordinator_.propose(++epoch_, params());
    last_ = bytes;
    return true;
  }

  bool answer() {
    for (const ResponseList& list : take(coordinator_)) {
      if (list.shutdown) return false;
      const std::string bytes = encode(list);
      CHECK(same(decode_response_list(bytes), list));
      const bool was_damaged = is_damaged_;
      for (int rank = 0; rank < size_; ++rank) {
        is_damaged_ = was_damaged;
        try {
          process(rank, decode_response_list(travelled(bytes)));
        } catch (const EngineError&) {
          if (!is_damaged_) throw;
          return false;
        }
        if (is_damaged_ && !was_damaged) return false;  // its state is not that of the others
      }
      for (const Response& response : list.responses) change_sets(response);
    }
    return true;
  }

  void process(int rank, const ResponseList& list) {
    Rank& own = ranks_[static_cast<size_t>(rank)];
    ++own.processed;
    for (const int64_t slot : list.evicted_slots) own.cache.erase(slot);
    for (const Response& response : list.responses) {
      const ProcessSet& set = check_response(response, sets_);
      const int position = set.position(rank);
      for (ResponseItem item : response.items) {
        if (item.cache_slot >= 1024) throw EngineError("a slot that no capacity allows");
        if (position < 0) {
          if (!item.from_cache && item.cache_slot >= 0) own.cache.erase(item.cache_slot);
          continue;
        }
        if (item.from_cache) {
          const CacheEntry* const known = own.cache.at(item.cache_slot);
          if (known == nullptr) throw EngineError("an empty slot");
          item.name = known->request->name;
          item.rows = known->rows;
        }
        const auto found = own.in_flight.find(item.name);
        if (found == own.in_flight.end()) {
          if (own.has_joined || !response.error.empty() ||
              response.operation == Operation::barrier) {
            continue;
          }
          throw EngineError("not announced");
        }
        const Request request = found->second;
        own.in_flight.erase(found);
        check_item(response, item, request, set, position);
        if (!item.from_cache && item.cache_slot >= 0) {
          own.cache.put(item.cache_slot, {SharedRequest(request), item.rows});
        }
        if (response.operation == Operation::join) own.has_joined = false;
      }
    }
  }

  void change_sets(const Response& response) {
    if (!response.error.empty()) return;
    const std::vector<int64_t>& rows = response.items[0].rows;
    if (response.operation == Operation::add_process_set) {
      sets_.add(response.root_rank, std::vector<int>(rows.begin(), rows.end()));
    } else if (response.operation == Operation::remove_process_set) {
      sets_.remove(response.root_rank);
    }
  }

  Random& random_;
  const int size_;
  Coordinator coordinator_;
  ProcessSetTable sets_;  // all ranks have them
  std::vector<Rank> ranks_;
  uint64_t epoch_ = 0;
  std::string last_;
  bool is_damaged_ = false;
};

// Between the engines of two ranks: passes frames on and damages one of them.
class DamagingProxy {
 public:
  DamagingProxy(Random& random, int64_t victim) : random_(random), victim_(victim) {
    for (int side = 0; side < 2; ++side) {
      int ends[2];
      CHECK(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
      inside_.push_back(std::make_unique<Connection>(ends[0]));
      outside_.push_back(std::make_unique<Connection>(ends[1]));
    }
  }

  std::unique_ptr<Connection> take(int rank) {
    return std::move(outside_[static_cast<size_t>(rank)]);
  }
  // Until `is_over`, or until it has taken too long after the damage: then both lose each other.
  void run(const std::atomic<bool>& is_over) {
    auto end = std::chrono::steady_clock::now() + 60s;
    while (!is_over && std::chrono::steady_clock::now() < end) {
      for (size_t side = 0; side < 2; ++side) {
        FrameQueue frames;
        inside_[side]->receive(0, frames);
        for (const Frame& frame : frames) {
          if (pass_on(frame, *inside_[1 - side])) end = std::chrono::steady_clock::now() + 300ms;
        }
        inside_[side]->flush();
        if (inside_[side]->closed()) inside_[1 - side]->finish_sending();
      }
      std::this_thread::sleep_for(50us);
    }
    inside_.clear();
  }

 private:
  // True where it did damage: to a frame of any type, or by one that nobody has sent.
  bool pass_on(const Frame& frame, Connection& to) {
    if (seen_++ != victim_) {
      to.send(frame.type, frame.payload);
      return false;
    }
    if (random_.one_in(3)) {
      to.send(random_.of(made_up_), random_.one_in(2) ? random_.bytes(20) : std::string("1 5 "));
      to.send(frame.type, frame.payload);
    } else {
      to.send(frame.type, damage(random_, frame.payload, frame.payload));
    }
    return true;
  }

  // A goodbye that nobody has said is none of them: the end of a connection is no error then.
  const std::vector<FrameType> made_up_{FrameType::hello, FrameType::requests, FrameType::responses,
                                        FrameType::abort, FrameType::ping,     FrameType::pong};

  Random& random_;
  const int64_t victim_;
  int64_t seen_ = 0;
  std::vector<std::unique_ptr<Connection>> inside_, outside_;
};

// Some steps of several kinds of operations: all right, or ended by an error. `memory` outlives the
// engine, which may use it after an error.
void train(Engine& engine, std::deque<std::vector<int32_t>>& memory) {
  const int rank = engine.rank();
  const auto start = [&](Operation operation, const char* name, std::vector<int32_t> data) {
    memory.push_back(std::move(data));
    TensorEntry entry = allreduce(name, memory.back());
    entry.request.edit().operation = operation;
    if (operation == Operation::broadcast) entry.request.edit().root_rank = 1;
    return engine.enqueue(entry);
  };
  try {
    for (int step = 0; step < 3; ++step) {
      if (rank == 0) engine.propose(static_cast<uint64_t>(step) + 1, {1000, 0.5, 3 - step});
      const int64_t ones = start(Operation::allreduce, "ones", {1, 1, 1});
      const std::vector<int32_t>& sum = memory.back();
      const int64_t sent = start(Operation::broadcast, "sent", {rank, 7});
      const std::vector<int32_t>& received = memory.back();
      const int64_t rows = start(Operation::allgather, "rows", std::vector<int32_t>(rank + 1, 5));
      wait(engine, ones);
      wait(engine, sent);
      CHECK(sum == std::vector<int32_t>(3, 2));
      CHECK(received == std::vector<int32_t>({1, 7}));
      CHECK(take_result<int32_t>(engine, rows) == std::vector<int32_t>(3, 5));
    }
  } catch (const EngineError&) {
  }
}

}  // namespace

TEST(random_lists_of_requests_survive_encoding) {
  fuzz(20'000, [](Random& random) {
    const RequestList list = random_requests(random);
    CHECK(same(decode_request_list(encode(list)), list));
  });
}

TEST(random_lists_of_responses_survive_encoding) {
  ResponsePool pool;
  fuzz(20'000, [&](Random& random) {
    const ResponseList list = random_responses(random);
    ResponseList back = decode(encode(list), 0, pool);
    CHECK(same(back, list));
    pool.give(std::move(back));
  });
}

TEST(damaged_lists_of_requests_are_refused_by_name_or_have_one_encoding) {
  fuzz(200'000, [](Random& random) {
    read_or_refuse(damaged(random, random_requests), static_cast<int>(random.pick(1, 9)),
                   decode_request_list);
  });
}

TEST(damaged_lists_of_responses_are_refused_by_name_or_have_one_encoding) {
  fuzz(200'000, [](Random& random) {
    read_or_refuse(damaged(random, random_responses), 0, decode_response_list);
  });
}

TEST(damaged_messages_of_a_job_are_refused_by_name_or_do_no_harm) {
  fuzz(4'000, [](Random& random) { DamagedJob(random).run(); });
}

// What a rank that waits hears of the others, and what the stall check then says of them.
TEST(damaged_signs_of_life_are_refused_by_name_or_name_ranks_of_the_job) {
  fuzz(20'000, [](Random& random) {
    const int size = static_cast<int>(random.pick(2, 9));
    const int rank = random.one_in(4) ? 0 : 1;
    const int peer = 1 - rank;
    int ends[2];
    CHECK(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
    std::vector<std::unique_ptr<Connection>> connections;
    connections.push_back(std::make_unique<Connection>(ends[0]));
    Connection other(ends[1]);
    // Of rank 0 only rank 1 is a neighbour, which speaks for the others.
    const std::vector<int> host(static_cast<size_t>(size), 0);
    Tree tree = rank == 0 ? Tree::of_hosts(host, 1) : Tree::star(size);
    const bool names_others = !tree.is_leaf(peer);
    ControlPlane plane(rank, std::move(tree), std::move(connections));
    std::string list;
    for (int64_t each = random.pick(2 - rank, 9); each < size; each += random.pick(1, 3)) {
      list += std::to_string(each) + " " + std::to_string(random.pick(0, 99)) + " ";
    }
    const std::string honest = names_others ? list : "";
    const std::string said = random.one_in(4) ? honest : damage(random, honest, list);
    const FrameType type = random.one_in(8) ? FrameType::ping : FrameType::pong;
    other.send(type, said);
    try {
      FrameQueue frames;
      plane.pump(frames);
      CHECK(frames.empty());
      CHECK(said.empty() || (type == FrameType::pong && names_others));
    } catch (const EngineError& error) {
      CHECK(said != honest || (type == FrameType::ping && !said.empty()));
      CHECK(contains(error.what(), "rank " + std::to_string(peer)));
    }
    for (const Silent& each : plane.silent()) {
      CHECK(each.rank > 0 && each.rank < size && each.rank != rank && each.seconds >= 0);
    }
    StallInspector stalls(1, 0, size, {}, std::vector<std::string>(static_cast<size_t>(size), "a"));
    CHECK(contains(stalls.check_transfer("it", 9s, plane.silent(), true), "it has been under way"));
  });
}

// Both ends of a job of two ranks: no result is wrong, and nothing is waited for without end.
TEST(two_engines_between_which_a_message_is_damaged_end_with_an_error_or_right_results) {
  fuzz(100, [](Random& random) {
    DamagingProxy proxy(random, random.pick(0, 12));
    const auto mail = std::make_shared<Mail>(2);
    std::deque<std::vector<int32_t>> memory[2];
    std::atomic<bool> is_over{false};
    std::thread damaging([&] { proxy.run(is_over); });
    std::exception_ptr failure;
    try {
      run_ranks(2, [&](int rank) {
        std::vector<std::unique_ptr<Connection>> connections;
        connections.push_back(proxy.take(rank));
        auto control = std::make_unique<ControlPlane>(rank, 2, std::move(connections));
        Engine engine({}, std::move(control),
                      communicator_factory(std::make_shared<ThreadPointToPoint>(mail, rank),
                                           std::vector<int>{0, 1}));
        train(engine, memory[rank]);
        engine.shutdown(1s);
      });
    } catch (...) {
      failure = std::current_exception();
    }
    is_over = true;
    damaging.join();
    if (failure) std::rethrow_exception(failure);
  });
}
