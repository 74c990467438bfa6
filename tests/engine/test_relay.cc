// What an inner rank says for its branch: merged where it means the same, passed on else.
#include "engine/negotiation/relay.h"

#include <memory>
#include <numeric>

#include "check.h"
#include "common/errors.h"
#include "random_messages.h"
#include "returning.h"

using namespace autotune;
using namespace std::chrono_literals;

namespace {

const TimePoint start = TimePoint{} + 1h;

Request request_named(const std::string& name, int32_t process_set = 0) {
  Request request;
  request.name = name;
  request.shape = {4};
  request.process_set = process_set;
  complete_name(request.name, process_set);
  return request;
}

// Rank 1 of a tree in which ranks 2 and 3 report to it, and 4 to 3. Slots 0 to 9 of its cache are
// tensors of all ranks, slot 10 is one of a process set.
struct Inner {
  Tree tree{{-1, 0, 1, 1, 3}};
  ResponseCache cache;
  Relay relay{tree, 1, cache};
  TimePoint now = start;

  Inner() {
    ResponseList list;
    for (int64_t slot = 0; slot < 10; ++slot) {
      cache.put(slot, {request_named("t" + std::to_string(slot)), {}});
    }
    cache.put(10, {request_named("of_set", 1), {}});
    relay.follow(list, 1);
  }

  std::vector<RelayedList> take() {
    std::vector<RelayedList> lists;
    relay.take(lists, now);
    return lists;
  }
  // As text: "1 and below: 0 3; 2: t9".
  std::string taken() {
    std::string text;
    for (const RelayedList& each : take()) {
      const RequestList list = decode_request_list(each.list, each.rank);
      text += (text.empty() ? "" : "; ") + std::to_string(each.rank) +
              (each.is_branch && !tree.is_leaf(each.rank) ? " and below:" : ":");
      for (size_t word = 0; word < list.hit_bits.size(); ++word) {
        for_each_slot(word, list.hit_bits[word],
                      [&](int64_t slot) { text += " " + std::to_string(slot); });
      }
      for (const Request& request : list.requests) text += " " + request.name;
      if (list.shutdown) text += " end";
    }
    return text;
  }
  void hear(int child, const RequestList& list) {
    if (tree.is_leaf(child)) return relay.hear(child, list, now);
    hear_of(child, child, true, list);
  }
  void hear_of(int child, int rank, bool is_branch, const RequestList& list) {
    relay.hear(child, std::vector<RelayedList>{{rank, is_branch, encode(list)}}, now);
  }
};

RequestList hits(const std::vector<int64_t>& slots, uint64_t processed = 1, int64_t step = 0) {
  RequestList list;
  list.processed = processed;
  list.step = step;
  for (const int64_t slot : slots) list.set_hit(slot);
  return list;
}

RequestList asks(const Request& request) {
  RequestList list;
  list.processed = 1;
  list.requests = {request};
  return list;
}

// The answer to slots.
ResponseList answer(const std::vector<int64_t>& slots) {
  ResponseList list;
  list.responses.resize(1);
  for (const int64_t slot : slots) {
    ResponseItem item;
    item.cache_slot = slot;
    item.from_cache = true;
    list.responses[0].items.push_back(item);
  }
  return list;
}

}  // namespace

TEST(hits_of_all_of_a_branch_go_up_as_one_list_when_the_last_is_there) {
  Inner inner;
  inner.relay.add(hits({0, 1, 2}), inner.now);
  inner.hear(2, hits({0, 1}));
  CHECK_EQUAL(inner.taken(), "");
  CHECK(inner.relay.due() == inner.now + Relay::most_held);
  inner.hear(3, hits({1, 2}));
  CHECK_EQUAL(inner.taken(), "1 and below: 1");
  inner.hear(3, hits({0}));
  inner.hear(2, hits({2}));
  CHECK_EQUAL(inner.taken(), "1 and below: 0 2");
  CHECK(inner.relay.due() == TimePoint::max());
}

// Messages that each rank hears when all ranks announce the same 161 slots in one step.
std::vector<int> heard_in_a_step(const Tree& tree) {
  ResponseCache cache;
  for (int64_t slot = 0; slot < 161; ++slot) {
    cache.put(slot, {request_named("t" + std::to_string(slot)), {}});
  }
  std::vector<int64_t> slots(161);
  std::iota(slots.begin(), slots.end(), 0);
  const RequestList step = hits(slots);
  std::vector<int> heard(size_t(tree.size()), 0);
  std::vector<std::unique_ptr<Relay>> relays;
  for (int rank = 0; rank < tree.size(); ++rank) {
    relays.push_back(std::make_unique<Relay>(tree, rank, cache));
    relays.back()->follow({}, 1);
  }
  for (int rank = tree.size() - 1; rank > 0; --rank) {
    const int parent = tree.parent(rank);
    Relay& own = *relays[size_t(rank)];
    ++heard[size_t(parent)];
    if (tree.is_leaf(rank)) {
      relays[size_t(parent)]->hear(rank, step, start);
      continue;
    }
    own.add(step, start);
    std::vector<RelayedList> lists;
    own.take(lists, start);
    CHECK_EQUAL(lists.size(), size_t{1});
    CHECK(lists[0].is_branch && lists[0].rank == rank);
    CHECK(lists[0].list == encode(step));
    relays[size_t(parent)]->hear(rank, lists, start);
  }
  return heard;
}

