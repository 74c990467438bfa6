#include "engine/engine.h"

#include <malloc.h>
#include <sched.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <optional>
#include <random>

#include "check.h"
#include "comm/self/self_communicator.h"
#include "engine_fixture.h"

using namespace autotune;
using namespace std::chrono_literals;

TEST(allreduce_sums_over_ranks_of_any_number) {
  for (int size : {1, 2, 3, 4}) {
    with_engines(size, {}, [size](Engine& engine) {
      for (int i = 0; i < 20; ++i) {
        std::vector<int32_t> data(100, engine.rank() + 1);
        wait(engine, engine.enqueue(allreduce("x", data)));
        CHECK_EQUAL(data[99], size * (size + 1) / 2);
      }
    });
  }
}

TEST(a_tensor_is_announced_when_its_cycle_is_over_though_nobody_waits) {
  EngineOptions options;
  options.params.cycle_time_ms = 5;
  with_engines(2, options, [](Engine& engine) {
    std::vector<int32_t> data(1, 1);
    const int64_t handle = engine.enqueue(allreduce("x", data));
    while (!engine.poll(handle)) std::this_thread::sleep_for(1ms);
    CHECK_EQUAL(data[0], 2);
    engine.release(handle);
  });
}

TEST(a_waiting_thread_does_not_sit_out_the_cycle) {
  EngineOptions options;
  options.params.cycle_time_ms = 30'000;  // the test would run into its time limit
  with_engines(2, options, [](Engine& engine) {
    std::vector<int32_t> data(1, 1);
    wait(engine, engine.enqueue(allreduce("x", data)));
    CHECK_EQUAL(data[0], 2);
  });
}

TEST(a_full_fusion_buffer_does_not_sit_out_the_cycle) {
  EngineOptions options;
  options.params.cycle_time_ms = 30'000;
  options.params.fusion_threshold_bytes = 400;
  with_engines(2, options, [](Engine& engine) {
    std::vector<int32_t> a(50, 1), b(50, 1);
    const int64_t first = engine.enqueue(allreduce("a", a));
    const int64_t second = engine.enqueue(allreduce("b", b));
    while (!engine.poll(first) || !engine.poll(second)) std::this_thread::sleep_for(1ms);
    CHECK_EQUAL(a[49] + b[49], 4);
  });
}

TEST(a_name_in_flight_is_refused_and_the_first_one_is_unharmed) {
  with_engines(2, {}, [](Engine& engine) {
    std::vector<int32_t> data(1, 1), other(1, 5);
    EngineOptions slow;
    const int64_t handle = engine.enqueue(allreduce("x", data));
    bool refused = engine.poll(handle);  // too late to see it: it is done
    try {
      const int64_t second = engine.enqueue(allreduce("x", other));
      refused = true;
      wait(engine, second);
    } catch (const InvalidRequest& error) {
      refused = std::string(error.what()).find("'x'") != std::string::npos;
    }
    CHECK(refused);
    wait(engine, handle);
    CHECK_EQUAL(data[0], 2);
    // The ranks may differ in whether they refused: bring them together under another name.
  });
}

TEST(a_mismatch_fails_on_every_rank_and_the_engine_goes_on) {
  with_engines(3, {}, [](Engine& engine) {
    std::vector<int32_t> data(engine.rank() == 2 ? 5 : 4, 1);
    const int64_t handle = engine.enqueue(allreduce("x", data));
    CHECK_THROWS(EngineError, "got [4] on rank 0 and [5] on rank 2 (of 3)",
                 while (!engine.wait(handle, 100ms)){});
    engine.release(handle);
    std::vector<int32_t> next(4, 1);
    wait(engine, engine.enqueue(allreduce("x", next)));
    CHECK_EQUAL(next[3], 3);
  });
}

