// How the engine orders work on a GPU, and how it ends. See host_device.h.
#include <algorithm>
#include <optional>

#include "check.h"
#include "device_fixture.h"

using namespace autotune;
using namespace std::chrono_literals;

namespace {

int64_t enqueue_join(Engine& engine) {
  TensorEntry entry;
  entry.request.edit().operation = Operation::join;
  entry.request.edit().name = "join";
  return engine.enqueue(std::move(entry));
}

void fill_with(DeviceRank& rank, Tensor& tensor, double value) {
  rank.fill(tensor, [value](int64_t) { return value; });
}

size_t ended_steps(Engine& engine) {
  std::vector<StepRecord> records;
  std::vector<std::pair<int64_t, OperationSizes>> signatures;
  engine.drain_steps(records, signatures);
  return records.size();
}

void open_after(std::chrono::milliseconds time, const std::shared_ptr<HostEvent>& gate) {
  std::this_thread::sleep_for(time);
  gate->happen();
}

}  // namespace

TEST(device_work_is_done_later_and_nobody_waits_for_it) {
  with_devices(2, {}, {}, [](DeviceRank& rank) {
    Tensor tensor(DataType::float32, {10});
    const auto gate = std::make_shared<HostEvent>();
    rank.script.wait(gate);  // a kernel that takes long
    fill_with(rank, tensor, 3);
    const int64_t handle = rank.engine.enqueue(rank.allreduce("x", tensor));
    rank.wait(handle);  // it has been given to the device
    CHECK(!rank.engine.poll(handle));
    check_goes_on(rank.engine);  // other work goes on meanwhile
    CHECK(!rank.engine.poll(handle));
    gate->happen();
    while (!rank.engine.poll(handle)) std::this_thread::sleep_for(1ms);
    check_value(tensor, 9, 6);
    rank.engine.release(handle);
  });
}

TEST(device_an_operation_is_not_in_flight_when_the_step_before_it_cannot_end) {
  with_devices(1, {}, {}, [](DeviceRank& rank) {
    Tensor tensor(DataType::float32, {10});
    fill_with(rank, tensor, 1);
    rank.finish(rank.engine.enqueue(rank.allreduce("x", tensor)));
    std::vector<int32_t> data(3, 1);
    const auto on_host = [&data] {
      TensorEntry entry;
      entry.request.edit().name = "h";
      entry.request.edit().dtype = DataType::int32;
      entry.request.edit().shape = {3};
      entry.input = entry.output = data.data();
      return entry;
    };
    rank.finish(rank.engine.enqueue(on_host()));
    rank.device.captured = rank.script.handle();  // in which a step's end is recorded
    CHECK_THROWS(InvalidRequest, "captured", rank.engine.enqueue(on_host()));
    rank.device.captured = 0;
    rank.finish(rank.engine.enqueue(on_host()));
  });
}

TEST(device_inputs_of_several_streams_are_waited_for) {
  with_devices(2, {}, {}, [](DeviceRank& rank) {
    HostStream second;
    Tensor early(DataType::float32, {10}), late(DataType::float32, {10});
    const auto gate = std::make_shared<HostEvent>();
    fill_with(rank, early, 1);
    second.wait(gate);
    second.put([&late] { late.set(0, 2); });
    std::vector<TensorEntry> entries;
    entries.push_back(rank.allreduce("early", early));
    entries.push_back(rank.allreduce("late", late));
    entries.back().ready = rank.engine.input_ready(second.handle());
    const std::vector<int64_t> handles = rank.enqueue_group(std::move(entries));
    rank.wait(handles[1]);
    CHECK(!rank.engine.poll(handles[0]));  // they travel together
    gate->happen();
    rank.engine.order(handles[1], second.handle());
    second.synchronize();
    check_value(late, 0, 4);
    rank.finish_all(handles);
    check_value(early, 9, 2);
  });
}

TEST(device_an_operation_waits_for_the_newest_event_of_a_stream_only) {
  with_devices(1, {}, {}, [](DeviceRank& rank) {
    std::vector<Tensor> tensors(5, Tensor(DataType::float32, {10}));
    std::vector<TensorEntry> entries;
    for (Tensor& tensor : tensors) {
      fill_with(rank, tensor, 1);
      entries.push_back(rank.allreduce(std::to_string(entries.size()), tensor));
    }
    std::swap(entries[1], entries[4]);  // not in the order of their events
    const std::vector<int64_t> handles = rank.enqueue_group(std::move(entries));
    for (int64_t handle : handles) rank.wait(handle);
    CHECK_EQUAL(rank.device.waits, 1);
    rank.finish_all(handles);
  });
}

