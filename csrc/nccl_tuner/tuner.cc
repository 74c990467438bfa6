#include "nccl_tuner/tuner.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>

#include "nccl_tuner/choice.h"
#include "nccl_tuner/nccl_abi.h"

namespace autotune {

namespace {

struct Communicator {
  uint64_t number = 0;
  int ranks = 0;
  bool follows = false;
  bool is_held = false;
  int group = 0;  // operations of the group that is announced; 0: nobody says
  uint64_t operations = 0;
  AutotuneNcclChoice choice = own_choice;
};

// All that the library knows. One lock for everything: an operation holds it for some ten
// nanoseconds, and nobody waits for anything else while holding it.
struct Tuner {
  std::mutex mutex;
  std::condition_variable released;
  std::map<uint64_t, std::unique_ptr<Communicator>> communicators;
  uint64_t last_number = 0;
  std::chrono::steady_clock::time_point held_until{};
  bool is_missed = false;  // an operation has gone on before what is held was released
  AutotuneNcclChoice choice = own_choice;  // of those that follow
  AutotuneNcclSeen seen{};
};

// Never destroyed: NCCL may call until the process has ended.
Tuner& tuner() {
  static Tuner& only = *new Tuner;
  return only;
}

int begin_communicator(int interface, size_t ranks, void** context) {
  Tuner& t = tuner();
  const std::lock_guard lock(t.mutex);
  auto communicator = std::make_unique<Communicator>();
  communicator->number = ++t.last_number;
  communicator->ranks = static_cast<int>(ranks);
  *context = communicator.get();
  t.seen.interface = interface;
  ++t.seen.communicators;
  t.communicators[communicator->number] = std::move(communicator);
  return nccl_success;
}

int init_v4(size_t ranks, size_t, void*, void** context) {
  return begin_communicator(4, ranks, context);
}

int init_v5(void** context, uint64_t, size_t ranks, size_t, void*, void*, void*) {
  return begin_communicator(5, ranks, context);
}

// What NCCL would choose, for `AutotuneNcclSeen`.
void remember_largest(AutotuneNcclSeen& seen, size_t bytes, const float* costs, int count) {
  double own = -1;
  for (int k = 0; k < count; ++k) {
    if (costs[k] >= 0 && (own < 0 || costs[k] < own)) own = costs[k];
  }
  if (own <= seen.largest_us) return;
  seen.largest_bytes = static_cast<int64_t>(bytes);
  seen.largest_us = own;
}

int get_coll_info(void* context, int, size_t bytes, int pipelined, float** costs, int algorithms,
                  int protocols, int, int* channels) {
  if (context == nullptr) return nccl_success;
  Tuner& t = tuner();
  auto& communicator = *static_cast<Communicator*>(context);
  std::unique_lock lock(t.mutex);
  if (!t.released.wait_until(lock, t.held_until, [&] { return !communicator.is_held; })) {
    communicator.is_held = false;
    t.is_missed = true;
  }
  ++communicator.operations;
  ++t.seen.operations;
  auto* const table = reinterpret_cast<float*>(costs);
  remember_largest(t.seen, bytes, table, algorithms * protocols);
  const AutotuneNcclChoice& choice = communicator.follows ? t.choice : communicator.choice;
  const int together = communicator.group > 0 ? communicator.group : pipelined;
  if (apply(choice, bytes, together, table, algorithms, protocols, channels)) ++t.seen.chosen;
  return nccl_success;
}

int end_communicator(void* context) {
  if (context == nullptr) return nccl_success;
  Tuner& t = tuner();
  const std::lock_guard lock(t.mutex);
  t.communicators.erase(static_cast<Communicator*>(context)->number);
  return nccl_success;
}

// FNV-1a.
void add_to(uint64_t& hash, uint64_t value) { hash = (hash ^ value) * 0x100000001b3; }

// Calls `visit` for those of `ranks` ranks that do not follow, in the order of their making.
template <typename Visit>
void each_of(Tuner& t, int ranks, Visit&& visit) {
  for (const auto& [number, communicator] : t.communicators) {
    if (communicator->ranks == ranks && !communicator->follows) visit(*communicator);
  }
}

}  // namespace

}  // namespace autotune

using autotune::Tuner;
using autotune::tuner;

extern "C" {

extern const autotune::NcclTunerV4 ncclTunerPlugin_v4;
extern const autotune::NcclTunerV5 ncclTunerPlugin_v5;

const autotune::NcclTunerV4 ncclTunerPlugin_v4 = {
    "hvd-autotune", autotune::init_v4, autotune::get_coll_info, autotune::end_communicator};
const autotune::NcclTunerV5 ncclTunerPlugin_v5 = {
    "hvd-autotune", autotune::init_v5, autotune::get_coll_info, autotune::end_communicator};

uint64_t autotune_nccl_begin() {
  Tuner& t = tuner();
  const std::lock_guard lock(t.mutex);
  return t.last_number;
}

uint64_t autotune_nccl_end(uint64_t begun) {
  Tuner& t = tuner();
  const std::lock_guard lock(t.mutex);
  return t.last_number == begun + 1 ? t.last_number : 0;
}

void autotune_nccl_follow(uint64_t number, int32_t follows) {
  Tuner& t = tuner();
  const std::lock_guard lock(t.mutex);
  const auto found = t.communicators.find(number);
  if (found != t.communicators.end()) found->second->follows = follows != 0;
}

void autotune_nccl_group(uint64_t number, int32_t operations) {
  Tuner& t = tuner();
  const std::lock_guard lock(t.mutex);
  const auto found = t.communicators.find(number);
  if (found != t.communicators.end()) found->second->group = operations;
}

void autotune_nccl_choose(const AutotuneNcclChoice* choice) {
  Tuner& t = tuner();
  const std::lock_guard lock(t.mutex);
  t.choice = *choice;
}

uint64_t autotune_nccl_hold(int32_t ranks, int32_t patience_ms) {
  Tuner& t = tuner();
  const std::lock_guard lock(t.mutex);
  uint64_t hash = 0xcbf29ce484222325;
  bool is_none = true;
  autotune::each_of(t, ranks, [&](autotune::Communicator& communicator) {
    communicator.is_held = true;
    is_none = false;
    autotune::add_to(hash, communicator.operations + 1);
  });
  t.is_missed = false;
  t.held_until = std::chrono::steady_clock::now() + std::chrono::milliseconds(patience_ms);
  return is_none ? 0 : std::max<uint64_t>(hash, 1);
}

int32_t autotune_nccl_release(const AutotuneNcclChoice* choice) {
  Tuner& t = tuner();
  bool is_missed = false;
  {
    const std::lock_guard lock(t.mutex);
    is_missed = t.is_missed;
    for (const auto& [number, communicator] : t.communicators) {
      if (communicator->is_held && choice != nullptr && !is_missed) communicator->choice = *choice;
      communicator->is_held = false;
    }
  }
  t.released.notify_all();
  return is_missed ? 0 : 1;
}

void autotune_nccl_seen(AutotuneNcclSeen* seen) {
  Tuner& t = tuner();
  const std::lock_guard lock(t.mutex);
  *seen = t.seen;
}
}
