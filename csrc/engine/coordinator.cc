#include "engine/coordinator.h"

#include <algorithm>
#include <utility>

#include "common/errors.h"
#include "engine/fusion.h"
#include "engine/timeline.h"

namespace autotune {

namespace {

// Payload that fusion counts: what one rank's buffer has to hold.
int64_t fused_bytes(const Request& request, const std::vector<int64_t>& first_dims) {
  if (request.operation != Operation::allgather || request.shape.empty()) return request.bytes();
  int64_t rows = 0;
  for (int64_t dim : first_dims) rows += dim;
  Shape gathered = request.shape;
  gathered[0] = rows;
  return element_count(gathered) * static_cast<int64_t>(size_of(request.dtype));
}

// The request that rank `rank` made when `entry` was agreed.
Request request_of(const CacheEntry& entry, int rank) {
  Request request = entry.request;
  if (!entry.first_dims.empty()) request.shape[0] = entry.first_dims[static_cast<size_t>(rank)];
  return request;
}

}  // namespace

Coordinator::Coordinator(int size, const Params& params, Timeline* timeline)
    : size_(size),
      params_(params),
      timeline_(timeline),
      directory_(params.cache_capacity),
      processed_(static_cast<size_t>(size), 0) {}

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
  for (size_t word = 0; word < list.hit_bits.size(); ++word) {
    for (uint64_t bits = list.hit_bits[word]; bits != 0; bits &= bits - 1) {
      const auto slot = static_cast<int64_t>(word) * 64 + __builtin_ctzll(bits);
      add_hit(rank, slot, list.processed, list.step, now);
    }
  }
  for (const Request& request : list.requests) add_request(rank, request, list.step, now);
}

void Coordinator::add_hit(int rank, int64_t slot, uint64_t processed, int64_t step, TimePoint now) {
  const CacheEntry* entry = directory_.as_of(slot, processed);
  if (entry == nullptr) throw EngineError("negotiation: hit of an unknown cache slot");
  const bool is_current =
      directory_.slot_of(entry->request.name) == slot && &directory_.current(slot) == entry;
  if (!is_current || pending_.count(entry->request.name)) {
    add_request(rank, request_of(*entry, rank), step, now);
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
  if (++hits.count == size_) complete_hits(slot, now);
}

void Coordinator::add_request(int rank, Request request, int64_t step, TimePoint now) {
  if (timeline_ != nullptr) timeline_->announced(request, rank);
  const std::string name = request.name;
  hits_to_requests(directory_.slot_of(name));
  Pending& pending = pending_[name];
  if (pending.count == 0) {
    pending.requests.resize(static_cast<size_t>(size_));
    pending.since = now;
  }
  pending.requests[static_cast<size_t>(rank)] = std::move(request);
  pending.step = std::max(pending.step, step);
  if (++pending.count == size_) complete(name, now);
}

void Coordinator::hits_to_requests(int64_t slot) {
  if (slot < 0 || static_cast<size_t>(slot) >= hits_.size()) return;
  Hits& hits = hits_[static_cast<size_t>(slot)];
  if (hits.count == 0) return;
  const CacheEntry& entry = directory_.current(slot);
  Pending& pending = pending_[entry.request.name];
  pending.requests.resize(static_cast<size_t>(size_));
  pending.since = hits.since;
  pending.step = hits.step;
  for (int rank = 0; rank < size_; ++rank) {
    if (!hits.ranks[static_cast<size_t>(rank)]) continue;
    pending.requests[static_cast<size_t>(rank)] = request_of(entry, rank);
    ++pending.count;
  }
  hits.count = 0;
  --pending_hits_;
}

void Coordinator::complete(const std::string& name, TimePoint now) {
  if (timeline_ != nullptr) timeline_->negotiated(name);
  auto found = pending_.find(name);
  Pending& pending = found->second;
  std::vector<Request> requests;
  requests.reserve(pending.requests.size());
  for (auto& request : pending.requests) requests.push_back(std::move(*request));
  Ready ready{negotiate(requests), 0, pending.step, pending.since, now, {}};
  const std::vector<int64_t>& first_dims = ready.response.items[0].first_dims;
  ready.bytes = fused_bytes(requests[0], first_dims);
  const bool cacheable = ready.response.error.empty() && requests[0].cacheable &&
                         requests[0].operation != Operation::barrier;
  // The entry of rank 0 stands for all: the others differ in the first dimension only.
  if (cacheable) ready.remembered = CacheEntry{std::move(requests[0]), first_dims};
  pending_.erase(found);
  ready_.push_back(std::move(ready));
}

void Coordinator::complete_hits(int64_t slot, TimePoint now) {
  Hits& hits = hits_[static_cast<size_t>(slot)];
  const CacheEntry& entry = directory_.current(slot);
  if (timeline_ != nullptr) timeline_->negotiated(entry.request.name);
  ready_.push_back({response_from_cache(slot),
                    fused_bytes(entry.request, entry.first_dims),
                    hits.step,
                    hits.since,
                    now,
                    {}});
  directory_.touch(slot);
  hits.count = 0;
  hits.ready = true;
  --pending_hits_;
}

Response Coordinator::response_from_cache(int64_t slot) const {
  const CacheEntry& entry = directory_.current(slot);
  Response response;
  response.operation = entry.request.operation;
  response.dtype = entry.request.dtype;
  response.reduce_op = entry.request.reduce_op;
  response.root_rank = entry.request.root_rank;
  response.prescale = entry.request.prescale;
  response.postscale = entry.request.postscale;
  ResponseItem item;
  item.name = entry.request.name;
  item.cache_slot = slot;
  item.from_cache = true;
  item.first_dims = entry.first_dims;
  response.items.push_back(std::move(item));
  return response;
}

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
    run.push_back(std::move(ready_.front()));
    ready_.pop_front();
  }
  for (Ready& ready : run) {
    add_skew(ready.since, ready.ready);
    remember(ready);
  }
  std::vector<FusionCandidate> candidates;
  for (const Ready& ready : run) candidates.push_back({&ready.response, ready.bytes, ready.step});
  for (const auto& group : plan_fusion(candidates, params_.fusion_threshold_bytes)) {
    Response response = std::move(run[group[0]].response);
    for (size_t i = 1; i < group.size(); ++i) {
      response.items.push_back(std::move(run[group[i]].response.items[0]));
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
    item.from_cache = false;
    item.cache_slot = -1;
  }
}

std::vector<Stalled> Coordinator::stalled(TimePoint now, std::chrono::duration<double> age) const {
  std::vector<Stalled> found;
  for (const auto& [name, pending] : pending_) {
    if (now - pending.since < age) continue;
    Stalled entry{name, Operation::allreduce, {}, now - pending.since};
    for (int rank = 0; rank < size_; ++rank) {
      const auto& request = pending.requests[static_cast<size_t>(rank)];
      if (request) {
        entry.operation = request->operation;
      } else {
        entry.missing_ranks.push_back(rank);
      }
    }
    found.push_back(std::move(entry));
  }
  for (size_t slot = 0; slot < hits_.size(); ++slot) {
    const Hits& hits = hits_[slot];
    if (hits.count == 0 || now - hits.since < age) continue;
    const Request& request = directory_.current(static_cast<int64_t>(slot)).request;
    Stalled entry{request.name, request.operation, {}, now - hits.since};
    for (int rank = 0; rank < size_; ++rank) {
      if (!hits.ranks[static_cast<size_t>(rank)]) entry.missing_ranks.push_back(rank);
    }
    found.push_back(std::move(entry));
  }
  return found;
}

}  // namespace autotune
