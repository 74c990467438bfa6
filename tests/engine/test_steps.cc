#include "engine/submission/steps.h"

#include "check.h"

using namespace autotune;
using namespace std::chrono_literals;

namespace {

Request request(const std::string& name, int64_t length, bool named = true) {
  Request r;
  r.name = name;
  r.shape = {length};
  r.cacheable = named;
  return r;
}

// Feed operations as the engine does and count the steps that end.
struct Feed {
  StepTracker tracker{StepTracker::TimePoint{}};
  StepTracker::TimePoint now{};
  int64_t steps = 0;
  void operator()(const Request& r) {
    now += 2ms;
    if (tracker.begins_step(r)) {
      tracker.append(tracker.end(now, 0, 0));
      ++steps;
    }
    tracker.add_operation(r);
  }
  std::vector<StepRecord> drain() {
    std::vector<StepRecord> records;
    std::vector<std::pair<int64_t, OperationSizes>> signatures;
    tracker.drain(now, records, signatures);
    return records;
  }
};

}  // namespace

TEST(a_name_that_comes_again_begins_a_step_in_any_order) {
  Feed feed;
  for (int i = 0; i < 10; ++i) {
    const bool odd = i % 2;
    feed(request(odd ? "b" : "a", 3));
    feed(request(odd ? "a" : "b", 3));
  }
  CHECK_EQUAL(feed.steps, 9);
  const auto records = feed.drain();
  for (const StepRecord& record : records) CHECK_EQUAL(record.signature, records[0].signature);
}

TEST(unnamed_operations_advance_by_their_period) {
  Feed feed;
  feed(request("start", 99, false));  // something that is not part of the loop
  for (int i = 0; i < 200; ++i) {
    for (int64_t length : {3, 3, 5}) feed(request("n", length, false));
  }
  CHECK(feed.steps > 190);
  CHECK(feed.steps < 201);
}

TEST(a_long_run_of_equal_unnamed_operations_settles_on_the_true_period) {
  Feed feed;
  for (int i = 0; i < 100; ++i) {
    for (int k = 0; k < 20; ++k) feed(request("n", k < 19 ? 7 : 8, false));
  }
  feed.steps = 0;
  for (int i = 0; i < 100; ++i) {
    for (int k = 0; k < 20; ++k) feed(request("n", k < 19 ? 7 : 8, false));
  }
  CHECK_EQUAL(feed.steps, 100);
}

TEST(an_explicit_end_switches_repetition_off) {
  Feed feed;
  feed.tracker.set_explicit();
  for (int i = 0; i < 10; ++i) feed(request("a", 1));
  CHECK_EQUAL(feed.steps, 0);
}

TEST(records_tell_steps_that_the_script_ends_from_those_that_were_found) {
  Feed feed;
  for (int i = 0; i < 4; ++i) feed(request("a", 1));
  feed.tracker.set_explicit();
  for (int i = 0; i < 2; ++i) {
    feed(request("a", 1));
    feed.tracker.append(feed.tracker.end(feed.now += 5ms, 0, 0));
  }
  const auto records = feed.drain();
  CHECK_EQUAL(records.size(), size_t{5});
  for (size_t i = 0; i < 5; ++i) CHECK_EQUAL(records[i].is_explicit, i >= 3);
}

TEST(operations_that_nobody_waits_for_are_exposed_after_the_last_hand_over) {
  StepTracker tracker{StepTracker::TimePoint{}};
  StepTracker::TimePoint now{};
  const auto end = [&] { return tracker.end(now += 1ms, 0, 0).exposed_us; };
  tracker.hand_over(now += 1ms);
  tracker.complete(0, now += 1ms);  // while the script goes on: another one follows
  tracker.hand_over(now += 1ms);
  tracker.complete(0, now += 3ms);
  tracker.complete(0, now += 4ms);
  CHECK_EQUAL(end(), 7000.0);
  CHECK_EQUAL(end(), 0.0);
  tracker.hand_over(now += 1ms);
  tracker.complete(1, now += 2ms);  // of an earlier step
  CHECK_EQUAL(end(), 0.0);
  tracker.hand_over(now += 1ms);
  tracker.add_exposed(5ms);  // a thread has waited, too
  tracker.complete(3, now += 2ms);
  CHECK_EQUAL(end(), 7000.0);
}

