// The C ABI: what a library of another front end sees of the engine.
#include "bindings/abi.h"

#include <utility>

#include "check.h"
#include "completion_fixture.h"
#include "engine/engine.h"

using namespace autotune;

namespace {

// What `hear` was called with.
struct Told {
  int32_t index, status;
  std::string error;
  std::vector<int32_t> result;
  std::vector<int64_t> shape, received;
  int32_t value;
};

struct Ear {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<Told> told;

  std::vector<Told> wait(size_t count) {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return told.size() >= count; });
    return std::exchange(told, {});
  }
};

void hear(void* argument, int32_t index, const autotune_outcome* outcome) {
  Told told{index, outcome->status, outcome->error, {}, {}, {}, outcome->value};
  void* const kept = api().keep(outcome);  // may be nothing
  const auto* const numbers = static_cast<const int32_t*>(outcome->result);
  told.result.assign(numbers, numbers + outcome->result_bytes / 4);
  api().release(kept);
  told.shape.assign(outcome->shape, outcome->shape + outcome->dimensions);
  told.received.assign(outcome->received_splits,
                       outcome->received_splits + outcome->received_count);
  auto& ear = *static_cast<Ear*>(argument);
  const std::lock_guard lock(ear.mutex);
  ear.told.push_back(told);
  ear.changed.notify_all();
}

autotune_operation operation(Operation kind, std::vector<int32_t>& data,
                             const std::vector<int64_t>& shape) {
  autotune_operation made{};
  made.operation = static_cast<int32_t>(kind);
  made.dtype = static_cast<int32_t>(DataType::int32);
  made.reduce_op = static_cast<int32_t>(ReduceOp::sum);
  made.prescale = made.postscale = 1;
  made.shape = shape.data();
  made.dimensions = static_cast<int32_t>(shape.size());
  made.input = data.data();
  if (kind == Operation::allreduce) made.output = data.data();
  return made;
}

autotune_manner manner(Ear& ear, const char* name, const char* kind = "test") {
  autotune_manner made{};
  made.name = name;
  made.kind = kind;
  made.is_awaited = 1;
  made.completed = hear;
  made.argument = &ear;
  return made;
}

// An engine of two ranks; the second is driven by `other`, without the ABI.
void with_two(const std::function<void()>& by_abi, const std::function<void(Engine&)>& other) {
  Job job(2);
  Meeting end(2);
  run_ranks(2, [&](int rank) {
    std::shared_ptr<Engine> engine;
    end.after([&] {
      engine = job.start(rank);
      if (rank == 1) return other(*engine);
      offer(engine, {0, 0});
      by_abi();
    });
    engine->shutdown(std::chrono::seconds(10));
  });
}

}  // namespace

TEST(without_an_engine_the_abi_says_so) {
  std::vector<int32_t> data(2, 1);
  const std::vector<int64_t> shape{2};
  Ear ear;
  const autotune_operation one = operation(Operation::allreduce, data, shape);
  const autotune_manner how = manner(ear, "x");
  CHECK_EQUAL(api().enqueue(&one, 1, &how), AUTOTUNE_FAILED);
  CHECK(contains(api().last_error(), "hvd.init()"));
  CHECK_EQUAL(api().place(AUTOTUNE_RANK), AUTOTUNE_NO_ENGINE);
  CHECK_EQUAL(api().set_includes(0), AUTOTUNE_NO_ENGINE);
}

TEST(operations_by_the_abi_meet_those_of_the_engine) {
  const std::vector<int64_t> shape{2};
  with_two(
      [&] {
        Ear ear;
        std::vector<int32_t> data{1, 2};
        const autotune_operation sum = operation(Operation::allreduce, data, shape);
        const autotune_manner how = manner(ear, "sum");
        CHECK_EQUAL(api().enqueue(&sum, 1, &how), AUTOTUNE_OK);
        CHECK_EQUAL(ear.wait(1)[0].status, AUTOTUNE_OK);
        CHECK_EQUAL(data[1], 4);
        autotune_operation all = operation(Operation::alltoall, data, shape);
        const int64_t splits[] = {0, 2};
        all.splits = splits;
        all.split_count = 2;
        const autotune_manner sent = manner(ear, "all");
        CHECK_EQUAL(api().enqueue(&all, 1, &sent), AUTOTUNE_OK);
        const Told told = ear.wait(1)[0];
        CHECK_EQUAL(to_string(told.shape), "[1]");
        CHECK_EQUAL(to_string(told.received), "[0, 1]");
        CHECK_EQUAL(told.result[0], 7);
      },
      [](Engine& engine) {
        std::vector<int32_t> data{1, 2}, sent{7};
        wait(engine, engine.enqueue(allreduce("sum", data)));
        TensorEntry all = allreduce("all", sent);
        all.request.edit().operation = Operation::alltoall;
        all.request.edit().splits = {1, 0};
        all.output = nullptr;
        wait(engine, engine.enqueue(std::move(all)));
      });
}

