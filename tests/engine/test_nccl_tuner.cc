// The library that NCCL loads as its tuner, called as NCCL calls it; and the engine's communicator
// over an NCCL that is none (fake_nccl.cc).

#include <dlfcn.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "comm/nccl/nccl_communicator.h"
#include "comm/p2p/p2p_communicator.h"
#include "fake_nccl.h"
#include "host_device.h"
#include "nccl_tuner/choice.h"
#include "nccl_tuner/nccl_abi.h"
#include "thread_ranks.h"

using namespace autotune;
using namespace std::chrono_literals;

namespace {

constexpr int tree = 1, ring = 2;
constexpr int ll = 1, ll128 = 2, simple = 3;
constexpr size_t mib = 1 << 20;

// As the loader gives it to NCCL and to the engine.
struct Plugin {
  Plugin() : handle(dlopen(HVD_NCCL_TUNER, RTLD_NOW | RTLD_LOCAL)) {
    CHECK(handle != nullptr);
    find("ncclTunerPlugin_v4", v4);
    find("ncclTunerPlugin_v5", v5);
    find("autotune_nccl_begin", begin);
    find("autotune_nccl_end", end);
    find("autotune_nccl_follow", follow);
    find("autotune_nccl_group", group);
    find("autotune_nccl_choose", choose);
    find("autotune_nccl_hold", hold);
    find("autotune_nccl_release", release);
    find("autotune_nccl_seen", seen);
  }

  template <typename Symbol>
  void find(const char* name, Symbol*& symbol) {
    symbol = reinterpret_cast<Symbol*>(dlsym(handle, name));
    CHECK(symbol != nullptr);
  }

  AutotuneNcclSeen seen_now() const {
    AutotuneNcclSeen now{};
    seen(&now);
    return now;
  }

  void* handle;
  const NcclTunerV4* v4;
  const NcclTunerV5* v5;
  decltype(&autotune_nccl_begin) begin;
  decltype(&autotune_nccl_end) end;
  decltype(&autotune_nccl_follow) follow;
  decltype(&autotune_nccl_group) group;
  decltype(&autotune_nccl_choose) choose;
  decltype(&autotune_nccl_hold) hold;
  decltype(&autotune_nccl_release) release;
  decltype(&autotune_nccl_seen) seen;
};

// One communicator of NCCL's.
class Comm {
 public:
  explicit Comm(Plugin& plugin, size_t ranks = 2) : plugin_(plugin) {
    const uint64_t begun = plugin.begin();
    plugin.v5->init(&context_, 7, ranks, 1, nullptr, nullptr, nullptr);
    number_ = plugin.end(begun);
  }
  ~Comm() { plugin_.v5->finalize(context_); }
  Comm(const Comm&) = delete;
  Comm& operator=(const Comm&) = delete;

  uint64_t number() const { return number_; }

  // What NCCL chooses after it has asked.
  FakeChoice operation(size_t bytes = 4 * mib, int pipelined = 1) {
    float costs[fake_algorithms][fake_protocols];
    for (int a = 0; a < fake_algorithms; ++a) {
      for (int p = 0; p < fake_protocols; ++p) costs[a][p] = a < 2 ? fake_costs[a][p] : -1;
    }
    FakeChoice choice{-1, -1, 0, bytes};
    CHECK_EQUAL(
        plugin_.v5->get_coll_info(context_, 4, bytes, pipelined, reinterpret_cast<float**>(costs),
                                  fake_algorithms, fake_protocols, 0, &choice.channels),
        0);
    float least = 1e30F;
    for (int a = 0; a < fake_algorithms; ++a) {
      for (int p = 0; p < fake_protocols; ++p) {
        CHECK(costs[a][p] >= 0 || costs[a][p] == -1);
        const bool was_there = a < 2 && fake_costs[a][p] >= 0;
        CHECK_EQUAL(costs[a][p] >= 0, was_there);
        if (costs[a][p] < 0 || costs[a][p] >= least) continue;
        least = costs[a][p];
        choice.algorithm = a + 1;
        choice.protocol = p + 1;
      }
    }
    return choice;
  }

