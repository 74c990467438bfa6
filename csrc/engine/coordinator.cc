// What the ranks announce, until it is ready. What is sent then: coordinator_take.cc.
#include "engine/coordinator.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "common/errors.h"
#include "engine/negotiate.h"
#include "engine/timeline.h"

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
  Request request = entry.request;
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
      timeline_(timeline),
      sets_(size),
      directory_(params.cache_capacity),
      processed_(static_cast<size_t>(size), 0),
      joined_(static_cast<size_t>(size), false) {}

void Coordinator::propose(uint64_t epoch, const Params& params) {
  proposal_ = ParamsChange{epoch, 0, params};
}

void Coordinator::request_shutdown(const std::string& reason) {
  if (!shutdown_reason_) shutdown_reason_ = reason;
}

void Coordinator::add(int rank, const RequestList& list, TimePoint now) {
  if (list.shutdown) request_shutdown("rank " + std::to_string(rank) + " shut down");
  processed_[static_cast<size_t>(rank)] = list.processed;
  directory_.forget_before(*std::min_element(processed_.begin(), processed_.end()));
  newest_step_ = std::max(newest_step_, list.step);
  for (size_t word = 0; word < list.hit_bits.size(); ++word) {
    for (uint64_t bits = list.hit_bits[word]; bits != 0; bits &= bits - 1) {
      const auto slot = static_cast<int64_t>(word) * 64 + __builtin_ctzll(bits);
      add_hit(rank, slot, list.processed, list.step, now);
    }
  }
  for (const Request& request : list.requests) add_request(rank, request, list.step, now);
}

template <typename Announced>
bool Coordinator::is_complete(const ProcessSet& set, int count, Announced&& announced) const {
  if (count == set.size()) return true;
  if (joined_count_ == 0) return false;
  return std::all_of(set.ranks.begin(), set.ranks.end(), [&](int rank) {
    return joined_[static_cast<size_t>(rank)] || announced(static_cast<size_t>(rank));
  });
}

void Coordinator::add_hit(int rank, int64_t slot, uint64_t processed, int64_t step, TimePoint now) {
  const CacheEntry* entry = directory_.as_of(slot, processed);
  if (entry == nullptr) throw EngineError("negotiation: hit of an unknown cache slot");
  const ProcessSet* set = sets_.find(entry->request.process_set);
  if (set == nullptr) return;  // removed meanwhile; the rank learns that and fails it by itself
  const bool is_current =
      directory_.slot_of(entry->request.name) == slot && &directory_.current(slot) == entry;
  if (!is_current || pending_.count(entry->request.name)) {
    add_request(rank, request_of(*entry, set->position(rank)), step, now);
    return;
  }
  if (timeline_ != nullptr) timeline_->announced(entry->request, rank);
  if (hits_.size() <= static_cast<size_t>(slot)) hits_.resize(static_cast<size_t>(slot) + 1);
  Hits& hits = hits_[static_cast<size_t>(slot)];
  if (hits.count == 0) {
    hits.ranks.assign(static_cast<size_t>(size_), false);
    hits.since = now;
    hits.step = step;
    ++pending_hits_;
  }
  hits.ranks[static_cast<size_t>(rank)] = true;
  hits.step = std::max(hits.step, step);
  ++hits.count;
  if (is_complete(*set, hits.count, [&](size_t r) { return hits.ranks[r]; })) {
    complete_hits(slot, now);
  }
}

void Coordinator::add_request(int rank, Request request, int64_t step, TimePoint now) {
  const ProcessSet* set = sets_.find(request.process_set);
  if (set == nullptr) return;  // as in add_hit
  if (timeline_ != nullptr) timeline_->announced(request, rank);
  if (request.operation == Operation::join) return add_join(rank, request, step, now);
  const std::string name = request.name;
  hits_to_requests(directory_.slot_of(name));
  Pending& pending = pending_[name];
  if (pending.count == 0) {
    pending.requests.resize(static_cast<size_t>(size_));
    pending.process_set = request.process_set;
    pending.since = now;
  }
  pending.requests[static_cast<size_t>(rank)] = std::move(request);
  pending.step = std::max(pending.step, step);
  ++pending.count;
  const auto announced = [&](size_t r) { return pending.requests[r].has_value(); };
  if (is_complete(*set, pending.count, announced)) complete(name, now);
}