TEST(operations_without_a_name_are_numbered_by_kind_and_a_refused_one_does_not_count) {
  const std::vector<int64_t> shape{1};
  with_two(
      [&] {
        Ear ear;
        std::vector<int32_t> data{1};
        const autotune_manner how = manner(ear, nullptr, "allreduce.test");
        for (int i = 0; i < 3; ++i) {
          autotune_operation bad = operation(Operation::allreduce, data, shape);
          bad.process_set = 9;
          CHECK_EQUAL(api().enqueue(&bad, 1, &how), AUTOTUNE_REFUSED);
          CHECK(contains(api().last_error(), "process set"));
          const autotune_operation one = operation(Operation::allreduce, data, shape);
          CHECK_EQUAL(api().enqueue(&one, 1, &how), AUTOTUNE_OK);
          CHECK_EQUAL(ear.wait(1)[0].error, "");
        }
        const autotune_operation group[] = {operation(Operation::allreduce, data, shape),
                                            operation(Operation::allreduce, data, shape)};
        autotune_manner as_group = manner(ear, nullptr, "grouped_allreduce.test");
        as_group.is_group = 1;
        CHECK_EQUAL(api().enqueue(group, 2, &as_group), AUTOTUNE_OK);
        const auto told = ear.wait(2);
        CHECK_EQUAL(told[0].index + told[1].index, 1);
      },
      [](Engine& engine) {
        for (const char* name :
             {"allreduce.test.noname.0", "allreduce.test.noname.1", "allreduce.test.noname.2",
              "grouped_allreduce.test.noname.0_1of2", "grouped_allreduce.test.noname.0_2of2"}) {
          std::vector<int32_t> data{1};
          TensorEntry entry = allreduce(name, data);
          entry.request.edit().cacheable = false;
          wait(engine, engine.enqueue(std::move(entry)));
        }
      });
}

TEST(numbers_begin_anew_when_all_have_joined) {
  const std::vector<int64_t> shape{1};
  with_two(
      [&] {
        Ear ear;
        std::vector<int32_t> data{1};
        const autotune_manner how = manner(ear, nullptr, "allreduce.test");
        const autotune_manner joining = manner(ear, nullptr, "join");
        const autotune_operation one = operation(Operation::allreduce, data, shape);
        const autotune_operation join = operation(Operation::join, data, {});
        for (const autotune_manner* each : {&how, &joining, &how}) {
          CHECK_EQUAL(api().enqueue(each == &joining ? &join : &one, 1, each), AUTOTUNE_OK);
          CHECK_EQUAL(ear.wait(1)[0].error, "");
        }
      },
      [](Engine& engine) {
        TensorEntry entry;
        entry.request.edit().operation = Operation::join;
        entry.request.edit().name = "join.noname.0";
        entry.request.edit().cacheable = false;
        wait(engine, engine.enqueue(std::move(entry)));
        std::vector<int32_t> data{1};
        TensorEntry first = allreduce("allreduce.test.noname.0", data);
        first.request.edit().cacheable = false;
        wait(engine, engine.enqueue(std::move(first)));
      });
}

TEST(the_place_of_a_rank_is_that_of_the_job) {
  with_two(
      [] {
        CHECK_EQUAL(api().place(AUTOTUNE_RANK), 0);
        CHECK_EQUAL(api().place(AUTOTUNE_SIZE), 2);
        CHECK_EQUAL(api().place(AUTOTUNE_LOCAL_SIZE), 2);
        CHECK_EQUAL(api().set_size(0), 2);
        CHECK_EQUAL(api().set_includes(0), 1);
        CHECK_EQUAL(api().set_size(5), AUTOTUNE_NO_SET);
      },
      [](Engine&) {});
}