TEST(a_rank_hears_one_message_of_each_child_a_step_whatever_is_below_it) {
  const std::vector<int> host(64, 0);
  for (const int fan_out : {0, 1, 2, 5, 8, 63}) {
    const Tree tree = Tree::of_hosts(host, fan_out);
    const std::vector<int> heard = heard_in_a_step(tree);
    for (int rank = 0; rank < 64; ++rank) {
      CHECK_EQUAL(size_t(heard[size_t(rank)]), tree.children(rank).size());
      CHECK(heard[size_t(rank)] <= (fan_out == 0 ? 8 : fan_out));
    }
  }
  std::vector<int> hosts;
  for (int rank = 0; rank < 2048; ++rank) hosts.push_back(rank / 8);
  CHECK_EQUAL(heard_in_a_step(Tree::of_hosts(hosts))[0], 7 + fan_out_between_hosts(255));
}

TEST(a_merged_list_is_of_the_newest_step_and_as_old_as_the_oldest) {
  Inner inner;
  inner.relay.follow(answer({}), 2);
  inner.relay.add(hits({5}, 2, 7), inner.now);
  inner.hear(2, hits({5}, 1, 6));
  inner.hear(3, hits({5}, 2, 6));
  const auto lists = inner.take();
  CHECK_EQUAL(lists.size(), size_t{1});
  const RequestList list = decode_request_list(lists[0].list);
  CHECK_EQUAL(list.step, 7);
  CHECK_EQUAL(list.processed, uint64_t{1});
}

TEST(hits_are_held_for_a_moment_only_and_those_that_come_later_pass_until_there_is_an_answer) {
  Inner inner;
  inner.relay.add(hits({0}), inner.now);
  inner.hear(2, hits({0, 1}));
  inner.now += Relay::most_held;
  CHECK_EQUAL(inner.taken(), "1: 0; 2: 0 1");
  inner.hear(3, hits({0, 1, 2}));
  CHECK_EQUAL(inner.taken(), "3 and below: 0 1");  // 2 is held
  inner.relay.follow(answer({0}), 2);
  inner.relay.add(hits({0}, 2), inner.now);
  inner.hear(2, hits({0}, 2));
  CHECK_EQUAL(inner.taken(), "");
  inner.hear(3, hits({0}, 2));
  CHECK_EQUAL(inner.taken(), "1 and below: 0");
}

TEST(slots_of_process_sets_and_slots_that_are_not_known_here_pass_at_once) {
  Inner inner;
  inner.hear(2, hits({3, 10, 77}));
  CHECK_EQUAL(inner.taken(), "2: 10 77");
}

TEST(a_whole_request_passes_and_nobody_waits_for_a_hit_of_its_tensor) {
  Inner inner;
  inner.relay.add(hits({3, 4}), inner.now);
  inner.hear(2, asks(request_named("t3")));
  CHECK_EQUAL(inner.taken(), "2: t3; 1: 3");
  inner.hear(3, hits({3, 4}));
  CHECK_EQUAL(inner.taken(), "3 and below: 3");
  inner.hear(2, hits({4}));
  CHECK_EQUAL(inner.taken(), "1 and below: 4");
}

TEST(hits_and_requests_of_one_list_go_their_own_ways) {
  Inner inner;
  RequestList both = hits({4});
  both.requests = {request_named("new")};
  inner.hear(2, both);
  CHECK_EQUAL(inner.taken(), "2: new");
  inner.relay.add(hits({4}), inner.now);
  inner.hear(3, hits({4}));
  CHECK_EQUAL(inner.taken(), "1 and below: 4");
}

TEST(everything_passes_in_order_from_a_join_until_all_have_joined) {
  Inner inner;
  Request join;
  join.operation = Operation::join;
  join.name = "join";
  inner.hear(2, hits({1}));
  RequestList last = hits({2});
  last.requests = {join};
  inner.hear(2, last);
  CHECK_EQUAL(inner.taken(), "2: 1; 2: 2 join");
  inner.hear_of(3, 4, false, hits({5}));
  inner.relay.add(hits({5}), inner.now);
  CHECK_EQUAL(inner.taken(), "4: 5; 1: 5");
  ResponseList all_joined;
  all_joined.responses.resize(1);
  all_joined.responses[0].operation = Operation::join;
  inner.relay.follow(all_joined, 2);
  inner.relay.follow(answer({5}), 3);
  inner.hear(2, hits({5}, 3));
  CHECK_EQUAL(inner.taken(), "");
}

