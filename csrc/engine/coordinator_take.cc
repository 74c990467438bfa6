// What is ready becomes response lists: fusion, cache slots, parameter changes.
#include <algorithm>
#include <utility>

#include "engine/coordinator.h"
#include "engine/fusion.h"
#include "engine/result_check.h"

namespace autotune {

std::vector<ResponseList> Coordinator::take() {
  std::vector<ResponseList> lists;
  while (!ready_.empty()) lists.push_back(take_run(change_is_due()));
  if (shutdown_reason_) {
    ResponseList last;
    last.shutdown = true;
    last.shutdown_reason = *shutdown_reason_;
    ++lists_sent_;
    lists.push_back(std::move(last));
  }
  return lists;
}

bool Coordinator::change_is_due() const { return proposal_ && ready_.front().step > last_step_; }

// One response list from the front of `ready_`: all of it, or up to where a parameter change is
// due.
ResponseList Coordinator::take_run(bool with_change) {
  ResponseList list;
  if (with_change) apply_change(list);
  std::vector<Ready> run;
  while (!ready_.empty() && !change_is_due()) {
    last_step_ = std::max(last_step_, ready_.front().step);
    choose_check(ready_.front());
    run.push_back(std::move(ready_.front()));
    ready_.pop_front();
  }
  for (Ready& ready : run) {
    add_skew(ready.since, ready.ready);
    remember(ready);
  }
  std::vector<FusionCandidate> candidates;
  candidates.reserve(run.size());
  for (const Ready& ready : run) {
    candidates.push_back({&ready.response, ready.bytes, ready.step, ready.group});
  }
  for (const auto& group : plan_fusion(candidates, params_.fusion_threshold_bytes)) {
    Response response = std::move(run[group[0]].response);
    for (size_t i = 1; i < group.size(); ++i) {
      response.items.push_back(std::move(run[group[i]].response.items[0]));
    }
    for (size_t i = 0; i < group.size(); ++i) {
      if (run[group[i]].check) response.check = static_cast<int32_t>(i);
    }
    list.responses.push_back(std::move(response));
  }
  ++lists_sent_;
  return list;
}

// Tensors overlap: every moment counts once.
void Coordinator::add_skew(TimePoint since, TimePoint ready) {
  const TimePoint begin = std::max(since, skew_counted_until_);
  if (ready > begin) skew_ += ready - begin;
  skew_counted_until_ = std::max(skew_counted_until_, ready);
}

// Of sets with rank 0 only: it reports the result.
void Coordinator::choose_check(Ready& ready) {
  if (!is_checkable(ready.response)) return;
  const ProcessSet* set = sets_.find(ready.response.process_set);
  if (set == nullptr || set->size() == 1 || !set->contains(0)) return;
  if (ready.step > counted_step_) {
    counted_step_ = ready.step;
    checkable_count_ = 0;
  }
  ready.check = ready.step == checked_step_ && checkable_count_ == checked_place_;
  if (ready.check) checked_step_ = -1;
  ++checkable_count_;
}

void Coordinator::remember(Ready& ready) {
  ResponseItem& item = ready.response.items[0];
  if (item.from_cache) hits_[static_cast<size_t>(item.cache_slot)].ready = false;
  if (!ready.remembered) return;
  const auto in_use = [this](int64_t slot) {
    if (static_cast<size_t>(slot) >= hits_.size()) return false;
    const Hits& hits = hits_[static_cast<size_t>(slot)];
    return hits.count > 0 || hits.ready;
  };
  item.cache_slot = directory_.insert(std::move(*ready.remembered), lists_sent_ + 1, in_use);
}

void Coordinator::apply_change(ResponseList& list) {
  proposal_->first_step = ready_.front().step;
  checked_step_ = proposal_->first_step;
  checked_place_ =
      checks_++ % std::max<int64_t>(checkable_count_, 1);  // as many as the step before
  list.change = proposal_;
  params_ = proposal_->params;
  proposal_.reset();
  if (params_.cache_capacity < directory_.size()) {
    for (size_t slot = 0; slot < hits_.size(); ++slot) hits_to_requests(static_cast<int64_t>(slot));
  }
  list.evicted_slots = directory_.resize(params_.cache_capacity);
  name_items_of(list.evicted_slots);
}

// Ready responses must not refer to slots that are gone when they arrive.
void Coordinator::name_items_of(const std::vector<int64_t>& evicted_slots) {
  if (evicted_slots.empty()) return;
  std::vector<bool> gone(hits_.size(), false);
  for (int64_t slot : evicted_slots) {
    if (static_cast<size_t>(slot) < gone.size()) gone[static_cast<size_t>(slot)] = true;
  }
  for (Ready& ready : ready_) {
    ResponseItem& item = ready.response.items[0];
    if (!item.from_cache || !gone[static_cast<size_t>(item.cache_slot)]) continue;
    hits_[static_cast<size_t>(item.cache_slot)].ready = false;
    const CacheEntry& entry = directory_.current(item.cache_slot);
    item.name = entry.request.name;
    item.rows = entry.rows;
    item.from_cache = false;
    item.cache_slot = -1;
  }
}

}  // namespace autotune
