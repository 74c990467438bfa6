// Tensors of float32 in the memory of the host that travel in a shorter type.
#include <atomic>
#include <cmath>

#include "common/halves.h"
#include "common/reduce.h"
#include "engine_fixture.h"

using namespace autotune;

namespace {

constexpr DataType half_types[] = {DataType::float16, DataType::bfloat16};

float rounded(DataType half, float value) {
  float result = 0;
  uint16_t bits = 0;
  convert(&bits, half, &value, DataType::float32, 1);
  convert(&result, DataType::float32, &bits, half, 1);
  return result;
}

TensorEntry gradient(const std::string& name, std::vector<float>& data) {
  TensorEntry entry;
  entry.request.edit().name = name;
  entry.request.edit().shape = {static_cast<int64_t>(data.size())};
  entry.request.edit().reduce_op = ReduceOp::average;
  entry.input = entry.output = data.data();
  return entry;
}

// All ranks have the same: the average is exact, but for how far it is rounded on its way.
float element(int64_t i) { return 1.0f + static_cast<float>(i % 1000) * 0x1p-20f; }

void fill(std::vector<float>& data) {
  for (size_t i = 0; i < data.size(); ++i) data[i] = element(static_cast<int64_t>(i));
}

}  // namespace

TEST(what_is_made_short_is_scaled_before_and_rounded_once) {
  for (DataType half : half_types) {
    for (int64_t count : {0, 1, 15, 2048, 5000}) {
      std::vector<float> from(static_cast<size_t>(count)), back(from);
      std::vector<uint16_t> to(from.size());
      fill(from);
      for (float factor : {1.0f, 0.3f, 0x1p20f}) {
        shorten(half, to.data(), from.data(), count, factor * 0x1p-10f);
        lengthen(half, back.data(), to.data(), count, 0x1p30f);
        for (size_t i = 0; i < from.size(); ++i) {
          CHECK_EQUAL(back[i], rounded(half, from[i] * (factor * 0x1p-10f)) * 0x1p30f);
        }
      }
    }
  }
}

TEST(host_tensors_travel_compressed_and_come_back_as_they_were) {
  for (int64_t threshold : {0, 1 << 20}) {
    EngineOptions options;
    options.params.fusion_threshold_bytes = threshold;
    with_engines(3, options, [](Engine& engine) {
      std::vector<std::vector<float>> data;
      for (int64_t count : {1, 7, 1000, 70'000}) data.emplace_back(static_cast<size_t>(count));
      for (DataType half : half_types) {
        std::vector<TensorEntry> entries;
        for (auto& each : data) {
          fill(each);
          for (float& x : each) x *= 0x1p-20f * static_cast<float>(engine.rank());
          entries.push_back(gradient(std::to_string(entries.size()), each));
          entries.back().request.edit().wire_type = half;
          entries.back().request.edit().prescale = 0x1p20;   // else all were 0 in float16
          entries.back().request.edit().postscale = 0x1p30;  // and here infinite
        }
        const int64_t before = engine.counters().payload_bytes;
        int64_t elements = 0;
        const int64_t first = enqueue_group(engine, std::move(entries));
        for (size_t i = 0; i < data.size(); ++i) wait(engine, first + static_cast<int64_t>(i));
        for (const auto& each : data) {
          elements += static_cast<int64_t>(each.size());
          for (size_t i = 0; i < each.size(); ++i) {
            const float exact = element(static_cast<int64_t>(i));  // (0 + 1 + 2) / 3
            CHECK(std::abs(each[i] * 0x1p-30f - exact) <= 0x1p-6f);
          }
        }
        CHECK_EQUAL(engine.counters().payload_bytes - before, 2 * elements);
      }
    });
  }
}

TEST(gradients_that_may_travel_short_do_so_in_the_same_steps_on_all_ranks) {
  EngineOptions options;
  options.params.cycle_time_ms = 0.1;
  std::vector<std::atomic<int>> ways(60);  // by step: 1 + what was in force
  with_engines(3, options, [&](Engine& engine) {
    if (engine.rank() == 0) {
      for (auto& each : ways) each = 0;
    }
    std::vector<int32_t> ready(1, 0);
    wait(engine, engine.enqueue(allreduce("ready", ready)));  // cleared for all ranks
    engine.end_step(true);
    std::vector<std::vector<float>> data;
    for (size_t i = 0; i < 9; ++i) data.emplace_back(1 + i * 613);
    int seen[3] = {0, 0, 0};
    for (size_t step = 0; step < ways.size(); ++step) {
      if (engine.rank() == 0) {
        Params params;
        params.cycle_time_ms = 0.1;
        params.fusion_threshold_bytes = static_cast<int64_t>(step % 3) * 8000;
        params.hierarchical_allreduce = step % 2;
        params.fp16_gradients = step % 3 == 1;
        params.bf16_gradients = step % 3 == 2;
        engine.propose(step + 1, params);
      }
      std::vector<int64_t> handles;
      for (size_t i = 0; i < data.size(); ++i) {
        fill(data[i]);
        TensorEntry entry = gradient("t" + std::to_string(i), data[i]);
        entry.request.edit().may_compress = i % 3 != 0;
        handles.push_back(engine.enqueue(std::move(entry)));
      }
      for (int64_t handle : handles) wait(engine, handle);
      const Params params = engine.params();
      const int way = params.fp16_gradients ? 1 : params.bf16_gradients ? 2 : 0;
      ++seen[way];
      int expected = 0;
      if (!ways[step].compare_exchange_strong(expected, way + 1)) CHECK_EQUAL(expected, way + 1);
      for (size_t i = 0; i < data.size(); ++i) {
        for (size_t k = 0; k < data[i].size(); ++k) {
          const float plain = element(static_cast<int64_t>(k));
          const bool is_short = way > 0 && i % 3 != 0;
          const float right = is_short ? rounded(half_types[way - 1], plain) : plain;
          CHECK(std::abs(data[i][k] - right) <= (is_short ? 0.0f : 1e-6f));
        }
      }
      engine.end_step(true);
    }
    for (int count : seen) CHECK(count > 10);
  });
}

TEST(a_request_to_travel_short_is_refused_where_it_cannot) {
  EngineOptions options;
  with_engines(2, options, [](Engine& engine) {
    std::vector<float> data(8, 1.0f);
    const auto refused = [&](auto change) {
      TensorEntry entry = gradient("x", data);
      entry.request.edit().wire_type = DataType::float16;
      change(entry.request.edit());
      std::string text;
      try {
        engine.enqueue(std::move(entry));
      } catch (const InvalidRequest& error) {
        text = error.what();
      }
      return text;
    };
    CHECK(contains(refused([](Request& r) { r.reduce_op = ReduceOp::adasum; }), "Adasum"));
    CHECK(contains(refused([](Request& r) { r.operation = Operation::reducescatter; }),
                   "expected an allreduce to compress on the CPU"));
    CHECK(contains(refused([](Request& r) { r.dtype = DataType::int32; }), "float32"));
    check_goes_on(engine);
  });
}
