#include "engine/negotiation/stall.h"

#include "check.h"
#include "common/errors.h"
#include "returning.h"

using namespace autotune;
using namespace std::chrono_literals;

namespace {

const TimePoint start = TimePoint{} + 1h;

RequestList announce(Operation operation, const std::string& name, int32_t process_set,
                     Shape shape) {
  RequestList list;
  list.requests.resize(1);
  list.requests[0].operation = operation;
  list.requests[0].name = name;
  list.requests[0].process_set = process_set;
  list.requests[0].shape = std::move(shape);
  complete_name(list.requests[0].name, process_set);
  return list;
}

// A coordinator of 4 ranks with process set 1 = ranks 1, 2, 3.
Coordinator with_set() {
  Coordinator coordinator(4, {});
  for (int rank : {0, 1, 2, 3}) {
    coordinator.add(rank, announce(Operation::add_process_set, "add", 0, {1, 2, 3}), start);
  }
  take(coordinator);
  return coordinator;
}

}  // namespace

TEST(a_stall_is_warned_of_after_1_2_4_and_8_warning_times_within_a_second) {
  Coordinator coordinator = with_set();
  StallInspector stalls(10, 0, 4, start);
  coordinator.add(2, announce(Operation::allreduce, "x", 1, {5}), start);
  std::vector<int64_t> seen_ms;
  for (auto age = 0ms; age < 100s; age += 50ms) {
    for (const std::string& text : stalls.check(coordinator, start + age)) {
      seen_ms.push_back(age.count());
      CHECK(text.find("allreduce 'x' (process set 1) has waited") == 0);
      CHECK(text.find("for rank 1, 3 (of 4)") != std::string::npos);
      CHECK(text.find("does a rank skip it") != std::string::npos);
    }
  }
  CHECK_EQUAL(seen_ms.size(), size_t{4});
  for (size_t i = 0; i < 4; ++i) {
    const int64_t due_ms = 10'000 << i;
    CHECK(seen_ms[i] >= due_ms && seen_ms[i] <= due_ms + 1000);
  }
}

TEST(a_stall_ends_the_job_at_the_shutdown_time_also_where_that_is_shorter_than_the_warning_time) {
  for (double warning_s : {2.0, 30.0}) {
    Coordinator coordinator = with_set();
    StallInspector stalls(warning_s, 7, 4, start);
    coordinator.add(0, announce(Operation::broadcast, "b", 0, {5}), start + 1s);
    for (auto age = 0ms; age < 7s; age += 50ms) stalls.check(coordinator, start + 1s + age);
    CHECK_THROWS(EngineError, "broadcast 'b' has waited 7 s for rank 1, 2, 3 (of 4)",
                 stalls.check(coordinator, start + 1s + 7500ms));
  }
}

TEST(a_cached_tensor_stalls_like_any_other_and_nothing_stalls_where_the_check_is_off) {
  Coordinator coordinator(2, {});
  for (int rank : {0, 1}) {
    coordinator.add(rank, announce(Operation::allreduce, "x", 0, {5}), start);
  }
  RequestList hit;
  hit.processed = 1;
  hit.set_hit(take(coordinator)[0].responses[0].items[0].cache_slot);
  coordinator.add(1, hit, start);
  StallInspector off(0, 0, 2, start), stalls(3, 0, 2, start);
  CHECK(off.check(coordinator, start + 60s).empty());
  const auto warnings = stalls.check(coordinator, start + 4s);
  CHECK_EQUAL(warnings.size(), size_t{1});
  CHECK(warnings[0].find("allreduce 'x' has waited 4 s for rank 0 (of 2)") == 0);
}

TEST(a_stall_of_a_call_without_a_name_says_that_such_calls_are_counted) {
  for (const bool is_named : {false, true}) {
    Coordinator coordinator(2, {});
    StallInspector stalls(3, 0, 2, start);
    RequestList list = announce(Operation::allreduce, "allreduce.noname.4", 0, {5});
    list.requests[0].cacheable = is_named;
    coordinator.add(0, list, start);
    const auto warnings = stalls.check(coordinator, start + 4s);
    CHECK_EQUAL(warnings.size(), size_t{1});
    const bool says_so = warnings[0].find("such calls are counted") != std::string::npos;
    CHECK_EQUAL(says_so, !is_named);
  }
}

TEST(a_long_transfer_is_warned_of_ever_more_rarely_and_names_the_silent_ranks_and_their_hosts) {
  StallInspector stalls(10, 0, 4, start, {"a", "a", "b", "b"});
  int warnings = 0;
  for (int age_s = 1; age_s < 100; ++age_s) {
    const std::string text =
        stalls.check_transfer("allreduce 'x'", std::chrono::seconds(age_s), {{2, 5}, {3, 4}}, true);
    if (text.empty()) continue;
    ++warnings;
    CHECK(text.find("allreduce 'x' has been under way for") == 0);
    CHECK(text.find("no answer from rank 2, 3 on b (of 4) for 5 s") != std::string::npos);
  }
  CHECK_EQUAL(warnings, 4);
  CHECK(stalls.check_transfer("allreduce 'y'", 11s, {}, true).find("all ranks (of 4) answer") !=
        std::string::npos);
}

TEST(a_transfer_ends_at_the_shutdown_time_or_later_if_another_rank_should_have_said_so) {
  StallInspector stalls(60, 7, 2, start);
  CHECK(stalls.check_transfer("t", 6900ms, {{1, 5}}, true).empty());
  CHECK_THROWS(EngineError, "rank 1 (of 2)", stalls.check_transfer("t", 7s, {{1, 5}}, true));
  CHECK(stalls.check_transfer("t", 8s, {{0, 5}}, false).empty());
  CHECK_THROWS(EngineError, "rank 0 (of 2)", stalls.check_transfer("t", 13s, {{0, 5}}, false));
  CHECK_THROWS(EngineError, "rank 0 (of 2), which", stalls.check_coordinator({0, 7}, false));
}

TEST(a_wait_counts_only_the_time_in_which_the_rank_looks) {
  WaitWatch watch;
  watch.look(start);
  CHECK(watch.look(start + 300ms) == 300ms);
  CHECK(watch.look(start + 300ms + 1h) == 1300ms);  // it was stopped itself
  watch.restart();
  CHECK(watch.look(start + 2h) == 0ms);
}
