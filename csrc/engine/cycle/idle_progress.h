// Lets a transport go on while its rank has nothing to do.
//
// Some transports, such as MPI, move bytes only while they are called. When an operation is over on
// this rank, one may still hold what another rank waits for within that operation, because the
// connection was full at that moment: the word that a message was taken. Nothing here shows that,
// and this rank would sleep until the next operation, which the other one never gets to. So an idle
// rank calls its transport: soon after the last message, then ever more rarely, to the end of the
// job. Who waits gets on at the latest when the connection has been free for as long as it was
// full before, or for `longest`.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <utility>

#include "comm/point_to_point.h"

namespace autotune {

class IdleProgress {
 public:
  using Clock = std::chrono::steady_clock;

  // Operations that follow each other faster never pay for a call.
  static constexpr std::chrono::milliseconds first{5};
  // Ranks of several hosts wake so often anyway (ControlPlane::interval).
  static constexpr std::chrono::milliseconds longest{1000};

  // nullptr: there is none.
  void use(std::shared_ptr<PointToPoint> transport) { transport_ = std::move(transport); }

  // When `look` wants to be called; `max`: never.
  Clock::time_point due() const { return due_; }

  void look(Clock::time_point now) {
    if (!transport_) return;
    if (const uint64_t posted = transport_->posted(); posted != posted_) {
      posted_ = posted;
      pause_ = first;
      due_ = now + first;
    } else if (now >= due_) {
      transport_->progress();
      pause_ = std::min(2 * pause_, longest);
      due_ = now + pause_;
    }
  }

 private:
  std::shared_ptr<PointToPoint> transport_;
  uint64_t posted_ = 0;
  std::chrono::milliseconds pause_ = first;
  Clock::time_point due_ = Clock::time_point::max();
};

}  // namespace autotune
