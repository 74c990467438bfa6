// Shapes of the control tree, and jobs whose ranks speak for others.
#include "control/tree.h"

#include <atomic>
#include <map>
#include <optional>

#include "check.h"
#include "engine_fixture.h"

using namespace autotune;
using namespace std::chrono_literals;

namespace {

std::vector<int> hosts_of(int hosts, int ranks_of_each) {
  std::vector<int> of_rank;
  for (int host = 0; host < hosts; ++host)
    of_rank.insert(of_rank.end(), size_t(ranks_of_each), host);
  return of_rank;
}

std::vector<Tree> shapes() {
  return {Tree::of_hosts(hosts_of(1, 4), 1), Tree({-1, 0, 1, 1}),
          Tree({-1, 0, 0, 1, 1, 2}),         Tree({-1, 0, 1, 1, 0, 4, 4, 6}),
          Tree::of_hosts(hosts_of(3, 3), 2), Tree::of_hosts({0, 1, 0, 1, 2, 0, 2}, 1),
          Tree::of_hosts(hosts_of(1, 20), 3)};
}

}  // namespace

TEST(few_ranks_are_a_star_and_so_are_those_of_one_host_up_to_32) {
  for (int size = 1; size <= Tree::most_of_star_on_host; ++size) {
    CHECK(Tree::of_hosts(hosts_of(1, size)).parents() == Tree::star(size).parents());
  }
  CHECK(Tree::of_hosts(hosts_of(8, 2)).is_star());
  CHECK(Tree::of_hosts(hosts_of(16, 1)).is_star());
  CHECK(!Tree::of_hosts(hosts_of(1, 64)).is_star());
  CHECK(!Tree::of_hosts(hosts_of(3, 8)).is_star());
}

TEST(a_host_is_spoken_for_by_its_first_rank) {
  for (const int fan_out : {0, 1, 2, 5}) {
    std::vector<int> hosts;
    for (int rank = 0; rank < 300; ++rank) hosts.push_back(rank * rank % 11 % 5);
    const Tree tree = Tree::of_hosts(hosts, fan_out);
    std::map<int, int> leaders;
    for (int rank = 0; rank < tree.size(); ++rank) {
      const auto [leader, is_first] = leaders.emplace(hosts[size_t(rank)], rank);
      if (rank > 0 && !is_first) CHECK(hosts[size_t(tree.parent(rank))] == hosts[size_t(rank)]);
      if (rank > 0 && is_first)
        CHECK(leaders.at(hosts[size_t(tree.parent(rank))]) == tree.parent(rank));
      CHECK(tree.is_in_branch(rank, leader->second));
    }
  }
}

TEST(a_branch_is_all_that_is_below_and_no_rank_has_more_children_than_the_fan_outs) {
  for (const Tree& tree : shapes()) {
    CHECK_EQUAL(tree.branch(0).size(), size_t(tree.size()));
    for (int top = 0; top < tree.size(); ++top) {
      std::vector<int> expected;
      for (int rank = 0; rank < tree.size(); ++rank) {
        if (tree.is_in_branch(rank, top)) expected.push_back(rank);
      }
      CHECK(tree.branch(top) == expected);
    }
  }
  const Tree many = Tree::of_hosts(hosts_of(2048, 8));
  const auto most = size_t(fan_out_between_hosts(2047) + 7);
  for (int rank = 0; rank < many.size(); ++rank) CHECK(many.children(rank).size() <= most);
  CHECK(most < 40);
  CHECK_EQUAL(many.height(0), 5);
  const Tree host = Tree::of_hosts(hosts_of(1, 64));
  CHECK_EQUAL(host.children(0).size(), size_t(8));
  CHECK_EQUAL(host.height(0), 2);
}

TEST(what_is_no_tree_is_refused) {
  for (const std::vector<int>& parents :
       std::vector<std::vector<int>>{{0}, {-1, 1}, {-1, -1}, {-1, 2, 0}, {-1, 0, -2}}) {
    bool is_refused = false;
    try {
      Tree tree(parents);
    } catch (const std::invalid_argument&) {
      is_refused = true;
    }
    CHECK(is_refused);
  }
}

// ---------------------------------------------------------------- the control plane alone

TEST(responses_go_down_and_an_abort_goes_to_all_whoever_says_it) {
  for (const Tree& tree : shapes()) {
    for (const int teller : {0, 1, tree.size() - 1}) {
      TreeMeeting meeting(tree);
      Meeting end(tree.size());
      run_ranks(tree.size(), [&](int rank) {
        std::unique_ptr<ControlPlane> plane;
        end.after([&] {
          plane = meeting.join(rank);
          if (rank == 0) plane->send_down(FrameType::responses, "all");
          if (rank == teller && rank == 0) plane->send_all(FrameType::abort, "over");
          std::vector<FrameType> heard;
          FrameQueue frames;
          const size_t expected = (rank == 0 ? 0 : 1) + (rank == teller ? 0 : 1);
          bool has_told = rank == 0;
          while (heard.size() < expected || !has_told) {
            plane->pump(frames);
            for (; !frames.empty(); frames.pop_front()) {
              const bool is_response = frames.front().type == FrameType::responses;
              CHECK_EQUAL(frames.front().payload, is_response ? "all" : "over");
              heard.push_back(frames.front().type);
            }
            if (rank == teller && !has_told && !heard.empty()) {
              plane->send_all(FrameType::abort, "over");
            }
            has_told = has_told || rank != teller || !heard.empty();
            if (heard.size() < expected) plane->sleep(10ms);
          }
          CHECK_EQUAL(heard.size(), expected);
        });
        FrameQueue left;
        plane->pump(left);
        CHECK(left.empty());  // nothing comes twice
      });
    }
  }
}

