// Operations on a GPU that move rows: gathering, scattering, exchanging, broadcasting.
#include <algorithm>
#include <numeric>

#include "check.h"
#include "device_fixture.h"
#include "device_values.h"
#include "engine/execute/layout.h"

using namespace autotune;

TEST(device_allgather_of_uneven_rows_alone_and_fused) {
  for (bool fuse : {false, true}) {
    with_device_sizes(fusing(fuse), [](DeviceRank& rank) {
      // Tensor t has (r + t) % 3 rows on rank r: some have none.
      const auto rows_on = [](int r, int64_t t) { return (r + t) % 3; };
      std::deque<Tensor> tensors;
      std::vector<TensorEntry> entries;
      for (int64_t t = 0; t < 4; ++t) {
        const DataType type = t % 2 == 0 ? DataType::float32 : DataType::int64;
        tensors.emplace_back(type, Shape{rows_on(rank.rank(), t), 2 * t + 1});
        rank.fill(tensors.back(), [r = rank.rank()](int64_t i) { return row_value(r, i); });
        entries.push_back(
            rank.entry(std::to_string(t), Operation::allgather, tensors.back(), tensors.back()));
      }
      const std::vector<int64_t> handles = rank.enqueue_group(std::move(entries));
      for (int64_t t = 0; t < 4; ++t) {
        const Tensor result =
            rank.take(handles[static_cast<size_t>(t)], tensors[static_cast<size_t>(t)].type());
        int64_t at = 0;
        for (int r = 0; r < rank.size(); ++r) {
          for (int64_t i = 0; i < rows_on(r, t) * (2 * t + 1); ++i) {
            check_value(result, at++, row_value(r, i));
          }
        }
        CHECK_EQUAL(result.count(), at);
      }
    });
  }
}

TEST(device_allgather_of_equal_rows) {
  with_device_sizes(fusing(true), [](DeviceRank& rank) {
    Tensor tensor(DataType::uint8, {3, 5});
    rank.fill(tensor, [r = rank.rank()](int64_t i) { return r * 16.0 + static_cast<double>(i); });
    const Tensor result =
        rank.take(rank.engine.enqueue(rank.entry("x", Operation::allgather, tensor, tensor)),
                  DataType::uint8);
    CHECK(result.shape() == (Shape{3 * rank.size(), 5}));
    for (int64_t i = 0; i < result.count(); ++i) {
      check_value(result, i, static_cast<double>(i / 15 * 16 + i % 15));
    }
  });
}

TEST(device_reducescatter_of_rows_that_do_not_divide_alone_and_fused) {
  for (bool fuse : {false, true}) {
    with_device_sizes(fusing(fuse), [](DeviceRank& rank) {
      struct Case {
        Tensor tensor;
        ReduceOp op;
        double prescale;
      };
      std::deque<Case> cases;
      std::vector<TensorEntry> entries;
      for (DataType type : all_types) {
        if (type == DataType::boolean || type == DataType::uint8) continue;
        for (ReduceOp op : {ReduceOp::sum, ReduceOp::average}) {
          for (int64_t rows : {1, 2, 3, 7, 8}) {
            cases.push_back({Tensor(type, {rows, 3}), op, op == ReduceOp::sum ? 2.0 : 1.0});
          }
        }
      }
      for (Case& each : cases) {
        const DataType type = each.tensor.type();
        rank.fill(each.tensor, [=, r = rank.rank()](int64_t i) { return element(type, r, i); });
        entries.push_back(rank.entry(std::to_string(entries.size()), Operation::reducescatter,
                                     each.tensor, each.tensor));
        entries.back().request.edit().reduce_op = each.op;
        entries.back().request.edit().prescale = each.prescale;
      }
      const std::vector<int64_t> handles = rank.enqueue_group(std::move(entries));
      for (size_t c = 0; c < cases.size(); ++c) {
        const Case& each = cases[c];
        const DataType type = each.tensor.type();
        const Tensor result = rank.take(handles[c], type);
        int64_t first = 0;
        for (int r = 0; r < rank.rank(); ++r) {
          first += rows_of(each.tensor.shape()[0], r, rank.size());
        }
        CHECK_EQUAL(result.shape()[0], rows_of(each.tensor.shape()[0], rank.rank(), rank.size()));
        for (int64_t i = 0; i < result.count(); ++i) {
          check_value(result, i, reduced(type, each.op, rank.size(), first * 3 + i, each.prescale));
        }
      }
    });
  }
}

TEST(device_alltoall_of_uneven_splits) {
  with_device_sizes(fusing(true), [](DeviceRank& rank) {
    const auto split = [](int from, int to) { return (2 * from + to) % 4; };  // some are 0
    std::vector<int64_t> splits;
    for (int to = 0; to < rank.size(); ++to) splits.push_back(split(rank.rank(), to));
    const int64_t rows = std::accumulate(splits.begin(), splits.end(), int64_t{0});
    Tensor tensor(DataType::float32, {rows + 1, 3});  // a row that nobody gets
    rank.fill(tensor, [r = rank.rank()](int64_t i) { return row_value(r, i); });
    TensorEntry entry = rank.entry("x", Operation::alltoall, tensor, tensor);
    entry.request.edit().splits = splits;
    const int64_t handle = rank.engine.enqueue(std::move(entry));
    rank.wait(handle);
    const std::vector<int64_t> received = rank.engine.complete_handle(handle).received_splits;
    const Tensor result = rank.take(handle, DataType::float32);
    int64_t at = 0;
    for (int from = 0; from < rank.size(); ++from) {
      CHECK_EQUAL(received[static_cast<size_t>(from)], split(from, rank.rank()));
      int64_t first = 0;
      for (int to = 0; to < rank.rank(); ++to) first += 3 * split(from, to);
      for (int64_t i = 0; i < 3 * split(from, rank.rank()); ++i) {
        check_value(result, at++, row_value(from, first + i));
      }
    }
    CHECK_EQUAL(result.count(), at);
  });
}

TEST(device_broadcast_from_every_root_in_place_and_not) {
  with_device_sizes(fusing(true), [](DeviceRank& rank) {
    for (int root = 0; root < rank.size(); ++root) {
      for (bool in_place : {true, false}) {
        Tensor input(DataType::int32, {21}), output(DataType::int32, {21});
        rank.fill(input, [r = rank.rank()](int64_t i) { return row_value(r, i); });
        TensorEntry entry = rank.entry("x", Operation::broadcast, input, in_place ? input : output);
        entry.request.edit().root_rank = root;
        rank.finish(rank.engine.enqueue(std::move(entry)));
        for (int64_t i = 0; i < 21; ++i) {
          check_value(in_place ? input : output, i, row_value(root, i));
          if (!in_place) check_value(input, i, row_value(rank.rank(), i));
        }
      }
    }
  });
}
