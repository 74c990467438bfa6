// Process sets: which ranks may use them, that they never wait for each other, and what their
// collectives give.
#include "engine/operation/process_set.h"

#include <algorithm>
#include <atomic>
#include <random>

#include "check.h"
#include "engine/engine.h"
#include "engine_fixture.h"

using namespace autotune;
using namespace std::chrono_literals;

namespace {

TensorEntry in_set(TensorEntry entry, int32_t set) {
  entry.request.edit().process_set = set;
  return entry;
}

int64_t enqueue_barrier(Engine& engine, int32_t set) {
  TensorEntry entry;
  entry.request.edit().operation = Operation::barrier;
  entry.request.edit().name = "barrier";
  entry.request.edit().process_set = set;
  return engine.enqueue(std::move(entry));
}

}  // namespace

TEST(a_table_of_process_sets_knows_places_and_ids) {
  ProcessSetTable table(4);
  table.add(3, {1, 3});
  CHECK_EQUAL(table.find(3)->position(3), 1);
  CHECK_EQUAL(table.find(3)->position(2), -1);
  CHECK_EQUAL(table.id_of({1, 3}), 3);
  CHECK_EQUAL(table.id_of({0, 1, 2, 3}), 0);
  CHECK_EQUAL(table.id_of({1}), -1);
  table.remove(3);
  CHECK(table.find(3) == nullptr);
  CHECK_EQUAL(table.find(0)->size(), 4);
}

TEST(sets_reduce_over_their_members_only_and_the_same_name_may_be_in_flight_in_each) {
  with_engines(4, {}, [](Engine& engine) {
    const int rank = engine.rank();
    const int32_t even = add_set(engine, {2, 0}), odd = add_set(engine, {1, 3});
    CHECK_EQUAL(odd, even + 1);
    const int32_t own = rank % 2 == 0 ? even : odd;
    for (int round = 0; round < 20; ++round) {  // from the second on from the cache
      std::vector<int32_t> all(50, rank), members(70, rank);
      const int64_t a = engine.enqueue(allreduce("x", all));
      const int64_t b = engine.enqueue(in_set(allreduce("x", members), own));
      wait(engine, a);
      wait(engine, b);
      CHECK_EQUAL(all[49], 6);
      CHECK_EQUAL(members[69], rank % 2 == 0 ? 2 : 4);
      engine.end_step(true);
    }
    CHECK(engine.process_sets().at(even).ranks == (std::vector<int>{0, 2}));
  });
}

TEST(overlapping_sets_that_meet_in_different_orders_do_not_wait_for_each_other) {
  with_engines(4, {}, [](Engine& engine) {
    const std::vector<std::vector<int>> rank_lists{{0, 1}, {1, 2}, {2, 3}, {0, 3}, {0, 1, 2}, {3}};
    std::vector<int32_t> ids;
    for (const auto& ranks : rank_lists) ids.push_back(add_set(engine, ranks));
    std::mt19937 random(static_cast<unsigned>(engine.rank()));  // another order on every rank
    for (int round = 0; round < 40; ++round) {
      std::vector<size_t> order;
      for (size_t s = 0; s < ids.size(); ++s) {
        const auto& ranks = rank_lists[s];
        if (std::count(ranks.begin(), ranks.end(), engine.rank())) order.push_back(s);
      }
      std::shuffle(order.begin(), order.end(), random);
      std::vector<std::vector<int32_t>> data(order.size());
      std::vector<int64_t> handles;
      for (size_t i = 0; i < order.size(); ++i) {
        data[i].assign(10 + 1000 * (order[i] % 2), engine.rank() + round);
        handles.push_back(engine.enqueue(in_set(allreduce("x", data[i]), ids[order[i]])));
      }
      for (size_t i = 0; i < order.size(); ++i) {
        wait(engine, handles[i]);
        int32_t expected = 0;
        for (int rank : rank_lists[order[i]]) expected += rank + round;
        CHECK_EQUAL(data[i].back(), expected);
      }
    }
  });
}

