// What threads of the script and the cycle share: the operations in flight and their handles, those
// that are not announced yet, the process sets, the training steps and the parameters in force.
// Threads hand operations over and look at their handles, the cycle takes what is due and completes
// it. It is reached through Guarded<Submission> only, for moments: nobody uses the communicator, a
// socket or the GPU's time while holding it.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/types.h"
#include "engine/operation/counters.h"
#include "engine/operation/message.h"
#include "engine/operation/process_set.h"
#include "engine/operation/tensor.h"
#include "engine/status.h"
#include "engine/submission/device_streams.h"
#include "engine/submission/in_flight.h"
#include "engine/submission/steps.h"
#include "engine/timeline/timeline.h"

namespace autotune {

// One result that was checked (see result_check.h), or an operation that the setting does not suit.
struct CheckRecord {
  uint64_t epoch;
  std::string name;
  double worst_error;  // it is in units of the tolerance
  // It says why the setting does not suit; where it is empty, the result was checked.
  std::string reason;

  bool ok() const { return reason.empty() && worst_error <= 1; }
};

class Submission {
 public:
  using Clock = std::chrono::steady_clock;

  // `timeline` and `status` outlive this.
  Submission(int rank, int size, const Params& params, Timeline& timeline, EngineStatus& status);

  // ------------------------------------------------------------ of threads of the script

  // Takes the operations, all or none; they are numbered one after the other. Returns the first
  // number. Throws InvalidRequest, or EngineError when the engine has ended.
  int64_t take(TensorEntry* entries, size_t count, Clock::time_point now);
  const InFlightTable& operations() const { return operations_; }
  DeviceStreams& streams() { return streams_; }
  void release(int64_t number);
  // Operations that have ended and have a Completion, which has not been told yet.
  std::vector<Ended> take_ended();
  // Orders `stream` after `count` complete operations from number `first` on, and releases them.
  // Returns the first error, "" without one.
  std::string settle(int64_t first, int64_t count, DeviceStream stream);

  // Around a wait for the handle.
  void begin_wait(Handle& handle);
  void end_wait(Clock::duration waited);

  // Steps; see steps.h. `end_step` returns true when `drain_steps` is worth calling.
  bool end_step(bool is_explicit, Clock::time_point now);
  void pause_steps(bool paused) { steps_.set_paused(paused); }
  void add_samples(int64_t count) { steps_.add_samples(count); }
  void drain_steps(std::vector<StepRecord>& records,
                   std::vector<std::pair<int64_t, OperationSizes>>& signatures);
  std::vector<CheckRecord> drain_checks() { return std::exchange(checks_, {}); }

  void propose(uint64_t epoch, const Params& params) { proposal_ = {epoch, params}; }
  void request_shutdown() { shutdown_requested_ = true; }
  // The first reason counts; "" until there is one.
  void request_abort(const std::string& reason) {
    if (abort_reason_.empty()) abort_reason_ = reason;
  }
  const std::string& abort_reason() const { return abort_reason_; }
  const Counters& counters() const { return counters_; }

  // ------------------------------------------------------------ of the thread that runs cycles

  const std::vector<TensorEntry*>& unannounced() const { return unannounced_; }
  void clear_unannounced();
  std::optional<std::pair<uint64_t, Params>> take_proposal() {
    return std::exchange(proposal_, std::nullopt);
  }
  bool shutdown_requested() const { return shutdown_requested_; }
  int64_t current_step() const { return steps_.current_step(); }

  void apply(const ParamsChange& change);
  void advance_to_step(int64_t step) { steps_.advance_to(step); }
  void add_set(int32_t id, const ProcessSet& set) { sets_.add(id, set.ranks); }
  // What this rank alone has still queued for the set ends, too: calls `end(entry)` for each.
  template <typename End>
  void remove_set(int32_t id, End&& end);
  // It is complete; its handle tells how it ended.
  void end(TensorEntry& entry, const std::string& error);
  // `epoch`: in which it was; none: this one.
  void add_check(const std::string& name, double worst_error, const std::string& reason = "",
                 std::optional<uint64_t> epoch = std::nullopt);
  // As the cycle counts; the times that threads have waited are counted here.
  void set_counters(const Counters& counters);
  void count_cycle() { ++counters_.cycles; }

  // No more operations are taken, because of `reason`; those in flight end with it at `end_all`.
  // Where nothing has failed but them the text names each.
  void close(const std::string& reason, bool names_operation) {
    closed_reason_ = reason;
    closed_names_operation_ = names_operation;
  }
  void end_all();

  // ------------------------------------------------------------ of both, and the engine's thread

  const ProcessSetTable& sets() const { return sets_; }
  const Params& params() const { return params_; }
  uint64_t epoch() const { return epoch_; }
  const std::string& closed_reason() const { return closed_reason_; }

  // When the unannounced tensors have to be announced; `max` when there are none.
  Clock::time_point announce_time() const;
  // Whether that is before the engine's thread wakes up by itself.
  bool is_due_before_thread_wakes() const { return announce_time() < thread_wakes_at_; }
  void thread_wakes_at(Clock::time_point time) { thread_wakes_at_ = time; }
  // The thread that has run cycles while it waited stops doing so. With nothing in flight it is
  // expected back until `until`, and the engine's thread leaves the next cycle to it; else that one
  // has to take over: false.
  bool lease_cycles(Clock::time_point until);
  bool is_leased(Clock::time_point now) const { return now < lease_until_ && operations_.empty(); }

 private:
  std::string closed_error(const Request& request) const;
  void hand_over(TensorEntry& entry, Clock::time_point now);
  void tell_later(TensorEntry& entry);
  void end_step_now(Clock::time_point now);
  void append_device_steps();

  const int rank_;
  Timeline& timeline_;
  EngineStatus& status_;

  InFlightTable operations_;
  std::vector<Ended> ended_;
  std::vector<TensorEntry*> unannounced_;  // they are some of those
  int64_t unannounced_bytes_ = 0;
  Clock::time_point first_unannounced_{};
  ProcessSetTable sets_;
  int waiting_threads_ = 0;

  StepTracker steps_;
  DeviceStreams streams_;
  Counters counters_;
  std::vector<CheckRecord> checks_;

  Params params_;
  uint64_t epoch_ = 0;
  int64_t epoch_first_step_ = 0;
  std::optional<std::pair<uint64_t, Params>> proposal_;

  bool shutdown_requested_ = false;
  std::string abort_reason_;
  std::string closed_reason_;  // unless it is empty, no more operations are taken
  bool closed_names_operation_ = false;
  Clock::time_point thread_wakes_at_ = Clock::time_point::max();
  Clock::time_point lease_until_{};
};

template <typename End>
void Submission::remove_set(int32_t id, End&& end) {
  sets_.remove(id);
  const auto of_set = [id](const TensorEntry* entry) { return entry->request->process_set == id; };
  unannounced_.erase(std::remove_if(unannounced_.begin(), unannounced_.end(), of_set),
                     unannounced_.end());
  operations_.for_each([&](TensorEntry& entry) {
    if (of_set(&entry)) end(entry);
  });
}

}  // namespace autotune
