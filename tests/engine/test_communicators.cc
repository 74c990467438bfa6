// One contract for the backends that exchange data: messages between ranks, and shared memory.

#include "comm/p2p/p2p_communicator.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <numeric>
#include <random>

#include "check.h"
#include "comm/choose.h"
#include "comm/shm/shared_communicator.h"
#include "common/reduce.h"
#include "thread_ranks.h"

using namespace autotune;

namespace {

const WaitHook no_wait_hook = [] {};

std::unique_ptr<Communicator> make_p2p(std::shared_ptr<Mail> mail, int rank) {
  return std::make_unique<P2pCommunicator>(
      std::make_unique<ThreadPointToPoint>(std::move(mail), rank), no_wait_hook);
}

// Ways to place `size` ranks on hosts so that hosts matter: uneven, interleaved, equal ones in a
// row, three hosts.
std::vector<std::vector<int>> host_maps(int size) {
  const auto n = static_cast<size_t>(size);
  if (n < 3) return {};
  std::vector<int> uneven(n, 0), interleaved(n);
  uneven.back() = 1;
  for (size_t rank = 0; rank < n; ++rank) interleaved[rank] = static_cast<int>(rank % 2);
  std::vector<std::vector<int>> maps{uneven, interleaved};
  if (n == 4) maps.push_back({0, 0, 1, 1});
  if (n == 5) maps.push_back({0, 1, 2, 2, 1});
  if (n == 6) maps.push_back({0, 0, 1, 1, 2, 2});
  if (n == 9) maps.push_back({0, 0, 0, 1, 1, 1, 2, 2, 2});
  return maps;
}

// Run `body` on every rank over every backend.
void with_communicators(int size, const std::function<void(Communicator&)>& body) {
  auto mail = std::make_shared<Mail>(size);
  run_ranks(size, [&](int rank) {
    const std::unique_ptr<Communicator> messages = make_p2p(mail, rank);
    body(*messages);
    std::string why_not;
    const std::unique_ptr<Communicator> shared =
        make_shared_communicator(*messages, no_wait_hook, why_not);
    CHECK_EQUAL(why_not, "");
    body(*shared);
    for (const std::vector<int>& hosts : host_maps(size)) {
      const auto transport = std::make_shared<ThreadPointToPoint>(mail, rank);
      const Communicators chosen = choose_communicators(transport, hosts, no_wait_hook);
      body(*chosen.flat);
      body(*chosen.hierarchical);
    }
  });
}

}  // namespace

TEST(sums_of_any_length_are_exact_on_any_number_of_ranks) {
  for (int size : {2, 3, 4, 5, 6, 7, 8, 9}) {
    with_communicators(size, [size](Communicator& comm) {
      const int64_t longest = size > 5 ? 300'001 : 2'500'001;
      for (int64_t count : {int64_t{0}, int64_t{1}, int64_t{2}, int64_t{3}, int64_t{7}, int64_t{64},
                            int64_t{1000}, int64_t{5000}, longest}) {
        std::vector<int64_t> data(static_cast<size_t>(count));
        for (int64_t i = 0; i < count; ++i) data[static_cast<size_t>(i)] = i * (comm.rank() + 1);
        comm.allreduce({{data.data(), data.data(), count}}, DataType::int64, ReduceOp::sum, 1.0,
                       1.0);
        const int64_t factor = size * (size + 1) / 2;
        for (int64_t i = 0; i < count; ++i) CHECK_EQUAL(data[static_cast<size_t>(i)], i * factor);
      }
    });
  }
}

