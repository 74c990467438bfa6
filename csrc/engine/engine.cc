#include "engine/engine.h"

#include <sched.h>

#include <algorithm>
#include <cstring>

#include "common/errors.h"
#include "common/log.h"

namespace autotune {

namespace {

// How long the engine thread leaves the next cycle to a thread that waits.
constexpr auto lease = std::chrono::microseconds(500);
// How long a waiting thread looks at the sockets before it sleeps on them: an answer takes 10-30 us
// when the other ranks run.
constexpr auto spin_time = std::chrono::microseconds(50);
constexpr auto stall_check_interval = std::chrono::milliseconds(500);

// What can be refused without asking the other ranks.
void validate(const Request& request, int size) {
  const std::string what = std::string(name_of(request.operation)) + " '" + request.name + "': ";
  if (request.operation == Operation::broadcast &&
      (request.root_rank < 0 || request.root_rank >= size)) {
    throw InvalidRequest(what + "expected a root rank from 0 to " + std::to_string(size - 1) +
                         ", got " + std::to_string(request.root_rank));
  }
  const bool scaled =
      request.prescale != 1.0 || request.postscale != 1.0 || request.reduce_op == ReduceOp::average;
  if (request.operation == Operation::allreduce && request.dtype == DataType::boolean && scaled) {
    throw InvalidRequest(
        what + "expected Min, Max, Sum or Product without factors for a bool tensor, got " +
        name_of(request.reduce_op) + "; convert it to a number type first");
  }
}

std::string join(const std::vector<int>& ranks) {
  std::string text;
  for (int rank : ranks) text += (text.empty() ? "" : ", ") + std::to_string(rank);
  return text;
}

}  // namespace

Engine::Engine(const EngineOptions& options, std::unique_ptr<ControlPlane> control,
               const CommunicatorFactory& make_communicators)
    : options_(options),
      rank_(control->rank()),
      size_(control->size()),
      timeline_(rank_, size_, options.timeline_clock),
      control_(std::move(control)),
      last_stall_check_(Clock::now()),
      params_(options.params),
      steps_(Clock::now()) {
  if (rank_ == 0) coordinator_ = std::make_unique<Coordinator>(size_, params_, &timeline_);
  // Making them already communicates, and so calls progress(): all members are there by now.
  executor_ = std::make_unique<Executor>(make_communicators([this] { progress(); }), &timeline_);
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

// ---------------------------------------------------------------- called by the training thread

int64_t Engine::enqueue(TensorEntry entry) {
  const auto now = Clock::now();
  const Request& request = entry.request;
  validate(request, size_);
  std::lock_guard lock(mutex_);
  if (!closed_reason_.empty()) throw EngineError(closed_reason_);
  if (in_flight_.count(request.name)) {
    throw InvalidRequest(std::string(name_of(request.operation)) + " '" + request.name +
                         "': expected a name that is not in flight, got one that is (rank " +
                         std::to_string(rank_) + " of " + std::to_string(size_) +
                         "); wait for the first one or use another name");
  }
  if (steps_.begins_step(request)) {
    end_step_now(now);
  }
  timeline_.step_begins();
  steps_.add_operation(request);
  entry.step = steps_.current_step();
  entry.handle = std::make_shared<Handle>();
  const int64_t number = next_handle_++;
  handles_[number] = entry.handle;
  if (unannounced_.empty()) first_unannounced_ = now;
  unannounced_.push_back(request.name);
  unannounced_bytes_ += request.bytes();
  const std::string name = request.name;
  in_flight_.emplace(name, std::move(entry));
  if (announce_time() < thread_wakes_at_) control_->wake();
  return number;
}

std::shared_ptr<Handle> Engine::find_handle(int64_t handle) {
  const auto found = handles_.find(handle);
  if (found == handles_.end()) {
    throw InvalidRequest("unknown handle " + std::to_string(handle));
  }
  return found->second;
}

bool Engine::poll(int64_t handle) {
  std::lock_guard lock(mutex_);
  return find_handle(handle)->done;
}

bool Engine::wait(int64_t number, std::chrono::nanoseconds timeout) {
  const auto start = Clock::now();
  std::unique_lock lock(mutex_);
  const std::shared_ptr<Handle> handle = find_handle(number);
  if (!handle->done) {
    handle->waited = true;
    ++waiting_threads_;
    lock.unlock();
    const bool ran_cycles = wait_by_running_cycles(handle, start + timeout);
    lock.lock();
    if (!ran_cycles) {
      // Another thread runs cycles: it announces what is waited for and tells when it is done.
      if (!unannounced_.empty()) control_->wake();
      done_changed_.wait_until(lock, start + timeout, [&] { return handle->done; });
    }
    --waiting_threads_;
    const auto now = Clock::now();
    steps_.add_exposed(now - start);
    counters_.wait_ns += (now - start).count();
  }
  if (handle->done && !handle->error.empty()) throw EngineError(handle->error);
  return handle->done;
}

// False when another thread is running cycles.
bool Engine::wait_by_running_cycles(const std::shared_ptr<Handle>& handle,
                                    Clock::time_point deadline) {
  std::unique_lock running(cycle_mutex_, std::try_to_lock);
  if (!running.owns_lock()) return false;
  const auto is_done = [&] {
    std::lock_guard lock(mutex_);
    return handle->done || stopped_;
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

std::shared_ptr<const Handle> Engine::complete_handle(int64_t number) {
  std::lock_guard lock(mutex_);
  std::shared_ptr<Handle> handle = find_handle(number);
  if (!handle->done) throw InvalidRequest("handle " + std::to_string(number) + " is not complete");
  return handle;
}

void Engine::release(int64_t number) {
  std::lock_guard lock(mutex_);
  handles_.erase(number);
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
  steps_.end(now, static_cast<int64_t>(epoch_), epoch_first_step_);
}

void Engine::start_timeline(const std::string& path, bool mark_cycles) {
  timeline_.start(path, mark_cycles, params(), epoch());
}

void Engine::pause_steps(bool paused) {
  std::lock_guard lock(mutex_);
  steps_.set_paused(paused);
}

void Engine::drain_steps(std::vector<StepRecord>& records,
                         std::vector<std::pair<int64_t, OperationSizes>>& signatures) {
  std::lock_guard lock(mutex_);
  steps_.drain(Clock::now(), records, signatures);
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
  timeline_.stop();
  if (!failed_) control_->close(std::chrono::seconds(2));
}

// ---------------------------------------------------------------- the engine thread

void Engine::run() {
  set_affinity();
  while (!stopped_ && !abandon_) {
    {
      std::unique_lock running(cycle_mutex_, std::try_to_lock);
      if (running.owns_lock()) cycle();
    }
    if (!stopped_ && !abandon_) sleep_until_needed();
  }
  if (!stopped_) {
    fail_everything("the engine was shut down without an answer from the coordinator", true);
  }
}

void Engine::sleep_until_needed() {
  auto until = Clock::time_point::max();
  std::vector<pollfd> watched;
  {
    std::unique_lock running(cycle_mutex_, std::try_to_lock);
    std::lock_guard lock(mutex_);
    const auto now = Clock::now();
    // A thread that waits runs the cycles, or did so a moment ago: stay off the sockets.
    const bool leased = !running.owns_lock() || (now < lease_until_ && in_flight_.empty());
    watched = leased ? control_->watch_for_wake() : control_->watch();
    if (leased) until = now + lease;
    if (!unannounced_.empty()) until = std::min(until, announce_time());
    if (running.owns_lock() && coordinator_ && coordinator_->has_pending() &&
        options_.stall_warning_seconds > 0) {
      until = std::min<Clock::time_point>(until, now + stall_check_interval);
    }
    thread_wakes_at_ = until;
  }
  const auto now = Clock::now();
  const auto limit =
      until == Clock::time_point::max()
          ? std::chrono::nanoseconds(-1)
          : std::max<std::chrono::nanoseconds>(until - now, std::chrono::nanoseconds(0));
  control_->sleep(std::move(watched), limit);
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

// ---------------------------------------------------------------- one cycle (cycle_mutex_ held)

void Engine::cycle() {
  if (stopped_) return;
  Counters& counters = executor_->counters();
  const auto start = Clock::now();
  const int64_t busy_before = counters.busy_ns();
  try {
    if (exchange()) {
      counters.protocol_ns += (Clock::now() - start).count() - (counters.busy_ns() - busy_before);
      if (coordinator_) counters.skew_ns = coordinator_->skew().count();
    }
    check_connections();
  } catch (const std::exception& error) {
    const std::string reason = error.what();
    log(LogLevel::error, reason);
    control_->send_all(FrameType::abort, reason);
    fail_everything(reason, true);
  }
}

// Say what is due, hear what has come, do what was decided. False when there was nothing.
bool Engine::exchange() {
  std::vector<RequestList> own = collect();
  for (RequestList& list : own) {
    if (coordinator_) {
      coordinator_->add(0, list, Clock::now());
    } else {
      control_->send_all(FrameType::requests, encode(list));
    }
  }
  control_->pump(frames_);
  const bool heard = !frames_.empty();
  handle_frames();
  if (coordinator_ && !stopped_) {
    check_stalls(Clock::now());
    send_and_process(coordinator_->take());
  }
  return heard || !own.empty();
}

void Engine::send_and_process(const std::vector<ResponseList>& lists) {
  for (const ResponseList& list : lists) {
    control_->send_all(FrameType::responses, encode(list));
    if (!list.shutdown) continue;
    control_->send_all(FrameType::goodbye, "");
    saying_goodbye_ = true;
  }
  for (const ResponseList& list : lists) {
    process(list);
    if (stopped_) return;
  }
}

bool Engine::announce_is_due(Clock::time_point now) const {
  return !unannounced_.empty() && announce_time() <= now;
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

// What to say now: one list per training step.
std::vector<RequestList> Engine::collect() {
  std::vector<RequestList> lists;
  std::lock_guard lock(mutex_);
  ++executor_->counters().cycles;
  if (proposal_) {
    coordinator_->propose(proposal_->first, proposal_->second);
    proposal_.reset();
  }
  if (announce_is_due(Clock::now())) {
    for (const std::string& name : unannounced_) {
      const TensorEntry& entry = in_flight_.at(name);
      if (lists.empty() || lists.back().step != entry.step) {
        lists.emplace_back();
        lists.back().step = entry.step;
        lists.back().processed = processed_;
      }
      if (!coordinator_) timeline_.announced(entry.request, rank_);  // rank 0 sees all ranks'
      const int64_t slot = cache_.find(entry.request);
      if (slot >= 0) {
        lists.back().set_hit(slot);
        ++executor_->counters().cache_hits;
      } else {
        lists.back().requests.push_back(entry.request);
        ++executor_->counters().cache_misses;
      }
    }
    timeline_.cycle();
    unannounced_.clear();
    unannounced_bytes_ = 0;
  }
  if (shutdown_requested_ && !shutdown_announced_) {
    shutdown_announced_ = true;
    lists.emplace_back();
    lists.back().step = steps_.current_step();
    lists.back().processed = processed_;
    lists.back().shutdown = true;
  }
  executor_->counters().messages += static_cast<int64_t>(lists.size());
  counters_.cycles = executor_->counters().cycles;
  return lists;
}

void Engine::handle_frames() {
  while (!frames_.empty() && !stopped_) {
    const Frame frame = std::move(frames_.front());
    frames_.pop_front();
    switch (frame.type) {
      case FrameType::requests:
        coordinator_->add(frame.rank, decode_request_list(frame.payload), Clock::now());
        break;
      case FrameType::responses:
        process(decode_response_list(frame.payload));
        break;
      case FrameType::abort:
        fail_everything(frame.payload, true);
        if (coordinator_) control_->send_all(FrameType::abort, frame.payload);
        break;
      case FrameType::hello:
      case FrameType::goodbye:
        break;
    }
  }
}

void Engine::process(const ResponseList& list) {
  // Names first: a slot may be given to another tensor by this very list.
  std::vector<Response> responses = list.responses;
  if (list.change) apply(*list.change);
  for (int64_t slot : list.evicted_slots) cache_.erase(slot);
  for (Response& response : responses) {
    for (ResponseItem& item : response.items) {
      if (!item.from_cache) continue;
      const CacheEntry* entry = cache_.at(item.cache_slot);
      if (entry == nullptr) throw EngineError("negotiation: response names an empty cache slot");
      item.name = entry->request.name;
      item.first_dims = entry->first_dims;
    }
  }
  timeline_.agreed(responses);
  for (const Response& response : responses) perform(response);
  ++processed_;
  if (list.shutdown) {
    fail_everything("the engine was shut down (" + list.shutdown_reason + ", seen on rank " +
                        std::to_string(rank_) + " of " + std::to_string(size_) +
                        "); call hvd.init() again to go on",
                    false);
  }
}

void Engine::apply(const ParamsChange& change) {
  std::lock_guard lock(mutex_);
  params_ = change.params;
  epoch_ = change.epoch;
  epoch_first_step_ = change.first_step;
  timeline_.params_changed(epoch_, params_);
}

void Engine::perform(const Response& response) {
  const std::vector<TensorEntry> entries = entries_of(response);
  timeline_.operation_begins(response);
  const Params current = params();
  for (size_t i = 0; i < entries.size(); ++i) {
    const ResponseItem& item = response.items[i];
    if (item.from_cache || item.cache_slot < 0) continue;
    cache_.put(item.cache_slot, {entries[i].request, item.first_dims});
  }
  if (response.error.empty()) {
    std::vector<TensorEntry*> pointers;
    for (const TensorEntry& entry : entries) pointers.push_back(const_cast<TensorEntry*>(&entry));
    executor_->run(response, pointers, current);
  }
  complete(entries, response.error);
}

std::vector<TensorEntry> Engine::entries_of(const Response& response) {
  std::vector<TensorEntry> entries;
  entries.reserve(response.items.size());
  std::lock_guard lock(mutex_);
  for (const ResponseItem& item : response.items) {
    const auto found = in_flight_.find(item.name);
    if (found == in_flight_.end()) {
      throw EngineError("negotiation: response for '" + item.name + "', which rank " +
                        std::to_string(rank_) + " has not announced");
    }
    entries.push_back(found->second);
  }
  return entries;
}

void Engine::complete(const std::vector<TensorEntry>& entries, const std::string& error) {
  timeline_.operation_ends(entries);
  bool waited = false;
  {
    std::lock_guard lock(mutex_);
    for (const TensorEntry& entry : entries) {
      entry.handle->done = true;
      entry.handle->error = error;
      waited = waited || entry.handle->waited;
      in_flight_.erase(entry.request.name);
    }
    const int64_t wait_ns = counters_.wait_ns;
    counters_ = executor_->counters();
    counters_.wait_ns = wait_ns;
  }
  if (waited) done_changed_.notify_all();
}

// ---------------------------------------------------------------- when things go wrong

// Called by the communicator while it waits.
void Engine::progress() {
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

void Engine::check_stalls(Clock::time_point now) {
  if (options_.stall_warning_seconds <= 0 || !coordinator_->has_pending()) return;
  if (now - last_stall_check_ < stall_check_interval) return;
  last_stall_check_ = now;
  using Seconds = std::chrono::duration<double>;
  for (const Stalled& stalled :
       coordinator_->stalled(now, Seconds(options_.stall_warning_seconds))) {
    const std::string text =
        std::string(name_of(stalled.operation)) + " '" + stalled.name + "' has waited " +
        std::to_string(static_cast<int>(stalled.age.count())) + " s for rank " +
        join(stalled.missing_ranks) + " (of " + std::to_string(size_) +
        "): expected every rank to call it; does a rank skip it, or run far behind?";
    if (options_.stall_shutdown_seconds > 0 &&
        stalled.age.count() >= options_.stall_shutdown_seconds) {
      throw EngineError(text);
    }
    // Repeat with growing distance, not at every check.
    const double periods = stalled.age.count() / options_.stall_warning_seconds;
    const double before =
        (stalled.age - Seconds(stall_check_interval)).count() / options_.stall_warning_seconds;
    if (static_cast<int64_t>(periods) != static_cast<int64_t>(before)) log(LogLevel::warning, text);
  }
}

void Engine::fail_everything(const std::string& reason, bool fatal) {
  if (fatal) failed_ = true;
  {
    std::lock_guard lock(mutex_);
    closed_reason_ = reason;
    for (auto& [name, entry] : in_flight_) {
      entry.handle->done = true;
      entry.handle->error = reason;
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
