// What the collective algorithms need from a transport: non-blocking messages between two ranks.
//
// Messages of one (sender, receiver) pair arrive in the order in which they were posted. Only one
// thread at a time is inside a transport.
#pragma once

#include <cstdint>

#include "common/activity.h"

namespace autotune {

class PointToPoint {
 public:
  virtual ~PointToPoint() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  // What moves the bytes, for the timeline.
  virtual Backend backend() const { return Backend::mpi; }

  // False where nothing that was posted is written after give_up().
  virtual bool leaves_behind() const { return true; }

  // Post a message of `bytes` (at most max_message_bytes). The memory must live, and for a receive
  // stay unread, until test_all() has returned true or
  // give_up() has returned.
  virtual void send(int peer, const void* data, int64_t bytes) = 0;
  virtual void receive(int peer, void* data, int64_t bytes) = 0;

  // Make progress; true when every posted message is complete.
  virtual bool test_all() = 0;

  // Messages so far, where bytes move only in calls of this and some that other ranks wait for may
  // still be held here when all that was posted is complete; else 0.
  virtual uint64_t posted() const { return 0; }
  // Between operations, with nothing posted: moves what is held. To be called now and then.
  virtual void progress() {}

  // After an error: take back what is posted, or wait for it, but not for long. What is on its way
  // all the same is left behind (message_memory.h). The transport may refuse what is posted later.
  virtual void give_up() = 0;
};

// It fits MPI's int counts with room to spare; longer messages are cut by the algorithms.
constexpr int64_t max_message_bytes = int64_t{1} << 28;

}  // namespace autotune
