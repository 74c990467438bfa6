// Random jobs: the coordinator against a model of it that knows neither a cache nor words of hits,
// nor ranks that speak for others.
#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "check.h"
#include "engine/negotiation/coordinator.h"
#include "engine/negotiation/negotiate.h"
#include "engine/negotiation/relay.h"
#include "returning.h"

using namespace autotune;
using namespace std::chrono_literals;

namespace {

struct Done {
  Response response;
  int64_t step;
  TimePoint since, ready;
};

// A tensor is ready when all ranks of its set that have not joined have announced it. That is all.
class Model {
 public:
  explicit Model(int size) : size_(size) {
    for (int rank = 0; rank < size; ++rank) sets[0].push_back(rank);
  }

  void add(int rank, const Request& request, int64_t step, TimePoint now) {
    newest_step_ = std::max(newest_step_, step);
    if (request.operation == Operation::join) return add_join(rank, request, step, now);
    Pending& pending = pending_[request.name];
    if (pending.requests.empty()) pending.since = now;
    pending.requests.emplace(rank, request);
    pending.step = std::max(pending.step, step);
    if (missing(pending).empty()) complete(request.name, now);
  }

  // (name, ranks that are waited for), sorted.
  std::set<std::pair<std::string, std::vector<int>>> stalled() const {
    std::set<std::pair<std::string, std::vector<int>>> found;
    for (const auto& [name, pending] : pending_) found.emplace(name, missing(pending));
    return found;
  }

  std::map<int32_t, std::vector<int>> sets;
  std::deque<Done> ready;

 private:
  struct Pending {
    std::map<int, Request> requests;
    int64_t step = 0;
    TimePoint since;
  };

  std::vector<int> missing(const Pending& pending) const {
    std::vector<int> ranks;
    for (int rank : sets.at(pending.requests.begin()->second.process_set)) {
      if (!pending.requests.count(rank) && !joined_.count(rank)) ranks.push_back(rank);
    }
    return ranks;
  }

  void complete(const std::string& name, TimePoint now) {
    const Pending pending = pending_.at(name);
    std::vector<Announced> announced;
    std::vector<int> joined;
    for (int rank : sets.at(pending.requests.begin()->second.process_set)) {
      const auto found = pending.requests.find(rank);
      if (found != pending.requests.end()) {
        announced.push_back({rank, &found->second});
      } else {
        joined.push_back(rank);
      }
    }
    Response response = negotiate(announced, joined, size_);
    if (response.operation == Operation::add_process_set && response.error.empty()) {
      const std::vector<int64_t>& ranks = response.items[0].rows;
      response.root_rank = next_set_++;
      sets[response.root_rank].assign(ranks.begin(), ranks.end());
    }
    pending_.erase(name);
    ready.push_back({response, pending.step, pending.since, now});
  }

  void add_join(int rank, const Request& request, int64_t step, TimePoint now) {
    if (joined_.empty()) first_joined_ = now;
    joined_.insert(rank);
    std::vector<std::string> names;
    for (const auto& [name, pending] : pending_) {
      if (missing(pending).empty()) names.push_back(name);
    }
    for (const std::string& name : names) complete(name, now);
    if (joined_.size() < static_cast<size_t>(size_)) return;
    Response response;
    response.operation = Operation::join;
    response.root_rank = rank;
    response.step = newest_step_;
    response.items.resize(1);
    response.items[0].name = request.name;
    ready.push_back({response, step, first_joined_, now});
    joined_.clear();
  }

  int size_;
  int32_t next_set_ = 1;
  int64_t newest_step_ = -1;
  std::map<std::string, Pending> pending_;
  std::set<int> joined_;
  TimePoint first_joined_;
};

// Ranks that announce the same tensors in every step, each in an order and at a pace of its own.
class RandomJob {
 public:
  explicit RandomJob(unsigned seed, bool is_in_tree = false)
      : random_(seed),
        is_in_tree_(is_in_tree),
        size_(pick(1, is_in_tree ? 20 : 7)),
        tree_(is_in_tree ? random_tree() : Tree::star(size_)),
        tensors_(pick(1, is_in_tree ? 70 : 150)),
        fuses_(pick(0, 1) == 1),
        params_(random_params()),
        coordinator_(size_, params_),
        model_(size_),
        ranks_(static_cast<size_t>(size_)) {
    for (int rank = 1; rank < size_; ++rank) {
      if (tree_.is_leaf(rank)) continue;
      at(rank).relay = std::make_unique<Relay>(tree_, rank, at(rank).cache);
    }
  }

