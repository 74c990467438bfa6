#include "engine/negotiation/coordinator.h"

#include <cmath>

#include "check.h"
#include "common/errors.h"
#include "engine/negotiation/negotiate.h"
#include "returning.h"

using namespace autotune;
using namespace std::chrono_literals;

namespace {

const TimePoint start{};

Request request(const std::string& name, Shape shape = {4}) {
  Request r;
  r.name = name;
  r.shape = std::move(shape);
  return r;
}

RequestList announce(int64_t step, std::vector<Request> requests) {
  RequestList list;
  list.step = step;
  list.requests = std::move(requests);
  return list;
}

RequestList hit(int64_t step, int64_t slot, uint64_t processed) {
  RequestList list;
  list.step = step;
  list.processed = processed;
  list.set_hit(slot);
  return list;
}

// The error text of one negotiation of two ranks.
std::string error_of(const Request& a, const Request& b) {
  return negotiate({{0, &a}, {1, &b}}, {}, 2).error;
}

}  // namespace

TEST(nothing_is_sent_before_all_ranks_have_announced) {
  Coordinator coordinator(3, {});
  coordinator.add(2, announce(0, {request("x")}), start);
  coordinator.add(0, announce(0, {request("x")}), start);
  CHECK(take(coordinator).empty());
  coordinator.add(1, announce(0, {request("x")}), start);
  const auto lists = take(coordinator);
  CHECK_EQUAL(lists.size(), size_t{1});
  CHECK_EQUAL(lists[0].responses[0].items[0].name, "x");
  CHECK(!coordinator.has_pending());
}

TEST(a_factor_that_is_no_number_on_any_rank_is_no_mismatch) {
  Request a = request("x"), b = request("x");
  a.prescale = b.prescale = std::nan("");
  CHECK_EQUAL(error_of(a, b), "");
  b.prescale = 1;
  CHECK(error_of(a, b).find("prescale factor") != std::string::npos);
}

TEST(mismatches_name_tensor_ranks_and_both_values) {
  Request a = request("x"), b = request("x");
  b.shape = {5};
  CHECK(error_of(a, b).find(
            "allreduce 'x' failed: expected the same shape on all ranks, got [4] on rank 0 and "
            "[5] on rank 1 (of 2)") == 0);
  b = a, b.dtype = DataType::float64;
  CHECK(
      error_of(a, b).find("data type on all ranks, got float32 on rank 0 and float64 on rank 1") !=
      std::string::npos);
  b = a, b.operation = Operation::broadcast;
  CHECK(error_of(a, b).find("got allreduce on rank 0 and broadcast on rank 1") !=
        std::string::npos);
  b = a, b.reduce_op = ReduceOp::max;
  CHECK(error_of(a, b).find("got sum on rank 0 and max on rank 1") != std::string::npos);
  b = a, b.prescale = 0.5;
  CHECK(error_of(a, b).find("got 1 on rank 0 and 0.5 on rank 1") != std::string::npos);
  b = a, b.postscale = 1 + 1e-15;
  CHECK(error_of(a, b).find("1.000000000000001") != std::string::npos);
  a.operation = b.operation = Operation::broadcast;
  a.root_rank = 0, b.root_rank = 1, b.postscale = 1;
  CHECK(error_of(a, b).find("root rank on all ranks, got 0 on rank 0 and 1 on rank 1") !=
        std::string::npos);
}

TEST(allgather_wants_equal_dimensions_but_the_first) {
  Request a = request("g", {2, 3}), b = request("g", {7, 3});
  a.operation = b.operation = Operation::allgather;
  CHECK_EQUAL(error_of(a, b), "");
  CHECK(negotiate({{0, &a}, {1, &b}}, {}, 2).items[0].rows == (std::vector<int64_t>{2, 7}));
  b.shape = {7, 4};
  CHECK(error_of(a, b).find("got [2, 3] on rank 0 and [7, 4] on rank 1") != std::string::npos);
  b.shape = {7};
  CHECK(error_of(a, b).find("number of dimensions") != std::string::npos);
  a.shape = b.shape = {};
  CHECK(error_of(a, b).find("at least one dimension") != std::string::npos);
}

TEST(an_error_does_not_stop_the_next_negotiation_and_is_not_remembered) {
  Coordinator coordinator(2, {});
  coordinator.add(0, announce(0, {request("x", {1})}), start);
  coordinator.add(1, announce(0, {request("x", {2})}), start);
  auto lists = take(coordinator);
  CHECK(!lists[0].responses[0].error.empty());
  CHECK_EQUAL(lists[0].responses[0].items[0].cache_slot, -1);
  coordinator.add(0, announce(0, {request("x", {1})}), start);
  coordinator.add(1, announce(0, {request("x", {1})}), start);
  CHECK(take(coordinator)[0].responses[0].error.empty());
}

