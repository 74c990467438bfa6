// The training thread's side of the engine.
#include "engine/engine.h"

#include <sched.h>

#include <algorithm>
#include <utility>

#include "common/errors.h"
#include "common/log.h"
#include "engine/submission/validate.h"

namespace autotune {

namespace {

// How long a waiting thread looks at the sockets before it sleeps on them: an answer takes 10-30 us
// when the other ranks run.
constexpr auto spin_time = std::chrono::microseconds(50);

// Names of the operations over all ranks that scripts cannot choose.
constexpr const char* add_set_name = "add_process_set";
constexpr const char* remove_set_name = "remove_process_set";

// Not locked as long as it lives.
class Unlocked {
 public:
  explicit Unlocked(std::unique_lock<std::mutex>& lock) : lock_(lock) { lock_.unlock(); }
  ~Unlocked() { lock_.lock(); }
  Unlocked(const Unlocked&) = delete;
  Unlocked& operator=(const Unlocked&) = delete;

 private:
  std::unique_lock<std::mutex>& lock_;
};

}  // namespace

Engine::Engine(const EngineOptions& options, std::unique_ptr<ControlPlane> control,
               CommunicatorFactory make_communicators)
    : options_(options),
      rank_(control->rank()),
      size_(control->size()),
      timeline_(rank_, size_, options.timeline_clock),
      control_(std::move(control)),
      make_communicators_(std::move(make_communicators)),
      executor_(&timeline_),
      stalls_(options.stall_warning_seconds, options.stall_shutdown_seconds, size_, Clock::now()),
      sets_(size_),
      params_(options.params),
      steps_(Clock::now()) {
  if (rank_ == 0) coordinator_ = std::make_unique<Coordinator>(size_, params_, &timeline_);
  // Making communicators already communicates, and so calls on_wait(): all members are there.
  add_set(0, sets_.global());
  start_timeline_at_init();
  thread_ = std::thread([this] { run(); });
}

// A timeline that cannot be written is no reason not to train.
void Engine::start_timeline_at_init() {
  if (options_.timeline_path.empty()) return;
  try {
    timeline_.start(options_.timeline_path, options_.timeline_mark_cycles, params_, epoch_, true);
  } catch (const InvalidRequest& error) {
    log(LogLevel::error, std::string(error.what()) + "; training goes on without it");
  }
}

Engine::~Engine() { shutdown(std::chrono::seconds(5)); }

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

std::map<int32_t, ProcessSet> Engine::process_sets() {
  std::lock_guard lock(mutex_);
  return sets_.all();
}

// Numbers the operations one after the other and returns the first number.
int64_t Engine::queue(TensorEntry* entries, size_t count) {
  const auto now = Clock::now();
  std::lock_guard lock(mutex_);
  if (!closed_reason_.empty()) throw EngineError(closed_reason_);
  for (size_t i = 0; i < count; ++i) validate(entries[i].request, sets_, rank_);
  const int64_t first = next_handle_;
  if (count == 0) return first;
  taken_.clear();
  try {
    take_names(entries, count);
    bool begins_step = false;
    for (InFlight* each : taken_) begins_step |= steps_.begins_step(each->entry.request);
    if (begins_step) end_step_now(now);
  } catch (...) {
    for (InFlight* each : taken_) {
      handles_.erase(each->number);
      in_flight_.erase(in_flight_.find(each->entry.request.key()));
    }
    throw;
  }
  timeline_.step_begins();
  if (unannounced_.empty()) first_unannounced_ = now;
  for (InFlight* each : taken_) {
    TensorEntry& entry = each->entry;
    steps_.add_operation(entry.request);
    entry.step = steps_.current_step();
    unannounced_.push_back(&entry);
    unannounced_bytes_ += entry.request->wire_bytes();
  }
  if (announce_time() < thread_wakes_at_) control_->wake();
  return first;
}

// Move the entries to `in_flight_`; `taken_` are those that were moved, also when it throws
// (mutex_ held).
void Engine::take_names(TensorEntry* entries, size_t count) {
  const int64_t first = next_handle_;
  taken_.reserve(count);
  const std::pmr::polymorphic_allocator<InFlight> memory(&pool_);
  for (size_t i = 0; i < count; ++i) {
    const NameKey key = entries[i].request.key();
    if (const auto known = in_flight_.find(key); known != in_flight_.end()) {
      const std::string what = describe(entries[i].request);
      if (known->second->number >= first) {
        throw InvalidRequest(what + ": expected different names in a group, got one twice");
      }
      throw InvalidRequest(what +
                           ": expected a name that is not in flight, got one that is (rank " +
                           std::to_string(rank_) + " of " + std::to_string(size_) +
                           "); wait for the first one or use another name");
    }
    const auto operation = std::allocate_shared<InFlight>(memory);
    operation->entry = std::move(entries[i]);
    operation->entry.handle = &operation->handle;
    operation->number = next_handle_++;
    in_flight_.emplace(key, operation);
    taken_.push_back(operation.get());
    handles_.emplace(operation->number, std::shared_ptr<Handle>(operation, &operation->handle));
  }
}

std::shared_ptr<Handle> Engine::find_handle(int64_t number) {
  const auto found = handles_.find(number);
  if (found == handles_.end()) {
    throw InvalidRequest("unknown handle " + std::to_string(number));
  }
  return found->second;
}

bool Engine::poll(int64_t number) {
  EventPtr finished;
  {
    std::lock_guard lock(mutex_);
    const auto found = handles_.find(number);
    if (found == handles_.end()) return true;  // released
    if (!found->second->done) return false;
    if (!failed_) finished = found->second->finished;
  }
  return !finished || device_.load()->is_complete(*finished);
}

bool Engine::wait(int64_t number, std::chrono::nanoseconds timeout) {
  std::unique_lock lock(mutex_);
  const std::shared_ptr<Handle> handle = find_handle(number);
  if (!wait_for(handle, Clock::now() + timeout, lock)) return false;
  if (!handle->error.empty()) throw EngineError(handle->error);
  if (handle->finished) check_gpu_work(lock);
  return true;
}

bool Engine::wait_all(int64_t first, int64_t count, std::chrono::nanoseconds timeout) {
  const auto deadline = Clock::now() + timeout;
  std::unique_lock lock(mutex_);
  for (int64_t number = first; number < first + count; ++number) {
    const std::shared_ptr<Handle> handle = find_handle(number);
    if (!wait_for(handle, deadline, lock)) return false;
  }
  return true;
}

// False when it takes until after `deadline`. `lock` is that of mutex_, held before and after.
bool Engine::wait_for(const std::shared_ptr<Handle>& handle, Clock::time_point deadline,
                      std::unique_lock<std::mutex>& lock) {
  if (handle->done) return true;
  const auto start = Clock::now();
  handle->waited = true;
  ++waiting_threads_;
  bool ran_cycles = false;
  {
    const Unlocked meanwhile(lock);
    ran_cycles = wait_by_running_cycles(handle, deadline);
  }
  if (!ran_cycles) {
    // Another thread runs cycles: it announces what is waited for and tells when it is done.
    if (!unannounced_.empty()) control_->wake();
    done_changed_.wait_until(lock, deadline, [&] { return handle->done; });
  }
  --waiting_threads_;
  const auto now = Clock::now();
  steps_.add_exposed(now - start);
  counters_.wait_ns += (now - start).count();
  return handle->done;  // if not, the engine is at work on the rest of the handle
}

// False when another thread is running cycles.
bool Engine::wait_by_running_cycles(const std::shared_ptr<Handle>& handle,
                                    Clock::time_point deadline) {
  std::unique_lock running(cycle_mutex_, std::try_to_lock);
  if (!running.owns_lock()) return false;
  const auto is_done = [&] {
    std::lock_guard lock(mutex_);
    return handle->done || stopped_ || abandon_;
  };
  auto spin_until = Clock::now() + spin_time;
  while (!is_done()) {
    const uint64_t before = processed_;
    cycle();
    if (processed_ != before) {
      spin_until = Clock::now() + spin_time;
      continue;
    }
    const auto now = Clock::now();
    if (now > deadline) break;
    if (now < spin_until) {
      sched_yield();
    } else {
      control_->sleep(
          std::min<std::chrono::nanoseconds>(deadline - now, std::chrono::milliseconds(20)));
    }
  }
  std::lock_guard lock(mutex_);
  lease_until_ = in_flight_.empty() ? Clock::now() + lease : Clock::time_point{};
  if (!in_flight_.empty()) control_->wake();  // the engine thread takes over
  return true;
}

Handle Engine::complete_handle(int64_t number) {
  std::lock_guard lock(mutex_);
  const Handle& handle = *find_handle(number);
  if (!handle.done) throw InvalidRequest("handle " + std::to_string(number) + " is not complete");
  return handle;
}

void Engine::release(int64_t number) {
  std::lock_guard lock(mutex_);
  release_locked(number);
}

std::string Engine::settle(int64_t first, int64_t count, DeviceStream stream) {
  std::string error;
  EventPtr newest;  // comes after all the others
  std::unique_lock lock(mutex_);
  if (failed_) wait_for_end(lock);
  for (int64_t number = first; number < first + count; ++number) {
    const auto found = handles_.find(number);
    if (found == handles_.end()) continue;
    const EventPtr& finished = found->second->finished;
    if (error.empty()) error = finished && failed_ ? closed_reason_ : found->second->error;
    if (finished && (!newest || newest->number < finished->number)) newest = finished;
  }
  if (!failed_) order_locked(newest, stream);
  for (int64_t number = first; number < first + count; ++number) release_locked(number);
  return error;
}

// mutex_ held.
void Engine::release_locked(int64_t number) {
  const auto found = handles_.find(number);
  if (found == handles_.end()) return;
  found->second->released = true;
  if (found->second->done) free_result(*found->second);
  handles_.erase(found);
}

bool Engine::end_step(bool is_explicit) {
  const auto now = Clock::now();
  std::lock_guard lock(mutex_);
  if (is_explicit) steps_.set_explicit();
  end_step_now(now);
  return steps_.wants_drain(now);
}

// mutex_ held.
void Engine::end_step_now(Clock::time_point now) {
  timeline_.step_ends(steps_.current_step(), steps_.payload_bytes());
  const StepRecord record = steps_.end(now, static_cast<int64_t>(epoch_), epoch_first_step_);
  Device* const device = device_;
  if (device == nullptr || !device_steps_.end(*device, record)) return steps_.append(record);
  take_device_steps();
}

void Engine::start_timeline(const std::string& path, bool mark_cycles) {
  finish_device_timeline();
  timeline_.start(path, mark_cycles, params(), epoch());
}

void Engine::stop_timeline() {
  finish_device_timeline();
  timeline_.stop();
}

void Engine::pause_steps(bool paused) {
  std::lock_guard lock(mutex_);
  steps_.set_paused(paused);
}

void Engine::add_samples(int64_t count) {
  std::lock_guard lock(mutex_);
  steps_.add_samples(count);
}

void Engine::drain_steps(std::vector<StepRecord>& records,
                         std::vector<std::pair<int64_t, OperationSizes>>& signatures) {
  std::lock_guard lock(mutex_);
  take_device_steps();
  steps_.drain(Clock::now(), records, signatures);
}

std::vector<CheckRecord> Engine::drain_checks() {
  std::lock_guard lock(mutex_);
  return std::exchange(checks_, {});
}

void Engine::propose(uint64_t epoch, const Params& params) {
  if (rank_ != 0) throw InvalidRequest("only rank 0 may propose parameters");
  std::lock_guard lock(mutex_);
  proposal_ = {epoch, params};
}

Params Engine::params() {
  std::lock_guard lock(mutex_);
  return params_;
}

uint64_t Engine::epoch() {
  std::lock_guard lock(mutex_);
  return epoch_;
}

Counters Engine::counters() {
  std::lock_guard lock(mutex_);
  return counters_;
}

// When the unannounced tensors have to be announced (mutex_ held).
Engine::Clock::time_point Engine::announce_time() const {
  if (unannounced_.empty()) return Clock::time_point::max();
  if (waiting_threads_ > 0 || unannounced_bytes_ >= params_.fusion_threshold_bytes) {
    return Clock::time_point{};
  }
  const auto cycle_time = std::chrono::duration<double, std::milli>(params_.cycle_time_ms);
  return first_unannounced_ + std::chrono::duration_cast<Clock::duration>(cycle_time);
}

}  // namespace autotune
