#include "engine/submission/steps.h"

#include <algorithm>
#include <functional>

namespace autotune {

namespace {

// A record of short steps is closed when it is this long.
constexpr double merged_us = 1000;
constexpr auto drain_interval = std::chrono::milliseconds(50);
// Nobody drains on ranks other than 0; the newest records are kept.
constexpr size_t max_records = 8192;
constexpr size_t max_new_signatures = 64;
constexpr size_t max_signatures = 4096;
// What a step that does not end is remembered of.
constexpr size_t most_operations = 100'000;
// Names that never come back would make a step that is found by repetition last for ever: it ends
// when they are so many.
constexpr size_t most_names = 1 << 14;

// Finaliser of SplitMix64: spreads the bits of `x`.
uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// What an operation is, apart from its name and from what may differ between steps.
uint64_t kind_hash(const Request& request) {
  uint64_t hash = mix((static_cast<uint64_t>(request.operation) * 2 + request.on_device) * 64 +
                      static_cast<uint64_t>(request.dtype));
  hash = mix(hash ^ static_cast<uint64_t>(request.process_set));
  for (size_t i = 0; i < request.shape.size(); ++i) {
    const bool rows_vary =
        request.operation == Operation::allgather || request.operation == Operation::alltoall;
    if (i == 0 && rows_vary) continue;
    hash = mix(hash ^ static_cast<uint64_t>(request.shape[i]));
  }
  return hash;
}

OperationSizes sizes_of(const std::vector<SharedRequest>& operations) {
  OperationSizes sizes;
  for (const SharedRequest& each : operations) {
    const std::string place = each->on_device ? "cuda " : "";
    sizes.emplace_back(place + name_of(each->operation), each->bytes());
  }
  return sizes;
}

}  // namespace

bool PeriodFinder::add(uint64_t element) {
  if (history_.empty()) {
    history_.resize(longest);
    matches_.resize(longest, 0);
  }
  const size_t known = static_cast<size_t>(std::min<uint64_t>(added_, longest));
  for (size_t p = 1; p <= known; ++p) {
    const bool same = history_[(added_ - p) % longest] == element;
    matches_[p - 1] = same ? matches_[p - 1] + 1 : 0;
  }
  history_[added_ % longest] = element;
  ++added_;
  if (period_ != 0) {
    if (matches_[period_ - 1] > 0) {
      position_ = (position_ + 1) % period_;
      return position_ == 0;
    }
    // The period was wrong (or the script went on to something else): ask for more evidence next
    // time.
    period_ = 0;
    needed_repeats_ = std::min<uint32_t>(needed_repeats_ * 2, 64);
  }
  for (size_t p = 1; p <= known; ++p) {
    if (matches_[p - 1] < std::max<uint32_t>(needed_repeats_ * static_cast<uint32_t>(p), 6))
      continue;
    period_ = p;
    position_ = 0;
    return true;
  }
  return false;
}

bool StepTracker::begins_step(const SharedRequest& request) {
  if (explicit_ || !moves_data(request->operation)) return false;
  if (!request->cacheable) return periods_.add(kind_hash(request));
  return names_.count(request.key()) != 0 || names_.size() >= most_names;
}

void StepTracker::add_operation(const SharedRequest& request) {
  if (!moves_data(request->operation)) return;
  payload_bytes_ += request->bytes();
  hash_ += mix(kind_hash(request));  // a sum: the order of operations does not matter
  const bool is_watched = !explicit_ && request->cacheable;
  if (is_watched || operations_.size() < most_operations) operations_.push_back(request);
  if (is_watched) names_.insert(request.key());
}

StepRecord StepTracker::end(TimePoint now, int64_t epoch, int64_t epoch_first_step) {
  if (completed_ > handed_over_) add_exposed(completed_ - handed_over_);
  StepRecord record;
  record.step = step_;
  record.count = 1;
  record.duration_us = std::chrono::duration<double, std::micro>(now - step_start_).count();
  record.payload_bytes = payload_bytes_;
  record.exposed_us = exposed_us_;
  record.samples = samples_;
  record.epoch = epoch_first_step <= step_ ? epoch : -1;
  // 53 bits: exact in JSON and SQLite everywhere; 0 is kept for paused steps.
  record.signature = paused_ ? 0 : static_cast<int64_t>((mix(hash_) >> 11) | 1);
  record.is_explicit = explicit_;
  if (!paused_) note_signature(record.signature);
  ++step_;
  step_start_ = now;
  exposed_us_ = 0;
  handed_over_ = completed_ = {};
  payload_bytes_ = 0;
  samples_ = 0;
  hash_ = 0;
  names_.clear();
  operations_.clear();
  return record;
}

void StepTracker::note_signature(int64_t signature) {
  if (is_told_.size() >= max_signatures) is_told_.clear();
  const auto [known, is_new] = is_told_.try_emplace(signature, false);
  if (names_.size() >= most_names) return;  // no step: it did not end by itself
  if (is_new || known->second || new_signatures_.size() >= max_new_signatures) return;
  known->second = true;
  new_signatures_.emplace_back(signature, sizes_of(operations_));
}

void StepTracker::append(const StepRecord& record) {
  if (!records_.empty()) {
    StepRecord& last = records_.back();
    if (last.duration_us < merged_us && last.epoch == record.epoch &&
        last.signature == record.signature && last.is_explicit == record.is_explicit &&
        record.duration_us < merged_us) {
      last.count += record.count;
      last.duration_us += record.duration_us;
      last.payload_bytes += record.payload_bytes;
      last.exposed_us += record.exposed_us;
      last.samples += record.samples;
      return;
    }
  }
  if (records_.size() >= max_records)
    records_.erase(records_.begin(), records_.begin() + max_records / 2);
  records_.push_back(record);
}

bool StepTracker::wants_drain(TimePoint now) const {
  return !records_.empty() && now - last_drain_ >= drain_interval;
}

void StepTracker::drain(TimePoint now, std::vector<StepRecord>& records,
                        std::vector<std::pair<int64_t, OperationSizes>>& signatures) {
  records.clear();
  signatures.clear();
  std::swap(records, records_);
  std::swap(signatures, new_signatures_);
  last_drain_ = now;
}

}  // namespace autotune
