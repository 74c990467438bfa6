#include "engine/cycle/cycle.h"

#include <algorithm>
#include <utility>

#include "common/errors.h"
#include "common/log.h"
#include "common/sockets.h"
#include "engine/negotiation/check_response.h"

namespace autotune {

namespace {

// A wait that is longer than any that a healthy job has between two looks at who is there.
constexpr auto long_wait = std::chrono::seconds(1);
// A transfer that was waited for is only complete if no rank has given it up meanwhile: its sender
// may use the memory again.
constexpr auto doubtful_wait = std::chrono::milliseconds(100);
// After a goodbye ranks end as they please, but none before what it sends has been taken.
constexpr auto goodbye_patience = std::chrono::seconds(10);
// Response lists that a rank processes at most without a word to the coordinator.
constexpr uint64_t most_unsaid_lists = 256;

}  // namespace

Cycle::Cycle(const EngineOptions& options, ControlPlane& control,
             CommunicatorFactory make_communicators, Timeline& timeline,
             Guarded<Submission>& submission, EngineStatus& status)
    : rank_(control.rank()),
      size_(control.size()),
      control_(control),
      make_communicators_(std::move(make_communicators)),
      timeline_(timeline),
      submission_(submission),
      status_(status),
      said_goodbye_(static_cast<size_t>(size_), false),
      params_(options.params),
      most_slots_(options.params.cache_capacity),
      stalls_(options.stall_warning_seconds, options.stall_shutdown_seconds, size_, Clock::now(),
              options.host_names, control.tree().height(0)),
      executor_(&timeline) {
  if (rank_ == 0) coordinator_ = std::make_unique<Coordinator>(size_, options.params, &timeline_);
  const Tree& tree = control_.tree();
  if (rank_ != 0 && !tree.is_leaf(rank_)) relay_ = std::make_unique<Relay>(tree, rank_, cache_);
  branches_.resize(static_cast<size_t>(size_));
  // Making communicators already communicates, and so calls on_wait(): all members are there.
  add_set(0, ProcessSetTable(size_).global());
}

void Cycle::run() {
  if (status_.stopped) return;
  Counters& counters = executor_.counters();
  const auto start = Clock::now();
  const int64_t busy_before = counters.busy_ns();
  try {
    const bool heard = exchange();
    if (heard) {
      counters.protocol_ns += (Clock::now() - start).count() - (counters.busy_ns() - busy_before);
      if (coordinator_) counters.skew_ns = coordinator_->skew().count();
    }
    check_connections(start);
    watch_coordinator(heard_parent_ || own_count_ > 0, start);
    check_device();
    executor_.write_device_timeline();
    if (!status_.stopped) idle_.look(Clock::now());
  } catch (const std::exception& error) {
    const std::string reason = error.what();
    log(LogLevel::error, reason);
    control_.send_all(FrameType::abort, reason);
    fail_everything(reason, true);
  }
}

// Say what is due, hear what has come, do what was decided. False when there was nothing.
bool Cycle::exchange() {
  collect();
  for (size_t i = 0; i < own_count_; ++i) say(own_[i]);
  control_.pump(frames_);
  const bool heard = !frames_.empty();
  heard_parent_ = false;
  handle_frames();
  if (relay_ && !status_.stopped) send_relayed();
  if (coordinator_ && !status_.stopped) {
    const ControlPlane* blaming = control_.tree().is_star() ? nullptr : &control_;
    for (const std::string& text : stalls_.check(*coordinator_, Clock::now(), blaming)) {
      log(LogLevel::warning, text);
    }
    lists_.clear();
    coordinator_->take(lists_);
    if (blaming != nullptr) watch_pending();
    send_and_process();
  }
  return heard || own_count_ > 0;
}

void Cycle::say(const RequestList& list) {
  if (coordinator_) return coordinator_->add(0, list, Clock::now());
  if (relay_) return relay_->add(list, Clock::now());
  encode(list, encoded_);
  control_.send_up(FrameType::requests, encoded_);
}

void Cycle::send_relayed() {
  relay_->take(relayed_, Clock::now());
  if (relayed_.empty()) return;
  encode(relayed_, encoded_);
  control_.send_up(FrameType::relayed, encoded_);
}

// Where ranks speak for others: is one of them silent, which must not be taken for those below it?
void Cycle::watch_pending() {
  if (!lists_.empty() || !coordinator_->has_pending()) return pending_.restart();
  const auto now = Clock::now();
  if (pending_.look(now) >= long_wait) control_.ask(now);
}

// `lists_`, to all ranks and here.
void Cycle::send_and_process() {
  for (const ResponseList& list : lists_) {
    encode(list, encoded_);
    control_.send_down(FrameType::responses, encoded_);
  }
  for (ResponseList& list : lists_) {
    process(list);
    if (status_.stopped) return;
    coordinator_->give_back(std::move(list));
  }
}

// What to say now, in `own_`: one list per training step.
void Cycle::collect() {
  own_count_ = 0;
  Counters& counters = executor_.counters();
  const auto submission = submission_.lock();
  ++counters.cycles;
  submission->count_cycle();
  if (const auto proposal = submission->take_proposal()) {
    coordinator_->propose(proposal->first, proposal->second);
  }
  const std::vector<TensorEntry*>& unannounced = submission->unannounced();
  if (!unannounced.empty() && submission->announce_time() <= Clock::now()) {
    for (TensorEntry* entry : unannounced) announce(*entry);
    timeline_.cycle();
    submission->clear_unannounced();
  }
  has_operations_ = !submission->operations().empty();
  if (submission->shutdown_requested() && !shutdown_announced_) {
    shutdown_announced_ = true;
    new_list(submission->current_step()).shutdown = true;
  }
  // The coordinator keeps what this rank may still mean by a cache slot. Where the rank has nothing
  // to say, as in sets that it is not in or when it has joined, it says so now and then.
  if (own_count_ == 0 && processed_ - said_processed_ >= most_unsaid_lists) {
    new_list(submission->current_step());
  }
  if (own_count_ > 0) said_processed_ = processed_;
  counters.messages += static_cast<int64_t>(own_count_);
}

// One more of `own_`, empty.
RequestList& Cycle::new_list(int64_t step) {
  if (own_count_ == own_.size()) own_.emplace_back();
  RequestList& list = own_[own_count_++];
  list.step = step;
  list.processed = processed_;
  list.shutdown = false;
  list.hit_bits.clear();
  list.requests.clear();
  return list;
}

// Adds one tensor to what is said.
void Cycle::announce(TensorEntry& entry) {
  const bool goes_on = own_count_ > 0 && own_[own_count_ - 1].step == entry.step;
  RequestList& list = goes_on ? own_[own_count_ - 1] : new_list(entry.step);
  if (!coordinator_) timeline_.announced(entry.request, rank_);  // rank 0 sees all ranks'
  entry.stage = Stage::announced;
  if (entry.request->operation == Operation::join) has_joined_ = true;
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

void Cycle::handle_frames() {
  while (!frames_.empty() && !status_.stopped) {
    frames_.take_front(frame_);
    const bool is_from_above = frame_.rank == control_.tree().parent(rank_);
    heard_parent_ = heard_parent_ || is_from_above;
    switch (frame_.type) {
      case FrameType::requests:
      case FrameType::relayed:
        if (is_from_above) refuse_frame("requests");
        ++executor_.counters().heard;
        frame_.type == FrameType::requests ? heard_requests() : heard_relayed();
        break;
      case FrameType::responses:
        if (!is_from_above) refuse_frame("responses");
        heard_responses();
        break;
      case FrameType::abort:  // the control plane has passed it on
        fail_everything(frame_.payload, true);
        break;
      case FrameType::goodbye:
        heard_goodbye(frame_);
        break;
      case FrameType::hello:
        refuse_frame("hello");
      case FrameType::ping:  // the control plane keeps them to itself
      case FrameType::pong:
        break;
    }
  }
}

void Cycle::refuse_frame(const char* what) const {
  throw EngineError(std::string("control plane: expected no ") + what +
                    " here, got some from rank " + std::to_string(frame_.rank) + " (on rank " +
                    std::to_string(rank_) + " of " + std::to_string(size_) +
                    "); do all ranks run the same version of this package?");
}

// Of one rank that reports to this one.
void Cycle::heard_requests() {
  decode(frame_.payload, frame_.rank, heard_);
  if (relay_) return relay_->hear(frame_.rank, heard_, Clock::now());
  coordinator_->add(frame_.rank, heard_, Clock::now());
}

// Of several ranks, by one that speaks for them.
void Cycle::heard_relayed() {
  decode(frame_.payload, frame_.rank, relayed_);
  const auto now = Clock::now();
  if (relay_) return relay_->hear(frame_.rank, relayed_, now);
  for (const RelayedList& each : relayed_) {
    check_relayed(each, frame_.rank, control_.tree());
    decode_relayed(each, frame_.rank, heard_);
    if (!each.is_branch) {
      coordinator_->add(each.rank, heard_, now);
      continue;
    }
    std::vector<int>& ranks = branches_[static_cast<size_t>(each.rank)];
    if (ranks.empty()) ranks = control_.tree().branch(each.rank);
    for (const int rank : ranks) coordinator_->add(rank, heard_, now);
  }
}

void Cycle::heard_responses() {
  ResponseList list = decode(frame_.payload, frame_.rank, pool_of_lists_);
  process(list);
  pool_of_lists_.give(std::move(list));
}

void Cycle::process(ResponseList& list) {
  if (list.change) {
    executor_.params_changed(params_, list.change->params);
    params_ = list.change->params;
    most_slots_ = std::max(most_slots_, params_.cache_capacity);
    submission_.lock()->apply(*list.change);
  }
  for (int64_t slot : list.evicted_slots) cache_.erase(slot);
  find_work(list);
  timeline_.agreed(works_);
  for (const Work& work : works_) perform(work);
  zeros_.entries.clear();
  zeros_.memory.clear();
  ++processed_;
  if (relay_) relay_->follow(list, processed_);
  if (executor_.has_open_check() && processed_ >= check_ends_at_) finish_check();
  if (list.shutdown) {
    // Not before: a rank that ends while others still work with it is missed.
    control_.send_all(FrameType::goodbye, "");
    fail_everything("the engine was shut down: " + list.shutdown_reason + seen_here() +
                        "; ranks that run different numbers of steps call hvd.join() after their "
                        "last one",
                    false);
  }
}

// Find this rank's tensors for the whole list first: a slot that one response refers to may be
// given to another tensor by a later one.
void Cycle::find_work(ResponseList& list) {
  works_.resize(list.responses.size());
  const auto submission = submission_.lock();
  std::vector<int32_t> removed;  // sets, by an earlier response
  for (size_t i = 0; i < list.responses.size(); ++i) {
    Response& response = list.responses[i];
    works_[i].response = &response;
    works_[i].entries.clear();
    const ProcessSet& set = check_response(response, submission->sets());
    if (std::count(removed.begin(), removed.end(), response.process_set) > 0) {
      throw EngineError("negotiation: response for process set " +
                        std::to_string(response.process_set) + ", which is removed before it");
    }
    if (response.operation == Operation::remove_process_set && response.error.empty()) {
      removed.push_back(response.root_rank);
    }
    const int position = set.position(rank_);
    for (ResponseItem& item : response.items) {
      if (item.cache_slot >= most_slots_) refuse_slot(item.cache_slot);
      if (position < 0) continue;
      TensorEntry* entry = find_entry(*submission, response, item);
      if (entry == nullptr) continue;
      works_[i].entries.push_back(entry);
      if (entry->handle != nullptr) take_answer(response, item, *entry, set, position);
    }
    compress(response);
  }
}

// All ranks have the same parameters in force at this response.
void Cycle::compress(Response& response) const {
  if (!response.may_compress || response.wire_type || response.dtype != DataType::float32) return;
  if (params_.fp16_gradients) response.wire_type = DataType::float16;
  if (params_.bf16_gradients) response.wire_type = DataType::bfloat16;
}

// The tensor of this rank that an item is about; zeros are none.
void Cycle::take_answer(const Response& response, const ResponseItem& item, TensorEntry& entry,
                        const ProcessSet& set, int position) const {
  if (entry.stage != Stage::announced) {
    throw EngineError("negotiation: second response for " + describe(entry.request) + " (on rank " +
                      std::to_string(rank_) + ")");
  }
  entry.stage = Stage::answered;
  check_item(response, item, entry.request, set, position);
}

void Cycle::refuse_slot(int64_t slot) const {
  throw EngineError("negotiation: expected a cache slot below " + std::to_string(most_slots_) +
                    ", the largest cache capacity so far, got " + std::to_string(slot));
}

// nullptr: this rank has joined, and need not take part.
TensorEntry* Cycle::find_entry(const Submission& submission, const Response& response,
                               ResponseItem& item) {
  std::string_view name = item.name;
  if (item.from_cache) {
    const CacheEntry* entry = cache_.at(item.cache_slot);
    if (entry == nullptr) throw EngineError("negotiation: response names an empty cache slot");
    if (!entry->rows.empty()) item.rows = entry->rows;
    if (TensorEntry* announced = cache_.announced(item.cache_slot)) return announced;
    name = entry->request->name;
  }
  TensorEntry* const found = submission.operations().find(NameKey(name));
  if (found != nullptr && found->stage != Stage::queued) return found;
  if (!response.error.empty() || response.operation == Operation::barrier) return nullptr;
  if (has_joined_ && item.count >= 0 && response.operation == Operation::allreduce) {
    return zeros_for(response, item);
  }
  throw EngineError("negotiation: response for " + shown_name(std::string(name)) + ", which rank " +
                    std::to_string(rank_) + " has not announced");
}

TensorEntry* Cycle::zeros_for(const Response& response, const ResponseItem& item) {
  TensorEntry& entry = zeros_.entries.emplace_back();
  Request& request = entry.request.edit();
  static_cast<OperationKind&>(request) = response;
  request.name = item.name;
  request.shape = {item.count};
  if (response.on_device) return &entry;  // its memory is made when it is used
  zeros_.memory.emplace_back(static_cast<size_t>(entry.request->bytes()), '\0');
  entry.input = entry.output = zeros_.memory.back().data();
  return &entry;
}

void Cycle::perform(const Work& work) {
  remember(work);
  const Response& response = *work.response;
  const bool takes_part = !work.entries.empty();
  if (takes_part) timeline_.operation_begins(work);
  if (response.error.empty()) {
    if (!moves_data(response.operation)) {
      agree(work);
    } else if (takes_part) {
      const bool opens_check = response.check >= 0 && response.on_device;
      if (opens_check && executor_.has_open_check()) finish_check();
      performed_ = &work;
      transfer_.restart();
      const double worst_error = executor_.run(work, params_);
      if (transfer_.waited() >= doubtful_wait) hear_of_ends();
      performed_ = nullptr;
      if (opens_check) {
        checked_epoch_ = submission_.lock()->epoch();
        check_ends_at_ = processed_ + lists_before_check;
      }
      if (worst_error >= 0 && rank_ == 0) {
        const auto place = static_cast<size_t>(response.check);
        submission_.lock()->add_check(work.entries[place]->request->name, worst_error);
      }
      const std::string shortage = executor_.take_shortage();
      if (!shortage.empty() && rank_ == 0) {
        submission_.lock()->add_check(work.entries[0]->request->name, -1, shortage);
      }
      if (response.on_device) status_.device_is_busy = true;
    }
  }
  if (takes_part) complete(work);
}

// All ranks of its set get here between the same two responses.
void Cycle::finish_check() {
  checks_ = true;
  transfer_.restart();
  const DeviceExecutor::Checked checked = executor_.finish_check();
  checks_ = false;
  if (rank_ != 0) return;
  submission_.lock()->add_check(checked.name, checked.worst_error, "", checked_epoch_);
}

void Cycle::remember(const Work& work) {
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
void Cycle::agree(const Work& work) {
  const Response& response = *work.response;
  for (TensorEntry* entry : work.entries) entry->handle->value = response.root_rank;
  switch (response.operation) {
    case Operation::join:
      has_joined_ = false;
      return submission_.lock()->advance_to_step(response.step);
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

void Cycle::add_set(int32_t id, const ProcessSet& set) {
  if (set.contains(rank_)) {
    const WaitHook waiting = [this] { on_wait(); };
    transfer_.restart();
    Communicators communicators = make_communicators_(set.ranks, waiting);
    if (id == 0) idle_.use(communicators.transport);  // those of other sets go through it, too
    executor_.add_set(id, set, std::move(communicators), waiting);
  }
  if (id != 0) submission_.lock()->add_set(id, set);
}

// What this rank alone has still queued for the set fails here: the coordinator passes over it.
void Cycle::remove_set(int32_t id) {
  executor_.remove_set(id);
  const auto submission = submission_.lock();
  submission->remove_set(id, [&](TensorEntry& entry) {
    end(*submission, entry, describe(entry.request) + " failed: its process set was removed");
  });
  submission_.notify_all();
}

void Cycle::complete(const Work& work) {
  timeline_.operation_ends(work);
  bool waited = false;
  {
    const auto submission = submission_.lock();
    for (TensorEntry* entry : work.entries) {
      if (!entry->handle) continue;  // zeros
      waited = waited || entry->handle->waited;
      end(*submission, *entry, work.response->error);
    }
    submission->set_counters(executor_.counters());
  }
  if (waited) submission_.notify_all();
}

void Cycle::end(Submission& submission, TensorEntry& entry, const std::string& error) {
  cache_.forget(&entry, entry.announced_slot);
  submission.end(entry, error);
}

// What NCCL hears of other ranks by itself.
void Cycle::check_device() {
  if (status_.device == nullptr || status_.stopped) return;
  const auto now = Clock::now();
  if (now - device_checked_ < device_check_interval) return;
  device_checked_ = now;
  status_.device_is_busy = executor_.device_busy();
}

void Cycle::use_device(DeviceBackend backend) {
  Device* device = backend.device.get();
  executor_.use_device(std::move(backend), params_);
  status_.device = device;
}

Cycle::Clock::time_point Cycle::next_check(Clock::time_point now, bool in_flight) const {
  const bool may_stall = coordinator_ ? coordinator_->has_pending() : in_flight;
  const auto due = relay_due();
  if (may_stall && stalls_.enabled()) return std::min(due, now + StallInspector::interval);
  return control_.has_other_hosts() ? std::min(due, now + ControlPlane::interval) : due;
}

Cycle::Clock::time_point Cycle::next_device_timeline(Clock::time_point now) {
  const bool pending = executor_.device_timeline_pending();
  return pending ? now + DeviceTimeline::interval : Clock::time_point::max();
}

Cycle::Clock::time_point Cycle::let_transport_go_on() {
  try {
    idle_.look(Clock::now());
    return idle_.due();
  } catch (const EngineError&) {  // of a rank that has left
    return Clock::time_point::max();
  }
}

// ---------------------------------------------------------------- when things go wrong

// Called by the communicator while it waits.
void Cycle::on_wait() {
  hear_of_ends();
  watch_transfer();
}

// Throws where the job has ended, or a rank.
void Cycle::hear_of_ends() {
  control_.pump(frames_);
  for (const Frame& frame : frames_) {
    if (frame.type == FrameType::abort) throw EngineError(frame.payload);
    if (frame.type == FrameType::goodbye) heard_goodbye(frame);
  }
  check_connections(Clock::now());
  if (!status_.abandon) return;
  const std::string reason = submission_.lock()->abort_reason();
  throw EngineError(reason.empty() ? "the engine was shut down while an operation was running"
                                   : reason);
}

// The first of the set that is there speaks for all.
void Cycle::watch_transfer() {
  const auto now = Clock::now();
  const auto waited = transfer_.look(now);
  if (waited < long_wait) return;
  control_.ask(now);
  const std::vector<int> ranks = ranks_of_performed();
  const auto is_one_of = [](int rank, const auto& some) {
    return std::find(some.begin(), some.end(), rank) != some.end();
  };
  for (int rank : ranks) {
    if (waited < goodbye_patience || !is_one_of(rank, gone_)) continue;
    throw EngineError(describe_performed() + " failed: rank " + stalls_.named({rank}) +
                      " ended before it was done" + seen_here());
  }
  const std::vector<Silent> silent = control_.silent();
  std::vector<int> silent_ranks;
  for (const Silent& each : silent) silent_ranks.push_back(each.rank);
  const auto first = std::find_if_not(ranks.begin(), ranks.end(),
                                      [&](int rank) { return is_one_of(rank, silent_ranks); });
  const bool is_first = first != ranks.end() && *first == rank_;
  const std::string warning =
      stalls_.check_transfer(describe_performed(), waited, silent, is_first);
  if (!warning.empty()) log(LogLevel::warning, warning);
}

std::string Cycle::describe_performed() const {
  if (checks_) return "the check of a result";
  if (performed_ == nullptr) return "the start of a process set";
  const std::vector<TensorEntry*>& entries = performed_->entries;
  const std::string first = describe(entries[0]->request);
  if (entries.size() == 1) return first;
  return first + " (with " + std::to_string(entries.size() - 1) + " more)";
}

std::vector<int> Cycle::ranks_of_performed() {
  const auto submission = submission_.lock();
  return submission->sets().find(performed_ ? performed_->response->process_set : 0)->ranks;
}

std::string Cycle::seen_here() const {
  return " (seen on rank " + std::to_string(rank_) + " of " + std::to_string(size_) + ")";
}

// By other ranks: is it there?
void Cycle::watch_coordinator(bool heard, Clock::time_point now) {
  if (coordinator_) return;
  if (heard || !has_operations_) return answer_.restart();
  if (answer_.look(now) < long_wait) return;
  control_.ask(now);
  const Tree& tree = control_.tree();
  for (const Silent& each : control_.silent()) {
    if (!tree.is_in_branch(rank_, each.rank)) continue;
    const bool is_first = rank_ == tree.children(each.rank)[0];
    const std::string warning = stalls_.check_coordinator(each, is_first);
    if (!warning.empty()) log(LogLevel::warning, warning);
  }
}

void Cycle::heard_goodbye(const Frame& frame) {
  said_goodbye_[static_cast<size_t>(frame.rank)] = true;
}

// A rank that has said goodbye may leave; that of another one is an error.
void Cycle::check_connections(Clock::time_point now) {
  std::vector<int> lost = control_.take_lost_ranks(now);
  std::vector<int> closed = control_.take_closed_ranks();
  if ((closed.empty() && lost.empty()) || status_.stopped) return;
  for (const Frame& frame : frames_) {  // it may be among what is not handled yet
    if (frame.type == FrameType::goodbye) heard_goodbye(frame);
  }
  for (std::vector<int>* ranks : {&closed, &lost}) {
    const auto may_leave = std::stable_partition(ranks->begin(), ranks->end(), [this](int rank) {
      return !said_goodbye_[static_cast<size_t>(rank)];
    });
    gone_.insert(gone_.end(), may_leave, ranks->end());
    ranks->erase(may_leave, ranks->end());
  }
  if (!lost.empty()) {
    throw EngineError("no sign of life from the host of rank " + stalls_.named(lost) + " for " +
                      std::to_string(lost_after.count()) + " s" + seen_here() +
                      "; is it down, or the network between?");
  }
  if (closed.empty()) return;
  throw EngineError("rank " + stalls_.named(closed) + " ended its process or lost its connection" +
                    seen_here() + "; look for its error message above this one");
}

void Cycle::fail_everything(const std::string& reason, bool fatal) {
  {
    const auto submission = submission_.lock();
    submission->close(reason, !fatal);
    if (fatal) status_.failed = true;
  }
  if (fatal) executor_.close_device(true);  // or the GPU would wait for ranks that are gone
  {
    const auto submission = submission_.lock();
    submission->end_all();
    status_.stopped = true;
  }
  submission_.notify_all();
  control_.wake();
}

}  // namespace autotune
