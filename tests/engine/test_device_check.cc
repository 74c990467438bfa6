// Wrong results on a GPU are seen, later and without a wait for it. See host_device.h.
#include <algorithm>
#include <atomic>
#include <thread>

#include "check.h"
#include "device_fixture.h"
#include "device_values.h"

using namespace autotune;

namespace {

Params params_with(bool hierarchical) {
  Params params;
  params.hierarchical_allreduce = hierarchical;
  return params;
}

// A training step of some reductions.
void step(DeviceRank& rank, int64_t tensors = 3) {
  std::deque<Tensor> all;
  std::vector<TensorEntry> entries;
  for (int64_t t = 0; t < tensors; ++t) {
    all.emplace_back(DataType::float32, Shape{1000 + t});
    rank.fill(all.back(),
              [r = rank.rank()](int64_t i) { return element(DataType::float32, r, i) + 0.25; });
    entries.push_back(rank.allreduce("t" + std::to_string(t), all.back()));
  }
  rank.finish_all(rank.enqueue_group(std::move(entries)));
  rank.engine.end_step(true);
}

}  // namespace

TEST(device_results_that_a_setting_makes_wrong_are_seen_in_its_epoch) {
  with_devices(4, fusing(true), {0, 0, 1, 1}, [](DeviceRank& rank) {
    rank.network.spoils_scattered = true;  // that is, two levels are wrong
    step(rank);
    for (uint64_t epoch = 1; epoch <= 4; ++epoch) {
      if (rank.rank() == 0) rank.engine.propose(epoch, params_with(epoch % 2 == 0));
      for (int i = 0; i < 40; ++i) step(rank);
    }
    const auto checks = rank.engine.drain_checks();
    if (rank.rank() != 0) {
      CHECK(checks.empty());
      return;
    }
    CHECK_EQUAL(checks.size(), size_t{4});
    for (size_t i = 0; i < checks.size(); ++i) {
      CHECK_EQUAL(checks[i].epoch, uint64_t{i + 1});
      CHECK_EQUAL(checks[i].ok(), checks[i].epoch % 2 == 1);
    }
  });
}

TEST(device_checks_that_follow_each_other_soon_are_all_made) {
  with_devices(2, fusing(true), {}, [](DeviceRank& rank) {
    step(rank);
    for (uint64_t epoch = 1; epoch <= 6; ++epoch) {
      if (rank.rank() == 0) rank.engine.propose(epoch, params_with(false));
      for (int i = 0; i < 4; ++i) step(rank);
    }
    for (int i = 0; i < 40; ++i) step(rank);
    if (rank.rank() == 0) CHECK_EQUAL(rank.engine.drain_checks().size(), size_t{6});
  });
}

TEST(device_check_waits_for_no_gpu_behind_its_operation) {
  with_devices(2, fusing(true), {}, [](DeviceRank& rank) {
    step(rank);
    if (rank.rank() == 0) rank.engine.propose(1, params_with(false));
    step(rank);  // the change comes with one of the next ones
    const auto held = std::make_shared<HostEvent>();
    rank.device.engine_stream().wait(held);
    std::deque<Tensor> tensors;
    std::vector<int64_t> handles;
    for (int i = 0; i < 6; ++i) {
      tensors.emplace_back(DataType::float32, Shape{100});
      rank.fill(tensors.back(), [](int64_t) { return 1.0; });
      handles.push_back(rank.engine.enqueue(rank.allreduce("x", tensors.back())));
      rank.wait(handles.back());  // until it is put there, which nothing holds up
      rank.engine.end_step(true);
    }
    CHECK(rank.engine.drain_checks().empty());
    held->happen();
    rank.finish_all(handles);
    for (int i = 0; i < 40; ++i) step(rank);
    if (rank.rank() == 0) CHECK_EQUAL(rank.engine.drain_checks().size(), size_t{1});
  });
}

TEST(honest_device_results_pass_in_every_type_and_operation) {
  with_devices(4, fusing(true), {0, 0, 1, 1}, [](DeviceRank& rank) {
    uint64_t epoch = 0;
    int expected = 0;
    for (DataType type : all_types) {
      for (ReduceOp op : all_ops) {
        if (!allowed(type, op)) continue;
        const bool is_checked = is_float(type) || op != ReduceOp::average;
        expected += is_checked;
        if (rank.rank() == 0) rank.engine.propose(++epoch, params_with(true));
        for (int i = 0; i < 3; ++i) {
          Tensor tensor(type, {20'000});
          rank.fill(tensor, [=, r = rank.rank()](int64_t k) { return element(type, r, k); });
          rank.finish(rank.engine.enqueue(rank.allreduce("x", tensor, op)));
          rank.engine.end_step(true);
        }
      }
    }
    if (rank.rank() == 0) rank.engine.propose(++epoch, params_with(true));
    for (int i = 0; i < 40; ++i) {  // rows of different numbers
      Tensor rows(DataType::int64, {3 + rank.rank(), 700});
      rank.fill(rows, [r = rank.rank()](int64_t k) { return row_value(r, k); });
      rank.take(rank.engine.enqueue(rank.entry("g", Operation::allgather, rows, rows)),
                DataType::int64);
      rank.engine.end_step(true);
    }
    if (rank.rank() != 0) return;
    const auto checks = rank.engine.drain_checks();
    CHECK_EQUAL(static_cast<int>(checks.size()), expected + 1);
    for (const CheckRecord& check : checks) {
      if (!check.ok())
        check::fail(__FILE__, __LINE__,
                    check.name + " of epoch " + std::to_string(check.epoch) + " is wrong by " +
                        std::to_string(check.worst_error));
    }
  });
}

TEST(device_results_of_short_floats_that_are_infinite_or_nothing_are_no_fault_of_a_setting) {
  with_devices(3, fusing(true), {}, [](DeviceRank& rank) {
    uint64_t epoch = 0;
    for (DataType wire : {DataType::float16, DataType::bfloat16}) {
      if (rank.rank() == 0) rank.engine.propose(++epoch, params_with(false));
      for (int i = 0; i < 40; ++i) {
        Tensor tensor(DataType::float32, {64});
        rank.fill(tensor, [r = rank.rank()](int64_t k) {
          return k % 3 == 0 ? 2.5e-8 : k % 3 == 1 ? 1e5 * (r + 1) : 0.1 * static_cast<double>(r);
        });
        TensorEntry entry = rank.allreduce("x", tensor, ReduceOp::average);
        entry.request.edit().wire_type = wire;
        rank.finish(rank.engine.enqueue(std::move(entry)));
        rank.engine.end_step(true);
      }
    }
    if (rank.rank() != 0) return;
    const auto checks = rank.engine.drain_checks();
    CHECK_EQUAL(checks.size(), size_t{2});
    for (const CheckRecord& check : checks) CHECK(check.ok());
  });
}