  void run() {
    for (int count = pick(0, 2); count > 0; --count) add_set();
    for (int epoch = 0; epoch < 3; ++epoch) {
      for (int rank = 0; rank < size_; ++rank) {
        // Ranks join at different times in the second epoch only.
        at(rank).steps_left = epoch == 1 ? pick(0, 6) : 5;
        at(rank).has_joined = false;
      }
      for (int turns = 0; !is_over(); ++turns) {
        CHECK(turns < 1'000'000);
        turn(pick(0, size_ - 1));
      }
    }
    settle();
    take();
    for (const Rank& rank : ranks_) CHECK(rank.said.empty() && rank.up.empty());
    CHECK(!coordinator_.has_pending());
    CHECK(model_.stalled().empty() && model_.ready.empty());
    hits_seen += hits_;
  }

  static int64_t hits_seen;
  static int64_t hits_for_several;  // those of one message for all ranks of a branch

 private:
  // On its way to the parent.
  struct Message {
    bool is_relayed;
    RequestList list;
    std::vector<RelayedList> lists;
    uint64_t processed;  // by the sender, when it said so
  };
  struct Said {
    Request request;
    int64_t step;
  };
  struct Rank {
    ResponseCache cache;
    std::unique_ptr<Relay> relay;
    std::deque<Message> up;
    std::map<int64_t, std::deque<Said>> said;  // by slots that are hit, and not at the top yet
    uint64_t processed = 0;
    std::deque<ResponseList> inbox;
    std::map<std::string, Request> in_flight;
    int64_t step = 0;
    int steps_left = 0;
    std::vector<int> todo;  // these are tensors of this step
    bool has_joined = false;
  };

  int pick(int least, int most) { return std::uniform_int_distribution<>(least, most)(random_); }
  Rank& at(int rank) { return ranks_[static_cast<size_t>(rank)]; }

  Tree random_tree() {
    const int fan_out = pick(0, 4);
    std::vector<int> parents{-1};
    for (int rank = 1; rank < size_; ++rank) {
      parents.push_back(fan_out == 0 ? pick(0, rank - 1) : (rank - 1) / fan_out);
    }
    return Tree(parents);
  }

  Params random_params() {
    constexpr int64_t capacities[] = {0, 1, 8, 64, 100, 1024};
    Params params;
    params.cache_capacity = capacities[pick(0, 5)];
    params.fusion_threshold_bytes = fuses_ ? 1000 : 0;  // without fusion the order is seen
    return params;
  }