TEST(a_broadcast_in_a_set_comes_from_the_global_rank) {
  with_engines(3, {}, [](Engine& engine) {
    const int32_t set = add_set(engine, {1, 2});
    if (engine.rank() == 0) return check_goes_on(engine);
    for (int root : {1, 2}) {
      std::vector<int32_t> data(5, engine.rank());
      TensorEntry entry = in_set(allreduce("b", data), set);
      entry.request.edit().operation = Operation::broadcast;
      entry.request.edit().root_rank = root;
      wait(engine, engine.enqueue(std::move(entry)));
      CHECK_EQUAL(data[4], root);
    }
    check_goes_on(engine);
  });
}

TEST(who_may_not_use_a_set_is_told_so_at_once) {
  with_engines(3, {}, [](Engine& engine) {
    const int32_t set = add_set(engine, {0, 2});
    std::vector<int32_t> data(1, 1);
    CHECK_THROWS(InvalidRequest, "expected a process set that exists (0, 1), got 7",
                 engine.enqueue(in_set(allreduce("x", data), 7)));
    if (engine.rank() == 1) {
      CHECK_THROWS(InvalidRequest, "expected a rank of process set 1, [0, 2], got rank 1 (of 3)",
                   engine.enqueue(in_set(allreduce("x", data), set)));
    } else {
      TensorEntry entry = in_set(allreduce("b", data), set);
      entry.request.edit().operation = Operation::broadcast;
      entry.request.edit().root_rank = 1;
      CHECK_THROWS(InvalidRequest, "expected a root rank of process set 1, [0, 2], got 1",
                   engine.enqueue(std::move(entry)));
    }
    check_goes_on(engine);
  });
}

TEST(impossible_sets_are_refused_at_once) {
  with_engines(2, {}, [](Engine& engine) {
    CHECK_THROWS(InvalidRequest, "ranks from 0 to 1, got []", engine.add_process_set({}));
    CHECK_THROWS(InvalidRequest, "got [1, 1]", engine.add_process_set({1, 1}));
    CHECK_THROWS(InvalidRequest, "got [0, 2]", engine.add_process_set({2, 0}));
    CHECK_THROWS(InvalidRequest, "which are process set 0", engine.add_process_set({1, 0}));
    CHECK_THROWS(InvalidRequest, "expected a process set that exists, and not 0, got 0",
                 engine.remove_process_set(0));
    CHECK_THROWS(InvalidRequest, "got 5", engine.remove_process_set(5));
    check_goes_on(engine);
  });
}

TEST(ranks_that_ask_for_different_sets_all_learn_so) {
  with_engines(3, {}, [](Engine& engine) {
    const std::vector<int> ranks =
        engine.rank() == 1 ? std::vector<int>{0, 1} : std::vector<int>{0, 2};
    const std::string error = error_of(engine, engine.add_process_set(ranks));
    CHECK(error.find("set of ranks on all ranks, got [0, 2] on rank 0 and [0, 1] on rank 1") !=
          std::string::npos);
    CHECK_EQUAL(engine.process_sets().size(), size_t{1});
    const int32_t a = add_set(engine, {0, 2}), b = add_set(engine, {0, 1});
    const std::string removed =
        error_of(engine, engine.remove_process_set(engine.rank() == 2 ? a : b));
    CHECK(removed.find("same process set on all ranks, got 2 on rank 0 and 1 on rank 2") !=
          std::string::npos);
    check_goes_on(engine);
  });
}

TEST(a_removed_set_is_gone_and_its_id_never_comes_back) {
  with_engines(3, {}, [](Engine& engine) {
    for (int round = 1; round <= 5; ++round) {
      const int32_t set = add_set(engine, {0, 1});
      CHECK_EQUAL(set, round);
      std::vector<int32_t> data(3, 1);
      if (engine.rank() < 2) wait(engine, engine.enqueue(in_set(allreduce("x", data), set)));
      wait(engine, engine.remove_process_set(set));
      CHECK_THROWS(InvalidRequest, "expected a process set that exists (0), got",
                   engine.enqueue(in_set(allreduce("x", data), set)));
    }
    check_goes_on(engine);
  });
}

