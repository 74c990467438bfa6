// Something that NCCL does in a thread of its own: it waits without end for ranks that have died,
// and nobody can look after the job from inside it.
#pragma once

#include <chrono>
#include <functional>
#include <memory>

#include "comm/communicator.h"

namespace autotune {

class NcclCall {
 public:
  // The thread goes on when this is gone. `act` returns NCCL's result.
  explicit NcclCall(std::function<int()> act);

  // Returns whether it is done within `time`.
  bool wait(std::chrono::milliseconds time) const;
  // Its result. Calls `on_wait` until it is done, and throws what that throws.
  int finish(const WaitHook& on_wait) const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace autotune
