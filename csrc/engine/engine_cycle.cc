// One cycle: announcing, negotiating, performing (cycle_mutex_ held).
#include <algorithm>
#include <utility>

#include "common/errors.h"
#include "common/log.h"
#include "engine/engine.h"

namespace autotune {

void Engine::cycle() {
  if (stopped_) return;
  Counters& counters = executor_.counters();
  const auto start = Clock::now();
  const int64_t busy_before = counters.busy_ns();
  try {
    if (exchange()) {
      counters.protocol_ns += (Clock::now() - start).count() - (counters.busy_ns() - busy_before);
      if (coordinator_) counters.skew_ns = coordinator_->skew().count();
    }
    check_connections();
    check_device();
    executor_.write_device_timeline();
  } catch (const std::exception& error) {
    const std::string reason = error.what();
    log(LogLevel::error, reason);
    control_->send_all(FrameType::abort, reason);
    fail_everything(reason, true);
  }
}

// Say what is due, hear what has come, do what was decided. False when there was nothing.
bool Engine::exchange() {
  collect();
  for (size_t i = 0; i < own_count_; ++i) {
    if (coordinator_) {
      coordinator_->add(0, own_[i], Clock::now());
    } else {
      encode(own_[i], encoded_);
      control_->send_all(FrameType::requests, encoded_);
    }
  }
  control_->pump(frames_);
  const bool heard = !frames_.empty();
  handle_frames();
  if (coordinator_ && !stopped_) {
    for (const std::string& text : stalls_.check(*coordinator_, Clock::now())) {
      log(LogLevel::warning, text);
    }
    lists_.clear();
    coordinator_->take(lists_);
    send_and_process();
  }
  return heard || own_count_ > 0;
}

// `lists_`, to all ranks and here.
void Engine::send_and_process() {
  for (const ResponseList& list : lists_) {
    encode(list, encoded_);
    control_->send_all(FrameType::responses, encoded_);
    if (!list.shutdown) continue;
    control_->send_all(FrameType::goodbye, "");
    saying_goodbye_ = true;
  }
  for (ResponseList& list : lists_) {
    process(list);
    if (stopped_) return;
    coordinator_->give_back(std::move(list));
  }
}

// What to say now, in `own_`: one list per training step.
void Engine::collect() {
  own_count_ = 0;
  std::lock_guard lock(mutex_);
  ++executor_.counters().cycles;
  if (proposal_) {
    coordinator_->propose(proposal_->first, proposal_->second);
    proposal_.reset();
  }
  if (!unannounced_.empty() && announce_time() <= Clock::now()) {
    for (TensorEntry* entry : unannounced_) announce(*entry);
    timeline_.cycle();
    unannounced_.clear();
    unannounced_bytes_ = 0;
  }
  if (shutdown_requested_ && !shutdown_announced_) {
    shutdown_announced_ = true;
    new_list(steps_.current_step()).shutdown = true;
  }
  executor_.counters().messages += static_cast<int64_t>(own_count_);
  counters_.cycles = executor_.counters().cycles;
}

// One more of `own_`, empty.
RequestList& Engine::new_list(int64_t step) {
  if (own_count_ == own_.size()) own_.emplace_back();
  RequestList& list = own_[own_count_++];
  list.step = step;
  list.processed = processed_;
  list.shutdown = false;
  list.hit_bits.clear();
  list.requests.clear();
  return list;
}

// Add one tensor to what is said (mutex_ held).
void Engine::announce(TensorEntry& entry) {
  const bool goes_on = own_count_ > 0 && own_[own_count_ - 1].step == entry.step;
  RequestList& list = goes_on ? own_[own_count_ - 1] : new_list(entry.step);
  if (!coordinator_) timeline_.announced(entry.request, rank_);  // rank 0 sees all ranks'
  const int64_t slot = cache_.find(entry.request);
  if (slot >= 0) {
    list.set_hit(slot);
    entry.announced_slot = slot;
    cache_.set_announced(slot, &entry);
    ++executor_.counters().cache_hits;
  } else {
    list.requests.push_back(entry.request);
    ++executor_.counters().cache_misses;
  }
}

void Engine::handle_frames() {
  while (!frames_.empty() && !stopped_) {
    frames_.take_front(frame_);
    switch (frame_.type) {
      case FrameType::requests:
        decode(frame_.payload, heard_);
        coordinator_->add(frame_.rank, heard_, Clock::now());
        break;
      case FrameType::responses:
        heard_responses();
        break;
      case FrameType::abort:
        fail_everything(frame_.payload, true);
        if (coordinator_) control_->send_all(FrameType::abort, frame_.payload);
        break;
      case FrameType::hello:
      case FrameType::goodbye:
        break;
    }
  }
}

void Engine::heard_responses() {
  ResponseList list = decode(frame_.payload, pool_of_lists_);
  process(list);
  pool_of_lists_.give(std::move(list));
}

void Engine::process(ResponseList& list) {
  if (list.change) apply(*list.change);
  for (int64_t slot : list.evicted_slots) cache_.erase(slot);
  find_work(list);
  timeline_.agreed(works_);
  for (const Work& work : works_) perform(work);
  zero_entries_.clear();
  zeros_.clear();
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

// Find this rank's tensors for the whole list first: a slot that one response refers to may be
// given to another tensor by a later one.
void Engine::find_work(ResponseList& list) {
  works_.resize(list.responses.size());
  std::lock_guard lock(mutex_);
  for (size_t i = 0; i < list.responses.size(); ++i) {
    Response& response = list.responses[i];
    works_[i].response = &response;
    works_[i].entries.clear();
    const ProcessSet* set = sets_.find(response.process_set);
    if (set == nullptr || !set->contains(rank_)) continue;
    for (ResponseItem& item : response.items) {
      TensorEntry* entry = find_entry(response, item);
      if (entry != nullptr) works_[i].entries.push_back(entry);
    }
  }
}

// nullptr: this rank has joined, and need not take part.
TensorEntry* Engine::find_entry(const Response& response, ResponseItem& item) {
  std::string_view name = item.name;
  if (item.from_cache) {
    const CacheEntry* entry = cache_.at(item.cache_slot);
    if (entry == nullptr) throw EngineError("negotiation: response names an empty cache slot");
    if (!entry->rows.empty()) item.rows = entry->rows;
    if (TensorEntry* announced = cache_.announced(item.cache_slot)) return announced;
    name = entry->request->name;
  }
  const auto found = in_flight_.find(NameKey(name));
  if (found != in_flight_.end()) return &found->second->entry;
  if (!response.error.empty() || response.operation == Operation::barrier) return nullptr;
  if (item.count >= 0 && response.operation == Operation::allreduce) {
    return zeros_for(response, item);
  }
  throw EngineError("negotiation: response for " + shown_name(std::string(name)) + ", which rank " +
                    std::to_string(rank_) + " has not announced");
}

TensorEntry* Engine::zeros_for(const Response& response, const ResponseItem& item) {
  TensorEntry& entry = zero_entries_.emplace_back();
  Request& request = entry.request.edit();
  static_cast<OperationKind&>(request) = response;
  request.name = item.name;
  request.shape = {item.count};
  if (response.on_device) return &entry;  // its memory is made when it is used
  zeros_.emplace_back(static_cast<size_t>(entry.request->bytes()), '\0');
  entry.input = entry.output = zeros_.back().data();
  return &entry;
}

void Engine::perform(const Work& work) {
  remember(work);
  const Response& response = *work.response;
  const bool takes_part = !work.entries.empty();
  if (takes_part) timeline_.operation_begins(work);
  if (response.error.empty()) {
    if (!moves_data(response.operation)) {
      agree(work);
    } else if (takes_part) {
      const double worst_error = executor_.run(work, params_);
      if (worst_error >= 0 && rank_ == 0) add_check(work, worst_error);
      if (response.on_device) device_is_busy_ = true;
    }
  }
  if (takes_part) complete(work);
}

void Engine::remember(const Work& work) {
  const std::vector<ResponseItem>& items = work.response->items;
  for (size_t i = 0; i < items.size(); ++i) {
    if (items[i].from_cache || items[i].cache_slot < 0) continue;
    if (work.entries.empty()) {
      cache_.erase(items[i].cache_slot);  // of a set that this rank is not in
    } else {
      cache_.put(items[i].cache_slot, {work.entries[i]->request, items[i].rows});
    }
  }
}

// What changes when all ranks have agreed on something.
void Engine::agree(const Work& work) {
  const Response& response = *work.response;
  for (TensorEntry* entry : work.entries) entry->handle->value = response.root_rank;
  switch (response.operation) {
    case Operation::join: {
      std::lock_guard lock(mutex_);
      steps_.advance_to(response.step);
      return;
    }
    case Operation::add_process_set: {
      const std::vector<int64_t>& ranks = response.items[0].rows;
      return add_set(response.root_rank, {std::vector<int>(ranks.begin(), ranks.end())});
    }
    case Operation::remove_process_set:
      return remove_set(response.root_rank);
    default:
      return;
  }
}

void Engine::add_set(int32_t id, const ProcessSet& set) {
  if (set.contains(rank_)) {
    const WaitHook waiting = [this] { on_wait(); };
    executor_.add_set(id, set, make_communicators_(set.ranks, waiting), waiting);
  }
  if (id == 0) return;
  std::lock_guard lock(mutex_);
  sets_.add(id, set.ranks);
}

// What this rank alone has still queued for the set fails here: the coordinator passes over it.
void Engine::remove_set(int32_t id) {
  executor_.remove_set(id);
  std::lock_guard lock(mutex_);
  sets_.remove(id);
  const auto of_set = [id](const TensorEntry* entry) { return entry->request->process_set == id; };
  unannounced_.erase(std::remove_if(unannounced_.begin(), unannounced_.end(), of_set),
                     unannounced_.end());
  for (auto each = in_flight_.begin(); each != in_flight_.end();) {
    TensorEntry& entry = (each++)->second->entry;
    if (of_set(&entry))
      end(entry, describe(entry.request) + " failed: its process set was removed");
  }
  done_changed_.notify_all();
}

void Engine::add_check(const Work& work, double worst_error) {
  constexpr size_t most = 1024;  // where nobody drains, the newest are of no use
  const std::string& name = work.entries[static_cast<size_t>(work.response->check)]->request->name;
  std::lock_guard lock(mutex_);
  if (checks_.size() < most) checks_.push_back({epoch_, track_name(name), worst_error});
}

void Engine::complete(const Work& work) {
  timeline_.operation_ends(work);
  bool waited = false;
  {
    std::lock_guard lock(mutex_);
    for (TensorEntry* entry : work.entries) {
      if (!entry->handle) continue;  // zeros
      waited = waited || entry->handle->waited;
      end(*entry, work.response->error);
    }
    const int64_t wait_ns = counters_.wait_ns;
    counters_ = executor_.counters();
    counters_.wait_ns = wait_ns;
  }
  if (waited) done_changed_.notify_all();
}

// Its handle is what remains, as long as its owner has not released it (mutex_ held).
void Engine::end(TensorEntry& entry, const std::string& error) {
  Handle& handle = *entry.handle;
  handle.done = true;
  handle.error = error;
  if (handle.released) free_result(handle);
  cache_.forget(&entry, entry.announced_slot);
  in_flight_.erase(in_flight_.find(entry.request.key()));  // not by key: it lies in the entry
}

}  // namespace autotune
