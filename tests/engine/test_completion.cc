// Operations for whose handles nobody waits: somebody is told how they ended.
#include <atomic>
#include <thread>

#include "check.h"
#include "completion_fixture.h"
#include "engine/engine.h"

using namespace autotune;

namespace {

// Longer than any test: nothing is announced because of it.
EngineOptions without_cycles() {
  EngineOptions options;
  options.params.cycle_time_ms = 3'600'000;
  return options;
}

}  // namespace

TEST(who_listens_is_told_once_of_each_operation_with_its_result) {
  with_engines(3, {}, [](Engine& engine) {
    Heard heard;
    for (int round = 0; round < 5; ++round) {
      std::vector<std::vector<int32_t>> data(20, std::vector<int32_t>(100, engine.rank()));
      for (size_t i = 0; i < data.size(); ++i) {
        engine.enqueue(heard_by(heard, allreduce("t" + std::to_string(i), data[i])));
      }
      const auto told = heard.wait(20 * static_cast<size_t>(round + 1));
      CHECK_EQUAL(told.size(), 20 * static_cast<size_t>(round + 1));
      for (const Handle& handle : told) CHECK_EQUAL(handle.error, "");
      for (const auto& each : data) CHECK_EQUAL(each[99], 3);
    }
  });
}

TEST(a_result_that_the_engine_allocates_is_told_of_and_aligned) {
  with_engines(2, {}, [](Engine& engine) {
    Heard heard;
    std::vector<int32_t> rows(static_cast<size_t>(engine.rank() + 1), engine.rank());
    TensorEntry gather = allreduce("g", rows);
    gather.request.edit().operation = Operation::allgather;
    gather.output = nullptr;
    engine.enqueue(heard_by(heard, std::move(gather)));
    const Handle told = heard.wait(1)[0];
    CHECK_EQUAL(to_string(told.result_shape), "[3]");
    CHECK_EQUAL(reinterpret_cast<const int32_t*>(told.result.get())[2], 1);
    CHECK_EQUAL(reinterpret_cast<uintptr_t>(told.result.get()) % 64, 0u);
  });
}

TEST(who_is_told_may_hand_over_operations) {
  with_engines(2, {}, [](Engine& engine) {
    Heard heard;
    std::vector<int32_t> data(3, 1);
    std::function<void(int)> hand_over = [&](int left) {
      const auto next = [&, left] {
        if (left > 0) hand_over(left - 1);
      };
      engine.enqueue(heard_by(heard, allreduce("again", data), false, next));
    };
    hand_over(4);
    heard.wait(5);
    CHECK_EQUAL(data[0], 32);
  });
}

TEST(what_a_thread_of_the_script_awaits_is_announced_at_once) {
  with_engines(2, without_cycles(), [](Engine& engine) {
    Heard heard;
    for (int i = 1; i <= 3; ++i) {
      std::vector<int32_t> data(3, 1);
      engine.enqueue(heard_by(heard, allreduce("x", data), true));
      heard.wait(static_cast<size_t>(i));
      CHECK_EQUAL(data[2], 2);
    }
    check_goes_on(engine);  // nobody is thought to wait any more
    std::vector<int32_t> data(3, 1);
    const int64_t later = engine.enqueue(allreduce("later", data));
    CHECK(!engine.poll(later));
    wait(engine, later);
  });
}

TEST(who_listens_is_told_while_another_thread_waits_and_runs_the_cycles) {
  with_engines(2, {}, [](Engine& engine) {
    Heard heard;
    std::vector<int32_t> x(1, 1), y(1, 1), late(1, 1);
    std::thread waiting;
    if (engine.rank() == 0) {
      const int64_t handle = engine.enqueue(allreduce("late", late));
      waiting = std::thread([&engine, handle] { wait(engine, handle); });
      std::this_thread::sleep_for(std::chrono::milliseconds(20));  // it runs the cycles by now
    }
    engine.enqueue(heard_by(heard, allreduce("x", x)));
    heard.wait(1);  // before the other rank takes part in what is waited for
    engine.enqueue(heard_by(heard, allreduce("y", y)));
    heard.wait(2);
    if (engine.rank() == 0) return waiting.join();
    wait(engine, engine.enqueue(allreduce("late", late)));
  });
}

TEST(who_listens_is_told_of_an_error_and_of_the_end) {
  for (int size : {1, 2}) {
    Job job(size);
    run_ranks(size, [&](int rank) {
      Heard heard;
      const auto engine = job.start(rank);
      std::vector<int32_t> data(rank == 0 ? 3 : 4, 1), left(1, 1);
      engine->enqueue(heard_by(heard, allreduce("x", data)));
      const std::string error = heard.wait(1)[0].error;
      CHECK_EQUAL(contains(error, "same shape on all ranks"), size == 2);
      // In flight for ever: the other rank does not take part.
      const bool pending = size == 2 && rank == 0;
      if (pending) engine->enqueue(heard_by(heard, allreduce("left", left)));
      check_goes_on(*engine);  // before somebody ends it
      engine->shutdown(std::chrono::seconds(10));
      if (pending) CHECK(contains(heard.wait(2)[1].error, "shut down"));
      CHECK_THROWS(EngineError, "shut down",
                   engine->enqueue(heard_by(heard, allreduce("after", data))));
    });
  }
}

TEST(a_refused_operation_is_told_to_nobody) {
  with_engines(1, {}, [](Engine& engine) {
    Heard heard;
    std::vector<int32_t> data(3, 1);
    std::vector<TensorEntry> twice;
    for (int i = 0; i < 2; ++i) twice.push_back(heard_by(heard, allreduce("same", data)));
    CHECK_THROWS(InvalidRequest, "got one twice", engine.enqueue_all(twice.data(), twice.size()));
    engine.enqueue(heard_by(heard, allreduce("same", data), true));
    CHECK_EQUAL(heard.wait(1).size(), size_t{1});
  });
}

TEST(what_nobody_waits_for_is_exposed_from_the_last_hand_over_to_the_last_completion) {
  with_engines(2, {}, [](Engine& engine) {
    std::vector<StepRecord> records;
    std::vector<std::pair<int64_t, OperationSizes>> signatures;
    Heard heard;
    std::vector<int32_t> data(3, 1);
    engine.enqueue(heard_by(heard, allreduce("x", data)));  // waits for the cycle time, 1 ms
    heard.wait(1);
    engine.end_step(true);
    engine.drain_steps(records, signatures);
    CHECK_EQUAL(records.size(), size_t{1});
    CHECK(records[0].exposed_us > 0);
    CHECK(records[0].exposed_us <= records[0].duration_us);
  });
}
