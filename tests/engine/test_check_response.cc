#include "engine/negotiation/check_response.h"

#include "check.h"
#include "common/errors.h"
#include "engine/negotiation/negotiate.h"

using namespace autotune;

namespace {

Request own_request(Operation operation) {
  Request own;
  own.name = "x";
  own.operation = operation;
  own.shape = {3, 2};
  own.root_rank = 2;
  if (operation == Operation::alltoall) own.splits = {1, 2};
  return own;
}

// What two ranks, 0 and 2, of a job of three get for requests like `own`.
Response answer(const Request& own) {
  Response response = negotiate({{0, &own}, {2, &own}}, {}, 3);
  response.process_set = 1;
  return response;
}

ProcessSetTable sets() {
  ProcessSetTable table(3);
  table.add(1, {0, 2});
  return table;
}

// The error of the rank at position 1 of the set with the request `own`; "" without one.
std::string error_of(const Response& response, Request own) {
  own.process_set = response.process_set;
  const ProcessSetTable table = sets();
  try {
    const ProcessSet& set = check_response(response, table);
    check_item(response, response.items[0], own, set, 1);
  } catch (const EngineError& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST(what_negotiation_decides_is_accepted_by_the_ranks_that_announced_it) {
  for (const Operation operation :
       {Operation::allreduce, Operation::allgather, Operation::broadcast, Operation::barrier,
        Operation::alltoall, Operation::reducescatter}) {
    const Request own = own_request(operation);
    CHECK_EQUAL(error_of(answer(own), own), "");
  }
}

TEST(a_response_that_means_another_operation_than_was_announced_is_refused) {
  const Request own = own_request(Operation::allreduce);
  const auto with = [&](auto&& change) {
    Response response = answer(own);
    change(response);
    return error_of(response, own);
  };
  const std::string text = with([](Response& r) { r.dtype = DataType::float64; });
  CHECK(contains(text, "allreduce 'x'"));
  CHECK(contains(text, "data type float32 and float64"));
  CHECK(contains(with([](Response& r) { r.operation = Operation::reducescatter; }), "operation"));
  CHECK(contains(with([](Response& r) { r.on_device = true; }), "device CPU and GPU"));
  CHECK(contains(with([](Response& r) { r.reduce_op = ReduceOp::max; }), "reduce op"));
  CHECK(contains(with([](Response& r) { r.postscale = 2; }), "postscale factor 1 and 2"));
  CHECK(contains(with([](Response& r) { r.wire_type = DataType::float16; }), "compression"));
  CHECK(contains(with([](Response& r) { r.process_set = 4; }), "a process set that exists"));
  CHECK(contains(with([](Response& r) { r.items[0].count = 5; }), "expected 6 elements"));
  CHECK_EQUAL(with([](Response& r) { r.items[0].count = 6; }), "");
  CHECK_EQUAL(with([](Response& r) {
                r.dtype = DataType::int8;
                r.error = "why";
              }),
              "");
}

TEST(rows_that_are_not_those_of_this_rank_or_not_one_for_each_are_refused) {
  Request own = own_request(Operation::allgather);
  const auto with = [&](std::vector<int64_t> rows) {
    Response response = answer(own);
    response.items[0].rows = std::move(rows);
    return error_of(response, own);
  };
  CHECK_EQUAL(with({9, 3}), "");
  CHECK(contains(with({3}), "2 numbers of rows"));
  CHECK(contains(with({3, 3, 3}), "2 numbers of rows"));
  CHECK(contains(with({3, 4}), "this rank's tensor of shape [3, 2]"));
  CHECK(contains(with({most_elements, 3}), "less rows"));
  own = own_request(Operation::alltoall);
  CHECK_EQUAL(with({5, 5, 1, 2}), "");
  CHECK(contains(with({5, 5, 1}), "4 numbers of rows"));
  CHECK(contains(with({5, 5, 2, 1}), "this rank's splits [1, 2], got [2, 1]"));
}

TEST(roots_checks_and_process_sets_that_cannot_be_are_refused) {
  const Request own = own_request(Operation::broadcast);
  Response response = answer(own);
  response.root_rank = 1;
  CHECK(contains(error_of(response, own), "a root rank of [0, 2], got 1"));
  response = answer(own);
  response.check = 0;
  CHECK(contains(error_of(response, own), "no check of its result"));
  const auto of_sets = [](Operation operation, int32_t id, std::vector<int64_t> ranks) {
    Response made;
    made.operation = operation;
    made.root_rank = id;
    made.items = {{"set", -1, false, std::move(ranks)}};
    try {
      check_response(made, sets());
    } catch (const EngineError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK_EQUAL(of_sets(Operation::add_process_set, 2, {0, 1}), "");
  CHECK(contains(of_sets(Operation::add_process_set, 1, {0, 1}), "a new process set, got 1"));
  CHECK(contains(of_sets(Operation::add_process_set, 2, {0, 3}), "ranks of the job, got [0, 3]"));
  CHECK(contains(of_sets(Operation::add_process_set, 2, {}), "ranks of the job"));
  CHECK_EQUAL(of_sets(Operation::remove_process_set, 1, {}), "");
  CHECK(contains(of_sets(Operation::remove_process_set, 0, {}), "that exists, and not 0, got 0"));
  CHECK(contains(of_sets(Operation::remove_process_set, 2, {}), "that exists, and not 0, got 2"));
}