TEST(parameters_change_between_steps_on_all_ranks_and_never_touch_a_result) {
  // Case T12: the threshold changes every step with 20 operations in flight.
  std::array<std::atomic<int64_t>, 60> thresholds{};
  with_engines(3, {}, [&](Engine& engine) {
    if (engine.rank() == 0) {
      for (auto& threshold : thresholds) threshold = 0;
    }
    std::vector<int32_t> ready(1, 0);
    wait(engine, engine.enqueue(allreduce("ready", ready)));  // cleared for all ranks
    engine.end_step(true);
    std::mt19937 random(1);
    for (int step = 0; step < 60; ++step) {
      if (engine.rank() == 0) {
        Params params;
        params.fusion_threshold_bytes = int64_t(random() % 4) * 1000;
        params.cache_capacity = int64_t(random() % 3) * 7;
        params.cycle_time_ms = 0.1;
        params.hierarchical_allreduce = random() % 2;
        engine.propose(uint64_t(step) + 1, params);
      }
      std::vector<std::vector<int32_t>> data;
      std::vector<int64_t> handles;
      for (int i = 0; i < 20; ++i) data.emplace_back(size_t(1 + i * 13), step + i);
      for (int i = 0; i < 20; ++i) {
        handles.push_back(engine.enqueue(allreduce("t" + std::to_string(i), data[size_t(i)])));
      }
      for (int64_t handle : handles) wait(engine, handle);
      for (int i = 0; i < 20; ++i) {
        for (int32_t x : data[size_t(i)]) CHECK_EQUAL(x, 3 * (step + i));
      }
      const int64_t threshold = engine.params().fusion_threshold_bytes;
      int64_t expected = 0;
      if (!thresholds[size_t(step)].compare_exchange_strong(expected, threshold + 1)) {
        CHECK_EQUAL(expected, threshold + 1);  // all ranks are under the same setting in every step
      }
      engine.end_step(true);
    }
    CHECK(engine.epoch() > 50);
  });
}

TEST(a_gathered_result_is_the_rows_of_all_ranks_fused_or_not) {
  for (int64_t threshold : {0, 1 << 20}) {
    EngineOptions options;
    options.params.fusion_threshold_bytes = threshold;
    with_engines(3, options, [](Engine& engine) {
      for (int round = 0; round < 3; ++round) {  // the second and third from the cache
        std::vector<std::vector<int32_t>> data;
        std::vector<int64_t> handles;
        for (int i = 0; i < 4; ++i) {
          data.emplace_back(size_t(engine.rank() + i) * 2, engine.rank() * 10 + i);
          TensorEntry entry = allreduce("g" + std::to_string(i), data.back());
          entry.request.edit().operation = Operation::allgather;
          entry.request.edit().shape = {engine.rank() + i, 2};
          handles.push_back(engine.enqueue(std::move(entry)));
        }
        for (int i = 0; i < 4; ++i) {
          while (!engine.wait(handles[size_t(i)], 100ms)) {
          }
          const auto handle = engine.complete_handle(handles[size_t(i)]);
          CHECK_EQUAL(to_string(handle.result_shape), "[" + std::to_string(3 + 3 * i) + ", 2]");
          const auto* rows = reinterpret_cast<const int32_t*>(handle.result.get());
          for (int rank = 0; rank < 3; ++rank) {
            for (int k = 0; k < (rank + i) * 2; ++k) CHECK_EQUAL(*rows++, rank * 10 + i);
          }
          engine.release(handles[size_t(i)]);
        }
      }
    });
  }
}

TEST(steady_state_needs_no_requests) {
  with_engines(2, {}, [](Engine& engine) {
    std::vector<int32_t> data(10, 0);
    const auto round = [&] {
      wait(engine, engine.enqueue(allreduce("x", data)));
      engine.end_step(true);
    };
    round();
    const int64_t misses = engine.counters().cache_misses;
    for (int i = 0; i < 100; ++i) round();
    CHECK_EQUAL(engine.counters().cache_misses, misses);
  });
}