TEST(device_a_stream_is_ordered_behind_an_event_once) {
  with_devices(1, {}, {}, [](DeviceRank& rank) {
    HostStream second;
    std::vector<Tensor> tensors(3, Tensor(DataType::float32, {10}));
    std::vector<TensorEntry> entries;
    for (Tensor& tensor : tensors) {
      fill_with(rank, tensor, 1);
      entries.push_back(rank.allreduce(std::to_string(entries.size()), tensor));
    }
    const std::vector<int64_t> handles = rank.enqueue_group(std::move(entries));
    for (int64_t handle : handles) rank.wait(handle);
    Tensor later(DataType::float32, {10});
    fill_with(rank, later, 1);
    const int64_t last = rank.engine.enqueue(rank.allreduce("later", later));
    rank.wait(last);
    const int before = rank.device.waits;
    for (int64_t handle : handles) rank.engine.order(handle, rank.script.handle());
    CHECK_EQUAL(rank.device.waits, before + 1);  // one event for the fused three
    for (int64_t handle : handles) rank.engine.order(handle, second.handle());
    CHECK_EQUAL(rank.device.waits, before + 2);  // another stream
    rank.engine.order(last, rank.script.handle());
    rank.engine.order(last, rank.script.handle());
    CHECK_EQUAL(rank.device.waits, before + 3);  // another event
    rank.engine.order(handles[0], rank.script.handle());
    CHECK_EQUAL(rank.device.waits, before + 3);  // which stands for those before it
    rank.finish_all(handles);
    rank.finish(last);
  });
}

TEST(device_a_stream_at_the_handle_of_a_destroyed_one_is_ordered_anew) {
  with_devices(1, {}, {}, [](DeviceRank& rank) {
    Tensor tensor(DataType::float32, {10});
    fill_with(rank, tensor, 1);
    const int64_t handle = rank.engine.enqueue(rank.allreduce("x", tensor));
    rank.wait(handle);
    std::optional<HostStream> stream(std::in_place);
    const DeviceStream at = stream->handle();
    rank.engine.order(handle, at);
    stream.reset();
    stream.emplace();
    CHECK_EQUAL(stream->handle(), at);
    const int before = rank.device.waits;
    rank.engine.order(handle, at);
    CHECK_EQUAL(rank.device.waits, before + 1);
    rank.finish(handle);
  });
}

TEST(device_inputs_of_two_streams_of_one_handle_are_both_waited_for) {
  with_devices(1, {}, {}, [](DeviceRank& rank) {
    std::optional<HostStream> stream(std::in_place);
    std::vector<Tensor> tensors(2, Tensor(DataType::float32, {10}));
    std::vector<TensorEntry> entries;
    for (Tensor& tensor : tensors) {
      entries.push_back(rank.allreduce(std::to_string(entries.size()), tensor));
      entries.back().ready = rank.engine.input_ready(stream->handle());
      stream.reset();  // when it has done what it has
      stream.emplace();
    }
    const int before = rank.device.waits;
    const std::vector<int64_t> handles = rank.enqueue_group(std::move(entries));
    for (int64_t handle : handles) rank.wait(handle);
    CHECK_EQUAL(rank.device.waits, before + 2);
    rank.finish_all(handles);
  });
}

TEST(device_a_result_that_nobody_takes_is_freed) {
  with_devices(2, {}, {}, [](DeviceRank& rank) {
    Tensor tensor(DataType::float32, {10});
    fill_with(rank, tensor, 1);
    const auto gather = [&] {
      return rank.engine.enqueue(rank.entry("x", Operation::allgather, tensor, tensor));
    };
    const int64_t untaken = gather();
    rank.wait(untaken);
    CHECK_EQUAL(rank.device.blocks_in_use(), size_t{1});
    rank.engine.release(untaken);
    rank.device.engine_stream().synchronize();
    CHECK_EQUAL(rank.device.blocks_in_use(), size_t{0});
    const auto gate = std::make_shared<HostEvent>();
    rank.script.wait(gate);
    rank.engine.release(gather());  // before it is done
    gate->happen();
    check_goes_on(rank.engine);
    rank.script.synchronize();
    rank.device.engine_stream().synchronize();
    CHECK_EQUAL(rank.device.blocks_in_use(), size_t{0});
    CHECK_EQUAL(rank.take(gather(), DataType::float32).count(), 20);
    rank.device.engine_stream().synchronize();
    CHECK_EQUAL(rank.device.blocks_in_use(), size_t{0});
  });
}

