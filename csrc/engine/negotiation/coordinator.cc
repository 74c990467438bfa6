#include "engine/negotiation/coordinator.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "common/errors.h"
#include "engine/negotiation/negotiate.h"
#include "engine/operation/request_check.h"
#include "engine/timeline/timeline.h"

namespace autotune {

namespace {

// Payload that fusion counts: what one rank's buffer has to hold.
int64_t fused_bytes(const Request& request, const std::vector<int64_t>& rows) {
  if (request.operation != Operation::allgather || request.shape.empty())
    return request.wire_bytes();
  Shape gathered = request.shape;
  gathered[0] = std::accumulate(rows.begin(), rows.end(), int64_t{0});
  return element_count(gathered) * static_cast<int64_t>(size_of(request.dtype));
}

// The request that the rank at `position` of the set made when `entry` was agreed.
Request request_of(const CacheEntry& entry, int position) {
  Request request = *entry.request;
  const auto place = static_cast<std::ptrdiff_t>(position);
  if (request.operation == Operation::allgather) {
    request.shape[0] = *(entry.rows.begin() + place);
  } else if (request.operation == Operation::alltoall) {
    const auto size = static_cast<std::ptrdiff_t>(request.splits.size());
    const auto row = entry.rows.begin() + place * size;
    request.splits.assign(row, row + size);
    request.shape[0] = std::accumulate(row, row + size, int64_t{0});
  }
  return request;
}

bool is_cacheable(const Request& request) {
  return request.cacheable && moves_data(request.operation);
}

}  // namespace

Coordinator::Coordinator(int size, const Params& params, Timeline* timeline)
    : size_(size),
      params_(params),
      sets_(size),
      processed_(static_cast<size_t>(size), 0),
      announced_(static_cast<size_t>(size), 0),
      joined_(static_cast<size_t>(size), false),
      hits_(size),
      directory_(params.cache_capacity),
      timeline_(timeline) {}

void Coordinator::propose(uint64_t epoch, const Params& params) {
  proposal_ = ParamsChange{epoch, 0, params};
}

void Coordinator::add(int rank, const RequestList& list, TimePoint now) {
  check_list(rank, list);
  if (list.shutdown) ended_.push_back(rank);
  processed_[static_cast<size_t>(rank)] = list.processed;
  newest_step_ = std::max(newest_step_, list.step);
  int64_t& announced = announced_[static_cast<size_t>(rank)];
  announced += static_cast<int64_t>(list.requests.size());
  for (size_t word = 0; word < list.hit_bits.size(); ++word) {
    if (list.hit_bits[word] == 0) continue;
    announced += __builtin_popcountll(list.hit_bits[word]);
    add_hits(rank, word, list.hit_bits[word], list, now);
  }
  for (const Request& request : list.requests) {
    if (check_request_of(rank, request)) add_request(rank, request, list.step, now);
  }
}

// ---------------------------------------------------------------- what a rank cannot have said

void Coordinator::refuse(int rank, const std::string& what) {
  throw EngineError("negotiation: rank " + std::to_string(rank) + " announced " + what +
                    "; does it run the same version of this package?");
}

void Coordinator::check_list(int rank, const RequestList& list) const {
  if (rank < 0 || rank >= size_) refuse(rank, "something, of " + std::to_string(size_) + " ranks");
  if (list.processed <= lists_sent_) return;
  refuse(rank, "that it has processed " + std::to_string(list.processed) + " response lists, of " +
                   std::to_string(lists_sent_));
}

// False where the set was removed meanwhile; the rank learns that and fails the operation by
// itself.
bool Coordinator::check_request_of(int rank, const Request& request) const {
  const int32_t id = request.process_set;
  const ProcessSet* set = sets_.find(id);
  if (set == nullptr) {
    if (id < next_set_id_) return false;
    refuse(rank, describe(request) + " of process set " + std::to_string(id) +
                     ", which there has never been");
  }
  if (!set->contains(rank)) refuse_other_set(rank, request);
  if (request.operation == Operation::remove_process_set && request.root_rank >= next_set_id_) {
    refuse(rank, describe(request) + " of a process set that there has never been, " +
                     std::to_string(request.root_rank));
  }
  try {
    check_request(request, *set, size_);
  } catch (const InvalidRequest& error) {
    refuse(rank, std::string("what no rank may: ") + error.what());
  }
  return true;
}

void Coordinator::refuse_other_set(int rank, const Request& request) {
  refuse(rank, describe(request) + " of a process set that it is not in");
}

// Of hits of what the slots hold now.
void Coordinator::check_hits(int rank, size_t word, uint64_t bits) const {
  const uint64_t twice = bits & (hits_.hits_of(rank, word) | hits_.word(word).ready);
  if (twice == 0) return;
  const int64_t slot = static_cast<int64_t>(word * 64) + __builtin_ctzll(twice);
  refuse(rank, describe(directory_.current(slot).request) + " twice");
}

// ---------------------------------------------------------------- what ranks announce

template <typename Announced>
bool Coordinator::is_complete(const ProcessSet& set, int count, Announced&& announced) const {
  if (count == set.size()) return true;
  if (joined_count_ == 0) return false;
  return std::all_of(set.ranks.begin(), set.ranks.end(), [&](int rank) {
    return joined_[static_cast<size_t>(rank)] || announced(static_cast<size_t>(rank));
  });
}

// Hits that mean what the slots hold now, of tensors that nobody has sent a whole request for, are
// counted a word at a time; where there are others in the word, each by itself.
void Coordinator::add_hits(int rank, size_t word, uint64_t bits, const RequestList& list,
                           TimePoint now) {
  uint64_t plain = directory_.current_slots(word, list.processed);
  if (plain != 0) plain &= ~hits_.word(word).requested;
  if ((bits & ~plain) == 0) return add_current_hits(rank, word, bits, list.step, now);
  for_each_slot(word, bits, [&](int64_t slot) {
    if ((plain & bit_of(slot)) != 0) {
      add_current_hits(rank, word, bit_of(slot), list.step, now);
    } else {
      add_old_hit(rank, slot, list, now);
    }
  });
}

// As if the rank had sent the whole request.
void Coordinator::add_old_hit(int rank, int64_t slot, const RequestList& list, TimePoint now) {
  const CacheEntry* entry = directory_.as_of(slot, list.processed);
  if (entry == nullptr) refuse(rank, "cache slot " + std::to_string(slot) + ", which is empty");
  const ProcessSet* set = sets_.find(entry->request->process_set);
  if (set == nullptr) return;  // as in check_request_of
  if (!set->contains(rank)) refuse_other_set(rank, entry->request);
  add_request(rank, request_of(*entry, set->position(rank)), list.step, now);
}

void Coordinator::add_current_hits(int rank, size_t word, uint64_t bits, int64_t step,
                                   TimePoint now) {
  check_hits(rank, word, bits);
  if ((bits & directory_.slots_of_sets(word)) != 0) prepare_slots_of_sets(rank, word, bits);
  if (timeline_ != nullptr && timeline_->on()) {
    for_each_slot(word, bits, [&](int64_t slot) {
      timeline_->announced(directory_.current(slot).request, rank);
    });
  }
  hits_.add(rank, word, bits, step, now);
  complete_hits(word, bits, now);
}

// Of sets that some ranks are not in, or that do not exist any more.
void Coordinator::prepare_slots_of_sets(int rank_that_hits, size_t word, uint64_t& bits) {
  for_each_slot(word, bits & directory_.slots_of_sets(word), [&](int64_t slot) {
    const Request& request = directory_.current(slot).request;
    const ProcessSet* set = sets_.find(request.process_set);
    if (set == nullptr) {
      bits &= ~bit_of(slot);  // as in check_request_of
      return;
    }
    if (!set->contains(rank_that_hits)) refuse_other_set(rank_that_hits, request);
    if (hits_.is_open(slot)) return;
    for (int rank = 0; rank < size_; ++rank) {
      if (!set->contains(rank)) hits_.leave_out(rank, slot);
    }
  });
}

void Coordinator::add_request(int rank, Request request, int64_t step, TimePoint now) {
  const ProcessSet& set = *sets_.find(request.process_set);
  if (timeline_ != nullptr) timeline_->announced(request, rank);
  if (request.operation == Operation::join) return add_join(rank, request, step, now);
  const std::string name = request.name;
  const int64_t slot = directory_.slot_of(name);
  if (slot >= 0 && hits_.is_open(slot)) hits_to_requests(slot);
  Pending& pending = pending_[name];
  if (pending.count == 0) {
    if (slot >= 0) hits_.set_requested(slot, true);
    pending.requests.resize(static_cast<size_t>(size_));
    pending.process_set = request.process_set;
    pending.since = now;
  }
  std::optional<Request>& own = pending.requests[static_cast<size_t>(rank)];
  if (own) refuse(rank, describe(request) + " twice");
  own = std::move(request);
  pending.step = std::max(pending.step, step);
  ++pending.count;
  const auto announced = [&](size_t r) { return pending.requests[r].has_value(); };
  if (is_complete(set, pending.count, announced)) complete(name, now);
}

void Coordinator::hits_to_requests(int64_t slot) {
  const CacheEntry& entry = directory_.current(slot);
  const ProcessSet& set = set_of(slot);
  Pending& pending = pending_[entry.request->name];
  pending.requests.resize(static_cast<size_t>(size_));
  pending.process_set = entry.request->process_set;
  pending.since = hits_.since(slot);
  pending.step = hits_.step(slot);
  for (size_t position = 0; position < set.ranks.size(); ++position) {
    const int rank = set.ranks[position];
    if (!hits_.is_hit(slot, rank)) continue;
    pending.requests[static_cast<size_t>(rank)] = request_of(entry, static_cast<int>(position));
    ++pending.count;
  }
  hits_.close(word_of(slot), bit_of(slot));
  hits_.set_requested(slot, true);
}

void Coordinator::add_join(int rank, const Request& request, int64_t step, TimePoint now) {
  if (joined_[static_cast<size_t>(rank)]) refuse(rank, describe(request) + " twice");
  if (joined_count_ == 0) first_joined_ = now;
  joined_[static_cast<size_t>(rank)] = true;
  if (++joined_count_ < size_) return complete_what_joined_ranks_held_up(now);
  // Nothing is pending: what some ranks announced became ready when the others joined.
  complete_what_joined_ranks_held_up(now);
  if (timeline_ != nullptr) timeline_->negotiated(request.name);
  auto uncached = std::make_unique<Uncached>();
  Response& response = uncached->decision.response;
  response.operation = Operation::join;
  response.root_rank = rank;
  response.step = newest_step_;
  response.items.resize(1);
  response.items[0].name = request.name;
  ready_.push_back({-1, std::move(uncached), step, false, first_joined_, now});
  joined_.assign(joined_.size(), false);
  joined_count_ = 0;
}

void Coordinator::complete_what_joined_ranks_held_up(TimePoint now) {
  std::vector<std::pair<TimePoint, std::string>> names;  // in the order of announcement
  for (const auto& [name, pending] : pending_) {
    const auto announced = [&requests = pending.requests](size_t r) {
      return requests[r].has_value();
    };
    const ProcessSet& set = *sets_.find(pending.process_set);
    if (is_complete(set, pending.count, announced)) names.emplace_back(pending.since, name);
  }
  std::sort(names.begin(), names.end());
  for (const auto& [since, name] : names) complete(name, now);
  for (size_t word = 0; word < hits_.words(); ++word) {
    if (hits_.word(word).open != 0) complete_hits(word, hits_.word(word).open, now);
  }
}

void Coordinator::complete(const std::string& name, TimePoint now) {
  if (timeline_ != nullptr) timeline_->negotiated(name);
  auto found = pending_.find(name);
  Pending& pending = found->second;
  std::vector<Announced> announced;
  std::vector<int> joined;
  for (int rank : sets_.find(pending.process_set)->ranks) {
    const std::optional<Request>& request = pending.requests[static_cast<size_t>(rank)];
    if (request) {
      announced.push_back({rank, &*request});
    } else {
      joined.push_back(rank);
    }
  }
  auto uncached = std::make_unique<Uncached>();
  Decision& decision = uncached->decision;
  decision.response = negotiate(announced, joined, size_);
  Request first = std::move(*pending.requests[static_cast<size_t>(announced[0].rank)]);
  const std::vector<int64_t>& rows = decision.response.items[0].rows;
  decision.group = first.group;
  decision.bytes = fused_bytes(first, rows);
  decision.is_checkable = is_checkable(decision.response) && is_checkable_set(pending.process_set);
  // The entry of the first member stands for all: the others differ in their rows only.
  if (decision.response.error.empty() && joined.empty() && is_cacheable(first)) {
    uncached->remembered = CacheEntry{std::move(first), rows};
  }
  const int64_t slot = directory_.slot_of(name);
  if (slot >= 0) hits_.set_requested(slot, false);
  const int64_t step = pending.step;
  const TimePoint since = pending.since;
  pending_.erase(found);
  change_process_sets(decision.response);
  ready_.push_back({-1, std::move(uncached), step, false, since, now});
}

// Those of the open slots `bits` that nobody is waited for any more.
void Coordinator::complete_hits(size_t word, uint64_t bits, TimePoint now) {
  bits = hits_.complete(word, bits, joined_);
  if (bits == 0) return;
  for_each_slot(word, bits, [&](int64_t slot) { complete_hit(slot, now); });
  hits_.close(word, bits & hits_.word(word).open);
}

void Coordinator::complete_hit(int64_t slot, TimePoint now) {
  const std::string& name = directory_.current(slot).request->name;
  const auto is_hit = [&](int rank) { return hits_.is_hit(slot, rank); };
  const std::vector<int>& ranks = set_of(slot).ranks;
  if (joined_count_ > 0 && !std::all_of(ranks.begin(), ranks.end(), is_hit)) {
    hits_to_requests(slot);
    return complete(name, now);  // in full, for those that have joined
  }
  if (timeline_ != nullptr) timeline_->negotiated(name);
  ready_.push_back({slot, nullptr, hits_.step(slot), false, hits_.since(slot), now});
  hits_.set_ready(slot, true);
  directory_.touch(slot);
}

// Rank 0 reports whether a result is right.
bool Coordinator::is_checkable_set(int32_t process_set) const {
  const ProcessSet* set = sets_.find(process_set);
  return set != nullptr && set->size() > 1 && set->contains(0);
}

const ProcessSet& Coordinator::set_of(int64_t slot) const {
  return *sets_.find(directory_.current(slot).request->process_set);
}

// When all ranks have agreed on a set: give it a number, or forget it.
void Coordinator::change_process_sets(Response& response) {
  if (!response.error.empty()) return;
  const std::vector<int64_t>& values = response.items[0].rows;
  if (response.operation == Operation::add_process_set) {
    response.root_rank = next_set_id_++;
    sets_.add(response.root_rank, std::vector<int>(values.begin(), values.end()));
  } else if (response.operation == Operation::remove_process_set) {
    const std::string busy = in_flight_of(response.root_rank);
    if (busy.empty()) return sets_.remove(response.root_rank);
    response.error = "remove_process_set of " + std::to_string(response.root_rank) +
                     " failed: expected no operation of the set in flight, got " + busy +
                     "; wait for it on all ranks of the set first";
  }
}

// One operation of the set that only some ranks have announced, for people; "" when there is none.
std::string Coordinator::in_flight_of(int32_t process_set) const {
  const auto text = [](const Request& request, size_t rank) {
    return describe(request) + " on rank " + std::to_string(rank);
  };
  for (const auto& [name, pending] : pending_) {
    if (pending.process_set != process_set) continue;
    for (size_t rank = 0; rank < pending.requests.size(); ++rank) {
      if (pending.requests[rank]) return text(*pending.requests[rank], rank);
    }
  }
  std::string found;
  hits_.for_each_open([&](int64_t slot) {
    const Request& request = directory_.current(slot).request;
    if (request.process_set != process_set || !found.empty()) return;
    const std::vector<int>& ranks = set_of(slot).ranks;
    const auto is_hit = [&](int rank) { return hits_.is_hit(slot, rank); };
    found = text(request, static_cast<size_t>(*std::find_if(ranks.begin(), ranks.end(), is_hit)));
  });
  return found;
}

template <typename Announced>
std::vector<int> Coordinator::missing(int32_t process_set, Announced&& announced) const {
  std::vector<int> ranks;
  for (int rank : sets_.find(process_set)->ranks) {
    const auto index = static_cast<size_t>(rank);
    if (!announced(index) && !joined_[index]) ranks.push_back(rank);
  }
  return ranks;
}

std::vector<Stalled> Coordinator::stalled(TimePoint now, std::chrono::duration<double> age) const {
  std::vector<Stalled> found;
  for (const auto& [name, pending] : pending_) {
    if (now - pending.since < age) continue;
    const auto& requests = pending.requests;
    const auto known = std::find_if(requests.begin(), requests.end(),
                                    [](const auto& request) { return request.has_value(); });
    found.push_back({name, (*known)->operation,
                     missing(pending.process_set, [&](size_t r) { return bool(requests[r]); }),
                     now - pending.since, moves_data((*known)->operation) && !(*known)->cacheable});
  }
  hits_.for_each_open([&](int64_t slot) {
    const TimePoint since = hits_.since(slot);
    if (now - since < age) return;
    const Request& request = directory_.current(slot).request;
    const auto is_hit = [&](size_t rank) { return hits_.is_hit(slot, static_cast<int>(rank)); };
    found.push_back(
        {request.name, request.operation, missing(request.process_set, is_hit), now - since});
  });
  return found;
}

// ---------------------------------------------------------------- what is ready becomes responses

void Coordinator::take(std::vector<ResponseList>& lists) {
  while (taken_ < ready_.size()) lists.push_back(take_run(change_is_due()));
  ready_.clear();
  taken_ = 0;
  if (!ended_.empty()) {
    ResponseList last;
    last.shutdown = true;
    last.shutdown_reason = who_ended();
    ++lists_sent_;
    lists.push_back(std::move(last));
  }
}

std::string Coordinator::who_ended() const {
  std::string text;
  for (int rank : ended_) {
    text += (text.empty() ? "rank " : ", rank ") + std::to_string(rank) + " shut down after " +
            std::to_string(announced_[static_cast<size_t>(rank)]) + " operations";
  }
  return text;
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