// The test's clock runs faster than the world's.
TEST(a_silent_rank_is_known_to_all_and_those_below_it_are_not_blamed) {
  const Tree tree({-1, 0, 1, 1, 0, 4, 5});
  for (const int stopped : {1, 3, 4, 5}) {
    TreeMeeting meeting(tree);
    std::atomic<int> unsure{0};
    std::atomic<bool> over{false};
    for (int rank = 0; rank < tree.size(); ++rank) unsure += rank != stopped;
    run_ranks(tree.size(), [&](int rank) {
      auto plane = meeting.join(rank);
      FrameQueue frames;
      if (rank == stopped) {
        while (!over) std::this_thread::sleep_for(1ms);
        return;
      }
      auto now = std::chrono::steady_clock::now();
      bool is_sure = false;
      while (unsure > 0) {
        plane->ask(now += 1s);
        for (int turn = 0; turn < 100; ++turn, std::this_thread::sleep_for(1ms)) {
          plane->pump(frames);
        }
        const std::vector<Silent> silent = plane->silent();
        for (const Silent& each : silent) CHECK_EQUAL(each.rank, stopped);
        if (!is_sure && !silent.empty()) --unsure;
        is_sure = is_sure || !silent.empty();
        if (rank != 0 || silent.empty()) continue;
        for (int other = 1; other < tree.size(); ++other) {
          const int blamed = tree.is_in_branch(other, stopped) ? stopped : other;
          CHECK(plane->to_blame({other}) == std::vector<int>{blamed});
        }
      }
      CHECK(frames.empty());
      over = true;
    });
  }
}

TEST(a_rank_that_is_missing_is_named_by_the_one_that_it_reports_to) {
  TreeMeeting meeting(Tree({-1, 0, 1, 1}));
  run_ranks(3, [&](int rank) {
    const Tree& tree = meeting.tree();
    if (rank == 0) return;
    if (rank == 2) {
      CHECK_THROWS(EngineError, "rank 2 expected rank 1, by way of which it hears of rank 0,",
                   connect_to("nowhere 1 127.0.0.1", test_key(), rank, 1s, tree.parent(rank)));
      return;
    }
    Rendezvous own(test_key(), "", rank);
    CHECK_THROWS(EngineError, "none from rank 2, 3",
                 connect_in_tree(tree, rank, &own, "", test_key(), 1s));
  });
}

TEST(the_listener_of_one_rank_is_none_of_another) {
  Rendezvous own(test_key(), "", 3);
  std::thread accepting(
      [&] { CHECK_THROWS(EngineError, "none from rank 5", own.accept({5}, 2s)); });
  CHECK_THROWS(EngineError, "no answer", connect_to(own.address(), test_key(), 5, 1s, 2));
  accepting.join();
}

// ---------------------------------------------------------------- whole engines

// How many it is where no rank is late is counted in test_relay.cc.
TEST(rank_0_hears_at_least_one_message_of_each_child_a_step_and_at_most_one_of_each_rank) {
  for (const Tree& tree : shapes()) {
    EngineOptions options;
    options.params.cycle_time_ms = 1000;  // a step's tensors are announced together, by who waits
    Job job(tree, options);
    std::atomic<int64_t> heard{0};
    constexpr int steps = 60;
    run_job(job, tree.size(), [&](Engine& engine) {
      std::vector<std::vector<int32_t>> data(40, std::vector<int32_t>(1));
      int64_t before = 0;
      for (int step = 0; step < steps + 3; ++step) {
        if (step == 3) before = engine.counters().heard;
        std::vector<int64_t> handles;
        for (size_t i = 0; i < data.size(); ++i) {
          data[i][0] = engine.rank() + step;
          handles.push_back(engine.enqueue(allreduce("t" + std::to_string(i), data[i])));
        }
        for (const int64_t handle : handles) wait(engine, handle);
        const int n = engine.size();
        for (const auto& each : data) CHECK_EQUAL(each[0], n * (n - 1) / 2 + n * step);
        engine.end_step(true);
      }
      if (engine.rank() == 0) heard = engine.counters().heard - before;
    });
    const auto children = int64_t(tree.children(0).size());
    CHECK(heard >= steps * children);
    CHECK(heard <= steps * (tree.size() - 1));
  }
}