TEST(a_set_with_an_operation_in_flight_is_not_removed) {
  with_engines(3, {}, [](Engine& engine) {
    const int32_t set = add_set(engine, {0, 2});
    std::vector<int32_t> data(1, 1);
    int64_t handle = -1;
    if (engine.rank() == 2) handle = engine.enqueue(in_set(allreduce("x", data), set));
    const std::string error = error_of(engine, engine.remove_process_set(set));
    CHECK(error.find("no operation of the set in flight, got allreduce 'x' (process set 1) on "
                     "rank 2") != std::string::npos);
    if (engine.rank() == 0) handle = engine.enqueue(in_set(allreduce("x", data), set));
    if (engine.rank() != 1) wait(engine, handle);
    wait(engine, engine.remove_process_set(set));
    check_goes_on(engine);
  });
}

TEST(a_barrier_of_one_set_does_not_wait_for_the_ranks_of_another) {
  with_engines(4, {}, [](Engine& engine) {
    const int32_t first = add_set(engine, {0, 1}), second = add_set(engine, {2, 3});
    static std::atomic<int> passed{0};
    if (engine.rank() == 0) {
      // Late, until the other set is through: would never end if that one waited for rank 0.
      while (passed % 2 == 0) std::this_thread::sleep_for(1ms);
      wait(engine, enqueue_barrier(engine, first));
    } else {
      wait(engine, enqueue_barrier(engine, engine.rank() == 1 ? first : second));
      if (engine.rank() == 2) ++passed;
    }
    wait(engine, enqueue_barrier(engine, 0));
    if (engine.rank() == 0) ++passed;  // even again, for the next placement
    wait(engine, enqueue_barrier(engine, 0));
  });
}

TEST(a_mismatch_in_a_set_names_it_and_global_ranks) {
  with_engines(3, {}, [](Engine& engine) {
    const int32_t set = add_set(engine, {1, 2});
    if (engine.rank() > 0) {
      std::vector<int32_t> data(static_cast<size_t>(engine.rank()), 1);
      const std::string error = error_of(engine, engine.enqueue(in_set(allreduce("x", data), set)));
      CHECK(error.find("allreduce 'x' (process set 1) failed: expected the same shape on all "
                       "ranks, got [1] on rank 1 and [2] on rank 2 (of 3)") == 0);
    }
    check_goes_on(engine);
  });
}

TEST(a_slot_of_another_set_does_not_confuse_ranks_outside) {
  EngineOptions options;
  options.params.cache_capacity = 3;  // slots change hands all the time
  with_engines(3, options, [](Engine& engine) {
    const int32_t left = add_set(engine, {0, 1}), right = add_set(engine, {1, 2});
    for (int round = 0; round < 60; ++round) {
      std::vector<std::vector<int32_t>> data(12);
      std::vector<int64_t> handles;
      std::vector<int32_t> expected;
      for (size_t i = 0; i < 4; ++i) {
        const std::string name = "t" + std::to_string((i + static_cast<size_t>(round)) % 5);
        for (int32_t set : {0, left, right}) {
          if (set == left && engine.rank() == 2) continue;
          if (set == right && engine.rank() == 0) continue;
          std::vector<int32_t>& own = data[handles.size()];
          own.assign(5 + i, engine.rank() + 1);
          handles.push_back(engine.enqueue(in_set(allreduce(name, own), set)));
          expected.push_back(set == 0 ? 6 : set == left ? 3 : 5);
        }
      }
      for (size_t i = 0; i < handles.size(); ++i) {
        wait(engine, handles[i]);
        CHECK_EQUAL(data[i].back(), expected[i]);
      }
    }
  });
}