TEST(hits_are_answered_by_slot) {
  Coordinator coordinator(2, {});
  for (int rank : {0, 1}) coordinator.add(rank, announce(0, {request("x")}), start);
  const int64_t slot = take(coordinator)[0].responses[0].items[0].cache_slot;
  CHECK(slot >= 0);
  for (int rank : {0, 1}) coordinator.add(rank, hit(1, slot, 1), start);
  const ResponseItem item = take(coordinator)[0].responses[0].items[0];
  CHECK(item.from_cache);
  CHECK_EQUAL(item.cache_slot, slot);
}

TEST(a_hit_and_a_different_request_for_one_name_are_a_named_mismatch_in_either_order) {
  for (int first : {0, 1}) {
    Coordinator coordinator(2, {});
    for (int rank : {0, 1}) coordinator.add(rank, announce(0, {request("x", {4})}), start);
    const int64_t slot = take(coordinator)[0].responses[0].items[0].cache_slot;
    if (first == 0) coordinator.add(0, hit(1, slot, 1), start);
    coordinator.add(1, announce(1, {request("x", {9})}), start);
    if (first == 1) coordinator.add(0, hit(1, slot, 1), start);
    const std::string error = take(coordinator)[0].responses[0].error;
    CHECK(error.find("got [4] on rank 0 and [9] on rank 1") != std::string::npos);
    CHECK(!coordinator.has_pending());
  }
}

TEST(a_hit_of_a_slot_that_was_given_away_meanwhile_is_understood) {
  Params params;
  params.cache_capacity = 1;
  Coordinator coordinator(2, params);
  for (int rank : {0, 1}) coordinator.add(rank, announce(0, {request("x")}), start);
  CHECK_EQUAL(take(coordinator)[0].responses[0].items[0].cache_slot, 0);
  for (int rank : {0, 1}) {
    RequestList list = announce(0, {request("y")});
    list.processed = 1;
    coordinator.add(rank, list, start);
  }
  CHECK_EQUAL(take(coordinator)[0].responses[0].items[0].cache_slot, 0);  // y took the slot
  for (int rank : {0, 1}) coordinator.add(rank, hit(0, 0, 1), start);     // both still mean x
  const ResponseItem item = take(coordinator)[0].responses[0].items[0];
  CHECK_EQUAL(item.name, "x");
  CHECK(!item.from_cache);
}

TEST(a_change_waits_for_the_next_step_and_operations_of_two_steps_do_not_fuse) {
  Coordinator coordinator(2, {});
  for (int rank : {0, 1}) coordinator.add(rank, announce(5, {request("a")}), start);
  CHECK(!take(coordinator)[0].change);
  Params params;
  params.fusion_threshold_bytes = 0;
  coordinator.propose(1, params);
  for (int rank : {0, 1}) {
    coordinator.add(rank, announce(5, {request("b")}), start);
    coordinator.add(rank, announce(6, {request("c"), request("d")}), start);
  }
  const auto lists = take(coordinator);
  CHECK_EQUAL(lists.size(), size_t{2});
  CHECK(!lists[0].change);
  CHECK_EQUAL(lists[0].responses[0].items[0].name, "b");
  CHECK(lists[1].change.has_value());
  CHECK_EQUAL(lists[1].change->first_step, 6);
  CHECK_EQUAL(lists[1].responses.size(), size_t{2});  // the new threshold decides: no fusion
}

TEST(shrinking_the_cache_names_what_is_on_its_way_through_it) {
  Coordinator coordinator(2, {});
  for (int rank : {0, 1}) coordinator.add(rank, announce(0, {request("x"), request("y")}), start);
  const auto first = take(coordinator);
  const auto& items = first[0].responses[0].items;
  Params params;
  params.cache_capacity = 0;
  coordinator.propose(1, params);
  coordinator.add(0, hit(1, items[0].cache_slot, 1), start);  // x: half way
  for (int rank : {0, 1}) coordinator.add(rank, hit(1, items[1].cache_slot, 1), start);
  const auto lists = take(coordinator);
  CHECK_EQUAL(lists[0].evicted_slots.size(), size_t{2});
  CHECK_EQUAL(lists[0].responses[0].items[0].name, "y");
  CHECK(!lists[0].responses[0].items[0].from_cache);
  coordinator.add(1, hit(1, items[0].cache_slot, 1), start);
  CHECK_EQUAL(take(coordinator)[0].responses[0].items[0].name, "x");
}

