// How the engine ends when a GPU or a communicator fails. See host_device.h.
#include "check.h"
#include "device_fixture.h"

using namespace autotune;
using namespace std::chrono_literals;

namespace {

// The communicators fail; then work on the GPU of `stuck_rank` alone does not end before the gate
// opens.
void fail_and_end(DeviceRank& rank, int stuck_rank, const std::shared_ptr<HostEvent>& gate) {
  rank.network.fail("NCCL: remote error");
  while (!rank.engine.failed()) std::this_thread::sleep_for(1ms);
  rank.engine.shutdown(10s);
  CHECK_EQUAL(rank.device.stuck > 0, rank.rank() == stuck_rank);
  gate->happen();
  rank.device.engine_stream().synchronize();
}

}  // namespace

TEST(device_communicator_that_fails_ends_the_engine_of_all_ranks) {
  with_devices(2, {}, {}, [](DeviceRank& rank) {
    Tensor running(DataType::float32, {10}), waiting(DataType::float32, {10});
    Tensor more(DataType::float32, {10});
    const auto gate = std::make_shared<HostEvent>();
    rank.script.wait(gate);
    const int64_t given = rank.engine.enqueue(rank.allreduce("running", running));
    const int64_t gathered =
        rank.engine.enqueue(rank.entry("rows", Operation::allgather, waiting, waiting));
    const int64_t settled = rank.engine.enqueue(rank.allreduce("settled", more));
    for (int64_t handle : {given, gathered, settled}) rank.wait(handle);
    check_goes_on(rank.engine);
    int64_t pending = -1;
    if (rank.rank() == 1) {  // rank 0 never calls it
      pending = rank.engine.enqueue(rank.allreduce("waiting", waiting));
    } else {
      rank.network.fail("NCCL: remote error");
    }
    while (!rank.engine.failed()) std::this_thread::sleep_for(1ms);
    // From the first moment on, but not while the GPU may still write to tensors.
    CHECK_THROWS(EngineError, "NCCL: remote error",
                 rank.engine.take_result(gathered, rank.script.handle()));
    CHECK_THROWS(EngineError, "NCCL: remote error",
                 rank.engine.order(settled, rank.script.handle()));
    const std::string reason = rank.engine.settle(settled, 1, rank.script.handle());
    CHECK(reason.find("NCCL: remote error") != std::string::npos);
    const std::string error = error_of(rank.engine, given);
    CHECK(error.find("NCCL: remote error") != std::string::npos);
    if (pending >= 0) {
      CHECK(error_of(rank.engine, pending).find("NCCL: remote error") != std::string::npos);
    }
    CHECK(rank.network.aborts >= 1);
    CHECK_THROWS(EngineError, "NCCL: remote error",
                 rank.engine.enqueue(rank.allreduce("more", more)));
    gate->happen();
    rank.script.synchronize();
    rank.device.engine_stream().synchronize();  // what was aborted ends
  });
}

TEST(device_communicators_of_several_sets_are_aborted_together) {
  with_devices(3, {}, {}, [](DeviceRank& rank) {
    Tensor few(DataType::float32, {10}), all(DataType::float32, {10});
    const int32_t id = add_set(rank.engine, {0, 1});
    const auto of_few = [&] {
      TensorEntry entry = rank.allreduce("few", few);
      entry.request.edit().process_set = id;
      return rank.engine.enqueue(std::move(entry));
    };
    rank.finish(rank.engine.enqueue(rank.allreduce("all", all)));
    if (rank.rank() < 2) rank.finish(of_few());
    const auto gate = std::make_shared<HostEvent>();
    if (rank.rank() == 1) rank.device.engine_stream().wait(gate);  // its GPU is stuck
    if (rank.rank() < 2) rank.wait(of_few());  // on rank 0 this one, and what is behind it
    rank.wait(rank.engine.enqueue(rank.allreduce("all", all)));
    fail_and_end(rank, 1, gate);
  });
}

TEST(device_communicators_of_two_levels_are_aborted_together) {
  EngineOptions options;
  options.params.hierarchical_allreduce = true;
  with_devices(4, options, {0, 0, 1, 1}, [](DeviceRank& rank) {
    Tensor tensor(DataType::float32, {16});
    rank.finish(rank.engine.enqueue(rank.allreduce("x", tensor)));
    const auto gate = std::make_shared<HostEvent>();
    if (rank.rank() == 3) rank.device.engine_stream().wait(gate);  // its GPU is stuck
    rank.wait(rank.engine.enqueue(rank.allreduce("x", tensor)));
    std::this_thread::sleep_for(50ms);  // the others wait for its host now, and then gather
    fail_and_end(rank, 3, gate);
  });
}

TEST(device_group_that_fails_on_its_way_is_ended) {
  EngineOptions options;
  options.params.hierarchical_allreduce = true;
  with_devices(4, options, {0, 0, 1, 1}, [](DeviceRank& rank) {
    Tensor tensor(DataType::float32, {16});
    rank.finish(rank.engine.enqueue(rank.allreduce("x", tensor)));
    if (rank.rank() == 0) rank.network.fails_next_call = true;
    check_goes_on(rank.engine);
    const int64_t handle = rank.engine.enqueue(rank.allreduce("x", tensor));
    while (!rank.engine.failed()) std::this_thread::sleep_for(1ms);
    CHECK(error_of(rank.engine, handle).find("NCCL: remote error") != std::string::npos);
    rank.engine.shutdown(10s);
    CHECK_EQUAL(rank.network.open_groups, 0);
  });
}

TEST(device_failure_while_the_engine_thread_sleeps_is_an_error_not_the_end) {
  // The thread looks at the device on its own, between cycles.
  with_devices(1, {}, {}, [](DeviceRank& rank) {
    Tensor tensor(DataType::float32, {10});
    const auto gate = std::make_shared<HostEvent>();
    rank.script.wait(gate);
    const int64_t handle = rank.engine.enqueue(rank.allreduce("x", tensor));
    rank.wait(handle);
    rank.network.fail("NCCL: unhandled error");
    for (int i = 0; i < 50 && !rank.engine.failed(); ++i) {
      try {  // have the thread wake and sleep again, shortly after it has looked
        std::vector<int32_t> data(1, 1);
        rank.engine.release(rank.engine.enqueue(allreduce("wake" + std::to_string(i), data)));
        std::this_thread::sleep_for(4ms);
      } catch (const EngineError&) {
      }
    }
    while (!rank.engine.failed()) std::this_thread::sleep_for(1ms);
    CHECK(error_of(rank.engine, handle).find("NCCL: unhandled error") != std::string::npos);
    gate->happen();
    rank.device.engine_stream().synchronize();
  });
}