namespace {

void check_that_grouping_does_not_matter(int size) {
  constexpr int64_t count = 300'000;
  with_communicators(size, [&](Communicator& comm) {
    std::mt19937 random(static_cast<unsigned>(comm.rank()));
    std::normal_distribution<float> normal;
    std::vector<float> a(count);
    for (float& x : a) x = normal(random) * 1e3f;
    std::vector<float> b = a;
    comm.allreduce({{a.data(), a.data(), count}}, DataType::float32, ReduceOp::sum, 1.0, 1.0);
    std::vector<Span> spans;
    for (int64_t begin = 0, step = 1; begin < count; begin += step, step = step * 2 + 1) {
      spans.push_back({b.data() + begin, b.data() + begin, std::min(step, count - begin)});
    }
    comm.allreduce(spans, DataType::float32, ReduceOp::sum, 1.0, 1.0);
    for (int64_t i = 0; i < count; ++i)
      CHECK_EQUAL(a[static_cast<size_t>(i)], b[static_cast<size_t>(i)]);
  });
}

}  // namespace

TEST(float_sums_do_not_depend_on_how_elements_are_grouped) {
  for (int size : {3, 4, 9}) check_that_grouping_does_not_matter(size);
}

namespace {

// What ranks send to other hosts, and how many messages they send in all.
struct Traffic {
  std::atomic<int64_t> bytes_between_hosts{0}, messages{0};
};

// Counts; nothing that it has posted is written after give_up(), as over TCP.
class CountingPointToPoint final : public PointToPoint {
 public:
  CountingPointToPoint(std::shared_ptr<Mail> mail, int rank, std::vector<int> hosts,
                       Traffic& traffic)
      : base_(std::move(mail), rank), hosts_(std::move(hosts)), traffic_(traffic) {}
  int rank() const override { return base_.rank(); }
  int size() const override { return base_.size(); }
  bool leaves_behind() const override { return false; }
  void send(int peer, const void* data, int64_t bytes) override {
    if (hosts_[size_t(peer)] != hosts_[size_t(rank())]) traffic_.bytes_between_hosts += bytes;
    ++traffic_.messages;
    base_.send(peer, data, bytes);
  }
  void receive(int peer, void* data, int64_t bytes) override { base_.receive(peer, data, bytes); }
  bool test_all() override { return base_.test_all(); }
  void give_up() override { base_.give_up(); }

 private:
  ThreadPointToPoint base_;
  std::vector<int> hosts_;
  Traffic& traffic_;
};

// A sum of `count` elements, checked, over ranks on `hosts`.
template <typename T>
void count_traffic(const std::vector<int>& hosts, int64_t count, DataType type, Traffic& traffic) {
  const auto size = static_cast<int>(hosts.size());
  auto mail = std::make_shared<Mail>(size);
  run_ranks(size, [&](int rank) {
    P2pCommunicator flat(std::make_shared<CountingPointToPoint>(mail, rank, hosts, traffic),
                         no_wait_hook, hosts);
    std::vector<float> values(static_cast<size_t>(count), float(rank + 1));
    std::vector<T> data(values.size());
    convert(data.data(), type, values.data(), DataType::float32, count);
    flat.allreduce({{data.data(), data.data(), count}}, type, ReduceOp::sum, 1.0, 1.0);
    convert(values.data(), DataType::float32, data.data(), type, count);
    for (float x : values) CHECK_EQUAL(x, float(size * (size + 1) / 2));
  });
}

}  // namespace

// 2 (H-1)/H M bytes leave each of H hosts, as in two levels, however many ranks it has.
TEST(a_long_sum_leaves_equal_hosts_as_if_each_had_one_rank) {
  struct Case {
    std::vector<int> hosts;
    int number;
  };
  for (const auto& [hosts, number] : std::vector<Case>{{{0, 0, 1, 1}, 2},
                                                       {{0, 1, 0, 1}, 2},
                                                       {{0, 0, 0, 1, 1, 1}, 2},
                                                       {{0, 0, 1, 1, 2, 2}, 3}}) {
    const int64_t count = 3'600'000;  // divisible as often as pieces are cut
    Traffic traffic;
    count_traffic<float>(hosts, count, DataType::float32, traffic);
    CHECK_EQUAL(traffic.bytes_between_hosts.load(), 2 * (number - 1) * count * 4);
  }
}

