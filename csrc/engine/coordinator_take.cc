// What is ready becomes response lists: fusion, cache slots, parameter changes.
#include <algorithm>
#include <utility>

#include "engine/coordinator.h"

namespace autotune {

void Coordinator::take(std::vector<ResponseList>& lists) {
  while (taken_ < ready_.size()) lists.push_back(take_run(change_is_due()));
  ready_.clear();
  taken_ = 0;
  if (shutdown_reason_) {
    ResponseList last;
    last.shutdown = true;
    last.shutdown_reason = *shutdown_reason_;
    ++lists_sent_;
    lists.push_back(std::move(last));
  }
}

bool Coordinator::change_is_due() const { return proposal_ && ready_[taken_].step > last_step_; }

const Coordinator::Decision& Coordinator::decision_about(const Ready& ready) const {
  return ready.uncached ? ready.uncached->decision : decisions_[static_cast<size_t>(ready.slot)];
}

// One response list from what is ready: all of it, or up to where a parameter change is due.
ResponseList Coordinator::take_run(bool with_change) {
  directory_.forget_before(*std::min_element(processed_.begin(), processed_.end()));
  ResponseList list = pool_.take_list();
  if (with_change) apply_change(list);
  Ready* const run = ready_.data() + taken_;
  size_t count = 0;
  for (; taken_ < ready_.size() && !change_is_due(); ++taken_, ++count) {
    last_step_ = std::max(last_step_, run[count].step);
    choose_check(run[count]);
    add_skew(run[count].since, run[count].ready);
  }
  for (size_t i = 0; i < count; ++i) {
    if (run[i].uncached) remember(run[i]);
  }
  candidates_.clear();
  for (size_t i = 0; i < count; ++i) {
    const Decision& decision = decision_about(run[i]);
    candidates_.push_back({&decision.response, decision.bytes, run[i].step, decision.group});
  }
  fusion_.make(candidates_, params_.fusion_threshold_bytes);
  for (size_t i = 0; i < fusion_.size(); ++i) {
    list.responses.push_back(fuse(run, fusion_.group(i)));
  }
  for (size_t i = 0; i < count; ++i) {
    if (run[i].slot >= 0) hits_.set_ready(run[i].slot, false);
  }
  ++lists_sent_;
  return list;
}

Response Coordinator::fuse(Ready* run, const std::vector<size_t>& members) {
  Ready& first = run[members[0]];
  Response response = pool_.take();
  if (first.uncached) {
    response = std::move(first.uncached->decision.response);
  } else {
    response = decision_about(first).response;
  }
  response.items.reserve(members.size());
  for (size_t i = 0; i < members.size(); ++i) {
    const Ready& member = run[members[i]];
    if (member.check) response.check = static_cast<int32_t>(i);
    if (member.uncached) {
      if (i == 0) continue;
      response.items.push_back(std::move(member.uncached->decision.response.items[0]));
    } else {
      response.items.emplace_back();
      response.items.back().cache_slot = member.slot;
      response.items.back().from_cache = true;
    }
  }
  return response;
}

// Tensors overlap: every moment counts once.
void Coordinator::add_skew(TimePoint since, TimePoint ready) {
  const TimePoint begin = std::max(since, skew_counted_until_);
  if (ready > begin) skew_ += ready - begin;
  skew_counted_until_ = std::max(skew_counted_until_, ready);
}

void Coordinator::choose_check(Ready& ready) {
  if (!decision_about(ready).is_checkable) return;
  if (ready.step > counted_step_) {
    counted_step_ = ready.step;
    checkable_count_ = 0;
  }
  ready.check = ready.step == checked_step_ && checkable_count_ == checked_place_;
  if (ready.check) checked_step_ = -1;
  ++checkable_count_;
}

// Slots whose tensor is pending or in this list keep it: fusion changes the order of a list, and so
// which of two tensors would have a slot last.
void Coordinator::remember(Ready& ready) {
  Uncached& uncached = *ready.uncached;
  if (!uncached.remembered) return;
  Decision decision = uncached.decision;
  ResponseItem& item = uncached.decision.response.items[0];
  const auto in_use = [this](int64_t slot) {
    const HitTable::Word& word = hits_.word(word_of(slot));
    return ((word.open | word.ready) & bit_of(slot)) != 0;
  };
  item.cache_slot = directory_.insert(std::move(*uncached.remembered), lists_sent_ + 1, in_use);
  if (item.cache_slot < 0) return;
  ready.slot = item.cache_slot;
  hits_.grow_to(ready.slot);
  hits_.set_ready(ready.slot, true);
  hits_.set_requested(ready.slot, pending_.count(item.name) > 0);
  decision.response.items.clear();
  const auto index = static_cast<size_t>(ready.slot);
  if (decisions_.size() <= index) decisions_.resize(index + 1);
  decisions_[index] = std::move(decision);
}

void Coordinator::apply_change(ResponseList& list) {
  proposal_->first_step = ready_[taken_].step;
  checked_step_ = proposal_->first_step;
  checked_place_ =
      checks_++ % std::max<int64_t>(checkable_count_, 1);  // as many as the step before
  list.change = proposal_;
  params_ = proposal_->params;
  proposal_.reset();
  if (params_.cache_capacity < directory_.size()) {
    hits_.for_each_open([this](int64_t slot) { hits_to_requests(slot); });
  }
  list.evicted_slots = directory_.resize(params_.cache_capacity);
  name_items_of(list.evicted_slots);
}

// Ready responses must not refer to slots that are gone when they arrive.
void Coordinator::name_items_of(const std::vector<int64_t>& evicted_slots) {
  if (evicted_slots.empty()) return;
  std::vector<bool> gone(hits_.words() * 64, false);
  for (int64_t slot : evicted_slots) {
    gone[static_cast<size_t>(slot)] = true;
    hits_.set_ready(slot, false);
    hits_.set_requested(slot, false);
  }
  for (size_t i = taken_; i < ready_.size(); ++i) {
    Ready& ready = ready_[i];
    if (ready.uncached || !gone[static_cast<size_t>(ready.slot)]) continue;
    const CacheEntry& entry = directory_.current(ready.slot);
    ready.uncached = std::make_unique<Uncached>();
    ready.uncached->decision = decisions_[static_cast<size_t>(ready.slot)];
    ResponseItem item;
    item.name = entry.request->name;
    item.rows = entry.rows;
    ready.uncached->decision.response.items.push_back(std::move(item));
  }
}

}  // namespace autotune
