// Whatever ranks disagree about fails on every rank with tensor, ranks and both values in the text,
// and the engine goes on.
#include "check.h"
#include "common/message_memory.h"
#include "engine/engine.h"
#include "engine_fixture.h"

using namespace autotune;

namespace {

struct Case {
  Operation operation;
  std::string expected;
  std::function<void(Request&)> on_rank_1;
};

std::vector<Case> cases() {
  using Op = Operation;
  return {
      {Op::allreduce, "same data type on all ranks, got int32 on rank 0 and float32 on rank 1",
       [](Request& r) { r.dtype = DataType::float32; }},
      {Op::allreduce,
       "same operation on all ranks, got allreduce on rank 0 and broadcast on rank 1",
       [](Request& r) { r.operation = Op::broadcast; }},
      {Op::allreduce, "same operation on all ranks, got allreduce on rank 0 and alltoall on rank 1",
       [](Request& r) { r.operation = Op::alltoall; }},
      {Op::allreduce, "same shape on all ranks, got [6, 2] on rank 0 and [12] on rank 1",
       [](Request& r) { r.shape = {12}; }},
      {Op::broadcast, "same shape on all ranks, got [6, 2] on rank 0 and [6, 1] on rank 1",
       [](Request& r) { r.shape = {6, 1}; }},
      {Op::reducescatter, "same shape on all ranks, got [6, 2] on rank 0 and [5, 2] on rank 1",
       [](Request& r) { r.shape = {5, 2}; }},
      {Op::allreduce, "same prescale factor on all ranks, got 1 on rank 0 and 0.5 on rank 1",
       [](Request& r) { r.prescale = 0.5; }},
      {Op::reducescatter, "same postscale factor on all ranks, got 1 on rank 0 and 2 on rank 1",
       [](Request& r) { r.postscale = 2; }},
      {Op::allreduce, "same reduce op on all ranks, got sum on rank 0 and min on rank 1",
       [](Request& r) { r.reduce_op = ReduceOp::min; }},
      {Op::reducescatter, "same reduce op on all ranks, got sum on rank 0 and average on rank 1",
       [](Request& r) { r.reduce_op = ReduceOp::average; }},
      {Op::allgather,
       "same shape after the first dimension on all ranks, got [6, 2] on rank 0 and [4, 3] on rank "
       "1",
       [](Request& r) { r.shape = {4, 3}; }},
      {Op::alltoall,
       "same number of dimensions on all ranks, got [6, 2] on rank 0 and [12] on rank 1",
       [](Request& r) { r.shape = {12}; }},
      {Op::broadcast, "same root rank on all ranks, got 0 on rank 0 and 2 on rank 1",
       [](Request& r) { r.root_rank = 2; }},
  };
}

}  // namespace

TEST(every_disagreement_fails_on_all_ranks_by_name_and_the_same_name_works_next) {
  for (int64_t capacity : {0, 1024}) {
    EngineOptions options;
    options.params.cache_capacity = capacity;
    with_engines(3, options, [](Engine& engine) {
      std::vector<int32_t> data(12);
      const auto request = [&](const Case& each) {
        data.assign(12, 1);
        TensorEntry entry = allreduce("x", data);
        entry.request.edit().operation = each.operation;
        entry.request.edit().shape = {6, 2};
        return entry;
      };
      for (const Case& each : cases()) {
        wait(engine, engine.enqueue(request(each)));  // right once: what follows meets the cache
        TensorEntry entry = request(each);
        if (engine.rank() == 1) each.on_rank_1(entry.request.edit());
        const std::string error = error_of(engine, engine.enqueue(std::move(entry)));
        CHECK(error.find(std::string(name_of(each.operation)) + " 'x' failed: expected the " +
                         each.expected + " (of 3)") == 0);
        wait(engine, engine.enqueue(request(each)));
      }
      check_goes_on(engine);
    });
  }
}

TEST(a_scalar_cannot_be_gathered_and_the_message_says_what_to_do) {
  with_engines(2, {}, [](Engine& engine) {
    std::vector<int32_t> data(1, 1);
    TensorEntry entry = allreduce("g", data);
    entry.request.edit().operation = Operation::allgather;
    entry.request.edit().shape = {};
    CHECK(error_of(engine, engine.enqueue(std::move(entry))).find("reshape it to [1]") !=
          std::string::npos);
    check_goes_on(engine);
  });
}

TEST(an_error_leaves_other_tensors_in_flight_alone) {
  with_engines(2, {}, [](Engine& engine) {
    std::vector<std::vector<int32_t>> data(20, std::vector<int32_t>(30, 1));
    std::vector<int64_t> handles;
    for (size_t i = 0; i < data.size(); ++i) {
      TensorEntry entry = allreduce("t" + std::to_string(i), data[i]);
      if (i == 7 && engine.rank() == 1) entry.request.edit().shape = {3, 10};
      handles.push_back(engine.enqueue(std::move(entry)));
    }
    CHECK(!error_of(engine, handles[7]).empty());
    for (size_t i = 0; i < data.size(); ++i) {
      if (i == 7) continue;
      wait(engine, handles[i]);
      CHECK_EQUAL(data[i][29], 2);
    }
  });
}

TEST(memory_that_cannot_be_had_is_an_error_that_names_the_bytes) {
  CHECK_THROWS(EngineError, "expected 1152921504606846976 bytes", message_memory(int64_t{1} << 60));
}
