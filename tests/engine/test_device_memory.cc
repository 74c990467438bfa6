// Memory of a GPU: where it is short, on one rank, all go on with less. See host_device.h.
#include <algorithm>

#include "check.h"
#include "device_fixture.h"

using namespace autotune;
using namespace std::chrono_literals;

namespace {

constexpr int64_t mib = 1 << 20;

double value_of(int rank, int64_t i) { return static_cast<double>((i + 3 * rank) % 7); }

double sum_of(int size, int64_t i) {
  double sum = 0;
  for (int rank = 0; rank < size; ++rank) sum += value_of(rank, i);
  return sum;
}

void fill(DeviceRank& rank, Tensor& tensor) {
  rank.fill(tensor, [&rank](int64_t i) { return value_of(rank.rank(), i); });
}

// As a group, so that they are fused.
void check_sums(DeviceRank& rank, const std::string& name, DataType type, int tensors,
                int64_t count) {
  std::vector<Tensor> all(static_cast<size_t>(tensors), Tensor(type, {count}));
  std::vector<TensorEntry> entries;
  for (Tensor& tensor : all) {
    fill(rank, tensor);
    entries.push_back(rank.allreduce(name + std::to_string(entries.size()), tensor));
  }
  rank.finish_all(rank.enqueue_group(std::move(entries)));
  for (const Tensor& tensor : all) {
    for (int64_t i = 0; i < count; i += i % 5 + 1) check_value(tensor, i, sum_of(rank.size(), i));
  }
}

void check_rows(DeviceRank& rank, Operation operation, int64_t rows) {
  std::vector<Tensor> all(3, Tensor(DataType::int16, {rows, 2}));
  std::vector<TensorEntry> entries;
  for (Tensor& tensor : all) {
    fill(rank, tensor);
    const std::string name = name_of(operation) + std::to_string(entries.size());
    entries.push_back(rank.entry(name, operation, tensor, tensor));
    entries.back().request.edit().reduce_op = ReduceOp::sum;
  }
  for (int64_t handle : rank.enqueue_group(std::move(entries))) {
    const Tensor result = rank.take(handle, DataType::int16);
    const bool gathers = operation == Operation::allgather;
    const int64_t own = rows / rank.size() + (rank.rank() < rows % rank.size() ? 1 : 0);
    CHECK_EQUAL(result.shape()[0], gathers ? rows * rank.size() : own);
    int64_t before = 0;
    for (int r = 0; r < rank.rank(); ++r) before += rows / rank.size() + (r < rows % rank.size());
    for (int64_t i = 0; i < result.count(); i += i % 5 + 1) {
      const int64_t count = rows * 2;
      const double expected = gathers ? value_of(static_cast<int>(i / count), i % count)
                                      : sum_of(rank.size(), before * 2 + i);
      check_value(result, i, expected);
    }
  }
}

void change_threshold(DeviceRank& rank, int64_t bytes) {
  Params params = rank.engine.params();
  params.fusion_threshold_bytes = bytes;
  if (rank.rank() == 0) rank.engine.propose(rank.engine.epoch() + 1, params);
  for (int step = 0; rank.engine.params().fusion_threshold_bytes != bytes; ++step) {
    check_sums(rank, "small", DataType::float32, 1, 10);
    rank.engine.end_step(true);
  }
}

}  // namespace

TEST(device_memory_that_one_rank_lacks_makes_the_buffer_smaller_on_all) {
  with_devices(3, {}, {}, [](DeviceRank& rank) {
    if (rank.rank() == 1) rank.device.memory->most = 6 * mib;
    const int launches = rank.device.launches;
    check_sums(rank, "fused", DataType::float32, 24, 125'000);  // 12 MB
    CHECK(rank.device.launches >= launches + 4);                // in pieces
    check_sums(rank, "fused", DataType::float32, 24, 125'000);
    check_sums(rank, "wide", DataType::int16, 2, 3'000'001);    // 12 MB each, on the way
    if (rank.rank() == 1) rank.device.memory->most = 40 * mib;  // for the results
    check_rows(rank, Operation::reducescatter, 1'000'001);
    check_rows(rank, Operation::allgather, 500'000);
    CHECK(!rank.engine.failed());
    if (rank.rank() != 0) return;
    const std::vector<CheckRecord> checks = rank.engine.drain_checks();
    CHECK_EQUAL(std::count_if(checks.begin(), checks.end(),
                              [](const CheckRecord& each) { return !each.reason.empty(); }),
                1);
    for (const CheckRecord& each : checks) {
      if (each.reason.empty()) continue;
      CHECK(!each.ok());
      CHECK(each.reason.find("no GPU memory for a fusion buffer of 11 MiB") != std::string::npos);
    }
  });
}

TEST(device_buffer_goes_back_when_another_threshold_comes_and_is_asked_for_anew) {
  with_devices(2, {}, {}, [](DeviceRank& rank) {
    if (rank.rank() == 1) rank.device.memory->most = 3 * mib;
    check_sums(rank, "fused", DataType::float32, 24, 125'000);
    const int asked = rank.device.memory->asked;
    check_sums(rank, "fused", DataType::float32, 24, 125'000);
    CHECK_EQUAL(rank.device.memory->asked, asked);  // not again and again
    rank.device.memory->most = 100 * mib;
    change_threshold(rank, 32 * mib);
    check_sums(rank, "fused", DataType::float32, 24, 125'000);
    rank.device.engine_stream().synchronize();
    CHECK(rank.device.memory->in_use() >= 12'000'000);
    change_threshold(rank, 2 * mib);
    check_sums(rank, "fused", DataType::float32, 24, 125'000);
    rank.device.engine_stream().synchronize();
    CHECK(rank.device.memory->in_use() <= 4 * mib);
  });
}

TEST(device_grants_of_process_sets_fit_into_what_a_rank_has) {
  with_devices(3, {}, {}, [](DeviceRank& rank) {
    const int32_t id = add_set(rank.engine, {1, 2});
    if (rank.rank() == 2) rank.device.memory->most = 5 * mib;
    for (int round = 0; round < 3; ++round) {
      if (rank.rank() > 0) {
        std::vector<Tensor> all(24, Tensor(DataType::float32, {125'000}));
        std::vector<TensorEntry> entries;
        for (Tensor& tensor : all) {
          fill(rank, tensor);
          entries.push_back(rank.allreduce("of set " + std::to_string(entries.size()), tensor));
          Request& request = entries.back().request.edit();
          request.process_set = id;
          complete_name(request.name, id);
        }
        rank.finish_all(rank.enqueue_group(std::move(entries)));
        check_value(all[23], 5, value_of(1, 5) + value_of(2, 5));
      }
      check_sums(rank, "of all", DataType::float32, 12, 125'000);
    }
  });
}

TEST(device_memory_that_not_even_a_result_gets_is_an_error_on_all_ranks) {
  with_devices(2, {}, {}, [](DeviceRank& rank) {
    if (rank.rank() == 1) rank.device.memory->most = 1000;
    Tensor tensor(DataType::float32, {1000});
    const int64_t handle =
        rank.engine.enqueue(rank.entry("rows", Operation::allgather, tensor, tensor));
    while (!rank.engine.failed()) std::this_thread::sleep_for(1ms);
    CHECK(error_of(rank.engine, handle).find("GPU: no memory for 8000 bytes") != std::string::npos);
  });
}
