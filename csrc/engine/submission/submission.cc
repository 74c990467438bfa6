#include "engine/submission/submission.h"

#include "common/errors.h"
#include "engine/submission/validate.h"

namespace autotune {

Submission::Submission(int rank, int size, const Params& params, Timeline& timeline,
                       EngineStatus& status)
    : rank_(rank),
      timeline_(timeline),
      status_(status),
      sets_(size),
      steps_(Clock::now()),
      streams_(status.device),
      params_(params) {}

int64_t Submission::take(TensorEntry* entries, size_t count, Clock::time_point now) {
  if (!closed_reason_.empty()) {
    throw EngineError(count == 0 ? closed_reason_ : closed_error(entries[0].request));
  }
  for (size_t i = 0; i < count; ++i) validate(entries[i].request, sets_, rank_);
  const int64_t first = operations_.next_number();
  if (count == 0) return first;
  const std::vector<InFlight*>& taken =
      operations_.add(entries, count, rank_, sets_.global().size());
  try {
    bool begins_step = false;
    for (InFlight* each : taken) begins_step |= steps_.begins_step(each->entry.request);
    if (begins_step) end_step_now(now);
  } catch (...) {
    operations_.take_back();
    throw;
  }
  timeline_.step_begins();
  if (unannounced_.empty()) first_unannounced_ = now;
  for (InFlight* each : taken) {
    TensorEntry& entry = each->entry;
    steps_.add_operation(entry.request);
    entry.step = steps_.current_step();
    if (entry.completion) hand_over(entry, now);
    unannounced_.push_back(&entry);
    unannounced_bytes_ += entry.request->wire_bytes();
  }
  return first;
}

// Of an operation for whose handle nobody waits.
void Submission::hand_over(TensorEntry& entry, Clock::time_point now) {
  entry.completion->handed_over = now;
  if (entry.completion->is_awaited) {
    ++waiting_threads_;
  } else if (moves_data(entry.request->operation)) {
    steps_.hand_over(now);
  }
}

// It has ended.
void Submission::tell_later(TensorEntry& entry) {
  const auto now = Clock::now();
  if (entry.completion->is_awaited) {
    end_wait(now - entry.completion->handed_over);
  } else if (moves_data(entry.request->operation)) {
    steps_.complete(entry.step, now);
  }
  ended_.push_back({std::move(entry.completion), std::move(*entry.handle)});
  status_.has_ended = true;
  operations_.erase_with_handle(entry);
}

std::vector<Ended> Submission::take_ended() {
  status_.has_ended = false;
  return std::exchange(ended_, {});
}

void Submission::release(int64_t number) {
  const std::shared_ptr<Handle>* handle = operations_.find_handle(number);
  if (handle == nullptr) return;
  (*handle)->released = true;
  if ((*handle)->done) (*handle)->device_result = {};
  operations_.release(number);
}

std::string Submission::settle(int64_t first, int64_t count, DeviceStream stream) {
  std::string error;
  EventPtr newest;  // comes after all the others
  for (int64_t number = first; number < first + count; ++number) {
    const std::shared_ptr<Handle>* handle = operations_.find_handle(number);
    if (handle == nullptr) continue;
    const EventPtr& finished = (*handle)->finished;
    if (error.empty()) error = finished && status_.failed ? closed_reason_ : (*handle)->error;
    if (finished && (!newest || newest->number < finished->number)) newest = finished;
  }
  if (!status_.failed) streams_.order(newest, stream);
  for (int64_t number = first; number < first + count; ++number) release(number);
  return error;
}

void Submission::begin_wait(Handle& handle) {
  handle.waited = true;
  ++waiting_threads_;
}

void Submission::end_wait(Clock::duration waited) {
  --waiting_threads_;
  steps_.add_exposed(waited);
  counters_.wait_ns += waited.count();
}

bool Submission::end_step(bool is_explicit, Clock::time_point now) {
  if (is_explicit) steps_.set_explicit();
  end_step_now(now);
  return steps_.wants_drain(now);
}

void Submission::end_step_now(Clock::time_point now) {
  timeline_.step_ends(steps_.current_step(), steps_.payload_bytes());
  const StepRecord record = steps_.end(now, static_cast<int64_t>(epoch_), epoch_first_step_);
  if (!streams_.end_step(record)) return steps_.append(record);
  append_device_steps();
}

void Submission::append_device_steps() {
  for (const StepRecord& record : streams_.take_steps()) steps_.append(record);
}

void Submission::drain_steps(std::vector<StepRecord>& records,
                             std::vector<std::pair<int64_t, OperationSizes>>& signatures) {
  append_device_steps();
  steps_.drain(Clock::now(), records, signatures);
}

void Submission::clear_unannounced() {
  unannounced_.clear();
  unannounced_bytes_ = 0;
}

void Submission::apply(const ParamsChange& change) {
  params_ = change.params;
  epoch_ = change.epoch;
  epoch_first_step_ = change.first_step;
  timeline_.params_changed(epoch_, params_);
}

void Submission::end(TensorEntry& entry, const std::string& error) {
  Handle& handle = *entry.handle;
  handle.done = true;
  handle.error = error;
  if (handle.released) handle.device_result = {};
  if (entry.completion) return tell_later(entry);
  operations_.erase(entry);
}

void Submission::add_check(const std::string& name, double worst_error, const std::string& reason,
                           std::optional<uint64_t> epoch) {
  constexpr size_t most = 1024;  // where nobody drains, the newest are of no use
  if (checks_.size() < most) {
    checks_.push_back({epoch.value_or(epoch_), track_name(name), worst_error, reason});
  }
}

void Submission::set_counters(const Counters& counters) {
  const int64_t wait_ns = counters_.wait_ns;
  counters_ = counters;
  counters_.wait_ns = wait_ns;
}

std::string Submission::closed_error(const Request& request) const {
  return closed_names_operation_ ? describe(request) + " failed: " + closed_reason_
                                 : closed_reason_;
}

void Submission::end_all() {
  operations_.for_each([this](TensorEntry& entry) { end(entry, closed_error(entry.request)); });
  clear_unannounced();
}

Submission::Clock::time_point Submission::announce_time() const {
  if (unannounced_.empty()) return Clock::time_point::max();
  if (waiting_threads_ > 0 || unannounced_bytes_ >= params_.fusion_threshold_bytes) {
    return Clock::time_point{};
  }
  const auto cycle_time = std::chrono::duration<double, std::milli>(params_.cycle_time_ms);
  return first_unannounced_ + std::chrono::duration_cast<Clock::duration>(cycle_time);
}

bool Submission::lease_cycles(Clock::time_point until) {
  lease_until_ = operations_.empty() ? until : Clock::time_point{};
  return operations_.empty();
}

}  // namespace autotune