TEST(jobs_of_any_shape_get_right_results_whatever_ranks_do) {
  for (const Tree& tree : shapes()) {
    for (const int64_t capacity : {0, 8, 1024}) {
      EngineOptions options;
      options.params.cache_capacity = capacity;
      options.params.cycle_time_ms = 0.2;
      Job job(tree, options);
      run_job(job, tree.size(), [&](Engine& engine) {
        const int n = engine.size();
        std::vector<std::vector<int32_t>> data(12, std::vector<int32_t>(3));
        for (int step = 0; step < 12; ++step) {
          std::vector<int64_t> handles(data.size());
          for (size_t i = 0; i < data.size(); ++i) {  // every rank has an order of its own
            const size_t k = (i * 5 + size_t(engine.rank() * step)) % data.size();
            data[k].assign(size_t(k == 3 ? 1 + step % 3 : 3), engine.rank());
            if (k == 7 && step == 5 && engine.rank() == n - 1) data[k].resize(9);
            handles[k] = engine.enqueue(allreduce("t" + std::to_string(k), data[k]));
          }
          for (size_t i = 0; i < data.size(); ++i) {
            const std::string error = error_of(engine, handles[i]);
            if (i == 7 && step == 5) {
              CHECK_EQUAL(error,
                          "allreduce 't7' failed: expected the same shape on all ranks, got "
                          "[3] on rank 0 and [9] on rank " +
                              std::to_string(n - 1) + " (of " + std::to_string(n) +
                              "); make the ranks pass the same, then call it again");
              continue;
            }
            CHECK_EQUAL(error, "");
            for (const int32_t value : data[i]) CHECK_EQUAL(value, n * (n - 1) / 2);
          }
          engine.end_step(true);
        }
      });
    }
  }
}

namespace {

// The error of an operation that cannot be done, be it too late to be handed over.
std::string error_of_allreduce(Engine& engine, const std::string& name) {
  std::vector<int32_t> data(1, 1);
  try {
    return error_of(engine, engine.enqueue(allreduce(name, data)));
  } catch (const EngineError& error) {
    return error.what();
  }
}

// What all other ranks hear when `dies` ends without a word, between two operations or in one.
std::map<int, std::string> errors_when(const Tree& tree, int dies, bool is_under_way) {
  Job job(tree);
  std::mutex mutex;
  std::map<int, std::string> errors;
  run_ranks(tree.size(), [&](int rank) {
    auto engine = job.start(rank);
    check_goes_on(*engine);
    if (rank == dies) {
      engine->abort("dies");  // which is said to nobody: its thread ends, then its connections do
      return;
    }
    while (!is_under_way && !engine->failed()) std::this_thread::sleep_for(1ms);
    const std::string error = error_of_allreduce(*engine, "y");
    engine->shutdown(10s);
    CHECK(engine->failed());
    std::lock_guard lock(mutex);
    errors[rank] = error;
  });
  return errors;
}

}  // namespace

TEST(every_rank_names_the_one_that_died_be_it_a_leaf_an_inner_rank_or_the_first) {
  for (const Tree& tree : shapes()) {
    for (const bool is_under_way : {false, true}) {
      for (const int dies : {0, 1, tree.size() - 1}) {
        const auto errors = errors_when(tree, dies, is_under_way);
        CHECK_EQUAL(errors.size(), size_t(tree.size() - 1));
        for (const auto& [rank, error] : errors) {
          const std::string expected = "rank " + std::to_string(dies) + " ended its process";
          CHECK(error.find(expected) != std::string::npos);
        }
      }
    }
  }
}

TEST(who_shuts_down_ends_the_job_of_all_wherever_it_is) {
  for (const Tree& tree : shapes()) {
    for (const int ends : {0, 1, tree.size() - 1}) {
      Job job(tree);
      run_ranks(tree.size(), [&](int rank) {
        auto engine = job.start(rank);
        check_goes_on(*engine);
        if (rank != ends) {
          const std::string error = error_of_allreduce(*engine, "x");
          CHECK(error.find("rank " + std::to_string(ends) + " shut down after") !=
                std::string::npos);
        }
        engine->shutdown(10s);
        CHECK(!engine->failed());
      });
    }
  }
}

TEST(a_stall_names_the_rank_that_is_waited_for_below_others) {
  for (const Tree& tree : {Tree({-1, 0, 1, 1}), Tree({-1, 0, 0, 1, 1, 3})}) {
    EngineOptions options;
    options.stall_warning_seconds = 0.5;
    options.stall_shutdown_seconds = 1;
    Job job(tree, options);
    const int missing = tree.size() - 1;
    run_ranks(tree.size(), [&](int rank) {
      auto engine = job.start(rank);
      check_goes_on(*engine);
      if (rank != missing) {
        const std::string error = error_of_allreduce(*engine, "goes on");
        CHECK(error.find("for rank " + std::to_string(missing) + " (of") != std::string::npos);
      }
      while (!engine->failed()) std::this_thread::sleep_for(1ms);
      engine->shutdown(10s);
    });
  }
}