void Coordinator::hits_to_requests(int64_t slot) {
  if (slot < 0 || static_cast<size_t>(slot) >= hits_.size()) return;
  Hits& hits = hits_[static_cast<size_t>(slot)];
  if (hits.count == 0) return;
  const CacheEntry& entry = directory_.current(slot);
  const ProcessSet* set = sets_.find(entry.request.process_set);
  Pending& pending = pending_[entry.request.name];
  pending.requests.resize(static_cast<size_t>(size_));
  pending.process_set = entry.request.process_set;
  pending.since = hits.since;
  pending.step = hits.step;
  for (int rank = 0; rank < size_; ++rank) {
    if (!hits.ranks[static_cast<size_t>(rank)]) continue;
    pending.requests[static_cast<size_t>(rank)] = request_of(entry, set->position(rank));
    ++pending.count;
  }
  hits.count = 0;
  --pending_hits_;
}

void Coordinator::add_join(int rank, const Request& request, int64_t step, TimePoint now) {
  if (joined_count_ == 0) first_joined_ = now;
  joined_[static_cast<size_t>(rank)] = true;
  if (++joined_count_ < size_) return complete_what_joined_ranks_held_up(now);
  // Nothing is pending: what some ranks announced became ready when the others joined.
  complete_what_joined_ranks_held_up(now);
  if (timeline_ != nullptr) timeline_->negotiated(request.name);
  Ready ready;
  ready.response.operation = Operation::join;
  ready.response.root_rank = rank;
  ready.response.step = newest_step_;
  ready.response.items.resize(1);
  ready.response.items[0].name = request.name;
  ready.step = step;
  ready.since = first_joined_;
  ready.ready = now;
  ready_.push_back(std::move(ready));
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
  for (size_t slot = 0; slot < hits_.size(); ++slot) {
    const Hits& hits = hits_[slot];
    if (hits.count == 0) continue;
    const auto number = static_cast<int64_t>(slot);
    const ProcessSet& set = *sets_.find(directory_.current(number).request.process_set);
    if (is_complete(set, hits.count, [&](size_t r) { return hits.ranks[r]; })) {
      complete_hits(number, now);
    }
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
  Ready ready;
  ready.response = negotiate(announced, joined, size_);
  ready.step = pending.step;
  ready.since = pending.since;
  ready.ready = now;
  Request first = std::move(*pending.requests[static_cast<size_t>(announced[0].rank)]);
  ready.group = first.group;
  const std::vector<int64_t>& rows = ready.response.items[0].rows;
  ready.bytes = fused_bytes(first, rows);
  // The entry of the first member stands for all: the others differ in their rows only.
  if (ready.response.error.empty() && joined.empty() && is_cacheable(first)) {
    ready.remembered = CacheEntry{std::move(first), rows};
  }
  pending_.erase(found);
  change_process_sets(ready.response);
  ready_.push_back(std::move(ready));
}

void Coordinator::complete_hits(int64_t slot, TimePoint now) {
  Hits& hits = hits_[static_cast<size_t>(slot)];
  const Request& request = directory_.current(slot).request;
  if (hits.count < sets_.find(request.process_set)->size()) {
    const std::string name = request.name;
    hits_to_requests(slot);
    return complete(name, now);  // in full, for those that have joined
  }
  if (timeline_ != nullptr) timeline_->negotiated(request.name);
  Ready ready;
  ready.response = response_from_cache(slot);
  ready.bytes = fused_bytes(request, directory_.current(slot).rows);
  ready.step = hits.step;
  ready.group = request.group;
  ready.since = hits.since;
  ready.ready = now;
  ready_.push_back(std::move(ready));
  directory_.touch(slot);
  hits.count = 0;
  hits.ready = true;
  --pending_hits_;
}

Response Coordinator::response_from_cache(int64_t slot) const {
  Response response = response_to(directory_.current(slot).request);
  response.items.resize(1);
  response.items[0].cache_slot = slot;
  response.items[0].from_cache = true;
  return response;
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
  for (size_t slot = 0; slot < hits_.size(); ++slot) {
    if (hits_[slot].count == 0) continue;
    const Request& request = directory_.current(static_cast<int64_t>(slot)).request;
    if (request.process_set != process_set) continue;
    const auto& ranks = hits_[slot].ranks;
    return text(request,
                static_cast<size_t>(std::find(ranks.begin(), ranks.end(), true) - ranks.begin()));
  }
  return "";
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
                     now - pending.since});
  }
  for (size_t slot = 0; slot < hits_.size(); ++slot) {
    const Hits& hits = hits_[slot];
    if (hits.count == 0 || now - hits.since < age) continue;
    const Request& request = directory_.current(static_cast<int64_t>(slot)).request;
    found.push_back({request.name, request.operation,
                     missing(request.process_set, [&](size_t r) { return hits.ranks[r]; }),
                     now - hits.since});
  }
  return found;
}

}  // namespace autotune
