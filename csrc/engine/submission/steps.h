// Training steps as this rank sees them: where one ends, how long it took, what it communicated.
//
// A step ends when the script says so (`end`, called by the optimizer wrapper or by
// hvd.autotune.step()); until it does, steps are found by repetition: a name that comes again
// begins a new step, and for generated names the smallest period of the sequence (operation, type,
// shape) is a step. Once the script has said so, what was found by repetition counts no more; a
// record tells which of the two it is.
//
// The *signature* of a step is a hash of what it communicates: how many operations of which kind,
// type, shape and process set. Names and order do not matter.
//
// Called from threads that enqueue, under the engine's lock. No I/O.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory_resource>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "engine/operation/message.h"

namespace autotune {

// See autotune/protocol.py: field for field the same.
struct StepRecord {
  int64_t step = 0;
  int64_t count = 0;
  double duration_us = 0;
  int64_t payload_bytes = 0;
  double exposed_us = 0;
  int64_t epoch = 0;
  int64_t signature = 0;
  int64_t samples = 0;       // 0 means that the script does not say
  bool is_explicit = false;  // the script ended it
};

// (operation, bytes); operations on GPUs are "cuda " and their name.
using OperationSizes = std::vector<std::pair<std::string, int64_t>>;

// Smallest period of a sequence of hashes, found while it grows.
class PeriodFinder {
 public:
  // Add the next element; true when it begins a new period.
  bool add(uint64_t element);

 private:
  static constexpr size_t longest = 1024;
  // matches_[p-1] elements in a row, up to the newest, equal the one p before.
  std::vector<uint32_t> matches_;
  std::vector<uint64_t> history_;  // it is a ring of the last `longest` elements
  uint64_t added_ = 0;
  size_t period_ = 0;  // 0 means that it is not known
  size_t position_ = 0;
  uint32_t needed_repeats_ = 2;
};

class StepTracker {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  explicit StepTracker(TimePoint start) : step_start_(start) {}

  int64_t current_step() const { return step_; }
  int64_t payload_bytes() const { return payload_bytes_; }  // this step has so many so far

  // Before an operation is queued: true when it begins a new step (then call `end` first).
  bool begins_step(const SharedRequest& request);
  void add_operation(const SharedRequest& request);
  // The script says so of the step in progress.
  void add_samples(int64_t count) { samples_ += count; }
  void add_exposed(std::chrono::duration<double, std::micro> time) { exposed_us_ += time.count(); }
  // Of operations for which no thread waits: what is exposed of them is the time from the last hand
  // over to the last completion, in which the step has nothing else to communicate.
  void hand_over(TimePoint now) { handed_over_ = now; }
  void complete(int64_t step, TimePoint now) { completed_ = step == step_ ? now : completed_; }

  // The step ends now; `epoch` has been in force since step `epoch_first_step`. Its record is to be
  // appended, at once or when more is known of it, in order.
  StepRecord end(TimePoint now, int64_t epoch, int64_t epoch_first_step);
  void append(const StepRecord& record);
  // Steps are numbered on from `step`, which other ranks have reached (after a join).
  void advance_to(int64_t step) { step_ = step > step_ ? step : step_; }
  // The script ends steps itself: stop looking for repetitions.
  void set_explicit() { explicit_ = true; }
  void set_paused(bool paused) { paused_ = paused; }

  // Worth draining: something is there and the last drain was 50 ms ago.
  bool wants_drain(TimePoint now) const;
  // `signatures` are those of steps that have come twice, each once.
  void drain(TimePoint now, std::vector<StepRecord>& records,
             std::vector<std::pair<int64_t, OperationSizes>>& signatures);

 private:
  void note_signature(int64_t signature);

  bool explicit_ = false;
  bool paused_ = false;
  int64_t step_ = 0;
  TimePoint step_start_;
  TimePoint last_drain_{};
  double exposed_us_ = 0;
  TimePoint handed_over_{}, completed_{};  // last, in this step
  int64_t payload_bytes_ = 0;
  int64_t samples_ = 0;
  uint64_t hash_ = 0;
  std::vector<SharedRequest> operations_;  // they are this step's
  std::pmr::unsynchronized_pool_resource pool_;
  std::pmr::unordered_set<NameKey, NameKeyHash> names_{&pool_};  // the operations have them
  PeriodFinder periods_;
  std::vector<StepRecord> records_;
  // It says whether a signature was told: a step that never comes again is not worth telling.
  std::unordered_map<int64_t, bool> is_told_;
  std::vector<std::pair<int64_t, OperationSizes>> new_signatures_;
};

}  // namespace autotune