TEST(what_a_child_passes_on_of_a_part_of_its_branch_passes) {
  Inner inner;
  inner.hear(3, hits({1, 2}));
  inner.hear(2, hits({6}));
  inner.hear_of(3, 4, false, hits({6}));
  CHECK_EQUAL(inner.taken(), "3 and below: 1 2; 4: 6; 2: 6");
}

TEST(hits_are_not_merged_across_a_change_of_the_cache) {
  Inner inner;
  inner.hear(2, hits({4, 5}));
  ResponseList list;
  list.evicted_slots = {4, int64_t{1} << 47};  // one of them may never have been
  inner.cache.erase(4);
  inner.relay.follow(list, 2);
  CHECK_EQUAL(inner.taken(), "2: 4 5");
  inner.hear(3, hits({6}, 1));  // what it has said before it knew
  CHECK_EQUAL(inner.taken(), "3 and below: 6");
  inner.hear(3, hits({7}, 2));
  CHECK_EQUAL(inner.taken(), "");
}

TEST(a_rank_that_shuts_down_says_so_after_all_else) {
  Inner inner;
  inner.hear(2, hits({1}));
  RequestList last;
  last.processed = 1;
  last.shutdown = true;
  inner.hear(3, hits({2}));
  inner.hear(2, last);
  CHECK_EQUAL(inner.taken(), "2: 1; 3 and below: 2; 2: end");
}

TEST(what_is_not_of_a_child_or_not_of_its_branch_is_refused_by_name) {
  Inner inner;
  CHECK_THROWS(EngineError, "got some from rank 4", inner.relay.hear(4, hits({1}), inner.now));
  for (const int rank : {0, 1, 2, 5, 1 << 30}) {
    CHECK_THROWS(EngineError, "below rank 3 from it, got some of rank " + std::to_string(rank),
                 inner.hear_of(3, rank, false, hits({1})));
  }
  CHECK_THROWS(EngineError, "from rank 4, got one with",
               inner.relay.hear(3, std::vector<RelayedList>{{4, false, "x"}}, inner.now));
  CHECK_THROWS(EngineError, "passed on by rank 3",
               inner.relay.hear(3, std::vector<RelayedList>{{4, false, "x"}}, inner.now));
}

namespace {

std::vector<RelayedList> random_relayed(Random& random) {
  std::vector<RelayedList> lists(size_t(random.pick(0, 4)));
  for (RelayedList& each : lists) {
    each.rank = int32_t(random.pick(0, random.one_in(8) ? 0x7fffffff : 4));
    each.is_branch = random.one_in(2);
    each.list = encode(random_requests(random));
  }
  return lists;
}

std::vector<RelayedList> decoded(const std::string& bytes, int sender) {
  std::vector<RelayedList> lists;
  decode(bytes, sender, lists);
  return lists;
}

}  // namespace

TEST(damaged_messages_of_several_ranks_are_refused_by_name_or_have_one_encoding) {
  fuzz(100'000, [](Random& random) {
    const std::string bytes =
        damage(random, encode(random_relayed(random)), encode(random_relayed(random)));
    try {
      CHECK(encode(decoded(bytes, 3)) == bytes);
    } catch (const EngineError& error) {
      CHECK(std::string(error.what()).find("rank 3") != std::string::npos);
    }
  });
}

// Whatever a child says, the relay refuses it by name, or passes on what can be read again.
TEST(a_relay_that_hears_damaged_messages_refuses_them_by_name_or_does_no_harm) {
  fuzz(20'000, [](Random& random) {
    Inner inner;
    for (int64_t turn = random.pick(1, 6); turn > 0; --turn) {
      RequestList list = random.one_in(2) ? random_requests(random) : hits({1, 2});
      if (random.one_in(2)) list.processed = 1;
      inner.relay.add(list, inner.now);
      const int child = random.one_in(2) ? 2 : 3;
      std::string bytes = encode(random_relayed(random));
      if (random.one_in(2)) bytes = damage(random, bytes, encode(random_relayed(random)));
      try {
        inner.relay.hear(child, decoded(bytes, child), inner.now);
      } catch (const EngineError& error) {
        CHECK(std::string(error.what()).find("rank " + std::to_string(child)) != std::string::npos);
      }
      if (random.one_in(2)) inner.now += 1ms;
      for (const RelayedList& each : inner.take()) {
        CHECK(inner.tree.is_in_branch(each.rank, 1));
        decode_request_list(each.list, each.rank);
      }
    }
  });
}
