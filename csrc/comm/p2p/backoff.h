// How a thread waits for something that only polling can show.
//
// The first tries follow each other at once (a peer on another core answers within microseconds),
// then the core is offered to others (more ranks than cores), then the thread sleeps in short naps
// (a peer is late). Progress is called about every millisecond.
#pragma once

#include <sched.h>
#include <time.h>

#include "comm/communicator.h"

namespace autotune {

class Backoff {
 public:
  explicit Backoff(const Progress& progress) : progress_(progress) {}

  void pause() {
    ++tries_;
    if (tries_ < spins) return;
    if (tries_ % yields_per_progress == 0) progress_();
    if (tries_ < spins + yields) {
      sched_yield();
      return;
    }
    const timespec nap{0, 50'000};
    nanosleep(&nap, nullptr);
    if (tries_ % naps_per_progress == 0) progress_();
  }

 private:
  static constexpr int spins = 64;
  static constexpr int yields = 4096;
  static constexpr int yields_per_progress = 1024;
  static constexpr int naps_per_progress = 16;

  const Progress& progress_;
  int64_t tries_ = 0;
};

}  // namespace autotune
