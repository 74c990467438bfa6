// Alltoall, reducescatter, Adasum and groups through the engine.
#include <cmath>
#include <numeric>

#include <limits>

#include "check.h"
#include "common/reduce.h"
#include "engine/engine.h"
#include "engine_fixture.h"

using namespace autotune;
using namespace std::chrono_literals;

namespace {

TensorEntry alltoall(std::vector<int32_t>& data, Shape shape, std::vector<int64_t> splits) {
  TensorEntry entry = allreduce("a", data);
  entry.request.edit().operation = Operation::alltoall;
  entry.request.edit().shape = std::move(shape);
  entry.request.edit().splits = std::move(splits);
  return entry;
}

TensorEntry reducescatter(const std::string& name, std::vector<int32_t>& data, Shape shape) {
  TensorEntry entry = allreduce(name, data);
  entry.request.edit().operation = Operation::reducescatter;
  entry.request.edit().shape = std::move(shape);
  return entry;
}

TensorEntry adasum(const std::string& name, std::vector<double>& data) {
  TensorEntry entry;
  entry.request.edit().name = name;
  entry.request.edit().dtype = DataType::float64;
  entry.request.edit().reduce_op = ReduceOp::adasum;
  entry.request.edit().shape = {static_cast<int64_t>(data.size())};
  entry.input = entry.output = data.data();
  return entry;
}

std::vector<double> adasum_of(const std::vector<double>& a, const std::vector<double>& b) {
  const double ab = std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
  const double aa = std::inner_product(a.begin(), a.end(), a.begin(), 0.0);
  const double bb = std::inner_product(b.begin(), b.end(), b.begin(), 0.0);
  std::vector<double> sum(a.size());
  for (size_t i = 0; i < a.size(); ++i) {
    sum[i] = (aa > 0 ? 1 - ab / 2 / aa : 1) * a[i] + (bb > 0 ? 1 - ab / 2 / bb : 1) * b[i];
  }
  return sum;
}

std::vector<double> gradient(size_t length, int rank) {
  std::vector<double> values(length);
  for (size_t i = 0; i < length; ++i) values[i] = std::sin(double(i) * (rank + 1)) + rank;
  return values;
}

}  // namespace

TEST(alltoall_sends_rows_where_the_splits_say) {
  // Rank r sends (r + d + round) % 3 rows of [r, d] to rank d and keeps one row for itself.
  with_engines(3, {}, [](Engine& engine) {
    const int rank = engine.rank();
    for (int round : {0, 1, 1, 2}) {  // the same again: from the cache
      const auto rows_to = [&](int from, int to) { return (from + to + round) % 3; };
      std::vector<int64_t> splits;
      std::vector<int32_t> data;
      for (int d = 0; d < 3; ++d) {
        splits.push_back(rows_to(rank, d));
        for (int k = 0; k < rows_to(rank, d); ++k) data.insert(data.end(), {rank, d});
      }
      data.insert(data.end(), {-1, -1});
      const int64_t rows = static_cast<int64_t>(data.size()) / 2;
      const int64_t handle = engine.enqueue(alltoall(data, {rows, 2}, splits));
      while (!engine.wait(handle, 100ms)) {
      }
      const auto state = engine.complete_handle(handle);
      std::vector<int32_t> expected;
      std::vector<int64_t> received;
      for (int s = 0; s < 3; ++s) {
        received.push_back(rows_to(s, rank));
        for (int k = 0; k < rows_to(s, rank); ++k) expected.insert(expected.end(), {s, rank});
      }
      CHECK(state.received_splits == received);
      CHECK_EQUAL(state.result_shape[0], std::accumulate(received.begin(), received.end(), 0));
      CHECK_EQUAL(state.result_shape[1], 2);
      CHECK(take_result<int32_t>(engine, handle) == expected);
    }
  });
}

