// What reductions on a GPU compute: types, packing, scaling, levels, sets. See host_device.h.
#include <algorithm>
#include <numeric>

#include "check.h"
#include "device_fixture.h"
#include "device_values.h"
#include "engine/execute/layout.h"

using namespace autotune;

TEST(device_allreduce_of_every_type_and_op_packed_or_not) {
  for (bool fuse : {false, true}) {
    with_device_sizes(fusing(fuse), [fuse](DeviceRank& rank) {
      std::deque<ReductionCase> cases = every_reduction({1, 37, 0, 5});
      run_reductions(rank, cases);
      CHECK_EQUAL(rank.engine.counters().fused_tensors,
                  fuse ? static_cast<int64_t>(cases.size()) : 0);
    });
  }
}

TEST(device_tensors_around_the_limit_are_packed_below_it_only) {
  with_device_sizes(fusing(true), [](DeviceRank& rank) {
    const int64_t limit = (2 << 20) / 8;  // elements
    std::vector<Tensor> tensors;
    for (int64_t count : {limit - 1, limit, int64_t{3}, limit + 1, int64_t{5}}) {
      tensors.emplace_back(DataType::float64, Shape{count});
    }
    std::vector<TensorEntry> entries;
    for (size_t t = 0; t < tensors.size(); ++t) {
      rank.fill(tensors[t], [r = rank.rank(), t](int64_t i) {
        return element(DataType::float64, r, i + static_cast<int64_t>(t));
      });
      entries.push_back(rank.allreduce(std::to_string(t), tensors[t]));
    }
    rank.finish_all(rank.enqueue_group(std::move(entries)));
    for (size_t t = 0; t < tensors.size(); ++t) {
      for (int64_t i = 0; i < tensors[t].count(); i += i < 16 ? 1 : 101) {
        check_value(
            tensors[t], i,
            reduced(DataType::float64, ReduceOp::sum, rank.size(), i + static_cast<int64_t>(t)));
      }
      check_value(tensors[t], tensors[t].count() - 1,
                  reduced(DataType::float64, ReduceOp::sum, rank.size(),
                          tensors[t].count() - 1 + static_cast<int64_t>(t)));
    }
    CHECK_EQUAL(rank.device.launches, 2);  // one in, one out
    rank.script.synchronize();
  });
}