// Partial sums of halves are float32 on their way: three quarters of float32's bytes.
TEST(halves_leave_equal_hosts_in_three_quarters_of_the_bytes_of_float32) {
  const int64_t count = 4'000'000;
  Traffic traffic;
  count_traffic<uint16_t>({0, 0, 1, 1}, count, DataType::float16, traffic);
  CHECK_EQUAL(traffic.bytes_between_hosts.load(), 2 * count * 4 * 3 / 4);
}

TEST(the_number_of_messages_grows_with_the_stages_not_with_the_ranks) {
  const auto messages = [](int size, int64_t count) {
    std::vector<int> hosts(static_cast<size_t>(size));
    std::iota(hosts.begin(), hosts.end(), 0);
    Traffic traffic;
    count_traffic<float>(hosts, count, DataType::float32, traffic);
    return traffic.messages.load() / size;
  };
  CHECK_EQUAL(messages(4, 100), 3);       // whole copies, to all others
  CHECK_EQUAL(messages(16, 100), 3 + 3);  // 4 x 4
  CHECK_EQUAL(messages(4, 5000), 2 * 3);  // slices there and back
  CHECK_EQUAL(messages(16, 5000), 2 * (3 + 3));
  CHECK_EQUAL(messages(16, 300'000), 2 * 2 * (3 + 3));  // two pieces
}

// ((0 + 1) + (2 + 3)) for each element, wherever it lies and whatever it is fused with.
TEST(the_order_of_a_sum_follows_from_the_hosts_alone) {
  const std::vector<int> hosts{0, 1, 0, 1};
  auto mail = std::make_shared<Mail>(4);
  run_ranks(4, [&](int rank) {
    P2pCommunicator flat(std::make_shared<ThreadPointToPoint>(mail, rank), no_wait_hook, hosts);
    for (int64_t count : {5, 3000, 5000, 700'000}) {
      std::vector<std::vector<float>> inputs;
      for (int peer = 0; peer < 4; ++peer) {
        std::mt19937 random(static_cast<unsigned>(peer));
        std::normal_distribution<float> normal;
        inputs.emplace_back(static_cast<size_t>(count));
        for (float& x : inputs.back()) x = normal(random) * 1e3f;
      }
      std::vector<float> own = inputs[size_t(rank)];
      flat.allreduce({{own.data(), own.data(), count}}, DataType::float32, ReduceOp::sum, 1.0, 1.0);
      for (size_t i = 0; i < own.size(); ++i) {
        const float low = inputs[0][i] + inputs[2][i], high = inputs[1][i] + inputs[3][i];
        CHECK_EQUAL(own[i], low + high);
      }
    }
  });
}

TEST(average_divides_by_the_number_of_ranks_after_the_factor) {
  with_communicators(3, [](Communicator& comm) {
    std::vector<int32_t> data(10'000, comm.rank() * 3);
    comm.allreduce({{data.data(), data.data(), 10'000}}, DataType::int32, ReduceOp::average, 1.0,
                   2.0);
    for (int32_t x : data) CHECK_EQUAL(x, 6);
  });
}

namespace {

uint16_t half_from(DataType type, double value) {
  const auto single = static_cast<float>(value);
  uint16_t half = 0;
  convert(&half, type, &single, DataType::float32, 1);
  return half;
}

double value_of(DataType type, uint16_t half) {
  float single = 0;
  convert(&single, DataType::float32, &half, type, 1);
  return static_cast<double>(single);
}

}  // namespace

TEST(averages_of_halves_overflow_only_where_the_result_does) {
  for (int size : {2, 3, 4, 5}) {
    with_communicators(size, [size](Communicator& comm) {
      for (DataType type : {DataType::float16, DataType::bfloat16}) {
        const double most = type == DataType::float16 ? 65504 : 0x1.fep127;
        for (int64_t count : {3, 9000, 300'000}) {  // by every algorithm, in several rounds
          std::vector<uint16_t> data(static_cast<size_t>(count), half_from(type, most));
          std::vector<uint16_t> rows(data);
          const Span span{data.data(), data.data(), count};
          comm.allreduce({span}, type, ReduceOp::average, 4.0, 0.25);  // nor do its factors
          for (uint16_t x : data) CHECK_EQUAL(value_of(type, x), most);
          comm.reduce_scatter({{rows.data(), rows.data(), count}}, type, ReduceOp::average, 2.0,
                              0.5, size);
          for (int64_t i = count * comm.rank() / size; i < count * (comm.rank() + 1) / size; ++i) {
            CHECK_EQUAL(value_of(type, rows[size_t(i)]), most);
          }
          comm.allreduce({span}, type, ReduceOp::average, 1.0, 2.0);
          for (uint16_t x : data) CHECK(std::isinf(value_of(type, x)));
        }
      }
    });
  }
}

// In two levels once more, of the partial results.
TEST(halves_are_rounded_once) {
  for (int size : {2, 3, 4, 5}) {
    with_communicators(size, [size](Communicator& comm) {
      for (DataType type : {DataType::float16, DataType::bfloat16}) {
        for (ReduceOp op : {ReduceOp::average, ReduceOp::sum}) {
          for (int64_t count : {1000, 20'000}) {
            std::vector<double> sums(static_cast<size_t>(count)), magnitudes(sums);
            std::vector<uint16_t> own;
            for (int rank = 0; rank < size; ++rank) {
              std::mt19937 random(static_cast<unsigned>(rank + 1));
              std::normal_distribution<double> normal;
              for (int64_t i = 0; i < count; ++i) {
                const uint16_t half = half_from(type, normal(random));
                if (rank == comm.rank()) own.push_back(half);
                sums[size_t(i)] += value_of(type, half);
                magnitudes[size_t(i)] += std::abs(value_of(type, half));
              }
            }
            comm.allreduce({{own.data(), own.data(), count}}, type, op, 1.0, 1.0);
            const double half_step = type == DataType::float16 ? 0x1p-11 : 0x1p-8;
            const double divisor = op == ReduceOp::average ? size : 1;
            for (size_t i = 0; i < own.size(); ++i) {
              const double exact = sums[i] / divisor;
              double allowed = half_step * std::abs(exact) * 1.001 + 0x1p-24;
              if (comm.backend() == Backend::several) {
                allowed += half_step * magnitudes[i] / divisor;
              }
              CHECK(std::abs(value_of(type, own[i]) - exact) <= allowed);
            }
          }
        }
      }
    });
  }
}

TEST(min_and_max_are_nan_where_any_rank_has_a_nan) {
  for (int size : {2, 3, 4, 5}) {
    with_communicators(size, [size](Communicator& comm) {
      for (int64_t count : {10, 5000, 300'000}) {  // by every algorithm, in several rounds
        for (ReduceOp op : {ReduceOp::min, ReduceOp::max}) {
          std::vector<float> data(static_cast<size_t>(count), float(comm.rank()));
          for (size_t i = 0; i < data.size(); ++i) {
            if (int(i) % (size + 1) == comm.rank()) data[i] = std::nanf("");
          }
          comm.allreduce({{data.data(), data.data(), count}}, DataType::float32, op, 1.0, 1.0);
          for (size_t i = 0; i < data.size(); ++i) {
            if (int(i) % (size + 1) < size) {
              CHECK(std::isnan(data[i]));
            } else {
              CHECK_EQUAL(data[i], op == ReduceOp::min ? 0.0f : float(size - 1));
            }
          }
        }
      }
    });
  }
}

TEST(allgather_takes_blocks_of_any_size) {
  with_communicators(4, [](Communicator& comm) {
    const std::vector<int64_t> bytes{3, 0, 100'000, 1};
    std::vector<char> blocks(100'004, 'x');
    std::vector<int64_t> offset(5, 0);
    std::partial_sum(bytes.begin(), bytes.end(), offset.begin() + 1);
    const auto r = static_cast<size_t>(comm.rank());
    for (int64_t i = offset[r]; i < offset[r + 1]; ++i) blocks[size_t(i)] = char('a' + comm.rank());
    comm.allgather(blocks.data(), bytes);
    for (size_t peer = 0; peer < 4; ++peer) {
      for (int64_t i = offset[peer]; i < offset[peer + 1]; ++i) {
        CHECK_EQUAL(blocks[size_t(i)], char('a' + peer));
      }
    }
  });
}

TEST(broadcast_reaches_every_rank_from_every_root) {
  for (int size : {2, 3, 5, 8}) {
    with_communicators(size, [size](Communicator& comm) {
      for (int root = 0; root < size; ++root) {
        std::vector<int32_t> data(3'000'000 / sizeof(int32_t), comm.rank() == root ? root + 1 : -1);
        comm.broadcast(data.data(), int64_t(data.size() * sizeof(int32_t)), root);
        CHECK_EQUAL(data.front(), root + 1);
        CHECK_EQUAL(data.back(), root + 1);
      }
    });
  }
}

TEST(alltoall_takes_blocks_of_any_size) {
  for (int size : {2, 3, 4}) {
    with_communicators(size, [size](Communicator& comm) {
      const auto n = static_cast<size_t>(size);
      for (int64_t scale : {0, 1, 70'000}) {
        std::vector<int64_t> bytes;  // from r to d: scale * ((r + 2 d) % 4)
        for (size_t r = 0; r < n; ++r) {
          for (size_t d = 0; d < n; ++d) bytes.push_back(scale * int64_t((r + 2 * d) % 4));
        }
        const auto own = static_cast<size_t>(comm.rank());
        std::string sent, expected;
        for (size_t peer = 0; peer < n; ++peer) {
          sent.append(size_t(bytes[own * n + peer]), char('a' + 4 * own + peer));
          expected.append(size_t(bytes[peer * n + own]), char('a' + 4 * peer + own));
        }
        std::string received(expected.size(), '?');
        comm.alltoall(sent.data(), received.data(), bytes);
        CHECK(received == expected);
      }
    });
  }
}

TEST(a_reduce_scatter_leaves_its_own_slice_on_every_rank) {
  for (int size : {2, 3, 4}) {
    with_communicators(size, [size](Communicator& comm) {
      for (int64_t count : {0, 1, 5, 1000, 3'000'001}) {
        for (int slices : {1, size}) {
          std::vector<int32_t> data(static_cast<size_t>(count));
          for (int64_t i = 0; i < count; ++i) data[size_t(i)] = int32_t(i % 1000) + comm.rank();
          const int64_t half = count / 3;
          comm.reduce_scatter({{data.data(), data.data(), half},
                               {data.data() + half, data.data() + half, count - half}},
                              DataType::int32, ReduceOp::average, 4.0, 0.5, slices);
          if (comm.rank() >= slices) continue;
          const int64_t begin = count * comm.rank() / slices;
          const int64_t end = count * (comm.rank() + 1) / slices;
          for (int64_t i = begin; i < end; ++i) {
            const int64_t sum = size * (i % 1000) + size * (size - 1) / 2;
            CHECK_EQUAL(data[size_t(i)], int32_t(4 * sum / 2 / size));
          }
        }
      }
    });
  }
}

// Shared memory is written again when all have read it: a call that moves nothing must not count.
TEST(a_reduce_scatter_of_nothing_does_not_disturb_the_calls_around_it) {
  with_communicators(4, [](Communicator& comm) {
    constexpr int64_t count = 4000;  // as much as fits into one round
    std::vector<int32_t> data(static_cast<size_t>(count));
    for (int32_t round = 0; round < 2000; ++round) {
      std::fill(data.begin(), data.end(), round + comm.rank());
      comm.allreduce({{data.data(), data.data(), count}}, DataType::int32, ReduceOp::sum, 1.0, 1.0);
      for (int32_t x : data) CHECK_EQUAL(x, 4 * round + 6);
      comm.reduce_scatter({}, DataType::int32, ReduceOp::sum, 1.0, 1.0, 4);
    }
  });
}

TEST(many_spans_in_one_call_are_each_reduced) {
  with_communicators(3, [](Communicator& comm) {
    std::vector<std::vector<int32_t>> data;
    std::vector<Span> spans;
    for (int i = 0; i < 1100; ++i) {
      data.emplace_back(static_cast<size_t>(i % 97), comm.rank() + i);
    }
    for (auto& values : data)
      spans.push_back({values.data(), values.data(), int64_t(values.size())});
    comm.allreduce(spans, DataType::int32, ReduceOp::sum, 1.0, 1.0);
    for (int i = 0; i < 1100; ++i) {
      for (int32_t x : data[size_t(i)]) CHECK_EQUAL(x, 3 + 3 * i);
    }
  });
}

TEST(long_calls_are_exact_by_either_kind_of_stores) {
  for (int size : {2, 3, 4}) {
    with_communicators(size, [size](Communicator& comm) {
      // Some 80 rounds of shared memory: every call has a few of the kind that is not in use.
      std::vector<int32_t> first(7'000'003), second(3'000'001);
      for (int call = 0; call < (size == 4 ? 1 : 3); ++call) {
        std::iota(first.begin(), first.end(), comm.rank() + call);
        std::iota(second.begin(), second.end(), -comm.rank());
        comm.allreduce({{first.data(), first.data(), int64_t(first.size())},
                        {second.data(), second.data(), int64_t(second.size())}},
                       DataType::int32, ReduceOp::sum, 1.0, 1.0);
        const int32_t ranks = size * (size - 1) / 2;
        for (size_t i = 0; i < first.size(); ++i) {
          CHECK(first[i] == static_cast<int32_t>(i) * size + ranks + call * size);
        }
        for (size_t i = 0; i < second.size(); ++i) {
          CHECK(second[i] == static_cast<int32_t>(i) * size - ranks);
        }
      }
    });
  }
}

TEST(inputs_stay_as_they_are_where_outputs_lie_elsewhere) {
  with_communicators(3, [](Communicator& comm) {
    for (int64_t count : {10, 1'000'003}) {
      std::vector<double> in(static_cast<size_t>(count), comm.rank() + 1), out(in.size(), -1);
      comm.allreduce({{in.data(), out.data(), count}}, DataType::float64, ReduceOp::sum, 2.0, 0.25);
      for (double x : out) CHECK_EQUAL(x, 3.0);
      for (double x : in) CHECK_EQUAL(x, comm.rank() + 1.0);
    }
  });
}

TEST(calls_of_all_lengths_and_types_in_a_row_do_not_disturb_each_other) {
  with_communicators(4, [](Communicator& comm) {
    std::mt19937 random(5);  // the same sequence on all ranks
    for (int i = 0; i < 150; ++i) {
      const auto count = static_cast<int64_t>(random() % 3 ? random() % 3000 : random() % 700'000);
      if (random() % 2) {
        std::vector<int8_t> data(static_cast<size_t>(count), int8_t(comm.rank()));
        comm.allreduce({{data.data(), data.data(), count}}, DataType::int8, ReduceOp::sum, 1.0,
                       1.0);
        for (int8_t x : data) CHECK_EQUAL(int(x), 6);
      } else {
        std::vector<int64_t> data(static_cast<size_t>(count), comm.rank() + i);
        comm.allreduce({{data.data(), data.data(), count}}, DataType::int64, ReduceOp::max, 1.0,
                       1.0);
        for (int64_t x : data) CHECK_EQUAL(x, 3 + i);
      }
      std::vector<int32_t> sent(static_cast<size_t>(count), comm.rank() == i % 4 ? i : -1);
      comm.broadcast(sent.data(), count * 4, i % 4);
      for (int32_t x : sent) CHECK_EQUAL(x, i);
    }
  });
}

TEST(small_calls_in_a_row_do_not_overtake_each_other) {
  with_communicators(4, [](Communicator& comm) {
    for (int i = 0; i < 3000; ++i) {
      int64_t value = i * 10 + comm.rank();
      comm.allreduce({{&value, &value, 1}}, DataType::int64, ReduceOp::sum, 1.0, 1.0);
      CHECK_EQUAL(value, int64_t{40} * i + 6);
    }
  });
}

namespace {

template <typename Float>
void both_backends_agree(DataType type) {
  auto mail = std::make_shared<Mail>(3);
  run_ranks(3, [&](int rank) {
    const auto messages = make_p2p(mail, rank);
    std::string why_not;
    const auto shared = make_shared_communicator(*messages, no_wait_hook, why_not);
    for (const ReduceOp op :
         {ReduceOp::sum, ReduceOp::average, ReduceOp::product, ReduceOp::min, ReduceOp::max}) {
      for (const int64_t count : {5, 3000, 400'000}) {
        std::mt19937 random(static_cast<unsigned>(rank));
        std::normal_distribution<Float> normal;
        std::vector<Float> a(static_cast<size_t>(count));
        for (Float& x : a) x = normal(random) * Float(1e3);
        std::vector<Float> b = a;
        for (const double postscale : {1.0, 0.3}) {
          messages->allreduce({{a.data(), a.data(), count}}, type, op, 1.0, postscale);
          shared->allreduce({{b.data(), b.data(), count}}, type, op, 1.0, postscale);
          CHECK(a == b);
        }
      }
    }
  });
}

}  // namespace

TEST(both_backends_give_the_same_floats_bit_for_bit) {
  both_backends_agree<float>(DataType::float32);
  both_backends_agree<double>(DataType::float64);
}

TEST(a_shared_barrier_ends_when_progress_throws) {
  auto mail = std::make_shared<Mail>(2);
  run_ranks(2, [&](int rank) {
    std::string why_not;
    std::atomic<bool> lost{false};
    const auto shared = make_shared_communicator(
        *make_p2p(mail, rank),
        [&] {
          if (lost) throw EngineError("rank 1 ended");
        },
        why_not);
    if (rank == 1) return;
    lost = true;
    int32_t value = 1;
    CHECK_THROWS(
        EngineError, "rank 1 ended",
        shared->allreduce({{&value, &value, 1}}, DataType::int32, ReduceOp::sum, 1.0, 1.0));
  });
}

TEST(a_wait_ends_when_progress_throws) {
  auto mail = std::make_shared<Mail>(2);
  int calls = 0;
  P2pCommunicator alone(std::make_unique<ThreadPointToPoint>(mail, 0), [&] {
    if (++calls > 3) throw EngineError("rank 1 ended");
  });
  int32_t value = 1;
  CHECK_THROWS(EngineError, "rank 1 ended",
               alone.allreduce({{&value, &value, 1}}, DataType::int32, ReduceOp::sum, 1.0, 1.0));
}

namespace {

// Says how many bytes it was given that lie in the memory that `watch` names. What it has posted
// may be written after give_up(), as over MPI.
class WatchingPointToPoint final : public PointToPoint {
 public:
  WatchingPointToPoint(std::shared_ptr<Mail> mail, int rank) : base_(std::move(mail), rank) {}
  template <typename Vector>
  void watch(Vector& memory) {
    begin_ = reinterpret_cast<char*>(memory.data());
    end_ = reinterpret_cast<char*>(memory.data() + memory.size());
  }
  int64_t bytes_there() const { return bytes_there_; }

  int rank() const override { return base_.rank(); }
  int size() const override { return base_.size(); }
  void send(int peer, const void* data, int64_t bytes) override { base_.send(peer, data, bytes); }
  void receive(int peer, void* data, int64_t bytes) override {
    if (data >= begin_ && data < end_) bytes_there_ += bytes;
    base_.receive(peer, data, bytes);
  }
  bool test_all() override { return base_.test_all(); }
  void give_up() override { base_.give_up(); }

 private:
  ThreadPointToPoint base_;
  char *begin_ = nullptr, *end_ = nullptr;
  int64_t bytes_there_ = 0;
};

}  // namespace

// They may belong to the script again while messages are still on their way.
TEST(no_message_is_received_into_a_tensor_where_messages_may_be_left_behind) {
  for (const std::vector<int>& hosts :
       {std::vector<int>{0, 1}, {0, 1, 2}, {0, 0, 1, 1}, {0, 1, 2, 3, 4, 5, 6, 7, 8}}) {
    const auto size = static_cast<int>(hosts.size());
    const auto mail = std::make_shared<Mail>(size);
    run_ranks(size, [&](int rank) {
      const auto transport = std::make_shared<WatchingPointToPoint>(mail, rank);
      const Communicators chosen = choose_communicators(transport, hosts, no_wait_hook);
      for (const int64_t count : {int64_t{5}, int64_t{9'000}, int64_t{1'500'001}}) {
        std::vector<float> data(static_cast<size_t>(count), 1.0f);
        transport->watch(data);
        const std::vector<Span> spans{{data.data(), data.data(), count}};
        for (Communicator* const each : {chosen.flat.get(), chosen.hierarchical.get()}) {
          if (each == nullptr) continue;
          each->allreduce(spans, DataType::float32, ReduceOp::sum, 1.0, 1.0);
          each->broadcast(data.data(), count * int64_t{sizeof(float)}, size - 1);
        }
        if (has_adasum(size)) {
          chosen.plain->allreduce(spans, DataType::float32, ReduceOp::adasum, 1.0, 1.0);
        }
      }
      CHECK_EQUAL(transport->bytes_there(), 0);
    });
  }
}

// Its pieces are put together where they belong: no copy.
TEST(memory_for_messages_takes_them_and_holds_the_same_sums) {
  for (const std::vector<int>& hosts :
       {std::vector<int>{0, 1}, {0, 0, 1, 1}, {0, 1, 2, 3, 4, 5, 6, 7, 8}}) {
    const auto size = static_cast<int>(hosts.size());
    const auto mail = std::make_shared<Mail>(size);
    run_ranks(size, [&](int rank) {
      const auto transport = std::make_shared<WatchingPointToPoint>(mail, rank);
      P2pCommunicator flat(transport, no_wait_hook, hosts);
      for (const DataType type : {DataType::float32, DataType::float16}) {
        for (const int64_t count : {int64_t{5}, int64_t{9'000}, int64_t{1'500'001}}) {
          std::vector<float> values(static_cast<size_t>(count));
          for (size_t i = 0; i < values.size(); ++i) values[i] = 0.1f * float((i * 7 + rank) % 31);
          const auto item = static_cast<size_t>(size_of(type));
          std::vector<char> copied(values.size() * item);
          MessageVector<char> taken(copied.size());
          convert(copied.data(), type, values.data(), DataType::float32, count);
          std::copy(copied.begin(), copied.end(), taken.begin());
          flat.allreduce({{copied.data(), copied.data(), count}}, type, ReduceOp::sum, 0.5, 1.0);
          const int64_t before = transport->bytes_there();
          transport->watch(taken);
          flat.allreduce({{taken.data(), taken.data(), count, true}}, type, ReduceOp::sum, 0.5,
                         1.0);
          CHECK(std::equal(taken.begin(), taken.end(), copied.begin()));
          const bool is_long = count * static_cast<int64_t>(item) > P2pCommunicator::small_bytes;
          CHECK_EQUAL(transport->bytes_there() > before, is_long);
        }
      }
    });
  }
}