 private:
  Plugin& plugin_;
  void* context_ = nullptr;
  uint64_t number_ = 0;
};

std::string text(const FakeChoice& choice) {
  return std::to_string(choice.algorithm) + " " + std::to_string(choice.protocol) + " " +
         std::to_string(choice.channels);
}

AutotuneNcclChoice some(int algorithm, int protocol, int channels, int64_t least_bytes = 0) {
  return {algorithm, protocol, channels, 0, least_bytes};
}

void put_in_force(Plugin& plugin, int ranks, const AutotuneNcclChoice& choice) {
  CHECK(plugin.hold(ranks, 10'000) != 0);
  CHECK_EQUAL(plugin.release(&choice), 1);
}

}  // namespace

TEST(nccls_own_choice_is_left_alone_until_one_is_agreed_on) {
  Plugin plugin;
  Comm comm(plugin);
  const AutotuneNcclChoice choice = some(tree, simple, 4);
  plugin.choose(&choice);
  CHECK_EQUAL(text(comm.operation()), "2 3 0");
}

TEST(a_choice_takes_what_can_be_had_and_nothing_else) {
  Plugin plugin;
  Comm comm(plugin);
  plugin.follow(comm.number(), 1);
  const auto chosen = [&](const AutotuneNcclChoice& choice) {
    plugin.choose(&choice);
    return text(comm.operation());
  };
  CHECK_EQUAL(chosen(some(tree, 0, 0)), "1 3 0");
  CHECK_EQUAL(chosen(some(tree, ll, 0)), "1 1 0");
  CHECK_EQUAL(chosen(some(0, ll128, 0)), "1 2 0");
  CHECK_EQUAL(chosen(some(0, ll, 0)), "2 1 0");
  CHECK_EQUAL(chosen(some(ring, ll128, 0)), "2 3 0");  // it cannot be had
  CHECK_EQUAL(chosen(some(5, 0, 8)), "2 3 8");         // nor NVLS
  CHECK_EQUAL(chosen(some(0, 0, 16)), "2 3 16");
  CHECK_EQUAL(chosen(some(0, 0, 0)), "2 3 0");
}

TEST(operations_below_the_least_size_are_nccls_own_choice) {
  Plugin plugin;
  Comm comm(plugin);
  plugin.follow(comm.number(), 1);
  const AutotuneNcclChoice choice = some(tree, 0, 4, static_cast<int64_t>(mib));
  plugin.choose(&choice);
  CHECK_EQUAL(text(comm.operation(mib - 1)), "2 3 0");
  CHECK_EQUAL(text(comm.operation(mib)), "1 3 4");
}

TEST(channels_are_those_of_a_group_of_operations) {
  Plugin plugin;
  Comm comm(plugin);
  plugin.follow(comm.number(), 1);
  const AutotuneNcclChoice choice = some(0, 0, 16);
  plugin.choose(&choice);
  CHECK_EQUAL(comm.operation(mib, 1).channels, 16);
  CHECK_EQUAL(comm.operation(mib, 4).channels, 4);
  CHECK_EQUAL(comm.operation(mib, 100).channels, 1);
  plugin.group(comm.number(), 8);  // who announces it knows better
  CHECK_EQUAL(comm.operation(mib, 1).channels, 2);
}

TEST(both_interfaces_of_nccl_are_served) {
  Plugin plugin;
  const AutotuneNcclSeen before = plugin.seen_now();
  void* context = nullptr;
  CHECK_EQUAL(plugin.v4->init(2, 1, nullptr, &context), 0);
  CHECK(context != nullptr);
  CHECK_EQUAL(plugin.seen_now().interface, 4);
  CHECK_EQUAL(plugin.v4->destroy(context), 0);
  const Comm comm(plugin);
  CHECK_EQUAL(plugin.seen_now().interface, 5);
  CHECK_EQUAL(plugin.seen_now().communicators, before.communicators + 2);
  CHECK_EQUAL(std::string(plugin.v4->name), std::string(plugin.v5->name));
}

TEST(an_operation_without_a_context_is_nccls_own) {
  Plugin plugin;
  int channels = 0;
  float costs[1][1] = {{5}};
  plugin.v5->get_coll_info(nullptr, 4, mib, 1, reinterpret_cast<float**>(costs), 1, 1, 0,
                           &channels);
  CHECK_EQUAL(channels, 0);
  CHECK_EQUAL(costs[0][0], 5.0F);
}

TEST(who_made_a_communicator_knows_it_unless_several_were_made) {
  Plugin plugin;
  uint64_t begun = plugin.begin();
  CHECK_EQUAL(plugin.end(begun), uint64_t{0});
  begun = plugin.begin();
  const Comm one(plugin);
  CHECK_EQUAL(plugin.end(begun), one.number());
  const Comm other(plugin);
  CHECK_EQUAL(plugin.end(begun), uint64_t{0});
}

TEST(the_first_operation_after_a_hold_waits_and_has_the_choice) {
  Plugin plugin;
  Comm comm(plugin, 41);
  comm.operation();
  CHECK(plugin.hold(41, 10'000) != 0);
  std::atomic<bool> is_done{false};
  std::string chosen;
  std::thread next([&] {
    chosen = text(comm.operation());
    is_done = true;
  });
  std::this_thread::sleep_for(20ms);
  CHECK(!is_done);
  const AutotuneNcclChoice choice = some(tree, 0, 8);
  CHECK_EQUAL(plugin.release(&choice), 1);
  next.join();
  CHECK_EQUAL(chosen, "1 3 8");
  CHECK_EQUAL(text(comm.operation()), "1 3 8");
  CHECK(plugin.hold(41, 10'000) != 0);
  CHECK_EQUAL(plugin.release(nullptr), 1);  // nothing was agreed on: it stays
  CHECK_EQUAL(text(comm.operation()), "1 3 8");
}

TEST(ranks_say_the_same_number_exactly_where_their_communicators_have_come_as_far) {
  Plugin plugin;
  const auto number_after = [&](std::vector<int> operations) {
    std::vector<std::unique_ptr<Comm>> comms;
    for (const int count : operations) {
      comms.push_back(std::make_unique<Comm>(plugin, 42));
      for (int k = 0; k < count; ++k) comms.back()->operation();
    }
    const uint64_t number = plugin.hold(42, 10'000);
    plugin.release(nullptr);
    return number;
  };
  CHECK_EQUAL(number_after({}), uint64_t{0});
  CHECK_EQUAL(number_after({3}), number_after({3}));
  CHECK_EQUAL(number_after({3, 5}), number_after({3, 5}));
  CHECK(number_after({3}) != number_after({4}));
  CHECK(number_after({3, 5}) != number_after({5, 3}));
  CHECK(number_after({0}) != number_after({0, 0}));
  CHECK(number_after({0}) != 0);
}

TEST(a_hold_concerns_communicators_of_its_size_that_do_not_follow) {
  Plugin plugin;
  Comm wanted(plugin, 43), smaller(plugin, 3), engines(plugin, 43);
  plugin.follow(engines.number(), 1);
  const AutotuneNcclChoice none = some(0, 0, 0);
  plugin.choose(&none);
  put_in_force(plugin, 43, some(tree, 0, 4));
  Comm later(plugin, 43);
  CHECK_EQUAL(text(wanted.operation()), "1 3 4");
  CHECK_EQUAL(text(smaller.operation()), "2 3 0");
  CHECK_EQUAL(text(engines.operation()), "2 3 0");
  CHECK_EQUAL(text(later.operation()), "2 3 0");
}

TEST(where_patience_ends_all_operations_go_on_as_before) {
  Plugin plugin;
  Comm one(plugin, 44), other(plugin, 44);
  CHECK(plugin.hold(44, 20) != 0);
  CHECK_EQUAL(text(one.operation()), "2 3 0");  // it has waited for 20 ms
  const AutotuneNcclChoice choice = some(tree, 0, 4);
  CHECK_EQUAL(plugin.release(&choice), 0);
  CHECK_EQUAL(text(one.operation()), "2 3 0");
  CHECK_EQUAL(text(other.operation()), "2 3 0");
}

TEST(ten_thousand_changes_come_between_the_same_operations_in_many_threads) {
  Plugin plugin;
  constexpr int threads = 4, changes = 2'500;
  std::atomic<bool> is_over{false};
  std::atomic<int> wrong{0};
  std::mutex one_holder;
  std::vector<std::thread> all;
  for (int k = 0; k < threads; ++k) {
    all.emplace_back([&, k] {
      Comm comm(plugin, static_cast<size_t>(50 + k));
      for (int n = 0; n < changes; ++n) {
        {
          const std::lock_guard lock(one_holder);
          put_in_force(plugin, 50 + k, some(n % 3, n % 4, n % 32));
        }
        const FakeChoice seen = comm.operation();
        if (seen.channels != n % 32) ++wrong;
        if (n % 3 == tree && seen.algorithm != tree) ++wrong;
      }
    });
  }
  std::thread maker([&] {
    while (!is_over) {
      Comm comm(plugin, 60);
      comm.operation();
    }
  });
  for (std::thread& each : all) each.join();
  is_over = true;
  maker.join();
  CHECK_EQUAL(wrong.load(), 0);
}

TEST(the_operation_that_nccl_expects_to_take_longest_is_remembered) {
  Plugin plugin;
  Comm comm(plugin);
  comm.operation(4 * mib);
  CHECK_EQUAL(plugin.seen_now().largest_us, 10.0);
  CHECK_EQUAL(plugin.seen_now().largest_bytes, static_cast<int64_t>(4 * mib));
}

// ---- the engine's communicator
// --------------------------------------------------------------------

namespace {

struct Fake {
  explicit Fake(const char* tuner) : handle(dlopen(HVD_FAKE_NCCL, RTLD_NOW | RTLD_LOCAL)) {
    CHECK(handle != nullptr);
    load = reinterpret_cast<decltype(load)>(dlsym(handle, "fake_nccl_load"));
    take = reinterpret_cast<decltype(take)>(dlsym(handle, "fake_nccl_take"));
    load(tuner);
    chosen();
  }

  std::vector<std::string> chosen() {
    std::vector<FakeChoice> found(64);
    found.resize(static_cast<size_t>(take(found.data(), 64)));
    std::vector<std::string> texts;
    for (FakeChoice& each : found) {
      ++each.algorithm;
      ++each.protocol;
      texts.push_back(text(each));
    }
    return texts;
  }

  void* handle;
  decltype(&fake_nccl_load) load;
  decltype(&fake_nccl_take) take;
};

std::string joined(const std::vector<std::string>& texts) {
  std::string all;
  for (const std::string& each : texts) all += (all.empty() ? "" : ", ") + each;
  return all;
}

// What is said while `body` runs.
template <typename Body>
std::string standard_error_of(const Body& body) {
  FILE* const file = std::tmpfile();
  const int kept = ::dup(2);
  CHECK(file != nullptr && ::dup2(::fileno(file), 2) == 2);
  body();
  ::dup2(kept, 2);
  ::close(kept);
  std::rewind(file);
  std::string text(4096, '\0');
  text.resize(std::fread(text.data(), 1, text.size(), file));
  std::fclose(file);
  return text;
}

Params with_channels(int64_t algorithm, int64_t channels) {
  Params params;
  params.nccl_algorithm = algorithm;
  params.nccl_channels = channels;
  return params;
}

}  // namespace

TEST(the_engines_operations_follow_the_parameters_from_one_to_the_next) {
  Fake fake(HVD_NCCL_TUNER);
  const auto tuner = std::make_shared<NcclTuner>(HVD_NCCL_TUNER);
  const auto nccl = std::make_shared<const NcclLibrary>(HVD_FAKE_NCCL);
  HostDevice device(0);
  tuner->choose(with_channels(tree, 8));
  auto comm = NcclCommunicator::connect(nccl, tuner, device, "", nullptr, 0, [] {});
  std::vector<float> data(2 * mib / 4);
  const Span whole{data.data(), data.data(), static_cast<int64_t>(data.size())};
  const Span half{data.data(), data.data(), static_cast<int64_t>(data.size() / 2)};
  comm->allreduce({whole}, DataType::float32, ReduceOp::sum);
  comm->allreduce({half, half}, DataType::float32, ReduceOp::sum);
  CHECK_EQUAL(joined(fake.chosen()), "1 3 8, 1 3 4, 1 3 4");
  tuner->choose(with_channels(0, 0));
  comm->allreduce({whole}, DataType::float32, ReduceOp::sum);
  CHECK_EQUAL(joined(fake.chosen()), "2 3 0");
  const Span small{data.data(), data.data(), 16};
  tuner->choose(with_channels(tree, 2));
  comm->allreduce({small}, DataType::float32, ReduceOp::sum);
  CHECK_EQUAL(joined(fake.chosen()), "2 3 0");
}

TEST(a_rank_that_nccl_has_not_loaded_the_tuner_for_changes_nothing) {
  Fake fake(nullptr);
  const auto tuner = std::make_shared<NcclTuner>(HVD_NCCL_TUNER);
  const auto nccl = std::make_shared<const NcclLibrary>(HVD_FAKE_NCCL);
  HostDevice device(0);
  tuner->choose(with_channels(tree, 8));
  auto comm = NcclCommunicator::connect(nccl, tuner, device, "", nullptr, 0, [] {});
  std::vector<float> data(mib);
  comm->allreduce({{data.data(), data.data(), static_cast<int64_t>(data.size())}},
                  DataType::float32, ReduceOp::sum);
  CHECK_EQUAL(joined(fake.chosen()), "2 3 0");
}

TEST(a_rank_that_lacks_the_tuner_keeps_all_from_it_and_the_first_says_so) {
  Fake fake(HVD_NCCL_TUNER);
  const auto nccl = std::make_shared<const NcclLibrary>(HVD_FAKE_NCCL);
  const auto said_with = [&](int with_tuner) {  // so many ranks, the last ones
    const std::string said = standard_error_of([&] {
      const auto mail = std::make_shared<Mail>(2);
      run_ranks(2, [&](int rank) {
        P2pCommunicator plain(std::make_unique<ThreadPointToPoint>(mail, rank), [] {});
        const bool has = rank >= 2 - with_tuner;
        const auto tuner = std::make_shared<NcclTuner>(has ? HVD_NCCL_TUNER : "");
        HostDevice device(rank);
        NcclCommunicator::connect(nccl, tuner, device, "", &plain, 0, [] {});
      });
    });
    return contains(said, "NCCL has loaded the tuner of this package on 1 of 2 ranks only");
  };
  CHECK(!said_with(0));
  // Ranks are threads here and share the tuner, which cannot tell two communicators that are made
  // at the same moment apart: a rank may lack it by that alone.
  for (const int with_tuner : {1, 2}) {
    int tries = 0;
    while (said_with(with_tuner) != (with_tuner == 1)) CHECK(++tries < 100);
  }
}

TEST(a_tuner_that_cannot_be_opened_is_none) {
  NcclTuner none(""), missing("/nowhere/libnone.so");
  for (NcclTuner* each : {&none, &missing}) {
    CHECK_EQUAL(each->end(each->begin()), uint64_t{0});
    each->follow(0);
    each->announce(0, 3);
    each->choose(with_channels(tree, 8));
    CHECK_EQUAL(each->current(0), uint64_t{0});
  }
}