TEST(device_fusion_is_one_call_with_a_span_for_each_large_tensor) {
  with_devices(2, fusing(true), {}, [](DeviceRank& rank) {
    std::vector<Tensor> tensors(6, Tensor(DataType::float64, {100}));
    tensors.emplace_back(DataType::float64, Shape{300'000});
    tensors.emplace_back(DataType::float64, Shape{300'001});
    std::vector<TensorEntry> entries;
    for (Tensor& tensor : tensors) {
      rank.fill(tensor, [](int64_t i) { return static_cast<double>(i); });
      entries.push_back(rank.allreduce(std::to_string(entries.size()), tensor));
    }
    rank.finish_all(rank.enqueue_group(std::move(entries)));
    for (const Tensor& tensor : tensors)
      check_value(tensor, tensor.count() - 1, 2.0 * static_cast<double>(tensor.count() - 1));
    check_goes_on(rank.engine);  // both ranks are here
    CHECK_EQUAL(rank.network.allreduces, 2);
    CHECK_EQUAL(rank.network.spans, 2 * 3);
  });
}

TEST(device_output_may_be_other_memory_and_the_input_stays) {
  for (bool fuse : {false, true}) {
    with_device_sizes(fusing(fuse), [](DeviceRank& rank) {
      std::vector<Tensor> inputs(3, Tensor(DataType::float32, {50})), outputs = inputs;
      std::vector<TensorEntry> entries;
      for (size_t t = 0; t < inputs.size(); ++t) {
        rank.fill(inputs[t], [](int64_t i) { return static_cast<double>(i); });
        entries.push_back(
            rank.entry(std::to_string(t), Operation::allreduce, inputs[t], outputs[t]));
        entries.back().request.edit().prescale = t == 0 ? 1.0 : 3.0;
        entries.back().request.edit().postscale = t == 2 ? 0.5 : 1.0;
      }
      rank.finish_all(rank.enqueue_group(std::move(entries)));
      const double factors[] = {1, 3, 1.5};
      for (size_t t = 0; t < inputs.size(); ++t) {
        check_value(inputs[t], 49, 49);
        check_value(outputs[t], 49, 49 * factors[t] * rank.size());
      }
    });
  }
}

TEST(device_scaling_before_and_after_packed_or_not) {
  for (bool fuse : {false, true}) {
    with_device_sizes(fusing(fuse), [](DeviceRank& rank) {
      std::deque<Tensor> tensors;
      std::vector<TensorEntry> entries;
      for (DataType type : all_types) {
        if (type == DataType::boolean || type == DataType::uint8) continue;
        for (int twice = 0; twice < 2; ++twice) {
          tensors.emplace_back(type, Shape{33});
          rank.fill(tensors.back(),
                    [=, r = rank.rank()](int64_t i) { return element(type, r, i); });
          entries.push_back(rank.allreduce(std::to_string(entries.size()), tensors.back()));
          entries.back().request.edit().prescale = 2.0;
          entries.back().request.edit().postscale = 0.25;
        }
      }
      rank.finish_all(rank.enqueue_group(std::move(entries)));
      for (const Tensor& tensor : tensors) {
        for (int64_t i = 0; i < 33; ++i) {
          const double exact = 0.25 * reduced(tensor.type(), ReduceOp::sum, rank.size(), i, 2.0);
          check_value(tensor, i, is_float(tensor.type()) ? exact : std::trunc(exact));
        }
      }
    });
  }
}

TEST(device_average_of_integers_with_a_factor_is_rounded_once) {
  with_device_sizes(fusing(true), [](DeviceRank& rank) {
    Tensor one(DataType::int32, {4}), two(DataType::int16, {4});
    for (Tensor* each : {&one, &two}) rank.fill(*each, [](int64_t i) { return -7.0 - i; });
    TensorEntry entry = rank.allreduce("one", one, ReduceOp::average);
    TensorEntry other = rank.allreduce("two", two, ReduceOp::average);
    entry.request.edit().postscale = other.request.edit().postscale = 0.5;
    rank.finish(rank.engine.enqueue(std::move(entry)));
    rank.finish(rank.engine.enqueue(std::move(other)));
    for (int64_t i = 0; i < 4; ++i) {
      check_value(one, i, std::trunc((-7.0 - static_cast<double>(i)) * 0.5));
      check_value(two, i, std::trunc((-7.0 - static_cast<double>(i)) * 0.5));
    }
  });
}

// Over 3 ranks, too, where the library's own average would be off by the rounding of 1 / 3.
TEST(device_averages_of_halves_overflow_only_where_the_result_does_and_have_no_bias) {
  for (bool fuse : {false, true}) {
    with_device_sizes(fusing(fuse), [](DeviceRank& rank) {
      struct Case {
        DataType type;
        Tensor large, any, scattered;
      };
      std::deque<Case> cases;
      std::vector<TensorEntry> entries;
      for (DataType type : {DataType::float16, DataType::bfloat16}) {
        for (int64_t count : {3, 2'000'000}) {  // packed, and where it lies
          const double most = type == DataType::float16 ? 65504 : 0x1.fep127;
          Case& made = cases.emplace_back(
              Case{type, Tensor(type, {count}), Tensor(type, {count}), Tensor(type, {12})});
          rank.fill(made.large, [=](int64_t) { return most; });
          rank.fill(made.scattered, [=](int64_t) { return -most; });
          rank.fill(made.any, [](int64_t i) { return 1.0 + static_cast<double>(i % 97) / 128; });
          const auto add = [&](TensorEntry entry, double prescale) {
            entry.request.edit().name = std::to_string(entries.size());
            entry.request.edit().reduce_op = ReduceOp::average;
            entry.request.edit().prescale = prescale;
            entry.request.edit().postscale = 1 / prescale;
            entries.push_back(std::move(entry));
          };
          add(rank.allreduce("", made.large), 4.0);
          add(rank.allreduce("", made.any), 1.0);
          add(rank.entry("", Operation::reducescatter, made.scattered, made.scattered), 4.0);
        }
      }
      std::vector<int64_t> handles;
      for (TensorEntry& entry : entries) handles.push_back(rank.engine.enqueue(std::move(entry)));
      for (size_t i = 0; i < handles.size(); ++i) {
        Case& each = cases[i / 3];
        if (i % 3 == 2) {
          const Tensor rows = rank.take(handles[i], each.type);
          CHECK_EQUAL(rows.get(0), each.scattered.get(0));
          continue;
        }
        rank.finish(handles[i]);
        if (i % 3 == 0) {
          CHECK_EQUAL(each.large.get(0), each.type == DataType::float16 ? 65504 : 0x1.fep127);
          CHECK_EQUAL(each.large.get(each.large.count() - 1), each.large.get(0));
        } else if (each.any.count() > 97) {
          double error = 0;
          for (int64_t k = 0; k < 97; ++k) {
            const double exact = 1.0 + static_cast<double>(k) / 128;
            error += (each.any.get(k) - exact) / exact / 97;
          }
          CHECK(std::abs(error) < (each.type == DataType::float16 ? 0x1p-14 : 0x1p-11));
        }
      }
    });
  }
}

TEST(device_sums_of_int16_wrap) {
  with_device_sizes(fusing(true), [](DeviceRank& rank) {
    Tensor tensor(DataType::int16, {9});
    rank.fill(tensor, [](int64_t) { return 30'000; });
    rank.finish(rank.engine.enqueue(rank.allreduce("x", tensor)));
    check_value(tensor, 8, static_cast<double>(static_cast<int16_t>(30'000 * rank.size())));
  });
}

TEST(device_tensors_travel_compressed_and_come_back_as_they_were) {
  for (bool fuse : {false, true}) {
    with_device_sizes(fusing(fuse), [](DeviceRank& rank) {
      std::deque<Tensor> tensors;
      std::vector<TensorEntry> entries;
      for (DataType wire : {DataType::float16, DataType::bfloat16}) {
        for (int64_t count : {1, 7, 1000, 30'000}) {
          tensors.emplace_back(DataType::float32, Shape{count});
          rank.fill(tensors.back(), [r = rank.rank()](int64_t i) {
            return element(DataType::float32, r, i) * 0x1p-20;
          });
          entries.push_back(
              rank.allreduce(std::to_string(entries.size()), tensors.back(), ReduceOp::average));
          entries.back().request.edit().wire_type = wire;
          entries.back().request.edit().prescale =
              0x1p20;  // before it is made short: else all were 0
          entries.back().request.edit().postscale = 0x1p30;  // after: else all were infinite
        }
      }
      const int64_t before = rank.engine.counters().payload_bytes;
      rank.finish_all(rank.enqueue_group(std::move(entries)));
      int64_t elements = 0;
      for (const Tensor& tensor : tensors) {
        elements += tensor.count();
        for (int64_t i = 0; i < tensor.count(); ++i) {
          const double exact = reduced(DataType::float32, ReduceOp::average, rank.size(), i);
          CHECK(std::abs(tensor.get(i) * 0x1p-30 - exact) <= 0x1p-6 * std::abs(exact));
        }
      }
      CHECK_EQUAL(rank.engine.counters().payload_bytes - before, 2 * elements);
    });
  }
}

TEST(device_buffer_that_grows_keeps_what_is_under_way) {
  with_devices(2, fusing(true), {}, [](DeviceRank& rank) {
    std::deque<Tensor> tensors;
    std::vector<int64_t> handles;
    for (int64_t round = 0; round < 8; ++round) {  // never waits between
      std::vector<TensorEntry> entries;
      for (int64_t t = 0; t < 3; ++t) {
        tensors.emplace_back(DataType::float32, Shape{(100 << round) + t});
        rank.fill(tensors.back(), [=](int64_t i) { return static_cast<double>((i + round) % 64); });
        entries.push_back(
            rank.allreduce(std::to_string(round) + "." + std::to_string(t), tensors.back()));
      }
      for (int64_t each : rank.enqueue_group(std::move(entries))) handles.push_back(each);
    }
    rank.finish_all(handles);
    for (size_t t = 0; t < tensors.size(); ++t) {
      for (int64_t i = 0; i < tensors[t].count(); ++i) {
        check_value(tensors[t], i,
                    2.0 * static_cast<double>((i + static_cast<int64_t>(t) / 3) % 64));
      }
    }
  });
}

TEST(device_and_host_tensors_side_by_side) {
  with_device_sizes(fusing(true), [](DeviceRank& rank) {
    for (int round = 0; round < 3; ++round) {
      Tensor on_device(DataType::int32, {40});
      std::vector<int32_t> on_host(40, 2);
      rank.fill(on_device, [](int64_t) { return 1; });
      const int64_t first = rank.engine.enqueue(rank.allreduce("device", on_device));
      const int64_t second = rank.engine.enqueue(allreduce("host", on_host));
      wait(rank.engine, second);
      rank.finish(first);
      check_value(on_device, 39, rank.size());
      CHECK_EQUAL(on_host[39], 2 * rank.size());
    }
  });
}

TEST(device_allreduce_in_two_levels_of_lengths_that_do_not_divide) {
  for (const std::vector<int>& hosts :
       {std::vector<int>{0, 0, 1, 1}, std::vector<int>{0, 1, 0, 1}}) {
    for (bool fuse : {false, true}) {
      EngineOptions options = fusing(fuse);
      options.params.hierarchical_allreduce = true;
      with_devices(4, options, hosts, [](DeviceRank& rank) {
        std::deque<ReductionCase> cases = every_reduction({1, 2, 7, 1001});
        cases.push_back({Tensor(DataType::float64, {262'147}), ReduceOp::sum});
        run_reductions(rank, cases);
        check_goes_on(rank.engine);
        CHECK_EQUAL(rank.network.connected, 3 * 4);
        CHECK(rank.network.reduce_scatters > 0 && rank.network.allgathers > 0);
      });
    }
  }
}

TEST(device_allreduce_is_flat_where_hosts_have_different_numbers_of_ranks) {
  EngineOptions options = fusing(true);
  options.params.hierarchical_allreduce = true;
  with_devices(4, options, {0, 0, 0, 1}, [](DeviceRank& rank) {
    Tensor tensor(DataType::float32, {1001});
    rank.fill(tensor, [r = rank.rank()](int64_t i) { return element(DataType::float32, r, i); });
    rank.finish(rank.engine.enqueue(rank.allreduce("x", tensor)));
    check_reduced(tensor, ReduceOp::sum, 4);
    CHECK_EQUAL(rank.network.connected, rank.size());
  });
}

TEST(device_operations_in_process_sets) {
  with_devices(4, fusing(true), {}, [](DeviceRank& rank) {
    const std::vector<int> members{1, 3};
    const int32_t id = add_set(rank.engine, members);
    if (rank.rank() % 2 == 1) {
      std::vector<Tensor> tensors(3, Tensor(DataType::int32, {11}));
      std::vector<TensorEntry> entries;
      for (Tensor& tensor : tensors) {
        rank.fill(tensor, [r = rank.rank()](int64_t i) { return row_value(r, i); });
        entries.push_back(rank.allreduce(std::to_string(entries.size()), tensor));
        entries.back().request.edit().process_set = id;
        complete_name(entries.back().request.edit().name, id);
      }
      rank.finish_all(rank.enqueue_group(std::move(entries)));
      for (const Tensor& tensor : tensors) {
        for (int64_t i = 0; i < 11; ++i) check_value(tensor, i, row_value(1, i) + row_value(3, i));
      }
      Tensor other(DataType::int32, {2});
      rank.fill(other, [r = rank.rank()](int64_t i) { return row_value(r, i); });
      TensorEntry entry = rank.entry("b", Operation::broadcast, other, other);
      entry.request.edit().process_set = id;
      entry.request.edit().root_rank = 3;
      rank.finish(rank.engine.enqueue(std::move(entry)));
      check_value(other, 1, row_value(3, 1));
      TensorEntry gather = rank.entry("g", Operation::allgather, other, other);
      gather.request.edit().process_set = id;
      CHECK_EQUAL(rank.take(rank.engine.enqueue(std::move(gather)), DataType::int32).count(), 4);
    }
    Tensor of_all(DataType::int32, {3});
    rank.fill(of_all, [](int64_t) { return 1; });
    rank.finish(rank.engine.enqueue(rank.allreduce("all", of_all)));
    check_value(of_all, 2, 4);
    const int64_t removal = rank.engine.remove_process_set(id);
    wait(rank.engine, removal);
    check_goes_on(rank.engine);
  });
}
