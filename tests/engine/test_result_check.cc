// Wrong results are seen: a communicator that spoils what it reduces, and honest ones.
#include "engine/execute/result_check.h"

#include <sys/resource.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <set>

#include "check.h"
#include "comm/hierarchical/hierarchical_communicator.h"
#include "comm/p2p/p2p_communicator.h"
#include "common/reduce.h"
#include "engine/execute/checked_elements.h"
#include "engine_fixture.h"

using namespace autotune;
using namespace std::chrono_literals;

namespace {

// A two-level path that is wrong in one element: it sums like a backend whose memory was resized
// under it.
class Wrong final : public Communicator {
 public:
  explicit Wrong(std::unique_ptr<Communicator> right) : right_(std::move(right)) {}
  int rank() const override { return right_->rank(); }
  int size() const override { return right_->size(); }
  bool gathers() const override { return true; }  // so that every tensor is a span of its own
  void allreduce(const std::vector<Span>& spans, DataType type, ReduceOp op, double prescale,
                 double postscale) override {
    right_->allreduce(spans, type, op, prescale, postscale);
    for (const Span& span : spans) {
      if (span.count > 0) combine(span.output, span.output, span.output, 1, type, ReduceOp::sum);
    }
  }
  void allgather(void* blocks, const std::vector<int64_t>& bytes_per_rank) override {
    right_->allgather(blocks, bytes_per_rank);
    // Last rank's last byte, on one rank only.
    int64_t bytes = 0;
    for (int64_t each : bytes_per_rank) bytes += each;
    if (rank() == 1) static_cast<char*>(blocks)[bytes - 1] ^= 1;
  }
  void broadcast(void* data, int64_t bytes, int root_rank) override {
    right_->broadcast(data, bytes, root_rank);
  }

 private:
  std::unique_ptr<Communicator> right_;
};

// Engines on two hosts, whose two-level path is wrong.
void with_wrong_hierarchy(const std::function<void(Engine&)>& body) {
  constexpr int size = 3;
  auto mail = std::make_shared<Mail>(size);
  Rendezvous rendezvous(test_key());
  run_ranks(size, [&](int rank) {
    const auto honest =
        communicator_factory(std::make_shared<ThreadPointToPoint>(mail, rank), {0, 0, 1});
    Engine engine({}, join(rendezvous, rank, size),
                  [&](const std::vector<int>& ranks, const WaitHook& on_wait) {
                    Communicators chosen = honest(ranks, on_wait);
                    chosen.hierarchical = std::make_unique<Wrong>(std::move(chosen.hierarchical));
                    return chosen;
                  });
    body(engine);
    engine.shutdown(10s);
  });
}

TensorEntry floats(const std::string& name, std::vector<float>& data) {
  TensorEntry entry;
  entry.request.edit().name = name;
  entry.request.edit().shape = {static_cast<int64_t>(data.size())};
  entry.input = entry.output = data.data();
  return entry;
}

Params params_with(bool hierarchical) {
  Params params;
  params.hierarchical_allreduce = params.hierarchical_allgather = hierarchical;
  return params;
}

// One step of three reductions and one gathering.
void step(Engine& engine) {
  std::mt19937 random(static_cast<unsigned>(engine.rank()));
  std::normal_distribution<float> normal;
  std::vector<std::vector<float>> data;
  for (size_t length : {1, 100, 5000}) {
    std::vector<float> values(length);
    for (float& x : values) x = normal(random) * 1e3f;
    data.push_back(std::move(values));
  }
  std::vector<int64_t> handles;
  for (size_t i = 0; i < data.size(); ++i) {
    handles.push_back(engine.enqueue(floats("t" + std::to_string(i), data[i])));
  }
  std::vector<float> rows(static_cast<size_t>(engine.rank()) + 1, 1.0f);
  TensorEntry entry = floats("g", rows);
  entry.request.edit().operation = Operation::allgather;
  handles.push_back(engine.enqueue(std::move(entry)));
  for (int64_t handle : handles) wait(engine, handle);
  engine.end_step(true);
}

}  // namespace

TEST(wrong_results_of_a_setting_are_seen_and_right_ones_are_right) {
  with_wrong_hierarchy([](Engine& engine) {
    step(engine);
    for (uint64_t epoch = 1; epoch <= 8; ++epoch) {
      if (engine.rank() == 0) engine.propose(epoch, params_with(epoch % 2 == 0));
      for (int i = 0; i < 3; ++i) step(engine);
    }
    const auto checks = engine.drain_checks();
    if (engine.rank() != 0) {
      CHECK(checks.empty());
      return;
    }
    CHECK_EQUAL(checks.size(), size_t{8});
    std::set<std::string> names;
    for (const CheckRecord& check : checks) {
      CHECK_EQUAL(check.ok(), check.epoch % 2 == 1);
      names.insert(check.name);
    }
    CHECK_EQUAL(names.size(), size_t{4});  // another one each time
    CHECK(engine.drain_checks().empty());
  });
}