  bool is_over() {
    return std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) {
      return rank.has_joined && rank.in_flight.empty() && rank.inbox.empty();
    });
  }

  // What `rank` announces as tensor number `tensor`; nothing: it is not in the tensor's set.
  std::optional<Request> request_of(int rank, int tensor, int64_t step) {
    const auto set = std::next(model_.sets.begin(), tensor % static_cast<int>(model_.sets.size()));
    const std::vector<int>& members = set->second;
    if (!std::count(members.begin(), members.end(), rank)) return std::nullopt;
    constexpr Operation operations[] = {Operation::allreduce, Operation::allreduce,
                                        Operation::allreduce, Operation::allgather,
                                        Operation::broadcast, Operation::alltoall};
    Request request;
    request.name = "t" + std::to_string(tensor);
    request.process_set = set->first;
    request.operation = operations[tensor / 3 % 6];
    request.root_rank = members.front();
    // Some change their shape now and then; sometimes one rank has another one.
    const bool odd = (tensor * 7 + step * 13) % 101 == 0 && rank == members.front();
    request.shape = {4 + (tensor % 5 == 0 ? step / 2 : 0) + (odd ? 1 : 0), 3};
    if (request.operation == Operation::allgather) request.shape[0] = rank + tensor % 2 * step;
    if (request.operation == Operation::alltoall) {
      request.shape[0] = 0;
      for (size_t i = 0; i < members.size(); ++i) {
        request.splits.push_back((rank + static_cast<int>(i) + tensor) % 3);
        request.shape[0] += request.splits.back();
      }
    }
    request.cacheable = tensor % 11 != 0;
    complete_name(request.name, request.process_set);
    return request;
  }

  void turn(int rank) {
    Rank& own = at(rank);
    now_ += 1us;
    if (pick(0, 400) == 0) propose();
    if (pick(0, 20) == 0) compare_stalled();
    if (is_in_tree_ && size_ > 1) {
      if (pick(0, 100) == 0) now_ += Relay::most_held;
      for (int times = pick(0, 2 * size_); times > 0; --times) move_up(pick(1, size_ - 1));
    }
    if (!own.inbox.empty() && pick(0, 1) == 0) return process(rank);
    if (pick(0, 3) == 0) return take();
    if (own.has_joined) return;
    if (own.todo.empty()) begin_step(rank);
    announce_some(rank);
  }

  void begin_step(int rank) {
    Rank& own = at(rank);
    if (own.steps_left-- == 0) {
      Request join;
      join.operation = Operation::join;
      join.name = "join";
      own.has_joined = true;
      return say(rank, {join});
    }
    ++own.step;
    for (int i = 0; i < tensors_; ++i) own.todo.push_back(i);
    if (pick(0, 1) == 0) std::shuffle(own.todo.begin(), own.todo.end(), random_);
  }

  void announce_some(int rank) {
    Rank& own = at(rank);
    std::vector<Request> requests;
    int count = pick(1, tensors_);
    while (!own.todo.empty() && count-- > 0) {
      const auto request = request_of(rank, own.todo.back(), own.step);
      if (request && own.in_flight.count(request->name)) break;
      own.todo.pop_back();
      if (request) requests.push_back(*request);
    }
    if (!requests.empty()) say(rank, requests);
  }

  // One list: hits count in the order of their slots, then come the others.
  void say(int rank, const std::vector<Request>& requests) {
    Rank& own = at(rank);
    RequestList list;
    list.step = own.step;
    list.processed = own.processed;
    std::map<int64_t, Request> hits;
    for (const Request& request : requests) {
      own.in_flight[request.name] = request;
      const int64_t slot = own.cache.find(request);
      if (slot < 0) {
        list.requests.push_back(request);
      } else {
        list.set_hit(slot);
        hits[slot] = request;
      }
    }
    hits_ += static_cast<int64_t>(hits.size());
    for (const auto& [slot, request] : hits) own.said[slot].push_back({request, own.step});
    if (rank == 0 || !is_in_tree_) return arrive(rank, list);
    if (own.relay) return own.relay->add(list, now_);
    own.up.push_back({false, list, {}, own.processed});
  }

  // Another turn of what `rank` has to say: out of its relay, and to its parent.
  void move_up(int rank) {
    Rank& own = at(rank);
    if (own.relay) {
      Message message{true, {}, {}, own.processed};
      own.relay->take(message.lists, now_);
      if (!message.lists.empty()) own.up.push_back(std::move(message));
    }
    if (own.up.empty() || pick(0, 2) == 0) return;
    const Message message = std::move(own.up.front());
    own.up.pop_front();
    const int parent = tree_.parent(rank);
    // It has passed on what its child has processed, and handles it first.
    while (at(parent).processed < message.processed) process(parent);
    if (Relay* relay = at(parent).relay.get()) {
      message.is_relayed ? relay->hear(rank, message.lists, now_)
                         : relay->hear(rank, message.list, now_);
      return;
    }
    if (!message.is_relayed) return arrive(rank, message.list);
    for (const RelayedList& each : message.lists) {
      check_relayed(each, rank, tree_);
      RequestList list;
      decode_relayed(each, rank, list);
      const auto ranks = each.is_branch ? tree_.branch(each.rank) : std::vector<int>{each.rank};
      for (const int one : ranks) arrive(one, list);
      if (ranks.size() > 1) {
        for (const uint64_t bits : list.hit_bits) hits_for_several += __builtin_popcountll(bits);
      }
    }
  }

  // All that was said gets to the top.
  void settle() {
    for (int turns = 0; turns < 4 * size_; ++turns) {
      now_ += Relay::most_held;
      for (int rank = size_ - 1; rank > 0; --rank) {
        do move_up(rank);
        while (!at(rank).up.empty());
      }
    }
  }

  // At the top.
  void arrive(int rank, const RequestList& list) {
    unordered_ |= !list.requests.empty() && list.requests[0].operation == Operation::join;
    coordinator_.add(rank, list, now_);
    for (size_t word = 0; word < list.hit_bits.size(); ++word) {
      for_each_slot(word, list.hit_bits[word], [&](int64_t slot) {
        std::deque<Said>& said = at(rank).said.at(slot);
        CHECK(list.step >= said.front().step);
        model_.add(rank, said.front().request, list.step, now_);
        said.pop_front();
        if (said.empty()) at(rank).said.erase(slot);
      });
    }
    for (const Request& request : list.requests) model_.add(rank, request, list.step, now_);
  }

  void propose() {
    params_ = random_params();
    coordinator_.propose(++epoch_, params_);
    proposed_ = true;
  }

  void add_set() {
    Request add;
    add.operation = Operation::add_process_set;
    add.name = "add_process_set";
    for (int rank = 0; rank < size_; ++rank) {
      if (pick(0, 1) == 0 || rank == size_ - 1) add.shape.push_back(rank);
    }
    for (int rank = 0; rank < size_; ++rank) say(rank, {add});
    settle();
    take();
    for (int rank = 0; rank < size_; ++rank) process(rank);
  }

  void compare_stalled() {
    std::set<std::pair<std::string, std::vector<int>>> found;
    for (const Stalled& stalled : coordinator_.stalled(now_, 0s)) {
      found.emplace(stalled.name, stalled.missing_ranks);
    }
    CHECK(found == model_.stalled());
    CHECK_EQUAL(coordinator_.has_pending(), !found.empty());
  }

  // (name, operation, root, error, rows, zeros)
  using Item =
      std::tuple<std::string, Operation, int32_t, std::string, std::vector<int64_t>, int64_t>;

  void take() {
    for (const ResponseList& list : autotune::take(coordinator_)) {
      compare(list);
      for (Rank& rank : ranks_) rank.inbox.push_back(list);
    }
    CHECK(model_.ready.empty());
    if (unordered_) skew_ = coordinator_.skew();  // of what a join makes ready the first one counts
    CHECK(coordinator_.skew() == skew_);
    unordered_ = false;
  }

  void compare(const ResponseList& list) {
    const auto is_due = [this] { return proposed_ && model_.ready.front().step > last_step_; };
    CHECK(!model_.ready.empty());
    CHECK_EQUAL(list.change.has_value(), is_due());
    if (list.change) {
      CHECK_EQUAL(list.change->first_step, model_.ready.front().step);
      proposed_ = false;
    }
    for (int64_t slot : list.evicted_slots) sent_.erase(slot);
    std::vector<Item> expected, got;
    while (!model_.ready.empty() && !is_due()) {
      const Done& done = model_.ready.front();
      last_step_ = std::max(last_step_, done.step);
      add_skew(done);
      expected.push_back(item_of(done.response, done.response.items[0]));
      model_.ready.pop_front();
    }
    for (const Response& response : list.responses) {
      for (const ResponseItem& item : response.items) got.push_back(item_of(response, item));
    }
    for (const Response& response : list.responses) {
      for (const ResponseItem& item : response.items) {
        if (!item.from_cache && item.cache_slot >= 0) sent_[item.cache_slot] = item;
      }
    }
    if (fuses_ || unordered_) {
      std::sort(expected.begin(), expected.end());
      std::sort(got.begin(), got.end());
    }
    CHECK_EQUAL(got.size(), expected.size());
    for (size_t i = 0; i < got.size(); ++i)
      CHECK_EQUAL(std::get<0>(got[i]), std::get<0>(expected[i]));
    CHECK(got == expected);
  }

  Item item_of(const Response& response, const ResponseItem& item) {
    const ResponseItem& full = item.from_cache ? sent_.at(item.cache_slot) : item;
    const bool is_fused = response.items.size() > 1;
    if (is_fused) CHECK(fuses_);
    return {full.name,      response.operation, response.root_rank,
            response.error, full.rows,          full.count};
  }

  void add_skew(const Done& done) {
    const TimePoint begin = std::max(done.since, skew_until_);
    if (done.ready > begin) skew_ += done.ready - begin;
    skew_until_ = std::max(skew_until_, done.ready);
  }

  // As the engine does.
  void process(int rank) {
    Rank& own = at(rank);
    const ResponseList list = std::move(own.inbox.front());
    own.inbox.pop_front();
    ++own.processed;
    for (int64_t slot : list.evicted_slots) own.cache.erase(slot);
    const auto is_member = [&](const Response& response) {
      const std::vector<int>& ranks = model_.sets.at(response.process_set);
      return std::count(ranks.begin(), ranks.end(), rank) > 0;
    };
    std::vector<std::string> names;
    for (const Response& response : list.responses) {
      for (const ResponseItem& item : response.items) {
        const bool by_slot = is_member(response) && item.from_cache;
        if (by_slot) CHECK(own.cache.at(item.cache_slot) != nullptr);
        names.push_back(by_slot ? own.cache.at(item.cache_slot)->request->name : item.name);
      }
    }
    auto name = names.begin();
    for (const Response& response : list.responses) {
      for (const ResponseItem& item : response.items) {
        const auto found = own.in_flight.find(*name++);
        if (!is_member(response)) {
          if (!item.from_cache && item.cache_slot >= 0) own.cache.erase(item.cache_slot);
          continue;
        }
        CHECK(found != own.in_flight.end() || own.has_joined);
        if (found == own.in_flight.end()) continue;
        if (!item.from_cache && item.cache_slot >= 0) {
          own.cache.put(item.cache_slot, {found->second, item.rows});
        }
        own.in_flight.erase(found);
      }
    }
    if (own.relay) own.relay->follow(list, own.processed);
  }

  std::mt19937 random_;
  const bool is_in_tree_;
  const int size_;
  const Tree tree_;
  const int tensors_;
  const bool fuses_;
  Params params_;
  Coordinator coordinator_;
  Model model_;
  std::vector<Rank> ranks_;
  TimePoint now_{1h};
  uint64_t epoch_ = 0;
  bool proposed_ = false;
  bool unordered_ = false;  // what a join makes ready comes in no order that matters
  int64_t last_step_ = -1;
  std::map<int64_t, ResponseItem> sent_;  // each slot has one
  std::chrono::nanoseconds skew_{0};
  TimePoint skew_until_{};
  int64_t hits_ = 0;
};

int64_t RandomJob::hits_seen = 0;
int64_t RandomJob::hits_for_several = 0;

void run_seeds(unsigned count, bool is_in_tree) {
  for (unsigned seed = 0; seed < count; ++seed) {
    try {
      RandomJob(seed, is_in_tree).run();
    } catch (const std::exception& error) {
      throw check::Failure("seed " + std::to_string(seed) + ": " + error.what());
    }
  }
}

}  // namespace

TEST(random_jobs_get_the_responses_of_a_model_without_a_cache_in_the_same_order) {
  run_seeds(150, false);
  CHECK(RandomJob::hits_seen > 10'000);
}

// Nothing is lost, doubled or taken for another rank's or another tensor's, in whatever order ranks
// announce, join, change sets and shapes.
TEST(random_jobs_in_trees_of_any_shape_get_the_responses_of_that_model_too) {
  run_seeds(100, true);
  CHECK(RandomJob::hits_seen > 10'000);
  CHECK(RandomJob::hits_for_several > 500);
}