TEST(stalled_tensors_name_the_missing_ranks_cached_or_not) {
  Coordinator coordinator(3, {});
  for (int rank : {0, 1, 2}) coordinator.add(rank, announce(0, {request("x")}), start);
  const int64_t slot = take(coordinator)[0].responses[0].items[0].cache_slot;
  coordinator.add(1, hit(1, slot, 1), start);
  coordinator.add(0, announce(1, {request("y")}), start + 5s);
  CHECK(coordinator.stalled(start + 5s, 10s).empty());
  const auto stalled = coordinator.stalled(start + 12s, 10s);
  CHECK_EQUAL(stalled.size(), size_t{1});
  CHECK_EQUAL(stalled[0].name, "x");
  CHECK(stalled[0].missing_ranks == (std::vector<int>{0, 2}));
  CHECK_EQUAL(coordinator.stalled(start + 60s, 10s).size(), size_t{2});
}

TEST(one_ranks_shutdown_ends_the_sequence_after_what_is_ready) {
  Coordinator coordinator(2, {});
  for (int rank : {0, 1}) coordinator.add(rank, announce(0, {request("x")}), start);
  RequestList bye;
  bye.shutdown = true;
  bye.requests = {request("y")};
  coordinator.add(1, bye, start);
  const auto lists = take(coordinator);
  CHECK_EQUAL(lists.size(), size_t{2});
  CHECK(!lists[0].shutdown);
  CHECK(lists[1].shutdown);
  CHECK_EQUAL(lists[1].shutdown_reason, "rank 1 shut down after 2 operations");
}

TEST(a_set_needs_its_members_only_and_ready_operations_of_all_sets_have_one_order) {
  Coordinator coordinator(3, {});
  Request add = request("add", {0, 2});
  add.operation = Operation::add_process_set;
  for (int rank : {0, 1, 2}) coordinator.add(rank, announce(0, {add}), start);
  CHECK_EQUAL(take(coordinator)[0].responses[0].root_rank, 1);
  Request member = request("x");
  member.process_set = 1;
  coordinator.add(1, announce(0, {request("y")}), start);
  coordinator.add(2, announce(0, {member, request("y")}), start);
  CHECK(take(coordinator).empty());
  coordinator.add(0, announce(0, {member, request("y")}), start);
  const auto lists = take(coordinator);
  CHECK_EQUAL(lists[0].responses.size(), size_t{2});  // sets do not fuse
  CHECK_EQUAL(lists[0].responses[0].process_set, 1);
  CHECK_EQUAL(lists[0].responses[1].items[0].name, "y");
}

TEST(stalled_tensors_of_a_set_miss_its_members_only_and_nobody_who_has_joined) {
  Coordinator coordinator(4, {});
  Request add = request("add", {0, 2, 3});
  add.operation = Operation::add_process_set;
  for (int rank : {0, 1, 2, 3}) coordinator.add(rank, announce(0, {add}), start);
  take(coordinator);
  Request member = request("x");
  member.process_set = 1;
  coordinator.add(2, announce(0, {member}), start);
  CHECK(coordinator.stalled(start + 2s, 1s)[0].missing_ranks == (std::vector<int>{0, 3}));
  Request join = request("join", {});
  join.operation = Operation::join;
  coordinator.add(3, announce(0, {join}), start);
  CHECK(coordinator.stalled(start + 2s, 1s)[0].missing_ranks == (std::vector<int>{0}));
}

TEST(a_cached_tensor_is_sent_in_full_while_a_rank_has_joined_and_by_slot_afterwards) {
  Coordinator coordinator(2, {});
  for (int rank : {0, 1}) coordinator.add(rank, announce(0, {request("x")}), start);
  const int64_t slot = take(coordinator)[0].responses[0].items[0].cache_slot;
  Request join = request("join", {});
  join.operation = Operation::join;
  coordinator.add(0, hit(1, slot, 1), start);
  CHECK(take(coordinator).empty());
  RequestList joining = announce(1, {join});
  joining.processed = 1;
  coordinator.add(1, joining, start);  // makes the tensor ready that waited for rank 1
  const ResponseItem item = take(coordinator)[0].responses[0].items[0];
  CHECK(!item.from_cache);
  CHECK_EQUAL(item.cache_slot, -1);
  CHECK_EQUAL(item.name, "x");
  CHECK_EQUAL(item.count, 4);
  joining.step = 7;
  joining.processed = 2;
  coordinator.add(0, joining, start);
  const Response joined = take(coordinator)[0].responses[0];
  CHECK(joined.operation == Operation::join);
  CHECK_EQUAL(joined.root_rank, 0);
  CHECK_EQUAL(joined.step, 7);
  for (int rank : {0, 1}) coordinator.add(rank, hit(8, slot, 3), start);
  CHECK(take(coordinator)[0].responses[0].items[0].from_cache);
}

// What a rank cannot have meant is an error that names it, and not an operation.

namespace {

// A coordinator of 3 ranks that remembers 'x' of all ranks in slot 0 and 'y' of ranks 0 and 1,
// process set 1, in slot 1; two lists are sent so far.
struct Remembering {
  Coordinator coordinator{3, {}};

