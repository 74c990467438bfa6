#include "engine/engine.h"

#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "common/errors.h"
#include "common/log.h"

namespace autotune {

namespace {

// How long a waiting thread looks at the sockets before it sleeps on them: an answer takes 10-30 us
// when the other ranks run.
constexpr auto spin_time = std::chrono::microseconds(50);
// How long the engine thread leaves the next cycle to a thread that waited a moment ago.
constexpr auto lease = std::chrono::microseconds(500);
// How long the end of a timeline waits for what the GPU is doing.
constexpr auto timeline_patience = std::chrono::seconds(2);

// Names of the operations over all ranks that scripts cannot choose.
constexpr const char* add_set_name = "add_process_set";
constexpr const char* remove_set_name = "remove_process_set";

}  // namespace

Engine::Engine(const EngineOptions& options, std::unique_ptr<ControlPlane> control,
               CommunicatorFactory make_communicators)
    : options_(options),
      rank_(control->rank()),
      size_(control->size()),
      timeline_(rank_, size_, options.timeline_clock),
      control_(std::move(control)),
      submission_(rank_, size_, options.params, timeline_, status_),
      cycle_(options_, *control_, std::move(make_communicators), timeline_, submission_, status_) {
  start_timeline_at_init();
  thread_ = std::thread([this] { run(); });
}

// A timeline that cannot be written is no reason not to train.
void Engine::start_timeline_at_init() {
  if (options_.timeline_path.empty()) return;
  try {
    timeline_.start(options_.timeline_path, options_.timeline_mark_cycles, options_.params, 0,
                    true);
  } catch (const InvalidRequest& error) {
    log(LogLevel::error, std::string(error.what()) + "; training goes on without it");
  }
}

Engine::~Engine() { shutdown(std::chrono::seconds(5)); }

// ---------------------------------------------------------------- operations

int64_t Engine::enqueue(TensorEntry entry) {
  Request& request = entry.request.edit();
  complete_name(request.name, request.process_set);
  return queue(&entry, 1);
}

int64_t Engine::enqueue_group(TensorEntry* entries, size_t count) {
  if (options_.disable_group_fusion && count > 0) {
    // The same on all ranks and in every step.
    const uint64_t group = entries[0].request.key().hash | 1;
    for (size_t i = 0; i < count; ++i) entries[i].request.edit().group = group;
  }
  return queue(entries, count);
}

int64_t Engine::add_process_set(const std::vector<int>& ranks) {
  TensorEntry entry;
  Request& request = entry.request.edit();
  request.operation = Operation::add_process_set;
  request.name = add_set_name;
  request.shape.assign(ranks.begin(), ranks.end());
  return enqueue(std::move(entry));
}

int64_t Engine::remove_process_set(int32_t id) {
  TensorEntry entry;
  Request& request = entry.request.edit();
  request.operation = Operation::remove_process_set;
  request.name = remove_set_name;
  request.root_rank = id;
  request.shape = {id};
  return enqueue(std::move(entry));
}

std::map<int32_t, ProcessSet> Engine::process_sets() { return submission_.lock()->sets().all(); }

int64_t Engine::queue(TensorEntry* entries, size_t count) {
  const auto now = Clock::now();
  const auto submission = submission_.lock();
  const int64_t first = submission->take(entries, count, now);
  if (count > 0 && submission->is_due_before_thread_wakes()) control_->wake();
  return first;
}

bool Engine::poll(int64_t number) {
  EventPtr finished;
  {
    const auto submission = submission_.lock();
    const std::shared_ptr<Handle>* handle = submission->operations().find_handle(number);
    if (handle == nullptr) return true;  // released
    if (!(*handle)->done) return false;
    if (!status_.failed) finished = (*handle)->finished;
  }
  return !finished || status_.device.load()->is_complete(*finished);
}

bool Engine::wait(int64_t number, std::chrono::nanoseconds timeout) {
  auto submission = submission_.lock();
  const std::shared_ptr<Handle> handle = submission->operations().handle(number);
  if (!wait_for(submission, handle, Clock::now() + timeout)) return false;
  if (!handle->error.empty()) throw EngineError(handle->error);
  if (handle->finished) check_gpu_work(submission);
  return true;
}

bool Engine::wait_all(int64_t first, int64_t count, std::chrono::nanoseconds timeout) {
  const auto deadline = Clock::now() + timeout;
  auto submission = submission_.lock();
  for (int64_t number = first; number < first + count; ++number) {
    const std::shared_ptr<Handle> handle = submission->operations().handle(number);
    if (!wait_for(submission, handle, deadline)) return false;
  }
  return true;
}

// False when it takes until after `deadline`.
bool Engine::wait_for(Submissions& submission, const std::shared_ptr<Handle>& handle,
                      Clock::time_point deadline) {
  if (handle->done) return true;
  const auto start = Clock::now();
  submission->begin_wait(*handle);
  bool ran_cycles = false;
  submission.released([&] { ran_cycles = wait_by_running_cycles(*handle, deadline); });
  if (!ran_cycles) {
    // Another thread runs cycles: it announces what is waited for and tells when it is done.
    if (!submission->unannounced().empty()) control_->wake();
    submission.wait_until(deadline, [&] { return handle->done; });
  }
  submission->end_wait(Clock::now() - start);
  return handle->done;  // if not, the engine is at work on the rest of the handle
}

// False when another thread is running cycles.
bool Engine::wait_by_running_cycles(const Handle& handle, Clock::time_point deadline) {
  if (!run_cycles(handle, deadline)) return false;
  // The engine's thread must find the cycle free.
  if (!submission_.lock()->lease_cycles(Clock::now() + lease)) control_->wake();
  return true;
}

// False when another thread is running cycles.
bool Engine::run_cycles(const Handle& handle, Clock::time_point deadline) {
  const auto cycle = cycle_.try_lock();
  if (!cycle) return false;
  const auto is_done = [&] {
    const auto submission = submission_.lock();
    return handle.done || status_.stopped || status_.abandon;
  };
  auto spin_until = Clock::now() + spin_time;
  while (!is_done()) {
    const uint64_t before = cycle->processed();
    cycle->run();
    if (status_.has_ended) control_->wake();  // to tell is the engine's thread's
    if (cycle->processed() != before) {
      spin_until = Clock::now() + spin_time;
      continue;
    }
    const auto now = Clock::now();
    if (now > deadline) break;
    if (now < spin_until) {
      sched_yield();
    } else {
      const auto until = std::min({deadline, cycle->relay_due(), cycle->progress_due()});
      control_->sleep(
          std::clamp<std::chrono::nanoseconds>(until - now, {}, std::chrono::milliseconds(20)));
    }
  }
  if (cycle->relay_due() != Clock::time_point::max()) control_->wake();
  return true;
}

Handle Engine::complete_handle(int64_t number) {
  const auto submission = submission_.lock();
  const Handle& handle = *submission->operations().handle(number);
  if (!handle.done) throw InvalidRequest("handle " + std::to_string(number) + " is not complete");
  return handle;
}

void Engine::release(int64_t number) { submission_.lock()->release(number); }

std::string Engine::settle(int64_t first, int64_t count, DeviceStream stream) {
  auto submission = submission_.lock();
  if (status_.failed) wait_for_end(submission);
  return submission->settle(first, count, stream);
}

// ---------------------------------------------------------------- the GPU

void Engine::use_device(int index, const std::function<DeviceBackend(int)>& make) {
  const auto cycle = cycle_.lock();
  if (Device* known = status_.device.load()) {
    if (known->index() == index) return;
    throw InvalidRequest("expected tensors of one GPU per rank, got one of GPU " +
                         std::to_string(index) + " after one of GPU " +
                         std::to_string(known->index()) + " (rank " + std::to_string(rank_) +
                         " of " + std::to_string(size_) +
                         "); start a rank for each GPU and call torch.cuda.set_device first");
  }
  cycle->use_device(make(index));
}

EventPtr Engine::input_ready(DeviceStream stream) { return status_.device.load()->record(stream); }

void Engine::order(int64_t number, DeviceStream stream) {
  auto submission = submission_.lock();
  const EventPtr finished = submission->operations().handle(number)->finished;
  if (finished) check_gpu_work(submission);
  submission->streams().order(finished, stream);
}

DeviceMemory Engine::take_result(int64_t number, DeviceStream stream) {
  auto submission = submission_.lock();
  const std::shared_ptr<Handle> handle = submission->operations().handle(number);
  check_gpu_work(submission);
  submission->streams().order(handle->finished, stream);
  return std::exchange(handle->device_result, {});
}

// Throws when the engine has failed: what it gave the GPU may never have been done.
void Engine::check_gpu_work(Submissions& submission) {
  if (!status_.failed) return;
  wait_for_end(submission);
  throw EngineError(submission->closed_reason());
}

// Not before then does the GPU leave the tensors of an engine that has failed.
void Engine::wait_for_end(Submissions& submission) {
  submission.wait([this] { return status_.stopped.load(); });
}

// ---------------------------------------------------------------- steps, timeline, parameters

bool Engine::end_step(bool is_explicit) {
  const auto now = Clock::now();
  return submission_.lock()->end_step(is_explicit, now);
}

void Engine::pause_steps(bool paused) { submission_.lock()->pause_steps(paused); }

void Engine::add_samples(int64_t count) { submission_.lock()->add_samples(count); }

void Engine::drain_steps(std::vector<StepRecord>& records,
                         std::vector<std::pair<int64_t, OperationSizes>>& signatures) {
  submission_.lock()->drain_steps(records, signatures);
}

std::vector<CheckRecord> Engine::drain_checks() { return submission_.lock()->drain_checks(); }

void Engine::start_timeline(const std::string& path, bool mark_cycles) {
  finish_device_timeline();
  timeline_.start(path, mark_cycles, params(), epoch());
}

void Engine::stop_timeline() {
  finish_device_timeline();
  timeline_.stop();
}

// Writes what the GPU was given so far and does within `timeline_patience`.
void Engine::finish_device_timeline() {
  const auto deadline =
      Clock::now() + (status_.failed ? std::chrono::seconds(0) : timeline_patience);
  while (has_device() && timeline_.on() && Clock::now() < deadline) {
    {
      const auto cycle = cycle_.try_lock();
      try {
        if (cycle && cycle->write_device_timeline()) return;
      } catch (const EngineError&) {  // who runs the next cycle sees it, too
        return;
      }
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

void Engine::propose(uint64_t epoch, const Params& params) {
  if (rank_ != 0) throw InvalidRequest("only rank 0 may propose parameters");
  submission_.lock()->propose(epoch, params);
}

Params Engine::params() { return submission_.lock()->params(); }

uint64_t Engine::epoch() { return submission_.lock()->epoch(); }

Counters Engine::counters() { return submission_.lock()->counters(); }

// ---------------------------------------------------------------- the engine's own thread

void Engine::run() {
  set_affinity();
  while (!status_.stopped && !status_.abandon) {
    if (const auto cycle = cycle_.try_lock()) cycle->run();
    tell_ended();
    if (!status_.stopped && !status_.abandon) sleep_until_needed();
  }
  // Another thread that runs cycles ends them now, too.
  if (const auto cycle = cycle_.lock(); !status_.stopped) {
    std::string reason = submission_.lock()->abort_reason();
    if (reason.empty()) reason = "the engine was shut down without an answer from the coordinator";
    cycle->fail_everything(reason, true);
  }
  tell_ended();
  if (!status_.failed) attend_to_others();
}

// Until this rank's script has come to its end, too.
void Engine::attend_to_others() {
  while (!status_.abandon) {
    const auto due = cycle_.lock()->let_transport_go_on();
    if (due == Clock::time_point::max()) return;
    control_->watch_for_wake(watched_);
    control_->sleep(watched_, std::max<std::chrono::nanoseconds>(due - Clock::now(), {}));
  }
}

void Engine::tell_ended() {
  if (!status_.has_ended) return;
  std::vector<Ended> all = submission_.lock()->take_ended();
  for (Ended& each : all) each.completion->completed(each.handle);
}

void Engine::sleep_until_needed() {
  auto until = Clock::time_point::max();
  {
    const auto cycle = cycle_.try_lock();
    const auto submission = submission_.lock();
    const auto now = Clock::now();
    // A thread that waits runs the cycles, or did so a moment ago: stay off the sockets.
    const bool leased = !cycle || submission->is_leased(now);
    leased ? control_->watch_for_wake(watched_) : control_->watch(watched_);
    if (leased) until = now + lease;
    // What is due is announced by the thread that has the cycle, when it is through with its
    // operation, or by this one, when that one leaves: it says so.
    if (cycle) until = std::min(until, submission->announce_time());
    if (cycle) until = std::min(until, cycle->next_check(now, !submission->operations().empty()));
    if (cycle) until = std::min(until, cycle->progress_due());
    if (!leased) until = std::min(until, cycle->next_device_timeline(now));
    if (status_.device_is_busy) {
      until = std::min<Clock::time_point>(until, now + Cycle::device_check_interval);
    }
    submission->thread_wakes_at(until);
  }
  const auto now = Clock::now();
  const auto limit =
      until == Clock::time_point::max()
          ? std::chrono::nanoseconds(-1)
          : std::max<std::chrono::nanoseconds>(until - now, std::chrono::nanoseconds(0));
  control_->sleep(watched_, limit);
  submission_.lock()->thread_wakes_at(Clock::time_point{});
}

void Engine::set_affinity() const {
  if (options_.thread_affinity < 0) return;
  cpu_set_t cores;
  CPU_ZERO(&cores);
  CPU_SET(static_cast<size_t>(options_.thread_affinity), &cores);
  if (sched_setaffinity(0, sizeof cores, &cores) != 0) {
    log(LogLevel::warning,
        "cannot set the engine thread's affinity: " + std::string(strerror(errno)));
  }
}

void Engine::abort(const std::string& reason) {
  submission_.lock()->request_abort(reason);
  status_.abandon = true;
  control_->wake();
}

void Engine::shutdown(std::chrono::nanoseconds timeout) {
  if (!thread_.joinable()) return;
  if (!status_.abandon) submission_.lock()->request_shutdown();  // else it has no goodbye to say
  control_->wake();
  const auto deadline = Clock::now() + timeout;
  while (!status_.stopped && Clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  status_.abandon = true;  // ends every wait in the engine thread within milliseconds
  control_->wake();
  thread_.join();
  cycle_.lock()->close_device(status_.failed);
  stop_timeline();
  if (status_.failed) return;
  const auto cycle = cycle_.lock();
  control_->close(std::chrono::seconds(2), [&] { cycle->let_transport_go_on(); });
}

}  // namespace autotune
