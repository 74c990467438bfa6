// How a thread waits for something that only polling can show.
//
// The first tries follow each other at once (a peer on another core answers within microseconds),
// then the core is offered to others (more ranks than cores), then the thread sleeps in short naps
// (a peer is late). WaitHook is called about every millisecond.
#pragma once

#include <sched.h>
#include <time.h>

#include "comm/communicator.h"
#include "comm/point_to_point.h"

namespace autotune {

class Backoff {
 public:
  explicit Backoff(const WaitHook& on_wait) : on_wait_(on_wait) {}

  void pause() {
    ++tries_;
    if (tries_ < spins) return;
    if (tries_ % yields_per_call == 0) on_wait_();
    if (tries_ < spins + yields) {
      sched_yield();
      return;
    }
    const timespec nap{0, 50'000};
    nanosleep(&nap, nullptr);
    if (tries_ % naps_per_call == 0) on_wait_();
  }

 private:
  static constexpr int spins = 64;
  static constexpr int yields = 4096;
  static constexpr int yields_per_call = 1024;
  static constexpr int naps_per_call = 16;

  const WaitHook& on_wait_;
  int64_t tries_ = 0;
};

// Returns when all that is posted is complete. Where `on_wait` ends the wait, it is given up.
inline void complete(PointToPoint& transport, const WaitHook& on_wait) {
  Backoff backoff(on_wait);
  try {
    while (!transport.test_all()) backoff.pause();
  } catch (...) {
    transport.give_up();
    throw;
  }
}

}  // namespace autotune