TEST(a_rank_that_shuts_down_ends_all_and_pending_work_fails_with_a_reason) {
  Job job(2);
  run_ranks(2, [&](int rank) {
    auto engine = job.start(rank);
    if (rank == 1) {
      engine->shutdown(10s);
      return;
    }
    std::vector<int32_t> data(1, 1);
    CHECK_THROWS(EngineError,
                 "allreduce 'x' failed: the engine was shut down: rank 1 shut down after 0 "
                 "operations (seen on rank 0 of 2); ranks that run different numbers of steps call "
                 "hvd.join() after their last one",
                 wait(*engine, engine->enqueue(allreduce("x", data))));
    CHECK_THROWS(EngineError, "allreduce 'y' failed: the engine was shut down: rank 1",
                 engine->enqueue(allreduce("y", data)));
    engine->shutdown(10s);
    CHECK(!engine->failed());
  });
}

TEST(engines_may_start_and_end_at_once_many_times) {
  for (int round = 0; round < 200; ++round) {
    Job job(2);
    run_ranks(2, [&](int rank) {
      auto engine = job.start(rank);
      std::this_thread::sleep_for(std::chrono::microseconds((round * 7919 + rank * 104729) % 3000));
      const auto start = std::chrono::steady_clock::now();
      engine->shutdown(10s);
      CHECK(!engine->failed());
      CHECK(std::chrono::steady_clock::now() - start < 5s);
    });
  }
}

TEST(a_shutdown_that_nobody_answers_ends_after_its_time) {
  // A coordinator that never runs a cycle: its connections alone.
  Rendezvous rendezvous(test_key());
  run_ranks(2, [&](int rank) {
    if (rank == 0) {
      const auto connections = rendezvous.accept_all(2, 20s);
      std::this_thread::sleep_for(1s);
      return;
    }
    std::vector<std::unique_ptr<Connection>> connections;
    connections.push_back(connect_to(rendezvous.address(), test_key(), 1, 20s));
    Engine engine({}, std::make_unique<ControlPlane>(1, 2, std::move(connections)),
                  [](const std::vector<int>&, const WaitHook&) {
                    return Communicators{std::make_unique<SelfCommunicator>(), nullptr};
                  });
    engine.shutdown(200ms);
    CHECK(engine.failed());
  });
}

TEST(many_threads_of_one_rank_may_wait) {
  with_engines(2, {}, [](Engine& engine) {
    run_ranks(4, [&](int thread) {
      for (int i = 0; i < 50; ++i) {
        std::vector<int32_t> data(3, 1);
        wait(engine, engine.enqueue(allreduce("t" + std::to_string(thread), data)));
        CHECK_EQUAL(data[2], 2);
      }
    });
  });
}

TEST(a_stalled_tensor_ends_the_job_after_the_shutdown_time) {
  EngineOptions options;
  options.stall_warning_seconds = 0.2;
  options.stall_shutdown_seconds = 0.5;
  Job job(2, options);
  run_ranks(2, [&](int rank) {
    auto engine = job.start(rank);
    std::vector<int32_t> data(1, 1);
    if (rank == 0) {
      CHECK_THROWS(EngineError, "for rank 1 (of 2)",
                   wait(*engine, engine->enqueue(allreduce("x", data))));
    }
    while (!engine->failed()) std::this_thread::sleep_for(5ms);
    engine->shutdown(10s);
  });
}

namespace {

// A data plane of rank 0 whose reductions last until somebody ends them.
class Lasting final : public Communicator {
 public:
  struct Control {
    std::atomic<bool> begun{false}, end{false};
  };
  Lasting(Control& control, int size, WaitHook on_wait)
      : control_(control), size_(size), on_wait_(std::move(on_wait)) {}
  int rank() const override { return 0; }
  int size() const override { return size_; }
  void allreduce(const std::vector<Span>&, DataType, ReduceOp, double, double) override {
    control_.begun = true;
    for (; !control_.end; std::this_thread::sleep_for(1ms)) on_wait_();
  }
  void allgather(void*, const std::vector<int64_t>&) override {}
  void broadcast(void*, int64_t, int) override {}

