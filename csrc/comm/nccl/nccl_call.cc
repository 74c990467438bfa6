#include "comm/nccl/nccl_call.h"

#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

namespace autotune {

struct NcclCall::State {
  std::mutex mutex;
  std::condition_variable ended;
  bool done = false;
  int result = 0;
};

NcclCall::NcclCall(std::function<int()> act) : state_(std::make_shared<State>()) {
  std::thread([state = state_, act = std::move(act)] {
    const int result = act();
    const std::lock_guard lock(state->mutex);
    state->result = result;
    state->done = true;
    state->ended.notify_all();
  }).detach();
}

bool NcclCall::wait(std::chrono::milliseconds time) const {
  std::unique_lock lock(state_->mutex);
  return state_->ended.wait_for(lock, time, [this] { return state_->done; });
}

int NcclCall::finish(const WaitHook& on_wait) const {
  while (!wait(std::chrono::milliseconds(1))) on_wait();
  return state_->result;
}

}  // namespace autotune