TEST(short_steps_of_which_only_the_later_are_explicit_do_not_merge) {
  StepTracker tracker{StepTracker::TimePoint{}};
  StepTracker::TimePoint now{};
  for (int i = 0; i < 4; ++i) {
    if (i == 2) tracker.set_explicit();
    tracker.add_operation(request("a", 1));
    tracker.append(tracker.end(now += 10us, 0, 0));
  }
  std::vector<StepRecord> records;
  std::vector<std::pair<int64_t, OperationSizes>> signatures;
  tracker.drain(now, records, signatures);
  CHECK_EQUAL(records.size(), size_t{2});
  CHECK_EQUAL(records[0].count, 2);
  CHECK_EQUAL(records[1].count, 2);
}

TEST(a_signature_is_what_is_communicated_whatever_its_name) {
  Feed feed;
  feed.tracker.set_explicit();
  const auto end = [&] { feed.tracker.append(feed.tracker.end(feed.now += 5ms, 0, 0)); };
  Request elsewhere = request("grad", 10);
  elsewhere.process_set = 1;
  feed(request("grad", 10)), feed(request("loss 1", 1)), end();
  feed(request("loss 2", 1)), feed(request("grad", 10)), end();
  feed(request("grad", 10)), feed(request("loss 1", 1)), feed(request("loss 2", 1)), end();
  feed(elsewhere), feed(request("loss 1", 1)), end();
  const auto records = feed.drain();
  CHECK_EQUAL(records.size(), size_t{4});
  CHECK_EQUAL(records[0].signature, records[1].signature);
  CHECK(records[0].signature != records[2].signature);
  CHECK(records[0].signature != records[3].signature);
}