TEST(alltoall_without_splits_cuts_evenly_and_repeats_from_the_cache) {
  with_engines(2, {}, [](Engine& engine) {
    for (int i = 0; i < 30; ++i) {
      std::vector<int32_t> data(200'000, engine.rank() * 10 + i);
      const auto result =
          take_result<int32_t>(engine, engine.enqueue(alltoall(data, {200'000}, {})));
      CHECK_EQUAL(result.size(), size_t{200'000});
      CHECK_EQUAL(result[99'999], i);
      CHECK_EQUAL(result[100'000], 10 + i);
    }
    CHECK_EQUAL(engine.counters().cache_misses, 1);
  });
}

TEST(bad_splits_are_refused_at_once) {
  with_engines(2, {}, [](Engine& engine) {
    std::vector<int32_t> data(5, 1);
    CHECK_THROWS(InvalidRequest, "2 ranks divide evenly, got 5; pass splits",
                 engine.enqueue(alltoall(data, {5}, {})));
    CHECK_THROWS(InvalidRequest, "expected 2 splits", engine.enqueue(alltoall(data, {5}, {5})));
    CHECK_THROWS(InvalidRequest, "not negative, got [6, -1]",
                 engine.enqueue(alltoall(data, {5}, {6, -1})));
    CHECK_THROWS(InvalidRequest, "at most the first dimension, 5, got [3, 3]",
                 engine.enqueue(alltoall(data, {5}, {3, 3})));
    constexpr int64_t most = std::numeric_limits<int64_t>::max();
    CHECK_THROWS(InvalidRequest, "at most the first dimension",
                 engine.enqueue(alltoall(data, {5}, {most, most})));
    CHECK_THROWS(InvalidRequest, "got a scalar", engine.enqueue(alltoall(data, {}, {})));
    check_goes_on(engine);
  });
}

TEST(reducescatter_gives_every_rank_its_rows_fused_or_not) {
  for (int64_t threshold : {0, 1 << 20}) {
    EngineOptions options;
    options.params.fusion_threshold_bytes = threshold;
    with_engines(3, options, [](Engine& engine) {
      for (int round = 0; round < 3; ++round) {
        std::vector<std::vector<int32_t>> data;
        std::vector<int64_t> handles;
        for (int64_t rows = 0; rows < 8; ++rows) {  // fewer rows than ranks, too
          std::vector<int32_t> values;
          for (int32_t i = 0; i < rows * 2; ++i) values.push_back(i * (engine.rank() + 1));
          data.push_back(std::move(values));
        }
        for (size_t i = 0; i < data.size(); ++i) {
          handles.push_back(engine.enqueue(
              reducescatter("r" + std::to_string(i), data[i], {static_cast<int64_t>(i), 2})));
        }
        for (int i = 0; i < 8; ++i) {
          const auto rows_of = [i](int rank) { return i / 3 + (rank < i % 3 ? 1 : 0); };
          int32_t begin = 0;
          for (int rank = 0; rank < engine.rank(); ++rank) begin += rows_of(rank) * 2;
          const auto result = take_result<int32_t>(engine, handles[size_t(i)]);
          CHECK_EQUAL(int(result.size()), rows_of(engine.rank()) * 2);
          for (size_t k = 0; k < result.size(); ++k) {
            CHECK_EQUAL(result[k], 6 * (begin + int32_t(k)));
          }
        }
      }
    });
  }
}

TEST(reducescatter_averages_and_scales) {
  with_engines(2, {}, [](Engine& engine) {
    std::vector<int32_t> data(100'001, 6 + 2 * engine.rank());
    TensorEntry entry = reducescatter("r", data, {100'001});
    entry.request.edit().reduce_op = ReduceOp::average;
    entry.request.edit().prescale = 2;
    entry.request.edit().postscale = 3;
    const auto result = take_result<int32_t>(engine, engine.enqueue(std::move(entry)));
    CHECK_EQUAL(result.size(), engine.rank() == 0 ? size_t{50'001} : size_t{50'000});
    CHECK_EQUAL(result.back(), 42);
    CHECK_EQUAL(data[0], 6 + 2 * engine.rank());  // the input stays as it is
    TensorEntry product = reducescatter("r", data, {100'001});
    product.request.edit().reduce_op = ReduceOp::product;
    CHECK_THROWS(InvalidRequest, "expected op Average or Sum, got product",
                 engine.enqueue(std::move(product)));
    CHECK_THROWS(InvalidRequest, "got a scalar", engine.enqueue(reducescatter("r", data, {})));
    check_goes_on(engine);
  });
}

TEST(adasum_combines_tensor_by_tensor_along_a_binary_tree) {
  for (int size : {1, 2, 4}) {
    with_engines(size, {}, [size](Engine& engine) {
      for (int round = 0; round < 2; ++round) {
        std::vector<std::vector<double>> data, expected;
        std::vector<int64_t> handles;
        for (size_t length : {1, 2, 7, 3000}) {
          std::vector<std::vector<double>> level;
          for (int rank = 0; rank < size; ++rank) level.push_back(gradient(length, rank));
          data.push_back(level[size_t(engine.rank())]);
          for (; level.size() > 1; level.resize(level.size() / 2)) {
            for (size_t i = 0; i < level.size() / 2; ++i) {
              level[i] = adasum_of(level[2 * i], level[2 * i + 1]);
            }
          }
          expected.push_back(level[0]);
        }
        for (size_t i = 0; i < data.size(); ++i) {
          handles.push_back(engine.enqueue(adasum("t" + std::to_string(i), data[i])));
        }
        for (size_t i = 0; i < data.size(); ++i) {
          wait(engine, handles[i]);
          for (size_t k = 0; k < data[i].size(); ++k) {
            CHECK(std::abs(data[i][k] - expected[i][k]) < 1e-12 * double(size) * 10);
          }
        }
      }
    });
  }
}

TEST(adasum_of_equal_and_of_orthogonal_vectors_is_their_average_and_their_sum) {
  with_engines(2, {}, [](Engine& engine) {
    std::vector<double> equal(10, 3.0), orthogonal{0, 0, 0}, zero(4, 0.0);
    orthogonal[size_t(engine.rank())] = 2.0;
    const int64_t first = engine.enqueue(adasum("equal", equal));
    const int64_t second = engine.enqueue(adasum("orthogonal", orthogonal));
    const int64_t third = engine.enqueue(adasum("zero", zero));
    for (int64_t handle : {first, second, third}) wait(engine, handle);
    CHECK_EQUAL(equal[9], 3.0);
    CHECK(orthogonal == (std::vector<double>{2, 2, 0}));
    CHECK_EQUAL(zero[3], 0.0);
  });
}

TEST(adasum_refuses_integers_and_numbers_of_ranks_without_a_tree) {
  with_engines(3, {}, [](Engine& engine) {
    std::vector<int32_t> numbers(2, 1);
    std::vector<double> data(2, 1);
    TensorEntry entry = allreduce("x", numbers);
    entry.request.edit().reduce_op = ReduceOp::adasum;
    CHECK_THROWS(InvalidRequest, "expected a float tensor for Adasum, got int32",
                 engine.enqueue(std::move(entry)));
    CHECK_THROWS(InvalidRequest, "a power of two for Adasum, got 3",
                 engine.enqueue(adasum("x", data)));
    const int32_t pair = add_set(engine, {0, 2});
    if (engine.rank() != 1) {
      TensorEntry in_pair = adasum("x", data);
      in_pair.request.edit().process_set = pair;
      wait(engine, engine.enqueue(std::move(in_pair)));
      CHECK_EQUAL(data[1], 1.0);
    }
    check_goes_on(engine);
  });
}

TEST(half_types_are_combined_in_float_by_adasum) {
  with_engines(2, {}, [](Engine& engine) {
    for (DataType type : {DataType::float16, DataType::bfloat16}) {
      const bool half = type == DataType::float16;
      const float value = engine.rank() == 0 ? 1.5f : 3.0f;
      std::vector<uint16_t> data(9, half ? float16_from_float(value) : bfloat16_from_float(value));
      TensorEntry entry;
      entry.request.edit().name = "h";
      entry.request.edit().dtype = type;
      entry.request.edit().reduce_op = ReduceOp::adasum;
      entry.request.edit().shape = {9};
      entry.input = entry.output = data.data();
      wait(engine, engine.enqueue(std::move(entry)));
      // Parallel: (1 - 1/2 * 2) 1.5 + (1 - 1/2 / 2) 3
      const float sum = half ? float_from_float16(data[8]) : float_from_bfloat16(data[8]);
      CHECK_EQUAL(sum, 2.25f);
    }
  });
}

TEST(a_group_is_taken_whole_or_not_at_all) {
  with_engines(2, {}, [](Engine& engine) {
    std::vector<int32_t> a(3, 1), b(3, 1);
    const auto group = [&](const char* first, const char* second) {
      std::vector<TensorEntry> entries;
      entries.push_back(allreduce(first, a));
      entries.push_back(allreduce(second, b));
      return entries;
    };
    CHECK_THROWS(InvalidRequest, "got one twice", enqueue_group(engine, group("g", "g")));
    std::vector<TensorEntry> bad = group("g1", "g2");
    bad[1].request.edit().process_set = 9;
    CHECK_THROWS(InvalidRequest, "got 9", enqueue_group(engine, std::move(bad)));
    const int64_t next = enqueue_group(engine, {});  // the number that nothing has yet
    const int64_t first = enqueue_group(engine, group("g1", "g2"));
    CHECK_EQUAL(first, next);
    wait(engine, first);
    wait(engine, first + 1);
    CHECK_EQUAL(a[2] + b[2], 4);
  });
}

TEST(a_group_with_one_name_in_flight_leaves_the_other_names_free) {
  EngineOptions options;
  options.params.cycle_time_ms = 30'000;  // nothing ends before it is waited for
  with_engines(2, options, [](Engine& engine) {
    std::vector<int32_t> a(3, 1), b(3, 1), c(3, 1);
    const int64_t busy = engine.enqueue(allreduce("busy", a));
    std::vector<TensorEntry> entries;
    entries.push_back(allreduce("free", b));
    entries.push_back(allreduce("busy", c));
    CHECK_THROWS(InvalidRequest, "in flight", enqueue_group(engine, std::move(entries)));
    const int64_t free = engine.enqueue(allreduce("free", b));
    wait(engine, busy);
    wait(engine, free);
    CHECK_EQUAL(a[2] + b[2] + c[2], 5);
  });
}

TEST(groups_fuse_among_themselves_only_where_that_is_asked_for) {
  for (bool apart : {false, true}) {
    EngineOptions options;
    options.disable_group_fusion = apart;
    options.params.cycle_time_ms = 30'000;  // announced together, by the wait
    with_engines(2, options, [apart](Engine& engine) {
      for (int round = 0; round < 3; ++round) {
        std::vector<std::vector<int32_t>> data(6, std::vector<int32_t>(4, 1));
        std::vector<int64_t> handles;
        const int64_t responses = engine.counters().responses;
        for (size_t g = 0; g < 2; ++g) {
          std::vector<TensorEntry> entries;
          for (size_t i = 0; i < 3; ++i) {
            entries.push_back(allreduce(std::to_string(g) + std::to_string(i), data[3 * g + i]));
          }
          const int64_t first = enqueue_group(engine, std::move(entries));
          for (int64_t i = 0; i < 3; ++i) handles.push_back(first + i);
        }
        for (int64_t handle : handles) wait(engine, handle);
        for (const auto& values : data) CHECK_EQUAL(values[3], 2);
        CHECK_EQUAL(engine.counters().responses - responses, apart ? 2 : 1);
        check_goes_on(engine, "between");  // so that the ranks look at their counters first
      }
    });
  }
}