 private:
  Control& control_;
  const int size_;
  const WaitHook on_wait_;
};

CommunicatorFactory lasting(Lasting::Control& control) {
  return [&control](const std::vector<int>& ranks, const WaitHook& on_wait) {
    Communicators chosen;
    chosen.flat = std::make_unique<Lasting>(control, static_cast<int>(ranks.size()), on_wait);
    return chosen;
  };
}

double cpu_seconds() {
  timespec used{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
  return double(used.tv_sec) + 1e-9 * double(used.tv_nsec);
}

int64_t resident_bytes() {
  int64_t all = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> all >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

}  // namespace

TEST(the_engine_thread_sleeps_while_another_thread_is_inside_a_long_operation) {
  Lasting::Control control;
  EngineOptions options;
  options.params.cycle_time_ms = 30'000;  // only who waits runs cycles
  Engine engine(options,
                std::make_unique<ControlPlane>(0, 1, std::vector<std::unique_ptr<Connection>>{}),
                lasting(control));
  std::vector<int32_t> a(1), b(1);
  const int64_t first = engine.enqueue(allreduce("a", a));
  std::thread waiting([&] { wait(engine, first); });
  while (!control.begun) std::this_thread::sleep_for(1ms);
  const int64_t second = engine.enqueue(allreduce("b", b));  // due at once: a thread waits
  const double before = cpu_seconds();
  std::this_thread::sleep_for(500ms);
  CHECK(cpu_seconds() - before < 0.15);
  control.end = true;
  waiting.join();
  wait(engine, second);
}

namespace {

// What becomes of rank 0's operation when a job of two shuts down while it is carried out and rank
// 1's connection ends, after its goodbye or without one. Nothing: the shutdown came first.
std::optional<std::string> operation_when_rank_1_leaves(bool says_goodbye) {
  Lasting::Control control;
  Rendezvous rendezvous(test_key());
  std::string error;
  std::atomic<bool> queued{false}, over{false};
  run_ranks(2, [&](int rank) {
    std::vector<std::unique_ptr<Connection>> connections;
    if (rank == 0) {
      Engine engine({}, std::make_unique<ControlPlane>(0, 2, rendezvous.accept_all(2, 20s)),
                    lasting(control));
      std::vector<int32_t> data(1);
      const int64_t handle = engine.enqueue(allreduce("x", data));
      queued = true;
      error = error_of(engine, handle);
      over = true;
      engine.shutdown(10s);
      return;
    }
    connections.push_back(connect_to(rendezvous.address(), test_key(), 1, 20s));
    auto plane = std::make_unique<ControlPlane>(1, 2, std::move(connections));
    std::vector<int32_t> data(1);
    RequestList list;
    list.requests.push_back(*allreduce("x", data).request);
    list.shutdown = true;
    std::string bytes;
    encode(list, bytes);
    while (!queued) std::this_thread::sleep_for(1ms);
    std::this_thread::sleep_for(20ms);  // rank 0 has announced it by now
    plane->send_all(FrameType::requests, bytes);
    while (!control.begun && !over) std::this_thread::sleep_for(1ms);
    if (says_goodbye) plane->send_all(FrameType::goodbye, "");
    plane.reset();
    if (says_goodbye) {
      std::this_thread::sleep_for(50ms);  // rank 0 has seen it by now
      control.end = true;
    }
  });
  return control.begun ? std::optional(error) : std::nullopt;
}

}  // namespace

TEST(a_rank_that_dies_during_the_shutdown_is_missed_and_one_that_has_said_goodbye_is_not) {
  for (const bool says_goodbye : {false, true}) {
    std::optional<std::string> error;
    while (!error) error = operation_when_rank_1_leaves(says_goodbye);
    const bool is_missed = error->find("rank 1 ended its process") != std::string::npos;
    CHECK_EQUAL(is_missed, !says_goodbye);
    CHECK_EQUAL(error->empty(), says_goodbye);
  }
}

TEST(the_engine_thread_stays_on_the_cores_of_the_process) {
  cpu_set_t all, one;
  CHECK_EQUAL(sched_getaffinity(0, sizeof all, &all), 0);
  CPU_ZERO(&one);
  for (size_t core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &all)) {
      CPU_SET(core, &one);
      break;
    }
  }
  CHECK_EQUAL(sched_setaffinity(0, sizeof one, &one), 0);
  with_engines(1, {}, [&](Engine& engine) {
    check_goes_on(engine);  // its thread has begun
    for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
      cpu_set_t cores;
      const int thread = std::stoi(task.path().filename());
      if (sched_getaffinity(thread, sizeof cores, &cores) == 0) CHECK(CPU_EQUAL(&cores, &one));
    }
  });
}

namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int window = 8 * 128;  // they keep what is freed, and count it themselves
int64_t bytes_in_use() { return 0; }
#else
constexpr int window = 4 << 14;  // a step that is found by repetition ends after 2^14 names
int64_t bytes_in_use() { return static_cast<int64_t>(::mallinfo2().uordblks); }
#endif

}  // namespace

TEST(names_that_never_come_back_do_not_fill_the_memory) {
  constexpr int size = 3, together = 128, windows = 5;
  Job job(size);
  Meeting end(size);
  std::atomic<int> arrived{0};
  run_ranks(size, [&](int rank) {
    auto meet = [&, round = 0]() mutable {
      ++arrived;
      for (++round; arrived < 2 * round;) std::this_thread::yield();
    };
    auto engine = job.start(rank);
    const int32_t set = add_set(*engine, {0, 1});  // rank 2 has nothing to say
    int64_t in_use[windows] = {}, resident[windows] = {};
    int32_t data[together] = {};
    std::vector<TensorEntry> entries(together);
    for (int i = 0; i < windows * window && rank < 2; i += together) {
      for (int each = 0; each < together; ++each) {
        Request request;
        request.operation = Operation::allreduce;
        request.name = "a metric with a name of its own " + std::to_string(i + each);
        complete_name(request.name, set);
        request.dtype = DataType::int32;
        request.shape = {1};
        request.process_set = set;
        entries[size_t(each)].request = SharedRequest(std::move(request));
        entries[size_t(each)].input = entries[size_t(each)].output = &data[each];
      }
      const int64_t first = engine->enqueue_all(entries.data(), entries.size());
      while (!engine->wait_all(first, together, 100ms)) {
      }
      CHECK_EQUAL(engine->settle(first, together, 0), "");
      if (i % window != window / 8) continue;  // in the midst of a step on both ranks
      meet();
      in_use[i / window] = bytes_in_use();
      resident[i / window] = resident_bytes();
      meet();
    }
    end.after([&] {
      if (rank != 0) return;
      // What is on its way comes and goes; what is kept is there in every window but the first.
      const auto least = [&](const int64_t* of) {
        int64_t found = INT64_MAX;
        for (int i = 2; i < windows; ++i) found = std::min(found, of[i] - of[i - 1]);
        return found;
      };
      std::printf("%lld bytes more for %d names\n", static_cast<long long>(least(in_use)), window);
      CHECK(least(in_use) < 64 << 10);
      if (window > 10'000) CHECK(least(resident) < 1 << 20);
    });
    engine->shutdown(10s);
  });
}

TEST(an_engine_that_is_told_of_a_lost_rank_ends_what_is_in_flight_with_that_reason) {
  Job job(2);
  Meeting end(2);
  run_ranks(2, [&](int rank) {
    std::unique_ptr<Engine> engine;
    end.after([&] {
      engine = job.start(rank);
      if (rank == 1) return;  // it says nothing, as one whose host is gone
      std::vector<int32_t> data(4, 1);
      const int64_t handle = engine->enqueue(allreduce("waits", data));
      std::thread knows([&] { engine->abort("rank 1 is gone"); });
      CHECK(contains(error_of(*engine, handle), "rank 1 is gone"));
      knows.join();
      CHECK(engine->failed());
      engine->abort("said twice");
      CHECK_THROWS(EngineError, "rank 1 is gone", engine->enqueue(allreduce("later", data)));
    });
    engine->shutdown(std::chrono::seconds(10));
    engine->abort("said after the end");
  });
}