TEST(honest_backends_pass_in_every_type_and_operation) {
  with_engines(3, {}, [](Engine& engine) {
    uint64_t epoch = 0;
    for (DataType type : {DataType::uint8, DataType::int32, DataType::int64, DataType::float16,
                          DataType::bfloat16, DataType::float32, DataType::float64}) {
      for (ReduceOp op :
           {ReduceOp::average, ReduceOp::sum, ReduceOp::min, ReduceOp::max, ReduceOp::product}) {
        if (engine.rank() == 0) engine.propose(++epoch, params_with(true));
        std::vector<double> values(300), memory(300);
        for (size_t i = 0; i < values.size(); ++i) {
          values[i] = std::sin(double(i) + engine.rank()) * 50;
        }
        std::vector<float> single(values.begin(), values.end());
        if (type == DataType::float64) {
          memory = values;
        } else if (type == DataType::float16 || type == DataType::bfloat16) {
          convert(memory.data(), type, single.data(), DataType::float32, 300);
        } else if (type == DataType::float32) {
          std::copy(single.begin(), single.end(), reinterpret_cast<float*>(memory.data()));
        } else {
          for (size_t i = 0; i < values.size(); ++i) {
            reinterpret_cast<uint8_t*>(memory.data())[i] = static_cast<uint8_t>(i * 7);
          }
          memory.resize(300);
        }
        TensorEntry entry;
        entry.request.edit().name = "x";
        entry.request.edit().dtype = type;
        entry.request.edit().reduce_op = op;
        entry.request.edit().shape = {type == DataType::int32   ? 70
                                      : type == DataType::int64 ? 30
                                                                : 300};
        entry.request.edit().prescale = 0.5;
        entry.request.edit().postscale = op == ReduceOp::product ? 1e-3 : 3.0;
        entry.input = entry.output = memory.data();
        wait(engine, engine.enqueue(std::move(entry)));
        engine.end_step(true);
      }
    }
    if (engine.rank() != 0) return;
    const auto checks = engine.drain_checks();
    CHECK(checks.size() > 30);
    for (const CheckRecord& check : checks) CHECK(check.ok());
  });
}

TEST(checked_ranges_are_few_do_not_overlap_and_have_the_first_and_the_last_element) {
  for (int64_t most : {2, 7, 64}) {
    const int64_t enough = most * checked_range_elements;
    for (int64_t count : {int64_t{0}, int64_t{1}, enough - 1, enough, enough + 1, 3 * enough + 5,
                          int64_t{1} << 40}) {
      const std::vector<ElementRange> ranges = checked_ranges(count, most);
      CHECK(int64_t(ranges.size()) <= most);
      CHECK_EQUAL(total_count(ranges), std::min(count, enough));
      int64_t end = 0, widest_gap = 0;
      for (const ElementRange& range : ranges) {
        CHECK(range.first >= end);
        widest_gap = std::max(widest_gap, range.first - end);
        end = range.first + range.count;
      }
      CHECK_EQUAL(end, count);
      if (!ranges.empty()) CHECK_EQUAL(ranges[0].first, 0);
      CHECK(widest_gap <= count / (most - 1));
    }
  }
}

TEST(a_check_takes_memory_that_does_not_grow_with_the_tensor) {
  const auto peak_bytes = [] {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return int64_t{usage.ru_maxrss} << 10;
  };
  constexpr int size = 2;
  constexpr size_t length = 16 << 20;
  constexpr auto tensor_bytes = int64_t{length * sizeof(float)};
  EngineOptions options;
  Job job(size, options);
  Meeting end(size), warm(size), measured(size);
  int64_t before = 0;
  run_ranks(size, [&](int rank) {
    auto engine = job.start(rank);
    std::vector<float> data(length, 1.0f);
    const auto step = [&] {
      wait(*engine, engine->enqueue(floats("x", data)));
      engine->end_step(true);
    };
    step();
    warm.after([&] {
      if (rank == 0) before = peak_bytes();
    });
    if (rank == 0) engine->propose(1, params_with(false));
    for (int i = 0; i < 3; ++i) step();
    measured.after([&] {
      if (rank != 0) return;
      CHECK_EQUAL(engine->drain_checks().size(), size_t{1});
      CHECK(peak_bytes() - before < tensor_bytes / 4);
    });
    end.after([&] { engine->shutdown(10s); });
  });
}

namespace {

// What the check says of a sum of `length` numbers after `spoil(data)`.
template <typename Spoil>
double error_after(size_t length, Spoil&& spoil) {
  constexpr int size = 2;
  auto mail = std::make_shared<Mail>(size);
  double found = -1;
  run_ranks(size, [&](int rank) {
    P2pCommunicator plain(std::make_shared<ThreadPointToPoint>(mail, rank), [] {});
    std::vector<float> data(length);
    for (size_t i = 0; i < length; ++i) data[i] = float(i % 1000) + float(rank);
    TensorEntry entry = floats("x", data);
    Response response;
    response.items.resize(1);
    response.reduce_op = ReduceOp::sum;
    ResultCheck check(response, response.items[0], entry, rank, size);
    for (size_t i = 0; i < length; ++i) data[i] = 2 * float(i % 1000) + 1;
    spoil(data);
    check.read_result(entry);
    const double error = check.worst_error(plain);
    if (rank == 0) found = error;
  });
  return found;
}

}  // namespace

TEST(what_goes_wrong_in_a_long_tensor_is_seen_in_the_elements_that_are_checked) {
  constexpr size_t length = 1'000'003;
  using Data = std::vector<float>;
  CHECK_EQUAL(error_after(length, [](Data&) {}), 0.0);
  CHECK(error_after(length, [](Data& data) { data.front() += 1; }) > 1);
  CHECK(error_after(length, [](Data& data) { data.back() += 1; }) > 1);
  CHECK(error_after(length, [](Data& data) {  // packed one element too far
          std::rotate(data.begin(), data.begin() + 1, data.end());
        }) > 1);
  CHECK(error_after(length, [](Data& data) {  // a factor is forgotten
          for (float& x : data) x *= 0.5f;
        }) > 1);
  for (size_t shards : {2, 4, 16, 32}) {  // one of them was not reduced
    for (size_t shard = 0; shard < shards; ++shard) {
      CHECK(error_after(length, [&](Data& data) {
              for (size_t i = length * shard / shards; i < length * (shard + 1) / shards; ++i) {
                data[i] = float(i % 1000);
              }
            }) > 1);
    }
  }
}
