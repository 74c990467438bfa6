// Join: ranks that have nothing more to contribute, and the others that go on.
#include "check.h"
#include "engine/engine.h"
#include "engine_fixture.h"

using namespace autotune;
using namespace std::chrono_literals;

namespace {

int64_t enqueue_join(Engine& engine) {
  TensorEntry entry;
  entry.request.edit().operation = Operation::join;
  entry.request.edit().name = "join";
  return engine.enqueue(std::move(entry));
}

// Returns the last rank that joined.
int32_t join(Engine& engine) {
  const int64_t handle = enqueue_join(engine);
  while (!engine.wait(handle, 100ms)) {
  }
  const int32_t last = engine.complete_handle(handle).value;
  engine.release(handle);
  return last;
}

}  // namespace

TEST(a_rank_that_never_had_data_joins_at_once_and_contributes_zeros) {
  // Case C2: rank 1 joins at once, rank 0 does 20 steps: sums 1.
  for (int64_t capacity : {0, 1024}) {
    EngineOptions options;
    options.params.cache_capacity = capacity;
    with_engines(2, options, [](Engine& engine) {
      if (engine.rank() == 0) {
        for (int step = 0; step < 20; ++step) {
          std::vector<std::vector<int32_t>> data(3, std::vector<int32_t>(40'000, 1));
          std::vector<int64_t> handles;
          for (size_t i = 0; i < 3; ++i) {
            handles.push_back(engine.enqueue(allreduce("t" + std::to_string(i), data[i])));
          }
          for (size_t i = 0; i < 3; ++i) {
            wait(engine, handles[i]);
            CHECK_EQUAL(data[i][39'999], 1);
          }
          engine.end_step(true);
        }
      }
      CHECK_EQUAL(join(engine), 0);
    });
  }
}

TEST(ranks_that_end_one_after_the_other_and_begin_again_together) {
  with_engines(4, {}, [](Engine& engine) {
    for (int epoch = 0; epoch < 4; ++epoch) {
      // Rank r has 3 + 2 ((r + epoch) % 4) steps: another rank is the last one in every epoch.
      const auto steps_of = [&](int rank) { return 3 + 2 * ((rank + epoch) % 4); };
      for (int step = 0; step < steps_of(engine.rank()); ++step) {
        std::vector<int32_t> a(10, 1), b(3000, 1);
        const int64_t first = engine.enqueue(allreduce("a", a));
        const int64_t second = engine.enqueue(allreduce("b", b));
        wait(engine, first);
        wait(engine, second);
        int32_t expected = 0;
        for (int rank = 0; rank < 4; ++rank) expected += steps_of(rank) > step ? 1 : 0;
        CHECK_EQUAL(a[9], expected);
        CHECK_EQUAL(b[2999], expected);
        engine.end_step(true);
      }
      CHECK_EQUAL(join(engine), (3 - epoch + 4) % 4);
    }
  });
}

TEST(an_average_still_divides_by_all_ranks) {
  with_engines(2, {}, [](Engine& engine) {
    if (engine.rank() == 1) {
      std::vector<int32_t> data(4, 8);
      TensorEntry entry = allreduce("x", data);
      entry.request.edit().reduce_op = ReduceOp::average;
      wait(engine, engine.enqueue(std::move(entry)));
      CHECK_EQUAL(data[3], 4);
    }
    CHECK_EQUAL(join(engine), 1);
  });
}

TEST(what_was_announced_before_the_join_still_has_its_data) {
  with_engines(3, {}, [](Engine& engine) {
    std::vector<int32_t> data(5, 1), more(5, 1);
    const int64_t handle = engine.enqueue(allreduce("x", data));
    if (engine.rank() != 0) {  // rank 0 has joined by the time
      CHECK_EQUAL(join(engine), 0);
      CHECK_EQUAL(data[4], 3);
      engine.release(handle);
      return;
    }
    wait(engine, handle);
    wait(engine, engine.enqueue(allreduce("y", more)));
    CHECK_EQUAL(data[4], 3);
    CHECK_EQUAL(more[4], 1);
    CHECK_EQUAL(join(engine), 0);
  });
}

TEST(other_collectives_fail_while_a_rank_has_joined_and_the_engine_goes_on) {
  with_engines(3, {}, [](Engine& engine) {
    if (engine.rank() != 1) {
      for (Operation operation : {Operation::allgather, Operation::broadcast, Operation::alltoall,
                                  Operation::reducescatter}) {
        std::vector<int32_t> data(6, 1);
        TensorEntry entry = allreduce("x", data);
        entry.request.edit().operation = operation;
        const std::string error = error_of(engine, engine.enqueue(std::move(entry)));
        CHECK(error.find(std::string(name_of(operation)) +
                         " 'x' failed: expected all ranks to call it, got rank 1 (of 3) in "
                         "hvd.join()") == 0);
      }
      const std::string error = error_of(engine, engine.add_process_set({0, 2}));
      CHECK(error.find("rank 1 (of 3) in hvd.join()") != std::string::npos);
      std::vector<int32_t> data(6, 1);
      wait(engine, engine.enqueue(allreduce("x", data)));
      CHECK_EQUAL(data[5], 2);
    }
    const int32_t last = join(engine);
    CHECK(last != 1);
    check_goes_on(engine);
  });
}

TEST(a_barrier_does_not_wait_for_a_rank_that_has_joined) {
  with_engines(2, {}, [](Engine& engine) {
    if (engine.rank() == 0) {
      TensorEntry entry;
      entry.request.edit().operation = Operation::barrier;
      entry.request.edit().name = "barrier";
      wait(engine, engine.enqueue(std::move(entry)));
    }
    CHECK_EQUAL(join(engine), 0);
  });
}

TEST(a_join_counts_in_every_process_set) {
  with_engines(4, {}, [](Engine& engine) {
    const int32_t set = add_set(engine, {0, 1, 3});
    for (int round = 0; round < 3; ++round) {
      if (engine.rank() == 0) {
        std::vector<int32_t> data(7, 5);
        TensorEntry entry = allreduce("x", data);
        entry.request.edit().process_set = set;
        wait(engine, engine.enqueue(std::move(entry)));
        CHECK_EQUAL(data[6], 5);
      }
      const int32_t last = join(engine);
      CHECK(last == 0 || last == 2);  // rank 2 is not in the set: nobody waits for it
      std::vector<int32_t> data(7, 1);
      if (engine.rank() != 2) {
        TensorEntry entry = allreduce("x", data);
        entry.request.edit().process_set = set;
        wait(engine, engine.enqueue(std::move(entry)));
        CHECK_EQUAL(data[6], 3);
      }
      check_goes_on(engine);
    }
  });
}

TEST(a_rank_may_not_join_twice) {
  with_engines(2, {}, [](Engine& engine) {
    int64_t handle = -1;
    if (engine.rank() == 1) {
      handle = enqueue_join(engine);
      CHECK_THROWS(InvalidRequest, "join 'join': expected a name that is not in flight",
                   enqueue_join(engine));
    }
    if (engine.rank() == 0) handle = enqueue_join(engine);
    wait(engine, handle);
  });
}

TEST(parameters_change_while_a_rank_has_joined_and_steps_are_numbered_alike_afterwards) {
  with_engines(2, {}, [](Engine& engine) {
    const auto step = [&](int32_t expected) {
      std::vector<int32_t> data(9, 1);
      wait(engine, engine.enqueue(allreduce("x", data)));
      CHECK_EQUAL(data[8], expected);
      engine.end_step(true);
    };
    for (int i = 0; i < 5; ++i) step(2);
    for (int i = 0; engine.rank() == 1 && i < 10; ++i) step(1);
    CHECK_EQUAL(join(engine), 1);
    if (engine.rank() == 0) {
      Params params;
      params.cycle_time_ms = 0.5;
      engine.propose(1, params);
    }
    for (int i = 0; i < 5; ++i) step(2);
    std::vector<StepRecord> records;
    std::vector<std::pair<int64_t, OperationSizes>> signatures;
    engine.drain_steps(records, signatures);
    CHECK_EQUAL(engine.epoch(), uint64_t{1});
    CHECK_EQUAL(records.back().epoch, 1);  // a rank that was behind would say -1
  });
}