TEST(device_zeros_of_a_rank_that_has_joined) {
  for (int64_t threshold : {0, 256 << 20}) {
    EngineOptions options;
    options.params.fusion_threshold_bytes = threshold;
    with_devices(3, options, {}, [](DeviceRank& rank) {
      const auto average = [&](std::vector<Tensor>& tensors) {
        std::vector<TensorEntry> entries;
        for (Tensor& tensor : tensors) {
          fill_with(rank, tensor, 6);
          entries.push_back(
              rank.allreduce(std::to_string(entries.size()), tensor, ReduceOp::average));
          entries.back().request.edit().prescale = 0.5;
        }
        entries[0].request.edit().wire_type = DataType::float16;
        rank.finish_all(rank.enqueue_group(std::move(entries)));
        return tensors;
      };
      std::vector<Tensor> tensors;
      for (int64_t count : {5, 9, 600'000, 700'000, 1}) {  // some are not packed
        tensors.emplace_back(DataType::float32, Shape{count});
      }
      tensors.emplace_back(DataType::int16, Shape{77});
      tensors.emplace_back(DataType::int16, Shape{78});
      if (rank.rank() != 1) {
        for (int step = 0; step < 3; ++step) {
          for (const Tensor& tensor : average(tensors)) {
            check_value(tensor, 0, 2);
            check_value(tensor, tensor.count() - 1, 2);  // 3 + 0 + 3, by three ranks
          }
          rank.engine.end_step(true);
        }
      }
      wait(rank.engine, enqueue_join(rank.engine));
      check_value(average(tensors)[3], 699'999, 3);
    });
  }
}

TEST(device_and_host_on_different_ranks_is_an_error_and_the_engine_goes_on) {
  with_devices(2, {}, {}, [](DeviceRank& rank) {
    Tensor tensor(DataType::float32, {10});
    TensorEntry entry = rank.allreduce("x", tensor);
    if (rank.rank() == 1) entry.request.edit().on_device = false;
    const std::string error = error_of(rank.engine, rank.engine.enqueue(std::move(entry)));
    CHECK(
        error.find("expected the same device on all ranks, got GPU on rank 0 and CPU on rank 1") !=
        std::string::npos);
    check_goes_on(rank.engine);
    fill_with(rank, tensor, 1);
    rank.finish(rank.engine.enqueue(rank.allreduce("x", tensor)));
    check_value(tensor, 9, 2);
  });
}

TEST(device_adasum_is_refused) {
  with_devices(2, {}, {}, [](DeviceRank& rank) {
    Tensor tensor(DataType::float32, {10});
    CHECK_THROWS(InvalidRequest, "expected a tensor of the CPU for Adasum, got one of a GPU",
                 rank.engine.enqueue(rank.allreduce("x", tensor, ReduceOp::adasum)));
    check_goes_on(rank.engine);
  });
}

TEST(device_a_rank_has_one_gpu) {
  with_devices(1, {}, {}, [](DeviceRank& rank) {
    int made = 0;
    const auto make = [&](int) -> DeviceBackend {
      ++made;
      return {};
    };
    CHECK(rank.engine.has_device());
    rank.engine.use_device(0, make);  // known already
    CHECK_THROWS(InvalidRequest,
                 "expected tensors of one GPU per rank, got one of GPU 1 after one of GPU 0 "
                 "(rank 0 of 1)",
                 rank.engine.use_device(1, make));
    CHECK_EQUAL(made, 0);
  });
}

TEST(device_that_cannot_be_used_is_an_error_and_the_engine_goes_on) {
  Job job(1);
  auto engine = job.start(0);
  CHECK_THROWS(EngineError, "no such library", engine->use_device(0, [](int) -> DeviceBackend {
    throw EngineError("no such library");
  }));
  CHECK(!engine->has_device());
  check_goes_on(*engine);
  engine->shutdown(5s);
}

TEST(device_step_whose_waits_are_in_two_streams_ends_when_both_are_over) {
  with_devices(1, {}, {}, [](DeviceRank& rank) {
    Tensor a(DataType::float32, {10}), b(DataType::float32, {10});
    HostStream side;
    const auto gate = std::make_shared<HostEvent>();
    side.wait(gate);
    const int64_t first = rank.engine.enqueue(rank.allreduce("a", a));
    const int64_t second = rank.engine.enqueue(rank.allreduce("b", b));
    rank.wait(first);
    rank.wait(second);
    rank.engine.order(first, side.handle());
    rank.engine.order(second, rank.script.handle());
    rank.engine.release(first);
    rank.engine.release(second);
    rank.engine.end_step(true);
    rank.script.synchronize();
    CHECK_EQUAL(ended_steps(rank.engine), size_t{0});
    gate->happen();
    side.synchronize();
    CHECK_EQUAL(ended_steps(rank.engine), size_t{1});
  });
}

TEST(device_waits_do_not_pile_up_while_no_step_ends) {
  with_devices(1, {}, {}, [](DeviceRank& rank) {
    rank.engine.end_step(true);  // from now on only the script ends steps
    Tensor tensor(DataType::float32, {10});
    int most = 0;
    for (int i = 0; i < 2000; ++i) {
      rank.finish(rank.engine.enqueue(rank.allreduce("x", tensor)));
      most = std::max(most, rank.device.events());
    }
    CHECK(most < 1000);  // of 4000 for waits alone
  });
}

TEST(device_shutdown_lets_work_end_that_was_given) {
  with_devices(3, {}, {}, [](DeviceRank& rank) {
    Tensor tensor(DataType::float32, {1000});
    const auto gate = std::make_shared<HostEvent>();
    rank.script.wait(gate);
    fill_with(rank, tensor, 1);
    const int64_t handle = rank.engine.enqueue(rank.allreduce("x", tensor));
    rank.wait(handle);
    std::thread opening([&] { open_after(30ms, gate); });
    rank.engine.shutdown(10s);
    opening.join();
    CHECK(rank.engine.poll(handle));
    check_value(tensor, 999, 3);
    CHECK_EQUAL(rank.network.aborts, 0);
  });
}

TEST(device_shutdown_while_others_still_negotiate_fails_what_is_open) {
  with_devices(2, {}, {}, [](DeviceRank& rank) {
    Tensor tensor(DataType::float32, {10});
    fill_with(rank, tensor, 1);
    rank.finish(rank.engine.enqueue(rank.allreduce("x", tensor)));
    int64_t open = -1;
    if (rank.rank() == 1) open = rank.engine.enqueue(rank.allreduce("y", tensor));
    check_goes_on(rank.engine);
    rank.engine.shutdown(10s);
    if (open >= 0) {
      CHECK(error_of(rank.engine, open).find("the engine was shut down") != std::string::npos);
    }
    check_value(tensor, 9, 2);
  });
}

TEST(device_levels_are_connected_when_the_gpu_is_idle_and_its_queue_is_bounded) {
  with_devices(4, {}, {0, 0, 1, 1}, [](DeviceRank& rank) {
    constexpr int queued = 200;
    std::vector<std::vector<Tensor>> tensors(3);
    std::vector<int64_t> handles;
    Params params = rank.engine.params();
    params.hierarchical_allreduce = true;
    for (size_t step = 0; step < tensors.size(); ++step) {  // the next one finds the GPU busy
      tensors[step].assign(queued, Tensor(DataType::float32, {16}));
      for (int i = 0; i < queued; ++i) {
        Tensor& tensor = tensors[step][static_cast<size_t>(i)];
        fill_with(rank, tensor, i + 1.0 * rank.rank());
        const std::string name = std::to_string(step) + "." + std::to_string(i);
        handles.push_back(rank.engine.enqueue(rank.allreduce(name, tensor)));
        rank.wait(handles.back());
      }
      if (rank.rank() == 0) rank.engine.propose(step + 1, params);
      rank.engine.end_step(true);
    }
    rank.finish_all(handles);
    for (const std::vector<Tensor>& of_step : tensors) {
      for (int i = 0; i < queued; ++i) check_value(of_step[static_cast<size_t>(i)], 0, 4.0 * i + 6);
    }
    CHECK(rank.network.reduce_scatters > 0);
    CHECK(rank.device.most_collectives > 16);
    CHECK(rank.device.most_collectives <= 3 * 129);  // of two levels, and a rest
  });
}

TEST(device_streams_of_the_script_hazards_over_many_steps) {
  // The script reuses its memory at once, as a framework's allocator does.
  with_devices(3, {}, {}, [](DeviceRank& rank) {
    std::vector<Tensor> gradients(4, Tensor(DataType::float32, {500}));
    std::vector<double> sums(4, 0);
    for (int step = 1; step <= 20; ++step) {
      std::vector<int64_t> handles;
      for (size_t g = 0; g < gradients.size(); ++g) {
        fill_with(rank, gradients[g], step + static_cast<double>(g));
        handles.push_back(
            rank.engine.enqueue(rank.allreduce("g" + std::to_string(g), gradients[g])));
      }
      for (size_t g = 0; g < gradients.size(); ++g) {
        rank.wait(handles[g]);
        rank.engine.order(handles[g], rank.script.handle());
        rank.engine.release(handles[g]);
        rank.script.put([&, g] { sums[g] += gradients[g].get(499); });
      }
      rank.engine.end_step(true);
    }
    rank.script.synchronize();
    for (size_t g = 0; g < gradients.size(); ++g) {
      CHECK_EQUAL(sums[g], 3 * (210 + 20 * static_cast<double>(g)));
    }
  });
}