TEST(signatures_that_come_again_are_told_however_many_others_came_before) {
  Feed feed;
  feed.tracker.set_explicit();
  const auto end = [&] { feed.tracker.append(feed.tracker.end(feed.now += 5ms, 0, 0)); };
  for (int64_t i = 0; i < 10'000; ++i) feed(request("odd", 100 + i)), end();
  for (int i = 0; i < 3; ++i) feed(request("grad", 10)), end();
  std::vector<StepRecord> records;
  std::vector<std::pair<int64_t, OperationSizes>> signatures;
  feed.tracker.drain(feed.now, records, signatures);
  CHECK_EQUAL(signatures.size(), size_t{1});
  CHECK_EQUAL(signatures[0].first, records.back().signature);
  CHECK(signatures[0].second == (OperationSizes{{"allreduce", 40}}));
}

TEST(evaluation_has_another_signature_and_paused_steps_have_none) {
  Feed feed;
  feed.tracker.set_explicit();
  const auto end = [&] { feed.tracker.append(feed.tracker.end(feed.now += 5ms, 0, 0)); };
  feed(request("grad", 10)), end();
  feed(request("grad", 10)), feed(request("accuracy", 1)), end();
  feed.tracker.set_paused(true);
  feed(request("grad", 10)), end();
  const auto records = feed.drain();
  CHECK_EQUAL(records.size(), size_t{3});
  CHECK(records[0].signature != records[1].signature);
  CHECK(records[0].signature != 0);
  CHECK_EQUAL(records[2].signature, int64_t{0});
}

TEST(an_allgather_with_another_first_dimension_is_the_same_step) {
  Feed feed;
  feed.tracker.set_explicit();
  for (int64_t rows : {4, 9}) {
    Request r = request("g", rows);
    r.operation = Operation::allgather;
    feed(r);
    feed.tracker.append(feed.tracker.end(feed.now += 5ms, 0, 0));
  }
  const auto records = feed.drain();
  CHECK_EQUAL(records.size(), size_t{2});
  CHECK_EQUAL(records[0].signature, records[1].signature);
}

TEST(a_step_that_an_epoch_does_not_cover_whole_belongs_to_none) {
  Feed feed;
  feed.tracker.set_explicit();
  feed(request("a", 1));
  feed.tracker.append(
      feed.tracker.end(feed.now += 5ms, 3, 1));  // epoch 3 begins with step 1; this is step 0
  feed(request("a", 1));
  feed.tracker.append(feed.tracker.end(feed.now += 5ms, 3, 1));
  const auto records = feed.drain();
  CHECK_EQUAL(records[0].epoch, int64_t{-1});
  CHECK_EQUAL(records[1].epoch, int64_t{3});
}

TEST(samples_belong_to_the_step_in_progress_and_add_up_when_steps_merge) {
  Feed feed;
  for (int64_t samples : {32, 0, 48}) {
    feed.tracker.add_operation(request("a", 3));
    feed.tracker.add_samples(samples);
    feed.tracker.append(feed.tracker.end(feed.now += 2ms, 0, 0));
  }
  const auto records = feed.drain();
  CHECK_EQUAL(records.size(), 3u);
  CHECK_EQUAL(records[0].samples, 32);
  CHECK_EQUAL(records[1].samples, 0);
  CHECK_EQUAL(records[2].samples, 48);
  for (int i = 0; i < 4; ++i) {
    feed.tracker.add_samples(5);
    feed.tracker.append(feed.tracker.end(feed.now += 100us, 0, 0));
  }
  CHECK_EQUAL(feed.drain()[0].samples, 20);
}

TEST(short_steps_are_merged_until_a_millisecond_and_lose_nothing) {
  StepTracker tracker{StepTracker::TimePoint{}};
  tracker.set_explicit();
  StepTracker::TimePoint now{};
  for (int i = 0; i < 1000; ++i) {
    tracker.add_operation(request("a", 1));
    tracker.append(tracker.end(now += 100us, 0, 0));
  }
  std::vector<StepRecord> records;
  std::vector<std::pair<int64_t, OperationSizes>> signatures;
  tracker.drain(now, records, signatures);
  CHECK_EQUAL(records.size(), size_t{100});
  int64_t count = 0, bytes = 0;
  double duration = 0;
  for (const StepRecord& record : records) {
    count += record.count;
    bytes += record.payload_bytes;
    duration += record.duration_us;
  }
  CHECK_EQUAL(count, 1000);
  CHECK_EQUAL(bytes, 4000);
  CHECK(duration > 99'999 && duration < 100'001);
  CHECK_EQUAL(signatures.size(), size_t{1});
}

TEST(operations_on_gpus_are_told_apart_from_those_on_cpus) {
  StepTracker tracker{StepTracker::TimePoint{}};
  tracker.set_explicit();
  for (bool on_device : {false, true}) {
    Request r = request("a", 5);
    r.on_device = on_device;
    r.operation = Operation::allgather;
    for (int i = 0; i < 2; ++i) {
      tracker.add_operation(r);
      tracker.append(tracker.end(StepTracker::TimePoint{}, 0, 0));
    }
  }
  std::vector<StepRecord> records;
  std::vector<std::pair<int64_t, OperationSizes>> signatures;
  tracker.drain(StepTracker::TimePoint{}, records, signatures);
  CHECK_EQUAL(signatures.size(), size_t{2});
  CHECK(signatures[0].second == (OperationSizes{{"allgather", 20}}));
  CHECK(signatures[1].second == (OperationSizes{{"cuda allgather", 20}}));
}

TEST(names_that_never_come_back_do_not_make_a_step_that_lasts_for_ever) {
  Feed feed;
  int64_t ended = 0, length = 0;
  for (int i = 0; i < 300'000; ++i) {
    feed(request("metric " + std::to_string(i), 1));
    length = feed.steps == ended ? length + 1 : 1;
    ended = feed.steps;
    CHECK(length <= 1 << 14);
  }
  CHECK_EQUAL(ended, 300'000 >> 14);
}
