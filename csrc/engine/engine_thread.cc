// The engine's own thread: when it runs a cycle, when it sleeps, and how it ends.
#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "common/errors.h"
#include "common/log.h"
#include "engine/engine.h"

namespace autotune {

namespace {

std::string join(const std::vector<int>& ranks) {
  std::string text;
  for (int rank : ranks) text += (text.empty() ? "" : ", ") + std::to_string(rank);
  return text;
}

}  // namespace

void Engine::run() {
  set_affinity();
  while (!stopped_ && !abandon_) {
    {
      std::unique_lock running(cycle_mutex_, std::try_to_lock);
      if (running.owns_lock()) cycle();
    }
    if (!stopped_ && !abandon_) sleep_until_needed();
  }
  // Another thread that runs cycles ends them now, too.
  std::lock_guard running(cycle_mutex_);
  if (!stopped_) {
    fail_everything("the engine was shut down without an answer from the coordinator", true);
  }
}

void Engine::sleep_until_needed() {
  auto until = Clock::time_point::max();
  {
    std::unique_lock running(cycle_mutex_, std::try_to_lock);
    std::lock_guard lock(mutex_);
    const auto now = Clock::now();
    // A thread that waits runs the cycles, or did so a moment ago: stay off the sockets.
    const bool leased = !running.owns_lock() || (now < lease_until_ && in_flight_.empty());
    leased ? control_->watch_for_wake(watched_) : control_->watch(watched_);
    if (leased) until = now + lease;
    if (!unannounced_.empty()) until = std::min(until, announce_time());
    if (running.owns_lock() && coordinator_ && coordinator_->has_pending() && stalls_.enabled()) {
      until = std::min<Clock::time_point>(until, now + StallInspector::interval);
    }
    if (device_is_busy_) {
      until = std::min<Clock::time_point>(until, now + device_check_interval);
    }
    if (!leased && executor_.device_timeline_pending()) {
      until = std::min<Clock::time_point>(until, now + DeviceTimeline::interval);
    }
    thread_wakes_at_ = until;
  }
  const auto now = Clock::now();
  const auto limit =
      until == Clock::time_point::max()
          ? std::chrono::nanoseconds(-1)
          : std::max<std::chrono::nanoseconds>(until - now, std::chrono::nanoseconds(0));
  control_->sleep(watched_, limit);
  std::lock_guard lock(mutex_);
  thread_wakes_at_ = Clock::time_point{};
}

void Engine::set_affinity() const {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  if (options_.thread_affinity >= 0) {
    CPU_SET(static_cast<size_t>(options_.thread_affinity), &cores);
  } else {
    // mpirun binds small jobs to one core per rank; the kernel cuts this to what the job may use.
    for (size_t core = 0; core < CPU_SETSIZE; ++core) CPU_SET(core, &cores);
  }
  if (sched_setaffinity(0, sizeof cores, &cores) != 0) {
    log(LogLevel::warning,
        "cannot set the engine thread's affinity: " + std::string(strerror(errno)));
  }
}

void Engine::shutdown(std::chrono::nanoseconds timeout) {
  if (!thread_.joinable()) return;
  {
    std::lock_guard lock(mutex_);
    shutdown_requested_ = true;
  }
  control_->wake();
  const auto deadline = Clock::now() + timeout;
  while (!stopped_ && Clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  abandon_ = true;  // ends every wait in the engine thread within milliseconds
  control_->wake();
  thread_.join();
  executor_.close_device(failed_);
  stop_timeline();
  if (!failed_) control_->close(std::chrono::seconds(2));
}

// ---------------------------------------------------------------- when things go wrong

// Called by the communicator while it waits.
void Engine::on_wait() {
  control_->pump(frames_);
  for (const Frame& frame : frames_) {
    if (frame.type == FrameType::abort) throw EngineError(frame.payload);
    if (frame.type == FrameType::goodbye) saying_goodbye_ = true;
  }
  check_connections();
  if (abandon_) throw EngineError("the engine was shut down while an operation was running");
}

void Engine::check_connections() {
  const std::vector<int> closed = control_->take_closed_ranks();
  if (closed.empty() || stopped_ || saying_goodbye_) return;
  throw EngineError("rank " + join(closed) +
                    " ended its process or lost its connection (seen on rank " +
                    std::to_string(rank_) + " of " + std::to_string(size_) +
                    "); look for its error message above this one");
}

void Engine::fail_everything(const std::string& reason, bool fatal) {
  {
    std::lock_guard lock(mutex_);  // nobody sees one without the other
    closed_reason_ = reason;
    if (fatal) failed_ = true;
  }
  if (fatal) executor_.close_device(true);  // or the GPU would wait for ranks that are gone
  {
    std::lock_guard lock(mutex_);
    for (auto& [name, operation] : in_flight_) {
      operation->handle.done = true;
      operation->handle.error = reason;
    }
    in_flight_.clear();
    unannounced_.clear();
    unannounced_bytes_ = 0;
    stopped_ = true;
  }
  done_changed_.notify_all();
  control_->wake();
}

}  // namespace autotune