  Remembering() {
    Request add = request("add", {0, 1});
    add.operation = Operation::add_process_set;
    for (int rank = 0; rank < 3; ++rank) {
      coordinator.add(rank, announce(0, {add, request("x")}), start);
    }
    take(coordinator);
    for (int rank = 0; rank < 2; ++rank) coordinator.add(rank, announce(1, {of_set("y")}), start);
    take(coordinator);
  }

  static Request of_set(const std::string& name) {
    Request made = request(name);
    made.process_set = 1;
    complete_name(made.name, 1);
    return made;
  }
};

std::string refused(int rank, const RequestList& list) {
  Remembering job;
  try {
    job.coordinator.add(rank, list, start);
    take(job.coordinator);
  } catch (const EngineError& error) {
    const std::string text = error.what();
    CHECK_EQUAL(text.find("negotiation: rank " + std::to_string(rank) + " announced "), size_t{0});
    return text;
  }
  return "";
}

std::string refused(const Request& request) { return refused(2, announce(2, {request})); }

}  // namespace

TEST(a_coordinator_refuses_hits_that_cannot_be_meant) {
  CHECK_EQUAL(refused(2, hit(2, 0, 2)), "");
  CHECK_EQUAL(refused(1, hit(2, 1, 2)), "");
  CHECK(contains(refused(2, hit(2, 5, 2)), "cache slot 5, which is empty"));
  CHECK(contains(refused(2, hit(2, 100'000, 2)), "cache slot 100000, which is empty"));
  CHECK(contains(refused(2, hit(2, 1, 2)), "'y' (process set 1) of a process set that it is not"));
  CHECK(contains(refused(2, hit(2, 0, 3)), "processed 3 response lists, of 2"));
  CHECK(contains(refused(7, hit(2, 0, 2)), "of 3 ranks"));
  CHECK(contains(refused(-1, hit(2, 0, 2)), "of 3 ranks"));
}

TEST(a_coordinator_refuses_what_is_announced_twice) {
  Remembering job;
  Coordinator& coordinator = job.coordinator;
  coordinator.add(1, hit(2, 0, 2), start);
  CHECK_THROWS(EngineError, "rank 1 announced allreduce 'x' twice",
               coordinator.add(1, hit(2, 0, 2), start));
  coordinator.add(1, announce(2, {request("z")}), start);
  CHECK_THROWS(EngineError, "rank 1 announced allreduce 'z' twice",
               coordinator.add(1, announce(2, {request("z")}), start));
  Request join = request("join", {});
  join.operation = Operation::join;
  coordinator.add(2, announce(2, {join}), start);
  CHECK_THROWS(EngineError, "rank 2 announced join 'join' twice",
               coordinator.add(2, announce(2, {join}), start));
}

TEST(a_coordinator_refuses_requests_that_no_rank_may_send) {
  Request made = Remembering::of_set("z");
  CHECK(contains(refused(made), "of a process set that it is not in"));
  made = request("z");
  made.process_set = 2;
  complete_name(made.name, 2);
  CHECK(contains(refused(made), "process set 2, which there has never been"));
  made = request("z");
  made.operation = Operation::broadcast;
  made.root_rank = 3;
  CHECK(contains(refused(made), "expected a root rank from 0 to 2, got 3"));
  made.operation = Operation::alltoall;
  made.splits = {2, 2};
  CHECK(contains(refused(made), "expected 3 splits"));
  made.splits = {2, 2, 1};
  CHECK(contains(refused(made), "expected splits that sum to at most the first dimension, 4"));
  made.splits = {int64_t{1} << 62, int64_t{1} << 62, int64_t{1} << 62};
  CHECK(contains(refused(made), "expected splits that sum to at most the first dimension, 4"));
  made.shape = {};
  CHECK(contains(refused(made), "at least one dimension"));
  made = request("z");
  made.reduce_op = ReduceOp::adasum;
  CHECK(contains(refused(made), "power of two"));
  made.dtype = DataType::int32;
  CHECK(contains(refused(made), "expected a float tensor for Adasum"));
  made.reduce_op = ReduceOp::average;
  made.dtype = DataType::boolean;
  CHECK(contains(refused(made), "without factors for a bool"));
  made = request("add", {0, 3});
  made.operation = Operation::add_process_set;
  CHECK(contains(refused(made), "different ranks from 0 to 2, got [0, 3]"));
  for (const Shape& ranks : {Shape{}, Shape{1, 1}, Shape{1, 0}, Shape{-1}}) {
    made.shape = ranks;
    CHECK(contains(refused(made), "different ranks from 0 to 2"));
  }
  made.operation = Operation::remove_process_set;
  made.shape = {0};
  CHECK(contains(refused(made), "a process set that is not 0"));
  made.root_rank = 9;
  made.shape = {9};
  CHECK(contains(refused(made), "a process set that there has never been, 9"));
}
